"""Finding the dumps of running ranks, and asking ranks to write them."""

import os
import threading
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from denpexd.clock import ManualClock
from denpexd.core.events import Event, Want
from denpexd.core.flight import Dump
from denpexd.errors import EvidenceUnavailable
from denpexd.evidence import flight_watch
from denpexd.evidence.collect import Collector
from denpexd.evidence.flight_read import Found, read_files
from denpexd.evidence.flight_watch import FlightRecorder
from denpexd.evidence.procs import Processes, RankProcess

RECORDED = Path(__file__).parents[1] / "data" / "flight" / "kinds3" / "trace_rank_1"
STARTED = 1_000_000.0


class Node:
    """Two ranks whose environment the test sets; dumps are written at the time of the clock."""

    def __init__(self, place: Path, **settings: Any) -> None:
        self.folder, self.clock = place, ManualClock(STARTED)
        self.environs: dict[int, dict[str, str]] = {0: {}, 1: {}}
        self.ranks = [
            RankProcess(rank, 100 + rank, 7, "n1", rank, 2, None, "S", 5, None, 1, (), "job") for rank in (0, 1)
        ]
        processes = cast(Processes, SimpleNamespace(environ=self.environ))
        self.recorder = FlightRecorder(processes, self.clock, proc=place / "proc", **settings)

    def environ(self, process: RankProcess, names: Collection[str]) -> dict[str, str]:
        assert "TORCH_FR_DUMP_TEMP_FILE" in names
        return {"HOME": str(self.folder), **self.environs[process.rank]}

    def write(self, name: str, data: bytes | None = None, *, ago: float = 0.0) -> Path:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(RECORDED.read_bytes() if data is None else data)
        t = self.clock.now() - ago
        os.utime(path, (t, t))
        return path

    def started(self, seconds_ago: dict[int, float]) -> None:
        booted = STARTED - 100_000.0
        (self.folder / "proc").mkdir()
        (self.folder / "proc/stat").write_text(f"cpu  1 2 3\nbtime {booted:.0f}\nprocesses 7\n")
        ticks = {rank: int((100_000.0 - ago) * os.sysconf("SC_CLK_TCK")) for rank, ago in seconds_ago.items()}
        self.ranks = [replace(rank, start=ticks[rank.rank]) for rank in self.ranks]

    async def look(self) -> list[Event]:
        await self.clock.advance(2.0)
        await self.recorder.watch(self.ranks)
        await self.recorder.settle()
        return await self.recorder.watch(self.ranks)


def dumps(events: list[Event]) -> list[tuple[int, float]]:
    assert all(isinstance(event, Dump) for event in events)
    return [(event.rank, event.t) for event in events if isinstance(event, Dump)]


async def test_a_dump_is_told_once_when_it_no_longer_grows(tmp_path: Path) -> None:
    node = Node(tmp_path, folder=tmp_path / "fr")
    assert await node.look() == []  # no such folder yet
    node.write("fr/trace_rank_1")
    assert await node.look() == []  # it may still grow
    assert dumps(await node.look()) == [(1, STARTED + 2.0)]
    assert await node.look() == []


async def test_nobody_waits_for_many_dumps_to_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = Node(tmp_path, folder=tmp_path)
    for rank in range(20):
        node.write(f"trace_rank_{rank}")
    await node.look()
    go_on = threading.Event()

    def slowly(paths: list[Path], *more: Any) -> list[Found]:
        go_on.wait(10.0)
        return read_files(paths, *more)

    monkeypatch.setattr(flight_watch, "read_files", slowly)
    await node.clock.advance(2.0)
    for _ in range(3):
        assert await node.recorder.watch(node.ranks) == []  # while they are being read
    go_on.set()
    await node.recorder.settle()
    assert sorted(rank for rank, _ in dumps(await node.recorder.watch(node.ranks))) == list(range(20))


async def test_a_dump_that_is_written_anew_is_told_again(tmp_path: Path) -> None:
    node = Node(tmp_path, folder=tmp_path)
    for _ in range(2):
        node.write("trace_rank_1")
        await node.look()
        assert [rank for rank, _ in dumps(await node.look())] == [1]


@pytest.mark.parametrize(
    ("name", "ago", "counts"),
    [
        ("trace_rank_0", 20.0, True),  # while rank 0 ran, shortly before we came
        ("trace_rank_0", 40.0, False),  # before its process was started
        ("trace_rank_1", 700.0, False),  # while rank 1 ran, but of another moment
        ("trace_rank_1", 500.0, True),
        ("trace_rank_5", 500.0, True),  # of another node, since the job runs here
        ("trace_rank_5", 700.0, False),
    ],
)
async def test_dumps_from_before_we_came_count_if_they_are_fresh_and_of_what_still_runs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, ago: float, counts: bool
) -> None:
    node = Node(tmp_path, folder=tmp_path)
    node.started(seconds_ago={0: 30.0, 1: 3600.0})
    node.write(name, ago=ago)
    caplog.set_level("INFO")
    found = [dumps(await node.look()) for _ in range(4)]
    assert bool(found[1]) is counts
    assert not found[2]
    assert caplog.text.count("left alone") == (not counts)


@pytest.mark.parametrize("ago", [5.0, 500.0])
async def test_an_old_dump_counts_from_when_it_was_found(tmp_path: Path, ago: float) -> None:
    node = Node(tmp_path, folder=tmp_path)
    node.started(seconds_ago={0: 3600.0, 1: 3600.0})
    node.write("trace_rank_0", ago=ago)
    await node.look()
    assert dumps(await node.look()) == [(0, STARTED + 4.0)]


