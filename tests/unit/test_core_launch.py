"""What changed since the last good run, in words; how the facts reach the verdict."""

import pytest

from denpexd.core.events import Attempt, Fact, Hit, Joined
from denpexd.core.intake import Intake
from denpexd.core.launch import changed, differences, unequal
from denpexd.core.rule import Catalog
from denpexd.core.state import JobState

NODES = {0: "a", 1: "a", 2: "b", 3: "b"}


def told(before: dict[str, str], now: dict[str, str]) -> list[object]:
    return [one["text"] for one in differences({0: before, 1: before}, {0: now, 1: now}, {})]


@pytest.mark.parametrize(
    ("before", "now", "text"),
    [
        ({"package.nvidia-nccl-cu12": "2.27.3"}, {"package.nvidia-nccl-cu12": "2.27.7"}, "NCCL 2.27.3 -> 2.27.7"),
        ({"env.A": "1"}, {"env.A": "1", "env.NCCL_SOCKET_IFNAME": "eth1"}, "NCCL_SOCKET_IFNAME new: eth1"),
        ({"env.A": "1", "env.B": "x"}, {"env.A": "1"}, "B gone: was x"),
        ({"git.commit": "a" * 40}, {"git.commit": "b" * 40}, "commit aaaaaaaaaaaa -> bbbbbbbbbbbb"),
        ({"command": "t.py --lr 1 --x"}, {"command": "t.py --lr 2 y"}, "command: --lr 1 -> 2, new y, gone --x"),
        ({"command": "t --lr=1 --x"}, {"command": "t --lr 2 --x 5"}, "command: --lr 1 -> 2, --x alone -> 5"),
        ({"command": "t a b"}, {"command": "t b a"}, "command: the same words in another order"),
        ({"nodes": "a,b"}, {"nodes": "a,c"}, "nodes: new c, gone b"),
        ({"env.HF_TOKEN": "hidden:1"}, {"env.HF_TOKEN": "hidden:2"}, "HF_TOKEN has another value (which is hidden)"),
        ({"env.A": "1"}, {"env.A": "1", "env.KEY": "hidden:2"}, "KEY new (which is hidden)"),
    ],
)  # fmt: skip
def test_a_difference_reads_like_a_sentence(before: dict[str, str], now: dict[str, str], text: str) -> None:
    assert told(before, now) == [text]


def test_where_nobody_could_look_nothing_is_different() -> None:
    assert told({"env.A": "1", "package.numpy": "1"}, {"command": "x"}) == []
    assert told({"command": "x"}, {"env.A": "1"}) == []


def test_the_node_is_named_where_exactly_its_ranks_differ() -> None:
    old, new = {"nccl": "2.27.3"}, {"nccl": "2.27.7"}
    before = dict.fromkeys(range(4), old)
    assert [d["text"] for d in differences(before, {0: old, 1: old, 2: new, 3: new}, NODES)] == [
        "NCCL 2.27.3 -> 2.27.7 on node b"
    ]
    assert [d["text"] for d in differences(before, {0: old, 1: old, 2: old, 3: new}, NODES)] == [
        "NCCL 2.27.3 -> 2.27.7 on rank 3"
    ]
    assert [d["text"] for d in unequal({0: old, 1: old, 2: old, 3: new}, NODES)] == [
        "NCCL differs: 2.27.7 on rank 3, 2.27.3 on ranks 0-2"
    ]


def test_new_ranks_are_held_against_what_most_had() -> None:
    before = {0: {"nccl": "1"}, 1: {"nccl": "1"}, 2: {"nccl": "2"}}
    found = differences(before, {5: {"nccl": "1"}, 6: {"nccl": "3"}}, {})
    assert [(d["before"], d["now"], d["ranks"]) for d in found] == [("1", "3", [6])]


def test_a_library_and_its_package_tell_once_with_all_ranks() -> None:
    old = {"package.nvidia-nccl-cu12": "2.27.3"}
    new = {"package.nvidia-nccl-cu12": "2.27.7"}
    found = differences({0: {**old, "nccl": "2.27.3"}, 1: old}, {0: {**new, "nccl": "2.27.7"}, 1: new}, {})
    assert [d["text"] for d in found] == ["NCCL 2.27.3 -> 2.27.7"]


def test_devices_of_each_rank_are_its_own() -> None:
    now = {rank: {"env.CUDA_VISIBLE_DEVICES": str(rank)} for rank in range(2)}
    assert unequal(now, {}) == []
    assert unequal({0: {"env.TOKEN": "hidden:a"}, 1: {"env.TOKEN": "hidden:b"}}, {})[0]["text"] == (
        "TOKEN differs: a hidden value on rank 0, a hidden value on rank 1"
    )


@pytest.fixture
def intake() -> Intake:
    return Intake(Catalog({}, {}), JobState("job", 0.0))


def launch(name: str, ranks: str, **facts: str) -> Fact:
    return Fact(1.0, -1, name, {"ranks": ranks, **facts})


def test_a_verdict_says_nothing_where_nothing_is_known(intake: Intake) -> None:
    intake.joined(Joined(0.0, 0, node="a"))
    assert changed(intake.job) is None


def test_facts_reach_the_verdict_and_end_with_their_attempt(intake: Intake) -> None:
    intake.fact(launch("launch", "0-1", nccl="2"))
    assert changed(intake.job) == {"since": None, "differences": [], "unequal": []}
    intake.fact(launch("launch_before", "0-1", nccl="1", attempt="4", at="2026-11-30T10:00:00Z"))
    found = changed(intake.job)
    assert found is not None
    assert found["since"] == {"attempt": 4, "at": "2026-11-30T10:00:00Z"}
    assert [d["text"] for d in found["differences"]] == ["NCCL 1 -> 2"]
    intake.attempt(Attempt(2.0, 1))
    assert changed(intake.job) is None


def test_the_log_tells_what_no_process_does(intake: Intake) -> None:
    state = intake.job.rank(0)
    hit = Hit(1.0, 0, "nccl.version", "log", 0, "NCCL version 2.27.7", {"nccl_version": "2.27.7"})
    state.note("nccl.version", intake._quoted(hit, "x"), hit.fields)
    state.settings["NCCL_ALGO"] = ("Ring", intake._quoted(hit, "x"))
    intake.fact(launch("launch_before", "0", nccl="2.27.3", **{"env.NCCL_PROTO": "LL"}))
    found = changed(intake.job)
    assert found is not None
    texts = [d["text"] for d in found["differences"]]
    assert texts == ["NCCL 2.27.3 -> 2.27.7", "NCCL_ALGO new: Ring", "NCCL_PROTO gone: was LL"]


def test_nonsense_in_a_fact_changes_nothing(intake: Intake) -> None:
    for ranks in ("", "x", "5-1", "-3", "0-999999999"):
        intake.fact(launch("launch", ranks, nccl="1"))
    intake.fact(launch("launch_before", "zero", attempt="many"))
    assert changed(intake.job) is None
