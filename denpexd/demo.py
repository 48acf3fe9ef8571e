"""`denpexd demo`: a recorded job is played live into log files, and the real daemon has to explain it.

Nothing is staged but the job: the daemon finds, reads and judges the files as always and alarms a webhook, here a
receiver of our own. Only the processes are not there; their recorded stacks come through the collector's interface.
"""

import asyncio
import difflib
import io
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from denpexd.clock import FastClock
from denpexd.demo_screen import Screen
from denpexd.errors import CaseError, SettingsError
from denpexd.playback import Playback, Receiver, RecordedCollector, shortened
from denpexd.recording import Recording, read_case
from denpexd.settings import Settings, load

JOB = "demo"
PORT = 9464
SPEEDS = (0.5, 60.0)
ROW = 1.0  # real seconds between two rows of the rank grid
LOOK = 0.2  # real seconds between two looks at what came out
SETTLE = 14.0  # seconds of the job after the first alert in which it may still be corrected
PATIENCE = 150.0  # seconds of the job after its last line within which a verdict must come


@dataclass(frozen=True, slots=True)
class Show:
    """One recording and the truth about it; `failure` None: nothing is wrong, for the reason `why`."""

    name: str
    title: str
    origin: str
    stack: str
    shortened: bool
    recording: Recording
    failure: str | None
    initiating: tuple[int, ...]
    why: str


def catalogue() -> list[tuple[str, str]]:
    """Name and title of every incident that can be played, the default first."""
    return [(name, str(_yaml(_home() / name / "case.yaml")["title"])) for name in _yaml(_home() / "expected.yaml")]


def find(incident: str | None) -> Show:
    """The recording of that name, or the default; CaseError names those there are."""
    truths = _yaml(_home() / "expected.yaml")
    name = incident or next(iter(truths))
    if name not in truths:
        near = difflib.get_close_matches(name, truths, 1, 0.3)
        hint = f"did you mean {near[0]}?" if near else "see: denpexd demo --list"
        raise CaseError(f"no recorded incident {name!r}; {hint}")
    truth, about = truths[name], _yaml(_home() / name / "case.yaml")
    recording = read_case(_home() / name)
    if cut := "shorten_from" in about:
        recording = shortened(recording, float(about["shorten_from"]))
    ranks = tuple(int(rank) for rank in truth.get("initiating_ranks", ()))
    title, origin, stack = (str(about[key]) for key in ("title", "origin", "stack"))
    return Show(name, title, origin, stack, cut, recording, truth["failure"], ranks, str(truth.get("why", "")))


async def play(incident: str | None, *, speed: float, keep: bool, color: bool) -> int:
    """Play it `speed` times faster than it happened; 0 if the daemon said what was expected, 1 if not.

    `keep` leaves the daemon and its console running until SIGINT or SIGTERM. 130: ended by a signal before the end.
    """
    from denpexd.app import Mode, run

    if not SPEEDS[0] <= speed <= SPEEDS[1]:
        raise SettingsError(f"--speed is between {SPEEDS[0]:g} and {SPEEDS[1]:g}, not {speed:g}")
    show, clock, console, over = find(incident), FastClock(speed), io.StringIO(), asyncio.Event()
    address: asyncio.Queue[str] = asyncio.Queue()
    with _direct(), tempfile.TemporaryDirectory(prefix="denpexd-demo-") as folder:
        async with Receiver() as receiver:
            playback = Playback(show.recording, Path(folder) / "logs", clock)
            collector = RecordedCollector(playback, clock)
            mode = Mode(
                stream=console,
                color=color,
                clock=clock,
                collector=collector,
                until=lambda _: over.is_set(),
                listening=address.put_nowait,
                any_port=True,
            )
            settings = _settings(Path(folder), playback.prepare(), receiver.url)
            daemon = asyncio.create_task(run(settings, mode))
            stage = _Stage(show, clock, speed, playback, collector, receiver, console, Screen(sys.stdout, color=color))
            story = asyncio.create_task(stage.tell(address, Path(folder), keep=keep))
            return await _both(daemon, story, over, keep=keep)


async def _both(daemon: "asyncio.Task[int]", story: "asyncio.Task[int]", over: asyncio.Event, *, keep: bool) -> int:
    """Wait for the end of the story, or of the daemon where that comes first: its own error, or a signal."""
    try:
        await asyncio.wait({daemon, story}, return_when=asyncio.FIRST_COMPLETED)
        if daemon.done():
            await daemon
            return 130
        try:
            code = await story
        except httpx.TransportError:  # it stops answering while it stops
            await daemon
            return 130
        if keep:
            await daemon
        return code
    finally:
        over.set()
        story.cancel()
        await asyncio.gather(daemon, story, return_exceptions=True)


