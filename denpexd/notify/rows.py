"""How the state lies in SQLite: the schema, the limits of each table, and rows to values and back."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from denpexd.notify.database import Statement
from denpexd.notify.policy import Delivery, Verdict

SCHEMA_VERSION = 1
MAX_FINISHED = 10_000
MAX_CLOSED = 2_000
MAX_TOLD = 10_000
MAX_JOURNAL = 50_000

SCHEMA = """
CREATE TABLE positions (source BLOB PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE incidents (key TEXT PRIMARY KEY, state TEXT NOT NULL, updated REAL NOT NULL, verdict TEXT NOT NULL);
CREATE INDEX incidents_by_state ON incidents (state, updated);
CREATE TABLE deliveries (id INTEGER PRIMARY KEY, sink TEXT NOT NULL, key TEXT NOT NULL, revision INTEGER NOT NULL,
    event TEXT NOT NULL, reason TEXT NOT NULL, verdict TEXT NOT NULL, state TEXT NOT NULL, attempts INTEGER NOT NULL,
    created REAL NOT NULL, not_before REAL NOT NULL, error TEXT NOT NULL, UNIQUE (sink, key, revision));
CREATE INDEX deliveries_by_state ON deliveries (state, id);
CREATE TABLE journal (id INTEGER PRIMARY KEY, line TEXT NOT NULL);
"""
# What receivers gave back, such as where a message stands in a channel; older daemons leave the table alone.
RECEIPTS = (
    "CREATE TABLE IF NOT EXISTS receipts (sink TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL,"
    " PRIMARY KEY (sink, key)) WITHOUT ROWID"
)
_PUT_DELIVERY = "INSERT OR REPLACE INTO deliveries VALUES (?,?,?,?,?,?,?,?,?,?,?,?)"
DEAD = "SELECT * FROM deliveries WHERE state = 'dead' ORDER BY id"
PRUNE: tuple[Statement, ...] = (
    (
        "DELETE FROM incidents WHERE state = 'closed' AND key NOT IN"
        " (SELECT key FROM incidents WHERE state = 'closed' ORDER BY updated DESC LIMIT ?)",
        (MAX_CLOSED,),
    ),
    # What was sent about an open incident stays: it is how a restart knows not to page again.
    (
        "DELETE FROM deliveries WHERE state != 'pending' AND id <= (SELECT max(id) FROM deliveries) - ?"
        " AND key NOT IN (SELECT key FROM incidents WHERE state = 'open')",
        (MAX_FINISHED,),
    ),
    (
        "DELETE FROM receipts WHERE key NOT IN"
        " (SELECT key FROM incidents ORDER BY state = 'open' DESC, updated DESC LIMIT ?)",
        (MAX_TOLD,),
    ),
    ("DELETE FROM journal WHERE id <= (SELECT max(id) FROM journal) - ?", (MAX_JOURNAL,)),
)


@dataclass(frozen=True, slots=True)
class Row:
    """A message in the outbox. `state`: pending | sent | dead; times are Unix seconds; `error` is the last failure."""

    id: int
    delivery: Delivery
    state: Literal["pending", "sent", "dead"]
    attempts: int
    created: float
    not_before: float
    error: str = ""

    @property
    def slot(self) -> tuple[str, str]:
        """Messages of one slot (sink, incident) keep their order."""
        return self.delivery.sink, self.delivery.key


def position_statement(source: str, value: bytes | str | None) -> Statement:
    """Where a source was read to; None forgets it. Names of files need not be UTF-8, so they are stored as bytes."""
    name = os.fsencode(source)
    if value is None:
        return "DELETE FROM positions WHERE source = ?", (name,)
    text = value.decode("utf-8") if isinstance(value, bytes) else value
    return "INSERT OR REPLACE INTO positions VALUES (?,?)", (name, text)


def incident_statement(verdict: Verdict, now: float) -> Statement:
    """The last verdict of an incident; `now` in Unix seconds."""
    values = (verdict["key"], verdict.get("state", "open"), now, json.dumps(verdict))
    return "INSERT OR REPLACE INTO incidents VALUES (?,?,?,?)", values


def delivery_statement(row: Row) -> Statement:
    """A message with its fate."""
    d = row.delivery
    told = (row.id, d.sink, d.key, d.revision, d.event, d.reason, json.dumps(d.verdict))
    return _PUT_DELIVERY, (*told, row.state, row.attempts, row.created, row.not_before, row.error)


def delivery_row(values: Sequence[Any]) -> Row:
    """The inverse of `delivery_statement`."""
    number, sink, key, revision, event, reason, verdict, state, attempts, created, not_before, error = values
    delivery = Delivery(sink, key, revision, event, f"{key}:{revision}", reason, json.loads(verdict))
    return Row(number, delivery, state, attempts, created, not_before, error)
