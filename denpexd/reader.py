"""Keeps the tails of all files going: finds files, reads what is new in turns, and says what the reads were.

One round gives every file with news at most one chunk, so that a file that catches up delays no other. Positions are
handed out beside the bytes; whoever takes both stores them together.
"""

import asyncio
import base64
import contextlib
import json
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Set
from dataclasses import replace
from pathlib import Path

from denpexd.clock import Clock
from denpexd.errors import SourceError
from denpexd.ingest.discover import Discovery, Found
from denpexd.ingest.finished import is_binary
from denpexd.ingest.open_files import OpenFiles
from denpexd.ingest.positions import Position
from denpexd.ingest.remote import Mounts, RemoteReader
from denpexd.ingest.tail import Tail, TailRead, new_buffer
from denpexd.ingest.wake import Waker
from denpexd.notify.redact import redact_name

log = logging.getLogger(__name__)

LEFT = "\n(rotated)"  # key of the file that had this path before the last rotation: not to be read again
_SAMPLE = 4096  # first bytes that tell whether a file is text
RECENT = 600.0  # a file written within this many seconds belongs to a job that may still be alive
AMID = 30.0  # seconds for which the position of a file that is amid something is held back at most
GONE = 600.0  # seconds after which a file that is not found any more is forgotten
LEFT_FOR = 7 * 86400.0  # seconds for which the position of a file that is not there is kept
_UNWANTED = float("-inf")  # since then gone: a file that is not to be watched any more
_MOST_GONE, _MOST_LEFT = 10_000, 16_384


