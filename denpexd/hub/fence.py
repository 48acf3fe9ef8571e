"""What stands around a hub: sinks that are told only of what is ours to tell, and processes, of which it has none."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from denpexd.core.events import Event, Want
from denpexd.errors import BrokerError, Withdrawn
from denpexd.hub.owner import HubDaemon
from denpexd.hub.wire import partition
from denpexd.notify.policy import Delivery, after
from denpexd.notify.rows import Row as OutboxRow
from denpexd.notify.sink import Beating, Refreshing, Sink

Verdict = Mapping[str, Any]


class Nobody:
    """The processes of a hub: none. Implements evidence.witness.CollectorLike; nodes look at theirs."""

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
        hub = self._hub()
        await _is_ours(hub, row.delivery.verdict)
        await self._sink.send(row)
        await _told(hub, row.delivery)

    def preview(self, row: OutboxRow) -> object:
        return self._sink.preview(row)


async def _is_ours(hub: HubDaemon, verdict: Verdict) -> None:
    """Return when this message is the hub's to send, for certain; Withdrawn if it is not."""
    if verdict.get("job") == "denpexd":
        return  # a notice of this daemon about itself
    part = partition(str(verdict.get("job")))
    while part in hub.parts and hub.leases.has(part):
        try:
            await hub.board.write(str(verdict.get("key")))
            if await hub.leases.confirm(part):
                return
            break
        except BrokerError:
            await hub.clock.sleep(1.0)
    raise Withdrawn("another hub has this job")


async def _told(hub: HubDaemon, delivery: Delivery) -> None:
    """A sink has taken the message."""
    last = hub.store.sent(delivery.key).get(delivery.sink)
    if last is None or last.revision != delivery.revision:  # a later one is on its way
        last = after(delivery, hub.board.last(delivery.key, delivery.sink), hub.clock.wall())
    hub.board.sent(delivery.key, delivery.sink, last)
    await hub.write_board()


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
