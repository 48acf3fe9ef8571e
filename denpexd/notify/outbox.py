"""What must survive kill -9: positions, incidents, unsent messages, the journal. One SQLite file, one writer.

Everything a batch of input caused is written in one transaction, so after a crash the input is read again exactly
from where its consequences are missing. Pending messages are also held in memory: where the disk is full or
gone the daemon goes on with them (at least once, but not durable) and writes everything as soon as it can again.
Methods may be called from any thread; those marked "disk" can block and belong into a worker thread.
"""

import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from denpexd.clock import Clock, SystemClock
from denpexd.notify.database import Database, Statement
from denpexd.notify.policy import Delivery, Sent, Verdict, after
from denpexd.notify.redact import redact_json, redact_verdict
from denpexd.notify.rows import (
    DEAD,
    INCIDENTS,
    MAX_TOLD,
    PRUNE,
    SCHEMAS,
    TOLD,
    Row,
    delivery_row,
    delivery_statement,
    incident_statement,
    position_statement,
)
from denpexd.notify.waiting import Waiting
from denpexd.notify.writer import Writer

log = logging.getLogger(__name__)

MAX_PENDING = 10_000
PRUNE_EVERY = 256  # commits


class Store(Waiting):
    """The state of one daemon; a context manager. `recovered` says what was set aside when the file was damaged."""

    def __init__(self, path: Path, clock: Clock | None = None) -> None:
        super().__init__()
        self.recovered: str | None = None
        self._redactions = self._overflow = 0
        self.dropped: list[Delivery] = []  # as too many waited
        self._database = Database(path, SCHEMAS)
        self._clock: Clock = clock or SystemClock()
        self._writer = Writer(self._database)
        self._last: dict[str, dict[str, Sent]] = {}  # by incident, by sink
        self._next_delivery = self._next_journal = 1
        self._commits = 0

    def open(self) -> "Store":
        """Take the lock and load what is pending (disk); StateError if another daemon has it or it is unusable."""
        self.recovered = self._database.open()
        if self.recovered:
            log.warning("%s", self.recovered)
        rows = self._database.rows
        for row in map(delivery_row, rows("SELECT * FROM deliveries WHERE state = 'pending' ORDER BY id")):
            self._rows[row.id] = row
        for sink, key, revision, event, reason, told, at in rows(TOLD):
            self._tell(Delivery(sink, key, revision, event, "", reason, {}, told), at)
        self._next_delivery = rows("SELECT coalesce(max(id), 0) + 1 FROM deliveries")[0][0]
        self._next_journal = rows("SELECT coalesce(max(id), 0) + 1 FROM journal")[0][0]
        return self

    def close(self) -> None:
        """Write what could not be written before, if that works now, and free the lock (disk)."""
        self._writer.write({})
        self._writer.close()

    def __enter__(self) -> "Store":
        return self.open()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def commit(
        self,
        *,
        positions: Mapping[str, bytes | str | None] | None = None,
        incidents: Sequence[Verdict] = (),
        deliveries: Sequence[Delivery] = (),
        journal: Sequence[str] = (),
        more: Mapping[tuple[object, ...], Statement] | None = None,
        beside: Callable[[], Mapping[tuple[object, ...], Statement]] | None = None,
    ) -> None:
        """Write a batch in one transaction (disk); a position None is forgotten, a revision known already is skipped.

        `more`: further statements, by what they are about; of two about the same the later one counts.
        `beside` makes further ones.

        Everything is redacted before it is written. StateError when writing begins to fail, once; until it works
        again further batches are kept in memory without an error. Messages can be sent after this, in either case.
        """
        batch: dict[tuple[object, ...], Statement] = {} if beside is None else dict(beside())
        for source, value in (positions or {}).items():
            batch["position", source] = position_statement(source, value)
        for verdict in incidents:
            batch["incident", verdict["key"]] = incident_statement(self._clean(verdict), self._clock.wall())
        batch |= more or {}
        rows = list(self._new_rows(deliveries))
        stale = self._stale(rows)
        batch |= {("delivery", row.id): delivery_statement(row) for row in (*stale, *rows)}
        for line in journal:
            values = (self._next_journal, self._line(line))
            batch["journal", self._next_journal] = ("INSERT OR REPLACE INTO journal VALUES (?,?)", values)
            self._next_journal += 1
        self._commits += 1
        if self._commits % PRUNE_EVERY == 0:
            batch |= {("prune", sql): (sql, values) for sql, values in PRUNE}
        error = self._writer.write(batch)
        # Visible to the senders only now: a message must not arrive before its key is on disk.
        self._show(rows, stale)
        self._drop_overflow()
        if error is not None and not self._writer.said():
            raise error

    def _new_rows(self, deliveries: Sequence[Delivery]) -> Iterator[Row]:
        now = self._clock.wall()
        for delivery in deliveries:
            last = self._last.get(delivery.key, {}).get(delivery.sink)
            if last is not None and delivery.revision <= last.revision:
                continue
            self._tell(delivery, now)
            clean = replace(delivery, verdict=self._clean(delivery.verdict))
            yield Row(self._next_delivery, clean, "pending", 0, now, now)
            self._next_delivery += 1

    def _tell(self, delivery: Delivery, at: float) -> None:
        told = self._last.setdefault(delivery.key, {})
        told[delivery.sink] = after(delivery, told.get(delivery.sink), at)
        if len(self._last) > MAX_TOLD:
            del self._last[next(iter(self._last))]

    def _clean(self, verdict: Verdict) -> dict[str, object]:
        clean, found = redact_verdict(verdict)
        self._redactions += found
        return clean

    def _line(self, line: str) -> str:
        clean, found = redact_json(line)
        self._redactions += found
        return clean

    def _drop_overflow(self) -> None:
        with self._memory:
            excess = max(0, len(self._rows) - MAX_PENDING)
            oldest = [row for row in self._rows.values() if row.id not in self._leased][:excess]
        for row in oldest:
            self._overflow += 1
            with self._memory:
                self.dropped.append(row.delivery)
            self.dead(row, f"more than {MAX_PENDING} messages waited")

    def take_dropped(self) -> list[Delivery]:
        """The messages that were dropped since the last call, as too many waited."""
        with self._memory:
            taken, self.dropped = self.dropped, []
        return taken

    def positions(self) -> dict[str, str]:
        """Where each source was read to (disk)."""
        rows = self.rows("SELECT source, value FROM positions")
        return {os.fsdecode(source): value for source, value in rows}

    def incidents(self, state: str | None = None, limit: int = 1000) -> list[Verdict]:
        """The incidents, last changed first; `state` open or closed (disk)."""
        rows = self.rows(f"{INCIDENTS} WHERE ? IN ('', state) ORDER BY updated DESC LIMIT ?", (state or "", limit))
        fresh = self._writer.waiting("incident").values()
        found = {values[0]: values[:4] for values in [*rows, *fresh]}
        chosen = sorted((v for v in found.values() if state in (None, v[1])), key=lambda v: -v[2])
        return [json.loads(verdict) for _, _, _, verdict in chosen[:limit]]

    def rows(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """The rows of a query, as they are on disk (disk)."""
        return self._writer.rows(sql, values)

    def journal(self) -> list[str]:
        """The journal, oldest line first (disk)."""
        return [line for (line,) in self.rows("SELECT line FROM journal ORDER BY id")]

    def told(self, key: str) -> list[tuple[float, str, str, str]]:
        """When each known message about an incident was made, its sink, event and state, oldest first (disk)."""
        return self.rows("SELECT created, sink, event, state FROM deliveries WHERE key = ? ORDER BY id", (key,))

    def extend(self, table: str) -> None:
        """Have one more table, made by this statement if it is not there (disk)."""
        self._writer.make(table)

    def clean(self, line: str) -> str:
        """A line of JSON as it may leave: redacted, and counted."""
        return self._line(line)

    def told_by_another(self, key: str, sent: Mapping[str, Sent], *, wholly: bool = False) -> None:
        """Another daemon has told sinks of the same name of this incident, up to these messages.

        `wholly`: they know it from nobody else.
        """
        mine = {} if wholly else self._last.get(key, {})
        later = {sink: last for sink, last in sent.items() if sink not in mine or mine[sink].revision < last.revision}
        self._last[key] = mine | later

    def withdraw(self, is_theirs: Callable[[Delivery], bool]) -> None:
        """Messages that wait and are now for another daemon to send: they are gone here (disk)."""
        for row in (row for row in self._free() if is_theirs(row.delivery)):
            self.done(row)
            self._last.get(row.delivery.key, {}).pop(row.delivery.sink, None)

    def sent(self, key: str) -> dict[str, Sent]:
        """The last message planned about an incident, by sink; what `policy.plan` asks for."""
        return dict(self._last.get(key, {}))

    def told_open(self, sink: str) -> list[Verdict]:
        """The open incidents that a sink was told of and not yet told to be over (disk)."""
        found = []
        for verdict in self.incidents("open"):
            last = self.sent(str(verdict["key"])).get(sink)
            if last is not None and last.event != "closed":
                found.append(verdict)
        return found

    def dead_letters(self) -> list[Row]:
        """The messages that will not be sent, oldest first (disk)."""
        return [delivery_row(values) for values in self.rows(DEAD)]

    def done(self, row: Row) -> None:
        """The message has arrived (disk)."""
        self._finish(replace(row, state="sent", error="", delivery=replace(row.delivery, verdict={})))

    def dead(self, row: Row, reason: str) -> None:
        """The message will not be sent; it stays visible with the reason (disk)."""
        self._finish(replace(row, state="dead", error=reason))

    def _finish(self, row: Row) -> None:
        with self._memory:
            self._rows.pop(row.id, None)
            self._leased.discard(row.id)
        self._writer.write({("delivery", row.id): delivery_statement(row)})

    def receipt(self, sink: str, key: str) -> str | None:
        """What a sink keeps about an incident, None if nothing (disk)."""
        fresh = self._writer.waiting("receipt").get(("receipt", sink, key))
        if fresh is not None:
            return str(fresh[2])
        found = self.rows("SELECT value FROM receipts WHERE sink = ? AND key = ?", (sink, key))
        return str(found[0][0]) if found else None

    def keep_receipt(self, sink: str, key: str, value: str) -> None:
        """Keep that as long as the incident is known (disk)."""
        self._writer.write(
            {("receipt", sink, key): ("INSERT OR REPLACE INTO receipts VALUES (?,?,?)", (sink, key, value))}
        )

    def retry(self, row: Row, not_before: float, reason: str) -> None:
        """The message is tried again, not before a time in Unix seconds (disk)."""
        again = replace(row, attempts=row.attempts + 1, not_before=not_before, error=reason)
        with self._memory:
            self._rows[row.id] = again
            self._leased.discard(row.id)
        self._writer.write({("delivery", row.id): delivery_statement(again)})

    @property
    def counters(self) -> dict[str, int]:
        """What has happened since the start: failed writes, secrets hidden, messages and statements dropped."""
        lost = {"outbox_dropped": self._overflow, "unsaved_dropped": self._writer.dropped}
        return {"state_write_errors": self._writer.errors, "redactions": self._redactions, **lost}

    @property
    def kept(self) -> dict[str, int]:
        """Entries in memory: incidents of which is known what was sent, rows that wait for the disk."""
        return {"told": len(self._last), "unsaved": len(self._writer)}
