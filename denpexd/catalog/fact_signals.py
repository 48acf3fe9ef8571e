"""Signals that are facts: which facts code establishes, and the parameters of each."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, StrictBool, StrictInt

from denpexd.catalog.fields import AnySignal, Blame, Codes, LocalName, Numel, PhaseName, Re2, Seconds, Signo

StoppedBy = Literal[
    "time_limit", "preemption", "spot", "eviction", "probe", "node_failure", "launcher", "cancelled", "signal",
    "memory_limit", "person", "program", "rescaled",
]  # fmt: skip


class FactSignal(AnySignal):
    """A fact that code establishes; its parameters are the further keys. `re2_keys`: those that are patterns."""

    re2_keys: ClassVar[tuple[str, ...]] = ()
    fact: str

    def parameters(self) -> dict[str, str | int | float | bool]:
        """The parameters that were given, by the names the file uses."""
        own = {name: field for name, field in type(self).model_fields.items() if name not in FactSignal.model_fields}
        given = {field.alias or name: getattr(self, name) for name, field in own.items()}
        return {key: value for key, value in given.items() if value is not None}


class Raised(FactSignal):
    """An uncaught exception."""

    re2_keys = ("type", "message", "in", "except")
    fact: Literal["raised"]
    type: Re2 | None = None
    message: Re2 | None = None
    in_: Re2 | None = Field(None, alias="in")
    alone: StrictBool | None = None
    except_: Re2 | None = Field(None, alias="except")


class Exit(FactSignal):
    """The process is gone in this way."""

    fact: Literal["exit"]
    code: StrictInt | None = None
    signal: Signo | None = None
    failed: StrictBool | None = None
    unexplained: StrictBool | None = None
    by: Literal["process", "launcher"] | None = None


class LeftFirst(FactSignal):
    """The process ended before any rank reported another."""

    fact: Literal["left_first"]
    code: StrictInt | None = None


class Stalled(FactSignal):
    """The job makes no progress."""

    fact: Literal["stalled"]
    budget: StrictBool | None = None


class WorkedOn(FactSignal):
    """The rank went on working while others waited for it until their timeout."""

    fact: Literal["worked_on"]
    by: Literal["progress", "output"] | None = None


class Silent(FactSignal):
    """The rank has printed nothing for that long (by default: what a page needs)."""

    fact: Literal["silent"]
    for_: Seconds | None = Field(None, alias="for")


class InPhase(FactSignal):
    """The rank is in a phase, alone or not."""

    fact: Literal["phase", "phase_alone"]
    name: PhaseName


class Pending(FactSignal):
    """The rank stands in a collective of this kind."""

    re2_keys = ("op",)
    fact: Literal["pending"]
    op: Re2 | None = None
    numel: Numel | None = None
    seq: Numel | None = None


class Mismatch(FactSignal):
    """The rank differs from the others of its process group."""

    fact: Literal["mismatch"]
    what: Literal["op", "seq", "numel", "rows", "shape", "call", "site"]


class Differs(FactSignal):
    """Ranks of the same process group stand in different collectives, or in the same kind with different sizes."""

    fact: Literal["differs"]
    what: Literal["op", "numel", "shape", "call", "site"]


class DumpShows(FactSignal):
    """What the Flight Recorder dumps of all ranks show of this one."""

    fact: Literal["dump"]
    shows: Literal["out_of_order", "crossed", "other_call", "other_size", "absent", "passed", "waits"]


class OddStack(FactSignal):
    """The rank's stack ends elsewhere than those of most ranks, which stand together at a frame that fits `rest`.

    `pair`: of two ranks the one that does not stand at such a frame, if the other does.
    """

    re2_keys = ("rest",)
    fact: Literal["odd_stack"]
    rest: Re2 | None = None
    pair: StrictBool | None = None


class MetricSpread(FactSignal):
    """The same metric at the same step differs across ranks by more than `relative`."""

    re2_keys = ("name",)
    fact: Literal["metric_spread"]
    name: Re2
    relative: Annotated[float, Field(gt=0)] | None = None
    after_equal: StrictBool | None = None


class MetricOdd(FactSignal):
    """The rank's value differs from that of a majority, which agrees."""

    re2_keys = ("name",)
    fact: Literal["metric_odd"]
    name: Re2
    relative: Annotated[float, Field(gt=0)] | None = None


class Parted(FactSignal):
    """A number that was always the same on several ranks differs; `odd`: this rank's from that of most of them."""

    re2_keys = ("name",)
    fact: Literal["parted"]
    name: Re2 | None = None
    steps: Annotated[StrictInt, Field(ge=2, le=8)] | None = None
    odd: StrictBool | None = None


