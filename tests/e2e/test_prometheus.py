"""A real Prometheus with the shipped rules scrapes a real daemon: an incident fires, as does a daemon that is gone."""

import json
import re
import shutil
import signal
import sys
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml

from .waiting import answer, free_port, until

DENPEXD = str(Path(sys.executable).parent / "denpexd")
PROMETHEUS = shutil.which("prometheus")
DEPLOY = Path(__file__).parents[2] / "deploy" / "prometheus"

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(900),
    pytest.mark.skipif(PROMETHEUS is None, reason="no Prometheus here: apt-get install prometheus"),
]

# What must not fire on a daemon that is well, and what always fires.
WELL = {"DenpexdDown", "DenpexdAbsent", "DenpexdBlind", "DenpexdStateNotWritten", "DenpexdDeadMansSwitch"}

CRASH = """\
Traceback (most recent call last):
  File "/ws/train.py", line 61, in main
    loss = model(batch)
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 1 has a total \
capacity of 79.10 GiB of which 1.06 GiB is free.
"""


def configuration(folder: Path, port: int) -> Path:
    """What is shipped, in a hurry: it looks every second, and alerts wait for a second instead of minutes."""
    config = yaml.safe_load((DEPLOY / "scrape.yml").read_text("utf-8"))
    config["global"] = {"scrape_interval": "2s", "scrape_timeout": "2s", "evaluation_interval": "1s"}
    config["scrape_configs"][0]["static_configs"] = [{"targets": [f"127.0.0.1:{port}"]}]
    del config["alerting"]
    for name in config["rule_files"]:
        (folder / name).write_text(re.sub(r"for: \w+", "for: 1s", (DEPLOY / name).read_text("utf-8")))
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    return folder / "prometheus.yml"


def test_the_shipped_rules_fire_on_a_real_daemon(place: Any) -> None:
    logs, port, at = place.folder / "logs", free_port(), f"127.0.0.1:{free_port()}"
    logs.mkdir()
    (logs / "rank0.log").write_text("".join(f"step {step} loss 2.31\n" for step in range(10)))
    config = place.config("denpexd", [{"type": "console"}], job="e2e", web={"port": port}, evidence={"active": "off"})
    with (place.folder / "denpexd.log").open("wb") as log:
        daemon = place.start([DENPEXD, "run", str(logs), "-c", str(config)], stdout=log, stderr=log)
    options = {"config.file": configuration(place.folder, port), "storage.tsdb.path": place.folder / "data"}
    flags = [f"--{name}={value}" for name, value in options.items()]
    with (place.folder / "prometheus.log").open("wb") as log:
        place.start([PROMETHEUS, *flags, f"--web.listen-address={at}"], stdout=log, stderr=log)
    until(lambda: query(at, f'up{{job="denpexd",instance="127.0.0.1:{port}"}}') == {"": 1.0}, 150.0)
    until(lambda: "DenpexdDeadMansSwitch" in firing(at), 150.0)

    with (logs / "rank0.log").open("a") as log:
        log.write(CRASH)
    found = list[dict[str, str]]()

    def open_now() -> bool:
        now = firing(at)
        found[:] = [now[name] for name in ("DenpexdIncidentOpen", "DenpexdCriticalIncidentOpen") if name in now]
        return found != []

    until(open_now, 150.0)
    (labels,) = found
    assert (labels["training_job"], labels["failure"]) == ("e2e", "cuda-out-of-memory")
    # On a slow machine a scrape may fail, which is told while it lasts.
    until(lambda: query(at, "sum(denpexd_fingerprint_hits_total) > bool 0") == {"": 1.0}, 60.0)
    until(lambda: query(at, "denpexd_detect_seconds_count") == {"memory": 1.0}, 60.0)
    until(lambda: {"DenpexdDeadMansSwitch"} == firing(at).keys() & WELL, 60.0)

    daemon.send_signal(signal.SIGTERM)
    daemon.wait(90)
    until(lambda: "DenpexdDown" in firing(at), 150.0)


def firing(at: str) -> dict[str, dict[str, str]]:
    """Labels of the alerts that fire, by name."""
    found = json.loads(answer(f"http://{at}/api/v1/alerts") or b'{"data": {"alerts": []}}')["data"]["alerts"]
    return {one["labels"]["alertname"]: one["labels"] for one in found if one["state"] == "firing"}


def query(at: str, expression: str) -> dict[str, float]:
    """The values of an expression by category, where there is one."""
    found = answer(f"http://{at}/api/v1/query?{urllib.parse.urlencode({'query': expression})}")
    rows = json.loads(found)["data"]["result"] if found is not None else []
    return {row["metric"].get("category", ""): float(row["value"][1]) for row in rows}
