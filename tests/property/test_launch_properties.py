"""How a job was started against its last good run: whatever the facts are, what is told is exactly what differs."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from denpexd.core.launch import differences, unequal

names = st.sampled_from(["command", "driver", "nccl", "git.commit", "package.torch", "package.numpy", "env.A", "env.B"])
facts = st.dictionaries(names, st.sampled_from(["1", "2", "3 x"]), max_size=6)
jobs = st.dictionaries(st.integers(0, 9), facts, min_size=1, max_size=6)
nodes = st.dictionaries(st.integers(0, 9), st.sampled_from(["a", "b"]), max_size=10)


def looked(side: dict[str, str], name: str) -> bool:
    kind = name.partition(".")[0] + "."
    return name in side or ("." in name and any(other.startswith(kind) for other in side))


@given(jobs, nodes)
def test_a_run_that_is_as_before_has_no_differences(job: dict[int, dict[str, str]], on: dict[int, str]) -> None:
    assert differences(job, {rank: dict(each) for rank, each in job.items()}, on) == []


@given(jobs, jobs, nodes)
def test_every_difference_of_a_rank_that_was_there_is_told_once(
    before: dict[int, dict[str, str]], now: dict[int, dict[str, str]], on: dict[int, str]
) -> None:
    told: dict[tuple[int, str], tuple[Any, Any]] = {}
    for one in differences(before, now, on):
        assert one["before"] != one["now"]
        assert one["text"]
        for rank in one["ranks"]:
            assert (rank, one["name"]) not in told
            told[rank, str(one["name"])] = one["before"], one["now"]
    for rank in before.keys() & now.keys():
        was, is_ = before[rank], now[rank]
        for name in {*was, *is_} - {"nccl"}:  # which a package of the same title may tell
            differs = looked(was, name) and looked(is_, name) and was.get(name) != is_.get(name)
            assert ((rank, name) in told) == differs
            if differs:
                assert told[rank, name] == (was.get(name), is_.get(name))


@given(jobs, jobs, nodes)
def test_going_back_tells_the_same_names_the_other_way(
    before: dict[int, dict[str, str]], now: dict[int, dict[str, str]], on: dict[int, str]
) -> None:
    now = {rank: now.get(rank, each) for rank, each in before.items()}
    there = {(d["name"], d["before"], d["now"], tuple(d["ranks"])) for d in differences(before, now, on)}
    back = {(d["name"], d["now"], d["before"], tuple(d["ranks"])) for d in differences(now, before, on)}
    assert there == back


@given(facts, st.integers(1, 6), nodes)
def test_equal_ranks_are_not_unequal(each: dict[str, str], size: int, on: dict[int, str]) -> None:
    assert unequal({rank: dict(each) for rank in range(size)}, on) == []


@given(jobs, nodes)
def test_the_values_of_what_is_unequal_share_the_ranks_among_them(
    job: dict[int, dict[str, str]], on: dict[int, str]
) -> None:
    for one in unequal(job, on):
        ranks = [rank for value in one["values"] for rank in value["ranks"]]
        assert sorted(ranks) == sorted(rank for rank, each in job.items() if looked(each, str(one["name"])))
        sizes = [len(value["ranks"]) for value in one["values"]]
        assert sizes == sorted(sizes)
        for value in one["values"]:
            assert {job[rank].get(str(one["name"])) for rank in value["ranks"]} == {value["value"]}


@given(jobs, jobs, st.permutations(range(10)))
def test_renaming_ranks_renames_the_differences(
    before: dict[int, dict[str, str]], now: dict[int, dict[str, str]], new: list[int]
) -> None:
    def told(then: Any, today: Any, name: Any) -> Any:
        return {
            (d["name"], d["before"], d["now"], tuple(sorted(map(name, d["ranks"]))))
            for d in differences(then, today, {})
        }

    renamed = [{new[rank]: each for rank, each in job.items()} for job in (before, now)]
    assert told(before, now, new.__getitem__) == told(*renamed, lambda rank: rank)
