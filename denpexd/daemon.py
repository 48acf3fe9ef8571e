"""The three loops of the daemon - reading, ticking, answering wishes for evidence - and what they share."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from denpexd.clock import Clock
from denpexd.core.events import UNKNOWN_RANK, Event, Exit, Want
from denpexd.core.flight import Dump
from denpexd.evidence.witness import CollectorLike
from denpexd.keeper import Keeper
from denpexd.launches import Launches
from denpexd.ledger import Beside, Ledger
from denpexd.notify.deliver import Deliverer
from denpexd.notify.in_force import alerting
from denpexd.notify.outbox import Store
from denpexd.pipeline import Pipeline
from denpexd.reader import Reader
from denpexd.reload import Prepare, Rules
from denpexd.settings import Settings
from denpexd.supervise import Supervisor
from denpexd.watched import Change, Outcome

log = logging.getLogger(__name__)

TICK = 1.0
LATE = 10.0  # a tick this late means that the daemon was paused: what happened meanwhile is unknown
GRACE = 10.0  # seconds to end in: at most half of them to read what is left, the rest to send
TURN = 0.01  # seconds of reading after which others have their turn
DUMPS = 16  # of the Flight Recorder, taken in at once: about 50 ms
LOOKS = 4  # requests for evidence that run at the same time

Loop = Callable[[], Coroutine[object, object, None]]


class Uplink(Beside, Protocol):
    """The way to a daemon that knows more of a job than this one: hub.uplink.NodeUplink on a node."""

    def bind(self, daemon: "Daemon") -> None:
        """Know the daemon, which is made with it."""

    def forward(self, outcome: Outcome) -> None:
        """Pass on what the cores were fed."""

    async def forever(self) -> None:
        """Be in touch."""

    async def leave(self) -> None:
        """The daemon ends in order."""

    def counts(self) -> Mapping[str, Mapping[str, float]]:
        """Messages by outcome, what waits by kind, nodes by state, and what else there is to show."""


class Daemon:
    """One daemon at work. Everything runs on the event loop; what can block goes to a thread."""

    def __init__(
        self,
        settings: Settings,
        pipeline: Pipeline,
        reader: Reader,
        store: Store,
        deliverer: Deliverer,
        collector: CollectorLike,
        clock: Clock,
        rules: Rules,
        keeper: Keeper | None = None,
        launches: Launches | None = None,
        prepare: Prepare = lambda _: list[str],
        uplink: Uplink | None = None,
    ) -> None:
        self.pipeline, self.reader, self.store = pipeline, reader, store
        self.deliverer, self.collector, self.clock = deliverer, collector, clock
        self.uplink = uplink
        self.ledger = Ledger(
            lambda: reader.positions(pipeline.is_amid), store, deliverer, alerting(settings), clock, self._beside()
        )
        self.stopping = asyncio.Event()
        self.rules, self.keeper, self.launches, self._prepare = rules, keeper, launches, prepare
        self.supervisor = Supervisor(clock)
        self.lag = 0.0  # seconds by which the last tick was late
        self.code: int | None = None  # how the command that we run beside has ended, negative: by that signal
        self._sweep = settings.ingest.sweep
        self._looking: set[asyncio.Task[None]] = set()
        self._tick_at = clock.now()
        self._moved_at = clock.now()
        self._held: dict[Path, int] = {}  # what the local processes write
        self._attach_at = float("-inf")
        self._started = False
        if uplink is not None:
            uplink.bind(self)

    def _beside(self) -> Beside | None:
        return self.uplink

    # --- loops ------------------------------------------------------------------------------------------------------

    def loops(self, alive: Callable[[], object]) -> dict[str, Loop]:
        """What is to be kept going, by name; `alive` is called at every tick while reading goes on."""
        return {
            "read": self.read_forever,
            "tick": lambda: self.tick_forever(alive),
            "discover": self.discover_forever,
            **({} if self.uplink is None else {"uplink": self.uplink.forever}),
        }

    async def read_forever(self) -> None:
        """Read what is new as soon as it is there; everything is looked at once a sweep."""
        await self._look_around()
        touched: set[str] | None = None
        while True:
            turn = self.clock.now()
            async for found, read in self.reader.round(touched):
                await self.handle(self.pipeline.feed(found, read, self.clock.now()))
                if self.clock.now() - turn > TURN:
                    await self.clock.sleep(0)
                    turn = self.clock.now()
            self._moved_at = self.clock.now()
            self._started = self._started or not self.reader.behind()
            touched = await self.reader.wait(TICK)

    async def discover_forever(self) -> None:
        """New files, once a sweep, beside the reading: a slow folder delays no line."""
        while True:
            await self.clock.sleep(self._sweep)
            await self._look_around()

    async def _look_around(self) -> None:
        new = await self.reader.look_around()
        if new is not None:
            self.pipeline.settle(self.reader.found.values())
        await self.handle(self.pipeline.forget(self.clock.now()))
        if new:
            self._attach_at = float("-inf")  # who writes them?
            await self._welcome({found.job for found in new})

    async def _welcome(self, jobs: set[str]) -> None:
        lately = await self.reader.recent(jobs)
        for job in sorted(jobs):
            if not lately[job]:
                log.warning("job %s: last written more than ten minutes ago; what stood there is not told", job)
            await self.handle(self.pipeline.recent(job, self.clock.now(), recent=lately[job]))

    async def tick_forever(self, alive: Callable[[], object]) -> None:
        """Once a second: processes, time, positions."""
        while True:
            due = self._tick_at + TICK
            await self.clock.sleep(max(0.0, due - self.clock.now()))
            now = self.clock.now()
            self.lag = max(0.0, now - due)
            if now - self._tick_at > LATE:
                await self._paused(now, self._tick_at)
            self._tick_at = now
            await self._judge(now)
            self._watch_fixes(now)
            await self.ledger.commit()
            if self.keeper is not None:
                self.keeper.tick(now)
            if self.healthy()[0]:
                alive()

    async def _paused(self, now: float, since: float) -> None:
        log.warning("paused for %.0f s: silence in between proves nothing", now - since)
        await self.handle(self.pipeline.blind(now, since))

    async def _judge(self, now: float) -> None:
        await self._processes(now)
        for outcome in self.pipeline.idle(now):
            await self.handle(outcome)
            await self.clock.sleep(0)
        await self.handle(self.pipeline.tick(now))

    def _watch_fixes(self, now: float) -> None:
        """Jobs that train without what was fixed in them: the time counts for the fix."""
        if watched := self.ledger.history.watched:
            known = [(name, self.pipeline.jobs[name].core) for name in watched if name in self.pipeline.jobs]
            trains = [name for name, core in known if not core.is_open and core.job.trains(now)]
            self.ledger.history.trained(trains, TICK, self.clock.wall())

    async def _processes(self, now: float) -> None:
        """Ranks that came or went, told to the job whose files they write; else to the only job there is."""
        if now >= self._attach_at:
            self._attach_at = now + 5.0
            self._held = await self.collector.attach(list(self.reader.found))
            self.reader.ranks = {path: rank for path, rank in self._held.items() if rank != UNKNOWN_RANK}
        job = self.evidence_job()
        if job is not None:
            await self._witnesses(job, await self.collector.watch())
        if self.launches is not None:
            for name, events in self.launches.tick([each.core.job for each in self.pipeline.jobs.values()], job):
                await self.handle(self.pipeline.evidence(name, events))

    async def _witnesses(self, job: str, events: Sequence[Event]) -> None:
        """One batch, but for dumps: there may be a thousand, and between some of them others have their turn."""
        dumps = [event for event in events if isinstance(event, Dump)]
        if rest := [event for event in events if not isinstance(event, Dump)]:
            await self.handle(self.pipeline.evidence(job, rest))
        for begin in range(0, len(dumps), DUMPS):
            await self.handle(self.pipeline.evidence(job, dumps[begin : begin + DUMPS]))
            await self.clock.sleep(0)

    def evidence_job(self) -> str | None:
        """The job that the local processes belong to; what they say before that is known is asked again then."""
        found = self.reader.found
        for paths in (self.reader.ranks, self._held):
            if jobs := {found[path].job for path in paths if path in found}:
                break
        else:
            jobs = {one.job for one in found.values()}
        return jobs.pop() if len(jobs) == 1 else None

    async def wait_for_stop(self, until: Callable[["Daemon"], bool] | None) -> None:
        """Return when a signal came, or when `until` is true."""
        if until is None:
            await self.stopping.wait()
            return
        while not (until(self) or self.stopping.is_set()):
            await self.clock.sleep(0.1)

    async def finish(self) -> None:
        """Read what is there, also in files that came a moment ago; judge, save, give the senders a little time."""
        until = self.clock.now() + GRACE
        await self._look_around()
        more = True
        while more and self.clock.now() < until - GRACE / 2:
            async for found, read in self.reader.round(None):
                await self.handle(self.pipeline.feed(found, read, self.clock.now()))
            more = self.reader.behind()
        job = self.evidence_job()
        if self.code is not None and job is not None:
            await self.handle(self.pipeline.evidence(job, [Exit(self.clock.now(), UNKNOWN_RANK, self.code)]))
        await self.handle(self.pipeline.flush(self.clock.now()))
        await self.ledger.commit(last=True)
        for task in self._looking:
            task.cancel()
        if self.launches is not None:
            await self.launches.finish([each.core.job for each in self.pipeline.jobs.values()])
        if self.keeper is not None:
            await self.keeper.finish()
        await self.deliverer.drain(max(1.0, until - self.clock.now()))
        if self.uplink is not None:
            await self.uplink.leave()

    # --- consequences -----------------------------------------------------------------------------------------------

    async def handle(self, outcome: Outcome) -> None:
        """Make a batch's consequences durable together with the positions, then let the senders go."""
        # Nothing is waited for until all of it is pending: whoever writes next takes the positions with what they mean.
        if self.uplink is not None:
            self.uplink.forward(outcome)
        changes = self.ledger.add(outcome.changes, outcome.journal)
        self._noted(changes)
        for job, want in outcome.wants:
            if len(self._looking) < LOOKS:
                task = asyncio.create_task(self.look(job, want), name="look")
                self._looking.add(task)
                task.add_done_callback(self._looking.discard)
        if changes:
            # The core says a change once: to be cancelled here, at the end, must not lose it.
            await asyncio.shield(self.ledger.commit())

    def _noted(self, changes: Sequence[Change]) -> None:
        if self.keeper is not None:
            self.keeper.note(changes)

    async def look(self, job: str, want: Want) -> None:
        """Fetch what is wanted of a job, if the processes here are its."""
        if self.evidence_job() == job:
            events = await self.collector.collect(want)
            await self.handle(self.pipeline.evidence(job, events))

    async def reload(self) -> tuple[bool, str]:
        """Take rules and settings as they are in the files, all or nothing; whether that went well, and what to say."""
        taken, said = await self.rules.reload(self.pipeline, self._prepare)
        if taken:
            await self._look_around()
            await self.ledger.commit()
        return taken, said

    def counts(self) -> Mapping[str, Mapping[str, float]]:
        """Where there is a hub: see Uplink.counts."""
        return {} if self.uplink is None else self.uplink.counts()

    # --- how it is --------------------------------------------------------------------------------------------------

    def healthy(self) -> tuple[bool, str]:
        """Whether reading goes on, and why not."""
        quiet = self.clock.now() - self._moved_at
        return (True, "ok") if quiet < 60.0 else (False, f"reading has stood still for {quiet:.0f} s")

    def ready(self) -> tuple[bool, str]:
        """Whether everything that stood in the files has been read, and why not."""
        if not self._started:
            return False, "still catching up with what stands in the files"
        return True, "ok"
