"""Brings what this node's kernel prints, and what its ranks run out of, to the job whose processes live here.

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
from denpexd.evidence.resources import Resources

LOOK = 1.0


class NodeFeed:
    """`ranks`: those that live here now; `kernel`: None where its messages cannot be read or are not wanted."""

    def __init__(
        self,
        kernel: Source | None,
        places: Places,
        resources: Resources,
        daemon: Daemon,
        ranks: Callable[[], Mapping[int, RankProcess]],
    ) -> None:
        self._kernel, self._places, self._resources = kernel, places, resources
        self._daemon, self._ranks = daemon, ranks
        self._waiting: deque[str] = deque(maxlen=MOST)  # until it is known whose they are

    async def forever(self) -> None:
        while True:
            await self.look()
            await self._daemon.clock.sleep(LOOK)

    async def look(self) -> None:
        """Take what is there, and tell it to the job if there is one."""
        if self._kernel is not None:
            self._waiting += await self._kernel.take()
        daemon, job = self._daemon, self._daemon.evidence_job()
        if job is None:
            return
        ranks, now = self._ranks(), daemon.clock.now()
        placed = await asyncio.to_thread(self._places.news, ranks, now)
        full = await asyncio.to_thread(self._resources.news, ranks, now)
        if placed or full:
            await daemon.handle(daemon.pipeline.evidence(job, [*placed, *full]))
        if self._waiting and self._kernel is not None:
            data = "".join(f"{line}\n" for line in self._waiting).encode()
            self._waiting.clear()
            catalog = daemon.pipeline.catalog
            await daemon.handle(
                daemon.pipeline.beside(job, self._kernel.name, data, now, lambda event: speaks(event, catalog))
            )


def speaks(event: Event, catalog: Catalog) -> bool:
    """Whether the event is about the machine or an OOM kill."""
    if isinstance(event, Fact):
        return event.name == "oom_killed"
    signal = catalog.signals.get(event.signal) if isinstance(event, Hit) else None
    if signal is None:
        return False
    return signal.role == "kernel" or (signal.role == "event" and (signal.event or "").startswith("oom_"))
