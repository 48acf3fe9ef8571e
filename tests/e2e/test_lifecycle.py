"""How a real daemon ends, and what it outlives: receivers that hang, a slow disk, a lost state, readers that are gone.

The numbers are those of docs/reliability.md.
"""

import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from .waiting import DENPEXD, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

ERROR = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.15 GiB "
    "of which 3.12 MiB is free.\n"
)
SLOW_FSYNC = """
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
static double now(void) { struct timespec t; clock_gettime(CLOCK_MONOTONIC, &t); return t.tv_sec + t.tv_nsec / 1e9; }
static int slow(void) {
  double began = now();
  sleep(2);
  FILE *note = fopen(getenv("SLOW_NOTE"), "a");
  if (note) { fprintf(note, "%.6f %.6f\\n", began, now()); fclose(note); }
  return 0;
}
int fsync(int fd) { (void)fd; return slow(); }
int fdatasync(int fd) { (void)fd; return slow(); }
"""


@dataclass
class Run:
    """One `denpexd run`: its configuration, its process and its log."""

    place: Any
    config: Path
    logs: Path
    log: Path
    process: Any = None

    def start(self, **options: Any) -> None:
        told = self.log.read_text().count("watching ") if self.log.exists() else 0
        with self.log.open("ab") as log:
            command = [*DENPEXD, "run", str(self.logs / "{job}" / "rank{rank}.log"), "-c", str(self.config)]
            self.process = self.place.start(command, **{"stdout": log, "stderr": log, **options})
        if "stderr" not in options:
            until(lambda: self.log.read_text().count("watching ") > told, 150, "the daemon is up")

    def end(self) -> tuple[int, float]:
        """Exit code and seconds after SIGTERM."""
        began = time.monotonic()
        self.process.terminate()
        code = self.process.wait(90)
        return code, time.monotonic() - began

    def metric(self, name: str) -> float:
        url = re.findall(r"metrics on (http://\S+)", self.log.read_text())[-1]
        with urllib.request.urlopen(url.rstrip("/") + "/metrics", timeout=60) as page:
            found = re.search(rf"^{re.escape(name)} (\S+)$", page.read().decode(), re.MULTILINE)
        return float(found[1]) if found else 0.0

    def train(self, job: str, error: bool = False) -> None:
        folder = self.logs / job
        folder.mkdir(exist_ok=True)
        for rank in range(2):
            with (folder / f"rank{rank}.log").open("a") as file:
                file.writelines(f"step {n} loss 2.31\n" for n in range(10))
                file.write(ERROR if error and rank == 0 else "")


def watched(place: Any, sinks: list[dict[str, Any]], **more: Any) -> Run:
    logs = place.folder / "logs"
    logs.mkdir()
    run = Run(place, place.config("denpexd", sinks, **more), logs, place.folder / "denpexd.log")
    run.train("first")
    return run


def deaf() -> tuple[socket.socket, str]:
    """A receiver that takes connections and never answers."""
    listener = socket.create_server(("127.0.0.1", 0))
    return listener, f"http://127.0.0.1:{listener.getsockname()[1]}/"


def ended_twice(run: Run) -> int:
    """Exit code after a second SIGTERM, sent when the first one is obeyed."""
    name = f"denpexd-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(f"\0{name}")
        systemd.settimeout(150)
        run.start(env={**os.environ, "NOTIFY_SOCKET": f"@{name}"})
        run.process.terminate()
        while b"STOPPING=1" not in systemd.recv(4096):
            pass
        code, _ = run.end()
    return code


@dataclass
class Ending:
    first: tuple[int, float]
    second: int
    waiting: float
    healthy: list[Any]
    late: list[Any]
    reloads: float
    good: float
    log: str


