"""Takes messages from the outbox to their sinks: one task per sink, so a slow or dead one delays no other.

At least once: a message leaves the outbox only after its sink accepted it, and a repeat carries the same key. Waits
grow with every failure, with jitter; a receiver's Retry-After is honoured. What can never arrive is set aside with
its reason (in the table `deliveries`).
"""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from denpexd.clock import Clock
from denpexd.errors import DeliveryError, StateError, Withdrawn
from denpexd.notify.outbox import Store
from denpexd.notify.rows import Row
from denpexd.notify.sink import Beating, Refreshing, Sink

log = logging.getLogger(__name__)

FIRST_WAIT = 1.0
MAX_WAIT = 300.0
# A sink that fails is left alone for at most this long, so that one bad message does not hold up the others.
MAX_HOLD = 30.0
GIVE_UP_AFTER = 24 * 3600.0
LEAVE = 15.0  # seconds that a message under way gets when its sink is replaced


@dataclass(slots=True)
class _Lane:
    """One sink at work. `leaving`: "once" to try what is due and end, "now" to end after the message under way."""

    sink: Sink
    again_at: float  # when it is refreshed, or beats
    waker: asyncio.Event = field(default_factory=asyncio.Event)
    hold: float = 0.0
    well: bool = True
    leaving: Literal["", "once", "now"] = ""
    task: "asyncio.Task[None] | None" = None


