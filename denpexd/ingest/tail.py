"""Follow one file name through growth, rotation, truncation and replacement, without losing or repeating a line.

What cannot be told apart: a file rewritten with equal bytes up to the offset. What cannot be had: bytes truncated away
or deleted before they were read; bytes written to a renamed file after its successor had content, unless the renamed
file is watched too (then its own tail goes on where this one stopped).
"""

import errno
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from denpexd.ingest.open_files import OpenFiles, explain
from denpexd.ingest.positions import SPAN, Cursor, Identity, Position, identity_of

CHUNK = 262144
_CALM = 1.0  # seconds for which an unchanged stat is not yet trusted: two writes can share one coarse time stamp
_NOBODY = (0, 0, 0, 0)  # what is seen of a file that is not there
_KINDS = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device"}
_LINGER = 10.0  # seconds for which a deleted file, or one whose successor is still empty, is kept open for late writes


def new_buffer(chunk: int = CHUNK) -> memoryview:
    """A buffer to hand to `Tail.read`, for reads of up to `chunk` bytes; one serves all tails of a thread."""
    return memoryview(bytearray(chunk + SPAN))


@dataclass(frozen=True, slots=True)
class TailRead:
    """New bytes of a file, beginning at `offset` of its present content.

    `event` happened before `data`: "rotated", "truncated", "replaced", "alias" (see `anew`), "vanished", "unreadable".
    The last three are said once, on the change; `Tail.error` says why as long as it lasts.
    `history`: stood in the file before the daemon came. `more`: read again without waiting.
    """

    data: bytes
    offset: int
    history: bool = False
    event: str = ""
    more: bool = False

    @property
    def anew(self) -> bool:
        """Another content begins with `data`: an unfinished line before it will never be finished."""
        return self.event in ("rotated", "truncated", "replaced", "alias")


