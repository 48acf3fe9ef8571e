"""How fast each job went lately: seconds a step and lines a second, every ten seconds for an hour. Memory only."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from denpexd.clock import Clock
from denpexd.pipeline import Pipeline
from denpexd.watched import Job
from denpexd.web.view import Pace

EVERY = 10.0  # seconds
POINTS = 360
MOST_JOBS = 64  # about 3 MB


@dataclass(slots=True)
class _Track:
    """Where a job stood when it was looked at last, and the points so far."""

    t: float
    lines: int
    step: int | None
    step_t: float
    points: deque[Pace] = field(default_factory=lambda: deque(maxlen=POINTS))


class Series:
    """The last POINTS points of at most MOST_JOBS jobs; the ones that were heard last are kept."""

    def __init__(self, pipeline: Pipeline, clock: Clock) -> None:
        self._pipeline, self._clock = pipeline, clock
        self._tracks: dict[str, _Track] = {}

    def of(self, job: str) -> Sequence[Pace]:
        track = self._tracks.get(job)
        return [] if track is None else list(track.points)

    async def keep(self) -> None:
        """Look every ten seconds."""
        while True:
            await self._clock.sleep(EVERY)
            self.look(self._clock.now())

    def look(self, now: float) -> None:
        """One point for each job."""
        jobs = self._pipeline.jobs
        latest = sorted(jobs.values(), key=lambda job: -job.heard)[:MOST_JOBS]
        self._tracks = {job.name: self._look(job, now) for job in latest}

    def _look(self, job: Job, now: float) -> _Track:
        state = job.core.job
        leader = state.busiest
        step = None if leader is None else leader.step
        track = self._tracks.get(job.name)
        if track is None or now <= track.t:
            return _Track(now, job.lines, step, now if leader is None else leader.moved_t)
        seconds = None
        if step is not None and leader is not None and step != track.step:
            # Progress lines come in tens and hundreds of steps: time between two of them, not between two looks.
            if track.step is not None and step > track.step and leader.moved_t > track.step_t:
                seconds = (leader.moved_t - track.step_t) / (step - track.step)
            track.step, track.step_t = step, leader.moved_t
        track.points.append(Pace(now, seconds, max(0, job.lines - track.lines) / (now - track.t)))
        track.t, track.lines = now, job.lines
        return track
