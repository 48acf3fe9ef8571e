"""One rule against the state of the job: does it hold, for which ranks, and on whose word?

Two kinds. A rule with `correlation` assigns disjoint sets of ranks to its roles. A rule without is a local failure:
whoever showed it first started it, everyone else is a victim.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from denpexd.core import operations
from denpexd.core.cadence import Limits
from denpexd.core.events import UNKNOWN_RANK, Raised
from denpexd.core.evidence import Evidence
from denpexd.core.facts import holds, possible
from denpexd.core.rule import Correlation, Role, Rule, Signal, fits, free_ranks
from denpexd.core.startup import ABSENT
from denpexd.core.state import JobState, RankState
from denpexd.core.support import leading, support
from denpexd.core.testimony import weighed

TOGETHER = 2.0  # ranks that fail within this time failed together, whatever else was printed meanwhile
SPOKEN = ("log", "dump", "kernel")  # witnesses that say what failed
SAME_FAULT = 30.0  # later ones count too if nobody had reported a victim's error before


@dataclass(frozen=True, slots=True)
class Candidate:
    """A rule that holds: the ranks by role, the evidence (initiators' first), and how sure that makes us."""

    rule: Rule
    initiating: tuple[int, ...]
    collateral: tuple[int, ...]
    evidence: tuple[Evidence, ...]
    roles: Mapping[str, tuple[int, ...]]
    certainty: str
    cause_t: float
    cause_seq: int
    fatal: bool
    sure: bool = False  # one more witness that agrees would confirm it
    against: tuple[str, ...] = ()  # what other witnesses say against it

    @property
    def history(self) -> bool:
        """Everything it rests on stood in the files before the daemon came."""
        return all(e.history for e in self.evidence)


def candidate(rule: Rule, signals: Mapping[str, Signal], job: JobState, now: float, limits: Limits) -> Candidate | None:
    """The rule's verdict on the job now, or None."""
    if rule.correlation is None:
        found = _local(rule, job, now, limits)
    else:
        found = _correlated(rule, rule.correlation, signals, job, now, limits)
    return None if found is None else weighed(found, job, now)


# --- local failures -------------------------------------------------------------------------------------------------


def _local(rule: Rule, job: JobState, now: float, limits: Limits) -> Candidate | None:
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
        _local_certainty(job, initiating, evidence),
        cause.t,
        cause.seq,
        any(e.weight == "fatal" for e in evidence),
        sure=any(e.kind in SPOKEN and e.weight == "fatal" for e in evidence),
    )


def _local_certainty(job: JobState, initiating: Sequence[int], evidence: Sequence[Evidence]) -> str:
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


# --- correlation ----------------------------------------------------------------------------------------------------


def _correlated(
    rule: Rule, want: Correlation, signals: Mapping[str, Signal], job: JobState, now: float, limits: Limits
) -> Candidate | None:
    universe = job.universe
    assigned: dict[str, tuple[int, ...]] = {}
    proof: dict[str, list[Evidence]] = {}
    taken: set[int] = set()
    if not _may_hold(want, signals, job, now, limits):
        return None
    for role in want.roles:
        found = _members(role, signals, job, free_ranks(role.ranks, universe, taken), now, want.window, limits)
        if found is None or not fits(role.ranks, len(found), len(universe), universe, taken):
            return None
        if role.ranks == "few" and len(found) > len(universe) / 2:
            found = {}
        assigned[role.name] = tuple(r for r in sorted(found) if r != UNKNOWN_RANK)
        proof[role.name] = [e for r in sorted(found) for e in found[r]]
        if role.ranks != "somewhere":
            taken |= set(found)
    if not _in_order(want, proof):
        return None
    initiating = tuple(sorted({r for name in want.initiating for r in assigned[name]}))
    if not initiating and job.world_size == 1:
        initiating = tuple(universe)  # nobody else can have begun
    named = {r for name in want.collateral for r in assigned[name]}
    collateral = tuple(sorted(named - set(initiating)))
    main = [e for name in want.initiating for e in proof[name]] or [e for es in proof.values() for e in es]
    rest = [e for name, es in proof.items() if name not in want.initiating for e in es]
    extra, sure = _confirmed(want, signals, job, now, limits)
    known = set(main)
    evidence = [*main, *(e for e in (*rest, *extra) if e not in known)]
    if not evidence:
        return None
    sure = sure and rule.precision != "symptom" and not _unheard(want, job)
    certainty = "undetermined" if rule.precision == "symptom" else "likely"
    if sure and len({e.witness for e in evidence if e.kind != "core"}) > 1:
        certainty = "confirmed"
    cause = min((e for e in main if e.kind != "core"), key=lambda e: (e.t, e.seq), default=evidence[0])
    told = (rule, initiating, collateral, tuple(evidence), assigned, certainty, cause.t, cause.seq)
    return Candidate(*told, fatal=True, sure=sure)


