"""Facts about numbers: what persists counts, what recovers does not, and whose numbers they are."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from denpexd.catalog.load import load
from denpexd.catalog.patterns import compile_pattern
from denpexd.core.cadence import Limits
from denpexd.core.events import Attempt, Hit
from denpexd.core.evidence import Evidence
from denpexd.core.facts import holds
from denpexd.core.intake import Intake
from denpexd.core.numbers import BASE, MAX_SERIES, Layout, Numbers, Reader, Reading
from denpexd.core.pace import PAST, RECENT, Tempo
from denpexd.core.rule import Signal
from denpexd.core.state import JobState

TINY, _ = load([Path(__file__).parents[1] / "data" / "tiny"], strict=False)


def fact(kind: str, /, **given: str | int | float | bool) -> Signal:
    """A fact of that kind; its patterns are compiled."""
    patterns = (
        {key: compile_pattern(str(given.pop(key))) for key in ("name", "metric") if key in given}
        if kind != "overlong"
        else {}
    )
    return Signal("own.x", "fact", "because", fact=kind, params=given, param_matchers=patterns)


class Log:
    """Lines with a step counter and whatever else they say, and what follows for a fact."""

    offset = asked = 0

    def __init__(self, world_size: int = 4) -> None:
        self.job = JobState("job", 0.0, world_size=world_size)
        self.intake = Intake(TINY, self.job)

    def at(self, t: float, *events: Hit) -> "Log":
        for event in events:
            self.job.seq += 1
            self.intake.hit(replace(event, t=t))
        return self

    def say(self, t: float, rank: int, step: int, text: str = "") -> "Log":
        said, self.offset = f"step {step} {text}", self.offset + 1
        if "is nan" in text:
            fields = {"metric": text.split()[0], "value": "nan"}
            self.at(t, Hit(0.0, rank, "line.bad", f"rank{rank}", self.offset, said, fields))
        return self.at(t, Hit(0.0, rank, "line.step", f"rank{rank}", self.offset, said, {"step": str(step)}))

    def evidence(self, rank: int, signal: Signal, now: float = 100.0) -> list[Evidence]:
        return holds(self.job, self.job.rank(rank), signal, now, 3600.0, Limits())

    def who(self, signal: Signal, now: float | None = None) -> list[int]:
        """The ranks for which the signal holds; asked a second later each time."""
        self.asked += 1
        now = 100.0 + self.asked if now is None else now
        return [rank for rank in sorted(self.job.ranks) if self.evidence(rank, signal, now)]


@pytest.fixture
def log() -> Log:
    return Log()


BAD = fact("nonfinite", metric="^loss$", times=2)
FIRST = fact("nonfinite", metric="^loss$", times=1, first=True)


# --- not finite -----------------------------------------------------------------------------------------------------


def test_a_loss_that_stays_nan_counts_and_one_that_recovers_does_not(log: Log) -> None:
    log.say(1.0, 0, 1, "loss 2.1").say(2.0, 0, 2, "loss is nan")
    assert log.who(BAD) == []
    log.say(3.0, 0, 3, "loss is nan")
    assert log.who(BAD) == [0]
    log.say(4.0, 0, 4, "loss 2.2")
    assert log.who(BAD) == []


def test_single_nans_far_apart_are_not_in_a_row(log: Log) -> None:
    log.say(1.0, 0, 1, "loss 2.1").say(2.0, 0, 2, "loss 2.1")
    for step in (100, 200, 300):
        log.say(float(step), 0, step, "loss is nan")
    assert log.who(BAD) == []


def test_a_term_of_the_loss_may_be_undefined_while_the_loss_is_fine(log: Log) -> None:
    signal = fact("nonfinite", metric="loss", times=2)
    for step in range(1, 9):
        said = f"step {step} loss 2.0"
        log.offset += 1
        log.at(float(step), Hit(0.0, 0, "line.bad", "r", log.offset, said, {"metric": "box loss", "value": "nan"}))
        log.say(step + 0.1, 0, step, "loss 2.0")
    assert log.who(signal) == []


def test_the_rank_whose_loss_was_nan_at_an_earlier_step_is_first(log: Log) -> None:
    for rank in range(4):
        log.say(1.0, rank, 1, "loss 2.1")
    log.say(2.0, 2, 2, "loss is nan")
    for rank in (0, 1, 3):
        log.say(2.0, rank, 2, "loss 2.0")
    assert log.who(FIRST) == [2]
    for rank in range(4):
        log.say(3.0, rank, 3, "loss is nan")
    assert log.who(FIRST) == [2]
    assert log.who(BAD) == [2]


def test_a_reduced_loss_names_nobody_and_so_does_a_rank_that_prints_alone(log: Log) -> None:
    for step in (2, 3):
        log.say(float(step), 0, step, "loss is nan")
    assert log.who(FIRST) == []
    for step in (2, 3):
        log.say(float(step), 1, step, "loss is nan")
    assert log.who(FIRST) == []
    assert Log(1).who(FIRST) == []
    alone = Log(1).say(1.0, 0, 1, "loss is nan")
    assert alone.who(FIRST) == [0]


# --- jumps ----------------------------------------------------------------------------------------------------------


def curve(log: Log, values: Iterable[float], start: int = 0) -> None:
    for n, value in enumerate(values, start):
        log.say(float(n), 0, n * 10, f"loss {value}")


SPIKE = fact("spike", metric="^loss$", factor=2.0)


def test_a_loss_that_jumps_and_stays_up_is_a_spike(log: Log) -> None:
    curve(log, [2.0 + 0.01 * (n % 5) for n in range(20)])
    curve(log, [7.0] * 9, 20)
    assert log.who(SPIKE) == []
    curve(log, [7.0], 29)
    assert log.who(SPIKE) == [0]
    assert "usual level" in log.evidence(0, SPIKE)[1].text


def test_a_spike_that_comes_back_is_none(log: Log) -> None:
    curve(log, [2.0] * 20)
    curve(log, [7.0] * 9 + [2.1] + [7.0] * 9, 20)
    assert log.who(SPIKE) == []


def test_noise_near_zero_is_no_spike(log: Log) -> None:
    curve(log, [2.0] * 3 + [0.01] * 60)
    curve(log, [0.05] * 15, 63)
    assert log.who(SPIKE) == []


def test_the_loss_of_an_evaluation_is_not_looked_at(log: Log) -> None:
    for n in range(40):
        log.say(float(n), 0, n * 10, f"val loss {2.0 if n < 20 else 9.0}")
    assert log.who(fact("spike", metric="loss")) == []


# --- pace -----------------------------------------------------------------------------------------------------------

SLOW = fact("slow", factor=1.5)


def test_the_rank_that_computes_longer_than_the_others_is_slow(log: Log) -> None:
    for step in range(1, 4):
        assert log.who(SLOW) == []
        for rank in range(4):
            own = 950 if rank == 3 else 400
            log.say(float(step), rank, step, f"took 1000ms computed {own}ms")
    assert log.who(SLOW) == [3]


def test_a_difference_that_is_small_against_a_step_does_not_count(log: Log) -> None:
    for step in range(1, 9):
        for rank in range(4):
            log.say(float(step), rank, step, f"took 1000ms computed {9 if rank == 3 else 3}ms")
    assert log.who(SLOW) == []


def test_a_rank_that_is_slow_once_in_a_while_is_not(log: Log) -> None:
    for step in range(1, 9):
        for rank in range(4):
            own = 900 if rank == 3 and step % 3 == 0 else 400
            log.say(float(step), rank, step, f"took 1000ms computed {own}ms")
            assert log.who(SLOW) == []


def test_a_rank_is_slow_for_minutes_or_until_the_end() -> None:
    lasting, log = fact("slow", factor=1.5, **{"for": 60.0}), Log()
    for step in range(1, 101):
        for rank in range(4):
            own = 950 if rank == 3 and step > 30 else 400
            log.say(float(step), rank, step, f"took 1000ms computed {own}ms")
        assert log.who(lasting, now=float(step)) == ([3] if step >= 91 else [])
        assert log.who(SLOW, now=float(step)) == ([3] if step >= 33 else [])


def test_a_rank_does_not_stand_out_of_wide_scatter(log: Log) -> None:
    for step in range(1, 9):
        for rank in range(4):
            own = 640 if rank == 3 else (300, 420, 560)[(rank + step) % 3]
            log.say(float(step), rank, step, f"took 1000ms computed {own}ms")
    assert log.who(SLOW) == []


def test_everybody_waits_for_the_rank_that_does_not_wait(log: Log) -> None:
    for step in range(1, 6):
        for rank in range(2):
            log.say(step * 2.0, rank, step, f"waited {0.01 if rank == 0 else 1.7}s")
    assert log.who(SLOW) == [0]


def test_ranks_that_run_by_themselves_show_it_by_their_counters() -> None:
    log = Log(3)
    for t in range(1, 60):
        for rank in range(3):
            if rank < 2 or t % 2 == 0:
                log.say(float(t), rank, t if rank < 2 else t // 2)
    assert log.who(SLOW) == [2]


THROUGHPUT = fact("throughput", factor=1.5, **{"for": 20.0})


def run(log: Log, gaps: Iterable[float], text: str = "", t: float = 0.0, step: int = 0) -> tuple[float, int]:
    for gap in gaps:
        t, step = t + gap, step + 1
        for rank in range(2):
            log.say(t, rank, step, text)
    return t, step


def test_steps_that_take_longer_than_before_are_less_throughput(log: Log) -> None:
    t, step = run(log, [1.0] * 60)
    assert log.who(THROUGHPUT) == []
    t, step = run(log, [3.0] * 10, t=t, step=step)
    assert log.who(THROUGHPUT) == [0, 1]
    run(log, [1.0] * 20, t=t, step=step)
    assert log.who(THROUGHPUT) == []


def test_one_long_step_is_no_loss_of_throughput(log: Log) -> None:
    t, step = run(log, [1.0] * 60)
    run(log, [60.0] + [1.0] * 5, t=t, step=step)
    assert log.who(THROUGHPUT) == []


def test_longer_steps_that_get_the_same_done_are_fine(log: Log) -> None:
    signal = fact("throughput", factor=1.5, rate=True, **{"for": 20.0})
    t, step = run(log, [1.0] * 60, "speed 1000")
    run(log, [3.0] * 10, "speed 990", t=t, step=step)
    assert log.who(signal) == []
    assert log.who(THROUGHPUT) == [0, 1]


def test_longer_steps_of_larger_work_are_no_loss(log: Log) -> None:
    t, step = run(log, [1.0] * 60, "length 512")
    run(log, [3.0] * 10, "length 2048", t=t, step=step)
    assert log.who(THROUGHPUT) == []
    log = Log()
    t, step = run(log, [1.0] * 60, "length 512")
    run(log, [3.0] * 10, "length 640", t=t, step=step)
    assert log.who(THROUGHPUT) == [0, 1]


def test_a_phase_that_takes_longer_than_it_used_to(log: Log) -> None:
    signal = fact("overlong", name="checkpoint", factor=3.0, least=60.0)
    t = 0.0
    for took in (20.0, 22.0, 21.0):
        t = t + 100.0
        log.say(t, 0, int(t)).at(t + 1.0, Hit(0.0, 0, "line.saving", "r", 0, "saving"))
        t += took
        log.say(t, 0, int(t))
    log.at(t + 1.0, Hit(0.0, 0, "line.saving", "r", 0, "saving"))
    assert log.who(signal, now=t + 50.0) == []
    assert log.who(signal, now=t + 80.0) == []
    log.say(t + 90.0, 0, int(t) + 90)
    assert log.who(signal, now=t + 91.0) == [0]


# --- digests --------------------------------------------------------------------------------------------------------


def digest(log: Log, step: int, values: str) -> None:
    for rank, value in enumerate(values):
        log.at(
            float(step), Hit(0.0, rank, "line.digest", "r", 0, f"step {step} hash", {"metric": "hash", "digest": value})
        )


def test_the_rank_whose_digest_differs_is_odd_and_two_name_no_side(log: Log) -> None:
    odd, spread = fact("metric_odd", name="hash"), fact("metric_spread", name="hash", after_equal=True)
    digest(log, 10, "aaaa")
    assert log.who(odd) == log.who(spread) == []
    digest(log, 20, "aaba")
    assert log.who(odd) == [2]
    assert log.who(spread) == [0, 1, 2, 3]
    two = Log(2)
    digest(two, 20, "ab")
    assert two.who(odd) == two.who(spread) == []
    assert two.who(fact("metric_spread", name="hash")) == [0, 1]


# --- bounds ---------------------------------------------------------------------------------------------------------


def test_what_is_kept_is_bounded() -> None:
    numbers, evidence = Numbers(), Evidence(0, "log", "r", 0, 0.0, "text", "means")
    for n in range(1000):
        numbers.read("loss", f"loss {n % 100}", Reading(float(n), (None, n), 2.0), evidence)
        numbers.not_finite(f"loss {n}", (None, n), evidence)
    assert len(numbers.series) == len(numbers.bad) == MAX_SERIES
    assert all(len(s.base or ()) <= BASE for s in numbers.series.values())
    tempo = Tempo()
    for n in range(20_000):
        tempo.note(0, float(n), 1.0, 1)
    assert len(tempo.recent) <= RECENT
    assert len(tempo.past) <= PAST
    assert tempo.pace == 1.0


def test_units_and_inverses_are_read() -> None:
    reader = Reader(Log().intake.signals.values())
    assert reader.numbers("step 3 took 250ms computed 1,000.5s loss 2", Layout()) == [
        ("loss", "loss", 2.0),
        ("step_time", "step time", 0.25),
        ("own_time", "own time", 1000.5),
    ]
    assert reader.step("step 12 of it") == 12


def test_decimals_behind_a_comma_are_read_once_a_line_shows_that_they_are() -> None:
    reader, layout = Reader(Log().intake.signals.values()), Layout()
    assert ("own_time", "own time", 1001.0) in reader.numbers("step 3 computed 1,001s", Layout())
    assert ("own_time", "own time", 0.62) in reader.numbers("step 3 computed 0,620s", layout)
    assert ("own_time", "own time", 1.331) in reader.numbers("step 4 computed 1,331s", layout)


def test_steps_that_are_told_seldom_show_a_slower_pace_too() -> None:
    tempo = Tempo()
    for n in range(8):
        tempo.note(0, 10.0 * n, 10.0, 20)
    assert tempo.slower(1.5, 15.0) is None
    for n in range(3):
        tempo.note(0, 90.0 + 20.0 * n, 20.0, 20)
    assert tempo.slower(1.5, 15.0) == (0.5, 1.0)


# --- numbers that were the same on all ranks ------------------------------------------------------------------------


def test_an_average_that_is_no_longer_the_same_on_all_ranks(log: Log) -> None:
    parted, odd = fact("parted", name="^loss$"), fact("parted", steps=4, odd=True)
    for step in range(1, 18):
        for rank in range(3):
            log.say(float(step), rank, step, f"loss {3 - step / 50 + (0.4 if rank == 1 and step > 13 else 0):.4f}")
        assert log.who(parted) == ([0, 1, 2] if step == 17 else [])
    assert log.who(odd) == [1]
    assert log.who(fact("parted", name="norm")) == []
    assert [e.text.split()[1] for e in log.evidence(1, odd)] == ["14", "17"]
    log.intake.attempt(Attempt(30.0, 1))
    assert log.who(parted) == []
