"""Kept files with a limit of size and age: the oldest go first, the newest always stays."""

import contextlib
import os
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

_UNFINISHED = ".new"
_STALE = 3600.0


@dataclass(frozen=True, slots=True)
class Kept:
    """A file on the shelf; `changed` in Unix seconds."""

    path: Path
    size: int
    changed: float


class Shelf:
    """A folder of such files. `room`: bytes of all together; `age`: seconds. Every method blocks on the disk.

    `counts`: files written, and removed because of their age or for lack of room.
    """

    def __init__(self, folder: Path, room: int, age: float) -> None:
        self.folder, self._room, self._age = folder, room, age
        self.counts: Counter[str] = Counter()
        self.bytes = 0

    def put(self, name: str, data: bytes, now: float) -> Path:
        """Write a file whole or not at all, and make room for it; OSError where that cannot be done."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        path, new = self.folder / name, self.folder / f".{name}.{os.getpid()}{_UNFINISHED}"
        try:
            descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            new.replace(path)
        except OSError:
            with contextlib.suppress(OSError):
                new.unlink()
            raise
        self.counts["written"] += 1
        self.tidy(now)
        return path

    def files(self) -> list[Kept]:
        """What is there, newest first; nothing where the folder cannot be read."""
        found = []
        with contextlib.suppress(OSError), os.scandir(self.folder) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    info = entry.stat(follow_symlinks=False)
                    if entry.is_file(follow_symlinks=False) and not entry.name.startswith("."):
                        found.append(Kept(Path(entry.path), info.st_size, info.st_mtime))
        return sorted(found, key=lambda kept: (-kept.changed, kept.path.name))

    def tidy(self, now: float) -> None:
        """Remove what is too old or too much, and what a killed daemon left half written."""
        total = 0
        for number, kept in enumerate(self.files()):
            total += kept.size
            reason = "aged" if now - kept.changed > self._age else "evicted" if total > self._room else ""
            if reason and number:
                with contextlib.suppress(OSError):
                    kept.path.unlink()
                    self.counts[reason] += 1
                    total -= kept.size
        self.bytes = total
        with contextlib.suppress(OSError), os.scandir(self.folder) as entries:
            for entry in [e for e in entries if e.name.endswith(_UNFINISHED)]:
                with contextlib.suppress(OSError):
                    if now - entry.stat(follow_symlinks=False).st_mtime > _STALE:
                        os.unlink(entry.path)  # noqa: PTH108 - as scandir gave it
