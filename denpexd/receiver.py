"""A receiver of webhooks on loopback: takes every request, answers 204, and keeps what came."""

import asyncio
import json
from dataclasses import dataclass
from typing import Any

LIMIT = 4 * 1024**2


@dataclass(frozen=True, slots=True)
class Received:
    """One request as it came; `headers` in their order and spelling."""

    method: str
    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    def header(self, name: str) -> str:
        """The value of a header, "" if it is absent."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), "")

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Receiver:
    """Use as an asynchronous context manager; `received` grows while it is open."""

    def __init__(self) -> None:
        self.received: list[Received] = []
        self._server: asyncio.Server | None = None
        self._port = 0

    @property
    def url(self) -> str:
        """Where to send to."""
        return f"http://127.0.0.1:{self._port}/alerts"

    async def __aenter__(self) -> "Receiver":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self._port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.received.append(await _read(reader))
            writer.write(b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n")
            await writer.drain()
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError, ValueError):
            pass  # whoever speaks no HTTP gets no answer
        finally:
            writer.close()


async def _read(reader: asyncio.StreamReader) -> Received:
    first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").rstrip("\r\n").split("\r\n")
    method, path, _ = first.split(" ")
    headers = tuple((name.strip(), value.strip()) for name, _, value in (line.partition(":") for line in lines))
    size = next((int(value) for name, value in headers if name.lower() == "content-length"), 0)
    if not 0 <= size <= LIMIT:
        raise ValueError(f"a body of {size} bytes")
    return Received(method, path, headers, await reader.readexactly(size))
