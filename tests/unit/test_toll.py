"""What stops cost: how long until they were told, and the GPU time that stood still."""

import itertools

import pytest

from denpexd.core.events import Closed, Exit, Opened, Updated
from denpexd.core.rank import RankState
from denpexd.core.state import JobState
from denpexd.toll import UNSEEN, Toll
from denpexd.web.view import DETECT_BOUNDS


def verdict(key: str = "k", stopped: float | None = 1000.0, opened: float = 1045.0) -> dict[str, object]:
    return {"job": "a", "key": key, "category": "hang", "stopped_t": stopped, "opened_t": opened}


def job(ranks: int = 4, *, seen: bool = True) -> JobState:
    states = {r: RankState(r, printed=True, pid=100 + r if seen else None) for r in range(ranks)}
    return JobState("a", 0.0, ranks=states)


def end(state: JobState, *ranks: int) -> None:
    for rank in ranks:
        state.ranks[rank].exits = [Exit(0.0, rank, None)]  # only that there is one counts


def test_the_time_until_a_stop_was_told_falls_into_its_bucket() -> None:
    toll = Toll(0.0)
    for seconds, key in ((5.0, "a"), (5.1, "b"), (45.0, "c"), (9000.0, "d")):
        toll.note([Opened(verdict(key, 1000.0, 1000.0 + seconds))])
    counts, total = toll.detected["hang"]
    assert dict(zip([*DETECT_BOUNDS, "more"], counts, strict=True)) == {
        **dict.fromkeys([*DETECT_BOUNDS, "more"], 0),
        5.0: 1,
        10.0: 1,
        60.0: 1,
        "more": 1,
    }
    assert total == pytest.approx(9055.1)


def test_only_what_is_told_for_the_first_time_of_a_stop_that_was_seen_counts() -> None:
    toll = Toll(2000.0)
    toll.note([Opened(verdict(stopped=1000.0, opened=2010.0)), Opened(verdict("b", None)), Updated(verdict())])
    toll.resume(verdict("c"), 2000.0)
    assert toll.detected == {}


def test_gpus_stand_still_from_the_last_progress_until_the_incident_is_over() -> None:
    toll, state = Toll(0.0), job()
    toll.tick(state, 1040.0)
    assert not toll.idle
    toll.note([Opened(verdict())])
    toll.tick(state, 1045.0)
    assert toll.idle["a"] == 4 * 45
    toll.tick(state, 1046.0)
    assert toll.idle["a"] == 4 * 46
    toll.note([Closed(verdict())])
    toll.tick(state, 1099.0)
    assert toll.idle["a"] == 4 * 46


def test_two_incidents_of_one_job_count_once_and_the_last_one_ends_it() -> None:
    toll, state = Toll(0.0), job(1)
    toll.note([Opened(verdict("a")), Opened(verdict("b"))])
    toll.tick(state, 1100.0)
    toll.note([Closed(verdict("a"))])
    toll.tick(state, 1110.0)
    toll.note([Closed(verdict("b"))])
    toll.tick(state, 1200.0)
    assert toll.idle["a"] == 110


def test_ranks_that_ended_or_were_never_heard_of_do_not_count() -> None:
    toll, state = Toll(0.0), job()
    end(state, 1)
    state.ranks[2].phase = "end"
    state.ranks[9] = RankState(9)
    state.ranks[-1] = RankState(-1, printed=True)
    toll.note([Opened(verdict())])
    toll.tick(state, 1010.0)
    assert toll.idle["a"] == 2 * 10
    end(state, 0, 3)
    toll.tick(state, 9000.0)
    assert toll.idle["a"] == 2 * 10


def test_ranks_whose_process_nobody_sees_count_for_an_hour_at_most() -> None:
    toll, seen, unseen = Toll(0.0), job(1), job(1, seen=False)
    for state, hours in ((seen, 10), (unseen, 1)):
        toll = Toll(0.0)
        toll.note([Opened(verdict())])
        for step in range(1, 1001):
            toll.tick(state, 1000.0 + 36 * step)
        assert toll.idle["a"] == pytest.approx(hours * 3600)
    assert UNSEEN == 3600


def test_after_a_restart_only_what_is_new_is_counted() -> None:
    toll, state = Toll(5000.0), job(2)
    toll.resume(verdict(), 5000.0)
    toll.resume(verdict("x", None), 5000.0)
    toll.tick(state, 5010.0)
    assert toll.idle["a"] == 20
    toll = Toll(5000.0)
    toll.note([Opened(verdict(stopped=1000.0, opened=5005.0))])  # found in the logs at the start
    toll.tick(state, 5010.0)
    assert toll.idle["a"] == 20


def test_a_job_that_is_forgotten_leaves_nothing_behind() -> None:
    toll, state = Toll(0.0), job()
    toll.note([Opened(verdict())])
    toll.tick(state, 1010.0)
    toll.forget("a")
    toll.tick(state, 1020.0)
    assert not toll.idle
    assert not toll._stops


def test_the_counter_never_falls_whatever_happens() -> None:
    events = [Opened(verdict("a")), Closed(verdict("a")), Opened(verdict("b")), Closed(verdict("b"))]
    for order in itertools.permutations(events):
        toll, state, last = Toll(0.0), job(), 0.0
        for number, event in enumerate(order):
            toll.note([event])
            toll.tick(state, 1000.0 + number)
            assert toll.idle["a"] >= last
            last = toll.idle["a"]
