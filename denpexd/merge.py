"""The events of many finished logs on one axis of time, in one order.

A file with timestamps has its own times. One without is placed: its end meets the end of the rank's other files, else
of all others, and then the order between ranks is a guess, which `Told.knows` admits.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from denpexd.core.events import UNKNOWN_RANK, Attempt, Event, Exit, Fact, Frames, Hit, Joined, Raised
from denpexd.ingest.finished import Finished
from denpexd.scan.times import Axis, Stamp

Generation = tuple[str, int]

SETTLED = 60.0  # seconds after which nothing changes any more for a while: longer than the core waits for late ranks
AFTER = 0.5  # a rank's last words come after its last step
BEHIND = 256
# What is told without an offset gets its place in the file through the time the scanner is fed: bytes times this, so
# little that no block ever waits too long for its next line.
PLACE = 1e-12


@dataclass(slots=True)
class Told:
    """What one file told: events and timestamps by offset, and when that was.

    `ended`: its rank said that it finished. `started`: what stands before this offset was said while it started.
    `stopped`: offsets of reports that others are gone or late. `late`: from the first to before the second offset
    nothing happened before that time, although the timestamp above is older.
    """

    source: Finished
    size: int = 0
    events: list[tuple[int, Event]] = field(default_factory=list)
    stamps: list[tuple[int, Stamp]] = field(default_factory=list)
    dumps: list[Frames] = field(default_factory=list)
    moves: list[int] = field(default_factory=list)
    axis: Axis = field(default_factory=Axis)
    ended: bool = False
    started: int = 0
    stopped: list[int] = field(default_factory=list)
    shift: float = 0.0
    begin: float | None = None  # of a file without timestamps and steps: when what it said first was said
    late: tuple[int, int, float] | None = None

    @property
    def generation(self) -> Generation | None:
        """The start of the job that the file's folder belongs to; None where folders do not tell."""
        found = self.source.found
        return (found.run, found.attempt or 0) if found.run or found.attempt is not None else None

    @property
    def rank(self) -> int:
        return self.source.found.rank

    def at(self, offset: int) -> float:
        """When the line at `offset` was printed, as well as it can be told."""
        if self.begin is not None and offset < self.started:
            return self.begin
        t = self.axis.at(offset) + self.shift
        if self.late is not None and self.late[0] <= offset < self.late[1]:
            return max(t, self.late[2])
        return t

    def knows(self, offset: int) -> bool:
        """Whether a timestamp tells the time at `offset`."""
        if self.late is not None and self.late[0] <= offset < self.late[1]:
            return False
        return self.axis.knows(offset)

    @property
    def end(self) -> float:
        return self.at(self.size)

    def place(self, events: Iterable[Event], start: int) -> None:
        """Note where the events of a read stand; what has no offset stands behind what came before it."""
        here = start
        for event in events:
            if isinstance(event, Hit | Raised | Frames | Fact):
                here, place = max(here, event.offset), event.offset
            else:
                # What a block tells at its end (who exited) happened where the block began, or just behind it.
                place = min(here, round(event.t / PLACE) + BEHIND)
            self.events.append((place, event))


def merged(files: Sequence[Told]) -> list[Event]:
    """All events by time; within a file in its order, and no start of the job before the one before it is over."""
    generations = _generations(files)
    _align(files, generations)
    folders = generations != [None]
    starts = [min((f.at(0) for f in files if f.generation == g), default=0.0) for g in generations]
    gone: dict[tuple[int, int], float] = {}  # when each rank had said its last word, where that is a guess
    for told in files:
        if not told.axis.times:
            where = _index(generations, told), told.rank
            gone[where] = max(told.end, gone.get(where, told.end))
    keyed: list[tuple[float, int, int, int, Event]] = []
    for number, told in enumerate(files):
        here = _index(generations, told)
        limit = starts[here + 1] if here + 1 < len(starts) else float("inf")
        keyed.append((min(told.at(0), limit), here, number, -1, Joined(0.0, told.rank)))
        for place, event in told.events:
            if folders and isinstance(event, Attempt):  # folders tell it better than the launcher's words
                continue
            t = told.at(place)
            if isinstance(event, Exit):
                t = max(t, gone.get((here, event.rank), t))
            keyed.append((min(t, limit), here, number, place, event))
    for here, generation in enumerate(generations):
        if generation is not None and (here > 0 or generation[1] > 0):
            keyed.append((starts[here], here, -1, -1, Attempt(0.0, generation[1])))
    keyed.sort(key=lambda k: k[:4])
    return [replace(event, t=t) for t, _, _, _, event in keyed]


