"""What a destination of alerts is, whichever service it stands for."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from denpexd.notify.policy import Verdict
from denpexd.notify.rows import Row


class Sink(Protocol):
    """A destination. `max_attempts` None: tried until it is a day old."""

    name: str
    max_attempts: int | None

    async def send(self, row: Row) -> None:
        """Return when the message has arrived; DeliveryError otherwise."""
        ...

    def preview(self, row: Row) -> object:
        """What would be sent, without secrets: a text, or a value that is sent as JSON."""
        ...


@runtime_checkable
class Refreshing(Protocol):
    """A sink that must hear of open incidents again and again, every `refresh_every` seconds."""

    refresh_every: float

    async def refresh(self, verdicts: Sequence[Verdict]) -> None:
        """Send all open incidents again; DeliveryError if that failed."""
        ...


@runtime_checkable
class Beating(Protocol):
    """A sink that is to hear every `beat_every` seconds that the daemon works, and nothing else."""

    name: str
    beat_every: float

    async def beat(self) -> None:
        """Say so; DeliveryError if that failed."""
        ...
