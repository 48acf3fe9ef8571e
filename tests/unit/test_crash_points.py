"""A crash at every statement of every transaction: nothing is lost, nothing gets a second key.

What kill -9 leaves behind between two statements are the files as they are at that moment, so they are copied, and a
daemon goes on with each copy. A second test kills real processes at the same places.
"""

import json
import random
import shutil
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from denpexd.catalog.load import load
from denpexd.catalog.packs import Packs
from denpexd.clock import ManualClock
from denpexd.core.cadence import Limits
from denpexd.daemon import Daemon
from denpexd.ingest.discover import Discovery
from denpexd.ingest.wake import Waker
from denpexd.notify.database import Database
from denpexd.notify.deliver import Deliverer
from denpexd.notify.outbox import Store
from denpexd.notify.rows import Row
from denpexd.pipeline import Pipeline
from denpexd.reader import Reader
from denpexd.reload import Rules
from denpexd.scan.engine import choose_engine
from denpexd.scan.scanner import Scanner
from denpexd.settings import Settings
from denpexd.settings_sinks import ConsoleSink

from .test_daemon import Processes

TINY, _ = load([Path(__file__).parents[1] / "data" / "tiny"], strict=False)
SCANNER = Scanner([s for s in TINY.signals.values() if s.kind == "log"], choose_engine())
START = 1_700_000_000.0
CRASH = (
    'Traceback (most recent call last):\n  File "train.py", line 1, in <module>\n    main()\nFormatError: bad magic\n'
)
FILE = "state.db"


class Receiver:
    """A sink that keeps what arrives. `keys`: of incidents; `repeat_keys`: of messages."""

    name, max_attempts = "hook", None

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    async def send(self, row: Row) -> None:
        self.messages.append({"repeat_key": row.delivery.idempotency_key, **row.delivery.verdict})

    @property
    def keys(self) -> set[str]:
        return {str(message["key"]) for message in self.messages}


class Life:
    """One daemon, from its start to a kill, on files that were there before it."""

    def __init__(self, state: Path, logs: Path, clock: ManualClock, receiver: Receiver) -> None:
        self.clock, self.logs, self.receiver = clock, logs, receiver
        self.store = Store(state / FILE, clock).open()
        self.pipeline = Pipeline(TINY, SCANNER, start_t=clock.now(), limits=Limits())
        self.pipeline.restore(self.store.journal(), self.store.incidents("open"), clock.now())
        found = Discovery([str(logs)], "run")
        self.reader = Reader(found, clock, Waker(clock, enabled=False), self.store.positions(), 2.0)
        self.deliverer = Deliverer(self.store, [receiver], clock, random.Random(1))
        rules, settings = Rules(Packs(TINY, ()), clock), Settings(sinks=[ConsoleSink(type="console", name="hook")])
        parts: Any = (self.pipeline, self.reader, self.store, self.deliverer, Processes(), clock, rules)
        self.daemon = Daemon(settings, *parts)

    async def go_on(self, seconds: int) -> None:
        await self.daemon._look_around()
        for _ in range(seconds):
            async for found, read in self.reader.round(None):
                await self.daemon.handle(self.pipeline.feed(found, read, self.clock.now()))
            await self.daemon.handle(self.pipeline.tick(self.clock.now()))
            await self.daemon.ledger.commit()
            for row in self.store.due(self.clock.wall()):
                await self.deliverer._attempt(self.deliverer._lanes["hook"], row, 0)
            await self.clock.advance(1.0)

    def end(self) -> None:
        self.reader.close()
        self.store.close()


def train(logs: Path, first: int, last: int) -> None:
    for rank in range(2):
        with (logs / f"rank{rank}.log").open("a") as file:
            file.writelines(f"step {n}\n" for n in range(first, last))


async def story(life: Life, logs: Path) -> None:
    """Training, a crash of rank 1, and what the daemon makes of it."""
    await life.go_on(2)
    for n in range(2, 10):
        train(logs, n, n + 1)
        await life.go_on(1)
    with (logs / "rank1.log").open("a") as file:
        file.write(CRASH)
    await life.go_on(1)
    with (logs / "rank0.log").open("a") as file:
        file.write("peer was lost\n")
    await life.go_on(30)


class Copying:
    """A connection that lets a moment pass before and after every statement."""

    def __init__(self, connection: sqlite3.Connection, moment: Callable[[str], None]) -> None:
        self._connection, self._moment = connection, moment

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, sql: str, *values: Any) -> Any:
        self._moment(f"before {sql}")
        done = self._connection.execute(sql, *values)
        self._moment(f"after {sql}")
        return done