class Deliverer:
    """Runs the sinks. `counters`: how many messages by (sink, outcome), outcome sent | retried | dead.

    `alive`: whether the daemon makes progress, for sinks that beat.
    """

    def __init__(
        self,
        store: Store,
        sinks: Sequence[Sink],
        clock: Clock,
        rng: random.Random,
        alive: Callable[[], bool] = lambda: True,
    ) -> None:
        self._store, self._clock, self._rng, self._alive = store, clock, rng, alive
        self.counters: dict[tuple[str, str], int] = {}
        self._left: set[asyncio.Task[None]] = set()  # sinks that were taken away, at their last messages
        self._swapped = asyncio.Event()
        self._running = self._draining = False
        self._lanes = {sink.name: self._lane(sink) for sink in sinks}

    def _lane(self, sink: Sink) -> _Lane:
        for outcome in ("sent", "retried", "dead"):
            self.counters.setdefault((sink.name, outcome), 0)
        return _Lane(sink, self._clock.now())

    def wake(self) -> None:
        """There are new messages; call it in the event loop after a commit."""
        for lane in self._lanes.values():
            lane.waker.set()

    def well(self, name: str) -> bool:
        """Whether the sink took the last message that it was offered."""
        lane = self._lanes.get(name)
        return lane is not None and lane.well

    async def run(self) -> None:
        """Deliver until `drain` or cancellation."""
        await self._drop_orphans()
        self._running = True
        self._start()
        try:
            while (tasks := [task for task in self._tasks() if not task.done()]) or not self._draining:
                self._swapped.clear()
                swapped = asyncio.create_task(self._swapped.wait())
                await asyncio.wait({*tasks, swapped}, return_when=asyncio.FIRST_COMPLETED)
                swapped.cancel()
                for task in tasks:
                    if task.done() and not task.cancelled():
                        task.result()  # a fault in one ends all; whoever runs this begins again
        finally:
            self._running = False
            for task in (*self._tasks(), *self._left):
                task.cancel()

    def _tasks(self) -> list["asyncio.Task[None]"]:
        return [lane.task for lane in self._lanes.values() if lane.task is not None]

    def _start(self) -> None:
        for name, lane in self._lanes.items():
            lane.task = asyncio.create_task(self._serve(lane), name=f"sink-{name}")

    def use(self, sinks: Sequence[Sink]) -> None:
        """Other sinks from now on; one that is in both lists goes on undisturbed.

        A changed one takes over the messages of the one of its name, once the message under way has had its end; what
        waits for one that is gone is tried once more and then set aside.
        """
        former, self._lanes = self._lanes, {}
        for sink in sinks:
            was = former.pop(sink.name, None)
            if was is not None and was.sink is sink:
                self._lanes[sink.name] = was
                continue
            lane = self._lanes[sink.name] = self._lane(sink)
            if self._running:
                after = self._leave(was, "now") if was is not None else None
                lane.task = asyncio.create_task(self._serve(lane, after), name=f"sink-{sink.name}")
        for was in former.values():
            if (after := self._leave(was, "once")) is not None:
                self._left.add(task := asyncio.create_task(self._orphan(after), name=f"sink-{was.sink.name}-left"))
                task.add_done_callback(self._left.discard)
        self._swapped.set()

    @staticmethod
    def _leave(lane: _Lane, how: Literal["once", "now"]) -> "asyncio.Task[None] | None":
        lane.leaving = how
        lane.waker.set()
        return lane.task

    async def _orphan(self, last: "asyncio.Task[None]") -> None:
        await self._end(last)
        await self._drop_orphans()

    async def _end(self, task: "asyncio.Task[None]") -> None:
        """Wait for a sink that is leaving, not for ever: a message under way is then sent again, with its key."""
        timer = asyncio.create_task(self._clock.sleep(LEAVE))
        await asyncio.wait({task, timer}, return_when=asyncio.FIRST_COMPLETED)
        for one in (task, timer):
            one.cancel()
        await asyncio.gather(task, timer, return_exceptions=True)

    async def drain(self, grace: float) -> None:
        """Try once what is due, for at most `grace` seconds, then stop; the rest stays in the outbox."""
        self._draining = True
        self.wake()
        self._swapped.set()
        timer = asyncio.create_task(self._clock.sleep(grace))
        running = {*self._tasks(), *self._left}
        while running and not timer.done():
            done, _ = await asyncio.wait({*running, timer}, return_when=asyncio.FIRST_COMPLETED)
            running -= done
        for task in (*running, timer):
            task.cancel()
        await asyncio.gather(*running, timer, return_exceptions=True)

    async def once(self, grace: float) -> None:
        """Try what waits once, without `run`, for at most `grace` seconds."""
        self._start()
        await self.drain(grace)

    async def _drop_orphans(self) -> None:
        for row in self._store.due(float("inf"), limit=1_000_000):
            if row.delivery.sink not in self._lanes:
                await asyncio.to_thread(self._store.dead, row, "the sink is no longer configured")

    async def _serve(self, lane: _Lane, after: "asyncio.Task[None] | None" = None) -> None:
        if after is not None:
            await self._end(after)
        failed, name = 0, lane.sink.name
        while lane.leaving != "now":
            lane.waker.clear()
            last = self._draining or bool(lane.leaving)
            if not last:
                await self._refresh(lane)
            held = self._clock.now() < lane.hold
            due = [] if held else self._store.due(self._clock.wall(), name, limit=1)
            if due:
                failed = 0 if await self._attempt(lane, due[0], failed) else failed + 1
                lane.well = not failed
            elif last:
                return
            if last and failed:
                return
            if not due:
                await self._wait(lane)

    async def _attempt(self, lane: _Lane, row: Row, failed: int) -> bool:
        """Whether the sink is well: it took the message, or refused just this one."""
        sink = lane.sink
        self._store.lease(row)
        try:
            await sink.send(row)
        except Withdrawn as error:
            log.info("sink %s: message %s is not sent: %s", sink.name, row.delivery.idempotency_key, error)
            await asyncio.to_thread(self._store.done, row)
            return True
        except DeliveryError as error:
            return await self._failed(lane, row, error, failed)
        except Exception as error:
            log.exception("sink %s failed unexpectedly", sink.name)
            fault = DeliveryError(f"unexpected {type(error).__name__}", retryable=True)
            return await self._failed(lane, row, fault, failed)
        finally:
            self._store.release(row)
        await asyncio.to_thread(self._store.done, row)
        self.counters[sink.name, "sent"] += 1
        return True

    async def _failed(self, lane: _Lane, row: Row, error: DeliveryError, failed: int) -> bool:
        sink, name, now = lane.sink, lane.sink.name, self._clock.wall()
        tried_out = sink.max_attempts is not None and row.attempts + 1 >= sink.max_attempts
        if not error.retryable or tried_out or now - row.created > GIVE_UP_AFTER:
            what = row.delivery.idempotency_key
            log.error("sink %s: message %s is given up after %d tries: %s", name, what, row.attempts + 1, error)
            await asyncio.to_thread(self._store.dead, row, error.reason)
            self.counters[name, "dead"] += 1
            return not error.retryable
        # "At once", or a date that has passed, is no reason to ask all the time.
        after = error.after if error.after is not None and error.after >= FIRST_WAIT else None
        wait = self._backoff(row.attempts) if after is None else after
        hold = min(self._backoff(failed), wait, MAX_HOLD) if after is None else after
        lane.hold = self._clock.now() + hold
        level = logging.WARNING if row.attempts == 0 else logging.DEBUG
        log.log(level, "sink %s: message %s is tried again in %.1f s: %s", name, row.delivery.key, wait, error)
        await asyncio.to_thread(self._store.retry, row, now + wait, error.reason)
        self.counters[name, "retried"] += 1
        return False

    def _backoff(self, attempts: int) -> float:
        longest = min(MAX_WAIT, FIRST_WAIT * 2.0 ** min(attempts, 16))
        return self._rng.uniform(longest / 2, longest)

    async def _refresh(self, lane: _Lane) -> None:
        sink, now = lane.sink, self._clock.now()
        if not isinstance(sink, Refreshing | Beating) or now < lane.again_at or now < lane.hold:
            return
        lane.again_at = now + (sink.refresh_every if isinstance(sink, Refreshing) else sink.beat_every)
        try:
            if isinstance(sink, Beating):
                await self._beat(sink)
            elif verdicts := await asyncio.to_thread(self._store.told_open, sink.name):
                await sink.refresh(verdicts)
        except (DeliveryError, StateError) as error:
            what = "heartbeat failed" if isinstance(sink, Beating) else "the regular round over open incidents failed"
            log.warning("sink %s: %s: %s", sink.name, what, error)

    async def _beat(self, sink: Beating) -> None:
        if not self._alive():
            log.warning("sink %s: no heartbeat, as the daemon makes no progress", sink.name)
            return
        try:
            await sink.beat()
            self.counters[sink.name, "sent"] += 1
        except DeliveryError:
            self.counters[sink.name, "retried"] += 1
            raise

    async def _wait(self, lane: _Lane) -> None:
        """Until a new message, or until something is due."""
        now = self._clock.now()
        until = [now + MAX_WAIT]
        if (due := self._store.next_due(lane.sink.name)) is not None:
            until.append(max(now + due - self._clock.wall(), lane.hold))
        if isinstance(lane.sink, Refreshing | Beating):
            until.append(max(lane.again_at, lane.hold))
        waiting = {
            asyncio.create_task(self._clock.sleep(max(0.0, min(until) - now))),
            asyncio.create_task(lane.waker.wait()),
        }
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
