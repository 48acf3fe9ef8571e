"""Asking NCCL's RAS: against a server on the loopback that speaks its protocol as the releases of NCCL do."""

import asyncio
import json
import re
import socket
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from denpexd.clock import ManualClock
from denpexd.errors import EvidenceUnavailable
from denpexd.evidence.procs import Processes, RankProcess
from denpexd.evidence.ras import ANSWER_LIMIT, Ras

HOST = "127.0.0.1"
MIB = b" " * (1 << 20)


class Nccl:
    """What listens on the status port. `release` decides which commands are known; `reports` are given in turn."""

    def __init__(self, release, *reports):
        self.release, self.reports, self.heard = release, list(reports), []
        self.answering = True

    async def serve(self, reader, writer):
        try:
            while line := await reader.readline():
                command = line.decode().strip().upper()
                self.heard.append(command)
                if command.endswith("STATUS"):
                    await self.report(writer)
                    break
                writer.write(self.answer(command).encode())
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    async def report(self, writer):
        if not self.answering:
            await asyncio.Event().wait()
        report = self.reports.pop(0) if len(self.reports) > 1 else self.reports[0]
        for piece in report if isinstance(report, list) else [report.encode()]:
            writer.write(piece)
            await writer.drain()

    def answer(self, command):
        if command.startswith("CLIENT PROTOCOL "):
            return "SERVER PROTOCOL 2\n"
        if command.startswith("TIMEOUT "):
            return "OK\n"
        if command.startswith("SET FORMAT ") and self.release >= (2, 28, 7):
            return "OK\n"
        if command.startswith("MONITOR") and self.release >= (2, 29, 2):
            return "ERROR: Invalid event group 'NONE'\n"
        return f"ERROR: Unknown command {command}\n"

    @asynccontextmanager
    async def listening(self):
        tasks = set()

        def connected(reader, writer):
            task = asyncio.get_running_loop().create_task(self.serve(reader, writer))
            tasks.add(task)

        server = await asyncio.start_server(connected, HOST, 0)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await server.wait_closed()


class Node:
    """Two ranks of a job of four, as the process file system shows them; two more are on another node."""

    def __init__(self, proc: Path) -> None:
        self.proc = proc
        for rank in range(2):
            folder = proc / str(100 + rank)
            folder.mkdir(parents=True)
            (folder / "environ").write_text("")
            (folder / "status").write_text(f"Name:\tpython\nNSpid:\t{100 + rank}\t{7 + rank}\n")

    def environ(self, **variables):
        (self.proc / "100/environ").write_text("\0".join(f"{k}={v}" for k, v in variables.items()))

    def runs(self, library):
        (self.proc / "100/maps").write_text(f"7f00-7f01 r-xp 00000000 08:01 12 {library}\n")

    @property
    def ranks(self):
        return [RankProcess(rank, 100 + rank, 1, "n1", rank, 4, None, "S", 5, None, 3, (), "job") for rank in range(2)]


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path / "proc")


@pytest.fixture
def clock():
    return ManualClock(100.0)


@pytest.fixture
def ras(node, clock):
    asker = Ras(Processes(node.proc), clock, proc=node.proc)
    yield asker
    asker.close()


@pytest.fixture
def daring(node, clock):
    asker = Ras(Processes(node.proc), clock, daring=True, proc=node.proc)
    yield asker
    asker.close()


def entry(rank, **counts):
    """Ranks 0 and 1 live here, under the process numbers of their own container; 2 and 3 on another node."""
    host, pid = (HOST, 7 + rank) if rank < 2 else ("10.9.8.7", 5 + rank)
    status = {"init_state": 0, "async_error": 0, "finalize_called": False, "destroy_flag": False, "abort_flag": False}
    known = {"rank": rank, "host": host, "pid": pid, "cuda_dev": rank % 2, "nvml_dev": rank % 2}
    return {**known, "status": status, "collective_counts": {"Broadcast": 2, "AllGather": 10, **counts}}


def absent(rank, *, dead=False):
    known = {key: value for key, value in entry(rank).items() if key in ("rank", "host", "pid", "cuda_dev", "nvml_dev")}
    return {**known, "status": {"unresponsive": True, "considered_dead": dead}}


def report(ranks, missing=(), name="0xae94423cfbb2ef4a", size=4, version="2.29.7"):
    one = {"hash": name, "secondary_hash": "0x1:0x2", "size": size}
    one |= {"ranks_count": len(ranks), "missing_ranks_count": len(missing)}
    one |= {"ranks": ranks, "missing_ranks": list(missing)}
    head = {"nccl_version": version, "cuda_runtime_version": 13000, "timestamp": "2026-01-02 03:04:05"}
    ras = {"collection_time_sec": 0.001, "timeouts_count": 0}
    return json.dumps({**head, "communicators_count": 1, "communicators": [one], "ras": ras}, indent=2)


