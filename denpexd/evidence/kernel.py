"""What the kernel of this node prints from now on: /dev/kmsg, else the journal, or a file that the user names.

Whatever the source, the lines come out as syslog would write them, `TIME NODE kernel: TEXT`, so that the same signals
recognise them as in a log. Only what the kernel itself said is taken from /dev/kmsg; programs may write there too.
"""

import asyncio
import json
import logging
import os
import shutil
from collections import deque
from pathlib import Path
from typing import Protocol

from denpexd.clock import Clock, iso

log = logging.getLogger(__name__)

KMSG = Path("/dev/kmsg")
MOST = 2000  # lines kept until somebody takes them; of a flood the oldest are dropped
_RECORD = 8192  # the kernel gives no longer one
_RECORDS = 4096  # at one look
_LINE = 64 << 10
_FROM_KERNEL = 8  # priorities below this are of the facility "kernel"
_AGAIN, _RESTARTS = 30.0, 5  # seconds until a journalctl that ended is started again, how often
RIGHTS = (
    "give denpexd CAP_SYSLOG (or set kernel.dmesg_restrict=0), or let it read the journal (group systemd-journal), "
    "or name a file that receives the kernel's messages: evidence.kernel: /var/log/kern.log"
)


class Source(Protocol):
    """Where lines come from. `name` is quoted as their source."""

    @property
    def name(self) -> str: ...

    async def take(self) -> list[str]:
        """Lines that came since the last call, without waiting."""
        ...

    def close(self) -> None:
        """Give back what is held; can be called twice."""
        ...


def open_kernel(setting: str | Path, node: str, clock: Clock, kmsg: Path = KMSG) -> Source | None:
    """The source that the setting names; None: off, or nothing can be read, which is logged with what would help."""
    if setting == "off":
        return None
    if setting != "auto":
        return KernelFile(Path(setting))
    try:
        return Kmsg(kmsg, node, clock)
    except OSError as error:
        journalctl = shutil.which("journalctl")
        if journalctl is not None:
            return Journal(journalctl, node, clock)
        log.info("the kernel's messages cannot be read (%s: %s); %s", kmsg, error.strerror, RIGHTS)
        return None


class Kmsg:
    """The kernel's own buffer; each read gives one record, and never waits."""

    def __init__(self, path: Path, node: str, clock: Clock) -> None:
        self.name, self._node, self._clock = str(path), node, clock
        self._handle: int | None = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            os.lseek(self._handle, 0, os.SEEK_END)  # what was said before is not about this job
        except OSError:
            log.debug("%s cannot be skipped to its end", path)

    async def take(self) -> list[str]:
        found: list[str] = []
        for _ in range(_RECORDS):
            if self._handle is None:
                break
            try:
                record = os.read(self._handle, _RECORD)
            except BlockingIOError:
                break
            except BrokenPipeError:
                continue  # the kernel has overwritten what we had not read: go on with the oldest there is
            except OSError as error:
                log.warning("%s cannot be read any more: %s", self.name, error.strerror)
                self.close()
                break
            if not record:
                break
            found += [line for part in record.split(b"\n") if (line := self._line(part)) is not None]
        return found[-MOST:]

    def _line(self, record: bytes) -> str | None:
        """`priority,number,microseconds,flags;text`; further lines of a record begin with a blank and only tag it."""
        head, _, text = record.partition(b";")
        fields = head.split(b",")
        if len(fields) < 4 or not fields[0].isdigit() or int(fields[0]) >= _FROM_KERNEL:
            return None
        return _as_syslog(self._clock.wall(), self._node, text.decode("utf-8", "replace"))

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None


class KernelFile:
    """A file that something else writes the kernel's messages to: what is added, across rotation and truncation."""

    def __init__(self, path: Path) -> None:
        self.name, self._path = str(path), path
        self._identity: tuple[int, int] | None = None
        self._offset, self._rest, self._said = 0, b"", ""
        self._first = True

    async def take(self) -> list[str]:
        return await asyncio.to_thread(self._read)  # it may lie on a slow disk

    def _read(self) -> list[str]:
        try:
            with self._path.open("rb") as handle:
                status = os.fstat(handle.fileno())
                identity = (status.st_dev, status.st_ino)
                if self._first:
                    self._offset = status.st_size
                elif identity != self._identity or status.st_size < self._offset:
                    self._offset, self._rest = 0, b""
                self._first, self._identity = False, identity
                handle.seek(self._offset)
                data = handle.read(1 << 20)
        except OSError as error:
            self._complain(error.strerror or str(error))
            return []
        self._offset += len(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        self._rest = self._rest[-_LINE:]
        return [line[:_LINE].decode("utf-8", "replace") for line in lines if line][-MOST:]

    def _complain(self, why: str) -> None:
        self._first = False  # a file that comes later is all news
        if why != self._said:
            self._said = why
            log.warning("evidence.kernel: %s cannot be read: %s", self._path, why)

    def close(self) -> None:
        """Nothing is held between two looks."""


class Journal:
    """`journalctl -k -f` in a child of its own; started at the first look, and again if it ends."""

    name = "journalctl -k"

    def __init__(self, path: str, node: str, clock: Clock) -> None:
        self._path, self._node, self._clock = path, node, clock
        self._lines: deque[str] = deque(maxlen=MOST)
        self._task: asyncio.Task[None] | None = None
        self._next_start, self._starts = float("-inf"), 0

    async def take(self) -> list[str]:
        idle = self._task is None or self._task.done()
        if idle and self._starts < _RESTARTS and self._clock.now() >= self._next_start:
            self._starts += 1
            self._next_start = self._clock.now() + _AGAIN
            self._task = asyncio.get_running_loop().create_task(self._follow(), name="journal")
        found = list(self._lines)
        self._lines.clear()
        return found

    async def _follow(self) -> None:
        try:
            child = await asyncio.create_subprocess_exec(
                *(self._path, "-k", "-f", "-n", "0", "-o", "json", "--no-pager"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                env={"PATH": os.defpath, "LC_ALL": "C.UTF-8"},
                start_new_session=True,
                limit=_LINE,
            )
        except OSError as error:
            log.warning("journalctl does not start: %s; %s", error.strerror, RIGHTS)
            return
        try:
            assert child.stdout is not None
            while entry := await _entry(child.stdout):
                if (line := self._line(entry)) is not None:
                    self._lines.append(line)
            log.warning("journalctl ended with code %s; %s", await child.wait(), RIGHTS)
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()

    def _line(self, entry: bytes) -> str | None:
        try:
            found = json.loads(entry)
            text = found["MESSAGE"]
            text = bytes(text).decode("utf-8", "replace") if isinstance(text, list) else text
            if not isinstance(text, str):
                return None
            wall = int(found.get("__REALTIME_TIMESTAMP", 0)) / 1e6 or self._clock.wall()
            return _as_syslog(wall, self._node, text.replace("\n", " "))
        except (ValueError, KeyError, TypeError, OverflowError, OSError, AttributeError, RecursionError):
            return None

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()


async def _entry(stream: asyncio.StreamReader) -> bytes:
    """The next line; one that is too long is skipped, and told as an empty object."""
    try:
        return await stream.readline()
    except ValueError:
        return b"{}\n"


def _as_syslog(wall: float, node: str, text: str) -> str:
    return f"{iso(wall)} {node} kernel: {text}"[:_LINE]
