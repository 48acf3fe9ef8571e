"""Facts that code derives from the state of all ranks: the table of docs/rule-format.md.

Each fact answers for ONE rank with the evidence that makes it hold, or nothing. They read state and change nothing.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import cast

from denpexd.core import cadence, collectives, flight_facts, loops, machine, measures, operations, startup, stated
from denpexd.core.evidence import Evidence
from denpexd.core.raised import raised
from denpexd.core.rank import RankState
from denpexd.core.rule import Signal
from denpexd.core.stands import busy, frame, odd_stack, still
from denpexd.core.state import Answer, JobState, Shown, observed

TOGETHER = 2.0  # seconds: two polls of the process table
LAST_WORDS = 10.0  # seconds before an end in which what a rank says may explain it
ENDED_BY = (2, 9, 15)  # signals by which a job that was told to stop may end


def exit_(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    found = []
    want = signal.params
    for known in rank.exits:
        code, by = known.event.code, "launcher" if known.event.source == "launcher" else "process"
        if known.forced or code is None or ("by" in want and want["by"] != by):
            continue
        number = -code if code < 0 else (code - 128 if code in (132, 134, 135, 136, 137, 139, 143) else None)
        if "signal" in want and number != want["signal"]:
            continue
        if "code" in want and code != want["code"]:
            continue
        if want.get("failed") and (code <= 0 or number is not None or _followed(job, rank)):
            continue
        if (want.get("failed") or number in ENDED_BY) and operations.asked_before(job, known.event.t):
            continue
        if want.get("unexplained") and _explained(job, rank, known.event.t):
            continue
        text = f"{'reported by the launcher' if by == 'launcher' else 'process ended'}: exit code {code}"
        kind = "launcher" if by == "launcher" else "process"
        found.append(Evidence(rank.rank, kind, known.event.source, 0, known.event.t, text, signal.means, seq=known.seq))
    return found


def _explained(job: JobState, rank: RankState, t: float) -> bool:
    """It said why it ended at `t`; a launcher hands on the code of a rank, so one of them did."""
    if rank.rank < 0 and any(s.raised or s.reported for s in job.ranks.values()):
        return True
    return bool(rank.raised or rank.reported) or t - rank.remark_t <= LAST_WORDS


def _followed(job: JobState, rank: RankState) -> bool:
    """It left because of somebody else's failure, or was interrupted; a launcher, if that holds for all its ranks."""
    said = rank.raised if rank.rank >= 0 else [r for s in job.ranks.values() for r in s.raised]
    return bool(said) and all(r.collateral for r in said)


