"""`denpexd run` and `denpexd exec`: starting the daemon, and starting a job beside it that it can never hurt.

The job's output goes through the relay, a tiny process of its own, which passes it on and writes a copy to a spool that
the daemon tails like any log. If the daemon dies or is slow, the job and its output notice nothing.
"""

import asyncio
import contextlib
import functools
import hashlib
import json
import logging
import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any

from denpexd.errors import SettingsError
from denpexd.evidence.procfs import ProcFs
from denpexd.evidence.ranks import DEAD_STATES
from denpexd.relay import Relay, start
from denpexd.workfolder import work_folder

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
LAST_WORDS = 20.0  # seconds the daemon gets to explain a job that has just failed
EXIT_CODE = "exit_code"  # file by which the daemon learns how the command ended
LAST_LINES = 5.0  # seconds the relay gets to pass on what the command has written


def watch(paths: Sequence[str], config: Path | None, flags: dict[str, Any], *, color: bool) -> int:
    """Run the daemon on paths; "-" stands for standard input, which is passed on to standard output."""
    with contextlib.ExitStack() as cleanup:
        chosen, stream, until, pipe = list(paths), sys.stdout, None, None
        if "-" in chosen:
            pipe = _pipe(0)
            relay = cleanup.enter_context(_stdin_relay())
            chosen[chosen.index("-") :] = [str(p) for p in relay.spools.values()]
            stream = sys.stderr  # standard output carries the job's own lines
            if not _is_chosen(config, flags, "job"):
                flags = {**flags, "job": _name("stdin")}
            process = relay.process
            until = _Until(process)
        if chosen:
            flags = {**flags, "paths": chosen}
        name = hashlib.sha256("\0".join(paths).encode("utf-8", "surrogateescape")).hexdigest()[:12]
        return run_daemon(config, flags, stream=stream, color=color, until=until, pipe=pipe, beside=f"run-{name}")


def _name(what: str) -> str:
    """A job's name where nobody gave one: Slurm's, or what it is and when it was started."""
    return os.environ.get("SLURM_JOB_NAME") or f"{what}-{datetime.now(UTC):%Y%m%d-%H%M%S}"  # noqa: TID251


def _pipe(fd: int) -> int | None:
    """The inode of the pipe at this descriptor, if it is one."""
    try:
        status = os.fstat(fd)
    except OSError:
        return None
    return status.st_ino if stat.S_ISFIFO(status.st_mode) else None


class _Until:
    """The daemon on a stream ends when the stream does, after it has had its say."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process, self._ended_at = process, None

    def __call__(self, daemon: Any) -> bool:
        if self._process.poll() is None:
            return False
        if self._ended_at is None:
            self._ended_at = daemon.clock.now()
        return bool(daemon.clock.now() - self._ended_at > 1.0 and not daemon.reader.behind())


def run_daemon(
    config: Path | None,
    flags: Mapping[str, Any],
    *,
    stream: Any,
    color: bool,
    until: Any = None,
    pipe: int | None = None,
    beside: str = "run",
) -> int:
    """Load the settings and run the daemon in this process.

    Where port or state folder are nobody's choice and another daemon has them, it takes a free port and the folder
    `beside` below the other's.
    """
    from denpexd.app import run
    from denpexd.settings import Settings, load
    from denpexd.state import of_daemon

    settings = load(config, overrides=flags, environ=os.environ)
    if not settings.paths:
        raise SettingsError("nothing to watch: give a folder, file or glob of logs, or set `paths` in the file of -c")
    _log_to_stderr(settings.log_level)

    def reread() -> Settings:
        return load(config, overrides=flags, environ=os.environ)

    any_port = not _is_chosen(config, flags, "web", "port")
    state = functools.partial(of_daemon, otherwise=None if _is_chosen(config, flags, "state_dir") else beside)
    return asyncio.run(
        run(
            settings,
            stream=stream,
            color=color,
            until=until,
            reread=reread,
            pipe=pipe,
            any_port=any_port,
            state=state,
        )
    )


def _is_chosen(config: Path | None, flags: Mapping[str, Any], *at: str) -> bool:
    """Whether somebody gave this option: by the file, a DENPEXD_* variable, a flag, or systemd's state folder."""
    from denpexd.settings import Settings
    from denpexd.settings_sources import from_flags, read_environ, read_file

    sources = [read_environ(os.environ, Settings), from_flags(flags), *([read_file(config)] if config else [])]
    return any(at in source.places for source in sources) or (at == ("state_dir",) and "STATE_DIRECTORY" in os.environ)


