"""The console: the default sink, needs no configuration."""

import asyncio
from typing import TextIO

from denpexd.errors import DeliveryError
from denpexd.notify.render import report, summary_text
from denpexd.notify.rows import Row


class ConsoleSink:
    """Prints the report of an incident to a stream; its end in one line."""

    max_attempts: int | None = 1

    def __init__(self, name: str, stream: TextIO, *, color: bool, width: int) -> None:
        self.name = name
        self._stream, self._color, self._width = stream, color, width
        self._whole = stream.closed or not stream.isatty()  # a file has room for whole headlines

    async def send(self, row: Row) -> None:
        """Print; DeliveryError if the stream is closed."""
        verdict = row.delivery.verdict
        if row.delivery.event == "closed":
            text = "✔ " + summary_text(verdict, 500)[0]
        else:
            text = report(verdict, color=self._color, width=self._width, whole=self._whole) + "\n"
        # A pipe nobody reads from blocks: not in the event loop.
        await asyncio.to_thread(self._print, text + "\n")

    def _print(self, text: str) -> None:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        try:
            self._stream.write(text.encode(encoding, "replace").decode(encoding))
            self._stream.flush()
        except (OSError, ValueError) as error:
            raise DeliveryError(f"cannot print: {error}", retryable=False) from error
