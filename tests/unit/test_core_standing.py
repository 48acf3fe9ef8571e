"""Ranks with equal stacks as groups."""

from denpexd.core.events import Frame, Frames
from denpexd.core.records import Snapshot
from denpexd.core.stands import MOST_GROUPS, groups
from denpexd.core.state import JobState

BARRIER = Frame("barrier", "torch/distributed/distributed_c10d.py", 4887)
SEND = Frame("_call_impl", "torch/_ops.py", 20)
WAIT = Frame("wait", "threading.py", 300)


def own(function: str, line: int) -> Frame:
    return Frame(function, "train.py", line)


def stand(
    job: JobState,
    rank: int,
    *frames: Frame,
    t: float = 50.0,
    kind: str = "py-spy",
    steady: bool = True,
    state: str = "S",
) -> None:
    job.rank(rank).snapshots[kind] = Snapshot(Frames(t, rank, kind, frames, state=state), 1, t, steady)


def job() -> JobState:
    state = JobState("run", 0.0, world_size=4, moved_t=10.0)
    for rank in range(4):
        state.rank(rank).moved_t = 10.0
    return state


def test_equal_stacks_are_one_group_and_the_odd_rank_stands_first() -> None:
    state = job()
    stand(
        state,
        0,
        SEND,
        Frame("all_reduce", "torch/distributed/distributed_c10d.py", 9),
        own("validate.<locals>.<listcomp>", 214),
    )
    for rank in (1, 2, 3):
        stand(state, rank, BARRIER, own("main", 230), own("<module>", 300))
    assert groups(state) == [
        {
            "ranks": [0],
            "at": "all_reduce (torch/distributed/distributed_c10d.py:9)",
            "under": "validate (train.py:214)",
            "state": "has not moved between two looks",
        },
        {
            "ranks": [1, 2, 3],
            "at": "barrier (torch/distributed/distributed_c10d.py:4887)",
            "under": "main (train.py:230)",
            "state": "has not moved between two looks",
        },
    ]


def test_a_stopped_process_is_told_from_one_that_waits_at_the_same_place() -> None:
    state = job()
    stand(state, 0, BARRIER, steady=False)
    stand(state, 1, BARRIER, state="T")
    assert [(group["ranks"], group["state"]) for group in groups(state)] == [([1], "stopped"), ([0], "")]


def test_a_look_before_the_rank_moved_and_the_stack_of_an_exception_say_nothing_about_now() -> None:
    state = job()
    stand(state, 0, BARRIER, t=5.0)
    stand(state, 1, BARRIER, kind="traceback")
    assert groups(state) == []


def test_the_newest_look_counts_and_modules_of_python_are_not_own_code() -> None:
    state = job()
    stand(state, 0, BARRIER, t=20.0, kind="faulthandler")
    stand(state, 0, WAIT, Frame("fetch", "torch/utils/data/dataloader.py", 5), t=30.0)
    assert [(group["at"], group["under"]) for group in groups(state)] == [("wait (threading.py:300)", "")]


def test_of_very_many_groups_the_largest_are_told() -> None:
    state = JobState("run", 0.0, world_size=100)
    for rank in range(60):
        stand(state, rank, own("f", rank if rank < 50 else 1000))
    found = groups(state)
    assert len(found) == MOST_GROUPS
    assert found[-1]["ranks"] == list(range(50, 60))
