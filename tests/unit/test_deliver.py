"""From the outbox to real loopback receivers: retries, waits, order, giving up, draining, and kill -9 in between."""

import asyncio
import io
import random
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from denpexd.clock import ManualClock, SystemClock
from denpexd.errors import DeliveryError
from denpexd.notify.deliver import Deliverer, Sink
from denpexd.notify.outbox import Store
from denpexd.notify.policy import Delivery
from denpexd.notify.post import new_client
from denpexd.notify.rows import Row
from denpexd.notify.sinks import filters, make_sinks
from denpexd.notify.sinks_alertmanager import AlertmanagerSink
from denpexd.notify.sinks_webhook import WebhookSink
from denpexd.settings import load
from denpexd.settings_sinks import AlertmanagerSink as AlertmanagerOptions
from denpexd.settings_sinks import WebhookSink as WebhookOptions


def message(key: str = "k", revision: int = 1, sink: str = "hook", event: str = "opened") -> Delivery:
    verdict = {"key": key, "revision": revision, "event": event, "failure": "f", "state": "open"}
    return Delivery(sink, key, revision, event, f"{key}:{revision}", "first", verdict)


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            await asyncio.sleep(0)


async def later(clock: ManualClock, seconds: float) -> None:
    """Move time once every task that can run has gone to sleep."""
    await clock.advance(0)
    await clock.advance(seconds)


async def let_pass(clock: ManualClock, finished: Callable[[], bool]) -> None:
    """Let time pass, second by second, until the condition holds."""
    async with asyncio.timeout(10):
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
    return WebhookSink("hook", WebhookOptions(type="webhook", url=SecretStr(receiver.url)), client, clock, 0.3)


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
        await later(clock, 6.9)
        assert keys(receiver) == ["a:1"]
        await later(clock, 0.2)
        await until(lambda: store.pending() == 0)
    assert keys(receiver) == ["a:1", "a:1", "b:1"]


@pytest.mark.parametrize("status", [400, 404, 301])
async def test_a_final_refusal_becomes_a_dead_letter_and_holds_nothing_up(
    receiver: Any, store: Store, clock: ManualClock, hook: Any, status: int
) -> None:
    receiver.script = [status]
    store.commit(deliveries=[message("a"), message("b")])
    async with running(store, clock, hook) as deliverer:
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
    receiver.script = [fault]
    store.commit(deliveries=[message()])
    async with running(store, clock, hook) as deliverer:
        await until(lambda: deliverer.counters["hook", "retried"] == 1)
        await later(clock, 1.1)
        await until(lambda: store.pending() == 0)
    assert keys(receiver) == ["k:1", "k:1"]


async def test_the_messages_of_an_incident_arrive_in_order(
    receiver: Any, store: Store, clock: ManualClock, hook: Any
) -> None:
    receiver.script = [503]
    store.commit(deliveries=[message(), message(revision=2, event="updated"), message(revision=3, event="closed")])
    async with running(store, clock, hook) as deliverer:
        await until(lambda: deliverer.counters["hook", "retried"] == 1)
        await later(clock, 1.1)
        await until(lambda: store.pending() == 0)
    assert keys(receiver) == ["k:1", "k:1", "k:2", "k:3"]


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
    assert sink.tried.count("bad") < 12


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
    async with running(store, clock, WebhookSink("hook", options, client, clock, 5.0)) as deliverer:
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
    async with running(store, clock, WebhookSink("hook", options, client, clock, 0.3)) as deliverer:
        await later(clock, 1)
        store.commit(deliveries=[message(f"k{i}") for i in range(50)])
        async with asyncio.timeout(5):
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
    assert [f.severity for f in filters(settings)] == [None, None, None, None, {"high", "critical"}]
