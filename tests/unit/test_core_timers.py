"""Times of all ranks that one rank prints."""

from pathlib import Path

import pytest

from denpexd.catalog.load import load
from denpexd.core.cadence import Limits
from denpexd.core.events import Attempt, Hit
from denpexd.core.facts import holds
from denpexd.core.intake import Intake
from denpexd.core.pace import REPORTS
from denpexd.core.rule import Signal
from denpexd.core.state import JobState
from denpexd.core.timers import BEFORE, MAX_TIMERS

TINY, _ = load([Path(__file__).parents[1] / "data" / "tiny"], strict=False)
SLOW = Signal("own.x", "fact", "because", fact="slow")
UNEVEN = Signal("own.y", "fact", "because", fact="uneven")


class Report:
    """What rank 3 prints about all ranks."""

    def __init__(self) -> None:
        self.job = JobState("job", 0.0, world_size=4)
        self.intake = Intake(TINY, self.job)
        self.t, self.step = 0.0, 0

    def say(self, text: str = "", **fields: str) -> None:
        self.job.seq += 1
        self.intake.hit(Hit(self.t, 3, "line.digest", "rank3", self.job.seq, text, fields))

    def next(self, seconds: float = 1.0) -> "Report":
        self.t, self.step = self.t + seconds, self.step + 1
        step = {"step": str(self.step)}
        self.job.seq += 1
        self.intake.hit(Hit(self.t, 3, "line.step", "rank3", self.job.seq, f"step {self.step} took 1s", step))
        return self

    def all_ranks(self, timer: str, *ms: float) -> None:
        self.next().say(timer=timer)
        for rank, value in enumerate(ms):
            self.say(timed=str(rank), value=str(value))

    def extremes(self, least: float, most: float, rank: int | None = None) -> None:
        named = {} if rank is None else {"most_rank": str(rank)}
        self.next().say(timer="forward-compute", least=str(least), most=str(most), **named)

    def who(self, signal: Signal) -> list[int]:
        now = self.t + 2.0
        return [r for r in range(4) if holds(self.job, self.job.rank(r), signal, now, 3600.0, Limits())]


@pytest.fixture
def report() -> Report:
    return Report()


def test_a_rank_that_another_one_reports_to_be_slow(report: Report) -> None:
    for _ in range(REPORTS):
        assert report.who(SLOW) == []
        report.all_ranks("forward-compute", 400.0, 410.0, 900.0, 405.0)
    assert report.who(SLOW) == [2]
    assert report.job.ranks[2].heard
    (evidence,) = holds(report.job, report.job.rank(2), SLOW, report.t, 3600.0, Limits())
    assert evidence.rank == 2


@pytest.mark.parametrize("timer", ["all-grads-sync", "forward-recv", "params-all-gather", "layernorm-grads-all-reduce"])
def test_who_waits_long_is_not_slow(report: Report, timer: str) -> None:
    for _ in range(2 * REPORTS):
        report.all_ranks(timer, 10.0, 10.0, 900.0, 10.0)
    assert report.who(SLOW) == []


def test_a_line_far_below_a_heading_does_not_belong_to_it(report: Report) -> None:
    for _ in range(2 * REPORTS):
        report.next().say(timer="forward-compute")
        report.t += 5.0
        for rank in range(4):
            report.say(timed=str(rank), value=str(400.0 + 500.0 * (rank == 2)))
    assert report.who(SLOW) == []


def test_the_rank_that_is_named_as_the_slowest_each_time(report: Report) -> None:
    for rank in (1, 0, 2, 2):
        report.extremes(400.0, 900.0, rank)
        assert report.who(SLOW) == []
    report.extremes(400.0, 900.0, 2)
    assert report.who(SLOW) == [2]


def test_the_slowest_of_ranks_that_are_about_equally_fast(report: Report) -> None:
    for _ in range(10):
        report.extremes(400.0, 440.0, 2)
    assert report.who(SLOW) == []


def test_a_spread_that_grows_names_nobody(report: Report) -> None:
    for _ in range(BEFORE + REPORTS):
        report.extremes(400.0, 520.0)
    for _ in range(REPORTS):
        assert report.who(UNEVEN) == []
        report.extremes(400.0, 1000.0)
    assert report.who(UNEVEN) == [3]
    assert report.who(SLOW) == []
    report.intake.attempt(Attempt(report.t, 1))
    assert report.who(UNEVEN) == []


def test_a_spread_that_was_always_there(report: Report) -> None:
    for _ in range(30):
        report.extremes(400.0, 1000.0)
    assert report.who(UNEVEN) == []


def test_what_is_remembered_is_bounded(report: Report) -> None:
    for n in range(3 * MAX_TIMERS):
        report.say(timer=f"t{n}", least="1", most="2")
        report.intake.hit(Hit(1.0, 3, "line.digest", f"file{n}", 0, "", {"timer": f"t{n}"}))
    assert len(report.job.timers.extremes) == len(report.job.timers.headings) == MAX_TIMERS
