"""Which partitions a hub has: leases in a bucket of the broker, which lets go of those that are not renewed.

A lease counts only until SAFE after the moment the renewal was *sent*: the broker forgets it later than that, so two
hubs never both think that they have it. Who was paused finds out by its own clock, before it does anything.
"""

import asyncio
import json
import logging
from collections.abc import Iterator

from denpexd.clock import Clock
from denpexd.errors import BrokerError
from denpexd.hub.broker import LEASES, Broker
from denpexd.hub.wire import PARTITIONS

log = logging.getLogger(__name__)

TTL = 30.0  # after which the broker forgets a lease
RENEW = 5.0
SAFE = 24.0  # less than TTL by more than a clock drifts and the broker takes


class Leases:
    """`held`: partition -> revision of the lease, which no other owner ever had or will have."""

    def __init__(self, broker: Broker, hub: str, clock: Clock) -> None:
        self._broker, self._hub, self._clock = broker, hub, clock
        self.held: dict[int, int] = {}
        self.epochs: dict[int, int] = {}  # revision at which each was taken
        self._sure: dict[int, float] = {}  # until when by our clock
        self.hubs = 0

    def has(self, part: int) -> bool:
        """Whether the partition is ours, for certain, at this moment."""
        return self._clock.now() < self._sure.get(part, float("-inf"))

    async def confirm(self, part: int) -> bool:
        """Ask the broker as well: needed before anybody is told, as our clock may have stood still together with us."""
        if not self.has(part):
            return False
        found = await self._broker.get(LEASES, f"p{part}")
        return found is not None and found[1] == self.held.get(part) and self.has(part)

    def lost(self) -> Iterator[int]:
        """Partitions that are not ours any more, each once."""
        for part in [part for part in self.held if not self.has(part)]:
            self._drop(part)
            yield part

    def _drop(self, part: int) -> None:
        for known in (self.held, self.epochs, self._sure):
            known.pop(part, None)

    async def renew(self) -> None:
        """Keep what is ours, as long as we may."""
        value = json.dumps({"hub": self._hub}).encode()
        await self._broker.put(LEASES, f"hub.{self._hub}", value)
        # All at once: on a busy hub each answer waits for its turn.
        await asyncio.gather(*(self._renew(part, revision, value) for part, revision in self.held.items()))

    async def _renew(self, part: int, revision: int, value: bytes) -> None:
        began = self._clock.now()
        new = await self._broker.update(LEASES, f"p{part}", value, revision)
        if new is None:
            log.warning("partition %d was taken by another hub", part)
            self._sure[part] = float("-inf")
        elif part in self.held:
            self.held[part], self._sure[part] = new, began + SAFE

    async def share(self) -> tuple[list[int], list[int]]:
        """The partitions that nobody has and we should take, and those of ours that another should have."""
        keys = await self._broker.keys(LEASES)
        hubs = sorted({key.removeprefix("hub.") for key in keys if key.startswith("hub.")} | {self._hub})
        self.hubs = len(hubs)
        fair = -(-PARTITIONS // len(hubs))
        taken = {int(key[1:]) for key in keys if key[1:].isdigit()}
        # Each begins at another place, so that two seldom reach for the same one.
        first = hubs.index(self._hub) * fair
        free = [p % PARTITIONS for p in range(first, first + PARTITIONS) if p % PARTITIONS not in taken]
        return free[: max(0, fair - len(self.held))], sorted(self.held)[fair:]

    async def take(self, part: int) -> bool:
        """Whether it is ours now."""
        began = self._clock.now()
        revision = await self._broker.create(LEASES, f"p{part}", json.dumps({"hub": self._hub}).encode())
        if revision is None:
            return False
        self.held[part] = self.epochs[part] = revision
        self._sure[part] = began + SAFE
        return True

    async def release(self, part: int) -> None:
        """Let another have it at once."""
        ours = self.held.get(part)
        self._drop(part)
        try:
            found = await self._broker.get(LEASES, f"p{part}")
            if found is not None and found[1] == ours:
                await self._broker.delete(LEASES, f"p{part}")
        except BrokerError:
            log.debug("partition %d: the broker forgets our lease by itself", part)

    async def leave(self) -> None:
        """Release everything: this hub ends."""
        for part in list(self.held):
            await self.release(part)
        try:
            await self._broker.delete(LEASES, f"hub.{self._hub}")
        except BrokerError:
            log.debug("the broker forgets this hub by itself")
