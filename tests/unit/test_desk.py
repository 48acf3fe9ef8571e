"""The policy with its state, in a ledger over simulated time: what waits is told later, and nothing is lost by it."""

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denpexd.clock import ManualClock
from denpexd.core.events import Closed, Opened, Updated
from denpexd.errors import StateError
from denpexd.ledger import Ledger
from denpexd.notify import outbox
from denpexd.notify.database import Database
from denpexd.notify.desk import Alerting, Maintenance
from denpexd.notify.outbox import Store
from denpexd.notify.policy import Quiet, Route
from denpexd.notify.windows import Window, minutes

START = 1_700_000_000.0  # 22:13 in UTC


class Sinks:
    """Who takes everything, but for those named in `away`."""

    def __init__(self) -> None:
        self.away: set[str] = set()

    def wake(self) -> None:
        pass

    def well(self, name: str) -> bool:
        return name not in self.away


class Site:
    """A ledger, what it is told, and what it has sent."""

    def __init__(self, store: Store, clock: ManualClock, alerting: Alerting, sinks: Sinks | None = None) -> None:
        self.store, self.clock, self.sinks = store, clock, sinks or Sinks()
        self.ledger = Ledger(dict, store, self.sinks, alerting, clock)

    async def say(self, kind: type[Any], key: str = "k", revision: int = 1, **more: Any) -> None:
        now = self.clock.now()
        about = {"job": "llama", "failure": "nccl-timeout", "severity": "medium", "opened_t": now, "updated_t": now}
        state = "closed" if kind is Closed else "open"
        self.ledger.add([kind({"key": key, "revision": revision, "state": state, **about, **more})], [])
        await self.ledger.commit()

    async def later(self, seconds: float) -> None:
        end = self.clock.now() + seconds
        while self.clock.now() < end:
            await self.clock.advance(min(30.0, end - self.clock.now()))
            await self.ledger.commit()

    def sent(self) -> list[tuple[str, str, str]]:
        """Key, event and reason of all messages since the last call; of a digest the keys that it tells of."""
        found = []
        while rows := [row for row in self.store.due(1e12) if row.delivery.sink not in self.sinks.away]:
            for row in rows:
                keys = row.delivery.verdict.get("incidents")
                named = "+".join(keys) if isinstance(keys, list) else row.delivery.key
                found.append((named, row.delivery.event, row.delivery.reason))
                self.store.done(row)
        return found


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START, START)


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[Store]:
    with Store(tmp_path / "x.sqlite", clock) as store:
        yield store


HOUR = Maintenance("move", Window(once=(START, START + 3600.0)))
NIGHT = Quiet(Window(minutes("22:00-08:00")), frozenset({"medium", "low"}))


async def test_after_maintenance_what_is_open_is_told_and_what_is_over_is_in_one_digest(
    store: Store, clock: ManualClock, tmp_path: Path
) -> None:
    alerting = Alerting([Route("hook")], [HOUR])
    site = Site(store, clock, alerting)
    await site.say(Opened, "a")
    await site.say(Closed, "a", 2)
    await site.say(Opened, "b", job="bert")
    await site.say(Closed, "b", 2, job="bert")
    await site.say(Opened, "c", job="t5")
    await site.later(1800)
    assert (site.sent(), site.ledger.held) == ([], 3)
    site = Site(store, clock, alerting)  # a restart meanwhile
    await site.later(1790)
    assert site.sent() == []
    await site.later(60)
    assert sorted(site.sent()) == [("a+b", "opened", "digest"), ("c", "opened", "first")]
    await site.later(7200)
    assert (site.sent(), site.ledger.held) == ([], 0)
    decided = store.rows("SELECT action, reason, detail FROM decisions WHERE key = 'a' ORDER BY id")
    assert decided[0] == ("hold", "maintenance", "move")
    assert decided[-1][:2] == ("send", "digest")