def told(events):
    return [(event.name, event.rank) for event in events]


HEALTHY = report([entry(rank, AllReduce=500) for rank in range(4)])
BEHIND = report([entry(rank, AllReduce=499 if rank == 3 else 500) for rank in range(4)])
CROSSED = report([entry(0, AllGather=11, AllReduce=500), *(entry(rank, AllReduce=501) for rank in (1, 2, 3))])


async def ask_twice(asker, node, nccl, clock):
    """As the core asks in one standstill."""
    async with nccl.listening() as port:
        node.environ(NCCL_RAS_ADDR=f"{HOST}:{port}")
        first = await asker.collect(node.ranks)
        await clock.advance(12)
        return first, await asker.collect(node.ranks)


async def test_who_is_behind_in_two_equal_answers_is_told_by_its_global_rank(ras, node, clock):
    node.runs("/usr/lib/libnccl.so.2.29.7")
    nccl = Nccl((2, 29, 7), BEHIND)
    first, second = await ask_twice(ras, node, nccl, clock)
    assert (first, told(second)) == ([], [("launched_less", 3)])
    assert second[0].fields == {"group": "0xae94423cfbb2ef4a", "launched": "511", "most": "512"}
    assert nccl.heard == ["CLIENT PROTOCOL 2", "TIMEOUT 5", "SET FORMAT JSON", "VERBOSE STATUS"] * 2


async def test_counts_that_still_move_prove_nothing(ras, node, clock):
    node.runs("/usr/lib/libnccl.so.2.29.7")
    moved = report([entry(rank, AllReduce=500 if rank == 3 else 501) for rank in range(4)])
    assert await ask_twice(ras, node, Nccl((2, 29, 7), BEHIND, moved), clock) == ([], [])


async def test_equal_counts_name_nobody_which_is_told(ras, node, clock):
    node.runs("/usr/lib/libnccl.so.2.29.7")
    first, second = await ask_twice(ras, node, Nccl((2, 29, 7), HEALTHY), clock)
    assert (first, told(second)) == ([], [("launched_same", rank) for rank in range(4)])


async def test_ranks_that_are_ahead_of_a_majority_leave_it_open_who_is_late(ras, node, clock):
    node.runs("/usr/lib/libnccl.so.2.29.7")
    ahead = report([entry(rank, AllReduce=501 if rank == 1 else 500) for rank in range(4)])
    assert await ask_twice(ras, node, Nccl((2, 29, 7), ahead), clock) == ([], [])


async def test_each_ahead_of_the_other_stands_in_another_collective(ras, node, clock):
    node.runs("/usr/lib/libnccl.so.2.29.7")
    _, second = await ask_twice(ras, node, Nccl((2, 29, 7), CROSSED), clock)
    assert {(e.rank, e.fields["op"]) for e in second} == {
        (0, "ALLGATHER"), (1, "ALLREDUCE"), (2, "ALLREDUCE"), (3, "ALLREDUCE")
    }  # fmt: skip


async def test_a_process_without_an_answer_counts_the_second_time_a_dead_one_at_once(ras, node, clock):
    node.runs("/usr/lib/libnccl.so.2.29.7")
    others = [entry(rank, AllReduce=500) for rank in range(3)]
    first, second = await ask_twice(ras, node, Nccl((2, 29, 7), report(others, [absent(3)])), clock)
    assert (first, told(second)) == ([], [("unreachable", 3)])
    await clock.advance(1000)
    nccl = Nccl((2, 29, 7), report(others, [absent(3, dead=True)]))
    async with nccl.listening() as port:
        node.environ(NCCL_RAS_ADDR=f"{HOST}:{port}")
        assert told(await ras.collect(node.ranks)) == [("unreachable", 3)]


async def test_two_queries_in_ten_minutes_whatever_is_asked(ras, node, clock):
    node.runs("/usr/lib/libnccl.so.2.29.7")
    nccl = Nccl((2, 29, 7), BEHIND)
    async with nccl.listening() as port:
        node.environ(NCCL_RAS_ADDR=f"{HOST}:{port}")
        for _ in range(5):
            await ras.collect(node.ranks)
            await clock.advance(60)
        assert nccl.heard.count("VERBOSE STATUS") == 2
        await clock.advance(400)
        await ras.collect(node.ranks)
        assert nccl.heard.count("VERBOSE STATUS") == 3


