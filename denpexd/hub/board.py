"""The incidents that hubs have told of, where every hub can read them: what the next owner of a job must know.

A record is written before anybody is told, and again after each message, so the next owner keeps the keys and sends
only what was not sent. At the worst, a message is repeated under the same idempotency key.
"""

import asyncio
import json
import logging
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from denpexd.hub.broker import BOARD, Broker
from denpexd.hub.wire import name_of, partition, told_by
from denpexd.notify.policy import Sent
from denpexd.notify.redact import redact_verdict

log = logging.getLogger(__name__)

Verdict = Mapping[str, Any]


@dataclass(slots=True)
class Record:
    """An incident: its newest verdict, redacted, and the last message of each sink."""

    verdict: Verdict
    sent: dict[str, Sent] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return str(self.verdict["key"])

    @property
    def job(self) -> str:
        return str(self.verdict["job"])

    @property
    def is_open(self) -> bool:
        return self.verdict.get("state") == "open"

    @property
    def is_done(self) -> bool:
        """Closed, and everybody who was told of it knows."""
        return not self.is_open and all(sent.event == "closed" for sent in self.sent.values())

    def brief(self) -> dict[str, Any]:
        """What nodes need to know: enough for `Correlator.same_as`."""
        names = ("key", "job", "failure", "opened_t", "revision", "certainty", "initiating_ranks", "collateral_ranks")
        said = {name: self.verdict[name] for name in names if name in self.verdict}
        return said | {"sent": {sink: asdict(sent) for sink, sent in self.sent.items()}}


def sent_of(told: Mapping[str, Any]) -> dict[str, Sent]:
    """`sent` of a record or of a brief; ValueError or TypeError where it is none."""
    names = {f.name: f.type for f in fields(Sent)}
    found = {}
    for sink, last in told.get("sent", {}).items():
        known = {name: value for name, value in last.items() if name in names}
        if not isinstance(last["revision"], int) or not isinstance(last["event"], str):
            raise ValueError(f"not a message that was sent: {str(last)[:80]}")
        found[str(sink)] = Sent(**known)
    return found


class Board:
    """The records of the partitions that we have, by key of the incident; `unwritten`: keys the broker lacks."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self.records: dict[str, Record] = {}
        self.unwritten: dict[str, None] = {}
        self._one_at_a_time = asyncio.Lock()

    async def read(self, part: int) -> tuple[list[Record], int]:
        """The records of a partition, and the number of the last message that its owner has dealt with."""
        found: list[Record] = []
        prefix, done = f"p{part}.", 0
        for key in await self._broker.keys(BOARD):
            if not key.startswith(prefix):
                continue
            entry = await self._broker.get(BOARD, key)
            if entry is None:
                continue
            try:
                content = json.loads(entry[0])
                if key == f"{prefix}done":
                    done = int(content["number"])
                else:
                    verdict = told_by(content["verdict"])
                    if {"key", "job", "failure", "opened_t"} <= verdict.keys():
                        found.append(Record(verdict, sent_of(content)))
            except (ArithmeticError, ValueError, KeyError, TypeError, AttributeError) as wrong:
                log.warning("an incident that another hub has written cannot be read: %r", wrong)
        self.records |= {record.key: record for record in found}
        return found, done

    def note(self, verdict: Verdict) -> None:
        """A new or changed incident; `write` tells the broker."""
        clean, _ = redact_verdict(verdict)
        known = self.records.get(str(verdict["key"]))
        self.records[str(verdict["key"])] = Record(clean, {} if known is None else known.sent)
        self.unwritten[str(verdict["key"])] = None

    def last(self, key: str, sink: str) -> Sent | None:
        """The last message about an incident that the sink has taken."""
        record = self.records.get(key)
        return None if record is None else record.sent.get(sink)

    def sent(self, key: str, sink: str, last: Sent) -> None:
        """A sink has taken a message."""
        if (record := self.records.get(key)) is not None:
            record.sent[sink] = last
            self.unwritten[key] = None

    async def write(self, only: str | None = None) -> None:
        """Bring the broker up to date, for all incidents or one; what fails with a BrokerError stays to be done."""
        async with self._one_at_a_time:
            for key in [key for key in self.unwritten if only in (None, key)]:
                record = self.records.get(key)
                del self.unwritten[key]
                if record is None:
                    continue
                try:
                    await self._write(record)
                except BaseException:
                    self.unwritten[key] = None
                    raise

    async def _write(self, record: Record) -> None:
        name = f"p{partition(record.job)}.{name_of(record.key)}"
        if record.is_done:
            await self._broker.delete(BOARD, name)
            self.records.pop(record.key, None)
            return
        sent = {sink: asdict(last) for sink, last in record.sent.items()}
        content = json.dumps({"verdict": record.verdict, "sent": sent})
        await self._broker.put(BOARD, name, content.encode("utf-8", "backslashreplace"))

    async def done(self, part: int, number: int) -> None:
        """What follows from the messages up to this one is on the board."""
        await self._broker.put(BOARD, f"p{part}.done", json.dumps({"number": number}).encode())

    def leave(self, part: int) -> None:
        """Another hub has this partition."""
        for key, record in list(self.records.items()):
            if partition(record.job) == part:
                del self.records[key]
                self.unwritten.pop(key, None)
