"""Finished logs in, verdicts out: the scanner and the core of the daemon, with the times that the lines carry.

Every file is read alone; then its events get the time of their line (or of the nearest line above that has one), the
events of all files are merged by time and played to one correlator a job. Silence proves nothing in a finished log.
"""

import itertools
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import floor
from typing import BinaryIO

from denpexd.clock import Clock, SystemClock
from denpexd.core.cadence import BUDGETS, Limits
from denpexd.core.correlate import Correlator
from denpexd.core.events import (
    UNKNOWN_RANK,
    Activity,
    Attempt,
    Event,
    Fact,
    Frames,
    Hit,
    Joined,
    Output,
    Raised,
    Tick,
    Want,
)
from denpexd.core.rule import Catalog
from denpexd.errors import SourceError
from denpexd.ingest.finished import Finished, find
from denpexd.replay import Replayed
from denpexd.scan.engine import EngineFactory, choose_engine
from denpexd.scan.stream import Scanner, Stream
from denpexd.scan.times import Axis, Stamp, resolve
from denpexd.scan.times import find as find_stamp

log = logging.getLogger(__name__)

Verdict = Mapping[str, object]
Generation = tuple[str, int]

NEVER = 1e12
SETTLED = 60.0  # seconds after which nothing changes any more for a while: longer than the core waits for late ranks
READS = 50_000  # about so many chunks altogether, so that small logs are looked at closely and large ones quickly
SMALLEST, LARGEST = 512, 64 << 10
ABOVE = 4 << 10  # how far above an event a timestamp is looked for
QUIET_ROLES = ("progress", "metric", "config")
# What is told without an offset gets its place in the file through the time the scanner is fed: bytes times this, so
# little that no block ever waits too long for its next line.
_PLACE = 1e-12


@dataclass(slots=True)
class _Told:
    """What one file told: events and timestamps by offset, and when that was."""

    source: Finished
    size: int = 0
    events: list[tuple[int, Event]] = field(default_factory=list)
    stamps: list[tuple[int, Stamp]] = field(default_factory=list)
    axis: Axis = field(default_factory=Axis)
    shift: float = 0.0

    @property
    def generation(self) -> Generation | None:
        found = self.source.found
        return (found.run, found.attempt or 0) if found.run or found.attempt is not None else None

    def at(self, offset: int) -> float:
        return self.axis.at(offset) + self.shift

    @property
    def end(self) -> float:
        return self.at(self.size)

    def place(self, events: Iterable[Event], start: int) -> None:
        """Note where the events of a read stand; what has no offset stands behind what came before it."""
        here = start
        for event in events:
            if isinstance(event, Hit | Raised | Frames | Fact):
                place = event.offset
                here = max(here, place)
            else:
                place = min(here, round(event.t / _PLACE)) if event.t / _PLACE < start - 0.5 else here
            self.events.append((place, event))


