"""Messages that wait, in memory: which may be sent now, which are under way. Any thread may ask."""

import threading
from collections.abc import Sequence
from dataclasses import replace

from denpexd.notify.rows import Row

# No wait is longer than this many seconds, so a longer one only means that the wall clock was set back.
LONGEST_WAIT = 900.0


class Waiting:
    """What is pending, in the order in which it came."""

    def __init__(self) -> None:
        self._memory = threading.Lock()
        self._rows: dict[int, Row] = {}  # by id
        self._leased: set[int] = set()

    def due(self, now: float, sink: str | None = None, limit: int = 100) -> list[Row]:
        """Messages that may be sent now (Unix seconds), oldest first; of one incident and sink only the oldest."""
        return [row for row in self._heads(sink) if not now < row.not_before <= now + LONGEST_WAIT][:limit]

    def next_due(self, sink: str) -> float | None:
        """When the next message of a sink may be sent, Unix seconds; None if none waits."""
        return min((row.not_before for row in self._heads(sink)), default=None)

    def _heads(self, sink: str | None) -> list[Row]:
        heads: dict[tuple[str, str], Row] = {}
        with self._memory:
            for row in self._rows.values():
                if sink in (None, row.delivery.sink):
                    heads.setdefault(row.slot, row)
            return [row for row in heads.values() if row.id not in self._leased]

    def lease(self, row: Row) -> None:
        """Keep a message from being handed out again until its fate is known; a crash frees it."""
        with self._memory:
            self._leased.add(row.id)

    def release(self, row: Row) -> None:
        """Give a leased message back as it was."""
        with self._memory:
            self._leased.discard(row.id)

    def pending(self) -> int:
        """How many messages wait."""
        with self._memory:
            return len(self._rows)

    def oldest_age(self, now: float) -> float:
        """Age in seconds of the oldest message that waits, 0 if none; `now` in Unix seconds."""
        with self._memory:
            return max((now - row.created for row in self._rows.values()), default=0.0)

    def _free(self) -> list[Row]:
        with self._memory:
            return [row for row in self._rows.values() if row.id not in self._leased]

    def _show(self, rows: Sequence[Row], stale: Sequence[Row]) -> None:
        with self._memory:
            self._rows |= {row.id: row for row in rows}
            for row in stale:
                self._rows.pop(row.id, None)  # it may have arrived meanwhile

    def _stale(self, rows: Sequence[Row]) -> list[Row]:
        """Updates that wait and that a newer message makes needless: a receiver that was away gets the last one."""
        newest = {row.slot: row.id for row in rows}
        if not newest:
            return []
        return [
            replace(row, state="merged", delivery=replace(row.delivery, verdict={}))
            for row in (*self._free(), *rows)
            if row.delivery.event == "updated" and row.id < newest.get(row.slot, 0)
        ]
