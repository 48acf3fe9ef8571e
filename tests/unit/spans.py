"""A job on several nodes, a broker and hubs, in simulated time: no server, no sleeping, every clock its own."""

import asyncio
import random
import tempfile
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from denpexd.catalog.packs import Packs
from denpexd.clock import ManualClock
from denpexd.core.cadence import Limits
from denpexd.core.events import UNKNOWN_RANK, Event, Exit, Joined, Want
from denpexd.daemon import Daemon
from denpexd.errors import BrokerError
from denpexd.hub.broker import Heard, Stored
from denpexd.hub.fence import Nobody, fenced
from denpexd.hub.leases import TTL
from denpexd.hub.owner import HubDaemon
from denpexd.hub.uplink import NodeUplink
from denpexd.ingest.discover import Found
from denpexd.notify.deliver import Deliverer
from denpexd.notify.outbox import Store
from denpexd.notify.rows import Row
from denpexd.pipeline import Pipeline
from denpexd.recording import Recording
from denpexd.reload import Rules
from denpexd.replay import Replayer, _answers
from denpexd.settings import Settings

FAST = Path("/dev/shm")  # a state there costs no disk
PAGER = [{"type": "console", "name": "pager"}]
BROKER = 5_000_000.0  # the broker's clock is nobody else's


class Server:
    """What a NATS server keeps. `order`: in which order messages that are sent at the same time are taken."""

    def __init__(self, clock: ManualClock, order: random.Random | None = None) -> None:
        self.clock, self.order = clock, order
        self.stream: list[tuple[str, Stored]] = []
        self.ids: set[str] = set()
        self.buckets: dict[tuple[str, str], tuple[bytes, int, float]] = {}
        self.listeners: list[tuple[str, Heard, Link]] = []
        self.revision = self.bytes = 0
        self.up = True
        self.keeps_ids = True

    @property
    def stamp(self) -> float:
        return self.clock.now() + BROKER


