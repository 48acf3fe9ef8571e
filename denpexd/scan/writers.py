"""Who writes into one stream: the open blocks, each fed by the lines of its own writer only, and who wrote how much."""

from collections.abc import Callable
from dataclasses import dataclass

from denpexd.core.events import UNKNOWN_RANK, Activity, Event
from denpexd.scan.blocks import Block, Opening, Traceback
from denpexd.scan.dumps import Faulthandler, Watchdog
from denpexd.scan.launcher import LauncherReader, Summary
from denpexd.scan.lines import uncoloured
from denpexd.scan.prefixes import Line, PrefixReader

_IDLE = 1.0
_MOST_SILENCE = 2.0
_MOST_LINES_OF_OTHERS = 2000
_KINDS: dict[str, Callable[[Opening], Block]] = {
    "traceback": Traceback,
    "faulthandler": Faulthandler,
    "watchdog": Watchdog,
}

_LATEST = 64 << 10
_HEAD = 512  # bytes of a line in which its rank stands


@dataclass(slots=True)
class _Open:
    """A block, the time of its last line, and how many lines of others have come since."""

    block: Block
    last: float
    others: int = 0


class OpenBlocks:
    """At most one block of a kind for each writer. A writer is told by its tags; see prefixes.Line."""

    def __init__(self, launcher: LauncherReader) -> None:
        self._launcher = launcher
        self._open: dict[tuple[str, str, int], _Open] = {}

    def __bool__(self) -> bool:
        return bool(self._open)

    def feed(self, line: Line, t: float) -> tuple[bool, set[str], list[Event]]:
        """Show a line to its writer's blocks: is it quoted code, which kinds took it, what ended with it."""
        code, kept, events = False, set[str](), list[Event]()
        for key, each in list(self._open.items()):
            kind, outer, tag = key
            if outer != line.outer or (kind == "traceback" and tag != line.tag):
                each.others += 1
                continue
            each.last, each.others = t, 0
            if each.block.feed(line.text):
                kept.add(kind)
                code = code or each.block.quotes_code(line.text)
            else:
                events += self._open.pop(key).block.finish()
        return code, kept, events

    def open(self, kind: str, line: Line, opening: Opening) -> list[Event]:
        """Open a block at this line; an open one of the same kind and writer ends."""
        key = (kind, line.outer, line.tag)
        events = self._open.pop(key).block.finish() if key in self._open else []
        block = Summary(self._launcher, opening) if kind == "summary" else _KINDS[kind](opening)
        self._open[key] = _Open(block, opening.t)
        return events

    def entry_rank(self, line: Line) -> int | None:
        """The rank whose entry of a launcher's summary this line belongs to; None outside of a summary."""
        for (_, outer, _), each in self._open.items():
            if isinstance(each.block, Summary) and outer == line.outer and line.tag < 0:
                return each.block.rank
        return None

    def stale(self, t: float) -> list[Event]:
        """End what has waited too long for a line of its writer while others wrote."""
        return self._end(lambda each: t - each.last > _MOST_SILENCE or each.others > _MOST_LINES_OF_OTHERS)

    def idle(self, t: float) -> list[Event]:
        """End what nothing has followed for a second."""
        return self._end(lambda each: t - each.last >= _IDLE)

    def end(self) -> list[Event]:
        """End all."""
        return self._end(lambda each: True)

    def _end(self, due: Callable[[_Open], bool]) -> list[Event]:
        events: list[Event] = []
        for key, each in list(self._open.items()):
            if due(each):
                del self._open[key]
                events += each.block.finish()
        return events


def census(buffer: bytes, prefixes: PrefixReader, head: Line | None) -> dict[int, int]:
    """Bytes by rank in the last 64 KiB of whole lines; `head`: what the first segment of an open line says."""
    heard: dict[int, int] = {}
    for part in uncoloured(buffer[-_LATEST:]).split(b"\n")[len(buffer) > _LATEST :]:
        for line in prefixes.read(part[:_HEAD], head) if part else ():
            heard[line.rank] = heard.get(line.rank, 0) + len(part)
    return heard


def shares(size: int, heard: dict[int, int], t: float, source: str, history: bool) -> list[Event]:
    """`size` bytes as one Activity a rank, in proportion; what is left over belongs to nobody known."""
    total = max(sum(heard.values()), size)
    parts = {rank: max(1, size * count // total) for rank, count in heard.items() if rank != UNKNOWN_RANK}
    parts[UNKNOWN_RANK] = size - sum(parts.values())
    return [Activity(t, rank, source, count, history) for rank, count in sorted(parts.items()) if count > 0]


def line_above(line: Line, above: bytes, prefixes: PrefixReader) -> str:
    """The last line of the same writer in the bytes before this one."""
    for raw in reversed(above.splitlines()[-8:]):
        for other in reversed(prefixes.read(raw)):
            if other.text.strip() and (other.outer, other.rank) == (line.outer, line.rank):
                return other.text
    return ""