class Reader:
    """All files of one daemon. `saved`: position rows from the state of the daemon before; `sweep` in seconds."""

    def __init__(
        self,
        discovery: Discovery,
        clock: Clock,
        waker: Waker,
        saved: Mapping[str, str],
        sweep: float,
    ) -> None:
        self.open = discovery.links.open
        self._discovery, self._clock, self._waker, self._sweep = discovery, clock, waker, sweep
        known = {key: p for key, row in saved.items() if (p := _position(row)) is not None}
        self._saved = {p.path: p for key, p in known.items() if not key.endswith(LEFT)}
        self._files = OpenFiles(known.values(), links=discovery.links)
        # A hung mount must not hold up the local ones.
        self._remote_files = OpenFiles(known.values(), links=discovery.links)
        self._remote = RemoteReader(clock)
        self._mounts = Mounts()
        self._buffer = new_buffer()
        self._tails: dict[Path, Tail] = {}
        self._mount_of: dict[Path, str | None] = {}
        self._behind: set[str] = set()  # paths of files with more to read
        self._scanned: list[Found] = []  # as discovery gave it
        self._deaf = 0  # watches that had died when the folders were last watched
        self._first = True  # what stands in the files that are found next was there before us
        self._moved: dict[Path, Position | None] = {}  # read since their positions were handed out
        self._amid: dict[Path, float] = {}  # those of them whose positions are held back, and since when
        self._gone: dict[Path, float] = {}  # files that are not found any more, and since when
        self._dropped: list[str] = []  # rows of the state that are to be deleted
        self._left = dict.fromkeys(saved, clock.now())  # rows of files that are not there, and since when
        self.forgotten: Counter[str] = Counter()  # files, positions
        self._lost = 0  # bytes of files that are forgotten
        self.found: dict[Path, Found] = {}
        self.ranks: dict[Path, int] = {}  # what the processes that hold the files say
        self.events: Counter[str] = Counter()  # rotated, truncated, replaced, vanished, unreadable
        self.errors: Counter[str] = Counter()

    @property
    def lag(self) -> int:
        """Bytes that are known to be there and not yet read, of the file furthest behind."""
        return max((tail.lag for tail in self._tails.values()), default=0)

    @property
    def lost(self) -> int:
        """Bytes that were there and gone, by truncation or deletion, before they were read."""
        return self._lost + sum(tail.lost for tail in self._tails.values())

    @property
    def states(self) -> dict[str, int]:
        """Files by state."""
        broken = sum(tail.error is not None for tail in self._tails.values())
        return {"reading": len(self._tails) - broken, "unreadable": broken}

    @property
    def kept(self) -> dict[str, int]:
        """Entries of the tables: files with a tail, open descriptors, positions of files that are not there."""
        opened = self._files.opened + self._remote_files.opened
        return {"file": len(self._tails), "descriptor": opened, "position": len(self._left)}

    @property
    def overflows(self) -> int:
        return self._waker.overflows

    async def wait(self, longest: float) -> set[str] | None:
        """The files that may have news, after at most `longest` seconds; None, once a sweep: any may have."""
        touched = await self._waker.wait(self._sweep, 0.0 if self._behind else longest)
        return None if touched is None else touched | self._behind

    def use(self, discovery: Discovery) -> None:
        """Look for other files from the next look around on; those that it does not find are let go of at once."""
        self._discovery, self._first, self.open = discovery, True, discovery.links.open
        for files in (self._files, self._remote_files):
            files.use(discovery.links)
        self._gone.update(dict.fromkeys(self._tails, _UNWANTED))

    async def look_around(self) -> list[Found] | None:
        """Find new files; returns those that were not known before. To be called once a sweep.

        None: all is as it was when this was last called.
        """
        scanned, mounts = await asyncio.to_thread(lambda: (self._discovery.scan(), Mounts()))
        same = scanned is self._scanned and mounts.table == self._mounts.table and self._deaf == self._waker.dead
        if same and not self._is_due():
            return None
        self._scanned, self._mounts, self._deaf = scanned, mounts, self._waker.dead
        found = await asyncio.to_thread(lambda: [_named(one) for one in scanned])
        new = [f for f in found if f.path not in self._tails]
        for one in found:
            self.found[one.path] = one
        for one in new:
            mount = self._mount_of[one.path] = self._mounts.remote(one.path)
            files = self._files if mount is None else self._remote_files
            saved = self._saved.pop(str(one.path), None)
            self._tails[one.path] = Tail(one.path, saved, files=files, history=self._first)
            self._left.pop(str(one.path), None)
        self._first = False
        await self._forget({one.path for one in found})
        local = {folder for folder in self._discovery.directories if self._mounts.remote(folder) is None}
        await asyncio.to_thread(self._waker.watch, local)
        self._waker.touch([str(one.path) for one in new])
        return new

    def _is_due(self) -> bool:
        """Something has been gone for so long that it is to be forgotten."""
        now, oldest = self._clock.now(), next(iter(self._left.values()), float("inf"))
        return now - oldest >= LEFT_FOR or any(now - since >= GONE for since in self._gone.values())

    async def _forget(self, here: Set[Path]) -> None:
        """Let go of files that have not been found for long, or of too many, and in time of their positions."""
        now = self._clock.now()
        for path in [path for path in self._gone if path in here]:
            del self._gone[path]
        if len(self._gone) + len(here) < len(self._tails):
            for path in self._tails:
                if path not in here:
                    self._gone.setdefault(path, now)
        too_many = len(self._gone) - _MOST_GONE
        due = [path for n, (path, since) in enumerate(self._gone.items()) if n < too_many or now - since >= GONE]
        for path in due:
            tail = self._tails[path]
            unread = tail.lag > 0 and tail.error is None and self._gone[path] != _UNWANTED
            if tail.busy or unread:
                continue
            if (mount := self._mount_of[path]) is None:
                tail.close()
            else:
                with contextlib.suppress(SourceError, OSError):
                    await self._remote.call(mount, tail.close)
            self._lost += tail.lost
            for table in (self._tails, self._mount_of, self._moved, self._gone, self.found, self.ranks):
                table.pop(path, None)
            self._behind.discard(str(path))
            self._dropped.append(str(path))
            self.forgotten["file"] += 1
        old = [
            key
            for n, (key, t) in enumerate(self._left.items())
            if n < len(self._left) - _MOST_LEFT or now - t >= LEFT_FOR
        ]
        for key in old:
            del self._left[key]
            self._saved.pop(key, None)
            self._dropped.append(key)
            self.forgotten["position"] += 1

    async def round(self, touched: Iterable[str] | None) -> AsyncIterator[tuple[Found, TailRead]]:
        """One chunk of every file that may have news."""
        chosen = list(self._tails) if touched is None else [p for t in touched if (p := Path(t)) in self._tails]
        for number, path in enumerate(chosen):
            if number % 256 == 255:
                await self._clock.sleep(0)
            tail, mount = self._tails.get(path), self._mount_of.get(path)
            if tail is None:
                continue  # forgotten a moment ago
            if mount is None:
                read = tail.read(self._buffer, self._clock.now())
            else:
                read = await self._remote.read_remote(tail, mount)
            if self._behind or read.more or read.data:
                self._keep_up(tail)
            if read.event:
                self._note(tail, read)
            if path not in self._tails:
                continue
            if read.data and read.offset == 0 and is_binary(read.data[:_SAMPLE]):
                self.errors["no text"] += 1
                log.warning(
                    "%s: does not look like text (binary, or UTF-16): write logs as UTF-8, or leave it out", path
                )
            if read.data or read.event:
                self._moved[path] = tail.position
            if read.data or read.anew:
                yield self._owner(path), read

    def behind(self) -> bool:
        """There is more to read without waiting."""
        return bool(self._behind)

    def _keep_up(self, tail: Tail) -> None:
        if tail.lag > 0 and tail.error is None:
            self._behind.add(str(tail.path))
        else:
            self._behind.discard(str(tail.path))

    def _owner(self, path: Path) -> Found:
        found, rank = self.found[path], self.ranks.get(path)
        if rank is None or found.rank == rank:
            return found
        return Found(found.path, found.job, rank, found.attempt, found.stream, False, found.run, found.note)

    def _note(self, tail: Tail, read: TailRead) -> None:
        self.events[read.event] += 1
        if read.event in ("unreadable", "vanished"):
            self.errors[read.event] += 1
        level = logging.WARNING if read.event == "unreadable" else logging.INFO
        log.log(level, "%s: %s%s", tail.path, read.event, f": {tail.error}" if tail.error else "")

    def positions(self, is_amid: Callable[[Found], bool] = lambda found: False) -> dict[str, str | None]:
        """Where the files were read to that were read since the last call, as rows for the state; None: forgotten.

        `is_amid`: of which files the last lines read have begun something that is not told yet. A crash would lose it
        with them, so the former position stays for a while.
        """
        now = self._clock.now()
        amid = {path: self._amid.get(path, now) for path in self._moved if is_amid(self.found[path])}
        self._amid = {path: since for path, since in amid.items() if now - since < AMID}
        moved = {path: position for path, position in self._moved.items() if path not in self._amid}
        self._moved = {path: self._moved[path] for path in self._amid}
        dropped, self._dropped = self._dropped, []
        rows: dict[str, str | None] = dict.fromkeys(dropped)
        rows |= {str(path): _row(position) for path, position in moved.items() if position is not None}
        for position in (*self._files.take_left(), *self._remote_files.take_left()):
            key = f"{position.path}{LEFT}"
            rows[key] = _row(position)
            self._left.pop(key, None)
            self._left[key] = self._clock.now()
        return rows

    async def recent(self, jobs: Iterable[str]) -> dict[str, bool]:
        """For each job whether any of its files was written lately."""
        now = self._clock.wall()

        def look() -> dict[str, bool]:
            lately = dict.fromkeys(jobs, False)
            for path, one in self.found.items():
                try:
                    lately[one.job] = lately.get(one.job, False) or now - path.stat().st_mtime < RECENT
                except OSError:
                    continue
            return lately

        return await asyncio.to_thread(look)

    def close(self) -> None:
        for tail in self._tails.values():
            try:
                tail.close()
            except (OSError, SourceError) as problem:
                log.debug("%s: %s", tail.path, problem)
        self._waker.close()


def _row(position: Position) -> str:
    path, identity, offset, head, tail_hash = position.to_row()
    return json.dumps([path, identity, offset, base64.b64encode(head).decode(), base64.b64encode(tail_hash).decode()])


def _named(found: Found) -> Found:
    """The name of a job comes from paths and goes into keys, labels and alerts: a secret in it stops here."""
    clean = redact_name(found.job)
    return found if clean == found.job else replace(found, job=clean)


def _position(row: str) -> Position | None:
    try:
        path, identity, offset, head, tail_hash = json.loads(row)
        return Position.from_row((path, identity, offset, base64.b64decode(head), base64.b64decode(tail_hash)))
    except (ValueError, TypeError):
        log.warning("a saved position is damaged and is left out: %.80s", row)
        return None
