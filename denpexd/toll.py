"""What stops of training cost: how long until they were told, and how long GPUs stood still meanwhile."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from denpexd.core.events import Closed, Opened, Output
from denpexd.core.state import JobState
from denpexd.web.view import DETECT_BOUNDS

UNSEEN = 3600.0  # seconds of an incident for which a rank counts whose process nobody sees

Verdict = Mapping[str, object]


@dataclass(slots=True)
class _Stop:
    """A job that stands: its open incidents, since when, and until when its idle time has been counted."""

    since: float
    counted: float
    keys: set[str] = field(default_factory=set)


class Toll:
    """Counters since the start, `start_t`: what had stopped before is told later for reasons of its own."""

    def __init__(self, start_t: float) -> None:
        self._start_t = start_t
        self._stops: dict[str, _Stop] = {}
        self._counts: dict[str, list[int]] = defaultdict(lambda: [0] * (len(DETECT_BOUNDS) + 1))
        self._sums: dict[str, float] = defaultdict(float)
        self.idle: dict[str, float] = defaultdict(float)  # GPU-seconds by job

    @property
    def detected(self) -> dict[str, tuple[Sequence[int], float]]:
        """By category: how many were told within each of DETECT_BOUNDS and above, and the sum of their seconds."""
        return {category: (tuple(counts), self._sums[category]) for category, counts in self._counts.items()}

    def note(self, outputs: Iterable[Output]) -> None:
        """What the core has just said."""
        for output in outputs:
            if isinstance(output, Opened):
                self._opened(output.verdict)
            elif isinstance(output, Closed):
                self._closed(str(output.verdict["job"]), str(output.verdict["key"]))

    def resume(self, verdict: Verdict, now: float) -> None:
        """An incident of the daemon before this one is still open; what it had counted is not counted again."""
        if (stopped := _stopped(verdict)) is not None:
            self._begin(verdict, stopped, now)

    def tick(self, job: JobState, now: float) -> None:
        """Count the ranks that stand still."""
        stop = self._stops.get(job.job)
        if stop is None:
            return
        seconds, stop.counted = now - stop.counted, now
        unseen_too = now - stop.since <= UNSEEN
        living = sum(
            state.heard and not state.gone and state.phase != "end" and (state.pid is not None or unseen_too)
            for rank, state in job.ranks.items()
            if rank >= 0
        )
        self.idle[job.job] += living * max(0.0, seconds)

    def forget(self, job: str) -> None:
        """The job is watched no more."""
        self._stops.pop(job, None)
        self.idle.pop(job, None)

    def _opened(self, verdict: Verdict) -> None:
        stopped = _stopped(verdict)
        if stopped is None:
            return
        self._begin(verdict, stopped, max(stopped, self._start_t))
        if stopped >= self._start_t:
            category, seconds = str(verdict["category"]), max(0.0, float(str(verdict["opened_t"])) - stopped)
            self._counts[category][bisect_left(DETECT_BOUNDS, seconds)] += 1
            self._sums[category] += seconds

    def _begin(self, verdict: Verdict, stopped: float, counted: float) -> None:
        job = str(verdict["job"])
        self._stops.setdefault(job, _Stop(stopped, counted)).keys.add(str(verdict["key"]))

    def _closed(self, job: str, key: str) -> None:
        stop = self._stops.get(job)
        if stop is not None:
            stop.keys.discard(key)
            if not stop.keys:
                del self._stops[job]


def _stopped(verdict: Verdict) -> float | None:
    at = verdict.get("stopped_t")
    return float(at) if isinstance(at, int | float) else None
