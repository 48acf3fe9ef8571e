"""What a daemon shows of itself: the View that the web side asks."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from denpexd.core.cadence import Limits, suspicion
from denpexd.core.loops import due
from denpexd.core.rank import RankState
from denpexd.core.state import JobState
from denpexd.daemon import Daemon
from denpexd.notify.redact import redact_name
from denpexd.series import Series
from denpexd.web.view import Decided, JobView, Pace, PackView, RankView, Stats, Told
from denpexd.web.view import RankState as Shown

Verdict = Mapping[str, object]


class DaemonView:
    """Implements web.view.View for a daemon. `series`: how its jobs went lately."""

    def __init__(self, daemon: Daemon, series: Series | None = None) -> None:
        self._daemon, self._series = daemon, series or Series(daemon.pipeline, daemon.clock)

    def incidents(self, state: str | None, limit: int) -> Sequence[Verdict]:
        return [v for v in reversed(self._daemon.ledger.incidents.values()) if state in (None, v["state"])][:limit]

    def incident(self, key: str) -> Verdict | None:
        return self._daemon.ledger.incidents.get(key)

    def told(self, key: str) -> Sequence[Told]:
        return [Told(*row) for row in self._daemon.store.told(key)]

    def decisions(self, key: str) -> Sequence[Decided]:
        sql = "SELECT t, sink, action, reason, detail, event, revision FROM decisions WHERE key = ? ORDER BY id"
        return [Decided(*row) for row in self._daemon.store.rows(sql, (key,))]

    def jobs(self) -> Sequence[JobView]:
        return [view for name in list(self._daemon.pipeline.jobs) if (view := self.job(name)) is not None]

    def job(self, name: str) -> JobView | None:
        """Made from a copy, since the loop goes on feeding: what one rank just said may be missing, no more."""
        known = self._daemon.pipeline.jobs.get(name)
        if known is None:
            return None
        job = known.core.job
        frozen = replace(job, ranks=dict(job.ranks), memo={})
        verdicts = list(self._daemon.ledger.incidents.values())
        mine = [v for v in verdicts if v["job"] == name and v["state"] == "open"]
        return job_view(frozen, self._daemon.clock.now(), mine, known.core.limits)

    def pace(self, job: str) -> Sequence[Pace]:
        return self._series.of(job)

    async def recorded(self, job: str) -> bytes | None:
        keeper = self._daemon.keeper
        return None if keeper is None else await keeper.recorded(job)

    def packs(self) -> Sequence[PackView]:
        return [
            PackView(
                name=state.pack.name,
                kind=state.pack.kind,
                folder=redact_name(str(state.pack.folder)),
                origin=state.pack.origin,
                rules=state.rules,
                signals=state.signals,
                errors=[redact_name(str(error)) for error in state.errors],
            )
            for state in self._daemon.rules.packs.states
        ]

    def ready(self) -> tuple[bool, str]:
        return self._daemon.ready()

    def healthy(self) -> tuple[bool, str]:
        return self._daemon.healthy()

    def stats(self) -> Stats:
        """All counters, copied."""
        daemon = self._daemon
        now, packs, states = daemon.clock.wall(), daemon.rules.packs.states, daemon.reader.states
        return replace(
            self._of_jobs(),
            file_lag_bytes=daemon.reader.lag,
            files=states,
            read_errors=dict(daemon.reader.errors),
            bytes_lost=daemon.reader.lost,
            truncations=daemon.reader.events["truncated"],
            rotations=daemon.reader.events["rotated"] + daemon.reader.events["replaced"],
            watch_overflows=daemon.reader.overflows,
            outbox_pending=daemon.store.pending(),
            outbox_oldest_seconds=daemon.store.oldest_age(now),
            notifications=dict(daemon.deliverer.counters),
            task_restarts=dict(daemon.supervisor.restarts),
            state_write_errors=daemon.store.counters["state_write_errors"],
            state_recoveries=int(daemon.store.recovered is not None),
            silences=sum(one.state(now) == "active" for one in daemon.ledger.book.silences.values()),
            fixes=daemon.ledger.history.counts,
            loop_lag_seconds=daemon.lag,
            redactions=daemon.store.counters["redactions"],
            evidence_seconds=dict(daemon.collector.seconds),
            evidence_pause_seconds=daemon.collector.pause,
            evidence_outcomes=dict(daemon.collector.counts),
            bundles={} if daemon.keeper is None else daemon.keeper.counts,
            bundle_bytes=0 if daemon.keeper is None else daemon.keeper.shelf.bytes,
            kept=self._kept(),
            forgotten=self._forgotten(),
            # every file there was is unreadable
            blind=states["reading"] == 0 and states["unreadable"] > 0,
            config_reload_ok=daemon.rules.ok,
            config_reloads=dict(daemon.rules.counts),
            config_taken_at=daemon.rules.taken_at,
            rules={state.pack.name: state.rules for state in packs},
            rule_errors={state.pack.name: len(state.errors) for state in packs},
            hub=daemon.counts(),
        )

    def _of_jobs(self) -> Stats:
        """What the pipeline counts."""
        pipeline = self._daemon.pipeline
        jobs, open_now = pipeline.jobs.values(), pipeline.open_labels
        return Stats(
            engine=pipeline.scanner.engine_name,
            lines=pipeline.lines,
            bytes=pipeline.bytes,
            lines_repeated=pipeline.repeated,
            lines_truncated=pipeline.truncated,
            suspected_hangs=pipeline.suspected,
            detect_seconds=pipeline.toll.detected,
            idle_gpu_seconds=dict(pipeline.toll.idle),
            incidents=dict(pipeline.settled + open_now),
            incidents_open=dict(open_now),
            fingerprint_hits={(job.name, rule): n for job in jobs for rule, n in job.core.fingerprints.items()},
            tape_bytes=sum(job.tape.bytes for job in jobs if job.tape is not None),
        )

    def _kept(self) -> dict[str, int]:
        daemon = self._daemon
        jobs = daemon.pipeline.jobs.values()
        return {
            "job": len(jobs),
            "rank": sum(len(job.core.job.ranks) for job in jobs),
            "stream": sum(len(job.streams) for job in jobs),
            "label": len(daemon.pipeline.settled),
            "incident": len(daemon.ledger.incidents),
            "held": daemon.ledger.held,
            **daemon.reader.kept,
            **daemon.ledger.book.kept,
            **daemon.ledger.history.kept,
            **daemon.store.kept,
        }

    def _forgotten(self) -> dict[str, int]:
        daemon = self._daemon
        counted = daemon.store.counters
        return {
            **dict.fromkeys(("file", "position", "job", "label"), 0),
            **daemon.reader.forgotten,
            **daemon.pipeline.forgotten,
            "rank": daemon.pipeline.unmet,
            "journal": daemon.ledger.forgotten,
            "message": counted["outbox_dropped"],
            "unsaved": counted["unsaved_dropped"],
        }


def job_view(job: JobState, now: float, verdicts: Sequence[Verdict], limits: Limits) -> JobView:
    """One job as the console shows it."""
    failed = {r for v in verdicts for r in _ranks(v, "initiating_ranks")}
    waiting = {r for v in verdicts for r in _ranks(v, "collateral_ranks")}
    quiet = job.silence(now) >= suspicion(limits, job.usual)  # asked once: it looks at every rank
    ranks = [_rank_view(job.ranks.get(r), r, now, failed, waiting, quiet) for r in job.universe]
    over = bool(ranks) and all(r.state in ("done", "gone", "unheard") for r in ranks)
    stall = 0.0 if over or job.moved_t is None else max(0.0, job.silence(now) - 2 * (job.usual or 0.0))
    told = any(v.get("hang") or v.get("stopped_t") is not None for v in verdicts)  # silence is of that incident
    hang_due_t, hang_due_by = (None, "") if told else due(job, now, limits) or (None, "")
    return JobView(
        job=job.job,
        attempt=job.attempt,
        step=max((s.step for s in job.ranks.values() if s.step is not None), default=None),
        step_seconds=_step_seconds(job),
        stall_seconds=stall,
        phase=job.last_phase if job.busiest is None else job.busiest.phase,
        world_size=job.world_size,
        hang_due_t=hang_due_t,
        hang_due_by=hang_due_by,
        ranks=ranks,
    )


def _rank_view(
    state: RankState | None, rank: int, now: float, failed: set[int], waiting: set[int], quiet: bool
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
    elif quiet:
        shown = "silent"
    node = redact_name(state.node) if state.node else None
    return RankView(rank, shown, state.step, state.phase, silent, node, state.pid)


def _step_seconds(job: JobState) -> float | None:
    """Usual seconds a step: the gap between two progress lines, divided by the steps between them."""
    return job.busiest.rhythm.step_seconds if job.busiest else None


def _ranks(verdict: Verdict, name: str) -> list[int]:
    found = verdict.get(name)
    return [int(r) for r in found] if isinstance(found, list | tuple) else []
