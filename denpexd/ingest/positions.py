"""Where reading of a file stopped, and how to tell that it is still the same content, in the next moment or run.

A name says nothing (rotation), an inode little (ext4 gives a freed one to the next file), content alone is shared by
twins. A Position holds all three: name, device and inode, and what stood at the beginning and just before the offset.
Signatures are hashes, so a stored position leaks nothing of the log.

Each pull of a Cursor begins SPAN bytes before the offset and compares them with what stood there, so a file truncated
and grown again between two looks is noticed in the same system call that fetches the new bytes. No size that `stat`
reports is trusted for it: the attribute caches of network file systems lag behind.
"""

import os
from dataclasses import dataclass
from hashlib import blake2b

SPAN = 256  # bytes looked at, at the beginning and before the offset

Identity = tuple[int, int]
Row = tuple[str, str, int, bytes, bytes]

_HOLE = b"\0" * 4096  # a run of NULs this long is a hole or a preallocation, not text


def identity_of(info: os.stat_result) -> Identity:
    """Device and inode."""
    return info.st_dev, info.st_ino


def signature(raw: bytes) -> bytes:
    """16 bytes that stand for up to SPAN raw bytes: their number (2 bytes) and a hash (14)."""
    return len(raw).to_bytes(2, "big") + blake2b(raw, digest_size=14).digest()


@dataclass(frozen=True, slots=True)
class Position:
    """Everything before `offset` was handed out; `offset` is always the beginning of a line.

    `head`: signature of the first bytes known (grows up to SPAN); `tail_hash`: of up to SPAN bytes before `offset`.
    """

    path: str
    device: int
    inode: int
    offset: int
    head: bytes
    tail_hash: bytes

    @property
    def identity(self) -> Identity:
        """Device and inode: the key under which a store should keep it (two names may have shared a path in turn)."""
        return self.device, self.inode

    @property
    def known(self) -> int:
        """Number of first bytes that `head` stands for; 0: nothing tells this content from another."""
        return int.from_bytes(self.head[:2], "big")

    def matches(self, fd: int) -> bool:
        """Does the open file still hold the content that was read? OSError if it cannot be looked at."""
        span = min(SPAN, self.offset)
        return (
            signature(os.pread(fd, self.known, 0)) == self.head
            and signature(os.pread(fd, span, self.offset - span)) == self.tail_hash
        )

    def to_row(self) -> Row:
        """(path, "device:inode", offset, head, tail hash); identity as text: an inode may exceed SQLite's integers."""
        return self.path, f"{self.device}:{self.inode}", self.offset, self.head, self.tail_hash

    @classmethod
    def from_row(cls, row: Row) -> "Position":
        """The inverse of `to_row`; ValueError on a row that no Position wrote."""
        path, identity, offset, head, tail_hash = row
        device, _, inode = identity.partition(":")
        if offset < 0 or len(head) != 16 or len(tail_hash) != 16:
            raise ValueError(f"position of {path} is damaged")
        return cls(path, int(device), int(inode), offset, bytes(head), bytes(tail_hash))


class Cursor:
    """`offset`: everything before it was handed out. `boundary`: bytes before it are history.

    `full`: the last pull filled its room, so there is probably more. `nul_tail`: NULs at the end that may become text.
    """

    __slots__ = ("_head", "_line", "_line_mark", "_mark", "boundary", "full", "nul_tail", "offset")

    def __init__(self) -> None:
        self.offset = self.boundary = self.nul_tail = self._line = 0
        self.full = False
        self._head = self._mark = self._line_mark = b""

    def position(self, path: str, identity: Identity) -> Position:
        """The beginning of the last line that has no end yet."""
        return Position(path, *identity, self._line, signature(self._head), signature(self._line_mark))

    def adopt(self, fd: int, position: Position) -> None:
        """Go on at a position that the open file matches."""
        span = min(SPAN, position.offset)
        self.offset = self._line = position.offset
        self._head = os.pread(fd, position.known, 0)
        self._mark = self._line_mark = os.pread(fd, span, position.offset - span)

    def pull(self, fd: int, view: memoryview) -> bytes | None:
        """The next bytes of the open file, at most len(view) - SPAN; None if what was read before has changed."""
        back = len(self._mark)
        room = len(view) - SPAN
        if self.offset < self.boundary:
            room = min(room, self.boundary - self.offset)
        self.full = False
        got = os.preadv(fd, [view[: back + room]], self.offset - back)
        if got < back or view[:back] != self._mark or os.pread(fd, len(self._head), 0) != self._head:
            return None
        raw = bytes(view[back:got])
        self.full = len(raw) == room
        self.nul_tail = 0
        if 0 in raw:
            return self._without_holes(fd, raw)
        self._advance(raw)
        return raw

    def _without_holes(self, fd: int, raw: bytes) -> bytes:
        """Skip NULs left by a truncation under a writer or by preallocation; those at the very end may become text."""
        if not self.full:
            kept = raw.rstrip(b"\0")
            self.nul_tail = len(raw) - len(kept)
            raw = kept
        lead = len(raw) - len(raw.lstrip(b"\0"))
        if lead == len(raw):
            self._advance(raw)
            if raw:
                self._jump(fd)
            return b""
        hole = raw.find(_HOLE, lead)
        if hole > lead:
            raw, self.full = raw[:hole], True
        self._advance(raw)
        return raw[lead:]

    def _jump(self, fd: int) -> None:
        """Go over the rest of a hole that the file system knows: terabytes of nothing cost one call."""
        try:
            gap = os.lseek(fd, self.offset, os.SEEK_DATA) - self.offset
        except OSError:
            size = os.fstat(fd).st_size  # nothing but hole up to the end, or not supported here
            if _hole_at(fd, self.offset):
                self.nul_tail, self.full = max(0, size - self.offset), False
            return
        if gap > 0:
            zeros = bytes(min(gap, SPAN))
            if len(self._head) == self.offset:
                self._head = (self._head + zeros)[:SPAN]
            self._mark = (self._mark + zeros)[-SPAN:]
            self.offset += gap
            self._line, self._line_mark = self.offset, self._mark

    def _advance(self, raw: bytes) -> None:
        """`raw` is done."""
        if len(self._head) < SPAN and len(self._head) == self.offset:
            self._head = (self._head + raw)[:SPAN]
        end = raw.rfind(b"\n") + 1
        if end:
            self._line = self.offset + end
            self._line_mark = (self._mark + raw[max(0, end - SPAN) : end])[-SPAN:]
        self._mark = (self._mark + raw[-SPAN:])[-SPAN:]
        self.offset += len(raw)


def _hole_at(fd: int, offset: int) -> bool:
    try:
        return os.lseek(fd, offset, os.SEEK_HOLE) == offset
    except OSError:
        return False
