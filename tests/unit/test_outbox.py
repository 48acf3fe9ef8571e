"""The state file: what a commit promises across restarts, kill -9, damage, a full disk and a second daemon."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from denpexd.clock import ManualClock
from denpexd.errors import StateError
from denpexd.notify import database, outbox
from denpexd.notify.database import Database, Statement, on_network
from denpexd.notify.outbox import Store
from denpexd.notify.policy import Delivery, Sent
from denpexd.notify.writer import Writer
from denpexd.state import FILE, dead_letters

NOW = 1_700_000_000.0


def verdict(key: str = "k", revision: int = 1, state: str = "open", **more: Any) -> dict[str, Any]:
    return {"key": key, "revision": revision, "state": state, "failure": "f"} | more


def message(sink: str = "hook", key: str = "k", revision: int = 1, event: str = "opened", **more: Any) -> Delivery:
    return Delivery(sink, key, revision, event, f"{key}:{revision}", "first", verdict(key, revision, **more))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "denpexd.db"


def test_what_was_committed_is_there_after_a_restart(path: Path) -> None:
    with Store(path, ManualClock()) as store:
        store.commit(
            positions={"/logs/a": '{"offset": 3}', "/logs/\udcff": b"7"},
            incidents=[verdict(), verdict("old", state="closed")],
            deliveries=[message(), message("mail")],
            journal=['{"t": 1}', "plain"],
        )
    with Store(path, ManualClock()) as store:
        assert store.positions() == {"/logs/a": '{"offset": 3}', "/logs/\udcff": "7"}
        assert store.incidents("open") == [verdict()]
        assert {v["key"] for v in store.incidents()} == {"k", "old"}
        assert store.incidents("closed") == [verdict("old", state="closed")]
        assert store.journal() == ['{"t": 1}', "plain"]
        assert store.sent("k") == {"hook": Sent(1, "opened", 1, NOW), "mail": Sent(1, "opened", 1, NOW)}
        assert [(row.delivery.sink, row.delivery.idempotency_key) for row in store.due(NOW)] == [
            ("hook", "k:1"),
            ("mail", "k:1"),
        ]
        assert store.recovered is None


def test_a_position_can_be_forgotten(path: Path) -> None:
    with Store(path) as store:
        store.commit(positions={"a": "1", "b": "2"})
        store.commit(positions={"a": None})
        assert store.positions() == {"b": "2"}


def test_the_same_message_is_never_queued_twice(path: Path) -> None:
    with Store(path, ManualClock()) as store:
        store.commit(deliveries=[message(), message()])
        [row] = store.due(NOW)
        store.done(row)
    with Store(path, ManualClock()) as store:
        store.commit(deliveries=[message()])
        assert store.due(NOW) == []
        store.commit(deliveries=[message(revision=2, event="updated")])
        assert [row.delivery.revision for row in store.due(NOW)] == [2]


def test_messages_of_one_incident_keep_their_order_and_others_overtake(path: Path) -> None:
    with Store(path, ManualClock()) as store:
        store.commit(deliveries=[message(), message(revision=2), message(key="other")])
        first, other = store.due(NOW)
        assert (first.delivery.idempotency_key, other.delivery.idempotency_key) == ("k:1", "other:1")
        store.retry(first, NOW + 60, "HTTP 503")
        assert [row.delivery.key for row in store.due(NOW)] == ["other"]
        assert store.next_due("hook") == NOW
        [again, _] = store.due(NOW + 61)
        assert (again.delivery.revision, again.attempts, again.error) == (1, 1, "HTTP 503")
        store.done(again)
        assert store.due(NOW)[0].delivery.revision == 2


def test_a_leased_message_is_not_handed_out_again_until_released(path: Path) -> None:
    with Store(path, ManualClock()) as store:
        store.commit(deliveries=[message()])
        [row] = store.due(NOW)
        store.lease(row)
        assert store.due(NOW) == []
        store.release(row)
        assert store.due(NOW) == [row]


def test_a_clock_set_back_holds_nothing_up(path: Path) -> None:
    with Store(path, ManualClock()) as store:
        store.commit(deliveries=[message()])
        assert len(store.due(NOW - 86_400)) == 1


def test_dead_letters_stay_visible_with_their_reason(path: Path) -> None:
    with Store(path, ManualClock()) as store:
        store.commit(deliveries=[message()])
        store.dead(store.due(NOW)[0], "HTTP 404")
    with Store(path, ManualClock()) as store:
        [row] = store.dead_letters()
        assert (row.state, row.error, row.delivery.verdict["failure"]) == ("dead", "HTTP 404", "f")
        assert store.pending() == 0


def test_the_commands_see_dead_letters_of_a_daemon_at_work(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="no daemon has kept its state"):
        dead_letters(tmp_path)
    for folder in (tmp_path, tmp_path / "run-1"):
        folder.mkdir(exist_ok=True)
        with Store(folder / FILE, ManualClock()) as store:
            store.commit(deliveries=[message(key=folder.name)])
            store.dead(store.due(NOW)[0], "HTTP 404")
            assert folder.name in {row.delivery.key for row in dead_letters(tmp_path)}
    assert [row.error for row in dead_letters(tmp_path)] == ["HTTP 404"] * 2


def test_open_incidents_that_a_sink_knows_of(path: Path) -> None:
    with Store(path, ManualClock()) as store:
        told = [message(key="a"), message(key="b"), message(key="b", revision=2, event="closed"), message("mail", "c")]
        store.commit(incidents=[verdict("a"), verdict("b"), verdict("c")], deliveries=told)
        assert [v["key"] for v in store.told_open("hook")] == ["a"]


def test_secrets_do_not_reach_the_disk(path: Path) -> None:
    secret = "gh" + "p_" + "a1B2" * 9
    with Store(path) as store:
        line = json.dumps({"text": f'token: "{secret}"'})
        text = verdict(evidence=[{"text": secret}])
        store.commit(incidents=[text], deliveries=[message(evidence=[{"text": secret}])], journal=[line, secret])
        assert json.loads(store.journal()[0])["text"].startswith("token: ")
        assert store.counters["redactions"] == 4
        found = b"".join(file.read_bytes() for file in path.parent.iterdir())
    assert secret.encode() not in found


def test_only_its_user_may_read_the_state(path: Path) -> None:
    before = os.umask(0)
    try:
        with Store(path) as store:
            store.commit(positions={"a": "1"})
            assert {file.stat().st_mode & 0o777 for file in path.parent.iterdir()} == {0o600}
            assert path.parent.stat().st_mode & 0o777 == 0o700
    finally:
        os.umask(before)


def test_a_second_daemon_is_refused_and_told_by_whom(path: Path) -> None:
    with Store(path), pytest.raises(StateError) as caught:
        Store(path).open()
    assert str(path) in str(caught.value)
    assert f"process {os.getpid()}" in str(caught.value)
    with Store(path):
        pass


@pytest.mark.parametrize("damage", [b"", b"\0" * 9000, b"garbage " * 2000])
def test_a_damaged_file_is_set_aside_and_a_new_state_started(path: Path, damage: bytes) -> None:
    with Store(path, ManualClock()) as store:
        store.commit(positions={"a": "1"}, deliveries=[message()])
    for file in path.parent.glob("*.db-*"):
        file.unlink()
    path.write_bytes(damage)
    with Store(path) as store:
        store.commit(positions={"b": "2"})
        assert store.positions() == {"b": "2"}
        if damage:
            aside = path.with_name("denpexd.db.corrupt-1")
            assert str(aside) in (store.recovered or "")
            assert aside.read_bytes() == damage


def test_damage_inside_is_found_at_start(path: Path) -> None:
    with Store(path) as store:
        for i in range(200):
            store.commit(positions={f"file-{i}": "x" * 300})
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096 * 3)
        file.write(b"\xff" * min(20_000, size - 4096 * 4))
    with Store(path) as store:
        assert store.recovered


def test_without_its_wal_the_state_is_whole_and_goes_back_to_an_earlier_moment(path: Path, tmp_path: Path) -> None:
    wal = path.with_name(path.name + "-wal")
    with Store(path, ManualClock()) as store:
        store.commit(positions={"a": "1"})
        store._database._require().execute("PRAGMA wal_checkpoint")
        store.commit(positions={"a": "2"}, deliveries=[message()])
        assert wal.stat().st_size > 0
        left = tmp_path / "left" / path.name
        left.parent.mkdir()
        shutil.copy(path, left)  # as after kill -9, and somebody removed what looked like a temporary file
    with Store(left, ManualClock()) as store:
        assert store.recovered is None
        assert (store.positions(), store.pending()) == ({"a": "1"}, 0)
        store.commit(positions={"a": "3"})


def test_a_reader_that_pins_the_wal_makes_it_grow_and_leaves_it_small(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "WAL_LIMIT", 100_000)
    wal = path.with_name(path.name + "-wal")
    with Store(path) as store:
        store.commit(positions={"a": "1"})
        reader = sqlite3.connect(path, isolation_level=None)
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM positions").fetchall()
        for n in range(60):
            store.commit(positions={str(i): f"{n}" * 2000 for i in range(50)})
        grown = wal.stat().st_size
        reader.execute("COMMIT")
        reader.close()
        store.commit(positions={"b": "x" * 4_000_000})  # enough for a checkpoint
        store.commit(positions={"c": "1"})
        assert grown > 4_000_000
        assert wal.stat().st_size <= 110_000


def test_on_a_network_file_system_the_journal_needs_no_shared_memory(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "_mounts", lambda: f"nas:/x {path.parents[1]} nfs4 rw 0 0\n")
    with Store(path, ManualClock()) as store:
        store.commit(deliveries=[message()])
        assert not path.with_name(path.name + "-wal").exists()
    with Store(path, ManualClock()) as store:
        assert store.pending() == 1


def test_twenty_starts_in_a_row_leave_no_lock_and_send_nothing_again(path: Path) -> None:
    with Store(path, ManualClock()) as store:
        store.commit(incidents=[verdict()], deliveries=[message()])
        store.done(store.due(NOW)[0])
    for _ in range(20):
        with Store(path, ManualClock()) as store:
            store.commit(incidents=[verdict()], deliveries=[message()])
            assert store.pending() == 0


def test_a_newer_schema_and_a_foreign_database_are_refused(path: Path, tmp_path: Path) -> None:
    with Store(path):
        pass
    with sqlite3.connect(path) as other:
        other.execute("PRAGMA user_version=99")
    other.close()
    with pytest.raises(StateError, match="schema 99"):
        Store(path).open()
    foreign = tmp_path / "foreign.db"
    with sqlite3.connect(foreign) as other:
        other.execute("CREATE TABLE mine (x)")
    other.close()
    with pytest.raises(StateError, match="another program"):
        Store(foreign).open()


def test_an_unusable_folder_is_said_with_path_and_user(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match=rf"file/x\.db cannot be used by user id {os.getuid()}"):
        Store(tmp_path / "file" / "x.db").open()


def test_a_full_disk_is_said_once_and_the_daemon_goes_on_in_memory(path: Path) -> None:
    with Store(path, ManualClock()) as store:
        store.commit(positions={"a": "1"})
        aside = path.rename(path.with_name("moved"))
        with pytest.raises(StateError, match="cannot be written"):
            store.commit(incidents=[verdict()], deliveries=[message()], positions={"a": "2"})
        store.commit(incidents=[verdict("k2")], deliveries=[message(key="k2")])
        assert store.counters["state_write_errors"] == 2
        first, second = store.due(NOW)
        store.retry(first, NOW + 5, "down")
        store.done(second)
        assert [row.delivery.key for row in store.due(NOW + 6)] == ["k"]
        assert {v["key"] for v in store.incidents("open")} == {"k", "k2"}
        assert verdict("k2") in store.incidents()
        aside.rename(path)
        store.commit()
        assert store.positions() == {"a": "2"}
    with Store(path, ManualClock()) as store:
        assert [row.delivery.key for row in store.due(NOW + 6)] == ["k"]
        assert len(store.incidents("open")) == 2


def test_a_disk_without_a_free_byte_opens_and_reads_and_is_written_when_there_is_room(tmp_path: Path) -> None:
    program = f"""
        import subprocess
        from pathlib import Path
        from denpexd.errors import StateError
        from denpexd.notify.outbox import Store

        disk = Path({str(tmp_path)!r})
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", disk], check=True)

        def fill():
            with (disk / "rest").open("ab", buffering=0) as file:
                try:
                    while True:
                        file.write(b"x" * 512)
                except OSError:
                    return

        path = disk / "state" / "x.db"
        with Store(path) as store:
            store.commit(positions={{"a": "1"}})
        for _ in range(2):
            fill()
            store = Store(path).open()
            assert store.recovered is None and store.positions()["a"] == "1"
            try:
                store.commit(positions={{"b": "2"}})
            except StateError as error:
                assert "disk is full" in str(error)
            else:
                raise AssertionError("it was not full")
            (disk / "rest").unlink()
            store.commit(positions={{"c": "3"}})
            assert store.positions() == {{"a": "1", "b": "2", "c": "3"}}
            store.commit(positions={{"b": None, "c": None}})
            store.close()
        path.with_name("x.db.lock").unlink()
        path.unlink()
        fill()
        try:
            Store(path).open()
        except StateError as error:
            print(error)
    """
    inside = ["unshare", "-Urm", sys.executable, "-c", textwrap.dedent(program)]
    if subprocess.run([*inside[:2], "true"], check=False, capture_output=True).returncode:
        pytest.skip("no user namespaces to mount a small disk in")
    done = subprocess.run(inside, check=True, capture_output=True, text=True)
    assert "full" in done.stdout or "No space left on device; make room there" in done.stdout


def test_a_file_size_limit_is_a_write_error_not_a_crash(path: Path) -> None:
    program = f"""
        import resource, signal
        from pathlib import Path
        from denpexd.errors import StateError
        from denpexd.notify.outbox import Store
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        with Store(Path({str(path)!r})) as store:
            store.commit(positions={{"a": "1"}})
            resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
            try:
                store.commit(positions={{str(i): "x" * 1000 for i in range(1000)}})
            except StateError as error:
                print("said:", error)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("said:")
    with Store(path) as store:
        assert store.positions() == {"a": "1"}


