"""Facts about the loops of ranks: who has left its loop while the others are in theirs; that none goes on."""

from denpexd.core import cadence, machine, operations
from denpexd.core.events import UNKNOWN_RANK
from denpexd.core.evidence import beginning
from denpexd.core.rank import RankState
from denpexd.core.rule import Signal
from denpexd.core.state import Answer, JobState, observed

GUARD = "phase.guard_ran_out"
SECONDED = 120.0  # seconds of silence that are enough beside a second witness
IN_FLIGHT = 2.0
TOGETHER = 2.0  # times as long an evaluation may be in which nobody waits for anybody
COMPUTES = ("train", "eval")  # phases in which some rank computes; elsewhere ranks may wait for disks and networks
AFTER_LOOP = ("end", "epoch_end", "eval", "checkpoint")


def fewer_steps(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """Has left its loop while another rank's loop is not over."""
    if not _may_have_left(job, rank):
        return []
    alike = job.once("alike in loops", lambda: _alike(job))
    mine = _loop(rank)
    others = [
        ranks[0] if ranks[0] is not rank else ranks[1] for key, ranks in alike.items() if key != mine or ranks[1:]
    ]
    text = _shorter_loop(rank, others)
    if text is not None:
        return [observed(rank, now, text, signal.means, kind="log")]
    if rank.step is None or rank.phase not in AFTER_LOOP or not rank.phase_evidence or _saves_midway(rank):
        return []
    early = [s for s in others if s.phase not in AFTER_LOOP and not any(e.event.code == 0 for e in s.exits)]
    ahead = [s for s in early if s.epoch == rank.epoch and s.step is not None and s.step > rank.step]
    over = rank.phase in ("end", "epoch_end") and not (rank.total is not None and rank.step + 1 >= rank.total)
    return [rank.phase_evidence.saying(signal.means)] if early and (ahead or over) else []


def _loop(rank: RankState) -> tuple[object, ...]:
    """All that is compared of a rank's loop with those of others."""
    over = rank.phase in AFTER_LOOP, any(e.event.code == 0 for e in rank.exits)
    return rank.step, rank.total, rank.batches, rank.epoch, *over


def _alike(job: JobState) -> dict[tuple[object, ...], list[RankState]]:
    """At most two ranks of each kind of loop: thousands that train together are of very few."""
    found: dict[tuple[object, ...], list[RankState]] = {}
    for number, state in job.ranks.items():
        if number >= 0 and state.step is not None and state.moves > 1 and len(found.setdefault(_loop(state), [])) < 2:
            found[_loop(state)].append(state)
    return found


def _may_have_left(job: JobState, rank: RankState) -> bool:
    """Whether to compare it with all others, which for a thousand ranks is a million comparisons."""
    longest = job.once("longest loop", lambda: max((s.total or 0 for r, s in job.ranks.items() if r >= 0), default=0))
    shorter = rank.total is not None and rank.total < longest
    return shorter or rank.batches is not None or bool(rank.exits) or rank.phase in AFTER_LOOP


def _saves_midway(rank: RankState) -> bool:
    """It writes a checkpoint far from the end of its loop: it has not left it."""
    return rank.phase == "checkpoint" and rank.total is not None and (rank.step or 0) + 1 < rank.total * 0.9


def _shorter_loop(rank: RankState, others: list[RankState]) -> str | None:
    """What shows that this rank's loop is shorter than that of another one and has been left; None if nothing does."""
    if rank.batches is not None:
        longer = [n for s in others for n in (s.batches, (s.step or 0) + 1) if n is not None and n > rank.batches]
        if longer:
            return f"has {rank.batches} batches, others have {max(longer)}"
        near = [s.total or 0 for s in others if (s.step or 0) + 1 >= rank.batches * 0.9]
        if any(rank.batches < n <= rank.batches / 0.9 for n in near):  # a much longer one is counted over epochs
            return f"has {rank.batches} batches, the loop of others is longer"
    if rank.step is None:
        return None
    ahead = max((s.step for s in others if s.step is not None and s.epoch == rank.epoch), default=-1)
    if rank.total is not None:
        longer = [s.total for s in others if s.total is not None and s.total > rank.total]
        if longer and (rank.step + 1 >= rank.total * 0.98 or ahead > rank.step):
            return f"its loop has {rank.total} steps, that of others {max(longer)}"
    if ahead > rank.step and any(e.event.code == 0 for e in rank.exits):
        return f"ended with exit code 0 after step {rank.step}, others were at step {ahead}"
    return None


def stalled(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    text = standstill(job, signal, now, limits)
    return [] if text is None else [observed(rank, now, text, signal.means)]


def standstill(job: JobState, signal: Signal, now: float, limits: cadence.Limits) -> str | None:
    """What `stalled` says of each of the job's ranks; None if the job moves, or may be silent for now."""
    beyond = bool(signal.params.get("budget"))
    return job.once(("stalled", beyond), lambda: _standstill(job, now, limits, beyond=beyond))


def trained(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """The job had made training steps in this attempt; holds for each of its ranks."""
    if job.trained_t == float("-inf"):
        return []
    return [observed(rank, job.trained_t, "the job had made training steps", signal.means)]


def _standstill(job: JobState, now: float, limits: cadence.Limits, *, beyond: bool) -> str | None:
    """What to say about a job that has not moved for long (`beyond`: beyond the budget); None if it has."""
    silence = job.silence(now) if _may_stand(job, now) else 0.0
    limit, seconded = cadence.page(limits, job.usual), ""
    if beyond:
        silence = 0.0 if job.ended else min(silence, job.quiet(now))
        patience = max(limit, SECONDED, 2 * _rhythm(job).longest)
        limit, _ = _budget(job, limits)
        if patience <= silence < limit and (seconded := _seconded(job, now)):
            limit = patience
    if silence < limit:
        return None
    usual = job.usual
    rhythm_text = f" (usual: every {usual:.3g} s)" if usual is not None else " (no rhythm learned yet)"
    return f"no progress of any rank for {silence:.0f} s{rhythm_text}{seconded}"


def due(job: JobState, now: float, limits: cadence.Limits) -> tuple[float, str] | None:
    """When silence alone will be told, if it lasts until then, and by which budget; None where the job may be silent
    for ever, or it was due already.
    """
    if job.ended or not _may_stand(job, now):
        return None
    limit, why = _budget(job, limits)
    left = limit - min(job.silence(now), job.quiet(now))
    return (now + left, why) if left > 0 else None


def _may_stand(job: JobState, now: float) -> bool:
    """Not the logs of a job long dead, nor one that is over or was told to stop."""
    watched = job.recent or any(s.pid for s in job.ranks.values())
    return watched and not job.over and not operations.asked_before(job, now)


def _rhythm(job: JobState) -> cadence.Rhythm:
    return source.rhythm if (source := job.busiest) else cadence.Rhythm()


def _budget(job: JobState, limits: cadence.Limits) -> tuple[float, str]:
    """Silence after which nothing else need be known, and what it comes from."""
    seconds, why = cadence.budget_and_why(limits, job.last_phase, _rhythm(job))
    return (TOGETHER * seconds, f"{TOGETHER:g} times {why}") if _evaluates_together(job) else (seconds, why)


def _evaluates_together(job: JobState) -> bool:
    """All ranks, and each said so itself, or one stream for all: then nobody waits for one that does something else."""
    voices = job.voices
    ranks = [job.ranks.get(r) for r in voices]
    return (len(ranks) > 1 or voices == [UNKNOWN_RANK]) and all(s is not None and s.phase == "eval" for s in ranks)


def _seconded(job: JobState, now: float) -> str:
    """What a second witness says of a silence, so that it need not last as long as the budget; "" if none does."""
    if job.moves < cadence.LEARN_FROM or job.moved_t is None:
        return ""
    for state in job.ranks.values():
        seen = state.seen.get(GUARD)
        if seen is not None and not seen.first.history:
            armed = seen.first.t - _seconds(seen.fields.get("guard", ""))
            if job.moved_t <= armed + IN_FLIGHT:
                return f"; its own timer against hangs ran out: {beginning(seen.first.text, 80)}"
    states = [job.ranks.get(r) for r in job.universe]
    if job.last_phase in COMPUTES and states and all(s and machine.is_idle(job, s, now) for s in states):
        return "; no process of any rank uses CPU time"
    return ""


def _seconds(text: str) -> float:
    """`0:05:00` as seconds; what is no such time is no time ago."""
    parts = text.split(":")
    if len(parts) != 3:
        return 0.0
    return sum(float(part) * unit for part, unit in zip(parts, (3600, 60, 1), strict=True))
