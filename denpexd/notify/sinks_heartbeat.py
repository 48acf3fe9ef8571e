"""A sign of life for a service that alarms when it stops, such as healthchecks.io: who watches the watcher."""

import httpx

from denpexd.clock import Clock
from denpexd.notify.post import TIMEOUT, touch
from denpexd.notify.rows import Row
from denpexd.notify.sinks_webhook import http_url
from denpexd.settings_sinks import HeartbeatSink as HeartbeatOptions


class HeartbeatSink:
    """Asks its URL every `beat_every` seconds while the daemon makes progress; it is told of no incident."""

    max_attempts: int | None = 1

    def __init__(self, name: str, options: HeartbeatOptions, client: httpx.AsyncClient, clock: Clock) -> None:
        self.name, self.beat_every = name, options.every
        self._options, self._client, self._clock = options, client, clock

    async def beat(self) -> None:
        """One request; DeliveryError unless it was answered with 2xx."""
        url, limit = http_url(self._options), min(TIMEOUT, self.beat_every)
        await touch(self._client, self._options.method, url, wall=self._clock.wall(), limit=limit)

    def preview(self, row: Row) -> object:
        """It sends no content."""
        return f"{self._options.method} without content, every {self.beat_every:g} s"

    async def send(self, row: Row) -> None:
        """Only a test message comes here: it beats once."""
        await self.beat()
