"""What the memory of the correlator consists of: a signal seen, a stack, an end, a word of others, who wrote a line."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from denpexd.core.events import UNKNOWN_RANK, Exit, Frame, Frames, Raised
from denpexd.core.evidence import Evidence
from denpexd.core.flight import Dump, Outline
from denpexd.core.numbers import ranks_in

MAX_PROCESSES = 100_000
MAX_SPEAKERS = 256


@dataclass(slots=True)
class Seen:
    """How often one signal held on one rank, with its first and last evidence."""

    first: Evidence
    last: Evidence
    count: int = 1
    fields: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Snapshot:
    """The newest stack of one kind; `steady`: an equal one was seen at least five seconds earlier."""

    frames: Frames
    seq: int
    since: float
    steady: bool = False
    hits: dict[str, Frame] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Dumped:
    """The newest Flight Recorder dump, made ready to be compared; `since`: from when on an equal one is known."""

    outline: Outline
    seq: int
    since: float

    @property
    def dump(self) -> Dump:
        return self.outline.dump


@dataclass(slots=True)
class Collective:
    """What is known about one process group on one rank."""

    op: str = ""
    seq: int | None = None
    numel: int | None = None
    shape: str | None = None
    enqueued: int | None = None
    completed: int | None = None
    evidence: Evidence | None = None
    t: float = float("-inf")  # of the newest line about it

    @property
    def kind(self) -> str:
        """The operation; one element means a barrier or a scalar, which no gradient or batch is."""
        return f"{self.op}/1" if self.op and self.numel == 1 else self.op

    @property
    def idle(self) -> bool:
        """Nothing pending: the last enqueued collective has completed and no timeout was reported for one."""
        return self.enqueued is not None and self.enqueued == self.completed and not self.op


@dataclass(slots=True)
class Exited:
    """How the process ended, as one witness saw it. `forced`: its launcher had said that it would kill it."""

    event: Exit
    seq: int
    forced: bool = False


@dataclass(slots=True)
class RaisedBy:
    """An exception with the judgement whether it only reports somebody else's failure.

    `fits`: ids of the signals about exceptions whose type and message it has, worked out once, when it came.
    """

    event: Raised
    seq: int
    collateral: bool
    fits: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Told:
    """What a witness said happened to the job: `silence` is how long nothing had moved then, `limit` what is usual."""

    event: str
    evidence: Evidence
    node: str = ""
    silence: float = 0.0
    phase: str = "start"
    usual: float | None = None


@dataclass(frozen=True, slots=True)
class Round:
    """An attempt that failed, as its launcher saw it. `agent`: which launcher."""

    t: float
    rank: int
    code: int
    agent: str
    pid: str
    evidence: Evidence


Facts = Mapping[str, str]
"""How one rank was started, by name; see core/launch.py."""

_ABOUT = ("attempt", "at")


@dataclass(slots=True)
class Launch:
    """How the ranks of a job were started: `now`, and `before`, in its last run that made progress."""

    now: dict[int, Facts] = field(default_factory=dict)
    before: dict[int, Facts] = field(default_factory=dict)
    about: Facts = field(default_factory=dict)

    def take(self, name: str, fields: Facts) -> None:
        """A fact `launch` or `launch_before`: what holds for some `ranks` (as in `0-2,5`)."""
        facts = {key: value for key, value in fields.items() if key not in ("ranks", *_ABOUT)}
        ranks = [rank for part in fields.get("ranks", "").split(",") for rank in ranks_in(part)]
        if name == "launch":
            self.now |= dict.fromkeys(ranks, facts)
            return
        self.before |= dict.fromkeys(ranks, facts)
        self.about = {key: fields[key] for key in _ABOUT if key in fields}


def process_of(fields: Mapping[str, str]) -> str:
    """`pid=812` or `pid=812, ip=10.0.0.3` of the prefix of a line; empty where it names no process."""
    pid, ip = fields.get("pid", ""), fields.get("ip", "")
    if "actor" not in fields or not pid.isdigit():
        return ""
    return f"pid={pid}, ip={ip}" if ip else f"pid={pid}"


@dataclass(slots=True)
class Processes:
    """What is known of the processes of an attempt."""

    ranks: dict[str, int] = field(default_factory=dict)
    speakers: dict[tuple[str, int], str] = field(default_factory=dict)  # by source and offset: lines of no rank

    def learn(self, process: str, rank: int) -> bool:
        """A line of the process says its rank; whether that is new. Who speaks for several ranks is none of them."""
        known = self.ranks.get(process)
        if known is None and len(self.ranks) < MAX_PROCESSES:
            self.ranks[process] = rank
            return True
        if known is not None and known != rank:
            self.ranks[process] = UNKNOWN_RANK
        return False

    def spoke(self, process: str, source: str, offset: int) -> None:
        """A process whose rank is not known printed something that matters."""
        if len(self.speakers) < MAX_SPEAKERS:
            self.speakers[source, offset] = process
