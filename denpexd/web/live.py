"""Server-sent events: what changed since the last second, made once for all who listen.

Everything that grows with ranks happens in a thread; the event loop only hands finished bytes to a bounded number of
listeners. Nobody listens: nothing is done. A listener that does not read is let go; it comes back and takes up where
it was (Last-Event-ID) or, where that is too long ago, is told everything anew.
"""

import asyncio
import json
import secrets
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from denpexd.clock import Clock
from denpexd.web.board import Board, Run, board
from denpexd.web.view import RANK_STATES, JobView, Verdict, View

MOST_LISTENERS = 32
QUEUE = 64  # events that may wait for one listener
KEPT, KEPT_BYTES = 512, 1 << 20  # of events that may be taken up again
PERIOD = 1.0  # seconds between two looks; five times what a look took, if that is more
BEAT = 15.0  # seconds without an event after which a sign of life is sent
LIFETIME = 50.0  # seconds; the server ends answers that last for a minute, and the listener comes back
LATEST = 200  # incidents that are compared

SUMMARY = ("job", "attempt", "step", "step_seconds", "stall_seconds", "phase", "world_size", "counts")
INCIDENT = (
    "key", "job", "failure", "title", "category", "severity", "certainty", "state", "event", "revision",
    "initiating_ranks", "opened_t", "updated_t",
)  # fmt: skip


class TooManyError(Exception):
    """All places are taken."""


@dataclass(slots=True, eq=False)
class _Listener:
    """`job`: whose ranks it is told of, too; `fresh`: it knows nothing yet."""

    job: str | None
    fresh: bool = True
    lost: bool = False
    queue: asyncio.Queue[bytes] = field(default_factory=lambda: asyncio.Queue(QUEUE))

    def give(self, message: bytes) -> None:
        try:
            self.queue.put_nowait(message)
        except asyncio.QueueFull:
            self.lost = True


@dataclass(frozen=True, slots=True)
class _Event:
    number: int
    job: str | None
    message: bytes


