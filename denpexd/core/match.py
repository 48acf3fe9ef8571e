"""One rule against the state of the job: does it hold, for which ranks, and on whose word?

Two kinds. A rule with `correlation` assigns disjoint sets of ranks to its roles. A rule without is a local failure.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from denpexd.core.cadence import Limits
from denpexd.core.candidate import Candidate
from denpexd.core.events import UNKNOWN_RANK
from denpexd.core.evidence import Evidence
from denpexd.core.facts import holds, possible
from denpexd.core.local import local
from denpexd.core.rank import RankState
from denpexd.core.rule import Correlation, Role, Rule, Signal, fits, free_ranks
from denpexd.core.startup import ABSENT
from denpexd.core.state import JobState
from denpexd.core.testimony import weighed


def candidate(rule: Rule, signals: Mapping[str, Signal], job: JobState, now: float, limits: Limits) -> Candidate | None:
    """The rule's verdict on the job now, or None."""
    if rule.correlation is None:
        found = local(rule, job, now, limits)
    else:
        found = _correlated(rule, rule.correlation, signals, job, now, limits)
    return None if found is None else weighed(found, job, now)


def _correlated(
    rule: Rule, want: Correlation, signals: Mapping[str, Signal], job: JobState, now: float, limits: Limits
) -> Candidate | None:
    universe = job.voices
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
