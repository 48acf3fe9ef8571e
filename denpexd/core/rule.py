"""A rule as the core sees it: frozen, compiled, without YAML.

`catalog/load.py` makes these from files. Patterns arrive as Matcher objects, so the core knows no regex engine.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol


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


@dataclass(frozen=True, slots=True)
class Catalog:
    """Everything loaded: rules by id, shared and own signals by id, and the ids of rules by alias."""

    rules: Mapping[str, Rule]
    signals: Mapping[str, Signal]
    aliases: Mapping[str, str] = field(default_factory=dict)
