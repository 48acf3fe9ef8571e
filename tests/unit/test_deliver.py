"""From the outbox to real loopback receivers: retries, waits, order, giving up, draining, and kill -9 in between."""

import asyncio
import io
import random
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from denpexd.clock import ManualClock, SystemClock
from denpexd.errors import DeliveryError
from denpexd.notify.deliver import LEAVE, MAX_HOLD, Deliverer
from denpexd.notify.in_force import alerting
from denpexd.notify.outbox import Store
from denpexd.notify.policy import Delivery
from denpexd.notify.post import new_client
from denpexd.notify.rows import Row
from denpexd.notify.sink import Sink
from denpexd.notify.sinks import make_sinks
from denpexd.notify.sinks_alertmanager import AlertmanagerSink
from denpexd.notify.sinks_heartbeat import HeartbeatSink
from denpexd.notify.sinks_webhook import WebhookSink
from denpexd.settings import load
from denpexd.settings_sinks import AlertmanagerSink as AlertmanagerOptions
from denpexd.settings_sinks import HeartbeatSink as HeartbeatOptions
from denpexd.settings_sinks import WebhookSink as WebhookOptions


def message(key: str = "k", revision: int = 1, sink: str = "hook", event: str = "opened") -> Delivery:
    verdict = {"key": key, "revision": revision, "event": event, "failure": "f", "state": "open"}
    return Delivery(sink, key, revision, event, f"{key}:{revision}", "first", verdict)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0)


async def later(clock: ManualClock, seconds: float) -> None:
    """Move time once every task that can run has gone to sleep."""
    await clock.advance(0)
    await clock.advance(seconds)


async def let_pass(clock: ManualClock, finished: Callable[[], bool]) -> None:
    """Let time pass, second by second, until the condition holds."""
    async with asyncio.timeout(60):
        while not finished():
            await later(clock, 1)
            await asyncio.to_thread(lambda: None)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with new_client() as shared:
        yield shared


@pytest.fixture
async def store(tmp_path: Path, clock: ManualClock) -> AsyncIterator[Store]:
    with Store(tmp_path / "state.db", clock) as opened:
        yield opened


@asynccontextmanager
async def running(store: Store, clock: ManualClock, *sinks: Sink) -> AsyncIterator[Deliverer]:
    deliverer = Deliverer(store, sinks, clock, random.Random(1))
    async with asyncio.TaskGroup() as group:
        task = group.create_task(deliverer.run())
        yield deliverer
        task.cancel()


@pytest.fixture
def hook(receiver: Any, client: httpx.AsyncClient, clock: ManualClock) -> WebhookSink:
    return WebhookSink("hook", WebhookOptions(type="webhook", url=SecretStr(receiver.url)), client, clock, 60.0)


def keys(receiver: Any) -> list[str]:
    return [request.headers["idempotency-key"] for request in receiver.requests]


async def test_a_committed_message_is_sent_once(receiver: Any, store: Store, clock: ManualClock, hook: Any) -> None:
    async with running(store, clock, hook) as deliverer:
        store.commit(deliveries=[message()])
        deliverer.wake()
        await until(lambda: deliverer.counters["hook", "sent"] == 1)
        await later(clock, 1000)
    assert keys(receiver) == ["k:1"]
    assert deliverer.counters == {("hook", "sent"): 1, ("hook", "retried"): 0, ("hook", "dead"): 0}


async def test_server_errors_are_retried_with_growing_jittered_waits(
    receiver: Any, store: Store, clock: ManualClock, hook: Any
) -> None:
    receiver.script = [500] * 5
    store.commit(deliveries=[message()])
    waits = []
    async with running(store, clock, hook) as deliverer:
        for tries in range(1, 6):
            await until(lambda tries=tries: deliverer.counters["hook", "retried"] == tries and bool(store.due(1e12)))
            [row] = store.due(1e12)
            waits.append(row.not_before - clock.wall())
            assert row.attempts == tries
            await later(clock, waits[-1] - 0.01)
            assert len(receiver.requests) == tries
            await later(clock, 0.02)
        await until(lambda: store.pending() == 0)
    assert keys(receiver) == ["k:1"] * 6
    for n, wait in enumerate(waits):
        assert 2**n / 2 <= wait <= 2**n
    assert len({round(wait / 2**n, 3) for n, wait in enumerate(waits)}) == 5