async def test_what_a_full_disk_refused_is_written_when_there_is_room_although_nothing_more_happens(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(database: Database, statements: object) -> None:
        raise StateError("disk full")

    site = Site(store, clock, Alerting([Route("hook")], []))
    with monkeypatch.context() as full:
        full.setattr(Database, "write", refuse)
        await site.say(Opened, "a")
    assert store.rows("SELECT key FROM incidents") == []
    await site.ledger.commit()
    assert store.rows("SELECT key FROM incidents") == [("a",)]


async def test_quiet_hours_keep_back_what_is_not_severe_until_the_morning(store: Store, clock: ManualClock) -> None:
    site = Site(store, clock, Alerting([Route("chat", quiet=(NIGHT,))]))
    await site.say(Opened, "low", severity="low")
    await site.say(Opened, "critical", job="bert", severity="critical")
    await site.say(Updated, "critical", 2, job="bert", severity="critical")
    await site.say(Opened, "rises", job="t5")
    await site.say(Updated, "rises", 2, job="t5", severity="high")
    assert site.sent() == [
        ("critical", "opened", "first"),
        ("rises", "opened", "first"),
        ("critical", "updated", "updated"),
    ]
    await site.say(Closed, "rises", 3, job="t5", severity="high")
    assert site.sent() == [("rises", "closed", "closed")]
    await site.later(10 * 3600)
    assert site.sent() == [("low", "opened", "first")]
    await site.later(600)


async def test_a_failure_that_flaps_is_one_incident_and_pages_once(store: Store, clock: ManualClock) -> None:
    site, sent = Site(store, clock, Alerting([Route("hook")])), list[tuple[str, str, str]]()
    for n in range(12):  # an error every four minutes, gone after two
        await site.say(Opened, f"k{n}")
        await site.later(120)
        await site.say(Closed, f"k{n}", 2)
        await site.later(120)
        sent += site.sent()
    await site.later(3600)
    sent += site.sent()
    assert {key for key, _, _ in sent} == {"k0"}
    assert [(event, reason) for _, event, reason in sent if event != "updated"] == [
        ("opened", "first"),
        ("closed", "closed"),
        ("closed", "settled"),
    ]
    assert sent[2] == ("k0", "updated", "reopened")
    (known,) = site.ledger.incidents.values()
    assert (known["key"], known["state"], known["revision"]) == ("k0", "closed", 24)
    assert site.ledger._same == {}  # and nothing is kept of it
    await site.say(Opened, "later")
    assert site.sent() == [("later", "opened", "first")]


async def test_what_comes_back_goes_on_only_where_that_has_ended(store: Store, clock: ManualClock) -> None:
    site = Site(store, clock, Alerting([Route("hook")], flap=600.0))
    await site.say(Opened, "a")
    await site.say(Closed, "a", 2)
    await site.say(Opened, "b")
    await site.say(Opened, "c")
    assert [site.ledger.told_key(key) for key in "abc"] == ["a", "a", "c"]
    await site.say(Opened, "d", job="other")
    await site.say(Closed, "d", 2, job="other")
    await site.say(Opened, "e", job="other", opened_t=START - 1)  # it began before that one had ended
    assert site.ledger.told_key("e") == "e"


async def test_a_clock_that_is_set_back_keeps_nothing_back(store: Store, clock: ManualClock) -> None:
    site = Site(store, clock, Alerting([Route("hook")], [HOUR]))
    await site.later(7200)
    clock._offset -= 7000  # into the hour of maintenance
    await site.say(Opened, "a")
    clock._offset -= 4000  # and before it
    await site.later(10)
    assert [key for key, _, _ in site.sent()] == ["a"]


async def test_the_end_of_what_flapped_is_told_also_after_a_restart(store: Store, clock: ManualClock) -> None:
    alerting = Alerting([Route("hook")])
    site = Site(store, clock, alerting)
    for n in range(2):
        await site.say(Opened, f"k{n}")
        await site.later(60)
        await site.say(Closed, f"k{n}", 2)
        await site.later(60)
    site.sent()
    site = Site(store, clock, alerting)
    await site.later(700)
    assert site.sent() == [("k0", "closed", "settled")]


async def test_what_a_full_outbox_dropped_is_told_when_the_receiver_is_back(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "MAX_PENDING", 5)
    sinks = Sinks()
    sinks.away = {"hook"}
    site = Site(store, clock, Alerting([Route("hook")]), sinks)
    for n in range(8):
        await site.say(Opened, f"k{n}", job=f"job{n}")
    await site.later(600)
    assert store.pending() == 5
    site = Site(store, clock, Alerting([Route("hook")]), sinks)  # a restart meanwhile
    sinks.away = set()
    assert [key for key, _, _ in site.sent()] == [f"k{n}" for n in range(3, 8)]
    await site.later(60)
    assert site.sent() == [("k0+k1+k2", "opened", "digest")]
    await site.later(7200)
    assert site.sent() == []


async def test_a_new_sink_is_told_of_what_is_open_and_a_former_one_of_nothing(store: Store, clock: ManualClock) -> None:
    site = Site(store, clock, Alerting([Route("one")]))
    await site.say(Opened)
    assert site.sent() == [("k", "opened", "first")]
    site.ledger.desk.use(Alerting([Route("two")]))
    await site.later(60)
    assert site.sent() == [("k", "opened", "first")]
    await site.say(Closed, "k", 2)
    assert [(row.delivery.sink, row.delivery.event) for row in store.due(1e12)] == [("two", "closed")]


async def test_of_updates_that_wait_for_a_receiver_the_newest_is_sent(store: Store, clock: ManualClock) -> None:
    site = Site(store, clock, Alerting([Route("hook")]))
    await site.say(Opened)
    for revision in range(2, 9):
        await site.say(Updated, "k", revision)
    assert site.sent() == [("k", "opened", "first"), ("k", "updated", "updated")]
    assert store.sent("k")["hook"].revision == 8
    for revision in range(9, 12):
        await site.say(Updated, "k", revision)
    await site.say(Closed, "k", 12)
    assert site.sent() == [("k", "closed", "closed")]


steps = st.lists(
    st.tuples(
        st.sampled_from(["open", "close", "news", "wait", "restart", "maintenance"]),
        st.integers(0, 2),
        st.sampled_from(["critical", "low"]),
        st.sampled_from([1.0, 40.0, 700.0]),
    ),
    max_size=25,
)


@given(steps)
def test_whatever_happens_no_incident_is_lost_and_none_pages_twice(story: list[Any]) -> None:
    async def play(folder: Path) -> None:
        clock = ManualClock(START, START)
        quiet, sinks = Maintenance("m", Window(once=(0.0, 0.0))), Sinks()
        with Store(folder / "x.sqlite", clock) as store:
            site, open_, number, sent = Site(store, clock, Alerting([Route("hook")], [quiet]), sinks), {}, 0, []
            for what, job, severity, seconds in story:
                about = {"job": f"job{job}", "severity": severity}
                if what == "open" and job not in open_:
                    number += 1
                    open_[job] = (f"k{number}", 1)
                    await site.say(Opened, f"k{number}", 1, **about)
                elif what in ("news", "close") and job in open_:
                    key, revision = open_.pop(job)
                    if what == "news":
                        open_[job] = (key, revision + 1)
                    await site.say(Updated if what == "news" else Closed, key, revision + 1, **about)
                elif what == "restart":
                    site = Site(store, clock, site.ledger.desk.alerting, sinks)
                    open_ = {}
                elif what == "maintenance":
                    times = (clock.now(), clock.now() + seconds)
                    site.ledger.desk.use(Alerting([Route("hook")], [Maintenance("m", Window(once=times))]))
                await site.later(seconds if what == "wait" else 1.0)
                sent += site.sent()
            await site.later(8000)
            sent += site.sent()
            told = {key for keys, _, _ in sent for key in keys.split("+")}
            assert told >= set(site.ledger.incidents), "told alone or in a digest"
            first = [key for key, event, _ in sent if event == "opened" and "+" not in key]
            ends = [key for key, event, _ in sent if event == "closed"]
            for key in set(first):
                assert first.count(key) <= ends.count(key) + 1

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play(Path(folder)))
