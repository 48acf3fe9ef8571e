"""Where the marks of the console's pictures stand."""

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from stand import T, quote, verdict

from denpexd.web.picture import APART, LEFT, MOST_LANES, WIDE, Timeline, plots, timeline
from denpexd.web.view import Pace, Told


def drawn(*quotes: dict[str, object], told: Sequence[Told] = (), **other: object) -> Timeline:
    made = timeline(verdict(evidence=list(quotes), **other), told)
    assert made is not None
    return made


def test_who_started_it_comes_first_and_stands_from_its_first_mark_on() -> None:
    made = drawn(quote(2, T, "a", "b"), quote(0, T + 5, "a", "b"), quote(0, T + 9, "a", "b"), quote(7, T, "a", "b"))
    assert [(lane.label, lane.role) for lane in made.lanes] == [
        ("rank 0 · gpu-17", "initiating"), ("rank 2 · gpu-18", "collateral"), ("rank 7", "other"),
    ]  # fmt: skip
    first, victim, other = made.lanes
    assert (first.stuck_x, victim.stuck_x, other.stuck_x) == (first.marks[0].x, victim.marks[-1].x, None)
    assert [mark.number for mark in first.marks] == [2, 3]


def test_what_happened_to_the_incident_is_over_all_lanes() -> None:
    told = [
        Told(T + 63, "slack", "opened", "sent"),
        Told(T + 64, "pd", "opened", "sent"),
        Told(T, "x", "opened", "dead"),
    ]
    made = drawn(quote(0, T, "a", "b"), told=told, stopped_t=T - 1, state="closed", updated_t=T + 100)
    assert [moment.text for moment in made.moments] == ["last progress", "opened", "told: slack, pd", "closed"]
    assert [moment.x for moment in made.moments] == sorted(moment.x for moment in made.moments)


def test_without_times_there_is_no_picture() -> None:
    assert timeline(verdict(evidence=[])) is None
    assert timeline(verdict(evidence=[{**quote(0, T, "a", "b"), "t": None}])) is None


@given(st.lists(st.tuples(st.integers(-1, 20), st.floats(0, 1e5)), min_size=1, max_size=40), st.floats(0, 1e5))
def test_marks_stay_in_the_picture_in_order_and_lanes_are_bounded(
    found: list[tuple[int, float]], opened: float
) -> None:
    made = drawn(*(quote(rank, T + t, "a", "b") for rank, t in found), opened_t=T + opened)
    assert len(made.lanes) == min(MOST_LANES, len({rank for rank, _ in found}))
    for lane in made.lanes:
        xs = [mark.x for mark in lane.marks]
        assert xs == sorted(xs)
        assert all(LEFT <= x <= WIDE for x in xs)
        if len(xs) * APART < (WIDE - LEFT) / 2:
            assert all(after - before >= APART - 0.11 for before, after in pairwise(xs))
    assert len(made.ticks) <= 8
    assert all(lane.y < made.axis_y < made.high for lane in made.lanes)


def test_a_pause_breaks_the_line_of_lines_but_not_that_of_steps() -> None:
    points = [Pace(10.0 * n, 0.5 if n % 3 == 0 else None, 5.0) for n in range(10)] + [Pace(500.0, None, 1.0)]
    step, lines = plots(points)
    assert step is not None
    assert lines is not None
    assert (len(step.paths), step.top, step.last) == (1, 0.5, 0.5)
    assert (len(lines.paths), len(lines.dots), lines.top) == (1, 1, 5.0)
    assert plots([Pace(0.0, 1.0, 1.0)]) == (None, None)