class _Stage:
    """Plays, watches through the daemon's public API what it makes of that, and tells it on the screen."""

    def __init__(
        self,
        show: Show,
        clock: FastClock,
        speed: float,
        playback: Playback,
        collector: RecordedCollector,
        receiver: Receiver,
        console: io.StringIO,
        screen: Screen,
    ) -> None:
        self._show, self._clock, self._speed = show, clock, speed
        self._playback, self._collector = playback, collector
        self._receiver, self._console, self._screen = receiver, console, screen
        self._shown = 0
        self._alarmed_at: float | None = None

    async def tell(self, address: asyncio.Queue[str], folder: Path, *, keep: bool) -> int:
        """Everything from the title to the end; the exit code. `keep`: the daemon goes on, in real time."""
        show, screen = self._show, self._screen
        screen.title(show.name, show.title)
        async with httpx.AsyncClient(base_url=await address.get(), trust_env=False, timeout=60.0) as client:
            pace = f"{self._speed:g} times faster" + (", long pauses shortened" if show.shortened else "")
            ranks = show.recording.world_size or 0
            screen.places(f"{ranks} ranks, {show.origin} ({show.stack}), {pace}", folder, str(client.base_url))
            await self._ready(client)
            job = asyncio.create_task(self._playback.run())
            try:
                await self._watch(client, job)
            finally:
                job.cancel()
            await job
            code = await self._sum_up(client)
        if keep:
            self._clock.run_at(1.0)
            self._screen.kept()
        return code

    async def _ready(self, client: httpx.AsyncClient) -> None:
        while (await client.get("readyz")).status_code != httpx.codes.OK:
            await self._clock.sleep(0.1)

    async def _watch(self, client: httpx.AsyncClient, job: "asyncio.Task[None]") -> None:
        """Rows of the rank grid, and reports as they come, until everything is said."""
        row_at, asked = self._clock.now(), 0
        while not (job.done() and self._over()):
            if self._clock.now() >= row_at:
                row_at += ROW * self._speed
                jobs = (await client.get("api/v1/jobs")).json()["jobs"]
                wants = self._collector.asked[asked:]
                asked += len(wants)
                self._screen.row(self._playback.t, next((j for j in jobs if j["job"] == JOB), None), wants)
            self._reports()
            await self._clock.sleep(LOOK * self._speed)

    def _reports(self) -> None:
        """Print what the console sink has printed since."""
        text = self._console.getvalue()[self._shown :]
        self._shown += len(text)
        if text:
            self._screen.report(text)
        if self._receiver.received and self._alarmed_at is None:
            self._alarmed_at = self._playback.t

    def _over(self) -> bool:
        t, recording = self._playback.t, self._show.recording
        if self._show.failure is None and not self._receiver.received:
            return t > max(recording.observe_until, self._playback.end + SETTLE)
        if self._alarmed_at is not None:
            return t > max(self._alarmed_at, self._playback.end) + SETTLE
        return t > self._playback.end + PATIENCE

    async def _sum_up(self, client: httpx.AsyncClient) -> int:
        """The alert, the addresses, and whether it was right."""
        self._reports()
        for request in self._receiver.received[-1:]:
            self._screen.alert(request, len(self._receiver.received))
        metrics = (await client.get("metrics")).text
        incidents = (await client.get("api/v1/incidents")).json()["incidents"]
        self._screen.asked(str(client.base_url), metrics, len(incidents))
        return self._judge(incidents)

    def _judge(self, incidents: Sequence[Mapping[str, Any]]) -> int:
        show, said = self._show, [(v["failure"], tuple(v["initiating_ranks"])) for v in incidents]
        if show.failure is None:
            self._screen.healthy(not said, show.why, said)
            return 0 if not said and not self._receiver.received else 1
        right = (show.failure, show.initiating) in said and bool(self._receiver.received)
        self._screen.truth(right, show.failure, show.initiating, said)
        return 0 if right else 1


def _settings(folder: Path, files: Sequence[Path], webhook: str) -> Settings:
    """Console and webhook, state and logs below `folder`; nothing of the user's own configuration."""
    flags = {
        "job": JOB,
        "paths": [str(file) for file in files],
        "state_dir": str(folder / "state"),
        "sinks": [{"type": "console"}, {"type": "webhook", "url": webhook}],
        "web": {"port": PORT},
    }
    return load(None, overrides=flags, environ={})


@contextmanager
def _direct() -> Iterator[None]:
    """Loopback is never reached through a proxy of the environment."""
    before = {name: os.environ.get(name) for name in ("no_proxy", "NO_PROXY")}
    for name, value in before.items():
        os.environ[name] = f"{value},127.0.0.1" if value else "127.0.0.1"
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


def _home() -> Path:
    return Path(__file__).parent / "recordings"


def _yaml(path: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as wrong:
        raise CaseError(f"{path}: cannot be read ({wrong}); reinstall denpexd") from None
    return content
