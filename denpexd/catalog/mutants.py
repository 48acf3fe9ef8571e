"""A rule with one clause taken away or weakened, for each of its clauses.

A clause is worth having if some example ends differently without it. Taken away are signals of a local failure, members
of any_of, all_of and none_of, `order`, `hold`, roles of `confirm`, `except`, `about` and the parameters of facts;
`count` becomes 1, and the size of a role the next that is easier to meet.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from denpexd.catalog.document import Trail
from denpexd.core.rule import Correlation, Role, Rule, Signal
from denpexd.core.support import SUPPORTING

EASIER = dict.fromkeys(("one", "minority", "majority", "all"), "any")
EASIER |= dict.fromkeys(("any", "rest", "none", "somewhere", "few"), "maybe")
"""Sizes of roles: the size to try instead. Nothing is easier to meet than `maybe`."""

_NAMED = ("metric_spread", "overlong", "phase", "phase_alone", "stated_odd", "stated_differs", "stated_same")
REQUIRED = dict.fromkeys(_NAMED, ("name",)) | dict.fromkeys(("mismatch", "differs", "exhausted"), ("what",))
"""Parameters without which a fact says nothing."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """`rule` lacks `clause`, which stands at `trail` of its file.

    `looser`: it matches more than before, so near misses are the likelier ones to tell. It makes no difference to an
    example unless all signals of `seen` were printed and all of `held` have held at some time. `changed`: its signals
    that differ; `heard_anew`: and that in what the scanner lets through. `quoted`: also the reasons that a verdict
    quotes tell it from the rule, since such a clause is there to add one.
    """

    clause: str
    trail: Trail
    rule: Rule
    looser: bool
    seen: frozenset[str] = frozenset()
    held: frozenset[str] = frozenset()
    changed: Mapping[str, Signal] = field(default_factory=dict)
    heard_anew: bool = False
    quoted: bool = False


def mutants(rule: Rule) -> Iterator[Mutant]:
    """Every mutant of the rule."""
    if rule.correlation is None:
        yield from _without_signals(rule)
    else:
        for where, roles in (("roles", rule.correlation.roles), ("confirm", rule.correlation.confirm)):
            for role in roles:
                yield from _of_role(rule, rule.correlation, where, role)
        yield from _of_correlation(rule, rule.correlation)
    for name, signal in rule.signals.items():
        if signal.id == f"{rule.id}.{name}":  # a shared signal is not the rule's to change
            yield from _of_signal(rule, name, signal)


def _without_signals(rule: Rule) -> Iterator[Mutant]:
    for name, signal in rule.signals.items():
        rest = {other: s for other, s in rule.signals.items() if other != name}
        if rest:
            held = frozenset({signal.id})
            trail, quoted = ("signals", name), signal.fact in SUPPORTING
            yield Mutant(f"signal {name}", trail, replace(rule, signals=rest), looser=False, held=held, quoted=quoted)


def _of_role(rule: Rule, want: Correlation, where: str, role: Role) -> Iterator[Mutant]:
    trail = ("correlation", where, role.name)
    lead = role.name if where == "roles" else f"confirm {role.name}"
    if where == "confirm":
        rest = tuple(other for other in want.confirm if other is not role)
        yield Mutant(lead, trail, _correlated(rule, confirm=rest), looser=True, quoted=True)
    conditions = len(role.any_of) + len(role.all_of) + len(role.none_of)
    if conditions < 2 and where == "confirm":
        return  # its only condition is the role itself
    for part, clause, other, looser, held in _members(role):
        mutated = _with_role(rule, want, where, other)
        quoted = where == "confirm" or not looser
        yield Mutant(f"{lead}: {clause}", (*trail, *part), mutated, looser, held=frozenset(held), quoted=quoted)
    if role.ranks in EASIER and (conditions or role.ranks != "rest") and not _speaks_alone(want, role):
        easier = EASIER[role.ranks]
        mutated = _with_role(rule, want, where, replace(role, ranks=easier))
        yield Mutant(f"{lead}: ranks {role.ranks} instead of {easier}", (*trail, "ranks"), mutated, looser=True)


def _speaks_alone(want: Correlation, role: Role) -> bool:
    """Whether a role of any size is the only one that can show anything: a rule without evidence never holds, so its
    ranks are there whatever is said of their number.
    """
    others = [one for one in (*want.roles, *want.confirm) if one is not role]
    return role.ranks == "any" and not any(one.any_of or one.all_of for one in others)


def _members(role: Role) -> Iterator[tuple[Trail, str, Role, bool, tuple[str, ...]]]:
    """For each member of the conditions: where it stands, its name, the role without it, whether that is looser.

    And the signals that have to hold for it to matter: where a group or a none_of goes, those that are in it.
    """
    for number, group in enumerate(role.any_of):
        rest = (*role.any_of[:number], *role.any_of[number + 1 :])
        said = " + ".join(_short(name) for name in group)
        yield ("any_of", number), f"any_of {said}", replace(role, any_of=rest), not rest, group if rest else ()
        for at, name in enumerate(group) if len(group) > 1 else ():
            less = (*group[:at], *group[at + 1 :])
            other = replace(role, any_of=(*role.any_of[:number], less, *role.any_of[number + 1 :]))
            yield ("any_of", number, at), f"any_of {said}, its {_short(name)}", other, True, group[:at]
    for number, name in enumerate(role.all_of):
        rest_all = (*role.all_of[:number], *role.all_of[number + 1 :])
        yield ("all_of", number), f"all_of {_short(name)}", replace(role, all_of=rest_all), True, ()
    for number, name in enumerate(role.none_of):
        rest_none = (*role.none_of[:number], *role.none_of[number + 1 :])
        yield ("none_of", number), f"none_of {_short(name)}", replace(role, none_of=rest_none), True, (name,)


def _of_correlation(rule: Rule, want: Correlation) -> Iterator[Mutant]:
    if want.order:
        yield Mutant("order", ("correlation", "order"), _correlated(rule, order=()), looser=True)
    if want.hold:
        yield Mutant(f"hold {want.hold:g} s", ("correlation", "hold"), _correlated(rule, hold=0.0), looser=True)


def _of_signal(rule: Rule, name: str, signal: Signal) -> Iterator[Mutant]:
    trail = ("signals", name)
    seen = frozenset({signal.id}) if signal.kind == "log" else frozenset[str]()

    def weaker(clause: str, key: str, **change: Any) -> Mutant:
        other = replace(signal, **change)
        changed = replace(rule, signals={**rule.signals, name: other})
        return Mutant(f"signal {name}: {clause}", (*trail, key), changed, True, seen, changed={signal.id: other})

    if signal.exclude is not None:
        mutant = weaker("except", "except", exclude=None)
        yield replace(mutant, seen=frozenset(), heard_anew=signal.kind == "log")
    if signal.count > 1:
        yield weaker(f"count {signal.count}", "count", count=1)
    if signal.about is not None:
        yield weaker("about", "about", about=None)
    for key in signal.params:
        if key not in REQUIRED.get(signal.fact or "", ()):
            yield weaker(key, key, params={k: v for k, v in signal.params.items() if k != key})
    for key in signal.param_matchers:
        if key not in REQUIRED.get(signal.fact or "", ()):
            yield weaker(key, key, param_matchers={k: v for k, v in signal.param_matchers.items() if k != key})


def _correlated(rule: Rule, **change: Any) -> Rule:
    assert rule.correlation is not None
    return replace(rule, correlation=replace(rule.correlation, **change))


def _with_role(rule: Rule, want: Correlation, where: str, role: Role) -> Rule:
    roles = want.roles if where == "roles" else want.confirm
    return _correlated(rule, **{where: tuple(role if other.name == role.name else other for other in roles)})


def _short(signal_id: str) -> str:
    return signal_id.rpartition(".")[2]
