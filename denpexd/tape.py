"""What the core of one job was fed lately, in memory, batch by batch: enough to judge an incident again elsewhere.

Bounded by bytes and age. What grows too old goes into `Before`, which keeps of every kind only what the core still
knows of it (the last movements, the settings, the phases), so that a replay begins with the rhythm of the job learned.
Recording keeps references to events that exist anyway; nothing is made for a line, and nothing is encoded before an
incident.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from denpexd.core.cadence import Limits
from denpexd.core.events import Activity, Attempt, Blind, Event, Exit, Fact, Frames, Hit, Joined, Raised, Tick
from denpexd.core.flight import Dump
from denpexd.core.rule import Catalog

_EVENT = 120  # bytes of an event without its texts
_TEXTS = 400  # and of its name, source and fields
_FRAME, _OP = 200, 400
_MOST_KEYS = 20_000
_MOVES = 66  # what the core remembers of a rhythm, and a little more
_DEPTHS = {Activity: 33, Exit: 8, Raised: 8, Frames: 1, Fact: 2, Joined: 3, Blind: 1, Dump: 1}

Depth = Callable[[str], int]


@dataclass(frozen=True, slots=True)
class Cut:
    """A recording as it stood at one moment. `before`: what was known when it begins; `finished`: the job was over."""

    job: str
    start: float
    limits: Limits
    before: Sequence[Event]
    batches: Sequence[Sequence[Event]]
    finished: float | None = None

    @property
    def since(self) -> float:
        """Time of the first batch."""
        return self.batches[0][0].t if self.batches else self.start

    @property
    def until(self) -> float:
        """Time of the last event."""
        last = self.batches[-1][-1].t if self.batches else self.start
        return max(last, self.finished or last)


def depth_of(catalog: Catalog, signal_id: str) -> int:
    """How many hits of a signal the core may still know."""
    signal = catalog.signals.get(signal_id)
    role = signal.role if signal is not None else None
    return _MOVES if role in ("progress", "metric") else 16 if role == "phase" else 3


class Before:
    """Of everything older the first and the last of each kind, rank and signal."""

    def __init__(self) -> None:
        self._first: dict[tuple[object, ...], tuple[int, Event]] = {}
        self._last: dict[tuple[object, ...], deque[tuple[int, Event]]] = {}
        self._number = 0

    def take(self, events: Sequence[Event], depth: Depth) -> None:
        """Events in order; a new attempt forgets what the one before it said, but not how fast it was."""
        for event in events:
            self._number += 1
            if isinstance(event, Tick):
                continue
            if isinstance(event, Attempt):
                kept = (Joined, Activity)
                self._last = {key: last for key, last in self._last.items() if key[0] in kept or len(last) > 16}
                self._first.clear()
            key = _key(event)
            if key not in self._last and len(self._last) >= _MOST_KEYS:
                continue
            self._first.setdefault(key, (self._number, event))
            deep = depth(event.signal) if isinstance(event, Hit) else _DEPTHS.get(type(event), 1)
            if isinstance(event, Hit) and "metric" in event.fields:
                deep = _MOVES
            self._last.setdefault(key, deque(maxlen=deep)).append((self._number, event))

    @property
    def events(self) -> list[Event]:
        """What is kept, in order."""
        found = dict(self._first.values()) | dict(pair for last in self._last.values() for pair in last)
        return [found[number] for number in sorted(found)]


def _key(event: Event) -> tuple[object, ...]:
    """What an event is the newest of."""
    match event:
        case Hit(rank=rank, signal=name) | Frames(rank=rank, kind=name):
            return type(event), rank, name
        case Fact(rank=rank, name=name, fields=about):
            return type(event), rank, name, about.get("ranks"), about.get("kind")
        case Activity(rank=rank) | Raised(rank=rank) | Exit(rank=rank) | Joined(rank=rank) | Dump(rank=rank):
            return type(event), rank
    return (type(event),)


class Tape:
    """The recording of one job. `room`: bytes (a fair guess of them); `age`: seconds."""

    def __init__(self, job: str, start: float, limits: Limits, depth: Depth, *, room: int, age: float) -> None:
        self._job, self._start, self._limits, self._depth = job, start, limits, depth
        self.room, self._age = room, age
        self._batches: deque[tuple[Sequence[Event], int]] = deque()
        self._before = Before()
        self._finished: float | None = None
        self.bytes = 0

    def add(self, events: Sequence[Event]) -> None:
        """What the core was just fed."""
        size = sum(map(_size, events))
        self._batches.append((events, size))
        self.bytes += size
        self._let_go(events[-1].t - self._age)

    def fit(self, room: int) -> None:
        """Be content with that many bytes from now on."""
        self.room = room
        self._let_go(float("-inf"))

    def _let_go(self, oldest: float) -> None:
        while len(self._batches) > 1 and (self.bytes > self.room or self._batches[0][0][-1].t < oldest):
            gone, size = self._batches.popleft()
            self.bytes -= size
            self._before.take(gone, self._depth)

    def known(self, events: Sequence[Event]) -> None:
        """What was known when the recording began, from the journal of an earlier daemon."""
        self._before.take(events, self._depth)

    def finish(self, t: float) -> None:
        """The core was told that nothing more will come."""
        self._finished = t

    def cut(self) -> Cut:
        """All of it, for another thread: later events do not change it."""
        batches = tuple(events for events, _ in self._batches)
        return Cut(self._job, self._start, self._limits, self._before.events, batches, self._finished)


def _size(event: Event) -> int:
    match event:
        case Activity() | Tick():
            return _EVENT
        case Hit(text=text):
            return _EVENT + _TEXTS + len(text)
        case Fact(text=text, fields=about):
            return _EVENT + _TEXTS + len(text) + 2 * sum(map(len, about.values()))
        case Raised(text=text, frames=frames, chain=chain):
            return _EVENT + _TEXTS + len(text) + _FRAME * len(frames) + sum(len(m) for _, m in chain)
        case Frames(frames=frames, others=others):
            return _EVENT + _TEXTS + _FRAME * (len(frames) + sum(len(each) for _, each in others))
        case Dump(ops=ops):
            return _EVENT + _TEXTS + _OP * len(ops)
    return _EVENT + _TEXTS
