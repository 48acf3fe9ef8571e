"""A day of jobs that come, fail, start again, rotate their logs and go, in simulated time: nothing may grow."""

import asyncio
import gc
import logging
import random
import shutil
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from denpexd import ledger, pipeline, reader
from denpexd.catalog.load import load
from denpexd.catalog.packs import Packs
from denpexd.clock import ManualClock
from denpexd.core.cadence import Limits
from denpexd.core.events import Event, Want
from denpexd.daemon import Daemon
from denpexd.errors import DeliveryError
from denpexd.ingest import open_files
from denpexd.ingest.discover import Discovery
from denpexd.ingest.wake import Waker
from denpexd.notify import book, history, outbox
from denpexd.notify.deliver import Deliverer
from denpexd.notify.outbox import Store
from denpexd.notify.rows import Row
from denpexd.reload import Rules
from denpexd.scan.engine import choose_engine
from denpexd.scan.scanner import Scanner
from denpexd.settings import Settings
from denpexd.snapshot import DaemonView
from denpexd.web.exposition import Writer
from denpexd.web.metrics import Snapshot

TINY, _ = load([Path(__file__).parents[1] / "data" / "tiny"], strict=False)
STEP = 60.0  # seconds of simulated time between two looks
AT_ONCE, RANKS, LIFE = 4, 2, 1500.0
CRASH = (
    "Traceback (most recent call last):\n"
    '  File "train.py", line 1, in <module>\n    main()\nFormatError: bad magic in {path}\n'
)


class Collector:
    """No processes."""

    counts: Mapping[tuple[str, str], int] = MappingProxyType({})
    seconds: Mapping[str, float] = MappingProxyType({})
    pause = 0.0

    async def attach(self, paths: Iterable[Path]) -> dict[Path, int]:
        return {}

    async def watch(self) -> list[Event]:
        return []

    async def collect(self, want: Want) -> list[Event]:
        return []


class Receiver:
    """A sink that is in trouble now and then."""

    name, max_attempts = "console", 3

    def __init__(self, dice: random.Random) -> None:
        self._dice, self.got = dice, 0

    async def send(self, row: Row) -> None:
        if self._dice.random() < 0.1:
            raise DeliveryError("busy", retryable=True)
        self.got += 1


class Job:
    """One job: its folder, when it was last started, and how far it is."""

    def __init__(self, folder: Path, now: float) -> None:
        self.folder, self.began, self.step, self.failed = folder, now, 0, 0.0
        folder.mkdir()

    def write(self, rank: int, text: str) -> None:
        with (self.folder / f"rank{rank}.log").open("a") as file:
            file.write(text)


class World:
    """The logs of all jobs."""

    def __init__(self, folder: Path, dice: random.Random) -> None:
        self._folder, self._dice, self._number = folder, dice, 0
        self.jobs: list[Job] = []
        self._over: list[tuple[float, Path]] = []

    def go_on(self, now: float) -> None:
        """Some seconds of training, and of trouble."""
        dice = self._dice
        while len(self.jobs) < AT_ONCE:
            self.jobs.append(Job(self._folder / f"run{self._number:04d}", now + dice.uniform(0, LIFE)))
            self._number += 1
        for job in list(self.jobs):
            self._train(job, now)
            if now >= job.began + LIFE:
                self.jobs.remove(job)
                self._over.append((now, job.folder))
        while self._over and self._over[0][0] < now - 600:
            shutil.rmtree(self._over.pop(0)[1])

    def _train(self, job: Job, now: float) -> None:
        dice = self._dice
        for rank in range(RANKS):
            job.write(rank, "".join(f"step {job.step + n}\n" for n in range(8)))
            if dice.random() < 0.02:
                log = job.folder / f"rank{rank}.log"
                log.rename(log.with_suffix(".log.1"))
        job.step += 8
        if now >= job.failed + 100 and dice.random() < 0.5:
            job.failed = now
            job.write(dice.randrange(RANKS), CRASH.format(path=f"/data/{dice.randrange(1000)}"))
            job.step = max(0, job.step - 8)
        if dice.random() < 0.05:
            job.write(0, "x" * 200_000 + "\n" + f"[rank{dice.randrange(64)}]: WARNING {dice.random()}\n" * 5)


