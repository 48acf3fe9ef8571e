"""Facts about collectives: what each rank waits for in its process groups, and who differs from the rest.

Same shape as those of facts.py: for ONE rank the evidence that makes the fact hold, or nothing.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from math import gcd

from denpexd.core import cadence, flight_facts, stands
from denpexd.core.evidence import Evidence
from denpexd.core.rank import RankState
from denpexd.core.records import Collective
from denpexd.core.rule import Signal
from denpexd.core.state import Answer, JobState, observed

IN_STACKS = ("call", "site")
EXCHANGES = ("SEND", "RECV", "RECVANYSOURCE", "COALESCED")
ROW = 64  # elements in a row of a matrix of features, at least
TOGETHER = 2.0  # seconds: two polls of the process table
GRACE = 2.0  # seconds in which a step that was in flight still appears after a report


def pending(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    op = signal.param_matchers.get("op")
    found = []
    for known in _known(job, rank, now).values():
        if not known.op or known.evidence is None or (op and not op.search(known.op)):
            continue
        if "numel" in signal.params and not _fits(known.numel, str(signal.params["numel"])):
            continue
        if "seq" in signal.params and not _fits(known.seq, str(signal.params["seq"])):
            continue
        found.append(known.evidence.saying(signal.means))
    return found


def _fits(number: int | None, want: str) -> bool:
    if number is None:
        return False
    if want == "odd":
        return number % 2 == 1 and number > 1
    if want.startswith(">"):
        return number > int(want[1:])
    if want.startswith("<"):
        return number < int(want[1:])
    return number == int(want)


def _known(job: JobState, rank: RankState, now: float) -> Mapping[str, Collective]:
    """By group: what it reported since it moved last or, if nothing, what its Flight Recorder dump shows."""
    told = {
        name: known
        for name, known in rank.collectives.items()
        if rank.moved_t <= known.t + GRACE and not job.moved_on(rank, known.t)
    }
    return told or flight_facts.collectives(job, rank, now)


def _peers(job: JobState, group: str, now: float) -> Mapping[int, Collective]:
    """All ranks of whom anything is known in this group."""
    return job.once("in groups", lambda: _groups(job, now)).get(group, {})


def _groups(job: JobState, now: float) -> dict[str, dict[int, Collective]]:
    found: dict[str, dict[int, Collective]] = {}
    for rank, state in job.ranks.items():
        for group, known in _known(job, state, now).items() if rank >= 0 else ():
            found.setdefault(group, {})[rank] = known
    return found


def mismatch(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """Differs from a strict majority of its group; with two ranks no side can be named.

    Sizes and shapes are compared only among ranks that stand in the same kind of collective. `rows`: sizes of which
    each is a number of equal rows, so that they may be one tensor cut or padded to another length.
    """
    what = str(signal.params.get("what", "op"))
    if what in IN_STACKS:
        shown, quoted = _stacks(job, what)
        return [quoted[rank.rank].saying(signal.means)] if shown.is_odd(rank.rank) else []
    compared = _comparisons(job, rank, what, now, alike=what in ("numel", "shape"))
    return [said.saying(signal.means) for said, shown in compared if shown.is_odd(rank.rank)]


class _Shown:
    """What several ranks show, by rank."""

    def __init__(self, values: Mapping[int, object]) -> None:
        self._values, counted = values, Counter(values.values())
        self.differ = len(counted) > 1
        self._common, count = counted.most_common(1)[0] if values else (None, 0)
        self._is_clear = len(values) > 2 and count * 2 > len(values)

    def is_odd(self, rank: int) -> bool:
        """It differs from what a strict majority has; never of two."""
        return self._is_clear and rank in self._values and self._values[rank] != self._common


def _comparisons(
    job: JobState, rank: RankState, what: str, now: float, *, alike: bool
) -> Iterator[tuple[Evidence, _Shown]]:
    """By group: what the rank said of the collective it stands in, and what all who stand there show."""
    for group, mine in _known(job, rank, now).items():
        if mine.evidence is not None and mine.op:
            yield mine.evidence, _compared(job, group, mine, what, now, alike=alike)


def _compared(job: JobState, group: str, mine: Collective, what: str, now: float, *, alike: bool) -> _Shown:
    """What the ranks of the group show that stand where this one does; `alike`: in the same kind of collective.

    Worked out once for all who stand there: one rank at a time would be a million comparisons for a thousand ranks.
    """
    name = {"op": "kind", "rows": "numel"}.get(what, what)
    at = (mine.seq if _is_dumped(mine) else None, mine.kind if alike else None)
    rows = (mine.op, mine.seq, mine.numel) if what == "rows" else None

    def values() -> _Shown:
        peers = {r: c for r, c in _peers(job, group, now).items() if c.op and _comparable(mine, c)}
        if alike:
            peers = {r: c for r, c in peers.items() if c.kind == mine.kind}
        if rows:
            peers = {r: c for r, c in peers.items() if _same_rows(mine, c)}
        return _Shown({r: value for r, c in peers.items() if (value := getattr(c, name)) is not None})

    return job.once(("compared", group, what, at, rows), values)


def _is_dumped(known: Collective) -> bool:
    return known.evidence is not None and known.evidence.kind == "dump"


def _comparable(mine: Collective, other: Collective) -> bool:
    """Dumps say for certain which number of its group a rank stands in: only the same one is meant to be the same."""
    return not _is_dumped(mine) or mine.seq is None or other.seq is None or mine.seq == other.seq


def _same_rows(mine: Collective, other: Collective) -> bool:
    """In the same call by kind and number; both sizes, at most four times apart, are whole rows of one width."""
    if mine.op != other.op or mine.seq is None or mine.seq != other.seq or not mine.numel or not other.numel:
        return False
    least, most = sorted((mine.numel, other.numel))
    return most <= 4 * least and gcd(least, most) >= ROW


def differs(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """Some rank of its group stands in the same kind of collective with another size or shape; names no side.

    `what: op`: in another kind of collective; `what: call`: its stack shows another kind, and no rank's shows none;
    `what: site`: the same kind, called from another place of the program, and no rank's shows none.
    """
    what = str(signal.params.get("what", "numel"))
    if what in IN_STACKS:
        shown, quoted = _stacks(job, what)
        crossed = shown.differ and len(quoted) == len(job.universe)
        return [quoted[rank.rank].saying(signal.means)] if crossed and rank.rank in quoted else []
    compared = _comparisons(job, rank, what, now, alike=what != "op")
    return [said.saying(signal.means) for said, shown in compared if shown.differ]


def _stacks(job: JobState, what: str) -> tuple[_Shown, dict[int, Evidence]]:
    """The collective that each rank calls, as its stack shows (`site`: from where), and by rank what to quote.

    Sites are compared only where every rank stands in the same kind of collective: then nobody is still to come, and
    each waits for ranks that stand in another one of that kind, mostly of another group.
    """

    def shown() -> tuple[_Shown, dict[int, Evidence]]:
        tell = stands.call if what == "call" else stands.site
        found = {r: one for r, s in job.ranks.items() if r >= 0 and (one := tell(job, s)) is not None}
        values = {r: value for r, (value, _) in found.items()}
        if what == "site" and (len(found) < len(job.universe) or len({value[0] for value in values.values()}) > 1):
            values = {}
        return _Shown(values), {r: quoted for r, (_, quoted) in found.items()}

    return job.once(("stacks", what), shown)


def behind(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """Has enqueued less than every rank of its group that timed out, or launched less than most (NCCL RAS).

    By dumps only where they name it: a rank that others are ahead of may be right not to come.
    """
    known = rank.states.get("launched_less")
    found = [known.saying(signal.means)] if known is not None and stands.still(job, rank, known) else []
    for group, mine in _known(job, rank, now).items():
        if mine.enqueued is None or mine.evidence is None or not _is_last(job, rank.rank, group, now):
            continue
        if _exchanges(job, rank, mine, group, now):
            continue
        if _is_dumped(mine) and not flight_facts.keeps_waiting(job, rank, now):
            continue
        found.append(mine.evidence.saying(signal.means))
    return found


def _is_last(job: JobState, rank: int, group: str, now: float) -> bool:
    """It alone has enqueued less than all others of the group that tell it."""

    def last() -> int | None:
        told = sorted((c.enqueued, r) for r, c in _peers(job, group, now).items() if c.enqueued is not None)
        return told[0][1] if len(told) > 1 and told[0][0] < told[1][0] else None

    return job.once(("last", group), last) == rank


def _exchanges(job: JobState, rank: RankState, mine: Collective, group: str, now: float) -> bool:
    """The group sends and receives in pairs, as pipeline stages do: each stage counts exchanges of its own number."""
    told = [mine, *_peers(job, group, now).values()]
    if not any(c.op for c in told):  # a status line of the group says no operation; another one of the rank may
        told = [c for c in _known(job, rank, now).values() if c.op and c.seq == mine.seq]
    return any(c.op in EXCHANGES for c in told)


def not_in_collective(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    def is_called(group: str) -> bool:
        return job.once(("called", group), lambda: any(c.op for c in _peers(job, group, now).values()))

    idle = [(group, c.evidence) for group, c in _known(job, rank, now).items() if c.idle and c.evidence is not None]
    return [said.saying(signal.means) for group, said in idle if is_called(group)]


def _reports(job: JobState) -> list[float]:
    """When each rank that did reported others."""
    return job.once("reports", lambda: [s.reported.t for r, s in job.ranks.items() if r >= 0 and s.reported])


def _first_report(job: JobState) -> float:
    return job.once("first report", lambda: min(_reports(job), default=float("inf")))


def no_report(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """Most others reported that they waited; this one, known to be alive before, did not."""
    if rank.reported or not rank.heard or any(c.op for c in rank.collectives.values()):
        return []
    others, world = _reports(job), len(job.universe)
    if not others or len(others) * 2 < world - 1 or rank.moved_t > _first_report(job):
        return []
    return [observed(rank, now, "reported nothing when the others timed out", signal.means, kind="log")]


def reported(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """It reported that others failed it: a timeout, a closed connection, a collective that a peer's death ended."""
    known = rank.reported
    return [known.saying(signal.means)] if known is not None and stands.still(job, rank, known) else []


