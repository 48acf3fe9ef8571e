"""This node: who can be asked here, and what its kernel prints and its ranks run out of, for the job that lives here.

Lines go through the signals that recognise them in logs; only what signals and launcher patterns say about the machine
passes on, because the kernel is no rank and its chatter no sign of life of the job.
"""

import asyncio
import os
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass

from denpexd.clock import Clock
from denpexd.core.events import Event, Fact, Hit
from denpexd.core.rule import Catalog
from denpexd.daemon import Daemon
from denpexd.evidence import collect
from denpexd.evidence.flight_watch import FlightRecorder
from denpexd.evidence.kernel import MOST, Source, open_kernel
from denpexd.evidence.nvml import Nvml
from denpexd.evidence.places import Places
from denpexd.evidence.procs import Processes, RankProcess
from denpexd.evidence.ras import Ras
from denpexd.evidence.resources import Resources
from denpexd.evidence.witness import Witness
from denpexd.settings import Settings

LOOK = 1.0


@dataclass(frozen=True, slots=True)
class Node:
    """Who can be asked on this node."""

    processes: Processes
    collector: collect.Collector
    kernel: Source | None

    def feed(self, daemon: Daemon) -> "NodeFeed":
        """What nobody needs to ask for."""
        return NodeFeed(self.kernel, Places(self.processes), Resources(), daemon, lambda: self.collector.ranks)


def this_node(
    settings: Settings, clock: Clock, cleanup: AsyncExitStack, root_pid: int | None, pipe: int | None
) -> Node:
    """The witnesses that the settings want. `root_pid`, `pipe`: by which the processes of the job are known."""
    wanted, recorder = settings.evidence, settings.evidence.flight_recorder
    processes = Processes(root_pid=root_pid, pipe=pipe)
    ras = Ras(processes, clock, daring=wanted.ras == "on")
    cleanup.callback(ras.close)
    flight = FlightRecorder(processes, clock, folder=recorder.dir, trigger=recorder.trigger == "auto")
    cleanup.callback(flight.close)
    sources: dict[str, Witness] = {"ras": ras, "gpu": Nvml(processes, clock)}
    collector = collect.Collector(
        processes,
        clock,
        stacks="off" if wanted.stacks == "off" else "auto",
        active=wanted.active,
        lone=wanted.processes == "any" or root_pid is not None,
        sources={name: one for name, one in sources.items() if getattr(wanted, name) != "off"},
        flight=flight,
    )
    kernel = open_kernel(wanted.kernel, os.uname().nodename, clock)
    if kernel is not None:
        cleanup.callback(kernel.close)
    return Node(processes, collector, kernel)


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