async def test_a_crash_at_any_statement_loses_no_incident_and_gives_none_a_second_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, logs = tmp_path / "state", tmp_path / "logs"
    logs.mkdir()
    train(logs, 0, 2)
    clock, receiver = ManualClock(START), Receiver()
    images: list[tuple[Path, str, float, int]] = []
    moments, seen = set[str](), set[tuple[bytes, ...]]()

    def image(moment: str) -> None:
        moments.add(moment.split()[1])
        parts = [part for suffix in ("", "-wal") if (part := state / (FILE + suffix)).exists()]  # -shm is made anew
        left = (*(part.read_bytes() for part in parts), b"%d" % len(receiver.messages))
        if left in seen:
            return
        seen.add(left)
        folder = tmp_path / f"image-{len(images)}"
        folder.mkdir()
        for part in parts:
            shutil.copy(part, folder)
        images.append((folder, moment, clock.now(), len(receiver.messages)))

    connect = Database._connect

    def connect_copying(database: Database) -> None:
        connect(database)
        database._connection = Copying(database._connection, image)

    monkeypatch.setattr(Database, "_connect", connect_copying)
    life = Life(state, logs, clock, receiver)
    await story(life, logs)
    life.end()
    monkeypatch.setattr(Database, "_connect", connect)
    (key,) = receiver.keys
    assert [m["event"] for m in receiver.messages][:1] == ["opened"]
    assert moments >= {"BEGIN", "INSERT", "COMMIT"}
    assert len(images) > 10

    for folder, moment, then, arrived in images:
        before = receiver.messages[:arrived]
        resumed = Receiver()
        life = Life(folder, logs, ManualClock(max(then, START + 11)), resumed)
        held = life.store.positions()
        rows = life.store.incidents()
        waiting = {row.delivery.key for row in life.store.due(1e12)}
        read_all = any(json.loads(row)[2] == (logs / "rank1.log").stat().st_size for row in held.values())
        assert {str(v["key"]) for v in rows} >= waiting, moment  # no message without its incident
        if rows:
            assert read_all, moment  # nor an incident without the positions of what it is made of
        await life.go_on(35)
        life.end()
        told = {str(m["key"]) for m in before} | resumed.keys
        assert told == ({key} if rows else resumed.keys), moment
        assert len(told) == 1, moment  # what nobody was told of may begin anew
        # Whoever had it already may get the same message again, under the same key, never a different one.
        again = {m["repeat_key"] for m in resumed.messages} & {m["repeat_key"] for m in before}
        assert len(again) <= 1, moment
        with sqlite3.connect(folder / FILE) as check:
            assert check.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        check.close()


async def test_a_traceback_that_was_read_a_moment_before_a_kill_is_told(tmp_path: Path) -> None:
    train(tmp_path, 0, 10)
    clock, receiver = ManualClock(START), Receiver()
    life = Life(tmp_path / "state", tmp_path, clock, receiver)
    await life.go_on(3)
    with (tmp_path / "rank1.log").open("a") as file:
        file.write(CRASH)
    await life.go_on(1)  # its end is known only when a second has passed
    life.end()
    life = Life(tmp_path / "state", tmp_path, clock, receiver)
    await life.go_on(40)
    life.end()
    assert [message["event"] for message in receiver.messages] == ["opened"]


def test_a_process_killed_at_any_statement_leaves_all_or_nothing(tmp_path: Path) -> None:
    program = f"""
        import os, signal
        from pathlib import Path
        from denpexd.notify.database import Database
        from denpexd.notify.outbox import Store
        from denpexd.notify.policy import Delivery

        place = Path({str(tmp_path)!r})
        v = {{"key": "k", "revision": 1, "state": "open"}}

        class Deadly:
            def __init__(self, connection, at):
                self.connection, self.at = connection, at
            def __getattr__(self, name):
                return getattr(self.connection, name)
            def execute(self, *statement):
                self.pass_by()
                done = self.connection.execute(*statement)
                self.pass_by()
                return done
            def pass_by(self):
                self.at -= 1
                if self.at < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        def run(at):
            store = Store(place / str(at) / "x.db").open()
            store.commit(positions={{"log": "1"}})
            store._database._connection = Deadly(store._database._connection, at)
            store.commit(positions={{"log": "2"}}, incidents=[v], journal=["line"],
                         deliveries=[Delivery(sink, "k", 1, "opened", "k:1", "first", v) for sink in ("a", "b")])
            store.done(store.due(1e12)[0])

        for at in range(1000):
            pid = os.fork()
            if pid == 0:
                run(at)
                os._exit(0)
            if os.waitpid(pid, 0)[1] == 0:
                print(at)
                break
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    moments = int(done.stdout)
    assert moments >= 2 * (2 + 5) + 2 * (2 + 1)
    seen = []
    for at in range(moments + 1):
        with Store(tmp_path / str(at) / "x.db") as store:
            assert store.recovered is None
            found = (store.positions(), len(store.incidents()), len(store.sent("k")), store.journal(), store.pending())
        seen.append(found)
    nothing: Any = ({"log": "1"}, 0, 0, [], 0)
    committed: Any = ({"log": "2"}, 1, 2, ["line"], 2)
    sent: Any = ({"log": "2"}, 1, 2, ["line"], 1)
    assert [state for n, state in enumerate(seen) if n == 0 or seen[n - 1] != state] == [nothing, committed, sent]