async def test_retry_after_holds_the_whole_sink(receiver: Any, store: Store, clock: ManualClock, hook: Any) -> None:
    receiver.script = [(429, {"Retry-After": "7"})]
    store.commit(deliveries=[message("a"), message("b")])
    async with running(store, clock, hook) as deliverer:
        await until(lambda: deliverer.counters["hook", "retried"] == 1)
        due = store.rows("SELECT not_before - created FROM deliveries WHERE id = 1")
        assert due == [(7.0,)]  # after a restart, too
        await later(clock, 6.9)
        assert keys(receiver) == ["a:1"]
        await later(clock, 0.2)
        await until(lambda: store.pending() == 0)
    assert keys(receiver) == ["a:1", "a:1", "b:1"]


async def test_a_receiver_that_says_at_once_and_fails_is_not_asked_all_the_time(
    store: Store, clock: ManualClock
) -> None:
    sink = Scripted(bad=["k"], fault=DeliveryError("HTTP 503", retryable=True, after=0.0))
    store.commit(deliveries=[message()])
    async with running(store, clock, sink):
        for _ in range(60):
            await later(clock, 1)
            await asyncio.to_thread(lambda: None)
        assert len(sink.tried) <= 10
        await let_pass(clock, lambda: len(sink.tried) >= 3)


async def test_a_last_try_that_fails_is_the_last(store: Store, clock: ManualClock) -> None:
    sink = Scripted(bad=["a", "b"], max_attempts=1)
    store.commit(deliveries=[message("a"), message("b")])
    await Deliverer(store, [sink], clock, random.Random(1)).once(5.0)
    assert sink.tried == ["a"]


@pytest.mark.parametrize("status", [400, 404, 301])
async def test_a_final_refusal_becomes_a_dead_letter_and_holds_nothing_up(
    receiver: Any, store: Store, clock: ManualClock, hook: Any, status: int
) -> None:
    receiver.script = [status]
    store.commit(deliveries=[message("a")])
    async with running(store, clock, hook) as deliverer:
        await until(lambda: deliverer.counters["hook", "dead"] == 1)
        assert deliverer.well("hook"), "it refused this one only"
        store.commit(deliveries=[message("b")])
        deliverer.wake()
        await until(lambda: deliverer.counters["hook", "sent"] == 1)
    assert keys(receiver) == ["a:1", "b:1"]
    assert f"HTTP {status}" in store.dead_letters()[0].error
    assert (deliverer.counters["hook", "dead"], deliverer.counters["hook", "sent"]) == (1, 1)


