"""Facts about collectives: what each rank waits for in its process groups, and who differs from the rest.

Same shape as those of facts.py: for ONE rank the evidence that makes the fact hold, or nothing.
"""

from collections import Counter
from collections.abc import Mapping

from denpexd.core import cadence
from denpexd.core.rule import Signal
from denpexd.core.state import Answer, Collective, JobState, RankState, observed


def pending(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    op = signal.param_matchers.get("op")
    found = []
    for known in rank.collectives.values():
        if not known.op or known.evidence is None or (op and not op.search(known.op)):
            continue
        if "numel" in signal.params and not _numel_fits(known.numel, str(signal.params["numel"])):
            continue
        found.append(known.evidence.saying(signal.means))
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
    """Differs from a strict majority of its group; with two ranks no side can be named.

    Sizes and shapes are compared only among ranks that stand in the same kind of collective.
    """
    what = str(signal.params.get("what", "op"))
    found = []
    for group, mine in rank.collectives.items():
        if mine.evidence is None or not mine.op:
            continue
        peers = _peers(job, group)
        if what in ("numel", "shape"):
            peers = {r: c for r, c in peers.items() if c.kind == mine.kind}
        name = "kind" if what == "op" else what
        values = {r: getattr(c, name) for r, c in peers.items() if c.op and getattr(c, name) is not None}
        if len(values) < 3 or rank.rank not in values:
            continue
        common, count = Counter(values.values()).most_common(1)[0]
        if count * 2 > len(values) and values[rank.rank] != common:
            found.append(mine.evidence.saying(signal.means))
    return found


def differs(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """Some rank of its group stands in the same kind of collective with another size or shape; names no side."""
    what = str(signal.params.get("what", "numel"))
    found = []
    for group, mine in rank.collectives.items():
        values = {getattr(c, what) for c in _peers(job, group).values() if c.op and c.kind == mine.kind} - {None}
        if len(values) > 1 and mine.evidence is not None and mine.op:
            found.append(mine.evidence.saying(signal.means))
    return found


def behind(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """Has enqueued less than every rank of its group that timed out."""
    found = []
    for group, mine in rank.collectives.items():
        others = [c.enqueued for r, c in _peers(job, group).items() if r != rank.rank and c.enqueued is not None]
        if mine.enqueued is None or not others or mine.evidence is None:
            continue
        if mine.enqueued < min(others):
            found.append(mine.evidence.saying(signal.means))
    return found


def not_in_collective(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    found = []
    for group, mine in rank.collectives.items():
        waiting = any(c.op for r, c in _peers(job, group).items() if r != rank.rank)
        if mine.idle and waiting and mine.evidence is not None:
            found.append(mine.evidence.saying(signal.means))
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
    return [observed(rank, now, "reported nothing when the others timed out", signal.means, kind="log")]
