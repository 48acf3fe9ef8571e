"""Facts that code derives from the state of all ranks: the table of docs/rule-format.md.

Each fact answers for ONE rank with the evidence that makes it hold, or nothing. They read state and change nothing.
"""

from collections import Counter
from collections.abc import Callable, Mapping

from denpexd.core import cadence
from denpexd.core.rule import Signal
from denpexd.core.state import Collective, Evidence, JobState, RankState

Answer = list[Evidence]


def _observed(rank: RankState, now: float, text: str, signal: Signal, *, kind: str = "core") -> Evidence:
    return Evidence(rank.rank, kind, "denpexd", 0, now, text, signal.means, seq=rank.moved_seq)


def raised(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    found = []
    for known in rank.raised:
        event = known.event
        if known.collateral or lapsed(job, rank, event.t) or not _chain_matches(signal, event.chain):
            continue
        where = signal.param_matchers.get("in")
        if where and not any(where.search(f.canonical) or where.search(f.qualified) for f in event.frames):
            continue
        if signal.exclude and any(signal.exclude.search(f"{kind}: {message}") for kind, message in event.chain):
            continue
        weight = "fatal" if event.uncaught else "suspect"
        found.append(
            Evidence(
                rank.rank,
                "log",
                event.source,
                event.offset,
                event.t,
                event.text,
                signal.means,
                seq=known.seq,
                weight=weight,
                history=event.history,
            )
        )
    return found


def _chain_matches(signal: Signal, chain: tuple[tuple[str, str], ...]) -> bool:
    kind, message = signal.param_matchers.get("type"), signal.param_matchers.get("message")
    for name, said in chain:
        right_kind = kind is None or kind.search(name) or kind.search(name.rsplit(".", 1)[-1])
        if right_kind and (message is None or message.search(said)):
            return True
    return False


def exit_(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    found = []
    want = signal.params
    for known in rank.exits:
        code, by = known.event.code, "launcher" if known.event.source == "launcher" else "process"
        if known.forced or code is None or ("by" in want and want["by"] != by):
            continue
        number = -code if code < 0 else (code - 128 if code in (134, 137, 139, 143) else None)
        if "signal" in want and number != want["signal"]:
            continue
        if "code" in want and code != want["code"]:
            continue
        if want.get("failed") and (code <= 0 or number is not None):
            continue
        text = f"{'reported by the launcher' if by == 'launcher' else 'process ended'}: exit code {code}"
        kind = "launcher" if by == "launcher" else "process"
        found.append(Evidence(rank.rank, kind, known.event.source, 0, known.event.t, text, signal.means, seq=known.seq))
    return found


def gone(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """Ended without a word: no exception of its own, no clean end, no exit code that says more."""
    known = rank.gone
    if known is None or known.forced or rank.phase == "end" or any(not r.collateral for r in rank.raised):
        return []
    if rank.reported or any(e.event.code is not None for e in rank.exits):
        return []
    text = "process ended; nobody saw its exit code"
    return [Evidence(rank.rank, "process", known.event.source, 0, known.event.t, text, signal.means, seq=known.seq)]


def kept_state(name: str) -> "Fact":
    def fact(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
        known = rank.states.get(name)
        if known is None or known.t < rank.moved_t:
            return []
        return [_with_means(known, signal.means)]

    return fact


def stalled(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    silence = 0.0 if job.over else job.silence(now)
    if signal.params.get("budget"):
        source = job.busiest
        limit = cadence.budget(limits, job.last_phase, source.rhythm if source else cadence.Rhythm())
    else:
        limit = cadence.page(limits, job.usual)
    if silence < limit:
        return []
    usual = job.usual
    text = f"no progress of any rank for {silence:.0f} s"
    text += f" (usual: every {usual:.3g} s)" if usual is not None else " (no rhythm learned yet)"
    return [_observed(rank, now, text, signal)]


def silent(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    wait = float(signal.params.get("for", limits.min_silence))
    if rank.gone or not rank.printed or now - max(rank.last_t, job.blind_until) < wait:
        return []
    return [_observed(rank, now, f"nothing printed for {now - rank.last_t:.0f} s", signal)]


def phase(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    name = signal.params.get("name")
    if name == "train" and rank.phase == "train" and rank.moves:
        return [_observed(rank, now, f"was in its training loop (last step {rank.step})", signal, kind="log")]
    if rank.phase != name or rank.phase_evidence is None:
        return []
    return [_with_means(rank.phase_evidence, signal.means)]


def phase_alone(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """In the phase while no other rank says so, although it entered it after the job's last movement."""
    name = signal.params.get("name")
    if any(s.phase == name for r, s in job.ranks.items() if r >= 0 and r != rank.rank):
        return []
    return phase(job, rank, signal, now, limits)


def pending(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    op = signal.param_matchers.get("op")
    found = []
    for known in rank.collectives.values():
        if not known.op or known.evidence is None or (op and not op.search(known.op)):
            continue
        if "numel" in signal.params and not _numel_fits(known.numel, str(signal.params["numel"])):
            continue
        found.append(_with_means(known.evidence, signal.means))
    return found


def _numel_fits(numel: int | None, want: str) -> bool:
    if numel is None:
        return False
    if want == "odd":
        return numel % 2 == 1 and numel > 1
    if want.startswith(">"):
        return numel > int(want[1:])
    return numel == int(want)


def _peers(job: JobState, group: str) -> Mapping[int, Collective]:
    return {r: s.collectives[group] for r, s in job.ranks.items() if r >= 0 and group in s.collectives}


def mismatch(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """Differs from a strict majority of its group; with two ranks no side can be named."""
    what = str(signal.params.get("what", "op"))
    found = []
    for group, mine in rank.collectives.items():
        values = {r: getattr(c, what) for r, c in _peers(job, group).items() if getattr(c, what) not in (None, "")}
        if len(values) < 3 or rank.rank not in values or mine.evidence is None:
            continue
        common, count = Counter(values.values()).most_common(1)[0]
        if count * 2 > len(values) and values[rank.rank] != common:
            found.append(_with_means(mine.evidence, signal.means))
    return found


def behind(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """Has enqueued less than every rank of its group that timed out."""
    found = []
    for group, mine in rank.collectives.items():
        others = [c.enqueued for r, c in _peers(job, group).items() if r != rank.rank and c.enqueued is not None]
        if mine.enqueued is None or not others or mine.evidence is None:
            continue
        if mine.enqueued < min(others):
            found.append(_with_means(mine.evidence, signal.means))
    return found


def not_in_collective(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    found = []
    for group, mine in rank.collectives.items():
        waiting = any(c.op for r, c in _peers(job, group).items() if r != rank.rank)
        if mine.idle and waiting and mine.evidence is not None:
            found.append(_with_means(mine.evidence, signal.means))
    return found


def no_report(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """Most others reported that they waited; this one, known to be alive before, did not."""
    others = [s for r, s in job.ranks.items() if r >= 0 and r != rank.rank and s.reported]
    if rank.reported or not rank.heard or any(c.op for c in rank.collectives.values()):
        return []
    if (
        not others
        or len(others) * 2 < len(job.universe) - 1
        or rank.moved_t > min(s.reported.t for s in others if s.reported)
    ):
        return []
    return [_observed(rank, now, "reported nothing when the others timed out", signal, kind="log")]


def fewer_steps(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """Has left its loop while another rank's loop is not over."""
    others = [s for r, s in job.ranks.items() if r >= 0 and r != rank.rank and s.step is not None and s.moves > 1]
    if rank.batches is not None:
        longer = [n for s in others for n in (s.batches, (s.step or 0) + 1) if n is not None and n > rank.batches]
        if longer:
            return [_observed(rank, now, f"has {rank.batches} batches, others have {max(longer)}", signal, kind="log")]
    if rank.step is None or rank.phase not in ("end", "epoch_end", "eval", "checkpoint") or not rank.phase_evidence:
        return []
    early = [s for s in others if s.phase not in ("end", "epoch_end", "eval", "checkpoint")]
    ahead = [s for s in early if s.epoch == rank.epoch and s.step is not None and s.step > rank.step]
    over = rank.phase in ("end", "epoch_end") and not (rank.total is not None and rank.step + 1 >= rank.total)
    if not early or not (ahead or over):
        return []
    return [_with_means(rank.phase_evidence, signal.means)]


def metric_spread(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """Holds for every rank that printed the metric at a step at which the values differ."""
    name, relative = signal.param_matchers["name"], float(signal.params.get("relative", 0.05))
    found = []
    for key, (mine, evidence) in rank.metrics.items():
        if not name.search(key[0]):
            continue
        values = [s.metrics[key][0] for r, s in job.ranks.items() if r >= 0 and key in s.metrics]
        spread = max(values) - min(values)
        if len(values) > 1 and spread > relative * max(abs(mine), *(abs(v) for v in values), 1e-9):
            found.append(_with_means(evidence, signal.means))
    return found


def ended(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    if rank.phase == "end" and rank.phase_evidence is not None:
        return [_with_means(rank.phase_evidence, signal.means)]
    clean = next((e for e in rank.exits if e.event.code == 0), None)
    if clean is None:
        return []
    return [
        Evidence(rank.rank, "process", clean.event.source, 0, clean.event.t, "exit code 0", signal.means, seq=clean.seq)
    ]


def _with_means(evidence: Evidence, means: str) -> Evidence:
    return Evidence(
        evidence.rank,
        evidence.kind,
        evidence.source,
        evidence.offset,
        evidence.t,
        evidence.text,
        means,
        evidence.teller,
        evidence.seq,
        evidence.weight,
        evidence.history,
    )


Fact = Callable[[JobState, RankState, Signal, float, cadence.Limits], Answer]

FACTS: Mapping[str, Fact] = {
    "raised": raised,
    "exit": exit_,
    "gone": gone,
    "oom_killed": kept_state("oom_killed"),
    "frozen": kept_state("frozen"),
    "stalled": stalled,
    "silent": silent,
    "phase": phase,
    "phase_alone": phase_alone,
    "pending": pending,
    "mismatch": mismatch,
    "behind": behind,
    "not_in_collective": not_in_collective,
    "no_report": no_report,
    "fewer_steps": fewer_steps,
    "metric_spread": metric_spread,
    "ended": ended,
}


def holds(job: JobState, rank: RankState, signal: Signal, now: float, window: float, limits: cadence.Limits) -> Answer:
    """The evidence that `signal` holds for `rank` now; empty when it does not."""
    if signal.kind == "fact":
        found = FACTS[signal.fact or ""](job, rank, signal, now, limits)
        return found if len(found) >= signal.count else []
    if signal.kind == "frame":
        return _frame(rank, signal, now)
    seen = rank.seen.get(signal.id)
    if seen is None or seen.count < signal.count or seen.last.t < now - window:
        return []
    found = [seen.first] if seen.first is seen.last else [seen.first, seen.last]
    return found if signal.role == "config" else [e for e in found if not lapsed(job, rank, e.t)]


def _frame(rank: RankState, signal: Signal, now: float) -> Answer:
    """A frame counts until the rank moves again; a look at a live process convicts only when it was steady."""
    found = []
    for kind, snapshot in rank.snapshots.items():
        frame = snapshot.hits.get(signal.id)
        if frame is None or snapshot.frames.t < rank.moved_t:
            continue
        if kind == "py-spy" and not snapshot.steady:
            continue
        text = f"{frame.function} ({frame.path}:{frame.line})"
        f = snapshot.frames
        source = f.source or f.kind
        found.append(Evidence(rank.rank, "stack", source, f.offset, f.t, text, signal.means, seq=snapshot.seq))
    return found


def lapsed(job: JobState, rank: RankState, t: float) -> bool:
    """Training moved on after `t`: what was printed then did not stop it.

    The rank itself moved, or the job made a training step, which needs all ranks. Steps already in flight still appear
    after a failure, hence the grace of two usual gaps.
    """
    return max(rank.moved_t, job.trained_t) > t + max(2.0, 2 * (job.usual or 0.0))
