"""Processes that their prefix names, and which rank they are."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import re2

from denpexd.catalog.load import load
from denpexd.core.correlate import Correlator
from denpexd.core.events import UNKNOWN_RANK, Event, Hit, Joined, Raised, Tick, Want
from denpexd.core.intake import Intake
from denpexd.core.records import MAX_SPEAKERS, Processes, process_of
from denpexd.core.rule import Catalog, Signal
from denpexd.core.state import JobState

TINY, _ = load([Path(__file__).parents[1] / "data" / "tiny"], strict=False)
THIRD = {"actor": "RayTrainWorker", "pid": "813", "ip": "10.0.0.3"}
PROCESS = "pid=813, ip=10.0.0.3"


def raised(process: str = PROCESS, message: str = "bad magic", t: float = 5.0) -> Raised:
    chain = (("FormatError", message),)
    return Raised(t, UNKNOWN_RANK, "job.err", 7, f"FormatError: {message}", chain, (), True, process=process)


def step(t: float, rank: int, number: int, fields: dict[str, str]) -> Hit:
    return Hit(t, rank, "line.step", "job.out", number, f"step {number}", {"step": str(number), **fields})


def verdict(events: Sequence[Event]) -> dict[str, Any]:
    """The last word about a job of four ranks that has trained."""
    core = Correlator(TINY, "job", start_t=0.0, world_size=4)
    said = [out for n in range(3) for out in core.feed([step(1.0 + n, rank, n, {}) for rank in range(3)])]
    last = 5.0
    for event in events:
        said += core.feed([event])
        last = event.t
    for second in range(1, 60):
        said += core.feed([Tick(last + second)])
    return dict([out.verdict for out in said if not isinstance(out, Want)][-1])


@pytest.mark.parametrize(
    ("fields", "process"),
    [
        (THIRD, PROCESS),
        ({"actor": "TrainWorker", "pid": "813"}, "pid=813"),
        ({"pid": "813"}, ""),  # a capture of a signal, not a prefix
        ({"actor": "autoscaler"}, ""),
    ],
)
def test_what_a_prefix_names(fields: dict[str, str], process: str) -> None:
    assert process_of(fields) == process


def test_a_line_of_another_stream_tells_the_rank_of_a_process() -> None:
    assert verdict([step(4.0, 3, 1, THIRD), raised()])["initiating_ranks"] == [3]


def test_so_does_one_that_comes_later() -> None:
    end = Hit(8.0, 3, "line.saving", "job.out", 9, "saving", THIRD)
    assert verdict([raised(), end])["initiating_ranks"] == [3]


def test_so_does_the_launcher() -> None:
    assert verdict([Joined(2.0, 3, None, 813), raised()])["initiating_ranks"] == [3]


@pytest.mark.parametrize(("actor", "ranks"), [("0:3", [3]), ("1:3", []), ("0:9", [])])
def test_verls_driver_names_an_actor_by_node_and_local_rank(actor: str, ranks: list[int]) -> None:
    died = raised("", f"The actor died\n\tpid: 87687\n\tname: 07GxnAWorkerDict_{actor}\n\tip: 10.0.0.3")
    assert verdict([died])["initiating_ranks"] == ranks


@pytest.mark.parametrize("event", [raised(), raised("", f"bad ray::Worker.run() ({PROCESS}, actor_id=1f)")])
def test_without_any_the_process_is_named(event: Raised) -> None:
    said = verdict([event])
    assert said["initiating_ranks"] == []
    assert f"the process {PROCESS}" in said["summary"]


def test_a_process_that_speaks_for_several_ranks_is_none_of_them() -> None:
    driver = [step(4.0, rank, 1, THIRD) for rank in (0, 1)]
    assert verdict([*driver, raised()])["initiating_ranks"] == []


def test_what_is_remembered_is_bounded() -> None:
    known = Processes()
    for n in range(2 * MAX_SPEAKERS):
        known.spoke(PROCESS, "job.err", n)
    assert len(known.speakers) == MAX_SPEAKERS


def test_a_process_that_a_line_only_speaks_of_did_not_print_it() -> None:
    died = re2.compile(r"worker (?P<pid>\d+) is gone")
    signal = Signal("line.died", "log", "it speaks of a worker", pattern=died.pattern, matcher=died)
    job = JobState("job", 0.0, world_size=4)
    intake = Intake(Catalog({}, {signal.id: signal}), job)
    intake.hit(Hit(1.0, 2, signal.id, "job.out", 1, "worker 813 is gone", {"actor": "raylet", "pid": "813"}))
    assert job.processes.ranks == {}
    assert job.ranks[2].pid is None