async def test_a_dead_sink_delays_no_other(
    receiver: Any, store: Store, clock: ManualClock, hook: Any, client: httpx.AsyncClient
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = WebhookOptions(type="webhook", url=SecretStr(f"http://127.0.0.1:{port}"))
    dead = WebhookSink("dead", options, client, clock)
    store.commit(deliveries=[message(sink="dead"), *(message(f"k{i}") for i in range(5))])
    async with running(store, clock, dead, hook) as deliverer:
        await until(lambda: deliverer.counters["hook", "sent"] == 5 and deliverer.counters["dead", "retried"] == 1)
    assert keys(receiver) == [f"k{i}:1" for i in range(5)]
    assert store.pending() == 1


@pytest.mark.parametrize("fault", ["silent", "drip", "garbage"])
async def test_after_an_unknown_outcome_the_same_key_comes_again(
    receiver: Any, store: Store, clock: ManualClock, hook: Any, fault: str
) -> None:
    receiver.script, hook._timeout = [fault], 1.0
    store.commit(deliveries=[message()])
    async with running(store, clock, hook) as deliverer:
        await until(lambda: deliverer.counters["hook", "retried"] >= 1)
        await let_pass(clock, lambda: store.pending() == 0)
    assert len(keys(receiver)) >= 2
    assert set(keys(receiver)) == {"k:1"}


async def test_the_messages_of_an_incident_arrive_in_order(
    receiver: Any, store: Store, clock: ManualClock, hook: Any
) -> None:
    receiver.script = [503]
    store.commit(deliveries=[message(), message(revision=2, event="updated"), message(revision=3, event="closed")])
    async with running(store, clock, hook) as deliverer:
        await until(lambda: deliverer.counters["hook", "retried"] == 1)
        await later(clock, 1.1)
        await until(lambda: store.pending() == 0)
    assert keys(receiver) == ["k:1", "k:1", "k:3"], "an update that has to wait gives way to what is newer"


class Scripted:
    """A sink of a test: fails for the keys in `bad`."""

    def __init__(
        self, bad: Sequence[str] = (), max_attempts: int | None = None, fault: Exception | None = None
    ) -> None:
        self.name, self.max_attempts = "hook", max_attempts
        self.bad, self.fault = bad, fault or DeliveryError("down", retryable=True)
        self.tried: list[str] = []

    async def send(self, row: Row) -> None:
        self.tried.append(row.delivery.key)
        if row.delivery.key in self.bad:
            raise self.fault


async def test_a_message_that_always_fails_does_not_hold_up_the_others(store: Store, clock: ManualClock) -> None:
    sink = Scripted(bad=["bad"])
    store.commit(deliveries=[message("bad"), *(message(f"k{i}") for i in range(20))])
    async with running(store, clock, sink):
        await let_pass(clock, lambda: store.pending() == 1)
    assert sink.tried.count("bad") < 20, "not between any two of the others"


async def test_after_many_failures_of_one_message_another_waits_half_a_minute_at_most(
    store: Store, clock: ManualClock
) -> None:
    sink = Scripted(bad=["bad"])
    store.commit(deliveries=[message("bad")])
    async with running(store, clock, sink) as deliverer:
        await let_pass(clock, lambda: len(sink.tried) >= 10)
        store.commit(deliveries=[message("k")])
        deliverer.wake()
        since = clock.now()
        await let_pass(clock, lambda: "k" in sink.tried)
    assert clock.now() - since <= MAX_HOLD + 1


async def test_a_sink_that_is_left_alone_costs_nothing_meanwhile(
    store: Store, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink, asked, next_due = Scripted(bad=["a", "b"]), list[str](), store.next_due

    def asking(name: str) -> float | None:
        asked.append(name)
        return next_due(name)

    store.commit(deliveries=[message("a"), message("b")])
    monkeypatch.setattr(store, "next_due", asking)
    async with running(store, clock, sink) as deliverer:
        await until(lambda: deliverer.counters["hook", "retried"] == 1)
        for _ in range(100):
            await asyncio.sleep(0)
    assert len(asked) < 5


async def test_tries_are_bounded_where_the_sink_says_so(store: Store, clock: ManualClock) -> None:
    sink = Scripted(bad=["k"], max_attempts=3)
    store.commit(deliveries=[message()])
    async with running(store, clock, sink):
        await let_pass(clock, lambda: store.pending() == 0)
    assert sink.tried == ["k"] * 3
    assert store.dead_letters()[0].error == "down"


async def test_a_message_of_yesterday_is_given_up(store: Store, clock: ManualClock) -> None:
    store.commit(deliveries=[message()])
    await later(clock, 25 * 3600)
    async with running(store, clock, Scripted(bad=["k"])):
        await until(lambda: store.pending() == 0)
    assert len(store.dead_letters()) == 1


async def test_an_unexpected_error_in_a_sink_is_retried(
    store: Store, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    sink = Scripted(bad=["k"], fault=RuntimeError("bug"))
    store.commit(deliveries=[message()])
    async with running(store, clock, sink) as deliverer:
        await until(lambda: deliverer.counters["hook", "retried"] == 1)
        sink.bad = ()
        await later(clock, 2)
        await until(lambda: store.pending() == 0)
    assert "RuntimeError: bug" in caplog.text


async def test_messages_of_a_sink_that_is_gone_are_set_aside(store: Store, clock: ManualClock) -> None:
    store.commit(deliveries=[message(sink="former"), message()])
    async with running(store, clock, Scripted()):
        await until(lambda: store.pending() == 0)
    assert [row.delivery.sink for row in store.dead_letters()] == ["former"]


async def test_alertmanager_hears_of_open_incidents_again(
    receiver: Any, store: Store, clock: ManualClock, client: httpx.AsyncClient
) -> None:
    options = AlertmanagerOptions.model_validate({"type": "alertmanager", "url": receiver.url, "interval": "60s"})
    sink = AlertmanagerSink("am", options, client, clock)
    opened = message(sink="am")
    store.commit(incidents=[opened.verdict], deliveries=[opened])
    async with running(store, clock, sink) as deliverer:
        await until(lambda: deliverer.counters["am", "sent"] == 1)
        before = len(receiver.requests)
        await later(clock, 61)
        await until(lambda: len(receiver.requests) == before + 1)
        ended = message(sink="am", revision=2, event="closed")
        store.commit(incidents=[{**ended.verdict, "state": "closed"}], deliveries=[ended])
        deliverer.wake()
        await until(lambda: deliverer.counters["am", "sent"] == 2)
        total = len(receiver.requests)
        await later(clock, 61)
        await asyncio.to_thread(lambda: None)
    assert len(receiver.requests) == total
    [last] = receiver.requests[-1].json
    assert last["endsAt"] == "2023-11-14T22:14:21.000Z"


async def test_a_receiver_that_is_down_for_ten_minutes_gets_each_message_once_and_in_order(
    receiver: Any, store: Store, clock: ManualClock, client: httpx.AsyncClient
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = WebhookOptions(type="webhook", url=SecretStr(f"http://127.0.0.1:{port}"))
    store.commit(deliveries=[message(f"k{i}") for i in range(5)])
    async with running(store, clock, WebhookSink("hook", options, client, clock, 60.0)) as deliverer:
        await let_pass(
            clock, lambda: deliverer.counters["hook", "retried"] >= 8 and store.oldest_age(clock.wall()) > 600
        )
        assert store.pending() == 5
        server = await asyncio.start_server(receiver.handle, "127.0.0.1", port)
        async with server:
            await let_pass(clock, lambda: store.pending() == 0)
    assert sorted(keys(receiver)) == [f"k{i}:1" for i in range(5)]


async def test_draining_gives_up_fifty_messages_to_a_dead_receiver_after_one_try(
    store: Store, clock: ManualClock, client: httpx.AsyncClient
) -> None:
    options = WebhookOptions(type="webhook", url=SecretStr("http://127.0.0.1:1/"))
    async with running(store, clock, WebhookSink("hook", options, client, clock, 1.0)) as deliverer:
        await later(clock, 1)
        store.commit(deliveries=[message(f"k{i}") for i in range(50)])
        async with asyncio.timeout(60):
            await deliverer.drain(10)
    assert store.pending() == 50
    assert deliverer.counters["hook", "retried"] == 1


async def test_draining_sends_what_is_due_and_keeps_the_rest(
    receiver: Any, store: Store, clock: ManualClock, hook: Any
) -> None:
    async with running(store, clock, hook) as deliverer:
        await later(clock, 1)
        receiver.script = [200, 500]
        store.commit(deliveries=[message(f"k{i}") for i in range(4)])
        await deliverer.drain(10)
    assert keys(receiver) == ["k0:1", "k1:1"]
    assert store.pending() == 3


async def test_draining_ends_at_its_deadline_and_keeps_what_is_under_way(
    receiver: Any, store: Store, clock: ManualClock, client: httpx.AsyncClient
) -> None:
    options = WebhookOptions(type="webhook", url=SecretStr(receiver.url))
    receiver.script = ["silent"]
    async with running(store, clock, WebhookSink("hook", options, client, clock, 30)) as deliverer:
        store.commit(deliveries=[message()])
        draining = asyncio.create_task(deliverer.drain(5))
        await until(lambda: len(receiver.requests) == 1)
        await later(clock, 5)
        await draining
    assert [row.delivery.key for row in store.due(1e12)] == ["k"]


async def test_kill_9_between_commit_and_answer_sends_the_same_message_again(
    receiver: Any, tmp_path: Path, client: httpx.AsyncClient
) -> None:
    path = tmp_path / "state.db"
    receiver.script = ["silent"]
    program = f"""
        import asyncio, random
        from pathlib import Path
        from pydantic import SecretStr
        from denpexd.clock import SystemClock
        from denpexd.notify.deliver import Deliverer
        from denpexd.notify.outbox import Store
        from denpexd.notify.policy import Delivery
        from denpexd.notify.post import new_client
        from denpexd.notify.sinks_webhook import WebhookSink
        from denpexd.settings_sinks import WebhookSink as Options

        async def main():
            store, clock = Store(Path({str(path)!r})).open(), SystemClock()
            verdict = {{"key": "k", "revision": 1, "state": "open"}}
            store.commit(positions={{"log": "42"}}, incidents=[verdict],
                         deliveries=[Delivery("hook", "k", 1, "opened", "k:1", "first", verdict)])
            async with new_client() as client:
                sink = WebhookSink("hook", Options(type="webhook", url=SecretStr({receiver.url!r})), client, clock)
                await Deliverer(store, [sink], clock, random.Random(1)).run()

        asyncio.run(main())
    """
    daemon = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)])
    try:
        await until(lambda: len(receiver.requests) == 1)
    finally:
        daemon.send_signal(signal.SIGKILL)
        daemon.wait()
    clock = SystemClock()
    with Store(path, clock) as store:
        assert store.positions() == {"log": "42"}
        options = WebhookOptions(type="webhook", url=SecretStr(receiver.url))
        deliverer = Deliverer(store, [WebhookSink("hook", options, client, clock)], clock, random.Random(1))
        task = asyncio.create_task(deliverer.run())
        await until(lambda: store.pending() == 0)
        await deliverer.drain(1)
        await task
    assert keys(receiver) == ["k:1", "k:1"]
    assert receiver.requests[0].json == receiver.requests[1].json


async def test_sinks_are_made_from_settings(store: Store, client: httpx.AsyncClient, clock: ManualClock) -> None:
    sinks = "[{type: webhook, url: 'http://h/'}, {type: alertmanager, url: 'http://h/'}, {type: console},"
    sinks += " {type: slack, webhook_url: 'http://h/'},"
    sinks += " {type: apprise, url: 'json://h', severity: [high, critical]}]"
    settings = load(None, overrides={}, environ={"HOME": "/h", "DENPEXD_SINKS": sinks})
    made = make_sinks(settings, client, clock, io.StringIO(), store, color=False, width=100)
    assert [sink.name for sink in made] == ["webhook", "alertmanager", "console", "slack", "apprise"]
    assert [route.severity for route in alerting(settings).routes] == [None, None, None, None, {"high", "critical"}]


# --- other sinks while it runs ----------------------------------------------------------------------------------------


class Held:
    """A sink that takes its time: `go` lets the message under way arrive."""

    max_attempts: int | None = None

    def __init__(self, name: str = "hook") -> None:
        self.name, self.go = name, asyncio.Event()
        self.begun: list[str] = []
        self.got: list[str] = []
        self.error: DeliveryError | None = None

    async def send(self, row: Row) -> None:
        self.begun.append(row.delivery.idempotency_key)
        await self.go.wait()
        if self.error is not None:
            raise self.error
        self.got.append(row.delivery.idempotency_key)


async def test_a_changed_sink_takes_over_after_the_message_under_way(store: Store, clock: ManualClock) -> None:
    old, new = Held(), Held()
    new.go.set()
    async with running(store, clock, old) as deliverer:
        store.commit(deliveries=[message("a"), message("b")])
        deliverer.wake()
        await until(lambda: old.begun == ["a:1"])
        deliverer.use([new])
        await later(clock, LEAVE - 1)
        assert new.begun == [], "not before the other one has ended"
        old.go.set()
        await until(lambda: deliverer.counters["hook", "sent"] == 2)
    assert (old.got, new.got) == (["a:1"], ["b:1"])


async def test_a_sink_that_hangs_is_left_after_a_while_and_its_message_sent_again(
    store: Store, clock: ManualClock
) -> None:
    old, new = Held(), Held()
    new.go.set()
    async with running(store, clock, old) as deliverer:
        store.commit(deliveries=[message("a")])
        deliverer.wake()
        await until(lambda: old.begun == ["a:1"])
        deliverer.use([new])
        await later(clock, LEAVE + 1)
        await until(lambda: store.pending() == 0)
    assert (old.got, new.got) == ([], ["a:1"])


async def test_what_waits_for_a_sink_that_is_gone_is_tried_once_and_then_set_aside(
    store: Store, clock: ManualClock
) -> None:
    gone, kept = Held("gone"), Held("kept")
    gone.error = DeliveryError("HTTP 503", retryable=True)
    kept.go.set()
    async with running(store, clock, gone, kept) as deliverer:
        store.commit(deliveries=[message("a", sink="gone"), message("b", sink="gone")])
        deliverer.wake()
        await until(lambda: gone.begun == ["a:1"])
        deliverer.use([kept])
        gone.go.set()
        await until(lambda: store.pending() == 0)
        store.commit(deliveries=[message("c", sink="kept")])
        deliverer.wake()
        await until(lambda: kept.got == ["c:1"])
    dead = {row.delivery.idempotency_key: row.error for row in store.dead_letters()}
    assert dead == dict.fromkeys(("a:1", "b:1"), "the sink is no longer configured")


async def test_an_unchanged_sink_goes_on_and_a_new_one_begins(store: Store, clock: ManualClock) -> None:
    same, new = Held("same"), Held("new")
    new.go.set()
    async with running(store, clock, same) as deliverer:
        store.commit(deliveries=[message("a", sink="same")])
        deliverer.wake()
        await until(lambda: same.begun == ["a:1"])
        for _ in range(3):
            deliverer.use([new, same])
            await later(clock, LEAVE)
        store.commit(deliveries=[message("b", sink="new")])
        deliverer.wake()
        await until(lambda: new.got == ["b:1"])
        same.go.set()
        await until(lambda: store.pending() == 0)
    assert same.begun == ["a:1"]


@given(st.lists(st.sampled_from(["message", "swap", "drop", "let go", "wait"]), max_size=14))
def test_however_sinks_are_swapped_every_message_arrives_or_is_a_dead_letter(story: list[str]) -> None:
    async def play(folder: Path) -> None:
        clock, n, made = ManualClock(), 0, [Held()]
        with Store(folder / "x.db", clock) as store:
            async with running(store, clock, made[0]) as deliverer:
                for what in [*story, "swap", "let go"]:
                    if what == "message":
                        n += 1
                        store.commit(deliveries=[message(f"m{n}")])
                        deliverer.wake()
                    elif what == "swap":
                        made.append(Held())
                        deliverer.use([made[-1]])
                    elif what == "drop":
                        deliverer.use([])
                    elif what == "let go":
                        for sink in made:
                            sink.go.set()
                    else:
                        await later(clock, LEAVE)
                await let_pass(clock, lambda: store.pending() == 0)
            got = [key for sink in made for key in sink.got]
            dead = [row.delivery.idempotency_key for row in store.dead_letters()]
            assert {*got, *dead} == {f"m{i}:1" for i in range(1, n + 1)}
            assert len(got) == len(set(got))
            assert not set(got) & set(dead)

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play(Path(folder)))


async def test_a_heartbeat_beats_only_while_there_is_progress(
    receiver: Any, store: Store, clock: ManualClock, client: httpx.AsyncClient
) -> None:
    options = HeartbeatOptions(type="heartbeat", url=SecretStr(receiver.url), every=60.0, method="POST")
    alive = True
    beat = HeartbeatSink("heartbeat", options, client, clock)
    deliverer = Deliverer(store, [beat], clock, random.Random(1), alive=lambda: alive)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(deliverer.run())
        await until(lambda: deliverer.counters["heartbeat", "sent"] == 1)
        for n in (2, 3):
            await later(clock, 60)
            await until(lambda n=n: deliverer.counters["heartbeat", "sent"] == n)
        alive = False
        for _ in range(5):
            await later(clock, 60)
        assert len(receiver.requests) == 3
        alive, receiver.script = True, [500]
        await later(clock, 60)
        await until(lambda: deliverer.counters["heartbeat", "retried"] == 1)
        await later(clock, 60)
        await until(lambda: deliverer.counters["heartbeat", "sent"] == 4)
        task.cancel()
    assert {request.method for request in receiver.requests} == {"POST"}
