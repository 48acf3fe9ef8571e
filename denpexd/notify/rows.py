"""How the state lies in SQLite: the schema, the limits of each table, and rows to values and back."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from denpexd.notify.database import Statement
from denpexd.notify.policy import Delivery, Verdict

MAX_FINISHED = 10_000
MAX_CLOSED = 5_000
MAX_TOLD = 10_000
MAX_JOURNAL = 50_000
MAX_DECISIONS = 20_000
YEAR = 365 * 86400.0  # closed incidents and what people said of them are kept so long

_FIRST = (
    "CREATE TABLE positions (source BLOB PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE incidents (key TEXT PRIMARY KEY, state TEXT NOT NULL, updated REAL NOT NULL, verdict TEXT NOT NULL)",
    "CREATE INDEX incidents_by_state ON incidents (state, updated)",
    "CREATE TABLE deliveries (id INTEGER PRIMARY KEY, sink TEXT NOT NULL, key TEXT NOT NULL, revision INTEGER NOT NULL,"
    " event TEXT NOT NULL, reason TEXT NOT NULL, verdict TEXT NOT NULL, state TEXT NOT NULL, attempts INTEGER NOT NULL,"
    " created REAL NOT NULL, not_before REAL NOT NULL, error TEXT NOT NULL, UNIQUE (sink, key, revision))",
    "CREATE INDEX deliveries_by_state ON deliveries (state, id)",
    "CREATE TABLE journal (id INTEGER PRIMARY KEY, line TEXT NOT NULL)",
)
# What people said, what was decided, and incidents by what is asked for.
_SECOND = (
    "ALTER TABLE deliveries ADD COLUMN told INTEGER NOT NULL DEFAULT 0",
    "UPDATE deliveries SET told = revision",
    "ALTER TABLE incidents ADD COLUMN job TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE incidents ADD COLUMN failure TEXT NOT NULL DEFAULT ''",
    "UPDATE incidents SET job = coalesce(json_extract(verdict, '$.job'), ''),"
    " failure = coalesce(json_extract(verdict, '$.failure'), '') WHERE json_valid(verdict)",
    "CREATE INDEX incidents_by_failure ON incidents (failure, job, updated)",
    "CREATE TABLE silences (id TEXT PRIMARY KEY, starts REAL NOT NULL, ends REAL NOT NULL, created REAL NOT NULL,"
    " who TEXT NOT NULL, comment TEXT NOT NULL, match TEXT NOT NULL)",
    "CREATE TABLE acknowledgements (key TEXT PRIMARY KEY, t REAL NOT NULL, who TEXT NOT NULL, note TEXT NOT NULL,"
    " closed INTEGER NOT NULL)",
    "CREATE TABLE fixes (key TEXT PRIMARY KEY, job TEXT NOT NULL, failure TEXT NOT NULL, t REAL NOT NULL,"
    " who TEXT NOT NULL, note TEXT NOT NULL, observed REAL NOT NULL, state TEXT NOT NULL, decided REAL NOT NULL,"
    " again TEXT NOT NULL)",
    "CREATE TABLE held (sink TEXT NOT NULL, key TEXT NOT NULL, reason TEXT NOT NULL, since REAL NOT NULL,"
    " revision INTEGER NOT NULL, PRIMARY KEY (sink, key)) WITHOUT ROWID",
    "CREATE TABLE decisions (id INTEGER PRIMARY KEY, t REAL NOT NULL, key TEXT NOT NULL, sink TEXT NOT NULL,"
    " action TEXT NOT NULL, reason TEXT NOT NULL, event TEXT NOT NULL, revision INTEGER NOT NULL,"
    " detail TEXT NOT NULL)",
    "CREATE INDEX decisions_by_key ON decisions (key, id)",
    # What receivers gave back, such as where a message stands in a channel.
    "CREATE TABLE IF NOT EXISTS receipts (sink TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL,"
    " PRIMARY KEY (sink, key)) WITHOUT ROWID",
)
SCHEMAS = (_FIRST, _SECOND)
"""What makes schema 1 of nothing, schema 2 of schema 1, and so on. What has been released is never changed."""
_PUT_DELIVERY = "INSERT OR REPLACE INTO deliveries VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?)"
INCIDENTS = "SELECT key, state, updated, verdict FROM incidents"
TOLD = "SELECT sink, key, revision, event, reason, told, created FROM deliveries ORDER BY sink, key, revision"
DEAD = "SELECT * FROM deliveries WHERE state = 'dead' ORDER BY id"
PRUNE: tuple[Statement, ...] = (
    ("DELETE FROM incidents WHERE state = 'closed' AND updated < (SELECT max(updated) FROM incidents) - ?", (YEAR,)),
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
    ("DELETE FROM decisions WHERE id <= (SELECT max(id) FROM decisions) - ?", (MAX_DECISIONS,)),
)


@dataclass(frozen=True, slots=True)
class Row:
    """A message in the outbox. `state`: pending | sent | dead, or merged into a later one.

    Times are Unix seconds; `error` is the last failure.
    """

    id: int
    delivery: Delivery
    state: Literal["pending", "sent", "dead", "merged"]
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
    told = (verdict["key"], verdict.get("state", "open"), now, json.dumps(verdict))
    about = (str(verdict.get("job", "")), str(verdict.get("failure", "")))
    return "INSERT OR REPLACE INTO incidents VALUES (?,?,?,?,?,?)", (*told, *about)


def delivery_statement(row: Row) -> Statement:
    """A message with its fate."""
    d = row.delivery
    told = (row.id, d.sink, d.key, d.revision, d.event, d.reason, json.dumps(d.verdict))
    return _PUT_DELIVERY, (*told, row.state, row.attempts, row.created, row.not_before, row.error, d.told)


def delivery_row(values: Sequence[Any]) -> Row:
    """The inverse of `delivery_statement`."""
    number, sink, key, revision, event, reason, verdict, state, attempts, created, not_before, error, told = values
    delivery = Delivery(sink, key, revision, event, f"{key}:{revision}", reason, json.loads(verdict), told)
    return Row(number, delivery, state, attempts, created, not_before, error)
