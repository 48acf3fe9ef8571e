"""What the web side is shown of the daemon: plain values, made anew for each question.

Everything a View returns is a snapshot: nobody changes it afterwards, because it is rendered in another thread.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

RankState = Literal["running", "silent", "waiting", "failed", "gone", "unheard", "done"]
RANK_STATES: tuple[RankState, ...] = ("running", "silent", "waiting", "failed", "gone", "unheard", "done")

Verdict = Mapping[str, object]
"""A verdict of docs/verdict.schema.json, already redacted."""

DETECT_BOUNDS = (5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1200.0, 3600.0)
"""Seconds from the last progress to the message, as a histogram counts them."""

IncidentLabels = tuple[str, str, str, str]
"""(job, failure, category, severity)."""


class RankView(NamedTuple):
    """One rank now. `silent_for`: seconds since it last printed, None before it was heard."""

    rank: int
    state: RankState
    step: int | None = None
    phase: str | None = None
    silent_for: float | None = None
    node: str | None = None
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class JobView:
    """One job now. `step_seconds`: the usual time of a step, None until learned.

    `stall_seconds`: seconds since the job last made progress, 0 while it does and after it ended.
    `hang_due_t`: Unix seconds at which silence alone will be told as a hang if it lasts until then, None where it will
    not be or has been; `hang_due_by`: the setting or measure that this comes from.
    `world_size`: ranks the job has, None while unknown. `ranks`: every rank heard of or known to exist.
    """

    job: str
    attempt: int
    step: int | None = None
    step_seconds: float | None = None
    stall_seconds: float = 0.0
    phase: str | None = None
    world_size: int | None = None
    ranks: Sequence[RankView] = ()
    hang_due_t: float | None = None
    hang_due_by: str = ""

    @property
    def counts(self) -> dict[str, int]:
        """Number of ranks by state, in the order of RANK_STATES, without zeros."""
        counted = Counter(rank.state for rank in self.ranks)
        return {state: counted[state] for state in RANK_STATES if counted[state]}


class Pace(NamedTuple):
    """How a job went until `t` (Unix seconds), since the point before: seconds a step, None while none ended.

    `lines`: lines read a second.
    """

    t: float
    step_seconds: float | None
    lines: float


class Told(NamedTuple):
    """One message about an incident. `t`: Unix seconds when it was due; `state`: pending, sent or dead."""

    t: float
    sink: str
    event: str
    state: str


class Decided(NamedTuple):
    """What was decided about telling a sink of an incident. `action`: send, hold (told later) or drop (not told).

    `t`: Unix seconds; `reason`: a word, `detail`: the particulars; `event` and `revision`: of what is sent.
    """

    t: float
    sink: str
    action: str
    reason: str
    detail: str
    event: str
    revision: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PackView:
    """One pack of rules. `kind`: shipped, folder or installed; `origin`: the distribution that brought it.

    `rules` and `signals`: how many are in force; `errors`: every mistake, as file:line:column and a sentence.
    """

    name: str
    kind: str
    folder: str
    origin: str = ""
    rules: int = 0
    signals: int = 0
    errors: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """The daemon's own counts since its start; docs/metrics.md says what each means.

    `files` by state, `read_errors` by errno name, `notifications` by (sink, outcome: sent | retried | dead),
    `evidence_seconds` by kind, `evidence_outcomes` (looks) by (kind, outcome), `incidents` (counted once, when settled)
    and `incidents_open` (now) by IncidentLabels, `fixes` by (job, failure, state of the fix),
    `fingerprint_hits` by (job, failure), `config_reloads` by outcome
    (taken, refused), `bundles` by outcome (written, failed, skipped, aged, evicted), `config_taken_at` in Unix seconds,
    `rules` (in force) and `rule_errors` by pack, `kept` (entries of each table now) and `forgotten` (entries that had
    to go) by kind, `detect_seconds` by category (how many within each of DETECT_BOUNDS and above, their sum),
    `idle_gpu_seconds` by job. `hub`: for a hub and the nodes that have one, by `messages`, `waiting`, `nodes` and
    `state`.
    """

    engine: str = ""
    lines: int = 0
    bytes: int = 0
    file_lag_bytes: int = 0
    files: Mapping[str, int] = field(default_factory=dict)
    read_errors: Mapping[str, int] = field(default_factory=dict)
    bytes_lost: int = 0
    truncations: int = 0
    rotations: int = 0
    watch_overflows: int = 0
    lines_repeated: int = 0
    lines_truncated: int = 0
    outbox_pending: int = 0
    outbox_oldest_seconds: float = 0.0
    notifications: Mapping[tuple[str, str], int] = field(default_factory=dict)
    state_write_errors: int = 0
    state_recoveries: int = 0
    silences: int = 0
    fixes: Mapping[tuple[str, str, str], int] = field(default_factory=dict)
    task_restarts: Mapping[str, int] = field(default_factory=dict)
    loop_lag_seconds: float = 0.0
    redactions: int = 0
    evidence_seconds: Mapping[str, float] = field(default_factory=dict)
    evidence_outcomes: Mapping[tuple[str, str], int] = field(default_factory=dict)
    evidence_pause_seconds: float = 0.0
    suspected_hangs: int = 0
    detect_seconds: Mapping[str, tuple[Sequence[int], float]] = field(default_factory=dict)
    idle_gpu_seconds: Mapping[str, float] = field(default_factory=dict)
    incidents: Mapping[IncidentLabels, int] = field(default_factory=dict)
    incidents_open: Mapping[IncidentLabels, int] = field(default_factory=dict)
    fingerprint_hits: Mapping[tuple[str, str], int] = field(default_factory=dict)
    bundles: Mapping[str, int] = field(default_factory=dict)
    bundle_bytes: int = 0
    tape_bytes: int = 0
    kept: Mapping[str, int] = field(default_factory=dict)
    forgotten: Mapping[str, int] = field(default_factory=dict)
    blind: bool = False
    config_reload_ok: bool = True
    config_reloads: Mapping[str, int] = field(default_factory=dict)
    config_taken_at: float = 0.0
    rules: Mapping[str, int] = field(default_factory=dict)
    rule_errors: Mapping[str, int] = field(default_factory=dict)
    hub: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


class Actions(Protocol):
    """What people do about alerts. A method that is asked for something wrong raises RequestError."""

    def silences(self, state: str | None) -> Sequence[Mapping[str, object]]:
        """Newest first; `state` is "pending", "active", "expired" or None for all."""
        ...

    def fixes(self) -> Sequence[Mapping[str, object]]:
        """What was done about failures, newest first."""
        ...

    async def history(self, asked: Mapping[str, str]) -> Mapping[str, object]:
        """A page of the incidents that are kept."""
        ...

    async def add_silence(self, body: Mapping[str, object]) -> Mapping[str, object]: ...

    async def expire_silence(self, id_: str) -> Mapping[str, object]: ...

    async def acknowledge(self, key: str, body: Mapping[str, object]) -> Mapping[str, object]:
        """The verdict as it is then."""
        ...


class View(Protocol):
    """What the daemon shows; every method returns a snapshot.

    `jobs`, `job` and `told` take time that grows with ranks or need the disk: they may be called from any thread and
    are asked in one. All others are cheap and are called on the event loop.
    """

    def incidents(self, state: str | None, limit: int) -> Sequence[Verdict]:
        """Last changed first, at most `limit`; `state` is "open", "closed" or None for both."""
        ...

    def incident(self, key: str) -> Verdict | None: ...

    def told(self, key: str) -> Sequence[Told]:
        """The messages about an incident that are still known, oldest first."""
        ...

    def decisions(self, key: str) -> Sequence[Decided]:
        """What was decided about alerts of an incident and why, oldest first."""
        ...

    def jobs(self) -> Sequence[JobView]: ...

    def job(self, name: str) -> JobView | None: ...

    def pace(self, job: str) -> Sequence[Pace]:
        """How a job went lately, oldest first; bounded."""
        ...

    async def recorded(self, job: str) -> bytes | None:
        """What was seen of a job lately, without secrets, as an archive (.tar.xz); None where nothing is recorded."""
        ...

    def packs(self) -> Sequence[PackView]: ...

    def stats(self) -> Stats: ...

    def ready(self) -> tuple[bool, str]:
        """Whether files are being read and incidents can be sent, and why not."""
        ...

    def healthy(self) -> tuple[bool, str]:
        """Whether the pipeline moved lately, and why not: a restart would help."""
        ...


class Entry(NamedTuple):
    """One failure of the encyclopedia, as a list shows it. `quotes`: lines of a searched text that prove it."""

    id: str
    title: str
    category: str
    severity: str
    domain: str
    quick_answer: str
    quotes: Sequence[tuple[str, str]] = ()


class Point(NamedTuple):
    """One point of a part of an entry; any of them may be empty."""

    text: str
    risk: str
    command: str
    code: str


class Chapter(NamedTuple):
    """A heading of an entry with its points."""

    head: str
    points: Sequence[Point]
    numbered: bool


@dataclass(frozen=True, slots=True)
class Article:
    """One failure in full, as `denpexd explain` prints it; `data`: the same for programs."""

    entry: Entry
    facts: Sequence[tuple[str, str]]
    chapters: Sequence[Chapter]
    related: Sequence[str]
    references: Sequence[str]
    data: Mapping[str, object]


class Reference(Protocol):
    """What is known without any job. All but `diagnose` take time and are asked in a thread."""

    def entries(self) -> Sequence[Entry]:
        """Every failure in force, by category and title."""
        ...

    def article(self, failure: str) -> Article | None:
        """One failure by its id or a former one."""
        ...

    def search(self, text: str) -> Sequence[Entry]:
        """The failures that explain a text best, the best one first."""
        ...

    async def diagnose(self, log: bytes) -> Sequence[Verdict]:
        """What a finished log shows, redacted; nothing of it is kept. Raises SourceError where it cannot be used."""
        ...
