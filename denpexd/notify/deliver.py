"""Takes messages from the outbox to their sinks: one task per sink, so a slow or dead one delays no other.

At least once: a message leaves the outbox only after its sink accepted it, and a repeat carries the same key. Waits
grow with every failure, with jitter; a receiver's Retry-After is honoured. What can never arrive is set aside with
its reason (in the table `deliveries`).
"""

import asyncio
import logging
import random
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from denpexd.clock import Clock
from denpexd.errors import DeliveryError, StateError
from denpexd.notify.outbox import Store
from denpexd.notify.policy import Verdict
from denpexd.notify.rows import Row

log = logging.getLogger(__name__)

FIRST_WAIT = 1.0
MAX_WAIT = 300.0
# A sink that fails is left alone for at most this long, so that one bad message does not hold up the others.
MAX_HOLD = 30.0
GIVE_UP_AFTER = 24 * 3600.0


class Sink(Protocol):
    """A destination. `max_attempts` None: tried until it is a day old."""

    name: str
    max_attempts: int | None

    async def send(self, row: Row) -> None:
        """Return when the message has arrived; DeliveryError otherwise."""
        ...

    def preview(self, row: Row) -> object:
        """What would be sent, without secrets: a text, or a value that is sent as JSON."""
        ...


@runtime_checkable
class Refreshing(Protocol):
    """A sink that must hear of open incidents again and again, every `refresh_every` seconds."""

    refresh_every: float

    async def refresh(self, verdicts: Sequence[Verdict]) -> None:
        """Send all open incidents again; DeliveryError if that failed."""
        ...


class Deliverer:
    """Runs the sinks. `counters`: how many messages by (sink, outcome), outcome sent | retried | dead."""

    def __init__(self, store: Store, sinks: Sequence[Sink], clock: Clock, rng: random.Random) -> None:
        self._store, self._sinks, self._clock, self._rng = store, list(sinks), clock, rng
        self.counters = {(sink.name, outcome): 0 for sink in sinks for outcome in ("sent", "retried", "dead")}
        self._wakers = {sink.name: asyncio.Event() for sink in sinks}
        self._hold = {sink.name: 0.0 for sink in sinks}
        self._refresh_at = {sink.name: clock.now() for sink in sinks if isinstance(sink, Refreshing)}
        self._tasks: set[asyncio.Task[None]] = set()
        self._draining = False

    def wake(self) -> None:
        """There are new messages; call it in the event loop after a commit."""
        for waker in self._wakers.values():
            waker.set()

    async def run(self) -> None:
        """Deliver until `drain` or cancellation; needs at least one sink."""
        await self._drop_orphans()
        self._tasks = {asyncio.create_task(self._serve(sink), name=f"sink-{sink.name}") for sink in self._sinks}
        try:
            done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_EXCEPTION)
        finally:
            for task in self._tasks:
                task.cancel()
        for task in done:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error

    async def drain(self, grace: float) -> None:
        """Try once what is due, for at most `grace` seconds, then stop; the rest stays in the outbox."""
        self._draining = True
        self.wake()
        timer = asyncio.create_task(self._clock.sleep(grace))
        running = set(self._tasks)
        while running and not timer.done():
            done, _ = await asyncio.wait({*running, timer}, return_when=asyncio.FIRST_COMPLETED)
            running -= done
        for task in (*running, timer):
            task.cancel()
        await asyncio.gather(*running, timer, return_exceptions=True)

    async def once(self, grace: float) -> None:
        """Try what waits once, without `run`, for at most `grace` seconds."""
        self._tasks = {asyncio.create_task(self._serve(sink), name=f"sink-{sink.name}") for sink in self._sinks}
        await self.drain(grace)

    async def _drop_orphans(self) -> None:
        for row in self._store.due(float("inf"), limit=1_000_000):
            if row.delivery.sink not in self._wakers:
                await asyncio.to_thread(self._store.dead, row, "the sink is no longer configured")

    async def _serve(self, sink: Sink) -> None:
        failed = 0
        while True:
            self._wakers[sink.name].clear()
            if isinstance(sink, Refreshing) and not self._draining:
                await self._refresh(sink.name, sink)
            due = [] if self._held(sink.name) else self._store.due(self._clock.wall(), sink.name, limit=1)
            if due:
                failed = 0 if await self._attempt(sink, due[0], failed) else failed + 1
            elif self._draining:
                return
            if self._draining and failed:
                return
            if not due:
                await self._wait(sink.name)

    def _held(self, name: str) -> bool:
        return self._clock.now() < self._hold[name]

    async def _attempt(self, sink: Sink, row: Row, failed: int) -> bool:
        """Whether the sink is well: it took the message, or refused just this one."""
        self._store.lease(row)
        try:
            await sink.send(row)
        except DeliveryError as error:
            return await self._failed(sink, row, error, failed)
        except Exception as error:
            log.exception("sink %s failed unexpectedly", sink.name)
            fault = DeliveryError(f"unexpected {type(error).__name__}", retryable=True)
            return await self._failed(sink, row, fault, failed)
        finally:
            self._store.release(row)
        await asyncio.to_thread(self._store.done, row)
        self.counters[sink.name, "sent"] += 1
        return True

    async def _failed(self, sink: Sink, row: Row, error: DeliveryError, failed: int) -> bool:
        name, now = sink.name, self._clock.wall()
        tried_out = sink.max_attempts is not None and row.attempts + 1 >= sink.max_attempts
        if not error.retryable or tried_out or now - row.created > GIVE_UP_AFTER:
            what = row.delivery.idempotency_key
            log.error("sink %s: message %s is given up after %d tries: %s", name, what, row.attempts + 1, error)
            await asyncio.to_thread(self._store.dead, row, error.reason)
            self.counters[name, "dead"] += 1
            return not error.retryable
        wait = self._backoff(row.attempts) if error.after is None else error.after
        hold = min(self._backoff(failed), wait, MAX_HOLD) if error.after is None else error.after
        self._hold[name] = self._clock.now() + hold
        level = logging.WARNING if row.attempts == 0 else logging.DEBUG
        log.log(level, "sink %s: message %s is tried again in %.1f s: %s", name, row.delivery.key, wait, error)
        await asyncio.to_thread(self._store.retry, row, now + wait, error.reason)
        self.counters[name, "retried"] += 1
        return False

    def _backoff(self, attempts: int) -> float:
        longest = min(MAX_WAIT, FIRST_WAIT * 2.0 ** min(attempts, 16))
        return self._rng.uniform(longest / 2, longest)

    async def _refresh(self, name: str, sink: Refreshing) -> None:
        if self._clock.now() < self._refresh_at[name] or self._held(name):
            return
        self._refresh_at[name] = self._clock.now() + sink.refresh_every
        try:
            if verdicts := await asyncio.to_thread(self._store.told_open, name):
                await sink.refresh(verdicts)
        except (DeliveryError, StateError) as error:
            log.warning("sink %s: the regular round over open incidents failed: %s", name, error)

    async def _wait(self, name: str) -> None:
        """Until a new message, or until something is due."""
        now = self._clock.now()
        until = [now + MAX_WAIT]
        if (due := self._store.next_due(name)) is not None:
            until.append(max(now + due - self._clock.wall(), self._hold[name]))
        if name in self._refresh_at:
            until.append(max(self._refresh_at[name], self._hold[name]))
        waiting = {
            asyncio.create_task(self._clock.sleep(max(0.0, min(until) - now))),
            asyncio.create_task(self._wakers[name].wait()),
        }
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