class Link:
    """One connection to the server; implements hub.broker.Broker."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.up = True

    def _reach(self) -> Server:
        if not (self.up and self._server.up):
            raise BrokerError("no connection")
        return self._server

    async def publish(self, subject: str, data: bytes, message_id: str) -> None:
        server = self._reach()
        if message_id in server.ids and server.keeps_ids:
            return
        server.ids.add(message_id)
        server.bytes += len(data)
        server.stream.append((subject, Stored(len(server.stream) + 1, server.stamp, data)))

    async def read(self, part: int, after: int, since: float, wait: float) -> list[Stored]:
        server = self._reach()
        begins = f"denpexd.events.{part}."
        return [one for subject, one in server.stream[after:] if subject.startswith(begins)][:256]

    async def forget(self, part: int) -> None:
        pass

    def _entry(self, bucket: str, key: str) -> tuple[bytes, int] | None:
        found = self._reach().buckets.get((bucket, key))
        if found is None or (bucket.endswith("leases") and self._server.clock.now() >= found[2] + TTL):
            return None
        return found[:2]

    async def create(self, bucket: str, key: str, value: bytes) -> int | None:
        return self._put(bucket, key, value) if self._entry(bucket, key) is None else None

    async def update(self, bucket: str, key: str, value: bytes, revision: int) -> int | None:
        known = self._entry(bucket, key)
        return self._put(bucket, key, value) if known is not None and known[1] == revision else None

    async def put(self, bucket: str, key: str, value: bytes) -> None:
        self._put(bucket, key, value)

    def _put(self, bucket: str, key: str, value: bytes) -> int:
        server = self._reach()
        server.revision += 1
        server.buckets[bucket, key] = (value, server.revision, server.clock.now())
        return server.revision

    async def get(self, bucket: str, key: str) -> tuple[bytes, int] | None:
        return self._entry(bucket, key)

    async def delete(self, bucket: str, key: str) -> None:
        self._reach().buckets.pop((bucket, key), None)

    async def keys(self, bucket: str) -> list[str]:
        return sorted(key for of, key in self._reach().buckets if of == bucket and self._entry(of, key) is not None)

    async def say(self, subject: str, data: bytes) -> None:
        for where, heard, link in self._reach().listeners:
            if where == subject and link.up:
                heard(data)

    async def listen(self, subject: str, heard: Heard) -> None:
        self._reach().listeners.append((subject, heard, self))

    async def close(self) -> None:
        self.up = False


async def _at_once(work: Any, *arguments: Any, **named: Any) -> Any:
    return work(*arguments, **named)


class Skewed:
    """A node's clock: off by `by` seconds from the world's."""

    def __init__(self, world: ManualClock, by: float) -> None:
        self._world, self.by = world, by

    def now(self) -> float:
        return self._world.now() + self.by

    def wall(self) -> float:
        return self._world.wall() + self.by

    async def sleep(self, seconds: float) -> None:
        await self._world.sleep(seconds)


class Files:
    """A reader without files."""

    def __init__(self) -> None:
        self.found: dict[Path, Found] = {}
        self.ranks: dict[Path, int] = {}

    def positions(self, is_amid: object) -> dict[str, str | None]:
        return {}


@dataclass
class Pager:
    """A sink that only remembers: (by whom, key, revision, event)."""

    name: str = "pager"
    max_attempts: int | None = None
    got: list[tuple[str, str, int, str]] = field(default_factory=list)
    verdicts: list[Mapping[str, Any]] = field(default_factory=list)
    owner: str = ""
    shared: "Pager | None" = None

    async def send(self, row: Row) -> None:
        to = self.shared or self
        to.got.append((self.owner, row.delivery.key, row.delivery.revision, row.delivery.event))
        to.verdicts.append(row.delivery.verdict)

    def preview(self, row: Row) -> object:
        return row.delivery.key

    @property
    def keys(self) -> set[str]:
        return {key for _, key, _, _ in self.got}

    @property
    def opened(self) -> list[str]:
        return [key for _, key, _, event in self.got if event == "opened"]


class Machine:
    """What node and hub have in common: a daemon with a state, a pager, and a link to the broker."""

    def __init__(self, world: "Span", name: str, by: float = 0.0) -> None:
        self.world, self.name = world, name
        self.clock = Skewed(world.clock, by)
        self.link = Link(world.server)
        self.store = Store(world.folder / f"{name}.sqlite", self.clock).open()
        self.pager = Pager(owner=name, shared=world.pager)
        self.pipeline = Pipeline(world.catalog, world.scanner, start_t=self.clock.now(), limits=world.limits)
        self.paused = False

    def parts(self, collector: Any, sinks: Sequence[Any]) -> tuple[Any, ...]:
        self.deliverer = Deliverer(self.store, sinks, self.clock, random.Random(1))
        rules = Rules(Packs(self.world.catalog, ()), self.clock)
        return self.pipeline, Files(), self.store, self.deliverer, collector, self.clock, rules

    async def deliver(self) -> None:
        """Send what is due, as the deliverer does, without its waiting."""
        for lane in self.deliverer._lanes.values():
            while due := self.store.due(self.clock.wall(), lane.sink.name, limit=1):
                await self.deliverer._attempt(lane, due[0], 0)

    def close(self) -> None:
        self.store.close()


class Here:
    """The processes of a node, as they were recorded."""

    def __init__(self, recording: Recording, by: float, clock: ManualClock) -> None:
        self.recording, self._by, self._clock = recording, by, clock
        self.counts: Mapping[tuple[str, str], int] = {}
        self.seconds: Mapping[str, float] = {}
        self.pause = 0.0
        self.asked: list[Want] = []

    async def attach(self, paths: Iterable[Path]) -> dict[Path, int]:
        return {}

    async def watch(self) -> list[Event]:
        return []

    async def collect(self, want: Want) -> list[Event]:
        self.asked.append(want)
        now = self._clock.now()
        mine = set(self.recording.asked())
        ranks = tuple(r for r in want.ranks or sorted(mine) if r in mine)
        if not ranks:
            return []
        return [replace(e, t=now + self._by) for e in _answers(replace(want, t=now, ranks=ranks), self.recording)]


class NodeDaemon(Daemon):
    def evidence_job(self) -> str | None:
        return next(iter(self.pipeline.jobs), None)


class Node(Machine):
    """One node. `batches`: what its part of the job shows, in the world's time."""

    def __init__(self, world: "Span", name: str, recording: Recording, by: float = 0.0) -> None:
        super().__init__(world, name, by)
        self.ranks = sorted({p.rank for p in recording.lines if p.rank >= 0} | set(recording.asked()))
        self.processes = Here(recording, by, world.clock)
        self.batches = deque(world.replayer.hear(recording).batches)
        settings = Settings(state_dir=world.folder, sinks=PAGER, hub={"url": ["nats://h"], "node": name})
        self.uplink = NodeUplink(settings.hub, name, self.link, self.store, self.clock).open()
        parts = self.parts(self.processes, [self.pager])
        self.daemon = NodeDaemon(settings, *parts, uplink=self.uplink)
        self.dead = False

    async def second(self, t: float) -> None:
        """Everything until `t`."""
        if self.paused or self.dead:
            return
        job = self.pipeline.job(self.world.job)
        while self.batches and (not self.batches[0] or self.batches[0][-1].t <= t):
            batch = [replace(e, t=e.t + self.clock.by) for e in self.batches.popleft()]
            await self.daemon.handle(self.pipeline.take(job, batch))
        if not self.batches:
            await self.daemon.handle(self.pipeline.tick(t + self.clock.by))
        for look in list(self.daemon._looking):
            await look
        await self.daemon.ledger.commit()
        await self.uplink.turn()
        await self.deliver()


