"""Who waits for whom: what stacks and reports tell about the collectives of a job."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from denpexd.catalog.load import load
from denpexd.core.cadence import Limits
from denpexd.core.events import Activity, Exit, Fact, Frame, Frames, Hit, Raised
from denpexd.core.facts import holds
from denpexd.core.intake import Intake
from denpexd.core.rule import Signal
from denpexd.core.state import JobState

TINY, _ = load([Path(__file__).parents[1] / "data" / "tiny"], strict=False)
C10D = "torch/distributed/distributed_c10d.py"


class World:
    """What the ranks of a job have shown."""

    def __init__(self, world_size: int = 4) -> None:
        self.job = JobState("job", 0.0, world_size=world_size)
        self._intake = Intake(TINY, self.job)

    def says(self, t: float, rank: int, signal: str, **fields: str) -> "World":
        self.job.seq += 1
        self._intake.hit(Hit(t, rank, f"line.{signal}", f"rank{rank}", 0, signal, fields))
        return self

    def prints(self, t: float, rank: int) -> "World":
        self._intake.ordinary(Activity(t, rank, f"rank{rank}", 10))
        return self

    def is_frozen(self, rank: int, fields: Mapping[str, str]) -> "World":
        self._intake.fact(Fact(20.0, rank, "frozen", fields, source="process"))
        return self

    def stands(self, rank: int, *frames: str) -> "World":
        """Two looks show the same stack."""
        found = tuple(Frame(*text.split(" ", 1)) for text in frames)
        for t in (20.0, 26.0):
            self.job.seq += 1
            self._intake.frames(replace(Frames(t, rank, "py-spy", found)))
        return self

    def who(self, fact: str, **given: str | int | float | bool) -> list[int]:
        """The ranks for which the fact holds."""
        signal = Signal("own.x", "fact", "because", fact=fact, params=given)
        return [r for r, s in sorted(self.job.ranks.items()) if holds(self.job, s, signal, 100.0, 3600.0, Limits())]


@pytest.fixture
def world() -> World:
    return World()


def test_the_rank_whose_stack_ends_in_another_collective_mismatches(world: World) -> None:
    world.stands(0, f"broadcast {C10D}", "step train.py")
    for rank in (1, 2, 3):
        world.stands(rank, f"all_reduce {C10D}", "step train.py")
    assert world.who("mismatch", what="call") == [0]
    assert world.who("differs", what="call") == [0, 1, 2, 3]


def test_two_ranks_in_different_collectives_differ_and_name_no_side() -> None:
    world = World(2).stands(0, f"broadcast {C10D}").stands(1, f"all_reduce {C10D}")
    assert world.who("mismatch", what="call") == []
    assert world.who("differs", what="call") == [0, 1]


def test_the_rank_that_calls_the_same_collective_from_another_place_is_in_another_group(world: World) -> None:
    world.stands(0, f"all_reduce {C10D}", "mean losses.py", "step train.py")
    for rank in (1, 2, 3):
        world.stands(rank, f"all_reduce {C10D}", "mean losses.py", "clip train.py")
    assert world.who("mismatch", what="call") == []
    assert world.who("mismatch", what="site") == [0]
    assert world.who("differs", what="site") == [0, 1, 2, 3]


@pytest.mark.parametrize("last", [["read data.py"], [f"broadcast {C10D}", "step train.py"], [f"all_reduce {C10D}"]])
def test_places_are_not_compared_unless_all_stand_in_one_kind_of_collective(last: list[str]) -> None:
    """Somebody is still to come, or the collectives themselves differ, or the stack holds no code of the program."""
    world = World(3).stands(0, f"all_reduce {C10D}", "step train.py").stands(1, f"all_reduce {C10D}", "log train.py")
    world.stands(2, *last)
    assert world.who("differs", what="site") == []
    assert world.who("mismatch", what="site") == []


def test_collectives_do_not_differ_while_a_rank_is_in_none() -> None:
    """It may be the one that both wait for, each in a group of its own."""
    world = World(3).stands(0, f"broadcast {C10D}").stands(1, f"all_reduce {C10D}").stands(2, "read data.py")
    assert world.who("differs", what="call") == []


@pytest.mark.parametrize(("size", "odd"), [("1966080", [0]), ("1310721", []), ("64", []), ("13107200", [])])
def test_whole_rows_of_one_width_are_one_tensor_of_another_length(world: World, size: str, odd: list[int]) -> None:
    world.says(10.0, 0, "timeout", op="ALLREDUCE", seq="7", numel_in=size)
    for rank in (1, 2, 3):
        world.says(10.0, rank, "timeout", op="ALLREDUCE", seq="7", numel_in="1310720")
    assert world.who("mismatch", what="rows") == odd
    world.says(11.0, 0, "timeout", op="ALLREDUCE", seq="8", numel_in=size)
    assert world.who("mismatch", what="rows") == []


@pytest.mark.parametrize(("op", "last"), [("ALLREDUCE", [0]), ("RECV", [])])
def test_the_numbers_of_pipeline_stages_are_not_compared(world: World, op: str, last: list[int]) -> None:
    for rank, seq in enumerate(("4031", "8062", "8060", "4032")):
        world.says(10.0, rank, "timeout", op=op, seq=seq)
        world.says(10.1, rank, "timeout", pg="5", seq=seq, enq=seq)
    assert world.who("behind") == last


def test_of_nested_collectives_the_outermost_counts() -> None:
    world = World(2).stands(0, f"all_gather {C10D}", f"all_gather_object {C10D}", "f t.py")
    world.stands(1, f"broadcast {C10D}", f"all_gather_object {C10D}", "f t.py")
    assert world.who("differs", what="call") == []


def test_kinds_of_collectives_differ_by_what_the_watchdogs_say(world: World) -> None:
    world.says(10.0, 0, "timeout", op="ALLREDUCE").says(10.0, 1, "timeout", op="BROADCAST")
    assert world.who("differs", what="op") == [0, 1]
    assert world.who("differs", what="numel") == []


@pytest.mark.parametrize(("seq", "want", "fits"), [("2", "<4", True), ("4", "<4", False), ("", "<4", False)])
def test_a_pending_collective_has_a_number(world: World, seq: str, want: str, fits: bool) -> None:
    world.says(10.0, 0, "timeout", op="ALLREDUCE", seq=seq)
    assert world.who("pending", seq=want) == ([0] if fits else [])


def test_who_reported_a_timeout_timed_out_until_it_moves(world: World) -> None:
    world.says(10.0, 0, "timeout", op="ALLREDUCE")
    assert world.who("timed_out") == [0]
    assert world.who("reported") == [0]
    world.says(20.0, 0, "step", step="1")
    assert world.who("timed_out") == []
    assert world.who("reported") == []


@pytest.mark.parametrize(
    ("last", "slow"), [(520.0, True), (110.0, False)], ids=["long after they waited", "as they began to wait"]
)
def test_who_goes_on_while_others_wait_is_slow_and_not_stuck(world: World, last: float, slow: bool) -> None:
    world.says(100.0, 1, "step", step="1").says(last, 0, "step", step="2")
    world.says(700.0, 1, "timeout", op="BROADCAST", ran_ms="600000")
    assert world.who("worked_on") == ([0] if slow else [])


def test_output_is_work_only_where_the_rule_says_so(world: World) -> None:
    world.prints(600.0, 0).says(700.0, 1, "timeout", op="BROADCAST", ran_ms="600000")
    assert world.who("worked_on") == []
    assert world.who("worked_on", by="output") == [0]


def test_who_timed_out_itself_did_not_work_on(world: World) -> None:
    world.says(520.0, 0, "step", step="2")
    for rank in (0, 1):
        world.says(700.0, rank, "timeout", op="BROADCAST", ran_ms="600000")
    assert world.who("worked_on") == []


@pytest.mark.parametrize(("state", "asleep"), [("D", [0]), ("T", [])])
def test_uninterruptible_sleep_is_told_from_a_stop(world: World, state: str, asleep: list[int]) -> None:
    world.is_frozen(0, {"state": state})
    assert world.who("frozen") == [0]
    assert world.who("disk_sleep") == asleep


def test_a_job_has_trained_from_its_first_step_on(world: World) -> None:
    world.prints(1.0, 0)
    assert world.who("trained") == []
    world.says(2.0, 0, "step", step="1", label="Map (num_proc=8)")
    assert world.who("trained") == []
    world.says(3.0, 0, "step", step="1")
    assert world.who("trained") == [0]


def test_how_a_job_is_set_up_holds_for_all_ranks_whoever_printed_it(world: World) -> None:
    world.says(1.0, 0, "timeout", op="ALLREDUCE").prints(1.0, 1)
    told = Signal("line.timeout", "log", "because", role="config")
    for rank in (0, 1):
        assert holds(world.job, world.job.ranks[rank], told, 99999.0, 60.0, Limits())


def ends(world: World, t: float, rank: int, code: int | None) -> World:
    world.job.seq += 1
    world._intake.exit(Exit(t, rank, code))
    return world


def test_who_leaves_before_anyone_complains_left_first(world: World) -> None:
    world.prints(1.0, 0)
    world.says(9.0, 1, "step", step="1")
    ends(world, 10.0, 0, 0).says(11.0, 1, "timeout", op="ALLREDUCE")
    ends(world, 12.0, 1, 1)
    assert world.who("left_first") == [0]
    assert world.who("left_first", code=0) == [0]
    assert world.who("left_first", code=3) == []
    assert world.who("failed_itself") == [0]


def test_who_ends_after_a_report_is_a_victim(world: World) -> None:
    world.says(11.0, 1, "timeout", op="ALLREDUCE")
    ends(world, 20.0, 0, -6)
    assert world.who("left_first") == []
    assert world.who("failed_itself") == []


def test_who_raised_an_error_of_its_own_failed_itself(world: World) -> None:
    world._intake.raised(Raised(5.0, 2, "rank2", 0, "x", (("ValueError", "bad sample"),), (), uncaught=True))
    assert world.who("failed_itself") == [2]
    assert world.who("left_first") == []


def test_nobody_left_first_when_a_job_ends_as_a_whole(world: World) -> None:
    for rank in range(4):
        world.prints(1.0, rank)
        ends(world, 10.0 + rank, rank, 0)
    assert world.who("left_first") == []


@pytest.mark.parametrize(
    ("frame", "works"),
    [("tokenize data.py", True), (f"all_reduce {C10D}", False), ("backward torch/_tensor.py", False)],
)
def test_who_stands_in_nothing_that_waits_for_others_is_busy(world: World, frame: str, works: bool) -> None:
    world.stands(0, frame, "main train.py")
    assert world.who("busy") == ([0] if works else [])


def test_who_moved_since_the_last_look_is_not_known_to_be_busy(world: World) -> None:
    world.stands(0, "tokenize data.py").says(30.0, 0, "step", step="1")
    assert world.who("busy") == []


def test_a_checkpoint_that_is_written_ends_its_phase_and_no_other(world: World) -> None:
    world.says(1.0, 0, "saving").says(2.0, 0, "saved")
    world.says(1.0, 1, "evaluating").says(2.0, 1, "saved")
    assert (world.job.ranks[0].phase, world.job.ranks[1].phase) == ("train", "eval")


def test_a_checkpoint_that_is_written_after_others_gave_up_was_not_written_in_time(world: World) -> None:
    world.says(1.0, 0, "saving").says(600.0, 1, "timeout", op="ALLREDUCE").says(610.0, 0, "saved")
    assert world.job.ranks[0].phase == "checkpoint"


# --- NCCL's RAS -----------------------------------------------------------------------------------------------------


def ras(world: World, rank: int, name: str, **fields: str) -> None:
    world.job.seq += 1
    world._intake.fact(Fact(50.0, rank, name, fields, source="ras", text=name))


def test_ranks_that_launched_less_than_most_are_behind_until_training_moves_on(world: World) -> None:
    ras(world, 1, "launched_less", launched="5", most="7")
    ras(world, 2, "launched_less", launched="5", most="7")
    assert world.who("behind") == [1, 2]
    world.job.trained_t = 60.0
    assert world.who("behind") == []


def test_who_launched_another_collective_than_the_others_mismatches(world: World) -> None:
    for rank, op in enumerate(["ALLGATHER", "ALLREDUCE", "ALLREDUCE", "ALLREDUCE"]):
        ras(world, rank, "launched_other", group="0x1", op=op)
    assert world.who("mismatch", what="op") == [0]
    assert world.who("differs", what="op") == [0, 1, 2, 3]


def test_a_rank_that_nccl_cannot_reach_is_unreachable_until_it_moves(world: World) -> None:
    ras(world, 3, "unreachable", dead="true")
    assert world.who("unreachable") == [3]
    world.job.rank(3).moved_t = 55.0
    assert world.who("unreachable") == []
