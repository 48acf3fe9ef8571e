"""Who wrote how much of a stream into which several ranks write."""

from denpexd.core.events import UNKNOWN_RANK, Activity, Event
from denpexd.scan.prefixes import Line, PrefixReader

_LATEST = 64 << 10
_HEAD = 512  # bytes of a line in which its rank stands


def census(buffer: bytes, prefixes: PrefixReader, head: Line | None) -> dict[int, int]:
    """Bytes by rank in the last 64 KiB of whole lines; `head`: what the first segment of an open line says."""
    heard: dict[int, int] = {}
    for part in buffer[-_LATEST:].split(b"\n")[len(buffer) > _LATEST :]:
        for line in prefixes.read(part[:_HEAD], head) if part else ():
            heard[line.rank] = heard.get(line.rank, 0) + len(part)
    return heard


def shares(size: int, heard: dict[int, int], t: float, source: str, history: bool) -> list[Event]:
    """`size` bytes as one Activity a rank, in proportion; what is left over belongs to nobody known."""
    total = max(sum(heard.values()), size)
    parts = {rank: max(1, size * count // total) for rank, count in heard.items() if rank != UNKNOWN_RANK}
    parts[UNKNOWN_RANK] = size - sum(parts.values())
    return [Activity(t, rank, source, count, history) for rank, count in sorted(parts.items()) if count > 0]