@pytest.mark.parametrize(
    ("library", "said"),
    [
        ("/usr/lib/libnccl.so.2.24.3", "1718"),
        ("/usr/lib/libnccl.so.2.26.5", "1718"),
        ("/opt/x/libnccl.so.2.27.3", "1762"),
        ("/usr/lib/libnccl.so.2.28.9", "1762"),
        ("/usr/lib/libnccl.so.2.21.5", "no RAS"),
    ],
)
async def test_releases_with_a_known_flaw_are_not_even_connected_to(ras, node, library, said):
    node.runs(library)
    nccl = Nccl((2, 29, 7), BEHIND)
    async with nccl.listening() as port:
        node.environ(NCCL_RAS_ADDR=f"{HOST}:{port}")
        with pytest.raises(EvidenceUnavailable, match=said):
            await ras.collect(node.ranks)
    assert nccl.heard == []


@pytest.mark.parametrize(("release", "name"), [((2, 27, 5), "2.28.3"), ((2, 28, 9), "2.28.9")])
async def test_a_release_that_no_file_tells_is_told_by_the_commands_it_knows(ras, node, release, name):
    nccl = Nccl(release, BEHIND)
    async with nccl.listening() as port:
        node.environ(NCCL_RAS_ADDR=f"{HOST}:{port}")
        with pytest.raises(EvidenceUnavailable, match=name):
            await ras.collect(node.ranks)
    assert not any(command.endswith("STATUS") for command in nccl.heard)


async def test_an_unknown_release_that_knows_the_newest_command_is_asked(ras, node, clock):
    _, second = await ask_twice(ras, node, Nccl((2, 29, 2), BEHIND), clock)
    assert told(second) == [("launched_less", 3)]


async def test_the_release_of_a_wheel_is_in_its_metadata(ras, node):
    site = node.proc / "100/root/env/lib/python3.12/site-packages"
    (site / "nvidia_nccl_cu12-2.27.5.dist-info").mkdir(parents=True)
    node.runs("/env/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2")
    with pytest.raises(EvidenceUnavailable, match=r"NCCL 2\.27\.5 is not asked"):
        await ras.collect(node.ranks)


async def test_who_accepts_the_risk_gets_the_missing_comma_of_2_28_9_mended(daring, node, clock):
    node.runs("/usr/lib/libnccl.so.2.28.9")
    text = report([entry(rank, AllReduce=500) for rank in range(3)], [absent(3)], version="2.28.9")
    broken = re.sub(r'("nvml_dev": \d+),(\s+"status": \{\s+"unresponsive")', r"\1\2", text)
    with pytest.raises(ValueError, match="delimiter"):
        json.loads(broken)
    _, second = await ask_twice(daring, node, Nccl((2, 28, 9), broken), clock)
    assert told(second) == [("unreachable", 3)]


TEXT = """
NCCL version 2.27.5 compiled with CUDA 12.9
CUDA runtime version 12090, driver version 12090

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      2          2            1          4        4

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         2         2         4         4   RUNNING  {errors}

Errors
======

{found}
Warnings
========

{warned}"""
TEXT_BEHIND = """#0-0 (27a079b828ff1a75) MISMATCH
  Communicator ranks have different AllReduce operation counts
  3 ranks have launched up to operation 640
  Rank 1 has launched up to operation 639 -- GPU 1 managed by process 8 on node 127.0.0.1

"""
TEXT_LOST = """INCOMPLETE
  Missing communicator data from 1 job process
  Process 8 on node 127.0.0.1 managing GPU 1

#0-0 (27a079b828ff1a75) INCOMPLETE
  Missing communicator data from 1 rank
  Rank 1 -- GPU 1 managed by process 8 on node 127.0.0.1

"""


async def test_the_text_of_releases_before_json_is_read_too(daring, node, clock):
    node.runs("/usr/lib/libnccl.so.2.27.5")
    nccl = Nccl((2, 27, 5), TEXT.format(errors="MISMATCH", found="", warned=TEXT_BEHIND))
    _, second = await ask_twice(daring, node, nccl, clock)
    assert told(second) == [("launched_less", 1)]
    assert "SET FORMAT JSON" not in nccl.heard


async def test_a_lost_process_in_the_text(daring, node, clock):
    node.runs("/usr/lib/libnccl.so.2.26.2")
    nccl = Nccl((2, 26, 2), TEXT.format(errors="INCOMPLETE", found=TEXT_LOST, warned=""))
    _, second = await ask_twice(daring, node, nccl, clock)
    assert told(second) == [("unreachable", 1)]


async def test_another_job_on_the_port_is_not_taken_for_ours(ras, node):
    node.runs("/usr/lib/libnccl.so.2.29.7")
    foreign = report([{**entry(rank), "pid": 5000 + rank} for rank in range(4)])
    async with Nccl((2, 29, 7), foreign).listening() as port:
        node.environ(NCCL_RAS_ADDR=f"{HOST}:{port}")
        with pytest.raises(EvidenceUnavailable, match="no ranks of this job"):
            await ras.collect(node.ranks)