def ending(place: Any) -> Ending:
    """Two receivers, one of which never answers; 100 reloads, SIGTERM, twice SIGTERM, then all receivers are well."""
    listener, url = deaf()
    url_file, rules = place.folder / "url", place.folder / "rules"
    rules.mkdir()
    url_file.write_text(url)
    well, later = place.sink(), place.sink()
    sinks = [{"type": "webhook", "name": "deaf", "url_file": str(url_file)}, {"type": "webhook", "url": well.url}]
    run = watched(place, sinks, rules=[str(rules)])
    run.start()
    for n in range(100):
        (rules / "broken.yaml").write_text(": : [" if n < 99 else "")
        run.process.send_signal(signal.SIGHUP)
        time.sleep(0.01)
    (rules / "broken.yaml").unlink()
    run.process.send_signal(signal.SIGHUP)
    run.train("first", error=True)
    well.wait(150)
    good = 0.0

    def settled() -> bool:
        nonlocal good
        good = run.metric("denpexd_config_last_reload_successful")
        return good == 1.0

    until(settled, 150, "the last reload is taken")
    reloads = run.metric('denpexd_config_reloads_total{outcome="taken"}')
    waiting = run.metric("denpexd_outbox_pending")
    first = run.end()
    second = ended_twice(run)
    url_file.write_text(later.url)
    run.start()
    later.wait(150)
    time.sleep(3.0)
    run.end()
    listener.close()
    return Ending(first, second, waiting, well.alerts, later.alerts, reloads, good, run.log.read_text())


def test_a_daemon_ends_in_time_while_a_receiver_hangs(stories: Any) -> None:
    code, seconds = stories["ending"].first
    assert code == 0
    assert seconds < 45.0


def test_a_second_signal_ends_it_at_once(stories: Any) -> None:
    assert stories["ending"].second == 130


def test_what_a_hanging_receiver_did_not_take_arrives_after_two_restarts_once(stories: Any) -> None:
    story = stories["ending"]
    assert story.waiting >= 1
    assert len({alert.verdict["key"] for alert in [*story.healthy, *story.late]}) == 1
    repeat_keys = [alert.repeat_key for alert in story.late]
    assert len(repeat_keys) == len(set(repeat_keys)) >= 1
    assert len({a.repeat_key for a in story.healthy}) == len(story.healthy)


def test_a_hundred_reloads_in_a_second_end_with_the_last_state_of_the_files(stories: Any) -> None:
    story = stories["ending"]
    assert story.reloads >= 1
    assert story.good == 1.0
    assert "Traceback" not in story.log


@dataclass
class Readers:
    alerts: list[Any]
    alive: bool


def readers_gone(place: Any) -> Readers:
    """Whoever reads standard output and standard error goes away; then a job fails."""
    sink = place.sink()
    run = watched(place, [{"type": "webhook", "url": sink.url}, {"type": "console"}])
    run.start(stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    run.process.stdout.readline()
    run.process.stdout.close()
    time.sleep(5.0)
    run.train("first", error=True)
    sink.wait(150)
    time.sleep(3.0)
    return Readers(sink.alerts, run.process.poll() is None)


def test_a_daemon_whose_output_nobody_reads_goes_on(stories: Any) -> None:
    story = stories["readers_gone"]
    assert story.alive
    assert len({alert.verdict["key"] for alert in story.alerts}) == 1


@dataclass
class Echo:
    alerts: list[Any]
    log: str


def own_log(place: Any) -> Echo:
    """The daemon's own output is a file of the folder that it watches."""
    sink = place.sink()
    run = watched(place, [{"type": "webhook", "url": sink.url}, {"type": "console"}])
    run.log = run.logs / "first" / "rank2.log"
    run.start()
    run.train("first", error=True)
    sink.wait(150)
    time.sleep(4.0)
    until(lambda: quiet(run.log, 4.0), 150, "the log grows and grows")
    return Echo(sink.alerts, run.log.read_text())


def quiet(log: Path, seconds: float) -> bool:
    """Whether nothing is written meanwhile."""
    size = log.stat().st_size
    time.sleep(seconds)
    return log.stat().st_size == size


def test_its_own_output_in_the_watched_folder_feeds_no_loop(stories: Any) -> None:
    story = stories["own_log"]
    assert len({alert.verdict["key"] for alert in story.alerts}) == 1
    assert [alert.verdict["event"] for alert in story.alerts].count("opened") == 1
    assert story.log.count("takes this daemon's own output: it is not read") == 1
    assert all(alert.verdict["initiating_ranks"] == [0] for alert in story.alerts)


@dataclass
class Lost:
    told: dict[str, int]
    errors: float
    long: float
    alive: bool
    log: str


def state_lost(place: Any) -> Lost:
    """Somebody removes the state folder under a daemon at work, which may have 1 GiB of addresses, of which it usually
    asks for more, and meets a line of 100 MB.
    """
    sink = place.sink()
    run = watched(place, [{"type": "webhook", "url": sink.url}])
    run.start(preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30)))
    with (run.logs / "first" / "rank1.log").open("ab") as file:
        for _ in range(100):
            file.write(b"x" * 1_000_000)
    run.train("first", error=True)
    sink.wait(150)
    until(lambda: removed(place.folder / "denpexd.state"), 60, "the state is removed")
    run.train("second")
    time.sleep(6.0)
    run.train("second", error=True)
    until(lambda: len(sink.keys) == 2, 150, "the second job's alert")
    until(lambda: run.metric("denpexd_lines_truncated_total") >= 1, 150, "the long line is read")
    until(lambda: run.metric("denpexd_state_write_errors_total") >= 1, 150, "the state is missed")
    errors, long = run.metric("denpexd_state_write_errors_total"), run.metric("denpexd_lines_truncated_total")
    told = {str(a.verdict["job"]): 1 for a in sink.alerts}
    return Lost(told, errors, long, run.process.poll() is None, run.log.read_text())


