"""What the console is shown of a job."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from denpexd.catalog.load import load, shipped_rules
from denpexd.core.cadence import Limits
from denpexd.core.events import Exit, Fact, Hit, Joined
from denpexd.core.loops import stalled
from denpexd.core.state import JobState
from denpexd.pipeline import Pipeline
from denpexd.scan.engine import choose_engine
from denpexd.scan.scanner import Scanner
from denpexd.snapshot import job_view
from denpexd.web.view import RANK_STATES

SHIPPED, _ = load([shipped_rules()], strict=False)
TINY, _ = load([Path(__file__).parents[1] / "data" / "tiny"], strict=False)


def line(t: float, rank: int, signal: str, fields: Mapping[str, str] | None = None) -> Hit:
    return Hit(t, rank, f"line.{signal}", f"rank{rank}", 0, signal, fields or {})


@pytest.fixture
def pipeline() -> Pipeline:
    """Four ranks, of which three train a step of half a second, ten at a time."""
    scanner = Scanner([s for s in TINY.signals.values() if s.kind == "log"], choose_engine())
    made = Pipeline(TINY, scanner, start_t=0.0, limits=Limits())
    events = [line(5.0 * n, r, "step", {"step": str(10 * n)}) for n in range(1, 9) for r in range(3)]
    made.evidence("run", [Joined(0.0, 0, node="n1", pid=77, world_size=4), *events])
    return made


def job(pipeline: Pipeline) -> JobState:
    return pipeline.jobs["run"].core.job


def states(pipeline: Pipeline, now: float, verdicts: Sequence[Mapping[str, object]] = ()) -> list[str]:
    return [rank.state for rank in job_view(job(pipeline), now, verdicts, Limits()).ranks]


def test_a_job_that_trains(pipeline: Pipeline) -> None:
    view = job_view(job(pipeline), 42.0, [], Limits())
    assert (view.job, view.attempt, view.step, view.step_seconds, view.world_size) == ("run", 0, 80, 0.5, 4)
    assert (view.phase, view.stall_seconds) == ("train", 0.0)
    assert [r.state for r in view.ranks] == ["running", "running", "running", "unheard"]
    first = view.ranks[0]
    assert (first.rank, first.step, first.silent_for, first.node, first.pid) == (0, 80, 2.0, "n1", 77)
    assert view.ranks[3].silent_for is None


def test_a_stall_counts_from_two_usual_gaps_on(pipeline: Pipeline) -> None:
    assert job_view(job(pipeline), 50.0, [], Limits()).stall_seconds == 0.0
    assert job_view(job(pipeline), 75.0, [], Limits()).stall_seconds == 25.0


def test_ranks_become_silent_after_a_while_and_gone_with_their_process(pipeline: Pipeline) -> None:
    assert states(pipeline, 54.0) == ["running", "running", "running", "unheard"]
    pipeline.evidence("run", [Exit(79.0, 2, None)])
    assert states(pipeline, 81.0) == ["silent", "silent", "gone", "unheard"]


def test_an_incident_says_who_failed_and_who_waits(pipeline: Pipeline) -> None:
    verdict = {"initiating_ranks": [1], "collateral_ranks": (0, 2, 3)}
    assert states(pipeline, 42.0, [verdict]) == ["waiting", "failed", "waiting", "unheard"]


def test_a_job_that_is_done_does_not_stall(pipeline: Pipeline) -> None:
    pipeline.evidence("run", [line(41.0, r, "finished") for r in range(2)])
    pipeline.evidence("run", [Exit(42.0, 2, 0)])
    assert states(pipeline, 5000.0) == ["done", "done", "gone", "unheard"]
    assert job_view(job(pipeline), 5000.0, [], Limits()).stall_seconds == 0.0


def test_a_process_that_was_seen_counts_as_running_before_it_prints(pipeline: Pipeline) -> None:
    pipeline.evidence("run", [Fact(41.0, 3, "running")])
    assert states(pipeline, 42.0)[3] == "running"


def test_every_state_is_one_of_the_published_ones(pipeline: Pipeline) -> None:
    pipeline.evidence("run", [Exit(79.0, 2, None)])
    assert {*states(pipeline, 42.0), *states(pipeline, 90.0)} <= set(RANK_STATES)


def test_a_job_of_which_nothing_is_known_yet() -> None:
    view = job_view(JobState("new", 0.0), 100.0, [], Limits())
    assert (view.step, view.step_seconds, view.stall_seconds, view.phase, list(view.ranks)) == (
        None,
        None,
        0.0,
        "start",
        [],
    )


@pytest.mark.parametrize(
    ("phase", "steps", "seconds", "why"),
    [
        (None, 0, 1200.0, "hang.budgets.start"),
        ("load", 0, 600.0, "hang.budgets.load"),
        (None, 2, 1200.0, "hang.budgets.start"),
        (None, 20, 900.0, "hang.budgets.eval"),
    ],
)
def test_a_silent_job_says_when_silence_is_told_and_by_which_budget(
    pipeline: Pipeline, phase: str | None, steps: int, seconds: float, why: str
) -> None:
    state, limits = JobState("new", 0.0, world_size=1), Limits()
    limits.budgets["load"] = 600.0
    rank = state.rank(0)
    rank.printed, rank.phase, rank.phase_t = True, phase or "start", 0.0
    for _ in range(steps):
        rank.rhythm.moved(5.0, "train", 1)
    rank.moves, state.moves, state.moved_t = steps, steps, 0.0 if steps else None
    view = job_view(state, 100.0, [], limits)
    assert (view.hang_due_t, view.hang_due_by) == (seconds, why)
    beyond = next(s for s in SHIPPED.signals.values() if s.fact == "stalled" and s.params.get("budget"))
    assert not stalled(state, rank, beyond, seconds - 0.5, limits)
    assert stalled(state, rank, beyond, seconds + 0.5, limits)
    assert job_view(state, seconds + 0.5, [], limits).hang_due_t is None  # told


@pytest.mark.parametrize(
    ("open_now", "waits"),
    [({"hang": True, "stopped_t": None}, False), ({"hang": False, "stopped_t": 40.0}, False), ({"hang": False}, True)],
)
def test_silence_that_an_open_stop_explains_is_not_told_again(
    pipeline: Pipeline, open_now: Mapping[str, object], waits: bool
) -> None:
    assert (job_view(job(pipeline), 60.0, [open_now], Limits()).hang_due_t is not None) == waits


def test_a_job_that_is_done_waits_for_no_judgement(pipeline: Pipeline) -> None:
    pipeline.evidence("run", [line(41.0, r, "finished") for r in range(3)])
    assert job_view(job(pipeline), 60.0, [], Limits()).hang_due_t is None