class Tail:
    """One file under one name. Does nothing until `read`, and knows nothing of lines beyond where they begin.

    `history`: what stands in the file when it is first opened, and has no saved position, was there before us.
    """

    def __init__(self, path: Path, position: Position | None, *, files: OpenFiles, history: bool) -> None:
        self.path = path
        self.busy = False
        self.error: str | None = None
        self.lost = 0  # bytes that were seen by `stat` and were gone before they were read
        self._files, self._history = files, history
        self._fd = -1
        self._saved = position  # not yet compared with the file
        self._identity: Identity | None = position.identity if position else None
        self._at = Cursor()
        self._at.offset = position.offset if position else 0
        self._size = self._at.offset
        self._state = ""  # "vanished", "unreadable", "alias": said, and lasting
        self._due = ""  # a change of content that no result has told yet
        self._quiet_since: float | None = None
        self._seen, self._seen_at = _NOBODY, 0.0
        self._calm: TailRead | None = None  # what a read gives while nothing has changed, as mostly nothing has

    @property
    def is_open(self) -> bool:
        """A descriptor is open."""
        return self._fd >= 0

    def take_descriptor(self) -> int:
        """Give up the descriptor (the caller closes it); what was read stays known."""
        fd, self._fd = self._fd, -1
        return fd

    @property
    def lag(self) -> int:
        """Bytes known to be there and not yet read, as of the last read."""
        return max(0, self._size - self._at.offset - self._at.nul_tail)

    @property
    def position(self) -> Position | None:
        """The beginning of the last unfinished line among what was handed out; None before the file was seen.

        Store it together with the effects of the data, before the next read.
        """
        if self._saved is not None or self._identity is None:
            return self._saved
        return self._at.position(str(self.path), self._identity)

    def close(self) -> None:
        """Give the file up (not while a read is running); a later tail of it goes on here, under whatever name."""
        self._files.enter(self)
        self._leave()
        self._files.leave(self)

    def read(self, buffer: memoryview, now: float) -> TailRead:
        """What is new, at most `len(buffer) - SPAN` bytes; never blocks on a local file. `now`: monotonic seconds.

        No exception for anything the file system does: see `TailRead.event` and `error`.
        """
        named, problem = self._look()
        seen = (named.st_ino, named.st_size, named.st_mtime_ns, named.st_dev) if named is not None else _NOBODY
        if seen != self._seen:
            self._seen, self._seen_at, self._calm = seen, now, None
        elif self._calm is not None:
            return self._calm
        self._files.enter(self)
        try:
            read = self._read(named, problem, buffer, now)
            if named is not None and now - self._seen_at >= _CALM and self._has_all(named):
                self._calm = TailRead(b"", self._at.offset)
            return read
        except OSError as failure:
            if failure.errno == errno.ESTALE and self._fd >= 0:
                os.close(self.take_descriptor())
            return self._silent("unreadable", explain(self.path, failure))
        finally:
            self._files.leave(self)

    def _read(self, named: os.stat_result | None, problem: str, view: memoryview, now: float) -> TailRead:
        saved = self._saved
        if named is not None and saved is not None and named.st_ino == saved.inode:
            # Network and container file systems have another device number after each mount: the content decides.
            self._identity = identity_of(named)
        if named is not None and identity_of(named) == self._identity:
            self._quiet_since = None
            return self._follow(named.st_size, view) if self._fd >= 0 or self._reopen() else self._taken()
        if self._fd >= 0 or self._reach_renamed():
            return self._drain(named, problem, view, now)
        self._write_off()
        if named is not None:
            if self._identity is not None:
                self._leave("replaced")
            return self._begin(view)
        return self._absent(problem)

    def _look(self) -> tuple[os.stat_result | None, str]:
        """What the name means now: a regular file, or None with the reason ("" if it does not exist)."""
        try:
            info = self.path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None, ""
        except OSError as problem:
            return None, explain(self.path, problem)
        if not stat.S_ISREG(info.st_mode):
            kind = _KINDS.get(stat.S_IFMT(info.st_mode), "not a file")
            return None, f"{self.path} is {kind}; only regular files are read: name a log file, or leave it out"
        return info, ""

    def _has_all(self, named: os.stat_result) -> bool:
        read = self._at.offset + self._at.nul_tail
        return self._state == "" and identity_of(named) == self._identity and named.st_size <= read

    def _follow(self, size: int, view: memoryview) -> TailRead:
        """The name means the open file: what is new in it."""
        data = self._pull(view)
        self._size = size
        self.error, self._state = None, ""
        return self._told(data, more=self._at.full)

    def _pull(self, view: memoryview) -> bytes:
        data = self._at.pull(self._fd, view)
        if data is None:
            self._write_off()
            self._at, self._due = Cursor(), "truncated"
            data = self._at.pull(self._fd, view)
        return data or b""

    def _told(self, data: bytes, *, more: bool) -> TailRead:
        event, self._due = self._due, ""
        begin = self._at.offset - len(data)
        return TailRead(data, begin, begin < self._at.boundary, event, more)

    def _drain(self, named: os.stat_result | None, problem: str, view: memoryview, now: float) -> TailRead:
        """The name is gone or means another file: finish ours, then go over to the other once it has content."""
        data, ours = self._pull(view), os.fstat(self._fd)
        self._size = ours.st_size + (named.st_size if named else 0)
        if data or self._quiet_since is None:
            self._quiet_since = now
        if data or self._at.full:
            return self._told(data, more=True)
        quiet = now - self._quiet_since >= _LINGER
        if named is None:
            if quiet and ours.st_nlink == 0:
                self._let_go()
            return self._absent(problem)
        if named.st_size > 0 or quiet:
            self._leave("rotated")
            return self._begin(view)
        return TailRead(b"", self._at.offset)

    def _write_off(self) -> None:
        """What was known to be there and was not read cannot be had any more."""
        self.lost += self.lag
        self._size = self._at.offset

    def _absent(self, problem: str) -> TailRead:
        if problem:
            return self._silent("unreadable", problem)
        return self._silent("vanished", f"{self.path} does not exist (any more); reading starts when it appears")

    def _silent(self, state: str, error: str) -> TailRead:
        """Nothing can be read; the event is the state's name on entry and nothing while it lasts."""
        event = state if state != self._state else ""
        self._state, self.error = state, error
        return TailRead(b"", self._at.offset, event=event)

    def _taken(self) -> TailRead:
        return self._silent("alias", f"{self.path} is a second name of a file that is read already: read once")

    def _begin(self, view: memoryview) -> TailRead:
        """Start on the file that has the name now: at 0, or where another tail of the same file stopped."""
        fd, info = self._files.open(self.path)
        identity = identity_of(info)
        if not self._files.claim(identity, self):
            os.close(fd)
            return self._taken()
        self._fd, self._identity, self._at, self._quiet_since = fd, identity, Cursor(), None
        known = self._files.recall(identity)
        if known is not None and known.known and known.matches(fd):
            self._at.adopt(fd, known)
        elif self._history:
            self._at.boundary = info.st_size
        self._history = False
        return self._follow(info.st_size, view)

    def _reopen(self) -> bool:
        """Open again what we know by a saved position or from before the descriptor was evicted; False: taken."""
        fd, info = self._files.open(self.path)
        if identity_of(info) != self._identity:
            os.close(fd)
            raise OSError(errno.ESTALE, "renamed between two looks")
        if not self._files.claim(self._identity, self):
            os.close(fd)
            return False
        self._fd = fd
        self._settle(self._saved is not None and self._saved.matches(fd))
        return True

    def _settle(self, same: bool) -> None:
        """A saved position was compared with the file: take it up, or start over."""
        saved, self._saved = self._saved, None
        if saved is not None:
            self._history = False
            self._at = Cursor()
            if same:
                self._at.adopt(self._fd, saved)
            else:
                self._due = "replaced"

    def _reach_renamed(self) -> bool:
        """Open our file under its new name in the same folder, or beside a link's target: it was renamed, or the link
        switched, while nobody held it open.
        """
        position = self.position
        if position is None or not position.known:
            return False
        found = self._files.find(self.path.parent, position.inode)
        if found is None and os.path.islink(self.path):
            found = self._files.find(Path(os.path.realpath(self.path)).parent, position.inode)
        if found is None:
            return False
        try:
            fd, info = self._files.open(found)
        except OSError:
            return False
        ours = info.st_ino == position.inode and position.matches(fd)
        if not ours or not self._files.claim(identity_of(info), self):
            os.close(fd)
            return False
        self._fd, self._identity = fd, identity_of(info)
        self._settle(True)
        return True

    def _leave(self, why: str = "") -> None:
        """Done with this file; its position is kept for whoever meets it under another name."""
        position = self.position
        if position is not None:
            self._history = False
            if position.known:
                self._files.leave_behind(position)
        self._let_go()
        self._saved = self._identity = None
        self._at, self._size, self._due = Cursor(), 0, why or self._due

    def _let_go(self) -> None:
        if self._fd >= 0:
            os.close(self.take_descriptor())
        if self._identity is not None:
            self._files.release(self._identity, self)
