"""What one rank has shown so far, bounded. Everything kept is an Evidence: enough to quote it."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from denpexd.core.cadence import Rhythm
from denpexd.core.evidence import Evidence
from denpexd.core.numbers import Numbers
from denpexd.core.records import Collective, Dumped, Exited, RaisedBy, Seen, Snapshot

MAX_RAISED = 8
MAX_METRICS = 256
MAX_SIGNALS = 512


@dataclass(slots=True)
class RankState:
    """One rank."""

    rank: int
    node: str | None = None
    known_as: set[str] = field(default_factory=set)  # other names of its machine: its pod, its address
    pid: int | None = None
    pci: str | None = None  # address of its GPU
    gpu: int | None = None  # index of its GPU on the node
    place: tuple[str | None, str | None] = (None, None)  # address and index of its GPU, derived from its environment
    cgroup: str | None = None  # where the kernel's process numbers are not ours
    printed: bool = False
    looked_at: bool = False
    lost: bool = False  # nothing comes from its node: that it shows nothing proves nothing
    last_t: float = float("-inf")
    remark_t: float = float("-inf")  # of the last line that a rule looks for or that tells of a failure
    step: int | None = None
    total: int | None = None
    epoch: str | None = None
    batches: int | None = None
    aside: int | None = None  # counter of an evaluation
    moved_t: float = float("-inf")
    moved_seq: int = -1
    moved_in: dict[str, int] = field(default_factory=dict)  # by source, seq of the last movement that it told
    moves: int = 0
    rhythm: Rhythm = field(default_factory=Rhythm)
    phase: str = "start"
    phase_t: float = float("-inf")
    phase_evidence: Evidence | None = None
    seen: dict[str, Seen] = field(default_factory=dict)
    snapshots: dict[str, Snapshot] = field(default_factory=dict)
    dump: Dumped | None = None
    raised: list[RaisedBy] = field(default_factory=list)
    exits: list[Exited] = field(default_factory=list)
    states: dict[str, Evidence] = field(default_factory=dict)  # frozen, oom_killed, running
    collectives: dict[str, Collective] = field(default_factory=dict)
    metrics: dict[tuple[str, str], tuple[float | str, Evidence]] = field(default_factory=dict)
    numbers: Numbers = field(default_factory=Numbers)
    ordinary: deque[float] = field(default_factory=lambda: deque(maxlen=32))  # times of unremarkable output
    settings: dict[str, tuple[str, Evidence]] = field(default_factory=dict)  # what it says of its environment
    loss: str | None = None
    reported: Evidence | None = None  # first collateral line
    caught: Evidence | None = None  # its newest line of role `caught`
    killing: set[str] = field(default_factory=set)  # signals its launcher announced
    killing_t: float = float("inf")  # when it did so first

    @property
    def heard(self) -> bool:
        """Anything at all shows this rank: a line, a stack, a process, a time that another rank reports of it."""
        shown = self.printed or self.looked_at or bool(self.exits or self.seen or self.numbers.series)
        return shown and not self.lost

    @property
    def gone(self) -> Exited | None:
        """The first report that its process has ended."""
        return self.exits[0] if self.exits else None

    def note(self, signal: str, evidence: Evidence, fields: Mapping[str, str]) -> None:
        """Remember that a signal held; bounded by the number of signals."""
        known = self.seen.get(signal)
        if known is None:
            if len(self.seen) < MAX_SIGNALS:
                self.seen[signal] = Seen(evidence, evidence, 1, fields)
            return
        if evidence.weight == "fatal" and known.first.weight == "suspect":
            known.first = evidence
        known.last, known.count, known.fields = evidence, known.count + 1, {**known.fields, **fields}

    def keep(self, new: RaisedBy) -> None:
        """Remember an exception; when there are too many, one that training survived or that was caught makes room."""
        if len(self.raised) >= MAX_RAISED:

            def weight(known: RaisedBy) -> tuple[bool, bool]:
                return known.event.t >= self.moved_t, known.event.uncaught

            weakest = min(self.raised, key=weight)
            if weight(weakest) >= weight(new):
                return
            self.raised.remove(weakest)
        self.raised.append(new)

    def outlived(self, source: str, seq: int) -> bool:
        """Whether the same file tells of a movement after what it said then: in history only that order is known."""
        return self.moved_in.get(source, -1) > seq

    def restart(self, seq: int) -> None:
        """Another attempt: only its rhythm is as before."""
        self.forget(seq)
        self.step = self.total = self.epoch = self.batches = self.aside = self.loss = None
        self.phase, self.phase_evidence = "start", None
        self.moved_t = float("-inf")
        self.metrics.clear()
        self.settings.clear()
        self.numbers = Numbers()
        self.ordinary.clear()

    def forget(self, before_seq: int) -> None:
        """Drop what belongs to a stop that is over."""
        self.seen = {k: s for k, s in self.seen.items() if s.last.seq > before_seq}
        self.snapshots = {k: s for k, s in self.snapshots.items() if s.seq > before_seq}
        self.dump = self.dump if self.dump is not None and self.dump.seq > before_seq else None
        self.raised = [r for r in self.raised if r.seq > before_seq]
        self.exits = [e for e in self.exits if e.seq > before_seq]
        self.collectives.clear()
        self.states.clear()
        self.killing.clear()
        self.killing_t = float("inf")
        if self.reported and self.reported.seq <= before_seq:
            self.reported = None
