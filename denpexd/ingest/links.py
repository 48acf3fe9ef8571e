"""Opens files below the watched paths without being led elsewhere by a link that somebody else has put there.

Whoever can write into a watched folder can make a link to any file, and a daemon with more rights would read it for
him. Up to the fixed part of a configured path links are the operator's. Below it one is followed inside the watched
folders and the allowed ones; elsewhere only where it was made by root, by our own user, or by the owner of the file,
who could have shown it himself. Every step is taken from the folder before it, so nobody can exchange one meanwhile.
"""

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from denpexd.ingest.patterns import is_magic

READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
_STEP = os.O_PATH | os.O_CLOEXEC | os.O_NOFOLLOW
_MOST_LINKS = 40  # as the kernel


class LinkRefused(PermissionError):
    """A link that is not followed; says whose it is and how to allow it."""


class Links:
    """`paths`: as configured, absolute. `allowed`: folders into which links may lead, whoever made them."""

    def __init__(self, paths: Sequence[str], allowed: Sequence[Path] = ()) -> None:
        self._roots = [(text, _fixed(text)) for text in paths]
        self._inside = [os.path.realpath(folder) for folder in allowed]
        self._unknown = _overflow_uid()

    def open(self, path: Path) -> tuple[int, os.stat_result]:
        """A descriptor of a regular file and its state; never blocks. OSError; LinkRefused for a link of a stranger."""
        text = str(path)
        root = self._root(text)
        makers: set[int] = set()
        fd = _walk(root, text[len(root) :].split("/"), makers)
        try:
            info = os.fstat(fd)
            strangers = makers - {0, os.geteuid(), info.st_uid}
            if info.st_uid == self._unknown:
                strangers |= makers & {info.st_uid}
            if strangers and not self._is_inside(os.path.realpath(f"/proc/self/fd/{fd}")):
                raise LinkRefused(
                    errno.EPERM,
                    f"a link of uid {min(strangers)} to a file of uid {info.st_uid} outside the watched folders is not "
                    f"followed: name the folder it leads to in ingest.links",
                )
        except OSError:
            os.close(fd)
            raise
        return fd, info

    def enters(self, entry: "os.DirEntry[str]") -> bool:
        """Whether files are looked for behind a link to a folder; a stranger could make one to /."""
        try:
            maker, target = entry.stat(follow_symlinks=False).st_uid, entry.stat().st_uid
        except OSError:
            return False
        ours = maker in (0, os.geteuid()) or (maker == target and maker != self._unknown)
        return ours or self._is_inside(os.path.realpath(entry.path))

    def _root(self, text: str) -> str:
        """The part of a path that the operator has written: what is below it, others may have made."""
        own = os.path.dirname(text)
        found = [fixed for given, fixed in self._roots if given != text and text.startswith(f"{fixed}/")]
        return max(found, key=len, default=own)

    def _is_inside(self, real: str) -> bool:
        roots = [os.path.realpath(fixed) for _, fixed in self._roots]
        return any(f"{real}/".startswith(f"{folder.rstrip('/')}/") for folder in (*roots, *self._inside))


def _fixed(text: str) -> str:
    """The folder up to the first wildcard or placeholder, or a path without any."""
    there = os.path.exists(text)
    if not is_magic(text) or there:
        folder = not there or os.path.isdir(text)
        return text.rstrip("/") if folder else os.path.dirname(text)
    parts = text.split("/")
    return "/".join(parts[: next(n for n, part in enumerate(parts) if is_magic(part))])


def _walk(root: str, parts: list[str], makers: set[int]) -> int:
    """A descriptor of the file that the parts below a folder lead to; `makers` gets the owners of links on the way."""
    at = os.open(root or "/", os.O_PATH | os.O_CLOEXEC | os.O_DIRECTORY)
    todo, links = [part for part in reversed(parts) if part not in ("", ".")], 0
    try:
        while todo:
            name = todo.pop()
            step = os.open(name, _STEP, dir_fd=at)
            info = os.fstat(step)
            if stat.S_ISLNK(info.st_mode):
                links += 1
                makers.add(info.st_uid)
                target = _target(step)
                if links > _MOST_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                todo += [part for part in reversed(target.split("/")) if part not in ("", ".")]
                if target.startswith("/"):
                    at = _replaced(at, os.open("/", os.O_PATH | os.O_CLOEXEC | os.O_DIRECTORY))
                continue
            if not todo:
                return _reader(name, step, info, at)
            at = _replaced(at, step)
        raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
    finally:
        os.close(at)


def _target(link: int) -> str:
    """Where a link leads; closes its descriptor."""
    try:
        return os.readlink("", dir_fd=link)
    finally:
        os.close(link)


def _replaced(old: int, new: int) -> int:
    os.close(old)
    return new


def _reader(name: str, step: int, info: os.stat_result, folder: int) -> int:
    """A descriptor to read from, of the very file that was looked at; closes the one it was looked at with."""
    try:
        if not stat.S_ISREG(info.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        fd = os.open(name, READ | os.O_NOFOLLOW, dir_fd=folder)
    finally:
        os.close(step)
    now = os.fstat(fd)
    if (now.st_dev, now.st_ino) != (info.st_dev, info.st_ino):
        os.close(fd)
        raise OSError(errno.ESTALE, "another file meanwhile")
    return fd


def _overflow_uid() -> int:
    """The uid that stands for all users that our namespace does not know: equal ones need not be the same user."""
    try:
        return int(Path("/proc/sys/fs/overflowuid").read_text("utf-8"))
    except (OSError, ValueError):
        return 65534
