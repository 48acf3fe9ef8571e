"""Descriptors and identities that all tails share: nothing is read twice, and not too much is open at once.

Owning an identity (device, inode) is what keeps hard links, overlapping globs and a rotated file that is still being
finished from being read by two tails. Threads (network file systems) and the event loop may use it at the same time.
"""

import errno
import os
import stat
import threading
from collections import OrderedDict
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Protocol

from denpexd.ingest.links import READ, LinkRefused, Links
from denpexd.ingest.positions import Identity, Position


class Owner(Protocol):
    """What a tail shows to the others."""

    path: Path
    busy: bool

    @property
    def is_open(self) -> bool: ...
    def take_descriptor(self) -> int: ...


_REMEMBERED = 16384  # positions that rotation left


class OpenFiles:
    """At most `limit` descriptors are open (least recently used first out).

    `positions`: what was saved in an earlier run, found again by identity under whatever name a file has now. `links`:
    which of them are followed; all if nobody says.
    """

    def __init__(self, positions: Iterable[Position] = (), *, limit: int = 1024, links: Links | None = None) -> None:
        self._opened = open_regular if links is None else links.open
        self.lock = threading.RLock()
        self._limit = max(1, limit)
        self._owners: dict[Identity, Owner] = {}
        self._open: OrderedDict[int, Owner] = OrderedDict()
        self._left: OrderedDict[Identity, Position] = OrderedDict((p.identity, p) for p in positions)
        self._fresh: list[Position] = []
        self._listings: OrderedDict[str, tuple[int, dict[int, str]]] = OrderedDict()

    @property
    def opened(self) -> int:
        """Descriptors that are open."""
        return len(self._open)

    def use(self, links: Links) -> None:
        """Follow these links from now on."""
        self._opened = links.open

    def enter(self, owner: Owner) -> None:
        """The owner is about to use its descriptor: it cannot be evicted until `leave`."""
        with self.lock:
            owner.busy = True

    def leave(self, owner: Owner) -> None:
        """The owner is done for now; makes room if more than `limit` are open."""
        with self.lock:
            owner.busy = False
            if owner.is_open:
                self._open[id(owner)] = owner
                self._open.move_to_end(id(owner))
            else:
                self._open.pop(id(owner), None)
            if len(self._open) <= self._limit:
                return
            victims = self._victims(self._limit)
        self._close(victims)

    def open(self, path: Path) -> tuple[int, os.stat_result]:
        """A descriptor of a regular file, if need be in place of others; never blocks. OSError as of `os.open`."""
        try:
            return self._opened(path)
        except OSError as problem:
            if problem.errno not in (errno.EMFILE, errno.ENFILE) or not self.make_room():
                raise
            return self._opened(path)

    def make_room(self) -> bool:
        """Close half of what is open (the process ran out of descriptors); False if there was nothing to close."""
        with self.lock:
            victims = self._victims(len(self._open) // 2)
        self._close(victims)
        return bool(victims)

    def _victims(self, limit: int) -> list[int]:
        excess = len(self._open) - limit
        if excess <= 0:
            return []
        chosen = [key for key, other in self._open.items() if not other.busy][:excess] if excess > 1 else self._oldest()
        return [self._open.pop(key).take_descriptor() for key in chosen]

    def _oldest(self) -> list[int]:
        return [key for key in islice(self._open, 8) if not self._open[key].busy][:1]

    @staticmethod
    def _close(descriptors: list[int]) -> None:
        # Outside the lock: closing can block on a network file system.
        for fd in descriptors:
            if fd >= 0:
                os.close(fd)

    def claim(self, identity: Identity, owner: Owner) -> bool:
        """Become the only reader of a file; False if another tail reads it already."""
        with self.lock:
            other = self._owners.get(identity)
            if other is None or other is owner:
                self._owners[identity] = owner
                return True
        if _still_has(other, identity):
            return False
        with self.lock:
            if self._owners.get(identity) not in (other, None):
                return False
            self._owners[identity] = owner
            return True

    def release(self, identity: Identity, owner: Owner) -> None:
        """Give a file up; whoever finds it under another name may read on."""
        with self.lock:
            if self._owners.get(identity) is owner:
                del self._owners[identity]

    def leave_behind(self, position: Position) -> None:
        """Remember where the reading of a renamed file ended."""
        with self.lock:
            self._left[position.identity] = position
            self._left.move_to_end(position.identity)
            self._fresh.append(position)
            while len(self._left) > _REMEMBERED:
                self._left.popitem(last=False)

    def recall(self, identity: Identity) -> Position | None:
        """The position remembered for a file, if any; check its content before use."""
        with self.lock:
            return self._left.get(identity)

    def take_left(self) -> list[Position]:
        """Positions left behind since the last call: to be stored beside those of the living tails."""
        with self.lock:
            fresh, self._fresh = self._fresh, []
            return fresh

    def find(self, directory: Path, inode: int) -> Path | None:
        """The file in `directory` that now has this inode, or None."""
        try:
            name = self._listing(str(directory), directory.stat().st_mtime_ns).get(inode)
        except OSError:
            return None
        return directory / name if name is not None else None

    def _listing(self, directory: str, changed: int) -> dict[int, str]:
        # One listing serves all files of a folder: after a restart thousands may look for their old inode at once.
        with self.lock:
            cached = self._listings.get(directory)
            if cached is not None and cached[0] == changed:
                return cached[1]
        with os.scandir(directory) as entries:
            names = {entry.inode(): entry.name for entry in entries}
        with self.lock:
            self._listings[directory] = (changed, names)
            while len(self._listings) > 4:
                self._listings.popitem(last=False)
        return names


def open_regular(path: Path) -> tuple[int, os.stat_result]:
    """A descriptor of a regular file and its state, wherever links lead; never blocks. OSError otherwise."""
    fd = os.open(path, READ)
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file")
    return fd, info


def _still_has(owner: Owner, identity: Identity) -> bool:
    # An open descriptor pins the inode; without one the number may have gone to a new file.
    if owner.is_open or owner.busy:
        return True
    try:
        info = owner.path.stat()
    except OSError:
        return False
    return (info.st_dev, info.st_ino) == identity


def explain(path: Path, problem: OSError) -> str:
    """What is wrong with a file, and how to mend it."""
    why = problem.strerror or str(problem)
    if isinstance(problem, LinkRefused):
        return f"{path}: {why}"
    if problem.errno in (errno.EACCES, errno.EPERM):
        return f"{path} may not be read by uid {os.geteuid()} ({why}): grant read access, no restart needed"
    if problem.errno in (errno.EMFILE, errno.ENFILE):
        return f"{path} cannot be opened ({why}): raise the descriptor limit (ulimit -n, LimitNOFILE=)"
    return f"{path} cannot be read ({why}); trying again at each sweep"
