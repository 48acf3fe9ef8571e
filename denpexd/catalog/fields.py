"""What every part of a rule file is made of: the strict model and the kinds of text, numbers and times."""

import re
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from denpexd.catalog.patterns import compile_pattern

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d)?")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


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
