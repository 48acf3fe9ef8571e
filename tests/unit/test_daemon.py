"""What the loops of the daemon share: one transaction for what belongs together, and whose processes are whose."""

import asyncio
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from denpexd.catalog.load import load
from denpexd.catalog.packs import Packs
from denpexd.clock import ManualClock
from denpexd.core.cadence import Limits
from denpexd.core.events import UNKNOWN_RANK, Closed, Event, Exit, Joined, Opened, Updated, Want
from denpexd.daemon import Daemon
from denpexd.ingest.discover import Found
from denpexd.journal import decode
from denpexd.notify.policy import Sent
from denpexd.pipeline import Pipeline
from denpexd.reload import Rules
from denpexd.scan.engine import choose_engine
from denpexd.scan.scanner import Scanner
from denpexd.settings import Settings
from denpexd.snapshot import DaemonView
from denpexd.watched import Outcome

TINY, _ = load([Path(__file__).parents[1] / "data" / "tiny"], strict=False)


class SlowStore:
    """A state on a disk that takes its time; `commits` in order of their end."""

    kept: ClassVar = {"unsaved": 0}

    def __init__(self) -> None:
        self.commits: list[dict[str, Any]] = []
        self.disk = threading.Event()
        self.disk.set()

    def commit(self, **batch: Any) -> None:
        self.disk.wait(10)
        self.commits.append(batch)

    def sent(self, key: str) -> dict[str, Sent]:
        told = [d for batch in self.commits for d in batch["deliveries"] if d.key == key]
        return {d.sink: Sent(d.revision, d.event) for d in told}

    def incidents(self, state: str | None, limit: int) -> list[Any]:
        return []

    def rows(self, sql: str) -> list[Any]:
        return [(1,)] if "max(id)" in sql else []

    dropped = ()


class Files:
    """A reader whose files are only names."""

    def __init__(self) -> None:
        self.found: dict[Path, Found] = {}
        self.ranks: dict[Path, int] = {}
        self.read: dict[str, str] = {}

    def positions(self, is_amid: object) -> dict[str, str]:
        read, self.read = self.read, {}
        return read

    def add(self, name: str, job: str, rank: int = UNKNOWN_RANK) -> Path:
        path = Path("/logs", job, name)
        self.found[path] = Found(path, job, rank, None, "", False)
        return path


class Processes:
    """A collector that says what a test wants."""

    def __init__(self) -> None:
        self.held: dict[Path, int] = {}
        self.news: list[Event] = []
        self.counts: Mapping[tuple[str, str], int] = {}
        self.seconds: Mapping[str, float] = {}
        self.pause = 0.0

    async def attach(self, paths: Iterable[Path]) -> dict[Path, int]:
        return self.held

    async def watch(self) -> list[Event]:
        news, self.news = self.news, []
        return news

    async def collect(self, want: Want) -> list[Event]:
        return []


class Deliverer:
    counters: Mapping[tuple[str, str], int] = {}
    woken = 0

    def wake(self) -> None:
        self.woken += 1

    def well(self, name: str) -> bool:
        return True


class Parts:
    """A daemon and what it is made of."""

    def __init__(self, clock: ManualClock) -> None:
        self.files, self.store, self.processes, self.clock = Files(), SlowStore(), Processes(), clock
        scanner = Scanner([s for s in TINY.signals.values() if s.kind == "log"], choose_engine())
        self.pipeline = Pipeline(TINY, scanner, start_t=clock.now(), limits=Limits())
        rules = Rules(Packs(TINY, ()), clock)
        parts: Any = (self.pipeline, self.files, self.store, Deliverer(), self.processes, clock, rules)
        self.daemon = Daemon(Settings(), *parts)

    async def second(self) -> None:
        """What a tick does about processes."""
        await self.daemon._processes(self.clock.now())
        await self.clock.advance(5.0)

    async def told(self) -> list[tuple[str, Event]]:
        """What the jobs were told, by job."""
        await self.daemon.ledger.commit()
        return [decode(line) for batch in self.store.commits for line in batch["journal"]]


@pytest.fixture
def parts() -> Parts:
    return Parts(ManualClock(1000.0))


def verdict(key: str = "k", revision: int = 1) -> dict[str, object]:
    return {"key": key, "revision": revision, "severity": "high", "state": "open", "job": "run"}


# --- one transaction --------------------------------------------------------------------------------------------------


async def test_positions_are_never_stored_before_the_messages_that_belong_to_them(parts: Parts) -> None:
    parts.store.disk.clear()
    parts.files.read = {"a": "1"}
    first = asyncio.create_task(parts.daemon.ledger.commit())
    await asyncio.sleep(0)
    saving = asyncio.create_task(parts.daemon.ledger.commit())  # the tick waits while the disk is busy ...
    await asyncio.sleep(0)
    parts.files.read = {"a": "2"}  # ... and what is read meanwhile means something
    handling = asyncio.create_task(parts.daemon.handle(Outcome([Opened(verdict())], [], ["line"])))
    await asyncio.sleep(0)
    parts.store.disk.set()
    await asyncio.gather(first, saving, handling)
    assert [(b["positions"], len(b["incidents"]), len(b["deliveries"]), b["journal"]) for b in parts.store.commits] == [
        ({"a": "1"}, 0, 0, []),
        ({"a": "2"}, 1, 1, ["line"]),
    ]


