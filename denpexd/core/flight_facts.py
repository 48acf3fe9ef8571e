"""The fact `dump`: what the Flight Recorder dumps show of a rank, as long as they say where it is now."""

from collections.abc import Mapping

from denpexd.core import cadence
from denpexd.core.evidence import Evidence
from denpexd.core.flight import Outline
from denpexd.core.flight_groups import Place
from denpexd.core.flight_verdict import Analysis, compare
from denpexd.core.rank import RankState
from denpexd.core.records import Collective, Dumped
from denpexd.core.rule import Signal
from denpexd.core.state import Answer, JobState

STEADY = 4.5  # seconds without movement after the dump: in an ordinary moment ranks wait for each other, too


def dump(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """`shows`: out_of_order, crossed (another was, this one waits), other_call, other_size, absent, passed, waits."""
    known = rank.dump
    case, _ = _read(job, now)
    if known is None or case is None or rank.rank not in case.dumps:
        return []
    text = _text(case, rank.rank, str(signal.params.get("shows", "waits")), named=keeps_waiting(job, rank, now))
    if not text:
        return []
    said = known.dump
    return [Evidence(rank.rank, "dump", said.source, 0, said.t, text, signal.means, seq=known.seq)]


def collectives(job: JobState, rank: RankState, now: float) -> Mapping[str, Collective]:
    """What its dump shows of each group, in the words of a watchdog; empty where it has none that counts."""
    return _read(job, now)[1].get(rank.rank, {})


def _collectives(job: JobState, case: Analysis) -> dict[int, dict[str, Collective]]:
    found: dict[int, dict[str, Collective]] = {}
    for name, group in case.groups.items():
        for rank, place in group.places.items():
            if (known := job.ranks[rank].dump) is not None:
                found.setdefault(rank, {})[name] = _collective(place, known)
    return found


def keeps_waiting(job: JobState, rank: RankState, now: float) -> bool:
    """The dumps of all ranks name this one."""
    named = job.once(
        "kept waiting by", lambda: frozenset(case.verdict.initiating if (case := _read(job, now)[0]) else ())
    )
    return rank.rank in named


def analysis(job: JobState, now: float) -> Analysis | None:
    """What the dumps that still count show together; None where there is none."""
    return _read(job, now)[0]


def _collective(place: Place, known: Dumped) -> Collective:
    op, said = place.op, known.dump
    text = f"stands in {op.call}, number {op.seq} of group {op.group}" if op is not None else "has nothing open"
    quoted = Evidence(place.rank, "dump", said.source, 0, said.t, f"Flight Recorder: it {text}", "", seq=known.seq)
    if op is None:
        return Collective(enqueued=place.enqueued, completed=place.done, evidence=quoted)
    return Collective(
        "ALLREDUCE"
        if op.name == "all_reduce_barrier"
        else op.name.upper().replace("ALL_", "ALL").replace("TO_ALL", "TOALL"),
        op.seq,
        1 if op.name == "all_reduce_barrier" else op.numel,
        None,
        place.enqueued,
        place.done,
        quoted,
    )


def _read(job: JobState, now: float) -> tuple[Analysis | None, Mapping[int, Mapping[str, Collective]]]:
    return job.once("flight", lambda: _analysis(job, now))


def _analysis(job: JobState, now: float) -> tuple[Analysis | None, Mapping[int, Mapping[str, Collective]]]:
    """Of the dumps that still count; worked out anew only when one has come or lapsed."""
    valid: dict[int, Outline] = {}
    for number, state in job.ranks.items():
        if number >= 0 and state.dump is not None and _counts(job, state, state.dump.since, now):
            valid[number] = state.dump.outline
    if not valid:
        return None, {}
    key = (job.world_size, tuple((r, job.ranks[r].dump) for r in sorted(valid)))
    if job.flight_known is None or not _same(job.flight_known[0], key):
        case = compare(valid, job.world_size)
        job.flight_known = key, case, _collectives(job, case)
    return job.flight_known[1:]


def _same(known: object, key: tuple[int | None, tuple[tuple[int, object], ...]]) -> bool:
    """The very same dumps: comparing what they hold would take as long as judging them."""
    if not isinstance(known, tuple) or known[0] != key[0] or len(known[1]) != len(key[1]):
        return False
    return all(a[0] == b[0] and a[1] is b[1] for a, b in zip(known[1], key[1], strict=True))


def _counts(job: JobState, state: RankState, since: float, now: float) -> bool:
    """It shows where the rank still is: no movement since, for long enough, or its process has ended there."""
    if since < max(state.moved_t, job.started_t) or job.moved_on(state, since):
        return False
    return now - since >= STEADY or state.gone is not None


def _text(case: Analysis, rank: int, shows: str, *, named: bool) -> str:
    """What to quote, empty where it is not so."""
    verdict = case.verdict
    op = case.waits.stands.get(rank)
    stands = f"stands in {op.call}, number {op.seq} of group {op.group}" if op is not None else "has nothing open"
    calls = verdict.finding in ("op", "circle")
    broken = calls and bool(verdict.initiating) and verdict.certainty == "likely"  # by no majority, but by the pattern
    shown = {
        "out_of_order": broken and named,
        "crossed": broken and not named and op is not None,
        "other_call": named and verdict.finding == "op",
        "other_size": named and verdict.finding in ("size", "dtype"),
        "absent": named and verdict.finding == "absent",
        "passed": named and verdict.finding == "passed",
        "waits": op is not None,
    }
    if not shown[shows]:
        return ""
    return f"Flight Recorder: it {stands}; {verdict.text}" if shows != "waits" else f"Flight Recorder: it {stands}"