def gone(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """Ended without a word while others lived on: no exception, no clean end, no exit code that says more.

    When all end together, the job was done or somebody ended it.
    """
    known = rank.gone
    if known is None or known.forced or rank.phase == "end" or rank.raised or rank.reported:
        return []
    alive, first, last = job.once("process ends", lambda: _ends(job))
    together = not alive and first >= known.event.t - TOGETHER and last <= known.event.t + TOGETHER
    if together or any(e.event.code is not None for e in rank.exits) or operations.asked_before(job, known.event.t):
        return []
    text = "process ended without a word; nobody saw how"
    return [Evidence(rank.rank, "process", known.event.source, 0, known.event.t, text, signal.means, seq=known.seq)]


def _ends(job: JobState) -> tuple[bool, float, float]:
    """Whether any rank that was heard from is alive; the first and the last end of those that are not."""
    ends = [s.gone for r, s in job.ranks.items() if r >= 0 and s.heard]
    times = [end.event.t for end in ends if end is not None]
    return len(times) < len(ends), min(times, default=float("inf")), max(times, default=float("-inf"))


def kept_state(name: str) -> "Fact":
    """What a witness or the rank itself told of it, as long as it stands still since."""

    def fact(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
        known = rank.states.get(name)
        return [known.saying(signal.means)] if known is not None and still(job, rank, known) else []

    return fact


def silent(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    wait = float(signal.params.get("for", limits.min_silence))
    if rank.gone or not rank.printed or now - max(rank.last_t, job.blind_until) < wait:
        return []
    return [observed(rank, now, f"nothing printed for {now - rank.last_t:.0f} s", signal.means)]


def phase(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    name = signal.params.get("name")
    if name == "train" and rank.phase == "train" and rank.moves:
        return [observed(rank, now, f"was in its training loop (last step {rank.step})", signal.means, kind="log")]
    said = rank.phase_evidence
    # A step of training needs all ranks, so none of them is still in it; some steps were in flight.
    if rank.phase != name or said is None or job.trained_t > said.t + 2 * max(1.0, job.usual or 0.0):
        return []
    return [said.saying(signal.means)]


def phase_alone(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """In the phase while no other rank says so, although it entered it after the job's last movement."""
    name = signal.params.get("name")
    inside = job.once(("inside", name), lambda: sum(s.phase == name for r, s in job.ranks.items() if r >= 0))
    if inside > (rank.phase == name and rank.rank >= 0):
        return []
    return phase(job, rank, signal, now, limits)


def ended(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    if rank.phase == "end" and rank.phase_evidence is not None:
        return [rank.phase_evidence.saying(signal.means)]
    clean = next((e for e in rank.exits if e.event.code == 0), None)
    if clean is None:
        return []
    source, t = clean.event.source, clean.event.t
    return [Evidence(rank.rank, "process", source, 0, t, "exit code 0", signal.means, seq=clean.seq)]


Fact = Callable[[JobState, RankState, Signal, float, cadence.Limits], Answer]

FACTS: Mapping[str, Fact] = {
    "raised": raised,
    "exit": exit_,
    "gone": gone,
    "oom_killed": operations.oom_killed,
    "told_to_stop": operations.told_to_stop,
    "restarted": operations.restarted,
    "gpu_memory": machine.gpu_memory,
    "frozen": kept_state("frozen"),
    "disk_sleep": kept_state("disk_sleep"),
    "unreachable": kept_state("unreachable"),
    "exhausted": machine.exhausted,
    "gpu_throttled": machine.gpu_throttled,
    "gpu_ecc": machine.gpu_ecc,
    "gpu_lost": machine.gpu_lost,
    "gpu_idle": machine.gpu_idle,
    "cpu_idle": machine.cpu_idle,
    "stalled": loops.stalled,
    "trained": loops.trained,
    "silent": silent,
    "phase": phase,
    "phase_alone": phase_alone,
    "pending": collectives.pending,
    "mismatch": collectives.mismatch,
    "differs": collectives.differs,
    "odd_stack": odd_stack,
    "busy": busy,
    "dump": flight_facts.dump,
    "behind": collectives.behind,
    "not_in_collective": collectives.not_in_collective,
    "no_report": collectives.no_report,
    "timed_out": kept_state("timeout"),
    "reported": collectives.reported,
    "failed_itself": collectives.failed_itself,
    "left_first": collectives.left_first,
    "worked_on": collectives.worked_on,
    "fewer_steps": loops.fewer_steps,
    "xid": machine.xid,
    "metric_spread": measures.metric_spread,
    "metric_odd": measures.metric_odd,
    "parted": measures.parted,
    "nonfinite": measures.nonfinite,
    "spike": measures.spike,
    "slow": measures.slow,
    "late": measures.late,
    "uneven": measures.uneven,
    "throughput": measures.throughput,
    "overlong": measures.overlong,
    "ended": ended,
    "missing_rank": startup.missing_rank,
    "unreported": startup.unreported,
    "named_peer": startup.named_peer,
    "rank_is": startup.rank_is,
    "complete": startup.complete,
    "whole_nodes": startup.whole_nodes,
    "several_nodes": startup.several_nodes,
    "setting_odd": stated.setting_odd,
    "settings_differ": stated.settings_differ,
    "stated": stated.stated,
    "stated_odd": stated.stated_odd,
    "stated_differs": stated.stated_differs,
    "stated_same": stated.stated_same,
}


Gate = Callable[[JobState, Shown], bool]

_KEPT = ("frozen", "disk_sleep", "unreachable", "gpu_throttled", "gpu_ecc", "gpu_lost", "gpu_idle", "cpu_idle")
# What any rank must have shown before a fact can hold for one; a fact that is not named here may hold for any.
_GATES: Mapping[str, Gate] = {
    "whole_nodes": lambda job, shown: shown.raised,
    **dict.fromkeys(("exit", "gone", "left_first"), lambda job, shown: shown.exits),
    "failed_itself": lambda job, shown: shown.raised or shown.exits,
    "oom_killed": lambda job, shown: "oom_killed" in shown.states or bool(job.told),
    "told_to_stop": lambda job, shown: bool(job.told),
    "restarted": lambda job, shown: bool(job.rounds),
    **{name: partial(lambda name, job, shown: name in shown.states, name) for name in _KEPT},
    **dict.fromkeys(("timed_out", "worked_on"), lambda job, shown: "timeout" in shown.states),
    **dict.fromkeys(("reported", "no_report", "unreported"), lambda job, shown: shown.reported),
    "trained": lambda job, shown: job.trained_t > float("-inf"),
    "ended": lambda job, shown: shown.exits or "end" in shown.phases,
    **dict.fromkeys(("pending", "not_in_collective"), lambda job, shown: shown.collectives),
    **dict.fromkeys(("mismatch", "differs"), lambda job, shown: shown.collectives or bool(shown.frames)),
    "behind": lambda job, shown: shown.collectives or "launched_less" in shown.states,
    **dict.fromkeys(("odd_stack", "busy"), lambda job, shown: bool(shown.frames)),
    "dump": lambda job, shown: shown.dumps,
    **dict.fromkeys(("metric_spread", "metric_odd"), lambda job, shown: shown.metrics),
    "nonfinite": lambda job, shown: shown.nonfinite,
    "parted": lambda job, shown: bool(job.twins),
    "uneven": lambda job, shown: bool(job.timers.extremes),
    **dict.fromkeys(("setting_odd", "settings_differ"), lambda job, shown: shown.settings),
}


def possible(job: JobState, signal: Signal, now: float, limits: cadence.Limits) -> bool:
    """Whether any rank has shown what `signal` needs; if not, it holds for none, and nobody has to be asked.

    It is cheap for jobs of ten thousand ranks: the state of all ranks is looked through once a round of judging.
    """
    if job.asks_all:
        return True
    shown = job.shown
    if signal.role == "kernel" or signal.fact == "xid":
        return bool(job.devices.lines)
    if signal.fact == "raised":
        return signal.id in shown.fits
    if signal.fact == "stalled":
        return loops.standstill(job, signal, now, limits) is not None
    if signal.kind == "fact":
        gate = _GATES.get(signal.fact or "")
        if gate is None and signal.fact in ("phase", "phase_alone"):
            name = signal.params.get("name")
            return name in shown.phases or name == "train"
        return gate is None or gate(job, shown)
    return signal.id in (shown.frames if signal.kind == "frame" else shown.seen)


_NOTHING: Answer = []  # one for all: most answers are empty, and ten thousand new lists keep the garbage collector busy


def holds(job: JobState, rank: RankState, signal: Signal, now: float, window: float, limits: cadence.Limits) -> Answer:
    """The evidence that `signal` holds for `rank` now; empty when it does not."""
    if signal.kind == "log" and signal.id not in rank.seen and signal.role not in ("kernel", "config"):
        return []
    memo = job.memo  # as JobState.once, without a closure: this is asked most of all
    if memo is None:
        return _holds(job, rank, signal, now, window, limits)
    key = (signal.id, signal.lasting, rank.rank, window)
    found = memo.get(key)
    if found is None:
        found = memo[key] = _holds(job, rank, signal, now, window, limits) or _NOTHING
    return cast(Answer, found)


def _holds(job: JobState, rank: RankState, signal: Signal, now: float, window: float, limits: cadence.Limits) -> Answer:
    if signal.role == "kernel" or signal.fact == "xid":
        told = machine.xid if signal.fact else machine.kernel_line
        found = told(job, rank, signal, now, limits)
        if signal.lasting:
            return [e for e in found if e.t > now - machine.LASTS and not e.history]
        return [e for e in found if not (job.lapsed(rank, e.t) or (e.history and rank.outlived(e.source, e.seq)))]
    if signal.kind == "fact":
        found = FACTS[signal.fact or ""](job, rank, signal, now, limits)
        return found if len(found) >= signal.count else []
    if signal.kind == "frame":
        return frame(job, rank, signal)
    if signal.role == "config":
        return _set_up(job, rank, signal)
    seen = rank.seen.get(signal.id)
    if seen is None or seen.count < signal.count or seen.last.t < now - window:
        return []
    found = [seen.first] if seen.first is seen.last else [seen.first, seen.last]
    if signal.lasting:
        return found
    return [e for e in found if not (job.lapsed(rank, e.t) or (e.history and rank.outlived(e.source, e.seq)))]


def _set_up(job: JobState, rank: RankState, signal: Signal) -> Answer:
    """Mostly one rank prints how the job is set up; it holds for all of them, as long as the attempt lasts."""
    told = rank.seen.get(signal.id)
    if told is None:
        others = (s.seen[signal.id] for s in job.ranks.values() if signal.id in s.seen)
        told = job.once(("set up", signal.id), lambda: next(others, None))
    return [] if told is None else [told.first]