async def test_changes_that_wait_for_the_disk_know_of_each_other(parts: Parts) -> None:
    parts.store.disk.clear()
    changes = [Opened(verdict()), Opened(verdict()), Updated(verdict(revision=2))]
    tasks = [asyncio.create_task(parts.daemon.handle(Outcome([change]))) for change in changes]
    await asyncio.sleep(0)
    parts.store.disk.set()
    await asyncio.gather(*tasks)
    deliveries = [d for batch in parts.store.commits for d in batch["deliveries"]]
    assert [(d.revision, d.event) for d in deliveries] == [(1, "opened"), (2, "updated")]


async def test_a_change_that_waits_for_its_turn_at_the_disk_is_opened_once(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    gates, write = [threading.Event(), threading.Event(), threading.Event()], parts.store.commit
    entered: list[threading.Event] = []

    def commit(**batch: Any) -> None:
        entered.append(gate := gates[len(entered)])
        gate.wait(10)
        write(**batch)

    monkeypatch.setattr(parts.store, "commit", commit)
    tasks = []
    for number, change in enumerate((Opened(verdict("a")), Opened(verdict("b")), Updated(verdict("b", 2)))):
        tasks.append(asyncio.create_task(parts.daemon.handle(Outcome([change]))))
        await asyncio.sleep(0.02)
        if number == 1:
            gates[0].set()  # b is written from now on, and not yet known to the store
            while len(entered) < 2:
                await asyncio.sleep(0.01)
    for gate in gates:
        gate.set()
    await asyncio.gather(*tasks)
    deliveries = [d for batch in parts.store.commits for d in batch["deliveries"]]
    assert [(d.key, d.event) for d in deliveries] == [("a", "opened"), ("b", "opened"), ("b", "updated")]


async def test_a_change_survives_that_its_task_is_ended_while_the_disk_is_busy(parts: Parts) -> None:
    parts.store.disk.clear()
    task = asyncio.create_task(parts.daemon.handle(Outcome([Opened(verdict())])))
    await asyncio.sleep(0.01)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    last = asyncio.create_task(parts.daemon.ledger.commit())
    parts.store.disk.set()
    await last
    assert [len(batch["deliveries"]) for batch in parts.store.commits] == [1]


async def test_the_time_in_which_the_daemon_itself_stood_still_counts_for_nobody(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    blind: list[tuple[float, float]] = []

    def told(now: float, since: float) -> Outcome:
        blind.append((since, now))
        return Outcome()

    monkeypatch.setattr(parts.pipeline, "blind", told)
    ticking = asyncio.create_task(parts.daemon.tick_forever(lambda: None))
    await parts.clock.advance(5.0)
    assert blind == []
    parts.clock._now += 60.0  # as between SIGSTOP and SIGCONT
    await parts.clock.advance(5.0)
    ticking.cancel()
    assert blind == [(1005.0, 1065.0)]


# --- whose processes --------------------------------------------------------------------------------------------------


async def test_processes_are_told_to_the_job_whose_files_the_ranks_write(parts: Parts) -> None:
    mine = parts.files.add("rank0.log", "mine")
    launcher = parts.files.add("launcher.log", "other")
    parts.processes.held = {mine: 0, launcher: UNKNOWN_RANK}
    parts.processes.news = [Joined(1000.0, 0)]
    await parts.second()
    assert await parts.told() == [("mine", Joined(1000.0, 0))]
    assert parts.files.ranks == {mine: 0}


async def test_a_log_that_all_ranks_write_tells_the_job_too(parts: Parts) -> None:
    parts.files.add("rank0.log", "mine")
    parts.processes.held = {parts.files.add("all.log", "merged"): UNKNOWN_RANK}
    parts.processes.news = [Exit(1000.0, 0)]
    await parts.second()
    assert [job for job, _ in await parts.told()] == ["merged"]


async def test_jobs_of_the_journal_do_not_hide_the_only_one_there_is(parts: Parts) -> None:
    parts.pipeline.job("of yesterday")
    parts.files.add("train.log", "mine")
    parts.processes.news = [Exit(1000.0, 0)]
    await parts.second()
    assert [job for job, _ in await parts.told()] == ["mine"]


async def test_of_several_jobs_none_is_told_and_nobody_is_asked(parts: Parts) -> None:
    for job in ("one", "two"):
        parts.files.add("train.log", job)
    parts.processes.news = [Exit(1000.0, 0)]
    await parts.second()
    assert await parts.told() == []
    assert parts.processes.news, "it is asked when the job is known"


# --- what is shown ----------------------------------------------------------------------------------------------------


async def test_what_is_shown_is_what_the_daemon_knows_at_that_moment(parts: Parts) -> None:
    view = DaemonView(parts.daemon)
    assert (view.ready()[0], view.healthy()[0], view.jobs(), view.incidents(None, 9)) == (False, True, [], [])
    parts.pipeline.evidence("run", [Joined(1000.0, 0, world_size=2)])
    for key in ("a", "b", "c"):
        await parts.daemon.handle(Outcome([Opened(verdict(key))]))
    await parts.daemon.handle(Outcome([Closed({**verdict("a", 2), "state": "closed"})]))
    assert [v.job for v in view.jobs()] == ["run"]
    assert [v["key"] for v in view.incidents(None, 2)] == ["a", "c"]
    assert [v["key"] for v in view.incidents("open", 9)] == ["c", "b"]
    assert [v["key"] for v in view.incidents("closed", 9)] == ["a"]
    assert (view.incident("a") or {})["revision"] == 2
    assert view.incident("x") is None
    await parts.clock.advance(61.0)
    assert view.healthy() == (False, "reading has stood still for 61 s")
