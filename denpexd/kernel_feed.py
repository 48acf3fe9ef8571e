"""Brings what the kernel of this node prints to the job whose processes live here.

Lines go through the signals that recognise them in logs; only what signals and launcher patterns say about the machine
passes on, because the kernel is no rank and its chatter no sign of life of the job.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping

from denpexd.core.events import Event, Fact, Hit
from denpexd.core.rule import Catalog
from denpexd.daemon import Daemon
from denpexd.evidence.kernel import MOST, Source
from denpexd.evidence.places import Places
from denpexd.evidence.procs import RankProcess

LOOK = 1.0


class KernelFeed:
    """`ranks`: those that live here now."""

    def __init__(
        self, source: Source, places: Places, daemon: Daemon, ranks: Callable[[], Mapping[int, RankProcess]]
    ) -> None:
        self._source, self._places, self._daemon, self._ranks = source, places, daemon, ranks
        self._waiting: deque[str] = deque(maxlen=MOST)  # until it is known whose they are

    async def forever(self) -> None:
        while True:
            await self.look()
            await self._daemon.clock.sleep(LOOK)

    async def look(self) -> None:
        """Take what is there, and tell it to the job if there is one."""
        self._waiting += await self._source.take()
        daemon, job = self._daemon, self._daemon.evidence_job()
        if job is None:
            return
        ranks, now = self._ranks(), daemon.clock.now()
        if placed := await asyncio.to_thread(self._places.news, ranks, now):
            await daemon.handle(daemon.pipeline.evidence(job, placed))
        if self._waiting:
            data = "".join(f"{line}\n" for line in self._waiting).encode()
            self._waiting.clear()
            catalog = daemon.pipeline.catalog
            await daemon.handle(
                daemon.pipeline.beside(job, self._source.name, data, now, lambda event: speaks(event, catalog))
            )


def speaks(event: Event, catalog: Catalog) -> bool:
    """Whether the event is about the machine or an OOM kill."""
    if isinstance(event, Fact):
        return event.name == "oom_killed"
    signal = catalog.signals.get(event.signal) if isinstance(event, Hit) else None
    if signal is None:
        return False
    return signal.role == "kernel" or (signal.role == "event" and (signal.event or "").startswith("oom_"))