def removed(state: Path) -> bool:
    """The daemon may be writing there."""
    shutil.rmtree(state, ignore_errors=True)
    return not (state / "denpexd.sqlite").exists()


def test_alerts_go_on_when_the_state_is_removed_and_it_is_said_once(stories: Any) -> None:
    story = stories["state_lost"]
    assert story.alive
    assert story.told == {"first": 1, "second": 1}
    assert story.errors > 0
    assert story.log.count("was replaced while in use") + story.log.count("cannot be written") == 1


def test_a_limit_of_addresses_and_an_endless_line_stop_nothing(stories: Any) -> None:
    story = stories["state_lost"]
    assert story.alive
    assert story.told["first"] == 1
    assert story.long == 1
    assert "Traceback" not in story.log


@dataclass
class Slow:
    """`busy`: when the disk was at work, `answers`: when /metrics was answered. Seconds of the monotonic clock."""

    alerts: list[Any]
    busy: list[tuple[float, float]]
    answers: list[float]


def slow_disk(place: Any) -> Slow:
    """Every fsync takes two seconds; meanwhile somebody asks and asks."""
    note = place.folder / "fsyncs"
    note.touch()
    source, library = place.folder / "slow.c", place.folder / "slow.so"
    source.write_text(SLOW_FSYNC)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(source)], check=True)
    sink = place.sink()
    run = watched(place, [{"type": "webhook", "url": sink.url}])
    run.start(env={**os.environ, "LD_PRELOAD": str(library), "SLOW_NOTE": str(note)})
    run.train("first", error=True)
    began, busy = time.monotonic(), list[tuple[float, float]]()
    answers = list[float]()

    def enough() -> bool:
        run.metric("denpexd_lines_total")
        answers.append(time.monotonic())
        lines = note.read_text().splitlines()
        busy[:] = [(float(a), float(b)) for a, b in map(str.split, lines) if float(a) > began]
        return len(busy) >= 4

    until(enough, 150, "the state is written")
    sink.wait(150)
    return Slow(sink.alerts, busy, answers)


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler to slow fsync down with")
def test_a_disk_that_takes_seconds_holds_up_neither_metrics_nor_alerts(stories: Any) -> None:
    story = stories["slow_disk"]
    assert len({alert.verdict["key"] for alert in story.alerts}) == 1
    answered = [span for span in story.busy if any(span[0] < at < span[1] for at in story.answers)]
    assert len(answered) > len(story.busy) / 2, (story.busy, story.answers)


STORIES: dict[str, tuple[int, Callable[[Any], Any]]] = {
    "ending": (60, ending),
    "readers_gone": (30, readers_gone),
    "own_log": (40, own_log),
    "state_lost": (40, state_lost),
    "slow_disk": (40, slow_disk),
}
