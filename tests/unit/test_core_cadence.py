"""How a rhythm is learned, and when silence is worth a look or a page."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denpexd.core.cadence import Limits, Rhythm, budget, page, suspicion

LIMITS = Limits()


def rhythm(*gaps: float, phase: str = "train", steps: int = 0) -> Rhythm:
    learned = Rhythm()
    for gap in gaps:
        learned.moved(gap, phase, steps)
    return learned


def test_a_rhythm_is_learned_from_three_gaps() -> None:
    assert rhythm(2.0, 2.0).usual is None
    assert rhythm(2.0, 2.0, 2.0).usual == 2.0


def test_lines_that_come_in_pairs_do_not_halve_the_rhythm() -> None:
    assert rhythm(*[0.05, 4.0] * 10).usual == 4.0


def test_bursts_of_buffered_lines_do_not_hide_the_pauses_between_them() -> None:
    assert rhythm(*[*[0.01] * 15, 30.0] * 4).usual == 30.0


def test_a_few_short_gaps_do_not_change_the_usual_one() -> None:
    assert rhythm(*[1.0] * 20, 0.1, 0.1, 0.1).usual == 1.0


@pytest.mark.parametrize("phase", ["eval", "checkpoint", "compile"])
def test_what_another_phase_took_is_no_step(phase: str) -> None:
    learned = rhythm(1.0, 1.0, 1.0)
    for _ in range(10):
        learned.moved(300.0, phase, 1)
    assert learned.usual == 1.0
    assert learned.longest == 300.0


def test_the_time_of_a_step_is_the_gap_divided_by_the_steps_in_it() -> None:
    assert rhythm(50.0, 50.0, 50.0, steps=100).step_seconds == 0.5
    assert rhythm(50.0, 50.0, 50.0).step_seconds is None


@pytest.mark.parametrize(
    ("usual", "look", "tell"),
    [(0.1, 5.0, 30.0), (2.0, 16.0, 30.0), (5.0, 30.0, 30.0), (20.0, 100.0, 100.0), (None, 30.0, 45.0)],
)
def test_looks_are_early_and_pages_late(usual: float | None, look: float, tell: float) -> None:
    assert suspicion(LIMITS, usual) == look
    assert page(LIMITS, usual) == tell


def test_the_shortest_silence_sets_the_pace_where_no_rhythm_is_known() -> None:
    short = Limits(min_silence=8.0)
    assert (suspicion(short, None), page(short, None)) == (8.0, 12.0)


@pytest.mark.parametrize("phase", ["eval", "checkpoint"])
def test_learned_durations_shorten_the_budget_but_never_below_the_floor(phase: str) -> None:
    learned = Rhythm()
    assert budget(LIMITS, phase, learned) == 900.0
    learned.phase_took(phase, 40.0)
    assert budget(LIMITS, phase, learned) == 400.0
    short = Rhythm()
    short.phase_took(phase, 1.0)
    assert budget(LIMITS, phase, short) == LIMITS.learned_floor == 120.0


def test_a_long_evaluation_that_was_learned_lengthens_the_budget() -> None:
    learned = Rhythm()
    for seconds in (200.0, 220.0, 5.0):
        learned.phase_took("eval", seconds)
    assert budget(LIMITS, "eval", learned) == 2000.0
    assert budget(LIMITS, "checkpoint", learned) == 900.0


def test_a_fast_rhythm_does_not_shorten_the_budget_between_steps_below_an_evaluation() -> None:
    assert budget(LIMITS, "train", Rhythm()) == 1200.0
    assert budget(LIMITS, "train", rhythm(0.5, 0.5, 0.5)) == LIMITS.budgets["eval"]


def test_a_slow_rhythm_and_a_long_pause_lengthen_the_budget_between_steps() -> None:
    assert budget(LIMITS, "train", rhythm(100.0, 100.0, 100.0)) == 1000.0
    assert budget(LIMITS, "train", rhythm(*[1.0] * 1000, 400.0)) >= 1200.0


def test_a_phase_without_a_budget_of_its_own_has_that_of_training() -> None:
    assert budget(LIMITS, "epoch_end", Rhythm()) == LIMITS.budgets["start"]


def test_budgets_are_configurable() -> None:
    limits = Limits(budgets={**LIMITS.budgets, "eval": 33.0})
    assert budget(limits, "eval", Rhythm()) == 33.0
    assert LIMITS.budgets["eval"] == 900.0


@given(st.lists(st.floats(0.001, 1e4), min_size=3, max_size=200), st.sampled_from([0.5, 2.0, 4.0]))
def test_the_usual_gap_is_one_of_the_gaps_and_scales_with_them(gaps: list[float], scale: float) -> None:
    usual = rhythm(*gaps).usual
    assert usual in gaps
    assert rhythm(*[gap * scale for gap in gaps]).usual == pytest.approx(usual * scale)


@given(st.permutations([0.1, 0.5, 1.0, 2.0, 3.0, 8.0]))
def test_the_order_of_the_gaps_does_not_matter(gaps: list[float]) -> None:
    assert rhythm(*gaps).usual == rhythm(*sorted(gaps)).usual


def test_a_rhythm_keeps_a_bounded_number_of_gaps_and_forgets_the_oldest() -> None:
    learned = rhythm(*[50.0] * 100, *[1.0] * 100, steps=1)
    assert learned.usual == 1.0
    assert len(learned.gaps) == len(learned.steps) == 64
    for n in range(100):
        learned.phase_took("eval", float(n))
    assert len(learned.phases["eval"]) == 16
