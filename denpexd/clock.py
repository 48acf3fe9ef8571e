"""The only place where denpexd asks what time it is or waits.

Everything else takes time as an argument or is given a Clock, so that tests and replay run in simulated time.
"""

import asyncio
import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Two axes: `now` is monotonic seconds for durations, `wall` is Unix seconds for people and other programs."""

    def now(self) -> float: ...
    def wall(self) -> float: ...
    async def sleep(self, seconds: float) -> None: ...


class SystemClock:
    """The machine's clocks."""

    def now(self) -> float:
        return time.monotonic()

    def wall(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class SteadyClock(SystemClock):
    """`now` gives Unix seconds that never jump: the wall clock at its making, moved on by the monotonic one.

    One axis for everything a daemon observes, comparable across its restarts.
    """

    def __init__(self) -> None:
        self._zero = time.time() - time.monotonic()

    def now(self) -> float:
        return self._zero + time.monotonic()


class FastClock:
    """Real time, `speed` times faster from now on: showing a job takes less time than the job took.

    Both axes are Unix seconds; they run ahead of the machine's clock while `speed` is above 1.
    """

    def __init__(self, speed: float) -> None:
        self._speed, self._then, self._zero = speed, time.monotonic(), time.time()

    def now(self) -> float:
        return self._zero + (time.monotonic() - self._then) * self._speed

    def wall(self) -> float:
        return self.now()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds / self._speed)

    def run_at(self, speed: float) -> None:
        """Go on at another speed, without a jump; who sleeps already wakes when they would have."""
        self._zero, self._then = self.now(), time.monotonic()
        self._speed = speed


class ManualClock:
    """A clock that moves only when a test (or replay) moves it; sleepers wake in order of their time."""

    def __init__(self, start: float = 0.0, wall: float = 1_700_000_000.0) -> None:
        self._now, self._offset = start, wall - start
        self._sleepers: list[tuple[float, asyncio.Event]] = []

    def now(self) -> float:
        return self._now

    def wall(self) -> float:
        return self._now + self._offset

    async def sleep(self, seconds: float) -> None:
        if seconds <= 0:
            await asyncio.sleep(0)
            return
        woken = asyncio.Event()
        self._sleepers.append((self._now + seconds, woken))
        await woken.wait()

    async def advance(self, seconds: float) -> None:
        """Move time forward and let everything that was due run."""
        end = self._now + seconds
        while due := sorted((t for t, _ in self._sleepers if t <= end)):
            self._now = max(self._now, due[0])
            for t, woken in list(self._sleepers):
                if t <= self._now:
                    self._sleepers.remove((t, woken))
                    woken.set()
            await self._settle()
        self._now = end
        await self._settle()

    @staticmethod
    async def _settle() -> None:
        for _ in range(20):
            await asyncio.sleep(0)


def breathe() -> None:
    """From a thread with much to compute: let the event loop have the interpreter, if it wants it."""
    time.sleep(0)


def iso(wall: float) -> str:
    """Unix seconds as an ISO 8601 time in UTC, for messages and rows."""
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
