"""What the core makes of Flight Recorder dumps: as facts of their own, and as what a rank waits for."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from denpexd.catalog.load import load
from denpexd.core import flight_facts
from denpexd.core.cadence import Limits
from denpexd.core.events import Exit
from denpexd.core.facts import holds
from denpexd.core.flight import Dump, Op, outline
from denpexd.core.flight_verdict import compare
from denpexd.core.intake import Intake
from denpexd.core.records import Collective
from denpexd.core.rule import Signal
from denpexd.core.state import JobState

TINY, _ = load([Path(__file__).parents[1] / "data" / "tiny"], strict=False)


def op(text: str, record: int, group: str = "0") -> Op:
    """`7 all_reduce 900 done` of the group, or `2:7 ...` of group 2."""
    place, name, *rest = text.split()
    named, _, number = place.rpartition(":")
    sizes = (int(rest[0]),) if rest and rest[0].isdigit() else ()
    return Op(named or group, int(number), name, record, "done" not in rest, sizes=sizes, given=sizes)


def dump(rank: int, *calls: str, t: float = 20.0) -> Dump:
    history = ("1 broadcast 10 done", "2 all_reduce 900 done", "3 broadcast 10 done", "4 all_reduce 900 done")
    more = ("5 broadcast 10 done", "6 all_reduce 900 done")
    return Dump(t, rank, ops=tuple(op(text, n) for n, text in enumerate((*history, *more, *calls))))


class World:
    def __init__(self, dumps: Sequence[Dump], world_size: int) -> None:
        self.job = JobState("job", 0.0, world_size=world_size)
        self.intake = Intake(TINY, self.job)
        for one in dumps:
            self.job.seq += 1
            self.intake.dumped(one)

    def who(self, fact: str, now: float = 100.0, **given: str | int) -> list[int]:
        signal = Signal("own.x", "fact", "because", fact=fact, params=given)
        ranks = sorted(self.job.ranks.items())
        return [r for r, s in ranks if holds(self.job, s, signal, now, 3600.0, Limits())]


@pytest.fixture
def swapped() -> World:
    return World([dump(0, "7 broadcast 10"), dump(1, "7 all_reduce 900")], 2)


def test_the_rank_that_left_the_order_is_told_from_those_that_kept_it(swapped: World) -> None:
    assert swapped.who("dump", shows="out_of_order") == [1]
    assert swapped.who("dump", shows="crossed") == [0]
    assert swapped.who("dump", shows="waits") == [0, 1]
    assert swapped.who("dump", shows="absent") == []


def test_a_majority_names_who_is_in_another_call() -> None:
    world = World([dump(0, "7 barrier"), dump(1, "7 broadcast 10"), dump(2, "7 broadcast 10")], 3)
    assert world.who("dump", shows="other_call") == [0]
    assert world.who("dump", shows="out_of_order") == []
    assert world.who("mismatch", what="op") == [0]


def test_other_sizes_and_who_has_not_come() -> None:
    sizes = World([dump(0, "7 broadcast 11"), dump(1, "7 broadcast 10"), dump(2, "7 broadcast 10")], 3)
    assert sizes.who("dump", shows="other_size") == [0]
    absent = World([dump(0), dump(1, "7 broadcast 10"), dump(2, "7 broadcast 10")], 3)
    assert absent.who("dump", shows="absent") == [0]
    assert absent.who("not_in_collective") == [0]
    assert absent.who("behind") == [0]


def test_who_did_not_follow_a_single_rank_into_a_collective_is_not_behind() -> None:
    alone = World([dump(0, "7 all_gather 17"), dump(1), dump(2)], 3)
    assert alone.who("behind") == []
    assert alone.who("not_in_collective") == [1, 2]


def test_what_a_rank_stands_in_is_pending_in_the_words_of_a_watchdog() -> None:
    world = World([dump(0, "7 all_gather 17"), dump(1, "7 _all_gather_base 16"), dump(2, "7 all_to_all 5")], 3)
    assert world.who("pending", numel="odd") == [0, 2]
    known = flight_facts.collectives(world.job, world.job.rank(2), 100.0)["0"]
    assert (known.op, known.seq, known.numel, known.enqueued, known.completed) == ("ALLTOALL", 7, 5, 7, 6)
    ops = [flight_facts.collectives(world.job, world.job.rank(r), 100.0)["0"].op for r in (0, 1)]
    assert ops == ["ALLGATHER", "_ALLGATHER_BASE"]


def test_dumps_of_different_calls_in_a_row_do_not_differ() -> None:
    """One is two calls ahead: each number is compared with the same number only."""
    ahead = World([dump(0, "7 broadcast 10"), dump(1), dump(2, "7 broadcast 10 done", "8 all_reduce 900")], 3)
    assert ahead.who("differs", what="op") == []
    assert ahead.who("dump", shows="absent") == [1]


def test_a_dump_counts_when_nothing_has_moved_for_some_seconds(swapped: World) -> None:
    assert swapped.who("dump", now=22.0, shows="waits") == []
    assert swapped.who("dump", now=25.0, shows="waits") == [0, 1]
    swapped.intake.exit(Exit(21.0, 0, 1))
    assert swapped.who("dump", now=22.0, shows="waits") == [0]


def test_an_equal_dump_is_the_same_moment_and_another_a_new_one(swapped: World) -> None:
    swapped.intake.dumped(dump(0, "7 broadcast 10", t=24.0))
    swapped.intake.dumped(dump(1, "7 all_reduce 900", "8 barrier", t=24.0))
    assert swapped.who("dump", now=25.0, shows="waits") == [0]


def test_a_dump_lapses_when_the_rank_moves(swapped: World) -> None:
    for rank in (0, 1):
        state = swapped.job.rank(rank)
        state.moved_t, state.moves = 30.0, 1
    assert swapped.who("dump", shows="waits") == []


def test_a_dump_from_before_this_attempt_says_nothing(swapped: World) -> None:
    swapped.job.started_t = 50.0
    assert swapped.who("dump", shows="waits") == []


def test_what_a_rank_reported_itself_goes_before_its_dump(swapped: World) -> None:
    said = flight_facts.collectives(swapped.job, swapped.job.rank(0), 100.0)["0"].evidence
    for rank in (0, 1):
        swapped.job.rank(rank).collectives["0"] = Collective("ALLREDUCE", 7, 900, evidence=said)
    assert swapped.who("differs", what="op") == []


def test_a_dump_is_short_enough_for_an_event() -> None:
    old = op("1 all_reduce 5", 0)
    many = replace(dump(0), ops=(old, *(op(f"{n} all_reduce 5 done", n) for n in range(2, 1000))))
    short = many.shortened(100)
    assert (len(short.ops), short.ops[0], short.ops[-1].seq) == (101, old, 999)
    assert short.shortened(200) is short


def test_a_thousand_ranks_are_compared_in_linear_time() -> None:
    def seconds(world: int) -> float:
        members = {"0": tuple(range(world))}
        dumps = {rank: replace(dump(rank, "7 broadcast 10"), members=members) for rank in range(1, world)}
        dumps[0] = replace(dump(0), members=members)
        ready = {rank: outline(one) for rank, one in dumps.items()}
        took = []
        for _ in range(3):
            began = time.process_time()
            assert compare(ready, world).verdict.initiating == (0,)
            took.append(time.process_time() - began)
        return min(took)

    assert seconds(1024) < 24 * seconds(128) + 0.05  # 8 times the ranks; every pair of them would be 64 times