def _log_to_stderr(level: str) -> None:
    form = "%(asctime)s %(levelname)s %(name)s: %(message)s"
    logging.basicConfig(level=level.upper(), stream=sys.stderr, format=form)
    for noisy in ("httpx", "httpcore", "apprise", "watchdog", "asyncio", "uvicorn"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


@contextlib.contextmanager
def _stdin_relay() -> Iterator[Relay]:
    """A relay from our standard input to our standard output, which outlives us if we are killed."""
    with work_folder("denpexd-stdin-") as (folder, _):
        yield start_on_stdin(folder)


def start_on_stdin(folder: Path) -> Relay:
    """The relay reads our standard input itself, so that a dead daemon never breaks the writer's pipe."""
    spool = folder / "stdin.log"
    arguments = [sys.executable, "-I", "-S", _relay_path(), "--spool", str(spool), "--fd-in", "0", "--fd-out", "1"]
    spool.touch(mode=0o600)  # so that the daemon finds it at once, even if nothing is printed for long
    process = subprocess.Popen(arguments, start_new_session=True)
    return Relay(process, {}, {"stdin": spool})


def _relay_path() -> str:
    import denpexd.relay

    return str(denpexd.relay.__file__)


def execute(command: Sequence[str], config: Path | None, flags: dict[str, Any], log_dirs: Sequence[str]) -> int:
    """Start the command with the daemon beside it; its exit code, 127 if it cannot be started.

    This process stays small: it forwards signals and waits. The daemon sees by itself when the command has ended.
    """
    with work_folder("denpexd-exec-") as (folder, lock):
        relay = start(folder, {"stdout": 1, "stderr": 2})
        for spool in relay.spools.values():
            spool.touch(mode=0o600)
        try:
            child = subprocess.Popen(list(command), stdout=relay.writers["stdout"], stderr=relay.writers["stderr"])
        except OSError as error:
            relay.close_writers()
            print(f"denpexd: cannot start {command[0]}: {error.strerror}", file=sys.stderr)  # noqa: T201
            return 127 if isinstance(error, FileNotFoundError) else 126
        with _forwarded(child) as (others, forwarded):
            relay.close_writers()
            daemon = _start_daemon(folder, lock, config, flags, log_dirs, (child.pid, relay.process.pid))
            code = child.wait()
            if not forwarded:  # else somebody ended it, which is no failure
                _tell(folder / EXIT_CODE, code)
            if daemon is not None:
                others.append(daemon)
            # A process that outlives the command may hold its output; the relay goes on without us then.
            with contextlib.suppress(subprocess.TimeoutExpired):
                relay.process.wait(LAST_LINES)
            _end_daemon(daemon, at_once=code == 0)
        return 128 - code if code < 0 else code


def _start_daemon(
    folder: Path, lock: int, config: Path | None, flags: dict[str, Any], log_dirs: Sequence[str], pids: tuple[int, int]
) -> "subprocess.Popen[bytes] | None":
    """The daemon as a process of its own; None (and a word) if it cannot be started: the job goes on without.

    `lock`: of the folder, which the daemon uses on if we are killed. `pids`: those of the command and of the relay.
    """
    job = flags.get("job") or _name("exec")
    spools = [str(folder / "stdout.log"), str(folder / "stderr.log")]
    overrides = {**flags, "job": job, "paths": [*spools, *log_dirs]}
    plan = {"config": str(config) if config else None, "flags": overrides, "root_pid": pids[0], "relay_pid": pids[1]}
    plan |= {"state_dir": str(folder / "state"), "exit_code": str(folder / EXIT_CODE)}
    try:
        return subprocess.Popen(
            [sys.executable, "-m", "denpexd.execute", json.dumps(plan)],
            stdin=subprocess.DEVNULL,
            stdout=2,
            pass_fds=[lock],
            start_new_session=True,
        )
    except OSError as error:
        print(f"denpexd: not watching: {error}", file=sys.stderr)  # noqa: T201
        return None


def _tell(path: Path, code: int) -> None:
    """Leave the exit code for the daemon; without it the daemon only sees that the command is gone."""
    with contextlib.suppress(OSError):
        path.with_suffix(".new").write_text(str(code))
        path.with_suffix(".new").replace(path)


@contextlib.contextmanager
def _forwarded(child: "subprocess.Popen[bytes]") -> "Iterator[tuple[list[subprocess.Popen[bytes]], list[int]]]":
    """Hand every signal on to the command; once it has ended, ask those in the first list to come to an end.

    The second list holds the signals so far.
    """
    others: list[subprocess.Popen[bytes]] = []
    forwarded: list[int] = []

    def forward(number: int, _: FrameType | None) -> None:
        forwarded.append(number)
        child.send_signal(number)  # does nothing if the command has ended
        for other in others:
            other.terminate()

    before = {number: signal.signal(number, forward) for number in FORWARDED}
    try:
        yield others, forwarded
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _end_daemon(daemon: "subprocess.Popen[bytes] | None", *, at_once: bool) -> None:
    """Let it say what it has to say about a failure, for a while; after success nothing is left to say."""
    if daemon is None:
        return
    for patience in (0.0 if at_once else LAST_WORDS, LAST_WORDS):
        with contextlib.suppress(subprocess.TimeoutExpired):
            daemon.wait(patience)
            return
        daemon.terminate()
    daemon.kill()
    daemon.wait()


class _Ended:
    """The command has ended, its output is in the spools as far as it will ever be, and all of it is read.

    The daemon looks itself: nobody could tell it if its parent were killed.
    """

    def __init__(self, command: int, relay: int, code: Path) -> None:
        self._command, self._relay, self._ended_at = _Process(command), _Process(relay), 0.0
        self._code = code

    def __call__(self, daemon: Any) -> bool:
        if self._command.alive():
            return False
        now = daemon.clock.now()
        self._ended_at = self._ended_at or now
        waited = now - self._ended_at
        written = not self._relay.alive() or waited > LAST_LINES
        with contextlib.suppress(OSError, ValueError):
            daemon.code = int(self._code.read_text())
        return bool(written and waited > 1.0 and daemon.ready()[0] and not daemon.reader.behind())


class _Process:
    """A process that need not be our child."""

    def __init__(self, pid: int) -> None:
        self._pid, self._fs = pid, ProcFs(Path("/proc"))
        self._start = self._look()

    def alive(self) -> bool:
        return self._start is not None and self._look() == self._start

    def _look(self) -> int | None:
        """When it started; None if it has ended."""
        try:
            found = self._fs.stat(self._pid)
        except OSError:
            return None
        return found[0].start if found and found[0].state not in DEAD_STATES else None


def beside(plan: Mapping[str, Any]) -> int:
    """The daemon beside an executed command: reports to standard error, sees only that command's processes.

    Without a chosen `state_dir` the state is temporary, as the command is.
    """
    from denpexd.app import run
    from denpexd.settings import load
    from denpexd.state import of_command

    root = int(plan["root_pid"])
    ended = _Ended(root, int(plan["relay_pid"]), Path(plan["exit_code"]))
    config, flags = Path(plan["config"]) if plan["config"] else None, dict(plan["flags"])
    if not _is_chosen(config, flags, "state_dir"):
        flags["state_dir"] = plan["state_dir"]
    settings = load(config, overrides=flags, environ=os.environ)
    _log_to_stderr("warning")
    return asyncio.run(
        run(
            settings,
            stream=sys.stdout,
            color=sys.stdout.isatty(),
            root_pid=root,
            until=ended,
            any_port=True,
            state=of_command,
            fresh=True,
        )
    )


if __name__ == "__main__":
    from denpexd.errors import DenpexdError

    try:
        sys.exit(beside(json.loads(sys.argv[1])))
    except DenpexdError as failed:
        print(f"denpexd: not watching: {failed}", file=sys.stderr)  # noqa: T201
        sys.exit(2)
