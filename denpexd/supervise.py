"""Keeps the tasks of the daemon going: a fault in one is said, counted and begun again, not for ever.

A crash of the process would be worse: it would come back to the same line, and crash again.
"""

import asyncio
import faulthandler
import logging
import sys
from collections import Counter
from collections.abc import Callable, Coroutine

from denpexd.clock import Clock

log = logging.getLogger(__name__)

FIRST_WAIT = 1.0
MOST, WITHIN = 5, 600.0  # so many failures of one task within so many seconds are too many
STUCK = 20.0  # seconds without a turn of the event loop; systemd's watchdog comes later


class Supervisor:
    """`restarts`: how often a task was begun again, by its name."""

    def __init__(self, clock: Clock) -> None:
        self.restarts: Counter[str] = Counter()
        self._clock = clock

    async def keep(self, name: str, work: Callable[[], Coroutine[object, object, None]]) -> None:
        """Do the work until it is done; after a failure again, with growing waits; raises the one that is too many."""
        failures: list[float] = []
        while True:
            try:
                await work()
                return
            except Exception as error:
                now = self._clock.now()
                failures = [*(t for t in failures if now - t < WITHIN), now]
                if len(failures) > MOST:
                    minutes = WITHIN / 60
                    log.critical("%s failed %d times in %.0f minutes: the daemon ends", name, len(failures), minutes)
                    raise
                wait = FIRST_WAIT * 2.0 ** (len(failures) - 1)
                log.exception("%s failed (%s) and begins again in %.0f s", name, type(error).__name__, wait)
                self.restarts[name] += 1
            await self._clock.sleep(wait)


async def tell_where_it_is_stuck(clock: Clock, after: float = STUCK) -> None:
    """Where the event loop stands still for that many seconds, all stacks go to standard error; until cancelled."""
    if sys.__stderr__ is None:  # closed: its number may be that of any other file by now
        await asyncio.Event().wait()
    try:
        while True:
            faulthandler.dump_traceback_later(after, file=2)
            await clock.sleep(after / 4)
    finally:
        faulthandler.cancel_dump_traceback_later()