async def test_a_plan_names_the_place_and_connects_to_nobody(ras, node):
    node.runs("/usr/lib/libnccl.so.2.29.7")
    nccl = Nccl((2, 29, 7), HEALTHY)
    async with nccl.listening() as port:
        node.environ(NCCL_RAS_ADDR=f"{HOST}:{port}")
        assert await ras.plan(node.ranks) == [f"NCCL RAS of 2.29.7 at {HOST}:{port} for VERBOSE STATUS"]
        node.runs("/usr/lib/libnccl.so.2.26.5")
        with pytest.raises(EvidenceUnavailable, match=r"2\.26\.5"):
            await ras.plan(node.ranks)
    assert nccl.heard == []


async def test_one_asker_on_a_node(ras, node, clock):
    node.runs("/usr/lib/libnccl.so.2.29.7")
    other = Ras(Processes(node.proc), clock, proc=node.proc)
    nccl = Nccl((2, 29, 7), BEHIND)
    async with nccl.listening() as port:
        node.environ(NCCL_RAS_ADDR=f"{HOST}:{port}")
        await ras.collect(node.ranks)
        with pytest.raises(EvidenceUnavailable, match="another denpexd"):
            await other.collect(node.ranks)
        ras.close()
        await other.collect(node.ranks)
    other.close()
    assert nccl.heard.count("VERBOSE STATUS") == 2


async def test_the_job_can_switch_it_off(ras, node):
    node.environ(NCCL_RAS_ENABLE="0")
    with pytest.raises(EvidenceUnavailable, match="NCCL_RAS_ENABLE=0"):
        await ras.collect(node.ranks)


@pytest.mark.parametrize("address", ["nowhere", "host:99999", ":28028", "192.0.2.1:28028", "example.com:80"])
async def test_an_address_that_is_not_of_this_node_is_not_connected_to(ras, node, address):
    node.environ(NCCL_RAS_ADDR=address)
    with pytest.raises(EvidenceUnavailable, match="NCCL_RAS_ADDR"):
        await ras.collect(node.ranks)


async def test_a_network_of_its_own_is_said(ras, node):
    (node.proc / "self/ns").mkdir(parents=True)
    (node.proc / "100/ns").mkdir()
    (node.proc / "self/ns/net").symlink_to("net:[1]")
    (node.proc / "100/ns/net").symlink_to("net:[2]")
    with pytest.raises(EvidenceUnavailable, match="network namespace"):
        await ras.collect(node.ranks)


async def test_nobody_at_the_port_is_worth_a_word_only_where_nccl_is_in_use(ras, node):
    with socket.socket() as unused:
        unused.bind((HOST, 0))
        node.environ(NCCL_RAS_ADDR=f"{HOST}:{unused.getsockname()[1]}")
        assert await ras.collect(node.ranks) == []
        node.runs("/usr/lib/libnccl.so.2.29.7")
        with pytest.raises(EvidenceUnavailable, match="cannot be reached at"):
            await ras.collect(node.ranks)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (HEALTHY[: len(HEALTHY) // 2], "cannot be read"),
        ("", "cannot be read"),
        ("[" * 100_000, "cannot be read"),
        ("{" + '"a":[' * 100_000, "cannot be read"),
        ([MIB] * (ANSWER_LIMIT // len(MIB) + 2), "longer than"),
    ],
)
async def test_an_answer_that_is_none_is_said(ras, node, answer, said):
    node.runs("/usr/lib/libnccl.so.2.29.7")
    async with Nccl((2, 29, 7), answer).listening() as port:
        node.environ(NCCL_RAS_ADDR=f"{HOST}:{port}")
        with pytest.raises(EvidenceUnavailable, match=said):
            await ras.collect(node.ranks)


async def test_something_else_on_the_port_is_left_alone(ras, node):
    async def serve(reader, writer):
        writer.write(b"SSH-2.0-OpenSSH_9.6\r\n")
        writer.close()

    node.runs("/usr/lib/libnccl.so.2.29.7")
    server = await asyncio.start_server(serve, HOST, 0)
    async with server:
        node.environ(NCCL_RAS_ADDR=f"{HOST}:{server.sockets[0].getsockname()[1]}")
        with pytest.raises(EvidenceUnavailable, match="something else"):
            await ras.collect(node.ranks)


async def test_who_never_answers_is_given_up(ras, node, monkeypatch):
    monkeypatch.setattr("denpexd.evidence.ras.ANSWER", 0.2)
    node.runs("/usr/lib/libnccl.so.2.29.7")
    nccl = Nccl((2, 29, 7), BEHIND)
    nccl.answering = False
    async with nccl.listening() as port:
        node.environ(NCCL_RAS_ADDR=f"{HOST}:{port}")
        with pytest.raises(EvidenceUnavailable, match="did not answer within"):
            await ras.collect(node.ranks)
