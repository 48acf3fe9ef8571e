"""Real jobs in which one rank makes one mistake, and what the person on call is told: who, where, why, what to do."""

import contextlib
import importlib.util
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.torch,
    pytest.mark.timeout(900),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed (group e2e)"),
]

JOBS = Path(__file__).parent / "jobs"
LIMIT = 100.0  # seconds from the last line to the alert: 60 where nothing else runs, but here other stories do
LEARNED = 8.0  # seconds of steps from which the daemon knows a rhythm


@dataclass
class Told:
    """The alerts about one job, and when it had printed its last line. Unix seconds."""

    last_line: float
    alerts: list[Any]

    @property
    def first(self) -> Mapping[str, Any]:
        verdict: Mapping[str, Any] = self.alerts[0].verdict
        print(f"\n{verdict['failure']}: {self.alerts[0].at - self.last_line:.1f} s from the last line to the alert")
        return verdict

    @property
    def in_time(self) -> bool:
        return bool(self.alerts[0].at - self.last_line < LIMIT)


def release(pipe: Path) -> None:
    """Let a worker that reads it go on: blocked, it would not notice that its rank was killed, and stay for ever."""
    if pipe.exists():
        with contextlib.suppress(OSError):
            os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))


def standstill(mistake: str, rank: int, ranks: int) -> Callable[[Any], Told]:
    """The story of a job of which one rank makes this mistake."""

    def story(place: Any) -> Told:
        go, sink = place.folder / "go", place.sink()
        job = place.torchrun("one_mistake.py", mistake, "--rank", str(rank), ranks=ranks, env={"GO": str(go)})
        place.watch(job.logs, sink)
        job.wait_for_line("step 9 ")
        while "watching" not in (place.folder / "denpexd.log").read_text():
            time.sleep(0.5)
        time.sleep(LEARNED)
        go.touch()
        if mistake == "none":
            os.kill(job.pids()[rank], signal.SIGSTOP)
        try:
            sink.wait(LIMIT + 15.0)
            time.sleep(6.0)  # the standstill lasts: nothing new
            return Told(job.last_line_at(), sink.alerts)
        finally:
            release(place.folder / "sample.pipe")

    return story


STORIES = {
    "barrier": (75, standstill("barrier", rank=0, ranks=2)),
    "backward": (75, standstill("backward", rank=2, ranks=3)),
    "loader": (100, standstill("loader", rank=1, ranks=2)),
    "order": (75, standstill("order", rank=1, ranks=3)),
    "stopped": (75, standstill("none", rank=1, ranks=2)),
    "eight ranks": (110, standstill("validate", rank=5, ranks=8)),
}


def line_of(text: str) -> str:
    """`one_mistake.py:N`, N being the only line of the job that holds that text."""
    (number,) = (n for n, line in enumerate((JOBS / "one_mistake.py").read_text().splitlines(), 1) if text in line)
    return f"one_mistake.py:{number}"


def quoted(verdict: Mapping[str, Any], rank: int) -> str:
    return "\n".join(f"{e['text']} - {e['means']}" for e in verdict["evidence"] if e["rank"] == rank)


def test_a_barrier_that_one_of_two_ranks_calls_is_named_with_its_place(stories: Any) -> None:
    told = stories["barrier"]
    verdict = told.first
    assert (verdict["failure"], verdict["hang"]) == ("rank-only-collective", True)
    assert (verdict["initiating_ranks"], verdict["collateral_ranks"]) == ([0], [1])
    assert verdict["certainty"] == "likely"  # of two ranks nobody is in the majority
    assert verdict["quick_answer"].endswith(f"Rank 0 stands in train ({line_of('dist.barrier()')}).")
    assert "barrier (torch/distributed/" in quoted(verdict, 0)
    assert "DistributedDataParallel" in quoted(verdict, 1)  # it has gone on to the next forward
    assert told.in_time


def test_a_rank_that_skips_a_backward_is_named_not_those_that_wait_in_theirs(stories: Any) -> None:
    told = stories["backward"]
    verdict = told.first
    assert (verdict["failure"], verdict["hang"]) == ("ddp-skipped-backward", True)
    assert (verdict["initiating_ranks"], verdict["collateral_ranks"]) == ([2], [0, 1])
    assert verdict["certainty"] == "likely"  # it may also have made a forward of its own: its log says neither
    assert f"Rank 2 stands in train ({line_of('model(images)')})." in verdict["quick_answer"]
    assert "buffers" in quoted(verdict, 2)
    assert "backward" in quoted(verdict, 0)
    assert "backward" in quoted(verdict, 1)
    assert "isfinite" in str(verdict["remediation"])
    assert told.in_time


def test_a_rank_that_uses_two_groups_in_another_order_is_named_by_stacks_alone(stories: Any) -> None:
    told = stories["order"]
    verdict = told.first
    assert (verdict["failure"], verdict["hang"]) == ("collective-order-mismatch", True)
    assert (verdict["initiating_ranks"], verdict["collateral_ranks"]) == ([1], [0, 2])
    assert verdict["certainty"] == "likely"  # only the place of the call is another one
    assert f"Rank 1 stands in average ({line_of('# the other order')})." in verdict["quick_answer"]
    assert "all_reduce" in quoted(verdict, 1)
    assert "average" in quoted(verdict, 0)
    assert told.in_time


def test_a_rank_whose_loader_reads_for_ever_is_named(stories: Any) -> None:
    told = stories["loader"]
    verdict = told.first
    assert (verdict["failure"], verdict["hang"]) == ("dataloader-stall", True)
    assert (verdict["initiating_ranks"], verdict["collateral_ranks"]) == ([1], [0])
    assert verdict["certainty"] == "confirmed"
    assert f"Rank 1 stands in train ({line_of('enumerate(loader)')})." in verdict["quick_answer"]
    reads = f"Images._read ({line_of('path.read_bytes()')})"
    assert verdict["quick_answer"].endswith(f"A DataLoader worker of rank 1 is in {reads}.")
    assert "dataloader.py" in quoted(verdict, 1)
    assert told.in_time


def test_a_rank_that_somebody_stopped_is_named_and_can_go_on(stories: Any) -> None:
    told = stories["stopped"]
    verdict = told.first
    assert (verdict["failure"], verdict["hang"]) == ("rank-frozen", True)
    assert (verdict["initiating_ranks"], verdict["collateral_ranks"]) == ([1], [0])
    assert verdict["certainty"] == "confirmed"  # by its state, and by the stack of the one that waits
    assert "is in state T" in quoted(verdict, 1)
    assert "kill -CONT" in verdict["quick_answer"]
    assert told.in_time


def test_of_eight_ranks_the_one_that_evaluates_alone_is_named(stories: Any) -> None:
    told = stories["eight ranks"]
    verdict = told.first
    assert (verdict["failure"], verdict["hang"]) == ("syncbatchnorm-single-rank-eval-deadlock", True)
    assert (verdict["initiating_ranks"], verdict["collateral_ranks"]) == ([5], [0, 1, 2, 3, 4, 6, 7])
    assert verdict["certainty"] == "confirmed"
    assert f"Rank 5 stands in validate ({line_of('argmax')})." in verdict["quick_answer"]
    assert "SyncBatchNorm" in quoted(verdict, 5)
    assert told.in_time


def test_each_standstill_is_told_once(stories: Any) -> None:
    for name in STORIES:
        assert [alert.verdict["event"] for alert in stories[name].alerts] == ["opened"]