def _may_hold(want: Correlation, signals: Mapping[str, Signal], job: JobState, now: float, limits: Limits) -> bool:
    """Whether the rule could hold and say why: asked of the job once, before ten thousand ranks are."""
    asked = [(role, _asked(role, signals, job, now, limits)) for role in (*want.roles, *want.confirm)]
    if not any(needs is not None and (needs.all_of or needs.any_of) for _, needs in asked):
        return False
    nobody = [role for role, needs in asked[: len(want.roles)] if needs is None]
    return all(role.ranks in ("rest", "all") or fits(role.ranks, 0, 0, (), ()) for role in nobody)


def _members(
    role: Role,
    signals: Mapping[str, Signal],
    job: JobState,
    free: Sequence[int],
    now: float,
    window: float,
    limits: Limits,
) -> dict[int, list[Evidence]] | None:
    """The free ranks that fit the role, with their evidence; for `rest` None if a heard rank does not fit."""
    members: dict[int, list[Evidence]] = {}
    asked, absence = _asked(role, signals, job, now, limits), _about_absence(role, signals)
    for number in free:
        state = job.ranks.get(number)
        if state is None or not state.heard:
            if role.ranks == "rest":
                members[number] = []
                continue
            if not absence:
                continue
            state = state or RankState(number)
        shown = None if asked is None else _shows(asked, signals, job, state, now, window, limits)
        if shown is not None:
            members[number] = shown
        elif role.ranks in ("rest", "all"):
            return None
        elif asked is None:
            return members
    return members


def _asked(role: Role, signals: Mapping[str, Signal], job: JobState, now: float, limits: Limits) -> Role | None:
    """The role without what no rank of the job can show; None if therefore nobody can have it."""

    def may_be(name: str) -> bool:
        return possible(job, signals[name], now, limits)

    any_of = tuple(group for group in role.any_of if all(map(may_be, group)))
    if not all(map(may_be, role.all_of)) or (role.any_of and not any_of):
        return None
    return replace(role, any_of=any_of, none_of=tuple(filter(may_be, role.none_of)))


def _about_absence(role: Role, signals: Mapping[str, Signal]) -> bool:
    """The role is about ranks that are not there, so one that was never heard from may have it."""
    return any(signals[name].fact in ABSENT for name in (*role.all_of, *(n for group in role.any_of for n in group)))


def _shows(
    role: Role,
    signals: Mapping[str, Signal],
    job: JobState,
    state: RankState,
    now: float,
    window: float,
    limits: Limits,
) -> list[Evidence] | None:
    def held(name: str) -> list[Evidence]:
        return holds(job, state, signals[name], now, window, limits)

    if any(held(name) for name in role.none_of):
        return None
    found: list[Evidence] = []
    for name in role.all_of:
        shown = held(name)
        if not shown:
            return None
        found += shown
    if role.any_of:
        shown = [e for group in role.any_of for e in _together(held, group)]
        if not shown:
            return None
        found = [*shown, *found]
    return found


def _together(held: Callable[[str], list[Evidence]], group: Sequence[str]) -> list[Evidence]:
    """The evidence of all signals of the group; empty as soon as one does not hold."""
    found: list[Evidence] = []
    for name in group:
        shown = held(name)
        if not shown:
            return []
        found += shown
    return found


def _in_order(want: Correlation, proof: Mapping[str, Sequence[Evidence]]) -> bool:
    times = [min((e.t for e in proof[name] if e.kind != "core"), default=None) for name in want.order]
    known = [t for t in times if t is not None]
    return known == sorted(known) and len(set(known)) == len(known)


def _confirmed(
    want: Correlation,
    signals: Mapping[str, Signal],
    job: JobState,
    now: float,
    limits: Limits,
) -> tuple[list[Evidence], bool]:
    extra: list[Evidence] = []
    sure, universe = True, job.universe
    for role in want.confirm:
        found = _members(role, signals, job, universe, now, want.window, limits)
        if found is None or not fits(role.ranks, len(found), len(universe), universe, set()):
            sure = False
        else:
            extra += [e for es in found.values() for e in es]
    return extra, sure


def _unheard(want: Correlation, job: JobState) -> bool:
    """The rule speaks of all ranks, and nothing is known of some."""
    everyone = any(role.ranks in ("rest", "all") for role in want.roles)
    return everyone and any(r not in job.ranks or not job.ranks[r].heard for r in job.universe)
