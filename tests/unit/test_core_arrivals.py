"""Who comes to every step later than the others, and what only looks like it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from denpexd.catalog.load import load
from denpexd.core.arrivals import KEPT_UP, OPEN, STEPS
from denpexd.core.cadence import Limits
from denpexd.core.events import Attempt, Hit
from denpexd.core.facts import holds
from denpexd.core.intake import Intake
from denpexd.core.rule import Signal
from denpexd.core.state import JobState

TINY, _ = load([Path(__file__).parents[1] / "data" / "tiny"], strict=False)
LATE = Signal("own.x", "fact", "because", fact="late")
STEP = 10.0


class Run:
    """Steps of ranks that wait for each other; `delay` says how much later each comes to one."""

    def __init__(self, world_size: int = 3, *, nodes: bool = False) -> None:
        self.job = JobState("job", 0.0, world_size=world_size)
        self.intake = Intake(TINY, self.job)
        self.t, self.step, self.world_size = 0.0, 0, world_size
        for rank in range(world_size):
            self.job.rank(rank).node = "n1" if nodes else None

    def go(self, steps: int, delay: Callable[[int, int], float]) -> "Run":
        for _ in range(steps):
            self.step += 1
            delays = {rank: delay(rank, self.step) for rank in range(self.world_size)}
            for rank, later in sorted(delays.items(), key=lambda item: item[1]):
                self.say(rank, self.t + later)
            self.t += STEP + max(0.0, *delays.values())
        return self

    def say(self, rank: int, t: float) -> None:
        self.job.seq += 1
        fields = {"step": str(self.step)}
        self.intake.hit(Hit(t, rank, "line.step", f"r{rank}", self.job.seq, f"step {self.step}", fields))

    def who(self) -> list[int]:
        return [r for r in range(self.world_size) if holds(self.job, self.job.rank(r), LATE, self.t, 3600.0, Limits())]


def jitter(rank: int, step: int) -> float:
    return 0.1 * ((rank * 7 + step * 3) % 5)


def half(rank: int, step: int) -> float:
    return 6.0 + jitter(0, step) if rank == 1 else jitter(rank, step)


@pytest.mark.parametrize("world_size", [2, 3, 8])
def test_a_rank_that_begins_to_come_late(world_size: int) -> None:
    run = Run(world_size).go(KEPT_UP + 3, jitter).go(STEPS - 1, half)
    assert run.who() == []
    assert run.go(3, half).who() == [1]
    run.intake.attempt(Attempt(run.t, 1))
    assert run.who() == []


def test_always_late_counts_only_against_ranks_of_the_same_node() -> None:
    assert Run().go(3 * STEPS, half).who() == []  # another clock, a slow mount
    assert Run(nodes=True).go(3 * STEPS, half).who() == [1]


@pytest.mark.parametrize(
    "delay",
    [
        lambda r, s: 1.0 + jitter(r, s) if r == 1 else jitter(r, s),  # small against a step
        lambda r, s: 6.0 if r == s % 3 else jitter(r, s),  # in turn
        lambda r, s: 6.0 if r == 1 and s % 5 else jitter(r, s),  # a checkpoint of the others every fifth step
        lambda r, s: 6.0 * r,  # no crowd that one could stand out of
        lambda r, s: (4.0 + 6.0 * (s % 2)) if r == 1 else jitter(r, s),  # not by about as much
    ],
)
def test_what_is_no_late_rank(delay: Callable[[int, int], float]) -> None:
    run = Run(nodes=True).go(KEPT_UP + 3, jitter)
    for _ in range(3 * STEPS):
        assert run.go(1, delay).who() == []


def play(run: Run, when: Callable[[int, int], float], steps: int = 40) -> list[int]:
    """Ranks that do not wait for each other; `when` each prints a step."""
    start, first = run.t, run.step + 1
    said = sorted((start + when(r, n), r, n) for r in range(run.world_size) for n in range(steps))
    for t, rank, n in said:
        run.step, run.t = first + n, t
        run.say(rank, t)
        assert run.who() == []
    return run.who()


def test_later_than_a_step_is_no_waiting() -> None:
    assert play(Run(nodes=True).go(KEPT_UP + 3, jitter), lambda r, n: STEP * n + (24.0 if r == 1 else 0.0)) == []


def test_lines_that_come_in_bursts_tell_nothing() -> None:
    run = Run(nodes=True).go(KEPT_UP + 3, jitter)
    assert play(run, lambda r, n: STEP * n if r != 1 else STEP * (n // 2 * 2 + 1) + 6.0) == []


def test_steps_that_only_some_ranks_come_to_are_dropped() -> None:
    run = Run()
    for _ in range(100):
        run.step += 1
        run.say(run.step % 3, run.t)
        run.t += 1.0
    assert len(run.job.arrivals.open) <= OPEN