def failed_itself(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """It raised an error of its own, or its process ended before any rank had reported others: no victim."""
    own = next((r for r in rank.raised if not r.collateral and not job.moved_on(rank, r.event.t)), None)
    if own is not None:
        e = own.event
        return [Evidence(rank.rank, "log", e.source, e.offset, e.t, e.text, signal.means, seq=own.seq)]
    return left_first(job, rank, signal, now, limits)


def left_first(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """Its process ended, in whatever way, before any other rank had reported a failure; `code`: with this exit code."""
    said = _first_report(job)
    if rank.reported or not rank.exits or rank.gone is None or rank.gone.forced or rank.gone.event.t > said + TOGETHER:
        return []
    codes = {e.event.code for e in rank.exits if e.event.code is not None}
    if "code" in signal.params and signal.params["code"] not in codes:
        return []
    alive = job.once("alive", lambda: any(s.heard and not s.gone for r, s in job.ranks.items() if r >= 0))
    if job.clean or (not alive and said == float("inf")):
        return []
    how = f"with exit code {min(codes)}" if codes else "nobody saw how"
    event, text = rank.gone.event, f"process ended, {how}, before any rank reported another"
    return [Evidence(rank.rank, "process", event.source, 0, event.t, text, signal.means, seq=rank.gone.seq)]


def worked_on(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """While others waited until their timeout, this rank went on: slow, not stuck.

    By its progress lines; `by: output`: by any ordinary line, for work that has no counter.
    """
    waits = [] if "timeout" in rank.states else job.once("waits", lambda: _waits(job))
    if not waits:
        return []
    begin, patience = min(waits)
    last = rank.moved_t
    if signal.params.get("by") == "output":
        last = max(last, rank.ordinary[-1] if rank.ordinary else last)
    if last <= begin + max(10.0, patience / 4):
        return []
    text = f"went on for {last - begin:.0f} s while others waited for it"
    return [observed(rank, now, text, signal.means, kind="log")]


def _waits(job: JobState) -> list[tuple[float, float]]:
    """When the rank that began to wait first did so, and for how long; empty if none waited until a timeout."""
    others = [(s, s.states["timeout"]) for r, s in job.ranks.items() if r != -1 and "timeout" in s.states]
    return [min((said.t - _waited(s, said), _waited(s, said)) for s, said in others)] if others else []


def _waited(rank: RankState, said: Evidence) -> float:
    """Seconds that the rank had waited when it said so; 0 where the line does not tell."""
    told = [s.fields for s in rank.seen.values() if abs(s.first.t - said.t) < 5.0 or abs(s.last.t - said.t) < 5.0]
    ms = [f[name] for f in told for name in ("ran_ms", "ms", "timeout_ms") if f.get(name, "").isdigit()]
    return int(ms[0]) / 1000 if ms else 0.0
