"""Two nodes and a hub as a user starts them, a real nats-server between them, a webhook receiver behind."""

import json
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        shutil.which("nats-server") is None, reason="nats-server is not installed (Debian: nats-server)"
    ),
]
CASE = Path(__file__).parents[1] / "cases" / "lab-exc-value-n3-tqdm" / "timeline.jsonl"
FASTER = 0.4  # of the time that the job took


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[str]:
    port = free_port()
    command = ["nats-server", "-a", "127.0.0.1", "-p", str(port), "-js", "-sd", str(tmp_path / "nats")]
    with (tmp_path / "nats.log").open("wb") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield f"nats://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(10)


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

    def __init__(self, folder: Path, name: str, verb: list[str], config: dict[str, Any]) -> None:
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.state").mkdir()
        file = folder / f"{name}.yaml"
        port = free_port()
        whole = {"state_dir": str(folder / f"{name}.state"), "web": {"port": port}, "keep": {"bundles": "off"}}
        file.write_text(json.dumps({**whole, **config}))
        file.chmod(0o600)
        self._log = folder / f"{name}.log"
        with self._log.open("wb") as log:
            command = [sys.executable, "-m", "denpexd", *verb, "-c", str(file)]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)
        self.url = f"http://127.0.0.1:{port}"

    def ready(self) -> bool:
        assert self.process.poll() is None, self.log
        try:
            return httpx.get(f"{self.url}/readyz", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def metric(self, name: str) -> float:
        page = httpx.get(f"{self.url}/metrics", timeout=5).text
        return sum(float(line.split()[-1]) for line in page.splitlines() if line.startswith(name))

    def end(self) -> None:
        self.process.terminate()
        assert self.process.wait(20) == 0, self.log


def until(holds: Any, seconds: float, why: str) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, why
        time.sleep(0.1)


def test_a_job_on_two_nodes_gets_one_verdict_from_the_hub(tmp_path: Path, broker: str, alerts: Alerts) -> None:
    webhook = {"sinks": [{"type": "webhook", "url": alerts.url}]}
    hub = Started(tmp_path, "hub", ["hub"], {"hub": {"url": broker, "size": "32MiB"}, **webhook})
    nodes = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        config = {"job": "split", "paths": [str(tmp_path / name / "rank{rank}.log")], **webhook}
        nodes.append(Started(tmp_path, f"node-{name}", ["run"], {**config, "hub": {"url": broker, "node": name}}))
    until(lambda: all(one.ready() for one in (hub, *nodes)), 60, "not ready in time")

    began = time.monotonic()
    for line in map(json.loads, CASE.read_text().splitlines()):
        time.sleep(max(0.0, began + line["t"] * FASTER - time.monotonic()))
        if line["rank"] >= 0:
            with (tmp_path / ("a" if line["rank"] == 0 else "b") / f"rank{line['rank']}.log").open("a") as file:
                file.write(line["line"] + "\n")
    until(lambda: alerts, 30, f"no alert: {hub.log}")

    [alert] = alerts
    assert (alert["failure"], alert["initiating_ranks"], alert["collateral_ranks"]) == (
        "single-rank-exception",
        [0],
        [1, 2],
    )
    assert alert["nodes"] == {"0": "a", "1": "b", "2": "b"}
    assert alert["evidence"][0]["source"] == f"a:{tmp_path / 'a' / 'rank0.log'}"
    shown = httpx.get(f"{hub.url}/api/v1/incidents", timeout=5).json()
    assert [incident["key"] for incident in shown["incidents"]] == [alert["key"]]
    assert hub.metric("denpexd_hub_partitions") == 16
    assert hub.metric('denpexd_hub_nodes{state="heard"}') == 2
    assert all(node.metric("denpexd_hub_alone") == 0 for node in nodes)
    for one in (*nodes, hub):
        one.end()
    assert len(alerts) == 1