class Live:
    """The events of one daemon; `stream` is one listener."""

    def __init__(self, view: View, pool: ThreadPoolExecutor, clock: Clock) -> None:
        self._view, self._pool, self._clock = view, pool, clock
        self._listeners: set[_Listener] = set()
        self._task: asyncio.Task[None] | None = None
        self._wake = asyncio.Event()
        self._epoch, self._number = secrets.token_hex(4), 0
        self._events: deque[_Event] = deque()
        self._bytes = 0
        self._jobs: dict[str, dict[str, object]] = {}
        self._boards: dict[str, Board] = {}
        self._incidents: dict[str, tuple[object, object]] = {}
        self._pace: dict[str, float] = {}

    def close(self) -> None:
        """Let everybody go, as the daemon ends."""
        for listener in self._listeners:
            listener.lost = True
            while not listener.queue.empty():
                listener.queue.get_nowait()
            listener.give(b"")
        if self._task is not None:
            self._task.cancel()

    def join(self, job: str | None, last_id: str) -> AsyncIterator[bytes]:
        """One listener's events as bytes; TooManyError where there is no place left."""
        if len(self._listeners) >= MOST_LISTENERS:
            raise TooManyError
        listener = _Listener(job)
        self._resume(listener, last_id)
        return self._stream(listener)

    async def _stream(self, listener: _Listener) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        until = loop.time() + LIFETIME
        if len(self._listeners) >= MOST_LISTENERS:  # many joined before the first of them began to listen
            yield b"retry: 10000\n\n"
            return
        self._listeners.add(listener)
        self._wake.set()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._look_forever(), name="events")
        try:
            yield b"retry: 1000\n\n"
            while not listener.lost and (left := until - loop.time()) > 0:
                try:
                    message = await asyncio.wait_for(listener.queue.get(), min(left, BEAT))
                except TimeoutError:
                    message = b": still here\n\n"
                if message:
                    yield message
        finally:
            self._listeners.discard(listener)

    def _resume(self, listener: _Listener, last_id: str) -> None:
        """Events that were missed, if all of them are still kept."""
        epoch, _, number = last_id.partition("-")
        if epoch != self._epoch or not (number.isascii() and number.isdigit() and len(number) < 16):
            return
        at = int(number)
        if at > self._number or (self._events and at < self._events[0].number - 1):
            return
        missed = [e for e in self._events if e.number > at and e.job in (None, listener.job)]
        known = listener.job is None or listener.job in self._boards
        if known and len(missed) < QUEUE:
            listener.fresh = False
            for event in missed:
                listener.give(event.message)

    async def _look_forever(self) -> None:
        loop = asyncio.get_running_loop()
        while self._listeners:
            self._wake.clear()
            began = loop.time()
            watched = {listener.job for listener in self._listeners if listener.job is not None}
            newest = self._view.incidents(None, LATEST)
            events = await loop.run_in_executor(self._pool, self._look, watched, newest)
            self._hand_out(events)
            wait = max(PERIOD, 5 * (loop.time() - began))
            await self._wait(wait)

    async def _wait(self, seconds: float) -> None:
        """Somebody who just came need not wait for the next look."""
        sleeping = asyncio.ensure_future(self._clock.sleep(seconds))
        waking = asyncio.ensure_future(self._wake.wait())
        try:
            await asyncio.wait({sleeping, waking}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            sleeping.cancel()
            waking.cancel()

    def _hand_out(self, events: Iterable[_Event]) -> None:
        old = [listener for listener in self._listeners if not listener.fresh]
        for event in events:
            self._events.append(event)
            self._bytes += len(event.message)
            for listener in old:
                if event.job in (None, listener.job):
                    listener.give(event.message)
        while self._events and (len(self._events) > KEPT or self._bytes > KEPT_BYTES):
            self._bytes -= len(self._events.popleft().message)
        for listener in [listener for listener in self._listeners if listener.fresh]:
            if listener.job in self._boards or listener.job not in self._jobs:  # else the next look knows it
                listener.fresh = False
                listener.give(self._everything(listener.job))
        for listener in [listener for listener in self._listeners if listener.lost]:
            self._listeners.discard(listener)

    # --- in the thread ----------------------------------------------------------------------------------------------

    def _look(self, watched: set[str], incidents: Sequence[Verdict]) -> list[_Event]:
        """What is not as at the last look, as events; remembers how it is now."""
        events: list[_Event] = []

        def tell(kind: str, job: str | None, value: object) -> None:
            self._number += 1
            events.append(_Event(self._number, job, self._message(kind, value)))

        jobs = {job.job: job for job in self._view.jobs()}
        self._changed_jobs(jobs, tell)
        for name in watched & jobs.keys():
            made, before = board(jobs[name]), self._boards.get(name)
            self._boards[name] = made
            if runs := made.runs(before):
                whole = not made.is_successor(before)
                tell("board" if whole else "ranks", name, _board(made) if whole else {"job": name, "runs": _runs(runs)})
            if (points := self._view.pace(name)) and points[-1].t != self._pace.get(name):
                self._pace[name] = points[-1].t
                tell("pace", name, {"job": name, "point": list(points[-1])})
        for name in self._boards.keys() - watched:  # nobody looks: whoever comes next is told all of it
            del self._boards[name]
            self._pace.pop(name, None)
        seen = {str(v["key"]): (v["revision"], v["updated_t"]) for v in incidents}
        for verdict in incidents:
            key = str(verdict["key"])
            if self._incidents and self._incidents.get(key) != seen[key]:
                tell("incident", None, _brief(verdict))
        self._incidents = seen or {"": (0, 0)}
        return events

    def _changed_jobs(self, jobs: Mapping[str, JobView], tell: Callable[[str, str | None, object], None]) -> None:
        now = {name: summary(job) for name, job in jobs.items()}
        changed = [now[name] for name in now if _still(now[name]) != _still(self._jobs.get(name, {}))]
        gone = [name for name in self._jobs if name not in now]
        self._jobs = now
        if changed or gone:
            tell("jobs", None, {"jobs": changed, "gone": gone})

    def _everything(self, job: str | None) -> bytes:
        """What somebody who knows nothing is told, as one event."""
        made = self._boards.get(job) if job is not None else None
        value = {"jobs": list(self._jobs.values()), "board": None if made is None else _board(made)}
        return self._message("all", value)

    def _message(self, kind: str, value: object) -> bytes:
        data = json.dumps(value, separators=(",", ":"))  # ASCII: no line end or lone surrogate can break the framing
        return f"id: {self._epoch}-{self._number}\nevent: {kind}\ndata: {data}\n\n".encode()


def summary(job: JobView) -> dict[str, object]:
    """A job without its ranks, which are counted."""
    return {name: getattr(job, name) for name in SUMMARY}


def _still(known: Mapping[str, object]) -> Mapping[str, object]:
    """A stall that only grows is no change: who is shown it can count."""
    stall = known.get("stall_seconds")
    return {**known, "stall_seconds": bool(stall)}


def _brief(verdict: Verdict) -> dict[str, object]:
    return {name: verdict.get(name) for name in INCIDENT}


def _board(made: Board) -> dict[str, object]:
    return {
        "job": made.job,
        "attempt": made.attempt,
        "states": RANK_STATES,
        "ranks": _spans(made.ranks),
        "runs": _runs(made.runs()),
    }


def _runs(runs: Iterable[Run]) -> list[object]:
    return [run.packed() for run in runs]


def _spans(ranks: Iterable[int]) -> list[list[int]]:
    """Numbers as [first, last] of each unbroken row of them."""
    found: list[list[int]] = []
    for rank in ranks:
        if found and rank == found[-1][1] + 1:
            found[-1][1] = rank
        else:
            found.append([rank, rank])
    return found
