"""What a node has to forward, kept in its state until the broker has it: written together with the positions.

So after a crash the logs are read again exactly from where their events are missing. Bounded by bytes: while the broker
is away for longer, the oldest rows go, and are counted.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from denpexd.core.events import Event
from denpexd.hub.wire import lines
from denpexd.notify.database import Statement
from denpexd.notify.outbox import Store

_TABLE = (
    "CREATE TABLE IF NOT EXISTS spool"
    " (id INTEGER PRIMARY KEY, start TEXT NOT NULL, number INTEGER NOT NULL, job TEXT NOT NULL, lines TEXT NOT NULL)"
)
_ROW = 100  # bytes of a row beside its text


@dataclass(slots=True)
class Waiting:
    """One row: see `wire.Row`. `urgent`: somebody may be judged by it; `since`: when it was written, by our clock."""

    id: int
    start: str
    number: int
    job: str
    urgent: bool
    since: float
    lines: str = ""

    @property
    def bytes(self) -> int:
        return len(self.lines) + _ROW


class Spool:
    """`start`: names this run of the daemon; `most`: bytes. `dropped`: rows that had to go."""

    def __init__(self, store: Store, start: str, most: int) -> None:
        self._store, self._start, self._most = store, start, most
        self.waiting: deque[Waiting] = deque()  # on disk, oldest first
        self.bytes = self.dropped = 0
        self._cut: list[Waiting] = []  # being written
        self._held: dict[str, list[Sequence[Event]]] = {}
        self._urgent: set[str] = set()
        self._gone: list[int] = []  # rows that are on disk and need not be
        self._numbers: dict[str, int] = {}
        self._next = 1

    def open(self, now: float) -> "Spool":
        """Go on with what an earlier daemon could not send (disk)."""
        self._store.extend(_TABLE)
        for number, start, count, job, text in self._store.rows("SELECT * FROM spool ORDER BY id"):
            self._keep(Waiting(number, start, count, job, True, now, text))
            self._next = number + 1
        return self

    def add(self, job: str, batch: Sequence[Event], *, urgent: bool) -> None:
        """One more batch of a job, to be written with the next transaction."""
        self._held.setdefault(job, []).append(batch)
        if urgent:
            self._urgent.add(job)

    def cut(self, now: float) -> Callable[[], Mapping[tuple[object, ...], Statement]] | None:
        """See `ledger.Beside`."""
        held, self._held, urgent, self._urgent = self._held, {}, self._urgent, set()
        gone, self._gone = self._gone, []
        if not held and not gone:
            return None
        rows = []
        for job in held:
            number = self._numbers[job] = self._numbers.get(job, 0) + 1
            rows.append(Waiting(self._next, self._start, number, job, job in urgent, now))
            self._next += 1
        self._cut += rows

        def made() -> dict[tuple[object, ...], Statement]:
            found: dict[tuple[object, ...], Statement] = {}
            for row in rows:
                row.lines = "\n".join(map(self._store.clean, lines(held[row.job]).split("\n")))
                values = (row.id, row.start, row.number, row.job, row.lines)
                found["spool", row.id] = ("INSERT OR REPLACE INTO spool VALUES (?,?,?,?,?)", values)
            # A row that was never written is still among the unsaved: this takes its place.
            return found | {("spool", row_id): ("DELETE FROM spool WHERE id = ?", (row_id,)) for row_id in gone}

        return made

    def written(self) -> None:
        """See `ledger.Beside`: what was cut may be sent."""
        cut, self._cut = self._cut, []
        for row in cut:
            self._keep(row)

    def _keep(self, row: Waiting) -> None:
        self.waiting.append(row)
        self.bytes += row.bytes
        while self.bytes > self._most and len(self.waiting) > 1:
            self.dropped += 1
            self._remove(self.waiting[0])

    def _remove(self, row: Waiting) -> None:
        self.waiting.remove(row)
        self.bytes -= row.bytes
        self._gone.append(row.id)

    def sent(self, rows: Iterable[Waiting]) -> None:
        """The broker has these."""
        for row in rows:
            if row in self.waiting:  # it may have been dropped meanwhile
                self._remove(row)