class Diagnosis:
    """Finished logs of one or more jobs. `clock`: only for the year of pasted lines that carry none."""

    def __init__(self, catalog: Catalog, *, engine: EngineFactory | None = None, clock: Clock | None = None) -> None:
        self._catalog, self._clock = catalog, clock or SystemClock()
        logs = [s for s in catalog.signals.values() if s.kind == "log"]
        self._scanner = Scanner(logs, engine or choose_engine())
        self._quiet = frozenset(s.id for s in logs if s.role in QUIET_ROLES)
        self._steps = frozenset(s.id for s in logs if s.role == "progress")

    def paths(self, paths: Sequence[str], stdin: BinaryIO) -> list[Verdict]:
        """The verdicts on all logs that `paths` name ("-": `stdin`), job by job. SourceError: unusable input."""
        logs = find(paths, stdin)
        total = sum(each.size for each in logs)
        chunk = min(max(total // READS, SMALLEST), LARGEST)
        jobs: dict[str, list[_Told]] = {}
        unusable = []
        for each in logs:
            try:
                jobs.setdefault(each.found.job, []).append(self._read(each, chunk))
            except SourceError as error:
                if len(logs) == 1 or each.named:
                    raise
                unusable.append(str(error))
                log.warning("left out: %s", error)
        if len(unusable) == len(logs):
            raise SourceError("; ".join(unusable[:5]))
        return [verdict for name, told in jobs.items() for verdict in self._job(name, told)]

    # --- one file ---------------------------------------------------------------------------------------------------

    def _read(self, source: Finished, chunk: int) -> _Told:
        told = _Told(source)
        stream = Stream(self._scanner, str(source.found.path), source.found.rank)
        with source.open() as (file, told.size):
            ends = []
            offset = 0
            while data := file.read(chunk):
                told.place(stream.feed(offset * _PLACE, offset, data), offset)
                offset += len(data)
                ends.append(offset - 1)
            told.place(stream.flush(offset * _PLACE), offset)
            places = {place for place, event in told.events if not isinstance(event, Activity | Joined)}
            told.stamps = list(_stamps(file, sorted(places.union(ends))))
        return told

    def _moves(self, told: _Told) -> list[int]:
        return sorted(place for place, event in told.events if isinstance(event, Hit) and event.signal in self._steps)

    # --- one job ----------------------------------------------------------------------------------------------------

    def _job(self, name: str, files: Sequence[_Told]) -> list[Verdict]:
        self._date(files)
        generations = _generations(files)
        _align(files, generations)
        events = _merged(files, generations)
        core = Correlator(self._catalog, name, start_t=events[0].t if events else 0.0, limits=_limits())
        outputs = Player(core, self._quiet).play(events)
        return [_capped(verdict, files) for verdict in Replayed(outputs).verdicts]

    def _date(self, files: Sequence[_Told]) -> None:
        """Make the axis of every file: first where whole dates stand, they date the others."""
        reference = max((f.source.changed or 0.0 for f in files), default=0.0) or self._clock.wall()
        known = False
        for told in sorted(files, key=lambda f: not any(s.year is not None for _, s in f.stamps)):
            told.axis = resolve(told.stamps, self._moves(told), reference)
            if told.axis.times:
                last = told.axis.times[-1]
                reference, known = (max(reference, last) if known else last), True


def _limits() -> Limits:
    return Limits(min_silence=NEVER, budgets=dict.fromkeys(BUDGETS, NEVER))


def _stamps(file: BinaryIO, places: Sequence[int]) -> Iterator[tuple[int, Stamp]]:
    """The timestamps at or nearest above some places (ascending), each once, with the offset of its line."""
    looked = 0  # everything before it has been looked at
    for place in places:
        low = max(looked, place - ABOVE)
        file.seek(low)
        window = file.read(place - low + ABOVE)
        stop = window.find(b"\n", place - low)
        looked = place + 1
        lines = window[: stop if stop >= 0 else None].split(b"\n")
        end = len(window[: stop if stop >= 0 else None])
        for line in reversed(lines):
            start = end - len(line)
            if (stamp := find_stamp(line)) is not None:
                yield low + start, stamp
                break
            end = start - 1


def _generations(files: Sequence[_Told]) -> list[Generation | None]:
    """The starts of the job that folders tell apart, oldest first."""
    began: dict[Generation, float] = {}
    runs: dict[str, float] = {}
    for told in files:
        if told.generation is not None:
            first = told.axis.times[0] if told.axis.times else told.source.changed or 0.0
            began[told.generation] = first
            runs[told.generation[0]] = min(runs.get(told.generation[0], first), first)
    return sorted(began, key=lambda g: (runs[g[0]], g[0], g[1])) or [None]


def _align(files: Sequence[_Told], generations: Sequence[Generation | None]) -> None:
    """Place files without timestamps: their ends meet the end of the rank's other files, else of all others."""
    before: float | None = None
    for generation in generations:
        last = generation == generations[-1]
        mine = [f for f in files if f.generation == generation or (f.generation is None and last)]
        timed = [f for f in mine if f.axis.times]
        if timed:
            end = max(f.end for f in timed)
        else:
            end = max((f.axis.pace(f.size) for f in mine), default=0.0)
            end += before + SETTLED if before is not None else 0.0
        for told in mine:
            if not told.axis.times:
                rank = told.source.found.rank
                same = [f.end for f in timed if f.source.found.rank == rank and rank != UNKNOWN_RANK]
                told.shift = max(same, default=end) - told.axis.pace(told.size)
        before = end


def _merged(files: Sequence[_Told], generations: Sequence[Generation | None]) -> list[Event]:
    """All events by time; within a file in its order, and no start of the job before the one before it is over."""
    folders = generations != [None]
    starts = [min((f.at(0) for f in files if f.generation == g), default=0.0) for g in generations]
    keyed: list[tuple[float, int, int, int, Event]] = []
    for number, told in enumerate(files):
        here = generations.index(told.generation) if told.generation in generations else len(generations) - 1
        limit = starts[here + 1] if here + 1 < len(starts) else float("inf")
        keyed.append((min(told.at(0), limit), here, number, -1, Joined(0.0, told.source.found.rank)))
        for place, event in told.events:
            if not (folders and isinstance(event, Attempt)):
                keyed.append((min(told.at(place), limit), here, number, place, event))
    for here, generation in enumerate(generations):
        if generation is not None and (here or generation[1]):
            keyed.append((starts[here], here, -1, -1, Attempt(0.0, generation[1])))
    keyed.sort(key=lambda k: k[:4])
    return [replace(event, t=t) for t, _, _, _, event in keyed]


def _capped(verdict: Verdict, files: Sequence[_Told]) -> Verdict:
    """Nothing is confirmed whose order of events between files nobody knows."""
    axes = {str(f.source.found.path): f.axis for f in files}
    quoted = verdict["evidence"]
    places = [(str(q["source"]), int(q["offset"])) for q in quoted] if isinstance(quoted, list) else []
    if len(files) < 2 or verdict["certainty"] != "confirmed":
        return verdict
    if all(source not in axes or axes[source].knows(offset) for source, offset in places):
        return verdict
    wanted = verdict["missing"]
    how = "log with timestamps: logging.basicConfig(format='%(asctime)s %(message)s'), or give the merged output"
    missing = [*(wanted if isinstance(wanted, list) else []), {"fact": "the order of the ranks' errors", "how": how}]
    return {**verdict, "certainty": "likely", "missing": missing}


class Player:
    """Plays events to a correlator as the daemon would have: a batch a second, ticks in between where they matter.

    `quiet`: ids of signals after which nothing has to settle.
    """

    def __init__(self, core: Correlator, quiet: frozenset[str]) -> None:
        self._core, self._quiet = core, quiet
        self._outputs: list[Output] = []
        self._now = self._news = float("-inf")

    def play(self, events: Sequence[Event]) -> list[Output]:
        """Everything the core says about events in the order of their times, to the end of all."""
        for second, group in itertools.groupby(events, key=lambda e: floor(e.t)):
            self._pass(float(second))
            for new, part in itertools.groupby(group, key=lambda e: isinstance(e, Attempt)):
                batch = list(part)
                if new:
                    self._pass(self._now + SETTLED)  # what the attempt before ended with, before it is forgotten
                self._feed(batch)
            self._tick(max(self._now, second + 1.0))
        if events:
            self._pass(self._now + SETTLED)
            self._say(self._core.finish(self._now + 1.0))
        return self._outputs

    def _feed(self, batch: Sequence[Event]) -> None:
        self._say(self._core.feed(batch))
        if any(self._is_news(event) for event in batch):
            self._news = max(self._now, batch[-1].t)

    def _is_news(self, event: Event) -> bool:
        return not isinstance(event, Activity | Joined) and not (isinstance(event, Hit) and event.signal in self._quiet)

    def _pass(self, until: float) -> None:
        """The seconds up to a time, as long as something may still settle."""
        while self._now + 1.0 <= min(until, self._news + SETTLED):
            self._tick(self._now + 1.0)

    def _tick(self, t: float) -> None:
        self._now = t
        self._say(self._core.feed([Tick(t)]))

    def _say(self, outputs: Iterable[Output]) -> None:
        self._outputs += [output for output in outputs if not isinstance(output, Want)]
