"""What signals of every kind have in common, and the words their keys may hold."""

from typing import Annotated, Literal

from pydantic import Field, StrictInt

from denpexd.catalog.fields import Line, Model, Text

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
    "time_limit", "preemption", "spot", "eviction", "node_failure", "launcher", "cancelled", "signal", "person",
    "program", "rescaled", "oom_kernel", "oom_cgroup", "oom_slurm", "oom_kubernetes",
]  # fmt: skip


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
