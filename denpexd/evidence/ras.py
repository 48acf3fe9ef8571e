"""Asks NCCL's RAS, through its status port, which ranks of the job's communicators lag or cannot be reached.

The answer is collected by threads inside the job, over all its nodes, and queries have ended jobs. Therefore: only when
a standstill is about to be told, at most two queries (two answers that agree are what proves a standstill), never a
release of NCCL that is known to be hurt by it, one asker per node, and everything within a few seconds.
"""

import asyncio
import logging
import os
import re
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from denpexd.clock import Clock
from denpexd.core.events import Event
from denpexd.errors import EvidenceUnavailable
from denpexd.evidence.procs import Processes, RankProcess
from denpexd.evidence.ras_findings import facts, global_ranks
from denpexd.evidence.ras_report import Report, parse
from denpexd.evidence.ras_versions import JSON, Version, of_process, refuse

log = logging.getLogger(__name__)

PORT = 28028
QUERIES, PERIOD = 2, 600.0  # so many queries in so many seconds, whatever is asked of us
PAIRED = 120.0  # two answers belong to one standstill
ANSWER_LIMIT = 16 << 20
CONNECT, ANSWER = 3.0, 20.0  # seconds for a connection, for everything
_LEG = 5  # seconds RAS may wait for a part of its answer
_LINE_LIMIT = 4096
_OFF = re.compile(r"0|false|no|off", re.IGNORECASE)
_WANTED = ("NCCL_RAS_ADDR", "NCCL_RAS_ENABLE")


class _NotThere(EvidenceUnavailable):
    """Nobody answers at the address."""


class Ras:
    """`daring`: also asks releases whose flaws are known. Use from one event loop; `close` lets others ask."""

    def __init__(self, processes: Processes, clock: Clock, *, daring: bool = False, proc: Path = Path("/proc")) -> None:
        self._processes, self._clock, self._daring, self._proc = processes, clock, daring, proc
        self._asked: deque[float] = deque(maxlen=QUERIES)
        self._before: tuple[float, Report] | None = None
        self._claim: socket.socket | None = None

    def close(self) -> None:
        """Give up the right to ask on this node."""
        if self._claim is not None:
            self._claim.close()
            self._claim = None

    async def collect(self, here: Sequence[RankProcess]) -> list[Event]:
        """Facts about the job of these ranks; EvidenceUnavailable: why there are none."""
        if not here or (len(self._asked) == QUERIES and self._clock.now() - self._asked[0] < PERIOD):
            return []
        address, version = await self._whom(here)
        self._take_claim(address)
        try:
            async with asyncio.timeout(ANSWER):
                answer = await self._query(address, version)
        except _NotThere:
            if version is None and not self._daring:
                return []  # nothing says that the job uses NCCL
            raise
        except TimeoutError:
            raise EvidenceUnavailable(
                f"NCCL RAS on {address[0]}:{address[1]} did not answer within {ANSWER:g} s",
                "look at the job by hand: ncclras -v -t 60",
            ) from None
        return await asyncio.to_thread(self._judge, answer, here)

    async def plan(self, here: Sequence[RankProcess]) -> list[str]:
        """Where it would be asked and for what; EvidenceUnavailable: why it would not."""
        if not here:
            return []
        (host, port), version = await self._whom(here)
        known = "" if version is None else f" of {'.'.join(map(str, version))}"
        return [f"NCCL RAS{known} at {host}:{port} for VERBOSE STATUS"]

    async def _whom(self, here: Sequence[RankProcess]) -> tuple[tuple[str, int], Version | None]:
        first = min(here, key=lambda process: process.rank)
        address, version = await asyncio.to_thread(self._prepare, first)
        if version is not None:
            refuse(version, daring=self._daring)
        return address, version

    def _prepare(self, first: RankProcess) -> tuple[tuple[str, int], Version | None]:
        environ = self._processes.environ(first, _WANTED)
        if _OFF.fullmatch(environ.get("NCCL_RAS_ENABLE", "").strip()):
            raise EvidenceUnavailable("the job runs with NCCL_RAS_ENABLE=0", "start it without that variable")
        mine, theirs = (_link(self._proc / name / "ns/net") for name in ("self", str(first.pid)))
        if mine and theirs and mine != theirs:
            raise EvidenceUnavailable(
                "NCCL RAS cannot be reached: the job has a network namespace of its own",
                "run denpexd in the pod or container network of the job",
            )
        return _address(environ.get("NCCL_RAS_ADDR", "")), of_process(self._proc, first.pid)

    def _take_claim(self, address: tuple[str, int]) -> None:
        """The first denpexd that asks at this address is the one that may, as long as it runs."""
        if self._claim is not None:
            return
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            claim.bind(f"\0denpexd-ras-{address[0]}:{address[1]}")
        except OSError:
            claim.close()
            raise EvidenceUnavailable(
                "another denpexd on this node asks NCCL RAS", "its verdicts hold the answer"
            ) from None
        self._claim = claim

    # --- the conversation -------------------------------------------------------------------------------------------

    async def _query(self, address: tuple[str, int], version: Version | None) -> bytes:
        host, port = address
        try:
            async with asyncio.timeout(CONNECT):
                reader, writer = await asyncio.open_connection(host, port, limit=_LINE_LIMIT)
        except (OSError, TimeoutError) as error:
            raise _NotThere(
                f"NCCL RAS cannot be reached at {host}:{port}: {getattr(error, 'strerror', None) or 'no answer'}",
                "it needs NCCL 2.24 or later and listens where NCCL_RAS_ADDR says in the job's environment",
            ) from None
        with _broken_off(address):
            try:
                await self._hello(reader, writer, version)
                self._asked.append(self._clock.now())
                writer.write(b"VERBOSE STATUS\n")
                return await _all(reader)
            finally:
                writer.close()

    async def _hello(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, version: Version | None) -> None:
        """What is answered at once and collects nothing: whether it is RAS, its format, and how old it must be."""
        if not (await _ask(reader, writer, "CLIENT PROTOCOL 2")).startswith("SERVER PROTOCOL"):
            raise EvidenceUnavailable("what listens on the port of NCCL RAS is something else", "check NCCL_RAS_ADDR")
        await _ask(reader, writer, f"TIMEOUT {_LEG}")
        if version is not None and version < JSON:
            return
        in_json = await _ask(reader, writer, "SET FORMAT json") == "OK"
        if version is not None:
            return
        if not in_json:
            refuse((2, 28, 3), daring=self._daring)  # the newest that knows no JSON
        # 2.29.2 brought MONITOR; an unknown group of events changes nothing and tells it from an unknown command.
        elif "Unknown command" in await _ask(reader, writer, "MONITOR none"):
            refuse((2, 28, 9), daring=self._daring)

    # --- the answer -------------------------------------------------------------------------------------------------

    def _judge(self, answer: bytes, here: Sequence[RankProcess]) -> list[Event]:
        try:
            report = parse(answer.decode("utf-8", "replace"))
        except ValueError as error:
            raise EvidenceUnavailable(f"the answer of NCCL RAS cannot be read: {error}", "try: ncclras -v") from None
        local = {process.rank: _pids(self._proc, process.pid) for process in here}
        ranks = global_ranks(report, local, here[0].world_size, _is_here)
        if report.processes() and not ranks:
            raise EvidenceUnavailable(
                "NCCL RAS answered about processes that are no ranks of this job",
                "several jobs share the port: give each its own NCCL_RAS_ADDR",
            )
        now, before = self._clock.now(), self._before
        self._before = (now, report)
        return facts(before[1] if before is not None and now - before[0] < PAIRED else None, report, ranks, now)


