"""The tiny process between a job and its output: passes bytes through unchanged and keeps a copy for the daemon.

    python -m denpexd.relay --spool FILE [--max-bytes N] [--fd-in 0 --fd-out 1] [--spool FILE2 --fd-in 3 --fd-out 2]

It shares nothing with the daemon that can fail: the copy is a plain file, rotated to FILE.1 at N bytes. Signals that
end a terminal session do not end it, the end of its input does. If the reader of its output goes away it goes on
draining, so the job never gets SIGPIPE; if the disk is full it goes on passing through, and says in the copy how much
is missing. Each stream has a thread: a paused terminal on one does not hold up the other.
"""

from __future__ import annotations

import _thread  # `threading`, `typing` and `pathlib` would double the start-up, which every job pays
import errno
import os
import select
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping
    from pathlib import Path

READ = 65536
MAX_BYTES = 256 * 1024 * 1024
PIPE = 1024 * 1024
_USAGE = "usage: relay --spool FILE [--max-bytes N] [--fd-in N] [--fd-out N] [--spool FILE ...]\n"
_IGNORED = ("SIGHUP", "SIGINT", "SIGQUIT", "SIGTERM", "SIGUSR1", "SIGUSR2", "SIGTSTP", "SIGTTIN", "SIGTTOU")
_GONE = (errno.EPIPE, errno.EIO, errno.EBADF, errno.ENXIO)


class Spool:
    """The copy of one stream: FILE and, before it, FILE.1; each at most `max_bytes` and one read long."""

    def __init__(self, path: str, max_bytes: int) -> None:
        self.path, self.max_bytes = path, max_bytes
        self.missing = 0  # bytes of the stream that are not in the copy and were not yet told
        self._why = ""
        self._fd, self._size = -1, 0

    def append(self, data: bytes) -> None:
        """Add to the copy. A failure is counted, and told in the copy as soon as it can be written again."""
        start = -1
        try:
            if self._fd < 0:
                self._open()
            elif self._size and self._size + len(data) > self.max_bytes:
                self._rotate()
            if self.missing:
                self._write(b"\n[denpexd relay: %d bytes missing: %s]\n" % (self.missing, self._why.encode()))
                self.missing = 0
            start = self._size
            self._write(data)
        except OSError as problem:
            self.missing += len(data) - (self._size - start if start >= 0 else 0)
            self._why = problem.strerror or str(problem)

    def _open(self) -> None:
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        self._size = os.fstat(self._fd).st_size

    def _rotate(self) -> None:
        os.rename(self.path, self.path + ".1")  # noqa: PTH104 - see the imports
        os.close(self._fd)
        self._fd = -1
        self._open()

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            done = os.write(self._fd, rest)
            self._size += done
            rest = rest[done:]


def copy(fd_in: int, fd_out: int, spool: Spool) -> None:
    """Pass `fd_in` through to `fd_out`, then to the spool, until it ends; raises nothing that an output may cause."""
    while True:
        try:
            data = os.read(fd_in, READ)
        except BlockingIOError:
            _wait(fd_in, select.POLLIN)
            continue
        except OSError:
            data = b""
        if not data:
            return
        if fd_out >= 0 and not _pass_on(fd_out, data):
            fd_out = -1
        spool.append(data)


def _pass_on(fd: int, data: bytes) -> bool:
    """Write everything; False if nobody will ever read there again."""
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(fd, rest) :]
        except BlockingIOError:
            _wait(fd, select.POLLOUT)  # somebody else made the shared terminal or pipe non-blocking
        except OSError as problem:
            return problem.errno not in _GONE
    return True


def _wait(fd: int, event: int) -> None:
    poll = select.poll()
    poll.register(fd, event)
    poll.poll()


def main(arguments: list[str]) -> int:
    """Run until every input has ended; 2 for wrong arguments."""
    try:
        streams = _parse(arguments)
    except (ValueError, IndexError) as problem:
        sys.stderr.write(f"{_USAGE}{problem}\n")
        return 2
    for name in _IGNORED:
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    waiting = []
    for fd_in, fd_out, spool in streams[1:]:
        done = _thread.allocate_lock()
        done.acquire()
        _thread.start_new_thread(_copy_then_release, (fd_in, fd_out, spool, done))
        waiting.append(done)
    copy(*streams[0])
    for done in waiting:
        done.acquire()
    return 0


def _copy_then_release(fd_in: int, fd_out: int, spool: Spool, done: _thread.LockType) -> None:
    try:
        copy(fd_in, fd_out, spool)
    finally:
        done.release()


def _parse(arguments: list[str]) -> list[tuple[int, int, Spool]]:
    streams: list[tuple[int, int, Spool]] = []
    max_bytes = MAX_BYTES
    words = iter(arguments)
    for word in words:
        value = next(words, None)
        if value is None:
            raise ValueError(f"{word} needs a value")
        if word == "--max-bytes":
            max_bytes = int(value)
        elif word == "--spool":
            streams.append((0, 1, Spool(value, max_bytes)))
        elif word in ("--fd-in", "--fd-out") and streams:
            fd_in, fd_out, spool = streams[-1]
            streams[-1] = (int(value), fd_out, spool) if word == "--fd-in" else (fd_in, int(value), spool)
        else:
            raise ValueError(f"unknown or misplaced argument {word}")
        for _, _, spool in streams:
            spool.max_bytes = max_bytes
    if not streams or max_bytes <= 0:
        raise ValueError("--spool is required and --max-bytes must be positive")
    return streams


class Relay:
    """A running relay: `writers[name]` goes to the job, then `close_writers`; `spools[name]` is to be tailed."""

    def __init__(self, process: subprocess.Popen[bytes], writers: dict[str, int], spools: dict[str, Path]) -> None:
        self.process, self.writers, self.spools = process, writers, spools

    def close_writers(self) -> None:
        """Close our ends of the pipes once the job has its own; without this the relay never sees their end."""
        for fd in self.writers.values():
            os.close(fd)
        self.writers = {}


def start(spool_dir: Path, streams: Mapping[str, int]) -> Relay:
    """Start one relay for the given outputs (name -> descriptor, as {"stdout": 1, "stderr": 2}), in its own session.

    The copies are `spool_dir/<name>.log`. The relay ends when every process that holds a writer is gone. OSError if
    the folder or the process cannot be made; nothing is left open then.
    """
    import fcntl
    import subprocess

    spool_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    arguments = [sys.executable, "-I", "-S", __file__]
    readers: list[int] = []
    writers: dict[str, int] = {}
    spools = {name: spool_dir / f"{name}.log" for name in streams}
    try:
        for name, fd_out in streams.items():
            reader, writers[name] = os.pipe()
            readers.append(reader)
            try:
                fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, PIPE)  # a burst does not wait for us
            except OSError:
                pass  # over the user's pipe quota: smaller works as well
            arguments += ["--spool", str(spools[name]), "--fd-in", str(reader), "--fd-out", str(fd_out)]
        process = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            pass_fds=[*readers, *streams.values()],
            start_new_session=True,
        )
    except OSError:
        for fd in writers.values():
            os.close(fd)
        raise
    finally:
        for fd in readers:
            os.close(fd)
    return Relay(process, writers, spools)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
