"""Where reading of a file stopped, and how to tell later that it is still the same content.

A name says nothing (rotation), an inode little (ext4 gives a freed one to the next file), content alone is shared by
twins. A Position holds all three: name, device and inode, and what stood at the beginning and just before the offset.
Signatures are hashes, so a stored position leaks nothing of the log.
"""

import os
from dataclasses import dataclass
from hashlib import blake2b

SPAN = 256  # bytes looked at, at the beginning and before the offset

Identity = tuple[int, int]
Row = tuple[str, str, int, bytes, bytes]


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