class Hub(Machine):
    def __init__(self, world: "Span", name: str) -> None:
        super().__init__(world, name)
        self.pipeline.journals = False
        settings = Settings(state_dir=world.folder, sinks=PAGER, hub={"url": ["nats://h"]})
        self.daemon: HubDaemon = HubDaemon(settings, *self.parts(Nobody(), fenced([self.pager], lambda: self.daemon)))
        self.daemon.span(settings.hub, self.link)
        self.dead = False
        self.sends = True

    async def second(self, t: float) -> None:
        if self.paused or self.dead:
            return
        daemon = self.daemon
        if t % 5 == 0 or not daemon.parts:
            try:
                await daemon.own()
            except BrokerError:
                pass
        for part in list(daemon.parts.values()):
            while await daemon.read(part, 0.0):
                pass
        await daemon._judge(self.clock.now())
        for look in list(daemon._looking):
            await look
        await daemon.ledger.commit()
        if self.sends:
            await self.deliver()
        await daemon.speak(set(daemon.parts))

    @property
    def verdicts(self) -> list[Mapping[str, Any]]:
        return list(self.daemon.ledger.incidents.values())


class Span:
    """The world: one job whose ranks live on several nodes."""

    def __init__(self, replayer: Replayer, job: str = "job", limits: Limits | None = None) -> None:
        self.limits = limits or Limits()
        self.catalog, self.job, self.replayer, self.scanner = replayer.catalog, job, replayer, replayer._scanner
        self.clock = ManualClock()
        self.server = Server(self.clock)
        self.pager = Pager()
        self._made = tempfile.TemporaryDirectory(dir=FAST if FAST.is_dir() else None)
        self.folder = Path(self._made.name)
        self.nodes: list[Node] = []
        self.hubs: list[Hub] = []
        self.t = 0

    def __enter__(self) -> "Span":
        self._to_thread = asyncio.to_thread
        asyncio.to_thread = _at_once  # handing over to threads is most of the time of a test
        return self

    def __exit__(self, *_: object) -> None:
        for machine in (*self.nodes, *self.hubs):
            machine.close()
        self._made.cleanup()
        asyncio.to_thread = self._to_thread

    def hub(self, name: str = "hub") -> Hub:
        self.hubs.append(Hub(self, name))
        return self.hubs[-1]

    def node(self, name: str, recording: Recording, by: float = 0.0) -> Node:
        self.nodes.append(Node(self, name, recording, by))
        return self.nodes[-1]

    async def run(self, until: float) -> None:
        """Second by second; the order of the machines within one is the server's whim."""
        while self.t < until:
            self.t += 1
            self.clock._now = float(self.t)
            machines: list[Node | Hub] = [*self.nodes, *self.hubs]
            if self.server.order is not None:
                self.server.order.shuffle(machines)
            for machine in machines:
                await machine.second(float(self.t))


def split(recording: Recording, *groups: Sequence[int]) -> Iterator[Recording]:
    """The recording as each node sees it: its own ranks; the launcher's words are the first node's."""
    for number, ranks in enumerate(groups):
        mine = {*ranks, UNKNOWN_RANK} if number == 0 else set(ranks)
        yield replace(
            recording,
            lines=[p for p in recording.lines if p.rank in mine],
            looks=[look for look in recording.looks if look.rank in mine],
            states=[fact for fact in recording.states if fact.rank in mine],
            dumps=[dump for dump in recording.dumps if dump.rank in mine],
            exits=[e for e in recording.exits if e.rank in mine],
        )


__all__ = ["Exit", "Hub", "Joined", "Node", "Span", "split"]