def test_a_database_locked_by_another_is_waited_out(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("denpexd.notify.database.BUSY_SECONDS", 0.05)
    with Store(path, ManualClock()) as store:
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StateError, match="locked"):
            store.commit(deliveries=[message()])
        assert len(store.due(NOW)) == 1
        other.execute("ROLLBACK")
        other.close()
        store.commit()
    with Store(path, ManualClock()) as store:
        assert len(store.due(NOW)) == 1


def test_the_outbox_is_bounded_and_counts_what_it_drops(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "MAX_PENDING", 5)
    with Store(path, ManualClock()) as store:
        store.commit(deliveries=[message(key=f"k{i}") for i in range(8)])
        assert store.pending() == 5
        assert store.counters["outbox_dropped"] == 3
        assert {row.delivery.key for row in store.dead_letters()} == {"k0", "k1", "k2"}


def test_finished_things_are_pruned_and_open_ones_stay(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "PRUNE_EVERY", 1)
    monkeypatch.setattr(outbox, "PRUNE", tuple((sql, (3,)) for sql, _ in outbox.PRUNE))
    clock = ManualClock()
    with Store(path, clock) as store:
        store.commit(incidents=[verdict("open")], deliveries=[message(key="open")])
        store.done(store.due(NOW)[0])
        for i in range(10):
            key = f"k{i}"
            store.commit(incidents=[verdict(key, state="closed")], deliveries=[message(key=key)], journal=[key])
            store.done(store.due(NOW)[0])
            store.keep_receipt("slack", key, f"ts of {key}")
        store.keep_receipt("slack", "open", "ts")
        store.commit()
        assert len(store.incidents("closed")) == 3
        assert [store.receipt("slack", key) for key in ("k0", "open")] == [None, "ts"]
        assert store.journal() == ["k7", "k8", "k9"]
    with Store(path, clock) as store:
        assert store.sent("open") == {"hook": Sent(1, "opened", 1, NOW)}
        assert store.sent("k0") == {}


