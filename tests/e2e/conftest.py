"""Stories of real processes: jobs, the daemon as a user starts it, and receivers of its alerts.

A test module names its stories in STORIES, with the seconds they take. They run beside each other, each in a folder of
its own, from the first test of this folder on; the tests that are their own story come first, then every other test
judges what its story brought back. So a quarter of an hour of waiting takes five minutes.
"""

import contextlib
import inspect
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from .waiting import DENPEXD, until

FOLDER = Path(__file__).parent
JOBS = FOLDER / "jobs"
BIN = Path(sys.executable).parent
AT_ONCE = 4  # they mostly wait; more would only make every start-up, and every alert, later on two cores
START_UP = 150.0  # seconds until a job must have got going: torch is slow to import on a loaded machine


@dataclass(frozen=True)
class Alert:
    """One POST as it came. `at`: Unix seconds."""

    at: float
    headers: Mapping[str, str]
    verdict: Mapping[str, Any]

    @property
    def repeat_key(self) -> str:
        return self.headers["Idempotency-Key"]


class Sink:
    """A webhook receiver on loopback. `script` holds the next statuses to answer; then 204."""

    def __init__(self, script: list[int]) -> None:
        self._script, self._alerts, self._news = list(script), list[Alert](), threading.Condition()
        sink = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                self.send_response(sink._take(dict(self.headers), json.loads(body)))
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}/"

    def _take(self, headers: Mapping[str, str], verdict: Mapping[str, Any]) -> int:
        with self._news:
            self._alerts.append(Alert(time.time(), headers, verdict))
            self._news.notify_all()
            return self._script.pop(0) if self._script else 204

    @property
    def alerts(self) -> list[Alert]:
        with self._news:
            return list(self._alerts)

    @property
    def keys(self) -> set[str]:
        return {alert.verdict["key"] for alert in self.alerts}

    def wait(self, seconds: float) -> bool:
        """Until something has come, at most that long."""
        with self._news:
            return self._news.wait_for(lambda: bool(self._alerts), seconds)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@dataclass
class Job:
    """torchrun with its ranks, and the folder it writes their output to."""

    launcher: subprocess.Popen[bytes]
    logs: Path

    def wait_for_line(self, text: str, rank: int = 0) -> None:
        """Until the rank has printed it; the time at which a job gets going is its own affair."""
        until(lambda: any(text in log.read_text() for log in self._outputs(rank)), START_UP, f"{text!r}")

    def last_line_at(self, rank: int | str = "*") -> float:
        """When that rank, or any, wrote its last line to standard output. Unix seconds."""
        return max(log.stat().st_mtime for log in self._outputs(rank))

    def _outputs(self, rank: int | str) -> list[Path]:
        return list(self.logs.glob(f"*/attempt_*/{rank}/stdout.log"))

    def pids(self) -> dict[int, int]:
        """Process of each rank that lives."""
        found = {}
        for environ in Path("/proc").glob("[0-9]*/environ"):
            try:
                parent = int((environ.parent / "stat").read_text().rpartition(") ")[2].split()[1])
                values = dict(v.split("=", 1) for v in environ.read_text().split("\0") if "=" in v)
            except (OSError, ValueError):
                continue
            if parent == self.launcher.pid and "RANK" in values:
                found[int(values["RANK"])] = int(environ.parent.name)
        return found

    def kill(self, rank: int) -> None:
        os.kill(self.pids()[rank], signal.SIGKILL)

    def stop(self) -> None:
        """End whatever is left; torchrun puts its ranks into sessions of their own."""
        if self.launcher.poll() is not None:
            return
        ranks = self.pids()
        self.launcher.kill()
        for pid in ranks.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.launcher.wait()


@dataclass
class Watcher:
    """`denpexd run` on folders, with one sink and a state that outlives it."""

    command: list[str]
    log: Path
    process: subprocess.Popen[bytes] = field(init=False)

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def kill(self) -> None:
        """As the kernel would."""
        self.process.kill()
        self.process.wait()

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(90)
        except subprocess.TimeoutExpired:
            self.kill()


