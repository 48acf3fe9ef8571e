"""The place in one content up to which it was read, and the bytes that prove it is still that content.

Each pull begins SPAN bytes before the offset and compares them with what stood there, so a file truncated and grown
again between two looks is noticed in the same system call that fetches the new bytes. No size that `stat` reports is
trusted for it: the attribute caches of network file systems lag behind.
"""

import os

from denpexd.ingest.positions import SPAN, Identity, Position, signature

_HOLE = b"\0" * 4096  # a run of NULs this long is a hole or a preallocation, not text


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
        self._advance(raw, lead)
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

    def _advance(self, raw: bytes, lead: int = 0) -> None:
        """`raw` is done; its first `lead` bytes were NULs and are not handed out."""
        if len(self._head) < SPAN and len(self._head) == self.offset:
            self._head = (self._head + raw)[:SPAN]
        end = raw.rfind(b"\n") + 1
        if end == 0 and lead and self._line == self.offset:
            end = lead
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