class Day:
    """A daemon of real parts but for processes, whose loops are stepped by hand."""

    def __init__(self, folder: Path, clock: ManualClock, store: Store, dice: random.Random) -> None:
        self.clock, self.store = clock, store
        self.logs, self.sink = folder / "logs", Receiver(dice)
        self.logs.mkdir()
        scanner = Scanner([s for s in TINY.signals.values() if s.kind == "log"], choose_engine())
        self.pipeline = pipeline.Pipeline(
            TINY, scanner, start_t=clock.now(), limits=Limits(), record=(256 << 10, 600.0)
        )
        found = Discovery([f"{self.logs}/{{job}}/rank{{rank}}.log*"], None)
        self.reader = reader.Reader(found, clock, Waker(clock, enabled=False), {}, 2.0)
        sinks: Any = [self.sink]
        self.deliverer = Deliverer(store, sinks, clock, dice)
        rules = Rules(Packs(TINY, ()), clock)
        parts: Any = (self.pipeline, self.reader, store, self.deliverer, Collector(), clock, rules)
        self.daemon = Daemon(Settings(), *parts)
        self.incidents = 0

    async def look(self) -> None:
        """What the loops do in one turn."""
        await self.daemon._look_around()
        more = True
        while more:
            async for found, read in self.reader.round(None):
                await self.daemon.handle(self.pipeline.feed(found, read, self.clock.now()))
            more = self.reader.behind()
        await self.daemon._processes(self.clock.now())
        await self.daemon.handle(self.pipeline.tick(self.clock.now()))
        await self.daemon.ledger.commit()
        await self.clock.advance(STEP)

    def sizes(self) -> dict[str, int]:
        """How big everything is."""
        gc.collect()
        kinds = Counter(type(each) for each in gc.get_objects())
        ours = {
            f"objects {kind.__qualname__}": n
            for kind, n in kinds.items()
            if str(kind.__module__).startswith("denpexd.")
        }
        view = DaemonView(self.daemon)
        page = Writer().page(Snapshot(view.stats(), view.jobs()), frozenset())
        with sqlite3.connect(f"file:{self.store._database.path}?mode=ro", uri=True) as state:
            rows = {
                f"rows {name}": state.execute(f"SELECT count(*) FROM {name}").fetchone()[0]
                for name in ("positions", "incidents", "deliveries", "journal")
            }
            pages = state.execute("PRAGMA page_count").fetchone()[0]
        return {
            **ours,
            **rows,
            **{f"kept {kind}": n for kind, n in view.stats().kept.items()},
            "pages": pages,
            "series": sum(not line.startswith("#") for line in page.splitlines()),
            "descriptors": len(list(Path("/proc/self/fd").iterdir())),
            "tasks": len(asyncio.all_tasks()),
            "threads": threading.active_count(),
            "sleepers": len(self.clock._sleepers),
        }


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every bound so low that a quarter of a day reaches it: what has none is what grows after that."""
    monkeypatch.setattr(
        logging.root.manager, "disable", logging.CRITICAL
    )  # pytest keeps what is logged, with its values
    monkeypatch.setattr(outbox, "PRUNE", tuple((sql, (100,)) for sql, _ in outbox.PRUNE))
    monkeypatch.setattr(outbox, "PRUNE_EVERY", 16)
    monkeypatch.setattr(outbox, "MAX_TOLD", 200)
    monkeypatch.setattr(ledger, "KEPT", 100)
    monkeypatch.setattr(history, "MAX_CLOSED", 100)
    monkeypatch.setattr(book, "MAX_TOLD", 100)
    monkeypatch.setattr(pipeline, "MOST_COUNTED", 50)
    monkeypatch.setattr(reader, "LEFT_FOR", 3600.0)
    monkeypatch.setattr(open_files, "_REMEMBERED", 40)  # few, where inodes are used again soon


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("small")
async def test_nothing_grows_between_the_sixth_and_the_last_hour_of_a_day(tmp_path: Path) -> None:
    dice, clock = random.Random(7), ManualClock(1000.0)
    with Store(tmp_path / "state" / "denpexd.sqlite", clock) as store:
        day = Day(tmp_path, clock, store, dice)
        world = World(day.logs, dice)
        sending = asyncio.create_task(day.deliverer.run())
        samples: list[dict[str, int]] = []
        for turn in range(1, int(86400 / STEP) + 1):
            world.go_on(clock.now())
            await day.look()
            if turn % int(7200 / STEP) == 0:
                samples.append(day.sizes())
        sending.cancel()
        counts = day.pipeline.forgotten | day.reader.forgotten | {"incidents": sum(day.pipeline.settled.values())}
        day.reader.close()
    early, late = samples[2:8], samples[8:]
    top = {kind: max(each.get(kind, 0) for each in early) for kind in {*early[0], *late[-1]}}
    grown = {kind: (top[kind], n) for kind, n in late[-1].items() if n > 1.25 * top[kind] + 20}
    assert grown == {}
    assert counts["incidents"] > 300, counts
    assert min(counts[kind] for kind in ("file", "position", "job", "label")) > 50, counts
    assert day.sink.got > 600
