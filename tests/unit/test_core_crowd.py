"""Ten thousand ranks of one job: one page, and judging that costs in proportion to them: counted, not timed."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

import pytest

from denpexd.core.correlate import AT_ONCE, BETWEEN, EACH_SECOND
from denpexd.core.events import Event, Tick
from denpexd.core.rank import RankState

from .jobs import Run, line, raised, step

FEW, MANY = 500, 10_000
TICKS = 14
LOOKS = 3  # at all ranks, at a tick in a standstill


def trains(world: int) -> Run:
    run = Run(world)
    for n in range(1, 5):
        run.at(n, *(step(rank, n) for rank in range(world)))
    return run


def all_fail(world: int) -> list[Sequence[Event]]:
    """The same error of all, each rank in a batch of its own, as its file is read."""
    return [(raised(rank),) for rank in range(world)]


def one_fails(world: int) -> list[Sequence[Event]]:
    """One fails and all others complain, one after the other."""
    return [(raised(7),), *((line(rank, "lost"),) for rank in range(world) if rank != 7)]


@cache
def watched(world: int, happens: Callable[[int], list[Sequence[Event]]]) -> tuple[Run, list[int]]:
    """The job, and how many questions about single ranks were asked in each second since."""
    run, costs = trains(world), []
    for batch in happens(world):
        run.at(5.5, *batch)
    for t in range(6, 6 + TICKS):
        before = run.core.asked
        run.said += run.core.feed([Tick(float(t))])
        costs.append(run.core.asked - before)
    return run, costs


@pytest.mark.parametrize("happens", [all_fail, one_fails])
def test_ten_thousand_ranks_are_one_page(happens: Callable[[int], list[Sequence[Event]]]) -> None:
    run, _ = watched(MANY, happens)
    opened = run.changes()
    assert [v["event"] for v in opened] == ["opened"]
    assert len(opened[0]["initiating_ranks"]) == (MANY if happens is all_fail else 1)
    assert len(opened[0]["collateral_ranks"]) == (0 if happens is all_fail else MANY - 1)
    assert len(opened[0]["evidence"]) <= 12


@pytest.mark.parametrize("happens", [all_fail, one_fails])
def test_judging_costs_in_proportion_to_the_ranks(happens: Callable[[int], list[Sequence[Event]]]) -> None:
    """Each batch of ten thousand asks about all ranks: a hundred million questions, if each were judged at once."""
    few, many = (watched(world, happens) for world in (FEW, MANY))
    assert 0 < many[0].core.asked <= 2 * MANY / FEW * few[0].core.asked
    a_rule = 8 * MANY  # the rule that is begun is judged to its end
    assert max(many[1]) <= AT_ONCE + a_rule
    assert sum(many[1]) <= TICKS * EACH_SECOND + AT_ONCE + a_rule


def test_batches_ask_a_bounded_number_of_questions_between_two_ticks() -> None:
    run = trains(FEW)
    before = run.core.asked
    for batch in one_fails(FEW):
        run.at(5.5, *batch)
    assert 0 < run.core.asked - before <= BETWEEN + 8 * FEW


class Looked(dict[int, RankState]):
    """Ranks of a job that count how often all of them are looked through."""

    times = 0

    def values(self) -> Any:
        self.times += 1
        return super().values()

    def items(self) -> Any:
        self.times += 1
        return super().items()

    def __iter__(self) -> Iterator[int]:
        self.times += 1
        return super().__iter__()


def test_ranks_that_stay_silent_are_not_looked_through_every_second() -> None:
    run = trains(FEW).until(120.0)  # told by now, if anything is to be told
    run.core.job.ranks = ranks = Looked(run.core.job.ranks)
    run.until(180.0)
    assert ranks.times <= 60 * LOOKS
