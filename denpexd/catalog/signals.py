"""Signals as they are written: one log line, one stack frame, one fact, or the use of a shared signal."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from denpexd.catalog.fact_signals import Fact
from denpexd.catalog.fields import AnySignal, Blame, LocalName, Model, Re2, SignalName, Text
from denpexd.catalog.patterns import group_names

SHARED_KEYS = ("role", "phase", "quantity", "event", "samples", "look_alikes")
"""Keys that only rules/signals/*.yaml may use."""


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