def _index(generations: Sequence[Generation | None], told: Told) -> int:
    return generations.index(told.generation) if told.generation in generations else len(generations) - 1


def _generations(files: Sequence[Told]) -> list[Generation | None]:
    """The starts of the job that folders tell apart, oldest first."""
    began: dict[Generation, float] = {}
    runs: dict[str, float] = {}
    for told in files:
        if told.generation is not None:
            first = told.axis.times[0] if told.axis.times else told.source.changed or 0.0
            began[told.generation] = first
            runs[told.generation[0]] = min(runs.get(told.generation[0], first), first)
    ordered = sorted(began, key=lambda g: (runs[g[0]], g[0], g[1]))
    return [*ordered] or [None]


def _align(files: Sequence[Told], generations: Sequence[Generation | None]) -> None:
    """Give every file without timestamps its place."""
    before: float | None = None
    for generation in generations:
        last = generation == generations[-1]
        mine = [f for f in files if f.generation == generation or (f.generation is None and last)]
        timed = [f for f in mine if f.axis.times]
        end = max((f.end for f in timed), default=max((f.axis.pace(f.size) for f in mine), default=0.0))
        if not timed and before is not None:
            end += before + SETTLED
        before, end = end, _stopped(timed) or end
        ranks: dict[int, list[Told]] = {}
        for number, told in enumerate(mine):
            ranks.setdefault(told.rank if told.rank != UNKNOWN_RANK else -1 - number, []).append(told)
        for same in ranks.values():
            _align_rank(same, end)
        begin = min((f.at(0) for f in mine), default=0.0)
        for told in mine:
            if not told.axis.times and not told.axis.moves:
                told.begin = begin


def _stopped(files: Sequence[Told]) -> float | None:
    """When the first rank reported, at the last stop, that others are gone or late."""
    reports = [f.at(place) for f in files for place in f.stopped if f.axis.times]
    return min((t for t in reports if t > max(reports) - 2 * SETTLED), default=None)


def _align_rank(files: Sequence[Told], end: float) -> None:
    """The files of one rank: if it failed, the last words of a file without steps come after the last step."""
    timed = [f for f in files if f.axis.times]
    stop = _stopped(timed) or max((f.end for f in timed if f.axis.moves), default=end)
    words = [f for f in files if not f.axis.times and not f.axis.moves]
    moving = [f for f in files if f.axis.moves]
    tail = AFTER + max((min(f.axis.pace(f.size), 1.0) for f in words), default=0.0) if moving else 0.0
    steps = max((f.at(f.axis.moves[-1]) for f in timed if f.axis.moves), default=None)
    for told in files:
        if told.axis.times:
            continue
        if not told.axis.moves or steps is None:
            told.shift = stop - told.axis.pace(told.size) - (tail if told.axis.moves else 0.0)
        else:  # two files that tell of the same steps
            told.shift = steps - told.axis.pace(told.axis.moves[-1])
    if not moving:
        return
    last = max(f.at(f.axis.moves[-1]) for f in moving) + AFTER
    if any(f.ended for f in files):
        for told in words:
            told.shift = min(f.at(0) for f in moving)
        return
    for told in words:
        told.shift = max(told.shift, last - told.axis.pace(max(0, told.size - Axis.NEAR)))
    for told in timed:
        if not told.axis.moves:
            told.late = _late(told, last)


def _late(told: Told, last: float) -> tuple[int, int, float] | None:
    """An exception that nobody caught, below an old timestamp: it came after the rank's last step."""
    fatal = [place for place, event in told.events if _ends_process(event, told.rank)]
    if not fatal or fatal[-1] in told.axis.offsets:
        return None
    following = [(o, t) for o, t in zip(told.axis.offsets, told.axis.times, strict=True) if o > fatal[-1]]
    stop, limit = following[0] if following else (told.size, float("inf"))
    return fatal[-1], stop, min(last, limit)


def _ends_process(event: Event, rank: int) -> bool:
    """Whether it is how a process of that rank ends; the launcher's own exception in the same file is not."""
    if isinstance(event, Raised):
        return event.uncaught and event.rank == rank
    if not isinstance(event, Hit):
        return False
    return event.rank == rank and event.text.lstrip().startswith(("terminate called", "what():"))
