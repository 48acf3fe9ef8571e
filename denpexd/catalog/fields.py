"""What every part of a rule file is made of: the strict model, kinds of values, the keys that every signal has."""

import re
import signal as signals
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictInt,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from denpexd.catalog.patterns import compile_pattern

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}

PhaseName = Literal["train", "eval", "checkpoint", "compile", "load", "init", "epoch_end", "end"]
SharedRole = Literal[
    "progress",
    "phase",
    "collateral",
    "teardown",
    "ambiguous",
    "advice",
    "handled",
    "caught",
    "config",
    "metric",
    "kernel",
    "device",
    "event",
]
Blame = Literal["device", "process", "node"]
Quantity = Literal[
    "loss", "gradient_norm", "rate", "step_time", "own_time", "wait_time", "loss_scale", "size", "duration"
]
EventName = Literal[
    "time_limit", "preemption", "spot", "eviction", "probe", "node_failure", "launcher", "cancelled", "signal",
    "memory_limit", "person", "program", "rescaled", "oom_kernel", "oom_cgroup", "oom_slurm", "oom_kubernetes",
]  # fmt: skip


class Model(BaseModel):
    """Unknown keys are errors; the validation context, if any, learns which keys are valid where (see validation)."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _tell_keys(cls, data: Any, info: ValidationInfo) -> Any:
        if isinstance(info.context, dict) and isinstance(data, dict):
            info.context[id(data)] = tuple(field.alias or name for name, field in cls.model_fields.items())
        return data


def _seconds(value: Any) -> Any:
    if isinstance(value, str) and (found := _DURATION.fullmatch(value.strip())):
        return float(found[1]) * _SECONDS[found[2] or "s"]
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("expected a time such as 30s, 10m or 1h")
    return float(value)


def _compiles(pattern: str) -> str:
    compile_pattern(pattern)
    return pattern


def _filled(text: str) -> str:
    if not text.strip():
        raise ValueError("must not be empty")
    return text.strip()


def _one_line(text: str) -> str:
    if "\n" in text:
        raise ValueError("must be one line")
    return text


Seconds = Annotated[
    float,
    BeforeValidator(_seconds),
    Field(ge=0),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "string", "pattern": f"^{_DURATION.pattern}$"}]}),
]
"""A time: a number of seconds, or a text such as 30s, 10m, 1h."""

Re2 = Annotated[str, AfterValidator(_compiles)]
"""A pattern that RE2 compiles."""

Text = Annotated[str, AfterValidator(_filled), Field(min_length=1)]
"""A text that says something."""

Line = Annotated[str, AfterValidator(_one_line), Field(min_length=1)]
"""One line of a log, kept as it is."""

RuleId = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$")]
"""Lower case words with hyphens."""

LocalName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$")]
"""Lower case words with underscores: a signal or a role inside its file."""

SignalName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]*(\.[a-z][a-z0-9_]*)?$")]
"""A signal of the rule, or `<file>.<name>`."""


def _signal_number(value: Any) -> Any:
    if isinstance(value, str):
        name = value.upper() if value.upper().startswith("SIG") else f"SIG{value.upper()}"
        if name not in signals.Signals.__members__:
            raise ValueError(f"'{value}' is not the name of a signal such as SIGKILL")
        return int(signals.Signals[name])
    return value


def _text_of_number(value: Any) -> Any:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


Signo = Annotated[
    StrictInt, BeforeValidator(_signal_number), Field(ge=1, le=64), WithJsonSchema({"type": ["integer", "string"]})
]
Numel = Annotated[
    str,
    BeforeValidator(_text_of_number),
    Field(pattern=r"^(odd|[<>]?[0-9]+)$"),
    WithJsonSchema(
        {"anyOf": [{"type": "integer", "minimum": 0}, {"type": "string", "pattern": "^(odd|[<>]?[0-9]+)$"}]}
    ),
]
Codes = Annotated[
    str,
    BeforeValidator(_text_of_number),
    Field(pattern=r"^\d{1,3}(, ?\d{1,3})*$"),
    WithJsonSchema({"anyOf": [{"type": "integer"}, {"type": "string", "pattern": r"^\d{1,3}(, ?\d{1,3})*$"}]}),
]


class AnySignal(Model):
    """The keys of every kind."""

    means: Text
    count: Annotated[StrictInt, Field(ge=1)] = 1
    role: SharedRole | None = None
    phase: PhaseName | None = None
    quantity: Quantity | None = None
    event: EventName | None = None
    samples: tuple[Line, ...] = ()
    look_alikes: tuple[Line, ...] = ()
