"""A real Alertmanager: an incident is an alert there while it is open, and resolved when it closes."""

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from .waiting import answer, free_port, until

DENPEXD = str(Path(sys.executable).parent / "denpexd")
ALERTMANAGER = shutil.which("prometheus-alertmanager") or shutil.which("alertmanager")
AMTOOL = shutil.which("amtool")

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(900),
    pytest.mark.skipif(ALERTMANAGER is None, reason="no Alertmanager here: apt-get install prometheus-alertmanager"),
]

CRASH = """\
Traceback (most recent call last):
  File "/ws/train.py", line 88, in <module>
    main()
  File "/ws/train.py", line 61, in main
    loss = model(batch)
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 1 has a total \
capacity of 79.10 GiB of which 1.06 GiB is free.
"""


@pytest.fixture
def alertmanager(place: Any) -> str:
    """Base URL of one that notifies nobody."""
    config = place.folder / "alertmanager.yml"
    config.write_text("route: {receiver: nobody}\nreceivers: [{name: nobody}]\n")
    address = f"127.0.0.1:{free_port()}"
    options = {"config.file": config, "storage.path": place.folder / "data", "web.listen-address": address}
    flags = [f"--{name}={value}" for name, value in options.items()]
    with (place.folder / "alertmanager.log").open("wb") as log:
        place.start([ALERTMANAGER, *flags, "--cluster.listen-address="], stdout=log, stderr=log)
    url = f"http://{address}"
    until(lambda: answer(f"{url}/-/ready") is not None, 150.0)
    return url


def test_an_incident_is_an_alert_until_training_goes_on(place: Any, alertmanager: str) -> None:
    logs = place.folder / "logs"
    first, second = (logs / "none_k3x1" / f"attempt_{number}" for number in (0, 1))
    config = place.config("denpexd", [{"type": "alertmanager", "url": alertmanager, "interval": "5s"}], job="e2e")
    for step in range(10):
        train(first, step)

    with (place.folder / "denpexd.log").open("wb") as log:
        place.start([DENPEXD, "run", str(logs), "-c", str(config)], stdout=log, stderr=log)
    time.sleep(8.0)
    with (first / "1" / "stderr.log").open("a") as log:
        log.write(CRASH)
    found = list[dict[str, Any]]()

    def told() -> bool:
        found[:] = alerts(alertmanager) or []
        return found != []

    until(told, 150.0)
    (alert,) = found
    assert alert["status"]["state"] == "active"
    labels = {"alertname": "DenpexdIncident", "failure": "cuda-out-of-memory", "training_job": "e2e"}
    assert {**alert["labels"], **labels} == alert["labels"]
    assert alert["annotations"]["initiating_ranks"] == "1"
    assert alert["annotations"]["remediation"].startswith("1. ")

    if AMTOOL is not None:  # as somebody on call looks at it, in a terminal
        asked = [AMTOOL, "--alertmanager.url", alertmanager, "alert", "query", "training_job=e2e", "-o", "extended"]
        shown = subprocess.run(asked, capture_output=True, text=True, check=True, timeout=30).stdout
        assert "MEMORY e2e rank 1" in shown
        assert "docs/encyclopedia/cuda-out-of-memory.md" in shown

    for step in range(60):
        train(second, step)
        time.sleep(0.2)
    until(lambda: alerts(alertmanager) == [], 150.0)


def train(attempt: Path, step: int) -> None:
    """One step of two ranks, as torchrun's folders hold it."""
    for rank in (0, 1):
        folder = attempt / str(rank)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "stderr.log").touch()
        with (folder / "stdout.log").open("a") as log:
            log.write(f"step {step} loss 2.31\n")


def alerts(url: str) -> list[dict[str, Any]] | None:
    """What Alertmanager holds as firing now; None where it does not say."""
    found = answer(f"{url}/api/v2/alerts")
    return None if found is None else list(json.loads(found))