@contextmanager
def _broken_off(address: tuple[str, int]) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, asyncio.IncompleteReadError) as error:
        raise EvidenceUnavailable(
            f"NCCL RAS on {address[0]}:{address[1]} broke off: {error}", "look at the job by hand: ncclras -v"
        ) from None


async def _ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, command: str) -> str:
    writer.write(f"{command}\n".encode("ascii"))
    answer = await reader.readline()
    if not answer.endswith(b"\n"):
        raise ValueError(f"no answer to {command}")
    return answer.decode("ascii", "replace").strip()


async def _all(reader: asyncio.StreamReader) -> bytes:
    """Everything until the other side closes."""
    pieces: list[bytes] = []
    size = 0
    while piece := await reader.read(1 << 16):
        size += len(piece)
        if size > ANSWER_LIMIT:
            raise ValueError(f"its answer is longer than {ANSWER_LIMIT >> 20} MiB")
        pieces.append(piece)
    return b"".join(pieces)


def _address(text: str) -> tuple[str, int]:
    """`host:port`, IPv6 in brackets; only what is an address of this node, as NCCL itself binds it."""
    if not text:
        return "localhost", PORT
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not (port.isascii() and port.isdigit() and 0 < int(port) < 65536 and host):
        raise EvidenceUnavailable(f"NCCL_RAS_ADDR of the job is no host:port: {text[:60]!r}", "correct it")
    if host != "localhost" and not _is_here(host):
        raise EvidenceUnavailable(f"NCCL_RAS_ADDR of the job is not on this node: {text[:60]!r}", "correct it")
    return host, int(port)


def _is_here(host: str) -> bool:
    """Whether this is an address of this node: nobody can bind another one."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST)[
            0
        ]
        with socket.socket(family, kind) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True


def _pids(proc: Path, pid: int) -> frozenset[int]:
    """What a process is called in its own namespaces of process numbers, ours included."""
    try:
        status = (proc / str(pid) / "status").read_text("ascii", "replace")
    except OSError:
        return frozenset({pid})
    line = next((line for line in status.splitlines() if line.startswith("NSpid:")), "")
    return frozenset({pid, *(int(word) for word in line.split()[1:] if word.isdigit())})


def _link(path: Path) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115 - not a path
    except OSError:
        return ""
