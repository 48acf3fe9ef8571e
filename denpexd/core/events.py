"""What the core is fed and what it answers: the whole vocabulary between the pure core and the world.

Rules of this file: values only, frozen, no behaviour beyond trivial accessors. `t` is seconds on one axis that the
maker of the events chose (monotonic live, the recording's time in replay, the log's own time in diagnose); the core
knows no other time. `rank` is the GLOBAL rank; UNKNOWN_RANK means the launcher or a stream whose rank is not known.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from denpexd.core.flight import Dump

UNKNOWN_RANK = -1


@dataclass(frozen=True, slots=True)
class Activity:
    """A rank wrote `bytes` bytes; coalesced per chunk, never one a line."""

    t: float
    rank: int
    source: str
    bytes: int
    history: bool = False


@dataclass(frozen=True, slots=True)
class Hit:
    """One line matched one signal.

    `text` is the line without prefix and colours, `fields` the named groups that took part.
    `handled`: the line itself says that the program dealt with it (a warning level, "skipping", "retrying").
    """

    t: float
    rank: int
    signal: str
    source: str
    offset: int
    text: str
    fields: Mapping[str, str] = field(default_factory=dict)
    handled: bool = False
    history: bool = False


@dataclass(frozen=True, slots=True)
class Frame:
    """One stack frame: `function` qualified as the source gave it, `path` without site-packages prefix, line or 0."""

    function: str
    path: str
    line: int = 0

    @property
    def canonical(self) -> str:
        """`function path` with the class dropped: what rules match (Python before 3.11 has no class)."""
        return f"{self.function.rsplit('.', 1)[-1]} {self.path}"

    @property
    def qualified(self) -> str:
        """`Class.function path` where the source knows the class."""
        return f"{self.function} {self.path}"


@dataclass(frozen=True, slots=True)
class Frames:
    """The stack of one rank's main thread, innermost frame first.

    `kind`: "py-spy" (a look at a live process, by py-spy or torch's worker server), "faulthandler" (printed by the
    program, by clock or signal), "traceback" (the exception that ended it), "watchdog" (the stack of the failed
    collective, printed by torch).
    `ticks`: CPU ticks used so far by the process when known; `state`: the letter of /proc stat when known.
    `others`: stacks of further threads and worker processes, each with its label.
    """

    t: float
    rank: int
    kind: str
    frames: tuple[Frame, ...]
    source: str = ""
    offset: int = 0
    ticks: int | None = None
    state: str | None = None
    others: tuple[tuple[str, tuple[Frame, ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class Raised:
    """A Python exception as printed by a rank, with everything it was chained from.

    `chain` is (type, message) from the exception that ended it back to the first cause; worker and remote
    tracebacks quoted inside the message are part of it. `uncaught`: printed by the interpreter's or torch's hook,
    not by a logging call. `logged`: came with a log header, so the program lived on at least to print it.
    `process`: whose line it is according to its prefix (`pid=812` or `pid=812, ip=10.0.0.3`), where that names no rank.
    """

    t: float
    rank: int
    source: str
    offset: int
    text: str
    chain: tuple[tuple[str, str], ...]
    frames: tuple[Frame, ...]
    uncaught: bool = False
    history: bool = False
    process: str = ""


@dataclass(frozen=True, slots=True)
class Exit:
    """The process of a rank is gone. `code`: as a parent sees it (negative = signal); None when nobody saw it."""

    t: float
    rank: int
    code: int | None = None
    source: str = "process"


@dataclass(frozen=True, slots=True)
class Fact:
    """Anything else a witness states about a rank: see docs/rule-format.md, table of facts."""

    t: float
    rank: int
    name: str
    fields: Mapping[str, str] = field(default_factory=dict)
    source: str = ""
    offset: int = 0
    text: str = ""
    history: bool = False


@dataclass(frozen=True, slots=True)
class Joined:
    """A rank exists: learned from its process, its file or the launcher; unknown parts are None."""

    t: float
    rank: int
    node: str | None = None
    pid: int | None = None
    world_size: int | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """A new attempt of the job began (launcher restart): what follows belongs to it."""

    t: float
    number: int


@dataclass(frozen=True, slots=True)
class Tick:
    """The clock moved; on a fixed grid of one second, whoever makes the events."""

    t: float


@dataclass(frozen=True, slots=True)
class Blind:
    """We could (not) read for a while: silence in between proves nothing."""

    t: float
    since: float


Event = Activity | Hit | Frames | Raised | Exit | Fact | Joined | Attempt | Tick | Blind | Dump


@dataclass(frozen=True, slots=True)
class Want:
    """A request for evidence, answered by further events; ranks empty means all.

    `kind`: "stacks", "process", "ras", or "dumps" (let the ranks write their Flight Recorder).
    """

    t: float
    kind: str
    ranks: tuple[int, ...]
    why: str


@dataclass(frozen=True, slots=True)
class Opened:
    """An incident opened. `verdict` is the JSON-ready verdict of docs/verdict.schema.json."""

    verdict: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Updated:
    """The picture of an open incident changed enough to say so again."""

    verdict: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Closed:
    """An incident is over; the verdict's "state" is "closed".

    `over`: with it a stop is over, and what explained it explains nothing later; to be fed to the core that is to know
    as much as this one, at this place among the events. None: nothing needs to be known.
    """

    verdict: Mapping[str, object]
    over: Fact | None = None


Output = Want | Opened | Updated | Closed
