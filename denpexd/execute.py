"""`denpexd exec`: a job with the daemon beside it, which can never hurt it.

The job's output goes through the relay, a tiny process of its own, which passes it on and writes a copy to a spool that
the daemon tails like any log. If the daemon dies or is slow, the job and its output notice nothing. The daemon is a
process of its own, too: `python -m denpexd.execute PLAN`.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from denpexd.clock import SteadyClock
from denpexd.errors import DenpexdError
from denpexd.evidence.procfs import ProcFs
from denpexd.evidence.ranks import DEAD_STATES
from denpexd.relay import start
from denpexd.watch import is_chosen, job_name, log_to_stderr
from denpexd.workfolder import work_folder

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
START_UP = 60.0  # seconds the daemon gets to start, also on a node that is busy with other things ...
LAST_WORDS = 20.0  # ... and then to explain a job that has failed

EXIT_CODE = "exit_code"  # file by which the daemon learns how the command ended
READY = "ready"  # file by which it tells that it watches
LAST_LINES = 5.0  # seconds the relay gets to pass on what the command has written


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
            sys.stderr.write(f"denpexd: cannot start {command[0]}: {error.strerror}\n")
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
            if daemon is not None:
                if code != 0:
                    _hear_out(daemon, folder / READY)
                _end(daemon)
        return 128 - code if code < 0 else code


def _start_daemon(
    folder: Path, lock: int, config: Path | None, flags: dict[str, Any], log_dirs: Sequence[str], pids: tuple[int, int]
) -> "subprocess.Popen[bytes] | None":
    """The daemon as a process of its own; None (and a word) if it cannot be started: the job goes on without.

    `lock`: of the folder, which the daemon uses on if we are killed. `pids`: those of the command and of the relay.
    """
    job = flags.get("job") or job_name("exec")
    spools = [str(folder / "stdout.log"), str(folder / "stderr.log")]
    overrides = {**flags, "job": job, "paths": [*spools, *log_dirs]}
    plan = {"config": str(config) if config else None, "flags": overrides, "root_pid": pids[0], "relay_pid": pids[1]}
    plan |= {"state_dir": str(folder / "state"), "folder": str(folder)}
    try:
        return subprocess.Popen(
            [sys.executable, "-m", "denpexd.execute", json.dumps(plan)],
            stdin=subprocess.DEVNULL,
            stdout=2,
            pass_fds=[lock],
            start_new_session=True,
        )
    except OSError as error:
        sys.stderr.write(f"denpexd: not watching: {error}\n")
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


def _hear_out(daemon: "subprocess.Popen[bytes]", ready: Path) -> None:
    """Wait while the daemon says what it has to say about a failure; it ends by itself."""
    clock, since = SteadyClock(), 0.0
    began = clock.now()
    while daemon.poll() is None:
        now = clock.now()
        since = since or (now if ready.exists() else 0.0)
        if now - (since or began) > (LAST_WORDS if since else START_UP):
            late = (
                f"did not come to an end within {LAST_WORDS:.0f} s"
                if since
                else f"needs over {START_UP:.0f} s to start"
            )
            sys.stderr.write(f"denpexd: no more is said about this failure: the daemon {late}\n")
            return
        with contextlib.suppress(subprocess.TimeoutExpired):
            daemon.wait(0.1)


def _end(daemon: "subprocess.Popen[bytes]") -> None:
    daemon.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        daemon.wait(LAST_WORDS)
        return
    daemon.kill()
    daemon.wait()


class _Ended:
    """The command has ended, its output is in the spools as far as it will ever be, and all of it is read.

    The daemon looks itself: nobody could tell it if its parent were killed.
    """

    def __init__(self, command: int, relay: int, folder: Path) -> None:
        self._command, self._relay, self._ended_at = _Process(command), _Process(relay), 0.0
        self._code, self._ready, self._told = folder / EXIT_CODE, folder / READY, False

    def __call__(self, daemon: Any) -> bool:
        if not self._told and daemon.ready()[0]:
            self._told = True
            with contextlib.suppress(OSError):
                self._ready.touch()
        if self._command.alive():
            return False
        now = daemon.clock.now()
        self._ended_at = self._ended_at or now
        waited = now - self._ended_at
        written = not self._relay.alive() or waited > LAST_LINES
        with contextlib.suppress(OSError, ValueError):
            daemon.code = int(self._code.read_text())
        return bool(written and waited > 1.0 and self._told and not daemon.reader.behind())


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

    Without a chosen `state_dir` the state is temporary, as the command is; what is kept of incidents is not.
    """
    from denpexd import supervise
    from denpexd.app import Mode, run
    from denpexd.settings import load
    from denpexd.settings_sources import default_state_dir
    from denpexd.state import of_command

    root = int(plan["root_pid"])
    ended = _Ended(root, int(plan["relay_pid"]), Path(plan["folder"]))
    config, flags = Path(plan["config"]) if plan["config"] else None, dict(plan["flags"])
    keep = None
    if not is_chosen(config, flags, "state_dir"):
        flags["state_dir"], keep = plan["state_dir"], default_state_dir(os.environ)
    settings = load(config, overrides=flags, environ=os.environ)
    log_to_stderr("warning")
    mode = Mode(
        stream=sys.stdout,
        color=sys.stdout.isatty() and not os.environ.get("NO_COLOR"),
        root_pid=root,
        until=ended,
        any_port=True,
        state=of_command,
        fresh=True,
        keep=keep,
    )
    return supervise.run(run(settings, mode))


if __name__ == "__main__":
    try:
        sys.exit(beside(json.loads(sys.argv[1])))
    except DenpexdError as failed:
        sys.stderr.write(f"denpexd: not watching: {failed}\n")
        sys.exit(2)
