"""How fast the job runs, and which rank runs slower than the others."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING

from denpexd.core.numbers import Series

if TYPE_CHECKING:
    from denpexd.core.state import JobState

BUCKET = 1.0  # seconds of one entry of the recent past
RECENT = 1024  # such entries
PAST = 128  # entries of what lies before, each as long as needed
BEFORE = 5  # entries that make a former pace
REPORTS = 3  # in a row: once may be chance
MATERIAL = 0.2  # share of a step that a difference must have
OWN = ("own_time", "step_time", "rate")
SCATTER = 4  # times the usual distance between reports
MANY = 16  # ranks
LOOK = 1.3  # the smallest factor anybody asks for


@dataclass(slots=True)
class Span:
    """Some seconds of training and the steps made in them."""

    end: float
    seconds: float
    steps: float
    work: float = 0.0  # the steps, each by the size that was printed with it

    @property
    def pace(self) -> float:
        return self.seconds / self.steps

    @property
    def effort(self) -> float:
        """Seconds for the same amount of work."""
        return self.seconds / (self.work or self.steps)

    def __add__(self, later: "Span") -> "Span":
        return Span(later.end, self.seconds + later.seconds, self.steps + later.steps, self.work + later.work)


@dataclass(slots=True)
class Tempo:
    """Seconds of a step over the whole run, as one rank that counts its steps shows it."""

    rank: int | None = None
    last_t: float = float("-inf")
    recent: deque[Span] = field(default_factory=deque)
    past: list[Span] = field(default_factory=list)
    open: Span | None = None

    def note(self, rank: int, t: float, gap: float, steps: int, size: float = 1.0) -> None:
        """`steps` steps of training, each `size` times as large as the first, took `gap` seconds until `t`."""
        if rank != self.rank:
            if self.rank is not None and t - self.last_t < 60.0 + 10 * (self.pace or 0.0):
                return  # another rank is the witness
            self.rank = rank
        self.last_t = t
        span = (self.open or Span(t, 0.0, 0.0)) + Span(t, gap, steps, steps * size)
        self.open = span
        if span.seconds >= BUCKET:
            self.open = None
            self._keep(span)

    def _keep(self, span: Span) -> None:
        self.recent.append(span)
        if len(self.recent) > RECENT:
            self.past.append(self.recent.popleft())
        if len(self.past) > PAST:
            pairs = zip(self.past[::2], self.past[1::2], strict=False)
            self.past = [a + b for a, b in pairs]

    @property
    def pace(self) -> float | None:
        """Seconds of a step lately."""
        spans = list(self.recent)[-REPORTS:]
        return median(s.pace for s in spans) if spans else None

    def slower(self, factor: float, lasting: float) -> tuple[float, float] | None:
        """(usual, now) seconds of a step if steps have taken `factor` times as long for `lasting` seconds.

        Longer sequences or larger batches make longer steps: the same work must take longer too.
        """
        if len(self.recent) <= REPORTS:
            return None
        # Who reports seldom has few entries in that time: as many as prove something are always looked at.
        since = min(self.recent[-1].end - lasting, self.recent[-1 - REPORTS].end)
        now = [s for s in self.recent if s.end > since]
        before = [*self.past, *(s for s in self.recent if s.end <= since)]
        if len(now) < REPORTS or len(before) < BEFORE or sum(s.seconds for s in now) < 0.5 * lasting:
            return None
        usual = _middle(before)
        if sorted(s.pace for s in now)[len(now) // 4] < factor * usual:
            return None
        if sorted(s.effort for s in now)[len(now) // 4] < factor * _middle(before, lambda s: s.effort):
            return None
        return usual, _middle(now)


def _middle(spans: Sequence[Span], pace: Callable[[Span], float] = lambda s: s.pace) -> float:
    """The pace at which half of the time passed."""
    half, passed = sum(s.seconds for s in spans) / 2, 0.0
    ordered = sorted(spans, key=pace)
    for span in ordered:
        passed += span.seconds
        if passed >= half:
            return pace(span)
    return pace(ordered[-1])


Slow = dict[int, tuple[float, str, Series | None]]
"""By rank: how many times as long as the others it takes, in words, and the numbers that show it."""


@dataclass(slots=True)
class SlowRanks:
    """Ranks slower than the others, as they were worked out last. `since`: by rank, without a break."""

    known: tuple[int, float, Slow] | None = None
    since: dict[int, float] = field(default_factory=dict)

    def ask(self, job: "JobState", now: float) -> Slow:
        """Worked out once a second at most, and once for the same numbers."""
        known = self.known
        if known is None or (known[0] != job.numbers_seq and now >= known[1] + 1.0):
            known = self.known = job.numbers_seq, now, slow_ranks(job)
            self.since = {r: self.since.get(r, _slow_from(job, r, series)) for r, (_, _, series) in known[2].items()}
        return known[2]


def _slow_from(job: "JobState", rank: int, series: Series | None) -> float:
    """When the first of the reports was made that show a rank to be slow; else its last step."""
    return list(series.newest)[-REPORTS:][0].t if series else job.ranks[rank].moved_t


def slow_ranks(job: "JobState") -> Slow:
    """Ranks whose own time has been well above that of the others in each of their last reports."""
    kinds: dict[tuple[str, str], dict[int, Series]] = {}
    for number, state in job.ranks.items():
        if number >= 0:
            for key, series in state.numbers.series.items():
                if key[0] in (*OWN, "wait_time") and len(series.newest) >= REPORTS:
                    kinds.setdefault(key, {})[number] = series
    found: Slow = {}
    for (quantity, name), all_ranks in kinds.items():
        newest = max(s.newest[-1].t for s in all_ranks.values())
        ranks = {r: s for r, s in all_ranks.items() if s.newest[-1].t >= newest - max(30.0, 3 * (job.usual or 0.0))}
        if len(ranks) < 2:
            continue
        judge = _by_wait if quantity == "wait_time" else _by_own
        for rank, (times, text) in judge(job, quantity, name, ranks).items():
            if rank not in found or found[rank][0] < times:
                found[rank] = times, text, ranks[rank]
    others = {**_lagging(job), **_named_slowest(job)}
    return found | {rank: known for rank, known in others.items() if rank not in found}


def _named_slowest(job: "JobState") -> Slow:
    """The rank that reports of shortest and longest times have named as the slowest each time."""
    found: Slow = {}
    for name, extremes in job.timers.extremes.items():
        if extremes.rank is None or len(extremes.series.newest) < REPORTS:
            continue
        times, step = min(extremes.ratios), seconds_of_step(job) or extremes.series.newest[-1].value
        if times >= LOOK and extremes.excess >= MATERIAL * step:
            text = f"{name}: the longest in the last {REPORTS} reports, {times:.3g} times the shortest or more"
            found[extremes.rank] = times, text, extremes.series
    return found


def _last(series: Series, quantity: str) -> list[float]:
    values = [r.value for r in list(series.newest)[-REPORTS:]]
    return [1 / v if v > 0 else float("inf") for v in values] if quantity == "rate" else values


def _scatter(ranks: dict[int, Series], quantity: str, rank: int) -> float:
    """How far the last reports of the others lie apart: a rank that stands out stands out of that."""
    pool = [v for r, s in ranks.items() if r != rank for v in _last(s, quantity)]
    middle = median(pool)
    return median(abs(v - middle) for v in pool)


def _middles(values: dict[int, float]) -> dict[int, float]:
    """For each rank the middle of the other ranks; of many ranks one does not move it."""
    if len(values) > MANY:
        return dict.fromkeys(values, median(values.values()))
    return {rank: median(v for r, v in values.items() if r != rank) for rank in values}


def _by_own(job: "JobState", quantity: str, name: str, ranks: dict[int, Series]) -> dict[int, tuple[float, str]]:
    typical = {r: median(_last(s, quantity)) for r, s in ranks.items()}
    step, middles = seconds_of_step(job), _middles(typical)
    found = {}
    for rank, series in ranks.items():
        least, others = min(_last(series, quantity)), middles[rank]
        if others <= 0 or least < LOOK * others or least < others + SCATTER * _scatter(ranks, quantity, rank):
            continue
        if quantity == "own_time" and (step is None or least - others < MATERIAL * step):
            continue
        unit = "s a sample" if quantity == "rate" else "s"
        text = f"{name}: {least:.3g} {unit} or more in its last {REPORTS} reports, the others {others:.3g} {unit}"
        found[rank] = least / others, text
    return found


def _by_wait(job: "JobState", quantity: str, name: str, ranks: dict[int, Series]) -> dict[int, tuple[float, str]]:
    """Everybody waits for the slow rank, which does not wait: what is left of a step is its own time."""
    step = seconds_of_step(job)
    typical = {r: median(_last(s, quantity)) for r, s in ranks.items()}
    if step is None or max(typical.values()) > 1.1 * step:
        return {}
    found, middles = {}, _middles(typical)
    for rank, series in ranks.items():
        most, others = max(_last(series, quantity)), middles[rank]
        own, of_others = step - most, max(step - others, 0.02 * step)
        if others - most < MATERIAL * step or own < LOOK * of_others:
            continue
        if others - most >= SCATTER * _scatter(ranks, quantity, rank):
            text = f"{name}: {most:.3g} s at most in its last {REPORTS} reports, while the others wait {others:.3g} s"
            found[rank] = own / of_others, text + f" of a step of {step:.3g} s"
    return found


def seconds_of_step(job: "JobState") -> float | None:
    """Seconds of one step of the job lately: as printed, else by the pace of its counters."""
    printed = [
        series.newest[-1].value
        for state in job.ranks.values()
        for (quantity, _), series in state.numbers.series.items()
        if quantity == "step_time" and series.newest
    ]
    return median(printed) if printed else job.tempo.pace


def _lagging(job: "JobState") -> Slow:
    """Ranks that need longer for a step and fall behind: where ranks do not wait for each other."""
    counted = {r: s for r, s in job.ranks.items() if r >= 0 and s.step is not None and len(s.rhythm.steps) >= 10}
    steps = {r: s.step or 0 for r, s in counted.items()}
    if len(steps) < 2 or max(steps.values()) - min(steps.values()) < 5:
        return {}
    paces = {r: p for r, s in counted.items() if (p := s.rhythm.step_seconds)}
    if len(paces) < 2:
        return {}
    found: Slow = {}
    usuals, places = _middles(paces), _middles({r: float(steps[r]) for r in paces})
    for rank, own in paces.items():
        usual, place = usuals[rank], places[rank]
        if usual > 0 and own >= LOOK * usual and place - steps[rank] >= 5:
            text = (
                f"takes {own:.3g} s for a step, the others {usual:.3g} s, and is {place - steps[rank]:.0f} steps behind"
            )
            found[rank] = own / usual, text, None
    return found