async def test_age_and_number_of_what_waits(path: Path) -> None:
    clock = ManualClock(NOW, NOW)
    with Store(path, clock) as store:
        assert (store.pending(), store.oldest_age(NOW)) == (0, 0.0)
        store.commit(deliveries=[message()])
        await clock.advance(30)
        store.commit(deliveries=[message("later")])
        assert (store.pending(), store.oldest_age(NOW + 90)) == (2, 90.0)


@pytest.mark.parametrize("moment", ["before", "after"])
def test_kill_9_loses_nothing_that_was_committed(path: Path, moment: str) -> None:
    program = f"""
        import os, signal
        from pathlib import Path
        from denpexd.notify.outbox import Store
        from denpexd.notify.policy import Delivery
        store = Store(Path({str(path)!r})).open()
        v = {{"key": "k", "revision": 1, "state": "open"}}
        if {moment!r} == "after":
            store.commit(positions={{"log": "42"}}, incidents=[v],
                         deliveries=[Delivery("hook", "k", 1, "opened", "k:1", "first", v)])
            store.lease(store.due(1e12)[0])
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=False)
    assert done.returncode == -signal.SIGKILL
    with Store(path) as store:
        committed = moment == "after"
        assert store.positions() == ({"log": "42"} if committed else {})
        assert [row.delivery.idempotency_key for row in store.due(1e12)] == (["k:1"] if committed else [])


MOUNTS = """/dev/vda / ext4 rw 0 0
nas:/home /home nfs4 rw 0 0
tmpfs /home/local tmpfs rw 0 0
x@tcp:/l /mnt/my\\040lustre lustre rw 0 0
"""


@pytest.mark.parametrize(
    ("where", "remote"),
    [("/var/lib/x", False), ("/home/a/x", True), ("/home/local/x", False), ("/mnt/my lustre/x", True)],
)
def test_network_file_systems_are_recognised(where: str, remote: bool) -> None:
    assert on_network(Path(where), MOUNTS) == remote


steps = st.lists(
    st.one_of(
        st.tuples(st.just("commit"), st.sampled_from("ab"), st.integers(1, 4)),
        st.tuples(
            st.sampled_from(["done", "retry", "dead", "lease", "restart", "break", "mend"]), st.just(""), st.just(0)
        ),
    ),
    max_size=25,
)


@given(steps)
@settings(max_examples=40, deadline=None)
def test_every_message_is_sent_once_in_order_or_still_waits(
    tmp_path_factory: pytest.TempPathFactory, ops: Sequence[tuple[str, str, int]]
) -> None:
    path = tmp_path_factory.mktemp("s") / "x.db"
    away = path.with_name("away")
    store = Store(path, ManualClock()).open()
    last: dict[str, int] = {}
    waiting: dict[str, list[int]] = {"a": [], "b": []}
    leased: set[str] = set()
    for op, key, revision in ops:
        head = next(iter(store.due(NOW)), None)
        if op == "commit":
            if revision > last.get(key, 0):
                last[key] = revision
                waiting[key].append(revision)
            try:
                store.commit(deliveries=[message(key=key, revision=revision)])
            except StateError:
                pass
        elif op in ("done", "dead") and head:
            assert waiting[head.delivery.key].pop(0) == head.delivery.revision
            store.done(head) if op == "done" else store.dead(head, "x")
        elif op == "retry" and head:
            store.retry(head, NOW, "again")
        elif op == "lease" and head:
            store.lease(head)
            leased.add(head.delivery.key)
        elif op == "restart" and path.exists():
            store.close()
            store = Store(path, ManualClock()).open()
            leased = set()
        elif op == "break" and path.exists():
            path.rename(away)
        elif op == "mend" and away.exists():
            away.rename(path)
        expected = {k: revisions[0] for k, revisions in waiting.items() if revisions and k not in leased}
        assert {row.delivery.key: row.delivery.revision for row in store.due(NOW)} == expected
    store.close()


def test_what_a_receiver_gave_back_survives_a_restart_and_a_full_disk(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store(path) as store:
        store.commit(incidents=[verdict("k")])
        store.keep_receipt("slack", "k", "1")
        with monkeypatch.context() as full:
            full.setattr(store._database, "write", lambda _: (_ for _ in ()).throw(StateError("full")))
            store.keep_receipt("slack", "k", "2")
            assert store.receipt("slack", "k") == "2"
        assert store.receipt("slack", "other") is None
    with Store(path) as store:
        assert store.receipt("slack", "k") == "2"


def test_what_changes_while_its_former_value_is_written_is_written_after_it() -> None:
    written: list[Statement] = []

    class Slow(Database):
        def __init__(self) -> None:
            self.other: threading.Thread | None = None

        def write(self, statements: Iterable[Statement]) -> None:
            written.extend(statements)
            if self.other is None:
                self.other = threading.Thread(target=writer.write, args=({("position", "a"): ("newer", ())},))
                self.other.start()
                while writer._unsaved["position", "a"][0] != "newer":
                    time.sleep(0.001)

    database = Slow()
    writer = Writer(database)
    assert writer.write({("position", "a"): ("older", ())}) is None
    assert database.other is not None
    database.other.join(5)
    assert [sql for sql, _ in written] == ["older", "newer"]
