"""What a rank tells through torch's worker server: stacks without the right to look into a process.

A job that was started with TORCH_WORKER_SERVER_SOCKET and `torch.distributed.elastic.control_plane.worker_main` answers
HTTP on a Unix socket, from a native thread that needs no interpreter lock. Handlers as of torch 2.13: ping,
dump_traceback, fr_trace_json. Asked only where py-spy cannot look and only at a suspicion, since the answer is made
inside the job.
"""

import asyncio
import os
import socket
import struct

from denpexd.core.events import Frames
from denpexd.errors import EvidenceUnavailable
from denpexd.scan.blocks import Opening
from denpexd.scan.dumps import Faulthandler

VARIABLE = "TORCH_WORKER_SERVER_SOCKET"
TIME_LIMIT = 5.0
SIZE_LIMIT = 16 << 20
_LONGEST_PATH = 107  # of a Unix socket
_CREDENTIALS = struct.Struct("3i")
_HOW = "try by hand: curl --unix-socket {path} -X POST http://rank/handler/{handler}"


async def stack(path: str, pid: int, rank: int, t: float) -> Frames:
    """The stack of the process now, as faulthandler prints it. EvidenceUnavailable: why there is none."""
    text = (await ask(path, pid, "dump_traceback")).decode("utf-8", "replace")
    block = Faulthandler(Opening(t, rank, f"worker server of pid {pid}", 0, ""))
    for line in text.splitlines():
        block.feed(line)
    for event in block.finish():
        if isinstance(event, Frames) and event.frames:
            return Frames(t, rank, "py-spy", event.frames, event.source, others=event.others)
    raise EvidenceUnavailable(
        f"the worker server of pid {pid} gave no Python stack", _HOW.format(path=path, handler="dump_traceback")
    )


async def ask(path: str, pid: int, handler: str) -> bytes:
    """What a handler of the process's server answers. EvidenceUnavailable: nothing usable, or not this process."""
    how = _HOW.format(path=path, handler=handler)
    try:
        async with asyncio.timeout(TIME_LIMIT):
            reader, writer = await asyncio.open_unix_connection(_reachable(path, pid), limit=SIZE_LIMIT)
            try:
                if (other := _peer(writer)) != pid:
                    raise EvidenceUnavailable(
                        f"{path} is the worker server of process {other}, not of process {pid}",
                        f"give each rank a {VARIABLE} of its own",
                    )
                return await _post(reader, writer, handler)
            finally:
                writer.close()
    except TimeoutError:
        why = f"the worker server of pid {pid} did not answer within {TIME_LIMIT:g} s"
        raise EvidenceUnavailable(why, how) from None
    except (OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        raise EvidenceUnavailable(f"the worker server of pid {pid} cannot be asked: {error}", how) from error


def _reachable(path: str, pid: int) -> str:
    """The socket as we see it: the job may live in a mount namespace of its own."""
    for seen in (path, f"/proc/{pid}/root{path}"):
        if len(os.fsencode(seen)) <= _LONGEST_PATH and os.path.exists(seen):  # noqa: PTH110 - no right to look is no
            return seen
    raise FileNotFoundError(f"no socket {path}")


def _peer(writer: asyncio.StreamWriter) -> int:
    """Who listens, by the kernel's word."""
    connection = writer.get_extra_info("socket")
    told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(told)[0])


async def _post(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handler: str) -> bytes:
    writer.write(
        f"POST /handler/{handler} HTTP/1.1\r\nHost: rank\r\nConnection: close\r\nContent-Length: 0\r\n\r\n".encode()
    )
    await writer.drain()
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:])}
    if head[0].split(" ")[1:2] != ["200"]:
        raise ValueError(f"it answers {head[0][:100]!r}")
    if "content-length" in fields:
        size = int(fields["content-length"])
        if not 0 <= size <= SIZE_LIMIT:
            raise ValueError(f"it announces {size} bytes")
        return await reader.readexactly(size)
    body = await reader.read(SIZE_LIMIT + 1)
    while len(body) <= SIZE_LIMIT and (more := await reader.read(1 << 16)):
        body += more
    if len(body) > SIZE_LIMIT:
        raise ValueError(f"its answer is longer than {SIZE_LIMIT >> 20} MiB")
    return body
