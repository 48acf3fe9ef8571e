"""A state that an older denpexd wrote: nothing of it is lost, whatever happens while it is brought up to date."""

import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from denpexd.clock import ManualClock
from denpexd.errors import StateError
from denpexd.notify.database import Database
from denpexd.notify.outbox import Store
from denpexd.notify.policy import Sent
from denpexd.notify.rows import SCHEMAS

DUMP = Path(__file__).parents[1] / "data" / "state-1.sql"
NOW = 1_700_000_000.0
STATEMENTS = len(SCHEMAS[1]) + 3  # BEGIN, two pragmas; then COMMIT


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A file of schema 1 with open incidents, positions, unsent and dead messages."""
    path = tmp_path / "denpexd.sqlite"
    with sqlite3.connect(path) as connection:
        connection.executescript(DUMP.read_text("utf-8"))
    connection.close()
    return path


def whole(path: Path) -> None:
    with Store(path, ManualClock(NOW, NOW)) as store:
        assert store.recovered is None
        assert {v["key"] for v in store.incidents("open")} == {"llama-a0-1-18b", "bert-a1-2-18c"}
        assert [v["key"] for v in store.incidents("closed")] == ["llama-a0-1-100"]
        assert store.positions() == {
            "/logs/llama/rank0.log": '{"offset": 4711}',
            "/logs/bert/\udcff.log": '{"offset": 7}',
        }
        assert len(store.journal()) == 2
        waiting = {(row.delivery.sink, row.delivery.idempotency_key, row.attempts) for row in store.due(1e12)}
        assert waiting == {("mail", "llama-a0-1-18b:1", 1), ("hook", "bert-a1-2-18c:1", 0)}
        assert [(row.delivery.key, row.error) for row in store.dead_letters()] == [("llama-a0-1-100", "HTTP 404")]
        assert store.sent("bert-a1-2-18c") == {"hook": Sent(2, "updated", 2, NOW)}
        assert store.rows("SELECT job, failure FROM incidents WHERE key = 'llama-a0-1-18b'") == [
            ("llama", "nccl-timeout")
        ]
        assert store.rows("PRAGMA user_version") == [(len(SCHEMAS),)]


def columns(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    with sqlite3.connect(path) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        found = {name: connection.execute(f"PRAGMA table_info({name})").fetchall() for name in tables}
    connection.close()
    return found


def test_everything_is_there_under_the_same_keys(old: Path) -> None:
    whole(old)
    assert sorted(file.name for file in old.parent.iterdir()) == ["denpexd.sqlite", "denpexd.sqlite.lock"]
    whole(old)


def test_a_migrated_state_is_made_like_a_new_one(old: Path, tmp_path: Path) -> None:
    with Store(old), Store(tmp_path / "new.sqlite"):
        pass
    assert columns(old) == columns(tmp_path / "new.sqlite")


class Failing:
    """A connection on which the statement number `at` of the migration fails."""

    def __init__(self, connection: sqlite3.Connection, at: int, fail: Callable[[], None]) -> None:
        self._connection, self._left, self._fail = connection, at, fail

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def execute(self, sql: str, *values: Any) -> Any:
        if sql != "ROLLBACK":
            self._left -= 1
            if self._left == -1:
                self._fail()
        return self._connection.execute(sql, *values)


@pytest.mark.parametrize("at", range(STATEMENTS + 1))
def test_a_failure_at_any_statement_leaves_the_old_one_usable(
    old: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    bring_up = Database._bring_up

    def full() -> None:
        raise sqlite3.OperationalError("database or disk is full")

    def failing(database: Database, connection: Any, found: int) -> None:
        bring_up(database, Failing(connection, at, full), found)

    monkeypatch.setattr(Database, "_bring_up", failing)
    with pytest.raises(StateError, match=r"from schema 1 to \d: database or disk is full; it is as it was"):
        Store(old).open()
    copy = old.with_name("denpexd.sqlite.schema-1")
    for path in (old, copy):
        with sqlite3.connect(path) as connection:
            assert connection.execute("PRAGMA user_version").fetchone() == (1,)
            assert connection.execute("SELECT count(*) FROM deliveries WHERE state = 'pending'").fetchone() == (3,)
        connection.close()
    assert copy.stat().st_mode & 0o777 == 0o600
    monkeypatch.setattr(Database, "_bring_up", bring_up)
    whole(old)
    assert not copy.exists()


def test_a_kill_in_the_middle_leaves_the_old_one_usable(old: Path) -> None:
    script = textwrap.dedent(f"""
        import os, signal
        from pathlib import Path
        from denpexd.notify import rows
        from denpexd.notify.outbox import Store
        from denpexd.notify.database import Database

        class Killed:
            def __init__(self, connection):
                self._connection, self._left = connection, 7
            def __getattr__(self, name):
                return getattr(self._connection, name)
            def execute(self, *statement):
                self._left -= 1
                if not self._left:
                    os.kill(os.getpid(), signal.SIGKILL)
                return self._connection.execute(*statement)

        bring_up = Database._bring_up
        Database._bring_up = lambda self, connection, found: bring_up(self, Killed(connection), found)
        Store(Path({str(old)!r})).open()
    """)
    here = os.environ | {"PYTHONPATH": str(Path.cwd())}
    killed = subprocess.run([sys.executable, "-c", script], env=here, check=False)
    assert killed.returncode == -signal.SIGKILL
    whole(old)


def test_the_copy_that_a_kill_left_goes_with_the_next_migration_that_works(old: Path) -> None:
    copy = old.with_name("denpexd.sqlite.schema-1")
    copy.write_text("half")
    whole(old)
    assert not copy.exists()
