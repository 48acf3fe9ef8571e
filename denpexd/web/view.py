"""What the web side is shown of the daemon: plain values, made anew for each question.

Everything a View returns is a snapshot: nobody changes it afterwards, because it is rendered in another thread.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

RankState = Literal["running", "silent", "waiting", "failed", "gone", "unheard", "done"]
RANK_STATES: tuple[RankState, ...] = ("running", "silent", "waiting", "failed", "gone", "unheard", "done")

Verdict = Mapping[str, object]
"""A verdict of docs/verdict.schema.json, already redacted."""

IncidentLabels = tuple[str, str, str, str]
"""(job, failure, category, severity)."""


@dataclass(frozen=True, slots=True)
class RankView:
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
    and `incidents_open` (now) by IncidentLabels, `fingerprint_hits` by (job, failure), `config_reloads` by outcome
    (taken, refused), `bundles` by outcome (written, failed, skipped, aged, evicted), `config_taken_at` in Unix seconds,
    `rules` (in force) and `rule_errors` by pack, `kept` (entries of each table now) and `forgotten` (entries that had
    to go) by kind.
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
    task_restarts: Mapping[str, int] = field(default_factory=dict)
    loop_lag_seconds: float = 0.0
    redactions: int = 0
    evidence_seconds: Mapping[str, float] = field(default_factory=dict)
    evidence_outcomes: Mapping[tuple[str, str], int] = field(default_factory=dict)
    evidence_pause_seconds: float = 0.0
    suspected_hangs: int = 0
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


class View(Protocol):
    """What the daemon shows. Every method is cheap, is called on the event loop and returns a snapshot."""

    def incidents(self, state: str | None, limit: int) -> Sequence[Verdict]:
        """Newest first, at most `limit`; `state` is "open", "closed" or None for both."""
        ...

    def incident(self, key: str) -> Verdict | None: ...

    def jobs(self) -> Sequence[JobView]: ...

    def packs(self) -> Sequence[PackView]: ...

    def stats(self) -> Stats: ...

    def ready(self) -> tuple[bool, str]:
        """Whether files are being read and incidents can be sent, and why not."""
        ...

    def healthy(self) -> tuple[bool, str]:
        """Whether the pipeline moved lately, and why not: a restart would help."""
        ...