class NonFinite(FactSignal):
    """A number has been nan or inf that many readings in a row; `first`: before it was on other ranks."""

    re2_keys = ("metric",)
    fact: Literal["nonfinite"]
    metric: Re2 | None = None
    times: Annotated[StrictInt, Field(ge=1)] | None = None
    first: StrictBool | None = None


class Spike(FactSignal):
    """A number jumped to `factor` times its usual level and has stayed there for so many readings and steps."""

    re2_keys = ("metric",)
    fact: Literal["spike"]
    metric: Re2 | None = None
    factor: Annotated[float, Field(gt=1)] | None = None
    times: Annotated[StrictInt, Field(ge=1, le=16)] | None = None
    steps: Annotated[StrictInt, Field(ge=1)] | None = None


class Slow(FactSignal):
    """The rank needs `factor` times as long as the others, for so long; `uneven`: some rank does, unnamed."""

    fact: Literal["slow", "uneven"]
    factor: Annotated[float, Field(ge=1.3)] | None = None
    for_: Seconds | None = Field(None, alias="for")


class LateRank(FactSignal):
    """The rank has come later than the others to every step, for so long."""

    fact: Literal["late"]
    for_: Seconds | None = Field(None, alias="for")


class Throughput(FactSignal):
    """Steps take `factor` times as long as before, for so long; `rate`: and no printed rate says otherwise."""

    fact: Literal["throughput"]
    factor: Annotated[float, Field(gt=1)] | None = None
    for_: Seconds | None = Field(None, alias="for")
    rate: StrictBool | None = None


class Overlong(FactSignal):
    """A phase takes `factor` times as long as it used to, and at least `least`."""

    fact: Literal["overlong"]
    name: PhaseName
    factor: Annotated[float, Field(gt=1)] | None = None
    least: Seconds | None = None


class RankIs(FactSignal):
    """The rank has this number (also one that was never heard from)."""

    fact: Literal["rank_is"]
    number: Annotated[StrictInt, Field(ge=0)]


class Stated(FactSignal):
    """What lines say of the rank, in the capture `name`."""

    re2_keys = ("value",)
    fact: Literal["stated"]
    name: LocalName
    value: Re2


class StatedOfOthers(FactSignal):
    """What lines say of the rank, in the capture `name`, compared with what they say of others."""

    fact: Literal["stated_odd", "stated_differs", "stated_same"]
    name: LocalName


class Xid(FactSignal):
    """NVIDIA's driver reported one of these error codes, and none of `unless`.

    `of`: whose it is, the device's (default) or a process's.
    """

    fact: Literal["xid"]
    code: Codes
    unless: Codes | None = None
    of: Blame | None = None


class ToldToStop(FactSignal):
    """Somebody outside told the job, or the node of this rank, to stop. `for_`: it has not come back for that long."""

    fact: Literal["told_to_stop"]
    by: StoppedBy
    for_: Seconds | None = Field(None, alias="for")


class OomKilled(FactSignal):
    """Kernel, container runtime or scheduler say that the process was killed for its memory."""

    fact: Literal["oom_killed"]
    by: Literal["kernel", "cgroup", "slurm", "kubernetes"] | None = None


class Exhausted(FactSignal):
    """Something was full on its node when it failed; in a rule without correlation it only adds evidence."""

    fact: Literal["exhausted"]
    what: Literal["shm", "disk", "files"]


class Restarted(FactSignal):
    """The launcher has started the workers again and again, and they ended the same way `times` times (default 3)."""

    fact: Literal["restarted"]
    times: Annotated[StrictInt, Field(ge=2)] | None = None


class GpuMemory(FactSignal):
    """What the numbers of an out-of-memory message say about the memory that was missing."""

    fact: Literal["gpu_memory"]
    why: Literal["fragmented", "other_process"]


class PlainFact(FactSignal):
    """A fact without parameters."""

    fact: Literal[
        "gone", "frozen", "disk_sleep", "behind", "not_in_collective", "no_report", "timed_out", "reported",
        "failed_itself", "busy", "fewer_steps", "trained", "ended", "missing_rank", "unreported", "named_peer",
        "whole_nodes", "complete", "several_nodes", "setting_odd", "settings_differ", "unreachable", "gpu_throttled",
        "gpu_ecc", "gpu_lost", "gpu_idle", "cpu_idle",
    ]  # fmt: skip


Fact = Annotated[
    Raised | Exit | Stalled | WorkedOn | LeftFirst | Silent | InPhase | Pending | Mismatch | Differs | DumpShows
    | OddStack | MetricSpread | RankIs | Stated | StatedOfOthers | Xid | MetricOdd | Parted | NonFinite | Spike | Slow
    | LateRank | Throughput | Overlong | ToldToStop | OomKilled | Exhausted | Restarted | GpuMemory | PlainFact,
    Field(discriminator="fact"),
]  # fmt: skip
