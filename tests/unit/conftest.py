"""An HTTP receiver on loopback that answers by script, for everything that sends."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from denpexd.evidence import ras, worker_server
from denpexd.evidence.collect import Collector
from denpexd.evidence.nvml import Nvml
from denpexd.evidence.stacks import PySpy

SOME_HANG: dict[str, Any] = {
    "job": "run",
    "failure": "some-hang",
    "category": "hang",
    "severity": "critical",
    "certainty": "likely",
    "title": "Some hang",
    "hang": True,
    "opened_t": 1_700_000_000.0 - 60,
    "initiating_ranks": [0],
    "collateral_ranks": [1, 2, 3],
    "quick_answer": "It hangs.",
}
"""What a verdict says that sinks tell of."""


@dataclass
class Received:
    """One request as it came."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Receiver:
    """`script` holds the next answers, then 200.

    An answer: a status, (status, headers), (status, headers, JSON), "drip", "silent" or "garbage".
    """

    port: int = 0
    script: list[Any] = field(default_factory=list)
    requests: list[Received] = field(default_factory=list)
    stop: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            method, path, _ = head[0].split(" ")
            self.requests.append(Received(method, path, headers, body))
            await self._answer(self.script.pop(0) if self.script else 200, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    async def _answer(self, answer: Any, writer: asyncio.StreamWriter) -> None:
        if answer == "silent":
            await self.stop.wait()
        elif answer == "garbage":
            writer.write(b"HTT")
        elif answer == "drip":
            for byte in b"HTTP/1.1 200 OK\r\nX-Slow: " + b"x" * 5000:
                writer.write(bytes([byte]))
                await writer.drain()
                try:
                    await asyncio.wait_for(self.stop.wait(), 0.02)
                    return
                except TimeoutError:
                    pass
        else:
            status, headers, *said = answer if isinstance(answer, tuple) else (answer, {})
            body = json.dumps(said[0]) if said else "answer"
            lines = [f"HTTP/1.1 {status} Answer", f"Content-Length: {len(body)}", "Connection: close"]
            lines += [f"{k}: {v}" for k, v in headers.items()]
            writer.write(("\r\n".join(lines) + f"\r\n\r\n{body}").encode("latin-1"))
        if not writer.is_closing():
            await writer.drain()


@pytest.fixture(autouse=True, scope="session")
def patience() -> Iterator[None]:
    """What asks others in real time waits longer than on a node, where the machine of the tests may be slow. A test of
    a limit sets its own.
    """
    with pytest.MonkeyPatch.context() as patch:
        for kind, limit in ((PySpy, "time_limit"), (Nvml, "seconds"), (Collector, "deadline")):
            patch.setitem(kind.__init__.__kwdefaults__, limit, 60.0)
        patch.setattr(worker_server, "TIME_LIMIT", 60.0)
        patch.setattr(ras, "CONNECT", 60.0)
        patch.setattr(ras, "ANSWER", 60.0)
        yield


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    """A receiver in the loop of the test."""
    scripted = Receiver()
    server = await asyncio.start_server(scripted.handle, "127.0.0.1", 0)
    scripted.port = server.sockets[0].getsockname()[1]
    yield scripted
    scripted.stop.set()
    server.close()
    await server.wait_closed()
