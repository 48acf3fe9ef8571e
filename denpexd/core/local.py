"""Rules without `correlation`: local failures. Whoever showed it first started it, everyone else is a victim."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from denpexd.core import operations
from denpexd.core.cadence import Limits
from denpexd.core.candidate import Candidate
from denpexd.core.events import UNKNOWN_RANK, Raised
from denpexd.core.evidence import Evidence
from denpexd.core.facts import holds, possible
from denpexd.core.rank import RankState
from denpexd.core.rule import Rule
from denpexd.core.state import JobState
from denpexd.core.support import leading, support

TOGETHER = 2.0  # ranks that fail within this time failed together, whatever else was printed meanwhile
SPOKEN = ("log", "dump", "kernel")  # witnesses that say what failed
SAME_FAULT = 30.0  # later ones count too if nobody had reported a victim's error before


def local(rule: Rule, job: JobState, now: float, limits: Limits) -> Candidate | None:
    """The rule's verdict on the job now, or None."""
    shown: dict[int, list[Evidence]] = {}
    signals = [s for s in leading(rule) if possible(job, s, now, limits)]
    if not signals:
        return None
    states = _with_named(job)
    for number, state in states.items():
        found = [e for s in signals for e in holds(job, state, s, now, 1e12, limits)]
        if found:
            shown[number] = sorted(found, key=lambda e: (e.t, e.seq))
    first = {r: es[0] for r, es in shown.items() if r >= 0 and not _victim(states[r], es[0])}
    by_kernel = {r: e for r, e in first.items() if any(e.kind == "kernel" for e in shown[r])}  # nearest to the cause
    of_nodes = {s.means for s in signals if s.params.get("of") == "node"}
    placed = {
        r: e for r, e in by_kernel.items() if any(e.kind == "kernel" and e.means not in of_nodes for e in shown[r])
    }
    spoken = placed or by_kernel or {r: e for r, e in first.items() if e.kind != "launcher"}
    if spoken:
        first = spoken
    elif -1 in shown:
        return _unplaced(rule, job, shown[-1], first, limits)
    elif len(first) > 1:
        first = _named_first(job, first)
    if not first:
        return None
    start = min(e.t for e in first.values())
    reported = min((s.reported.t for s in job.ranks.values() if s.reported and s.reported.t >= start), default=1e300)
    initiating = tuple(
        sorted(r for r, e in first.items() if e.t <= start + TOGETHER or e.t <= min(start + SAME_FAULT, reported))
    )
    initiating = _ended_by_it(states, initiating)
    made = _made(rule, job, initiating, [e for r in initiating for e in shown[r]])
    if more := support(rule, job, initiating, now, limits):
        certainty = "confirmed" if made.certainty == "likely" else made.certainty
        return replace(made, evidence=(*made.evidence, *more), certainty=certainty)
    return made


def _ended_by_it(states: Mapping[int, RankState], began: tuple[int, ...]) -> tuple[int, ...]:
    """Without those that raised something else than the rest and trained on until they lost a peer: it was handled."""
    kinds = {r: {known.event.chain[-1][0] for known in states[r].raised if not known.collateral} for r in began}
    ended = [r for r in began if states[r].reported is None]
    fatal = {kind for r in ended for kind in kinds[r]}
    return tuple(r for r in began if r in ended or not kinds[r] or kinds[r] & fatal or not fatal)


def _with_named(job: JobState) -> dict[int, RankState]:
    """All ranks; those that never said anything too, if the kernel may have said something about them."""
    missing = set((*job.universe, UNKNOWN_RANK) if job.devices.lines else ()) - set(job.ranks)
    return {**job.ranks, **{number: RankState(number) for number in missing}}


def _victim(state: RankState, first: Evidence) -> bool:
    """It had reported somebody else's failure before it showed this one."""
    return state.reported is not None and state.reported.seq < first.seq


def _named_first(job: JobState, first: dict[int, Evidence]) -> dict[int, Evidence]:
    """Only the launcher speaks, about several ranks: the one it saw first, if it says so; for crashes it is right."""
    root = next((r for r in first if "launcher_root" in job.ranks[r].states), None)
    return {root: first[root]} if root is not None else first


def _unplaced(
    rule: Rule, job: JobState, said: list[Evidence], first: dict[int, Evidence], limits: Limits
) -> Candidate | None:
    """The text came in a stream whose rank is not known; its traceback or the launcher's summary may name the rank."""
    ranks = {r: s for r, s in job.ranks.items() if r >= 0}
    if any(s.fact == "told_to_stop" for s in rule.signals.values()):
        told = _made(rule, job, (), said)  # the job as a whole was told: no rank began it
        return replace(told, certainty="confirmed") if operations.sure(job, rule, limits) else told
    if first:
        named = sorted(_named_first(job, first))
    else:
        named = [
            r for r, s in ranks.items() if any(_tells(one.event, said[0]) for one in s.raised if not one.collateral)
        ]
        named = named if said[0].kind != "kernel" else []  # its place in a log says nothing
        named = named or [r for r, s in ranks.items() if "launcher_root" in s.states and not s.reported]
    return _made(rule, job, tuple(named), said)


def _tells(event: Raised, said: Evidence) -> bool:
    """Both come from the same traceback."""
    return event.source == said.source and abs(event.t - said.t) <= 1.0


def _made(rule: Rule, job: JobState, initiating: tuple[int, ...], evidence: list[Evidence]) -> Candidate:
    evidence.sort(key=lambda e: (e.t, e.rank, e.seq))
    cause, began = evidence[0], set(initiating)
    collateral = tuple(r for r in job.universe if r not in began) if rule.stops and initiating else ()
    return Candidate(
        rule,
        initiating,
        collateral,
        tuple(evidence),
        {},
        _certainty(job, initiating, evidence),
        cause.t,
        cause.seq,
        any(e.weight == "fatal" for e in evidence),
        sure=any(e.kind in SPOKEN and e.weight == "fatal" for e in evidence),
    )


def _certainty(job: JobState, initiating: Sequence[int], evidence: Sequence[Evidence]) -> str:
    """A fatal text plus that process gone, or a second witness; an exit code or a disappearance alone proves less."""
    spoken = [e for e in evidence if e.kind in SPOKEN and e.weight == "fatal"]
    gone, began = any(job.ranks[r].gone for r in initiating if r in job.ranks), set(initiating)
    victims = any(
        s.reported and s.reported.t >= evidence[0].t - TOGETHER for r, s in job.ranks.items() if r not in began
    )
    if spoken and initiating and (gone or victims or len({e.witness for e in spoken}) > 1):
        return "confirmed"
    if not any(job.ranks[r].printed for r in initiating if r in job.ranks) and all(
        e.kind == "launcher" for e in evidence
    ):
        return "undetermined"  # what the rank itself said, and why, is in a log that nobody gave us
    if spoken or any(e.kind == "launcher" or "exit code" in e.text for e in evidence):
        return "likely"
    return "likely" if victims and any(e.kind == "log" for e in evidence) else "undetermined"
