"""Stacks through a rank's worker server: real processes that speak its protocol on a Unix socket."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from denpexd.clock import ManualClock
from denpexd.core.events import Frames, Want
from denpexd.errors import EvidenceUnavailable
from denpexd.evidence import worker_server
from denpexd.evidence.collect import Collector
from denpexd.evidence.procs import Processes
from denpexd.evidence.stacks import PySpy
from denpexd.evidence.worker_server import VARIABLE, ask, stack

SERVER = """
import faulthandler, os, socketserver, sys, tempfile, threading, time

class Handler(socketserver.StreamRequestHandler):
    def handle(self):
        name = self.rfile.readline().split()[1].rsplit(b"/", 1)[-1]
        while self.rfile.readline().strip():
            pass
        answer = {"dump_traceback": trace, "ping": lambda: b"pong", "endless": endless, "mute": mute}.get(name.decode())
        body = answer() if answer else b"Handler not found"
        head = "HTTP/1.1 %s\\r\\nContent-Length: %d\\r\\n\\r\\n" % ("200 OK" if answer else "404 Not Found", len(body))
        self.wfile.write(head.encode() + body)

def trace():
    with tempfile.TemporaryFile() as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        return file.read()

def endless():
    return b"x" * (17 << 20)

def mute():
    time.sleep(60)

server = socketserver.ThreadingUnixStreamServer(sys.argv[1], Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()

def wait_for_peers():
    print("ready", flush=True)
    sys.stdin.read()

wait_for_peers()
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Callable[[], tuple[str, int]]]:
    """Starts a rank with a server; gives the path of its socket and its pid."""
    children: list[subprocess.Popen[str]] = []

    def start() -> tuple[str, int]:
        path = str(tmp_path / f"rank{len(children)}.sock")
        command = [sys.executable, "-c", SERVER, path]
        env = {"RANK": str(len(children)), "WORLD_SIZE": "2", "MASTER_PORT": "29500", VARIABLE: path}
        child = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        children.append(child)
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        return path, child.pid

    yield start
    for child in children:
        child.kill()
        child.communicate()


async def test_the_main_thread_is_the_stack(server: Callable[[], tuple[str, int]]) -> None:
    path, pid = server()
    frames = await stack(path, pid, 3, 7.0)
    assert (frames.rank, frames.t, frames.source) == (3, 7.0, f"worker server of pid {pid}")
    assert [frame.function for frame in frames.frames] == ["wait_for_peers", "<module>"]
    assert any(frame.function == "trace" for _, thread in frames.others for frame in thread)


async def test_the_server_of_another_process_is_not_believed(server: Callable[[], tuple[str, int]]) -> None:
    path, pid = server()
    _, other = server()
    with pytest.raises(EvidenceUnavailable, match=f"worker server of process {pid}, not of process {other}"):
        await stack(path, other, 0, 1.0)


@pytest.mark.parametrize(("handler", "why"), [("unknown", "404 Not Found"), ("endless", "it announces")])
async def test_an_answer_that_cannot_be_used_is_said(
    server: Callable[[], tuple[str, int]], handler: str, why: str
) -> None:
    path, pid = server()
    with pytest.raises(EvidenceUnavailable, match=why):
        await ask(path, pid, handler)


async def test_a_server_that_does_not_answer_is_given_up(
    server: Callable[[], tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_server, "TIME_LIMIT", 0.2)
    path, pid = server()
    with pytest.raises(EvidenceUnavailable, match="did not answer within"):
        await ask(path, pid, "mute")


async def test_where_there_is_no_socket_that_is_said(tmp_path: Path) -> None:
    with pytest.raises(EvidenceUnavailable, match="cannot be asked: no socket"):
        await ask(str(tmp_path / "none"), 1, "ping")


async def test_a_server_that_says_no_stack_gives_none(tmp_path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nnothing here")
        writer.close()

    path = str(tmp_path / "own.sock")
    async with await asyncio.start_unix_server(answer, path):
        with pytest.raises(EvidenceUnavailable, match="gave no Python stack"):
            await stack(path, os.getpid(), 0, 1.0)


async def test_where_py_spy_may_not_look_the_server_is_asked(
    server: Callable[[], tuple[str, int]], tmp_path: Path
) -> None:
    _, pid = server()
    refused = tmp_path / "py-spy"
    refused.write_text("#!/bin/sh\necho 'Error: Permission denied (os error 13)' >&2; exit 1\n")
    refused.chmod(0o755)
    clock = ManualClock(100.0)
    collector = Collector(Processes(root_pid=os.getpid()), clock, lone=True, spy=PySpy(str(refused)))
    events = await collector.collect(Want(100.0, "stacks", (0,), "x"))
    stacks = [event for event in events if isinstance(event, Frames)]
    assert [(each.rank, each.source, each.frames[0].function) for each in stacks] == [
        (0, f"worker server of pid {pid}", "wait_for_peers")
    ]
    assert stacks[0].ticks is not None
