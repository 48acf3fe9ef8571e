"""Other jobs on the node, and other daemons: what is theirs is not ours, and nobody is in the way of another."""

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

DENPEXD = str(Path(sys.executable).parent / "denpexd")
RANK = "import sys, time\nfor step in range(10**6): print('step', step, 'loss 2.31', flush=True); time.sleep(0.2)"
BROKEN = "raise MemoryError('cannot allocate the index of the data set')"


def ranks(place: Any, output: Path, port: int) -> list[Any]:
    """Two processes that are the ranks of one job by their environment."""
    started = []
    for rank in range(2):
        env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_PORT": str(port)}
        with output.open("ab") as out:
            started.append(place.start([sys.executable, "-c", RANK], env=env, stdout=out, stderr=out))
    return started


def kill_one_of_two_after_a_while(place: Any, output: Path) -> list[Any]:
    """A daemon watches mine/train.log, which this test writes, while two ranks print to `output`: its alerts."""
    sink, log = place.sink(), place.folder / "mine" / "train.log"
    log.parent.mkdir()
    log.touch()
    place.watch(log.parent, sink)
    over = threading.Event()
    mine = threading.Thread(target=train, args=(log, over))
    mine.start()
    try:
        _, victim = ranks(place, output, 29555)
        time.sleep(20.0)
        victim.kill()
        sink.wait(30.0)
    finally:
        over.set()
        mine.join()
    return [alert.verdict["failure"] for alert in sink.alerts]


def train(log: Path, over: threading.Event) -> None:
    """A job whose processes are not here."""
    step = 0
    while not over.wait(0.2):
        step += 1
        with log.open("a") as file:
            file.write(f"step {step} loss 2.31\n")


def test_the_death_of_a_neighbours_rank_is_not_told_as_ours(place: Any) -> None:
    assert kill_one_of_two_after_a_while(place, place.folder / "theirs.out") == []


def test_a_command_is_watched_also_where_another_daemon_has_the_port(place: Any) -> None:
    sink = place.sink()
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        config = place.config("exec", [{"type": "webhook", "url": sink.url}], web={"port": port})
        command = [DENPEXD, "exec", "-c", str(config), "--", sys.executable, "-c", BROKEN]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert [alert.verdict["failure"] for alert in sink.alerts] == ["cpu-allocator-failure"]
    assert [f"port {port} on 127.0.0.1 is in use" in line for line in done.stderr.splitlines()].count(True) == 1


def test_two_daemons_without_settings_watch_beside_each_other(place: Any) -> None:
    env = {**os.environ, "XDG_STATE_HOME": str(place.folder / "state")}
    logs = []
    for name in ("one", "two"):
        (place.folder / name).mkdir()
        (place.folder / name / "train.log").touch()
        logs.append(place.folder / f"{name}.out")
        with logs[-1].open("wb") as out:
            place.start([DENPEXD, "run", str(place.folder / name)], env=env, stdout=out, stderr=out)
        wait_for(logs[-1], "console and metrics on")
    said = logs[1].read_text()
    assert "is in use (another denpexd?): metrics and console are on port" in said
    assert f"another daemon keeps its state in {place.folder}/state/denpexd" in said


def test_the_next_command_sends_the_alert_that_could_not_be_sent(place: Any) -> None:
    sink = place.sink(*[503] * 1000)
    config = place.config("exec", [{"type": "webhook", "url": sink.url}])
    start = [DENPEXD, "exec", "-c", str(config), "--job", "e2e", "--"]
    assert subprocess.run([*start, sys.executable, "-c", BROKEN], check=False).returncode == 1
    refused = {alert.repeat_key for alert in sink.alerts}
    assert len(refused) == 1
    before = len(sink.alerts)
    sink._script.clear()
    place.start([*start, "sleep", "120"])
    for _ in range(1000):
        if len(sink.alerts) > before:
            break
        time.sleep(0.1)
    assert {alert.repeat_key for alert in sink.alerts[before:]} == refused


def wait_for(file: Path, text: str) -> None:
    for _ in range(1500):
        if text in file.read_text():
            return
        time.sleep(0.1)
    raise TimeoutError(f"{text!r} does not come: {file.read_text()}")
