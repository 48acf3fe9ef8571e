"""A rule file as it is written: head, signals, correlation, entry, examples. See docs/rule-format.md."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StrictBool, StrictInt, WithJsonSchema

from denpexd.catalog.fields import LocalName, Model, RuleId, Seconds, SignalName, Text
from denpexd.catalog.signals import SHARED_KEYS, Signal

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