class Place:
    """Where one story happens; ends what the story leaves behind."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._undo: list[Callable[[], None]] = []

    def sink(self, *script: int) -> Sink:
        sink = Sink(list(script))
        self._undo.append(sink.close)
        return sink

    def start(self, command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        """A process whose standard output is read through a pipe, if `options` do not say otherwise."""
        process = subprocess.Popen(command, **{"stdout": subprocess.PIPE, **options})
        self._undo.append(lambda: _end(process))
        return process

    def torchrun(
        self,
        script: str,
        *arguments: str,
        ranks: int = 2,
        launcher_log: str = "launcher.log",
        env: Mapping[str, str] | None = None,
    ) -> Job:
        """A job under torchrun whose ranks' output goes to `logs`. `launcher_log`: path below our folder. `env`: more
        variables.
        """
        logs = self.folder / "logs"
        logs.mkdir()
        redirects = ["--redirects", "3", "--log-dir", str(logs)]
        with (self.folder / launcher_log).open("wb") as out:
            command = self.launch(script, *arguments, ranks=ranks, options=redirects)
            launcher = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, **(env or {})})
        job = Job(launcher, logs)
        self._undo.append(job.stop)
        return job

    def launch(self, script: str, *arguments: str, ranks: int = 2, options: list[str] | None = None) -> list[str]:
        """The command line of such a job."""
        return [
            *(str(BIN / "torchrun"), "--standalone", "--nproc-per-node", str(ranks)),
            *(options or []),
            *(str(JOBS / script), *arguments),
        ]

    def config(self, name: str, sinks: list[dict[str, Any]], **more: Any) -> Path:
        """A configuration file with these sinks, any free port and a state of its own."""
        path = self.folder / f"{name}.yaml"
        settings = {"state_dir": str(self.folder / f"{name}.state"), "web": {"port": 0}, "sinks": sinks, **more}
        path.write_text(yaml.safe_dump(settings))
        return path

    def watch(self, logs: Path, sink: Sink, name: str = "denpexd", **more: Any) -> Watcher:
        """The daemon on a folder of logs; `more` goes into its configuration."""
        config = self.config(name, [{"type": "webhook", "url": sink.url}], **more)
        watcher = Watcher([*DENPEXD, "run", str(logs), "-c", str(config)], self.folder / f"{name}.log")
        watcher.start()
        self._undo.append(watcher.stop)
        return watcher

    def clear(self) -> None:
        for undo in reversed(self._undo):
            undo()


class Stories:
    """The stories of the chosen tests, running or told."""

    def __init__(self, folder: Path, told: Mapping[str, Callable[[Place], Any]]) -> None:
        self._pool = ThreadPoolExecutor(AT_ONCE)
        self._running = {name: self._pool.submit(_tell, story, folder / name) for name, story in told.items()}

    def __getitem__(self, name: str) -> Any:
        """What the story brought back, when it is over; raises what it raised."""
        running: Future[Any] = self._running[name]
        return running.result()

    def close(self) -> None:
        self._pool.shutdown(cancel_futures=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill it if it still runs, and close our end of its output."""
    process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _tell(story: Callable[[Place], Any], folder: Path) -> Any:
    folder.mkdir()
    place = Place(folder)
    try:
        return story(place)
    finally:
        place.clear()


@pytest.fixture(scope="session", autouse=True)
def told_meanwhile(request: pytest.FixtureRequest) -> None:
    """The stories begin with the first test of this folder; of several test processes only in one, by its need."""
    if "PYTEST_XDIST_WORKER" not in os.environ:
        request.getfixturevalue("stories")


@pytest.fixture(scope="session")
def stories(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stories]:
    """All stories of the chosen tests, the longest first."""
    chosen = {item.module for item in request.session.items if _judges_a_story(item)}
    known = [entry for module in chosen for entry in getattr(module, "STORIES", {}).items()]
    longest_first = sorted(known, key=lambda entry: -entry[1][0])
    running = Stories(tmp_path_factory.mktemp("stories"), {name: story for name, (_, story) in longest_first})
    yield running
    running.close()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that wait come first, but those that wait for a story last: while they do, nothing else happens."""
    items.sort(key=lambda item: 2 if _judges_a_story(item) else int(FOLDER not in item.path.parents))


def _judges_a_story(item: Any) -> bool:
    return "stories" in inspect.signature(item.obj).parameters


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    """A place for a test that is its own story."""
    here = Place(tmp_path)
    yield here
    here.clear()
