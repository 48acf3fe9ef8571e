"""Writes batches of statements, and keeps what the disk refuses in memory until it takes them again.

Methods may be called from any thread, and can block.
"""

import logging
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from denpexd.errors import StateError
from denpexd.notify.database import Database, Statement
from denpexd.notify.rows import MAX_CLOSED, MAX_FINISHED, MAX_JOURNAL, MAX_TOLD

log = logging.getLogger(__name__)

Name = tuple[object, ...]
"""What a statement is about: its kind, and which of that kind. A later one about the same replaces it."""

# Statements that wait while the disk refuses them, by kind; the oldest go first.
MAX_UNSAVED = {
    "journal": MAX_JOURNAL,
    "delivery": 2 * MAX_FINISHED,
    "incident": 2 * MAX_CLOSED,
    "position": 50_000,
    "receipt": 2 * MAX_CLOSED,
    "decision": MAX_FINISHED,
    "held": 2 * MAX_TOLD,
    "acknowledgement": MAX_FINISHED,
    "silence": 2_000,
    "fix": 1_000,
    "spool": 20_000,
}


class Writer:
    """`errors`: failed writes; `dropped`: statements that were not written as too many waited."""

    def __init__(self, database: Database) -> None:
        self.errors = self.dropped = 0
        self._database = database
        self._memory, self._disk = threading.Lock(), threading.Lock()
        self._unsaved: dict[Name, Statement] = {}
        self._failing = self._told = False

    def __len__(self) -> int:
        return len(self._unsaved)

    def write(self, batch: Mapping[Name, Statement]) -> StateError | None:
        """Everything that waits, in one transaction; what was wrong if nothing was written."""
        with self._memory:
            self._unsaved.update(batch)
        with self._disk:
            with self._memory:
                written = dict(self._unsaved)
            if not written:
                return None
            try:
                self._database.write(written.values())
            except StateError as error:
                self._failed(error)
                return error
            with self._memory:
                for name, statement in written.items():
                    if self._unsaved.get(name) is statement:
                        del self._unsaved[name]
            if self._failing:
                log.info("state is written again; nothing was lost in between")
            self._failing = self._told = False
        return None

    def said(self) -> bool:
        """Whether it was asked before if somebody has to be told that writing fails."""
        told, self._told = self._told, True
        return told

    def rows(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """The rows of a query, as they are on disk."""
        with self._disk:
            return self._database.rows(sql, values)

    def make(self, table: str) -> None:
        """A statement that makes a table, by itself; StateError if that fails."""
        with self._disk:
            self._database.write([(table, ())])

    def waiting(self, kind: str) -> dict[Name, tuple[Any, ...]]:
        """The values of what is not written yet, of one kind."""
        with self._memory:
            return {name: values for name, (_, values) in self._unsaved.items() if name[0] == kind}

    def close(self) -> None:
        """Close the file."""
        with self._disk:
            self._database.close()

    def _failed(self, error: StateError) -> None:
        self.errors += 1
        if not self._failing:
            log.error("%s; going on in memory: alerts are sent, but would not survive a restart", error)
        self._failing = True
        with self._memory:
            for kind, most in MAX_UNSAVED.items():
                rows = [name for name in self._unsaved if name[0] == kind]
                for name in rows[:-most]:
                    del self._unsaved[name]
                    self.dropped += 1
