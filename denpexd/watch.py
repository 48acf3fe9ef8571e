"""`denpexd run`: the daemon on files and on standard input, in this process.

What comes on standard input is read by the relay, which passes it on and writes the copy that the daemon tails.
"""

import contextlib
import hashlib
import logging
import os
import queue
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from denpexd.clock import SystemClock
from denpexd.errors import SettingsError
from denpexd.relay import Relay
from denpexd.workfolder import work_folder

if TYPE_CHECKING:
    from denpexd.app import Mode

log = logging.getLogger(__name__)

MOST_ENTRIES = 2000  # of our log that wait to be written


def watch(
    paths: Sequence[str], config: Path | None, flags: dict[str, Any], *, color: bool, dry_run: bool = False
) -> int:
    """Run the daemon on paths; "-" stands for standard input, which is passed on to standard output.

    `dry_run`: nothing is sent but printed, on a state of its own, so that a daemon at work loses no message by it.
    """
    from denpexd.app import Mode

    with contextlib.ExitStack() as cleanup:
        chosen, stream, until, pipe = list(paths), sys.stdout, None, None
        if "-" in chosen:
            pipe = _pipe(0)
            relay = cleanup.enter_context(_stdin_relay())
            chosen[chosen.index("-") :] = [str(p) for p in relay.spools.values()]
            stream = sys.stderr  # standard output carries the job's own lines
            if not is_chosen(config, flags, "job"):
                flags = {**flags, "job": job_name("stdin")}
            process = relay.process
            until = _Until(process)
        if dry_run:
            folder, _ = cleanup.enter_context(work_folder("denpexd-dry-run-"))
            flags = {**flags, "state_dir": str(folder)}
        if chosen:
            flags = {**flags, "paths": chosen}
        name = hashlib.sha256("\0".join(paths).encode("utf-8", "surrogateescape")).hexdigest()[:12]
        mode = Mode(stream=stream, color=color, until=until, pipe=pipe, any_port=dry_run, dry_run=dry_run)
        return _run(config, flags, mode, f"run-{name}")


def job_name(what: str) -> str:
    """A job's name where nobody gave one: Slurm's, or what it is and when it was started."""
    return (
        os.environ.get("SLURM_JOB_NAME") or f"{what}-{datetime.fromtimestamp(SystemClock().wall(), UTC):%Y%m%d-%H%M%S}"
    )


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


def run_hub(config: Path | None, flags: Mapping[str, Any], *, color: bool) -> int:
    """Run a hub in this process."""
    from denpexd.app import Mode

    return _run(config, flags, Mode(stream=sys.stdout, color=color, hub=True), "hub")


def _run(config: Path | None, flags: Mapping[str, Any], mode: "Mode", otherwise: str) -> int:
    """Load the settings and run the daemon in this process.

    Where port or state folder are nobody's choice and another daemon has them, it takes a free port and the folder
    `otherwise` below the other's.
    """
    from denpexd import supervise
    from denpexd.app import run
    from denpexd.settings import Settings, load
    from denpexd.state import of_daemon

    def read() -> Settings:
        settings = load(config, overrides=flags, environ=os.environ)
        if mode.hub and not settings.hub.url:
            raise SettingsError("a hub needs hub.url, the address of a NATS server with JetStream (docs/hub.md)")
        if not (mode.hub or settings.paths):
            raise SettingsError(
                "nothing to watch: give a folder, file or glob of logs, or set `paths` in the file of -c"
            )
        return settings

    settings = read()
    log_to_stderr(settings.log_level)
    any_port = mode.any_port or not is_chosen(config, flags, "web", "port")
    state = partial(of_daemon, otherwise=None if is_chosen(config, flags, "state_dir") else otherwise)
    return supervise.run(run(settings, replace(mode, reread=read, any_port=any_port, state=state)))


def is_chosen(config: Path | None, flags: Mapping[str, Any], *at: str) -> bool:
    """Whether somebody gave this option: by the file, a DENPEXD_* variable, a flag, or systemd's state folder."""
    from denpexd.settings import Settings
    from denpexd.settings_sources import from_flags, read_environ, read_file

    sources = [read_environ(os.environ, Settings), from_flags(flags), *([read_file(config)] if config else [])]
    return any(at in source.places for source in sources) or (at == ("state_dir",) and "STATE_DIRECTORY" in os.environ)


class SafeFormatter(logging.Formatter):
    """Entries without secrets and control characters; further lines are indented, so that no text forges an entry."""

    def format(self, record: logging.LogRecord) -> str:
        """The entry as it is written."""
        # Here, because the process that only waits for `exec`'s command stays small.
        from denpexd.notify.redact import redact
        from denpexd.notify.text import visible

        return visible(redact(super().format(record))[0]).replace("\n", "\n    ")


class PatientHandler(logging.Handler):
    """Writes entries from a thread of its own, so that who stops reading our output (Ctrl-S, a pager) stops only that.

    MOST_ENTRIES wait; further ones are lost, and how many is said when the output is read again.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream, self._lost = stream, 0
        self._entries: queue.Queue[str] = queue.Queue(MOST_ENTRIES)
        threading.Thread(target=self._write, name="denpexd-log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        """Leave the entry to the thread."""
        lost = f"    ({self._lost} entries before this one were lost: nobody read them)\n" if self._lost else ""
        try:
            self._entries.put_nowait(f"{lost}{self.format(record)}\n")
            self._lost = 0
        except queue.Full:
            self._lost += 1
        except Exception:
            self.handleError(record)

    def flush(self) -> None:
        """Wait until all is written, for at most a second: at the end of the process."""
        with self._entries.all_tasks_done:
            self._entries.all_tasks_done.wait_for(lambda: not self._entries.unfinished_tasks, 1.0)

    def _write(self) -> None:
        while True:
            entry = self._entries.get()
            with contextlib.suppress(OSError, ValueError):  # nobody is there to read it
                self._stream.write(entry)
                self._stream.flush()
            self._entries.task_done()


def log_to_stderr(level: str) -> None:
    """The log of this process goes to standard error; what it dies of, too."""
    handler = PatientHandler(sys.stderr)
    handler.setFormatter(SafeFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler])
    sys.excepthook = lambda kind, error, where: log.critical("unexpected error", exc_info=(kind, error, where))
    threading.excepthook = lambda told: log.error("thread died", exc_info=told.exc_value)
    for noisy in ("httpx", "httpcore", "apprise", "requests", "urllib3", "watchdog", "asyncio", "uvicorn"):
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
