"""What stands around a hub: sinks that are told only of what is ours to tell, and processes, of which it has none."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from denpexd.core.events import Event, Want
from denpexd.hub.owner import HubDaemon
from denpexd.hub.wire import partition
from denpexd.notify.deliver import Beating, Refreshing, Sink
from denpexd.notify.rows import Row as OutboxRow

Verdict = Mapping[str, Any]


class Nobody:
    """The processes of a hub: none. Implements daemon.CollectorLike; nodes look at theirs."""

    def __init__(self) -> None:
        self.counts: Mapping[tuple[str, str], int] = {}
        self.seconds: Mapping[str, float] = {}
        self.pause = 0.0

    async def attach(self, paths: Iterable[Path]) -> dict[Path, int]:
        return {}

    async def watch(self) -> list[Event]:
        return []

    async def collect(self, want: Want) -> list[Event]:
        return []


class Fenced:
    """A sink that is told only of what is ours to tell."""

    def __init__(self, sink: Sink, hub: Callable[[], HubDaemon]) -> None:
        self.name, self.max_attempts = sink.name, sink.max_attempts
        self._sink, self._hub = sink, hub

    async def send(self, row: OutboxRow) -> None:
        """As the sink does; Withdrawn if the message is another hub's to send."""
        delivery, hub = row.delivery, self._hub()
        await hub.may_tell(delivery.verdict)
        await self._sink.send(row)
        await hub.told(delivery)

    def preview(self, row: OutboxRow) -> object:
        return self._sink.preview(row)


class FencedRefreshing(Fenced):
    """The same for a sink that hears of open incidents again and again."""

    def __init__(self, sink: Sink, again: Refreshing, hub: Callable[[], HubDaemon]) -> None:
        super().__init__(sink, hub)
        self._again = again
        self.refresh_every = again.refresh_every

    async def refresh(self, verdicts: Sequence[Verdict]) -> None:
        leases = self._hub().leases
        if mine := [v for v in verdicts if leases.has(partition(str(v.get("job"))))]:
            await self._again.refresh(mine)


def fenced(sinks: Sequence[Sink], hub: Callable[[], HubDaemon]) -> list[Sink]:
    """The sinks of a hub; one that only hears that the daemon works needs no fence."""
    return [
        s if isinstance(s, Beating) else FencedRefreshing(s, s, hub) if isinstance(s, Refreshing) else Fenced(s, hub)
        for s in sinks
    ]
