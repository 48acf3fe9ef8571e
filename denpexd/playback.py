"""What the demo plays on: a recorded job as if it ran now, and a receiver of the webhooks that it causes.

The job's lines go into per-rank files, and its processes answer as they did then. The receiver takes every request.
"""

import asyncio
import json
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

from denpexd.clock import Clock
from denpexd.core.events import UNKNOWN_RANK, Event, Exit, Fact, Joined, Want
from denpexd.recording import Printed, Recording

LIMIT = 4 * 1024**2


def shortened(recording: Recording, keep: float) -> Recording:
    """The same job with pauses above `keep` seconds shortened; the longer of two stays the longer."""
    times = sorted({0.0, *(p.t for p in recording.lines), *(e.t for e in recording.exits)})
    moved = [0.0]
    for before, after in pairwise(times):
        pause = after - before
        moved.append(moved[-1] + (pause if pause <= keep else keep * (1.0 + math.log(pause / keep))))

    def at(t: float) -> float:
        left = bisect_right(times, t) - 1
        if left + 1 == len(times):
            return moved[left] + t - times[left]
        share = (t - times[left]) / (times[left + 1] - times[left])
        return moved[left] + share * (moved[left + 1] - moved[left])

    return replace(
        recording,
        observe_until=at(recording.observe_until),
        lines=[replace(p, t=at(p.t)) for p in recording.lines],
        looks=[replace(look, t=at(look.t)) for look in recording.looks],
        states=[replace(fact, t=at(fact.t)) for fact in recording.states],
        dumps=[replace(dump, t=at(dump.t)) for dump in recording.dumps],
        exits=[replace(e, t=at(e.t)) for e in recording.exits],
    )


class Playback:
    """Writes a recording into `folder`, one file a rank (two where it kept stdout and stderr apart)."""

    def __init__(self, recording: Recording, folder: Path, clock: Clock) -> None:
        self.recording, self._folder, self._clock = recording, folder, clock
        self._apart = len({p.stream for p in recording.lines if p.rank != UNKNOWN_RANK}) > 1
        self._began: float | None = None
        self.end = max([0.0, *(p.t for p in recording.lines), *(e.t for e in recording.exits)])

    @property
    def t(self) -> float:
        """Seconds since the job began; 0 before."""
        return 0.0 if self._began is None else self._clock.now() - self._began

    @property
    def running(self) -> bool:
        """The job has begun."""
        return self._began is not None

    def prepare(self) -> list[Path]:
        """Make the files, empty, as a launcher does; they are what the daemon is given."""
        self._folder.mkdir(parents=True, exist_ok=True)
        ranks = range(self.recording.world_size or 0)
        streams = sorted({p.stream for p in self.recording.lines if p.rank != UNKNOWN_RANK})
        files = {self._file(rank, stream) for rank in ranks for stream in streams}
        files |= {self._file(p.rank, p.stream) for p in self.recording.lines}
        for file in files:
            file.touch()
        return sorted(files)

    async def run(self) -> None:
        """Print line by line when it is time, until the last one."""
        self._began = self._clock.now()
        for t, lines in groupby(self.recording.lines, key=lambda line: line.t):
            await self._clock.sleep(max(0.0, t - self.t))
            await asyncio.to_thread(self._print, list(lines))

    def gone(self, t: float) -> set[int]:
        """Ranks whose process has ended by then; with the launcher, all have."""
        ended = {e.rank for e in self.recording.exits if e.t <= t}
        return set(range(self.recording.world_size or 0)) if UNKNOWN_RANK in ended else ended

    def _file(self, rank: int, stream: str) -> Path:
        if rank == UNKNOWN_RANK:
            return self._folder / "launcher.log"
        return self._folder / (f"rank{rank}.{stream}.log" if self._apart else f"rank{rank}.log")

    def _print(self, lines: Iterable[Printed]) -> None:
        for line in lines:
            # A progress bar is drawn behind its carriage return; no newline ends it.
            end = "" if line.text.startswith("\r") else "\n"
            with self._file(line.rank, line.stream).open("ab", buffering=0) as file:
                file.write((line.text + end).encode(errors="replace"))


class RecordedCollector:
    """Answers wishes for evidence from the recording, as evidence.collect.Collector does from live processes.

    `asked` holds the wishes, newest last; `counts` and `seconds` as in Collector.
    """

    def __init__(self, playback: Playback, clock: Clock) -> None:
        self._playback, self._clock = playback, clock
        self._seen: set[int] = set()
        self._gone: set[int] = set()
        self.asked: list[Want] = []
        self.counts: Counter[tuple[str, str]] = Counter()
        self.seconds, self.pause = {"process": 0.0, "stacks": 0.0}, 0.0

    async def attach(self, paths: Iterable[Path]) -> dict[Path, int]:
        """Nothing: no process holds the files, their names tell the ranks."""
        return {}

    async def watch(self) -> list[Event]:
        """Ranks that came or went since the last call."""
        if not self._playback.running:
            return []
        new = set(range(self._playback.recording.world_size or 0)) - self._seen
        gone = self._playback.gone(self._playback.t) - self._gone
        self._seen |= new
        self._gone |= gone
        return [
            *(self._joined(rank) for rank in sorted(new)),
            *(Exit(self._clock.now(), rank) for rank in sorted(gone)),
        ]

    async def collect(self, want: Want) -> list[Event]:
        """What the wanted ranks would have shown at this moment."""
        self.asked.append(want)
        if want.kind == "dumps":
            return []  # those that were recorded come with the stacks
        recording, t, now = self._playback.recording, self._playback.t, self._clock.now()
        gone = self._playback.gone(t)
        events: list[Event] = []
        for rank in want.ranks or range(recording.world_size or 0):
            if rank in gone:
                events.append(Exit(now, rank))
                self.counts[want.kind, "gone"] += 1
                continue
            facts: list[Fact] = [replace(fact, t=now) for fact in recording.states if fact.rank == rank and fact.t <= t]
            events += [self._joined(rank), *facts]
            if want.kind == "stacks":
                events += [replace(look, t=now) for look in recording.answer(rank, t)]
                events += [replace(dump, t=now) for dump in recording.dumped(rank, t)]
            self.counts[want.kind, "ok"] += 1
        return events

    def _joined(self, rank: int) -> Joined:
        return Joined(self._clock.now(), rank, world_size=self._playback.recording.world_size)


@dataclass(frozen=True, slots=True)
class Received:
    """One request as it came; `headers` in their order and spelling."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str:
        """The value of a header, "" if it is absent."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), "")

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Receiver:
    """Use as an asynchronous context manager; `received` grows while it is open."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self._server: asyncio.Server | None = None
        self._port = 0

    @property
    def url(self) -> str:
        """Where to send to."""
        return f"http://127.0.0.1:{self._port}/alerts"

    async def __aenter__(self) -> "Receiver":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.received.append(await _read(reader))
            writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
            await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError, ValueError):
            pass  # whoever speaks no HTTP gets no answer
        finally:
            writer.close()


async def _read(reader: asyncio.StreamReader) -> Received:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").rstrip("\r\n").split("\r\n")
    method, path, _ = first.split(" ")
    headers = tuple((name.strip(), value.strip()) for name, _, value in (line.partition(":") for line in lines))
    size = next((int(value) for name, value in headers if name.lower() == "content-length"), 0)
    if not 0 <= size <= LIMIT:
        raise ValueError(f"a body of {size} bytes")
    return Received(method, path, headers, await reader.readexactly(size))
