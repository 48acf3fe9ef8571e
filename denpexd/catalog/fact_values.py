"""Parameters of facts that a rule may write as a name, a number or a comparison."""

import signal as signals
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, StrictInt, WithJsonSchema


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
