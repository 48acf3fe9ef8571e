"""Numbers that ranks have in common: learned by being the same, and told when they no longer are."""

from collections.abc import Mapping
from random import Random

import pytest

from denpexd.core.evidence import Evidence
from denpexd.core.twins import LEARN, OPEN, Twins

SAID = Evidence(0, "log", "rank0", 0, 0.0, "step 1 loss 2.0", "because")
STEPS = 4


@pytest.fixture
def number() -> Twins:
    return Twins()


def say(number: Twins, step: int, values: Mapping[int, float]) -> None:
    for rank, value in values.items():
        number.note(rank, (None, step), value, SAID)


def common(step: int) -> float:
    return 3.0 - 0.01 * step


def alike(number: Twins, steps: range, ranks: int = 4) -> None:
    for step in steps:
        say(number, step, dict.fromkeys(range(ranks), common(step)))


def test_an_average_that_parts_is_told_with_the_rank_that_left(number: Twins) -> None:
    alike(number, range(1, LEARN + 3))
    for step in range(20, 20 + STEPS):
        assert not number.parted(STEPS)
        say(number, step, {0: common(step), 1: common(step), 2: 3.5, 3: common(step)})
    assert set(number.parted(STEPS)) == {0, 1, 2, 3}
    assert number.parted(STEPS)[0].odd(STEPS) == {2}


def test_without_a_majority_no_rank_is_odd(number: Twins) -> None:
    alike(number, range(1, LEARN + 3), 2)
    for step in range(20, 20 + STEPS):
        say(number, step, {0: common(step), 1: 3.5})
    assert number.parted(STEPS)[1].odd(STEPS) == set()


def test_losses_of_their_own_are_no_twins_even_where_few_digits_make_some_equal(number: Twins) -> None:
    chance = Random(7)
    for step in range(3000):
        say(number, step, {rank: round(2.0 - step / 2000 + chance.gauss(0, 0.05), 1) for rank in range(4)})
        assert not number.parted(STEPS)


def test_a_number_that_stays_the_same_makes_no_twins(number: Twins) -> None:
    for step in range(50):
        say(number, step, {0: 0.0, 1: 0.0})
    for step in range(50, 60):
        say(number, step, {0: 0.1, 1: 0.2})
    assert not number.parted(STEPS)


def test_what_comes_and_goes_is_no_parting(number: Twins) -> None:
    alike(number, range(1, LEARN + 3), 2)
    for step in range(20, 200):
        say(number, step, {0: common(step), 1: common(step) + (0.3 if step % 4 else 0.0)})
        assert not number.parted(STEPS)


def test_the_last_digit_may_be_rounding(number: Twins) -> None:
    alike(number, range(1, LEARN + 3), 2)
    for step in range(20, 40):
        say(number, step, {0: 1.0311 + step, 1: 1.0312 + step})
    assert not number.parted(STEPS)


def test_ranks_of_a_tensor_parallel_group_are_twins_of_each_other_only(number: Twins) -> None:
    for step in range(1, LEARN + 3):
        say(number, step, {0: common(step), 1: common(step), 2: 9.0 - step / 7, 3: 9.0 - step / 7})
    for step in range(20, 20 + STEPS):
        say(number, step, {0: common(step), 1: common(step), 2: 9.0, 3: 9.5})
    assert set(number.parted(STEPS)) == {2, 3}


def test_a_rank_that_prints_later_joins(number: Twins) -> None:
    alike(number, range(1, 5), 2)
    alike(number, range(5, 5 + LEARN + 2), 3)
    for step in range(30, 30 + STEPS):
        say(number, step, {0: common(step), 1: common(step), 2: 4.0})
    assert number.parted(STEPS)[0].odd(STEPS) == {2}


def test_a_rank_that_falls_silent_delays_and_prevents_nothing(number: Twins) -> None:
    alike(number, range(1, LEARN + 3), 3)
    for step in range(20, 20 + STEPS + OPEN):
        say(number, step, {0: common(step), 1: 4.0})
    assert {0, 1} <= set(number.parted(STEPS))
    assert len(number.open) <= OPEN
