"""What the daemon shows of itself: the View that the web side asks, made from the pipeline and the counters."""

from collections.abc import Callable, Mapping, Sequence

from denpexd.catalog.packs import Packs
from denpexd.core.cadence import Limits, suspicion
from denpexd.core.state import JobState, RankState
from denpexd.core.state import RankState as CoreRank
from denpexd.pipeline import Pipeline
from denpexd.web.view import JobView, PackView, RankView, Stats
from denpexd.web.view import RankState as Shown

Verdict = Mapping[str, object]


class DaemonView:
    """Implements web.view.View; `counters` gives the numbers that only the daemon knows."""

    def __init__(
        self,
        pipeline: Pipeline,
        incidents: Callable[[str | None, int], Sequence[Verdict]],
        incident: Callable[[str], Verdict | None],
        stats: Callable[[], Stats],
        now: Callable[[], float],
        health: Callable[[], tuple[bool, str]],
        readiness: Callable[[], tuple[bool, str]],
        packs: Callable[[], Packs],
    ) -> None:
        self._pipeline, self._incidents, self._incident = pipeline, incidents, incident
        self._stats, self._now, self._health, self._readiness = stats, now, health, readiness
        self._packs = packs

    def incidents(self, state: str | None, limit: int) -> Sequence[Verdict]:
        return self._incidents(state, limit)

    def incident(self, key: str) -> Verdict | None:
        return self._incident(key)

    def jobs(self) -> Sequence[JobView]:
        return [job_view(job.core.job, self._now(), job.core.verdicts()) for job in self._pipeline.jobs.values()]

    def packs(self) -> Sequence[PackView]:
        return [
            PackView(
                name=state.pack.name,
                kind=state.pack.kind,
                folder=str(state.pack.folder),
                origin=state.pack.origin,
                rules=state.rules,
                signals=state.signals,
                errors=[str(error) for error in state.errors],
            )
            for state in self._packs().states
        ]

    def stats(self) -> Stats:
        return self._stats()

    def ready(self) -> tuple[bool, str]:
        return self._readiness()

    def healthy(self) -> tuple[bool, str]:
        return self._health()

    def wall(self, t: float) -> float:
        return t


def job_view(job: JobState, now: float, verdicts: Sequence[Verdict]) -> JobView:
    """One job as the console shows it."""
    failed = {r for v in verdicts for r in _ranks(v, "initiating_ranks")}
    waiting = {r for v in verdicts for r in _ranks(v, "collateral_ranks")}
    ranks = [_rank_view(job.ranks.get(r), r, now, failed, waiting, job) for r in job.universe]
    over = bool(ranks) and all(r.state in ("done", "gone", "unheard") for r in ranks)
    stall = 0.0 if over or job.moved_t is None else max(0.0, job.silence(now) - 2 * (job.usual or 0.0))
    return JobView(
        job=job.job,
        attempt=job.attempt,
        step=max((s.step for s in job.ranks.values() if s.step is not None), default=None),
        step_seconds=_step_seconds(job),
        stall_seconds=stall,
        phase=job.last_phase if job.busiest is None else job.busiest.phase,
        world_size=job.world_size,
        ranks=ranks,
    )


def _rank_view(
    state: RankState | None, rank: int, now: float, failed: set[int], waiting: set[int], job: JobState
) -> RankView:
    if state is None or not state.heard:
        return RankView(rank, "unheard")
    silent = now - state.last_t if state.printed else None
    shown: Shown = "running"
    if rank in failed:
        shown = "failed"
    elif rank in waiting:
        shown = "waiting"
    elif state.phase == "end":
        shown = "done"
    elif state.gone:
        shown = "gone"
    elif job.silence(now) >= suspicion(Limits(), job.usual):
        shown = "silent"
    return RankView(rank, shown, state.step, state.phase, silent, state.node, state.pid)


def _step_seconds(job: JobState) -> float | None:
    """Usual seconds a step: the gap between two progress lines, divided by the steps between them."""
    busiest: CoreRank | None = job.busiest
    return busiest.rhythm.step_seconds if busiest else None


def _ranks(verdict: Verdict, name: str) -> list[int]:
    found = verdict.get(name)
    return [int(r) for r in found] if isinstance(found, list | tuple) else []
