"""A rule file as it is written: head, signals, correlation, entry, examples. See docs/rule-format.md."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Discriminator, Field, StrictBool, StrictInt, Tag, WithJsonSchema, model_validator

from denpexd.catalog.fact_signals import Fact
from denpexd.catalog.fields import AnySignal, Blame, LocalName, Model, Re2, RuleId, Seconds, SignalName, Text
from denpexd.catalog.patterns import group_names

SHARED_KEYS = ("role", "phase", "quantity", "event", "samples", "look_alikes")
"""Keys that only rules/signals/*.yaml may use."""

Category = Literal[
    "hang", "crash", "startup", "memory", "data", "storage", "checkpoint", "numerics", "network",
    "hardware", "performance", "framework", "environment", "scheduler", "serving",
]  # fmt: skip
Severity = Literal["critical", "high", "medium", "low"]

REQUIRED_TEXTS = (
    "quick_answer", "root_cause", "mechanism", "symptoms", "confirm", "remediation", "fallback", "verification",
    "prevention", "false_positives", "references", "related", "missing", "resume_safe",
)  # fmt: skip
"""Keys of the entry that a shipped rule has; a site's own quick rule may leave them out (`load(strict=False)`)."""


class LogSignal(AnySignal):
    """A pattern found within one line.

    `about` names the capture that lists the ranks the line speaks about; `of` says whom a line of the kernel blames.
    """

    log: Re2
    except_: Re2 | None = Field(None, alias="except")
    about: str | None = None
    of: Blame | None = None
    broad: Annotated[Text, Field(description="why the pattern has no required literal")] | None = None

    @model_validator(mode="after")
    def _about_is_a_capture(self) -> "LogSignal":
        if self.about and self.about not in group_names(self.log):
            raise ValueError(f"`about: {self.about}` needs a capture (?P<{self.about}>...) in the pattern")
        return self


class FrameSignal(AnySignal):
    """A pattern found in a frame of the rank's main thread, written `function path` or `Class.function path`."""

    frame: Re2
    except_: Re2 | None = Field(None, alias="except")
    outside: Re2 | None = None


class UseSignal(Model):
    """A shared signal under a name of the rule's own."""

    use: SignalName


def _kind(value: Any) -> str | None:
    given = [key for key in ("log", "frame", "fact", "use") if isinstance(value, Mapping) and key in value]
    return f"<{given[0]}>" if len(given) == 1 else None


Signal = Annotated[
    Annotated[LogSignal, Tag("<log>")]
    | Annotated[FrameSignal, Tag("<frame>")]
    | Annotated[Fact, Tag("<fact>")]
    | Annotated[UseSignal, Tag("<use>")],
    Discriminator(
        _kind, custom_error_type="signal_kind", custom_error_message="a signal has exactly one of log, frame, fact, use"
    ),
]


class SignalFile(Model):
    """rules/signals/<file>.yaml."""

    schema_: Literal[1] = Field(alias="schema")
    signals: dict[LocalName, Signal] = Field(min_length=1)

    @model_validator(mode="after")
    def _phase_belongs_to_its_role(self) -> "SignalFile":
        for name, one in self.signals.items():
            if isinstance(one, UseSignal):
                raise ValueError(f"signal '{name}': `use` is for rules; a shared signal says what it matches")
            if (one.role == "phase") != (one.phase is not None):
                raise ValueError(f"signal '{name}': `role: phase` and `phase: <name>` go together")
            if one.quantity and (one.role != "metric" or not isinstance(one, LogSignal) or "(?P<value>" not in one.log):
                raise ValueError(
                    f"signal '{name}': `quantity` needs `role: metric` and a pattern that captures `value`"
                )
            if (one.role == "event") != (one.event is not None):
                raise ValueError(f"signal '{name}': `role: event` and `event: <name>` go together")
        return self


def _grouped(value: Any) -> Any:
    return [[item] if isinstance(item, str) else item for item in value] if isinstance(value, list) else value


Groups = Annotated[
    tuple[Annotated[tuple[SignalName, ...], Field(min_length=1)], ...],
    BeforeValidator(_grouped),
    WithJsonSchema(
        {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}}
    ),
]
"""Names of signals, or lists of names that must hold together."""


class Role(Model):
    """A set of ranks."""

    ranks: Literal["one", "minority", "few", "majority", "any", "maybe", "none", "all", "rest", "launcher", "somewhere"]
    any_of: Groups = ()
    all_of: tuple[SignalName, ...] = ()
    none_of: tuple[SignalName, ...] = ()


def _listed(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


RoleNames = Annotated[
    tuple[LocalName, ...],
    BeforeValidator(_listed),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]}),
]


class Correlation(Model):
    """Which sets of ranks show what, and when."""

    window: Annotated[Seconds, Field(gt=0)] = 3600.0
    hold: Seconds = 0.0
    roles: dict[LocalName, Role] = Field(min_length=1)
    order: tuple[LocalName, ...] = ()
    confirm: dict[LocalName, Role] = Field(default_factory=dict)
    initiating: RoleNames
    collateral: RoleNames = ()


class Symptom(Model):
    """What a person sees, and why."""

    see: Text
    because: Text


class Step(Model):
    """One step of the remediation."""

    do: Text
    risk: Literal["read-only", "config", "restart", "disruptive"]
    command: Text | None = None


class MissingFact(Model):
    """A fact that would make the verdict certain, and how to get it."""

    fact: Text
    how: Text


class Snippet(Model):
    """Annotated code for one stack."""

    stack: Text
    snippet: Text


class Audience(Model):
    """One line each."""

    on_call: Text | None = None
    engineer: Text | None = None
    manager: Text | None = None


class Expected(Model):
    """Who initiates, who is collateral (not compared if left out), by when."""

    initiating: tuple[Annotated[StrictInt, Field(ge=0)], ...]
    collateral: tuple[Annotated[StrictInt, Field(ge=0)], ...] | None = None
    by: Seconds | None = None


def _expectation(value: Any) -> Any:
    if value in ("none", None):
        return None
    if not isinstance(value, dict):
        raise ValueError("`expect` is `none` or {initiating: [...], collateral: [...], by: seconds}")
    return value


class Example(Model):
    """A timeline and what it must lead to."""

    name: Text
    world_size: Annotated[StrictInt, Field(ge=1, le=100_000)]
    observe_until: Annotated[Seconds, Field(gt=0)]
    timeline: Annotated[str, Field(min_length=1)]
    expect: Annotated[Expected | None, BeforeValidator(_expectation)]


class RuleFile(Model):
    """rules/<category>/<id>.yaml."""

    schema_: Literal[1] = Field(alias="schema")
    id: RuleId
    title: Text
    aliases: tuple[RuleId, ...] = ()
    category: Category
    severity: Severity
    status: Literal["experimental", "stable", "deprecated"]
    tags: tuple[Text, ...] = ()
    affects: tuple[Text, ...] = ()
    domain: Literal["code", "configuration", "data", "infrastructure", "hardware"]
    scope: tuple[Literal["training", "evaluation", "inference"], ...] = Field(min_length=1)
    precision: Literal["exact", "general", "symptom"] = "exact"
    stops: StrictBool = True
    supersedes: tuple[RuleId, ...] = ()

    signals: dict[LocalName, Signal] = Field(default_factory=dict)
    correlation: Correlation | None = None

    quick_answer: Text = ""
    root_cause: Text = ""
    mechanism: Text = ""
    symptoms: tuple[Symptom, ...] = Field((), min_length=1)
    confirm: tuple[Text, ...] = Field((), min_length=1)
    remediation: tuple[Step, ...] = Field((), min_length=1)
    fallback: Text = ""
    mitigation: Text = ""
    verification: Text = ""
    prevention: Text = ""
    false_positives: tuple[Text, ...] = Field((), min_length=1)
    references: tuple[Text, ...] = Field((), min_length=1)
    related: tuple[RuleId, ...] = ()
    missing: tuple[MissingFact, ...] = ()
    resume_safe: Annotated[Text, Field(pattern=r"^(yes|no|check)\b")] = ""
    code: tuple[Snippet, ...] = ()
    audience: Audience = Field(default_factory=Audience)

    examples: tuple[Example, ...] = ()


def schema_file() -> Path:
    """Where the JSON Schema is installed, for the first line of a rule file."""
    return Path(__file__).parent / "rule.schema.json"


def json_schema() -> dict[str, Any]:
    """The JSON Schema of a rule file, for editors: as strict as `denpexd rules check` about keys and words."""
    schema = RuleFile.model_json_schema(by_alias=True)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "denpexd rule"
    schema["required"] = [*schema["required"], *REQUIRED_TEXTS, "examples"]
    for definition in schema["$defs"].values():
        properties = definition["properties"]
        if "means" in properties:
            for key in SHARED_KEYS:
                properties.pop(key, None)
    for key in REQUIRED_TEXTS:
        schema["properties"][key].pop("default", None)
    schema["$defs"]["Example"]["properties"]["expect"] = {"anyOf": [{"const": "none"}, {"$ref": "#/$defs/Expected"}]}
    return schema
