"""A rule as the core sees it, frozen, compiled, without YAML; and which rules look at what.

`catalog/load.py` makes these from files. Patterns arrive as Matcher objects, so the core knows no regex engine.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol, TypeVar, cast

from denpexd.core.events import UNKNOWN_RANK

T = TypeVar("T")

TIMED = frozenset({"stalled", "silent", "worked_on", "dump"})  # facts that time alone can make true


class Match(Protocol):
    """What a search found."""

    def groupdict(self) -> dict[str, str]: ...


class Matcher(Protocol):
    """A compiled linear-time pattern with search semantics."""

    def search(self, text: str) -> Match | None: ...


@dataclass(frozen=True, slots=True)
class Signal:
    """What ONE rank can show: exactly one of `log`, `frame`, `fact` (see `kind`).

    `id` is "<file>.<name>" for shared signals and "<rule id>.<name>" for a rule's own. `role` (shared signals only):
    progress, phase, collateral, teardown, ambiguous, advice, handled, caught, event (see `event`). `count`: at least N
    times. `about`: name of the capture that lists the global ranks the line speaks about, instead of the rank that
    printed it. `lasting`: it belongs to a degradation, so it does not lapse when training goes on. `quantity` (role
    metric): what its number is; such a signal is not scanned for but tried on progress lines ("duration" is scanned).
    """

    id: str
    kind: str
    means: str
    role: str | None = None
    pattern: str | None = None
    matcher: Matcher | None = None
    exclude: Matcher | None = None
    count: int = 1
    about: str | None = None
    lasting: bool = False
    phase: str | None = None
    quantity: str | None = None
    event: str | None = None
    fact: str | None = None
    params: Mapping[str, str | int | float | bool] = field(default_factory=dict)
    param_matchers: Mapping[str, Matcher] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Role:
    """A set of ranks. `ranks`: one | minority | majority | any | few | maybe | none | all | rest |
    launcher | somewhere. Signals by id.

    Each item of `any_of` is a group of signals that must hold together (most groups have one member).
    """

    name: str
    ranks: str
    any_of: tuple[tuple[str, ...], ...] = ()
    all_of: tuple[str, ...] = ()
    none_of: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Correlation:
    """Which sets of ranks show what, and when. Times in seconds. Roles are disjoint and assigned in order.

    `initiating` and `collateral` name roles; an empty `initiating` means that no side can be named.
    `confirm` names roles-with-signals that are not needed, but whose absence makes the verdict "likely".
    """

    roles: tuple[Role, ...]
    window: float = 3600.0
    hold: float = 0.0
    order: tuple[str, ...] = ()
    confirm: tuple[Role, ...] = ()
    initiating: tuple[str, ...] = ()
    collateral: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """One remediation step. `risk`: read-only | config | restart | disruptive."""

    do: str
    risk: str
    command: str | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """The encyclopedia text of one failure; `{role}` and `{initiating}` style placeholders are filled by explain."""

    title: str
    category: str
    severity: str
    status: str
    domain: str
    quick_answer: str
    root_cause: str
    mechanism: str
    remediation: tuple[Step, ...]
    verification: str
    prevention: str
    fallback: str = ""
    mitigation: str = ""
    resume_safe: str = "unknown"
    aliases: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    affects: tuple[str, ...] = ()
    scope: tuple[str, ...] = ()
    symptoms: tuple[tuple[str, str], ...] = ()
    confirm: tuple[str, ...] = ()
    missing: tuple[tuple[str, str], ...] = ()
    false_positives: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    related: tuple[str, ...] = ()
    code: tuple[tuple[str, str], ...] = ()
    audience: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rule:
    """One failure. A rule without `correlation` is a local failure: the ranks that show any of `signals` first.

    `precision`: "exact" names the defect, "general" is true but leads less far, "symptom" is what is left when
    nothing explains it. `stops`: the failure stops training (one incident per stop); else it is a degradation.
    """

    id: str
    entry: Entry
    signals: Mapping[str, Signal]
    correlation: Correlation | None
    precision: str = "exact"
    stops: bool = True
    supersedes: tuple[str, ...] = ()
    examples: tuple["Example", ...] = ()


@dataclass(frozen=True, slots=True)
class Example:
    """A timeline in the rule file: fires with these ranks by this time, or must not fire (`fires` False)."""

    name: str
    world_size: int
    observe_until: float
    timeline: str
    fires: bool
    initiating: tuple[int, ...] = ()
    collateral: tuple[int, ...] | None = None
    by: float | None = None


@dataclass(frozen=True)
class Catalog:
    """Everything loaded: rules by id, shared and own signals by id, and the ids of rules by alias."""

    rules: Mapping[str, Rule]
    signals: Mapping[str, Signal]
    aliases: Mapping[str, str] = field(default_factory=dict)

    @cached_property
    def index(self) -> "Index":
        """The rules by what they depend on, made once for all jobs."""
        return Index(self)

    @cached_property
    def below(self) -> Mapping[str, frozenset[str]]:
        """For each rule the ids that it explains better, made once for all jobs."""
        return superseded(self.rules)


def superseded(rules: Mapping[str, Rule]) -> dict[str, frozenset[str]]:
    """For each rule the ids that it explains better, transitively."""
    closure: dict[str, frozenset[str]] = {}

    def reach(rule_id: str, path: frozenset[str]) -> frozenset[str]:
        if rule_id in closure or rule_id in path or rule_id not in rules:
            return closure.get(rule_id, frozenset())
        below = set(rules[rule_id].supersedes)
        for other in rules[rule_id].supersedes:
            below |= reach(other, path | {rule_id})
        return frozenset(below)

    for rule_id in rules:
        closure[rule_id] = reach(rule_id, frozenset())
    return closure


def free_ranks(size: str, universe: Sequence[int], taken: Collection[int]) -> list[int]:
    """The ranks that a role of that size may take; `somewhere` takes none away, so it looks at all and the launcher."""
    if size == "launcher":
        return [UNKNOWN_RANK]
    return [*universe, UNKNOWN_RANK] if size == "somewhere" else [r for r in universe if r not in taken]


def fits(size: str, count: int, world: int, universe: Sequence[int], taken: Collection[int]) -> bool:
    """Whether `count` ranks of a world of that many are what a role of that size asks for."""
    if size in ("one", "none"):
        return count == (size == "one")
    if size == "minority":
        return 1 <= count <= world / 2
    if size == "majority":
        return count > world / 2
    if size == "rest":
        return count == len([r for r in universe if r not in taken])
    return count >= 1 or size in ("maybe", "few", "launcher")  # any, all, somewhere: at least one


class Index:
    """The rules of a catalogue by the signals, facts and stacks they depend on."""

    def __init__(self, catalog: Catalog) -> None:
        self.timed: set[str] = set()  # rules about silence: judged at every tick
        self.kernel: set[str] = set()  # rules about lines of the kernel
        self._by_signal: dict[str, set[str]] = {}
        self._by_fact: dict[str, set[str]] = {}
        self._known: dict[str, object] = {}
        for rule in catalog.rules.values():
            for signal_id in used_signals(rule):
                signal = catalog.signals[signal_id]
                self._by_signal.setdefault(signal_id, set()).add(rule.id)
                if signal.kind != "log":
                    self._by_fact.setdefault(signal.fact or "frame", set()).add(rule.id)
                if signal.role == "kernel" or signal.fact == "xid":
                    self.kernel.add(rule.id)
                if signal.fact in TIMED or (signal.fact == "told_to_stop" and "for" in signal.params):
                    self.timed.add(rule.id)

    def once(self, what: str, make: Callable[[], T]) -> T:
        """Something that is worked out of the catalogue once for all jobs; it must not know of any job."""
        if what not in self._known:
            self._known[what] = make()
        return cast(T, self._known[what])

    def signal(self, signal_id: str) -> set[str]:
        """Rules that look at this signal."""
        return self._by_signal.get(signal_id, set())

    def facts(self, *names: str) -> set[str]:
        """Rules that look at one of these facts ("frame": at a stack)."""
        return {rule for name in names for rule in self._by_fact.get(name, ())}


def used_signals(rule: Rule) -> set[str]:
    """Ids of all signals a rule looks at, shared ones included."""
    used = {s.id for s in rule.signals.values()}
    if rule.correlation:
        for role in (*rule.correlation.roles, *rule.correlation.confirm):
            used |= {*role.all_of, *role.none_of, *(name for group in role.any_of for name in group)}
    return used
