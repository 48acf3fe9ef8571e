"""What a batch of input caused, made durable in one transaction together with how far was read."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from denpexd.clock import Clock
from denpexd.core.events import Closed
from denpexd.errors import StateError
from denpexd.notify.deliver import Deliverer
from denpexd.notify.outbox import Store
from denpexd.notify.policy import Delivery, Sent, SinkFilter, passes, plan
from denpexd.notify.redact import redact_verdict
from denpexd.notify.rows import MAX_JOURNAL
from denpexd.notify.storm import Storm
from denpexd.pipeline import Change

log = logging.getLogger(__name__)

KEPT = 1000  # incidents shown

Verdict = Mapping[str, object]


@dataclass(slots=True)
class _Batch:
    """What is to be written with the next transaction, beside the positions."""

    journal: list[str] = field(default_factory=list)
    incidents: list[Verdict] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.journal or self.incidents or self.deliveries)


class Ledger:
    """What is to be written, and the last verdict of each incident. `positions`: how far has been read."""

    def __init__(
        self,
        positions: Callable[[], Mapping[str, str | None]],
        store: Store,
        deliverer: Deliverer,
        sinks: Sequence[SinkFilter],
        clock: Clock,
    ) -> None:
        self._positions, self._store, self._deliverer, self._sinks = positions, store, deliverer, sinks
        self._writing = asyncio.Lock()
        self._pending = _Batch()
        self._planned: dict[str, dict[str, Sent]] = {}  # by incident and sink, not yet known to the store
        self.forgotten = 0  # lines of the journal that waited for the disk in vain
        self.incidents: dict[str, Verdict] = {str(v["key"]): v for v in reversed(store.incidents(None, KEPT))}
        self._clock = clock
        self._storms = {sink.name: Storm() for sink in sinks}
        self._resume()

    def add(self, changes: Sequence[Change], journal: Sequence[str]) -> None:
        """Note it for the next transaction."""
        pending = self._pending
        pending.journal += journal
        if (excess := len(pending.journal) - MAX_JOURNAL) > 0:
            del pending.journal[:excess]
            self.forgotten += excess
        pending.incidents += [change.verdict for change in changes]
        pending.deliveries += self._plan(changes)
        for change in changes:
            self._remember(change.verdict)

    @property
    def held(self) -> int:
        """Incidents that some sink will be told of together with others."""
        return len({key for storm in self._storms.values() for key in storm.held})

    def _resume(self) -> None:
        """What waited to be told together when the daemon before this one was killed, waits again."""
        for verdict in reversed(self._store.incidents("open", KEPT)):
            if not self._store.sent(str(verdict["key"])):
                for sink in self._sinks:
                    if passes(sink, verdict):
                        self._storms[sink.name].hold(verdict, self._clock.now())

    async def commit(self, *, last: bool = False) -> None:
        """One transaction: what was read, what it means and whom to tell, so that a crash loses or repeats nothing.

        `last`: nothing is kept for a later message.
        """
        async with self._writing:
            self._pending.deliveries += self._digests(last=last)
            batch, self._pending = self._pending, _Batch()
            positions = self._positions()
            if not (positions or batch):
                return
            try:
                await asyncio.to_thread(
                    self._store.commit,
                    positions=positions,
                    incidents=batch.incidents,
                    deliveries=batch.deliveries,
                    journal=batch.journal,
                )
            except StateError as error:
                log.error("%s", error)
            if not self._pending.deliveries:
                self._planned.clear()  # the store knows them all
            if batch.deliveries:
                self._deliverer.wake()

    def _plan(self, changes: Sequence[Change]) -> list[Delivery]:
        """Messages for all changes of a batch, each knowing what the ones before it will have said."""
        deliveries: list[Delivery] = []
        for change in changes:
            key = str(change.verdict["key"])
            planned = plan(change, self._sinks, self._store.sent(key) | self._planned.get(key, {}))
            planned = [d for d in planned if not self._holds(d)]
            if isinstance(change, Closed):
                for storm in self._storms.values():
                    storm.over(change.verdict)
            self._planned.setdefault(key, {}).update({d.sink: Sent(d.revision, d.event) for d in planned})
            deliveries += planned
        return deliveries

    def _holds(self, delivery: Delivery) -> bool:
        """Whether it is told later, together with others."""
        storm = self._storms[delivery.sink]
        waited = len(storm.held)
        if delivery.reason != "first" or not storm.holds(delivery.verdict, self._clock.now()):
            return False
        if not waited:
            log.warning("sink %s: too many incidents for a message each; further ones are told together", delivery.sink)
        return True

    def _digests(self, *, last: bool) -> list[Delivery]:
        found = []
        for name, storm in self._storms.items():
            if (verdict := storm.digest(self._clock.now(), last=last)) is not None:
                key = f"{verdict['key']}-{name}"
                found.append(Delivery(name, key, 1, "opened", f"{key}:1", "first", {**verdict, "key": key}))
        return found

    def _remember(self, verdict: Verdict) -> None:
        key = str(verdict["key"])
        clean, _ = redact_verdict(verdict)
        self.incidents.pop(key, None)
        self.incidents[key] = clean
        while len(self.incidents) > KEPT:
            del self.incidents[next(iter(self.incidents))]
