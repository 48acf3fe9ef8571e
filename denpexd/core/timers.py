"""Times of all ranks that one rank collects and prints: Megatron's timers, reports of straggler detectors.

Captures of any log signal: `timer` (what is timed; it holds for the lines that follow), `timed` with `value` and `unit`
(that rank's time), `least` and `most` (the shortest and the longest time of any rank) and `most_rank` (whose it is).
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from statistics import median
from typing import TYPE_CHECKING

from denpexd.core.evidence import Evidence
from denpexd.core.numbers import MAX_RANKS, Place, Reading, Series, counter, normal, value_of

if TYPE_CHECKING:
    from denpexd.core.state import JobState

FOLLOWS = 2.0  # seconds after which a line belongs to no heading any more
MAX_TIMERS = 32
REPORTS = 3  # in a row
BEFORE = 5  # reports that make a usual spread
LEAST = 1.3  # the smallest factor anybody asks for


@dataclass(slots=True)
class Extremes:
    """The shortest and the longest time of one timer over all ranks, report after report."""

    ratios: deque[float] = field(default_factory=lambda: deque(maxlen=REPORTS))
    usual: deque[float] = field(default_factory=lambda: deque(maxlen=64))  # before those
    least: deque[float] = field(default_factory=lambda: deque(maxlen=REPORTS))
    rank: int | None = None  # the last ones named the same
    series: Series = field(default_factory=Series)  # of its times
    teller: int = -1
    wide_since: float | None = None

    def note(self, least: float, most: Reading, rank: int | None, evidence: Evidence) -> None:
        if rank != self.rank:
            self.rank, self.series = rank, Series()
        if len(self.ratios) == REPORTS and not self.wide(LEAST):
            self.usual.append(self.ratios[0])
        self.ratios.append(most.value / least)
        self.least.append(least)
        self.series.add(most, evidence if rank is None else replace(evidence, rank=rank))
        self.teller = evidence.rank
        first = list(self.series.newest)[-REPORTS:][0].t
        self.wide_since = (self.wide_since or first) if self.wide(LEAST) else None

    def wide(self, factor: float) -> bool:
        """Whether the longest time was well above the shortest in each of the last reports, and by more than usual."""
        if len(self.ratios) < REPORTS or len(self.usual) < BEFORE:
            return False
        return min(self.ratios) >= factor * max(1.0, median(self.usual))

    @property
    def excess(self) -> float:
        """Seconds that the longest time has been above the shortest at least."""
        newest = list(self.series.newest)[-len(self.least) :]
        return min((r.value - low for r, low in zip(newest, self.least, strict=False)), default=0.0)


@dataclass(slots=True)
class Timers:
    """What has been reported so far."""

    headings: dict[str, tuple[str, float]] = field(default_factory=dict)  # by source: the timer, and when
    extremes: dict[str, Extremes] = field(default_factory=dict)

    def read(self, job: "JobState", fields: Mapping[str, str], evidence: Evidence, place: Place) -> None:
        """Any line with such captures."""
        name, source = fields.get("timer"), evidence.source
        if fields.get("most"):
            self._extremes(job, normal(name or ""), fields, evidence, place)
        elif fields.get("timed"):
            known = self.headings.get(source)
            if known is not None and evidence.t <= known[1] + FOLLOWS:
                self.headings[source] = known[0], evidence.t
                _own(job, known[0], fields, evidence, place)
        elif name and (source in self.headings or len(self.headings) < MAX_TIMERS):
            self.headings[source] = normal(name), evidence.t

    def _extremes(
        self, job: "JobState", name: str, fields: Mapping[str, str], evidence: Evidence, place: Place
    ) -> None:
        least, most = (value_of({"value": fields[key], "unit": "ms"}) for key in ("least", "most"))
        if not least or most is None or (name not in self.extremes and len(self.extremes) >= MAX_TIMERS):
            return
        extremes, rank = self.extremes.setdefault(name, Extremes()), counter(fields.get("most_rank"))
        extremes.note(least, Reading(evidence.t, place, most), rank, evidence)
        if rank is not None:
            _read(job, "longest", name, rank, Reading(evidence.t, place, most), evidence)
        job.numbers_seq = job.seq


def _own(job: "JobState", timer: str, fields: Mapping[str, str], evidence: Evidence, place: Place) -> None:
    """A time of a rank that another one prints counts as if it had printed it itself."""
    rank = counter(fields["timed"])
    seconds = value_of({"value": fields.get("value", ""), "unit": fields.get("unit") or "ms"})
    if rank is not None and seconds is not None and _is_own(timer):
        _read(job, "own_time", timer, rank, Reading(evidence.t, place, seconds), evidence)
        job.numbers_seq = job.seq


def _read(job: "JobState", quantity: str, timer: str, rank: int, reading: Reading, evidence: Evidence) -> None:
    if rank < MAX_RANKS:
        job.rank(rank).numbers.read(quantity, timer, reading, replace(evidence, rank=rank))


def _is_own(timer: str) -> bool:
    """Who waits for the others in it is not slow."""
    return not any(word in timer for word in ("recv", "send", "reduce", "gather", "sync", "interval", "barrier"))
