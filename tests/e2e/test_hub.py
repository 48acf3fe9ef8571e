"""Two nodes and a hub as a user starts them, a real nats-server between them, a webhook receiver behind."""

import asyncio
import json
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from denpexd.errors import BrokerError
from denpexd.hub.broker import BOARD, LEASES, Nats
from denpexd.hub.wire import partition, subject, word_of
from denpexd.settings_hub import Hub

from .waiting import DENPEXD, free_port, until

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        shutil.which("nats-server") is None, reason="nats-server is not installed (Debian: nats-server)"
    ),
]
CASE = Path(__file__).parents[1] / "cases" / "lab-exc-value-n3-tqdm" / "timeline.jsonl"
FASTER = 0.4  # of the time that the job took


class Server:
    """A nats-server on loopback that asks for a token; `url` stays over a restart."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._port = folder, free_port()
        self.url = f"nats://127.0.0.1:{self._port}"
        self.token = folder / "token"
        self.token.write_text("sesame\n")
        self.start()

    def start(self) -> None:
        command = ["nats-server", "-a", "127.0.0.1", "-p", str(self._port), "-js", "-sd", str(self._folder / "nats")]
        with (self._folder / "nats.log").open("ab") as log:
            self._process = subprocess.Popen([*command, "--auth", "sesame"], stdout=log, stderr=log)

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait(60)

    @property
    def options(self) -> dict[str, Any]:
        return {"url": self.url, "token_file": str(self.token)}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path)
    yield made
    made.stop()


class Alerts(list[dict[str, Any]]):
    """What a webhook receiver at `url` got."""

    url = ""


@pytest.fixture
def alerts() -> Iterator[Alerts]:
    got = Alerts()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    got.url = f"http://127.0.0.1:{server.server_port}/"
    yield got
    server.shutdown()
    server.server_close()


class Started:
    """A denpexd in a process of its own; `url`: its console."""

    def __init__(self, place: Any, name: str, verb: list[str], config: dict[str, Any]) -> None:
        folder = place.folder
        (folder / f"{name}.state").mkdir()
        file = folder / f"{name}.yaml"
        port = free_port()
        whole = {"state_dir": str(folder / f"{name}.state"), "web": {"port": port}, "keep": {"bundles": "off"}}
        file.write_text(json.dumps({**whole, **config}))
        file.chmod(0o600)
        self._log = folder / f"{name}.log"
        with self._log.open("wb") as log:
            command = [*DENPEXD, *verb, "-c", str(file)]
            self.process = place.start(command, stdout=log, stderr=log)
        self.url = f"http://127.0.0.1:{port}"

    def ready(self) -> bool:
        assert self.process.poll() is None, self.log
        try:
            return httpx.get(f"{self.url}/readyz", timeout=60).status_code == 200
        except httpx.HTTPError:
            return False

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def metric(self, name: str) -> float:
        page = httpx.get(f"{self.url}/metrics", timeout=60).text
        return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith(name))

    def end(self) -> None:
        assert self.process.wait(90) == 0, self.log


def test_a_job_on_two_nodes_gets_one_verdict_from_the_hub(
    place: Any, tmp_path: Path, server: Server, alerts: Alerts
) -> None:
    webhook = {"sinks": [{"type": "webhook", "url": alerts.url}]}
    hub = Started(place, "hub", ["hub"], {"hub": {**server.options, "size": "32MiB"}, **webhook})
    nodes = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        config = {"job": "split", "paths": [str(tmp_path / name / "rank{rank}.log")], **webhook}
        nodes.append(Started(place, f"node-{name}", ["run"], {**config, "hub": {**server.options, "node": name}}))
    until(lambda: all(one.ready() for one in (hub, *nodes)), 150, "not ready in time")

    began = time.monotonic()
    for line in map(json.loads, CASE.read_text().splitlines()):
        time.sleep(max(0.0, began + line["t"] * FASTER - time.monotonic()))
        if line["rank"] >= 0:
            with (tmp_path / ("a" if line["rank"] == 0 else "b") / f"rank{line['rank']}.log").open("a") as file:
                file.write(line["line"] + "\n")
    until(lambda: alerts and alerts[-1]["collateral_ranks"] == [1, 2], 150, f"{alerts}: {hub.log}")

    alert = alerts[-1]
    assert (alert["failure"], alert["initiating_ranks"], alert["collateral_ranks"]) == (
        "single-rank-exception",
        [0],
        [1, 2],
    )
    assert alert["nodes"] == {"0": "a", "1": "b", "2": "b"}
    assert alert["evidence"][0]["source"] == f"a:{tmp_path / 'a' / 'rank0.log'}"
    shown = httpx.get(f"{hub.url}/api/v1/incidents", timeout=60).json()
    assert [incident["key"] for incident in shown["incidents"]] == [alert["key"]]
    assert hub.metric("denpexd_hub_partitions") == 16
    until(lambda: hub.metric('denpexd_hub_nodes{state="heard"}') == 2, 60, "both nodes are heard")
    until(lambda: all(node.metric("denpexd_hub_alone") == 0 for node in nodes), 60, "both nodes hear the hub")
    for one in (*nodes, hub):
        one.process.terminate()
    for one in (*nodes, hub):
        one.end()
    assert [(one["event"], one["key"]) for one in alerts].count(("opened", alert["key"])) == 1
    assert {one["key"] for one in alerts} == {alert["key"]}


async def eventually(answer: Any, seconds: float = 60.0) -> Any:
    """The answer of the broker, which may be starting."""
    end = time.monotonic() + seconds
    while True:
        try:
            return await answer()
        except BrokerError:
            assert time.monotonic() < end
            await asyncio.sleep(0.2)


async def hears(heard: list[bytes], number: int) -> None:
    end = time.monotonic() + 60
    while len(heard) < number:
        assert time.monotonic() < end
        await asyncio.sleep(0.05)


async def test_the_broker_keeps_what_hubs_rely_on(server: Server) -> None:
    broker = Nats(Hub(**server.options, size="32MiB"), "test", lease=2.0)
    await eventually(broker.prepare)
    await broker.prepare()  # it is there already
    job = "run7"
    part = partition(job)
    for number, name in enumerate(("one", "two", "two", "three")):
        await broker.publish(subject(job), b"%d" % number, name)
    await broker.publish(subject("elsewhere"), b"x", "four")
    since = time.time() - 60
    first = await broker.read(part, 0, since, 30.0)
    assert [one.data for one in first] == [b"0", b"1", b"3"]
    assert all(abs(one.stamp - time.time()) < 60 for one in first)
    assert await broker.read(part, first[-1].number, since, 0.2) == []
    assert [one.data for one in await broker.read(part, first[0].number, since, 30.0)] == [b"1", b"3"]

    for key in (f"p{number}" for number in range(20)):
        began = time.monotonic()
        mine = await broker.create(LEASES, key, b"me")
        assert mine is not None
        second = await broker.create(LEASES, key, b"you")
        again = await broker.update(LEASES, key, b"me", mine)
        late = await broker.update(LEASES, key, b"you", mine)
        held, keys = await broker.get(LEASES, key), await broker.keys(LEASES)
        if time.monotonic() - began < 1.5:  # else the lease may have ended meanwhile
            break
    assert again is not None
    assert (second, late, held) == (None, None, (b"me", again))
    assert key in keys
    await broker.put(BOARD, "p3.done", b"7")
    heard: list[bytes] = []
    await broker.listen(word_of(part), heard.append)
    await broker.say(word_of(part), b"word")
    await hears(heard, 1)

    server.stop()
    with pytest.raises(BrokerError):
        await broker.publish(subject(job), b"4", "five")
    server.start()
    await eventually(lambda: broker.publish(subject(job), b"4", "five"))
    found = await eventually(lambda: broker.read(part, first[-1].number, since, 30.0))
    assert [one.data for one in found] == [b"4"]
    assert await broker.get(BOARD, "p3.done") == (b"7", 1)
    end = time.monotonic() + 60
    while await broker.create(LEASES, key, b"you") is None:  # it is not renewed
        assert time.monotonic() < end, "the lease does not end"
        await asyncio.sleep(0.1)
    await broker.delete(LEASES, key)
    assert await broker.get(LEASES, key) is None
    assert await broker.create(LEASES, key, b"me") is not None
    await broker.say(word_of(part), b"word again")
    await hears(heard, 2)
    assert heard == [b"word", b"word again"]
    await broker.forget(part)
    await broker.close()


async def test_a_wrong_token_is_an_error_with_a_reason(server: Server, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong"
    wrong.write_text("other")
    broker = Nats(Hub(url=server.url, token_file=wrong), "test", lease=2.0)
    with pytest.raises(BrokerError, match=r"no connection to nats://127\.0\.0\.1.*uthorization"):
        await broker.publish(subject("job"), b"", "one")
    await broker.close()