async def test_dumps_from_before_we_came_say_nothing_about_a_job_that_is_not_here(tmp_path: Path) -> None:
    node = Node(tmp_path, folder=tmp_path)
    node.started(seconds_ago={0: 3600.0, 1: 3600.0})
    node.ranks = []
    node.write("trace_rank_0", ago=5.0)
    assert [await node.look() for _ in range(3)] == [[], [], []]


@pytest.mark.parametrize("variable", ["TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"])
async def test_the_environment_of_the_ranks_tells_where_dumps_appear(tmp_path: Path, variable: str) -> None:
    node = Node(tmp_path)
    node.environs[0] = {variable: f"{tmp_path}/out/r_"}
    node.environs[1] = {variable: f"{tmp_path}/other/r_"}
    node.write("out/r_0")
    node.write("out/r_1")  # rank 1 writes elsewhere
    await node.look()
    assert [rank for rank, _ in dumps(await node.look())] == [0]


async def test_without_a_variable_dumps_lie_where_torch_puts_them(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.write(".cache/torch/comm_lib_trace_rank_1")
    await node.look()
    assert [rank for rank, _ in dumps(await node.look())] == [1]


async def test_a_container_of_the_rank_is_reached_through_its_process(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.environs[1] = {"TORCH_FR_DUMP_TEMP_FILE": "/nowhere/here/r_"}
    node.write("proc/101/root/nowhere/here/r_1")
    await node.look()
    assert [rank for rank, _ in dumps(await node.look())] == [1]


async def test_a_damaged_dump_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    node = Node(tmp_path, folder=tmp_path)
    node.write("trace_rank_0", RECORDED.read_bytes()[:100])
    node.write("trace_rank_1")
    await node.look()
    assert [rank for rank, _ in dumps(await node.look())] == [1]
    assert await node.look() == []
    assert caplog.text.count("truncated: it ends after 100 bytes") == 1


def listening(node: Node, rank: int) -> int:
    """The pipe of a rank that has it open, as torch has."""
    node.environs[rank]["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] = f"{node.folder}/pipe_"
    pipe = node.folder / f"pipe_{rank}.pipe"
    os.mkfifo(pipe)
    return os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)


async def test_ranks_that_listen_are_asked_once(tmp_path: Path) -> None:
    node = Node(tmp_path)
    reader = listening(node, 0)
    for _ in range(3):
        assert await node.recorder.collect(node.ranks) == []
    assert os.read(reader, 10) == b"1"
    restarted = replace(node.ranks[0], start=8)
    await node.recorder.collect([restarted])
    assert os.read(reader, 10) == b"1"
    os.close(reader)


async def test_a_plan_names_the_pipes_and_writes_into_none(tmp_path: Path) -> None:
    node = Node(tmp_path)
    reader = listening(node, 0)
    assert await node.recorder.plan(node.ranks) == [f"for the dump of rank 0 (a byte into {tmp_path}/pipe_0.pipe)"]
    assert os.read(reader, 10) == b""
    os.close(reader)


async def test_a_pipe_without_a_listener_blocks_nobody_and_is_said(tmp_path: Path) -> None:
    node = Node(tmp_path)
    os.close(listening(node, 0))
    with pytest.raises(EvidenceUnavailable, match="nobody listens"):
        await node.recorder.collect(node.ranks[:1])


async def test_only_pipes_are_written_to(tmp_path: Path) -> None:
    node = Node(tmp_path)
    node.environs[0]["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] = f"{tmp_path}/pipe_"
    victim = node.write("victim", b"precious")
    (tmp_path / "pipe_0.pipe").write_bytes(b"file")
    with pytest.raises(EvidenceUnavailable, match="is no pipe"):
        await node.recorder.collect(node.ranks[:1])
    (tmp_path / "pipe_0.pipe").unlink()
    (tmp_path / "pipe_0.pipe").symlink_to(victim)
    with pytest.raises(EvidenceUnavailable):
        await node.recorder.collect([replace(node.ranks[0], start=9)])
    assert (victim.read_bytes(), (tmp_path / "pipe_0.pipe").is_symlink()) == (b"precious", True)


async def test_the_switch_forbids_asking(tmp_path: Path) -> None:
    node = Node(tmp_path, trigger=False)
    reader = listening(node, 0)
    assert await node.recorder.collect(node.ranks) == []
    assert os.read(reader, 10) == b""  # nobody has opened it
    os.close(reader)


async def test_the_collector_tells_of_dumps_as_of_processes(tmp_path: Path) -> None:
    node = Node(tmp_path, folder=tmp_path)
    collector = Collector(Processes(root_pid=1 << 30), node.clock, stacks="off", flight=node.recorder)
    node.write("trace_rank_1")
    seen: list[Event] = []
    for _ in range(2):
        await node.clock.advance(2.0)
        seen += await collector.watch()
        await node.recorder.settle()
    seen += await collector.watch()
    assert [rank for rank, _ in dumps([e for e in seen if isinstance(e, Dump)])] == [1]
    assert collector.counts["dumps", "read"] == 1
    assert not [e for e in await collector.collect(Want(node.clock.now(), "dumps", (), "x")) if isinstance(e, Dump)]
