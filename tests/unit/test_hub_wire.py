"""What travels between nodes and hubs, and whose clock counts."""

import json
import zlib
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denpexd.core.events import Activity, Attempt, Blind, Event, Exit, Fact, Frame, Frames, Hit, Joined, Raised, Want
from denpexd.core.flight import Dump
from denpexd.errors import WireError
from denpexd.hub.axis import Axis, Now
from denpexd.hub.merge import HUB, SETTLE, SILENT, Merge
from denpexd.hub.wire import (
    PARTITIONS,
    Message,
    Row,
    Word,
    decode_message,
    decode_word,
    encode_message,
    encode_word,
    events_of,
    lines,
    partition,
    subject,
)

TEXT = st.text(max_size=20)
TIME = st.floats(-1e10, 1e10)
RANK = st.integers(-1, 100_000)
FIELDS = st.dictionaries(TEXT, TEXT, max_size=3)
FRAMES = st.lists(st.builds(Frame, TEXT, TEXT, st.integers(0, 9999)), max_size=3).map(tuple)
EVENTS = st.one_of(
    st.builds(Activity, TIME, RANK, TEXT, st.integers(0, 1 << 40), st.booleans()),
    st.builds(Hit, TIME, RANK, TEXT, TEXT, st.integers(0, 1 << 40), TEXT, FIELDS, st.booleans(), st.booleans()),
    st.builds(Frames, TIME, RANK, st.sampled_from(["py-spy", "traceback"]), FRAMES, TEXT),
    st.builds(Raised, TIME, RANK, TEXT, st.integers(0, 99), TEXT, st.just((("E", "m"),)), FRAMES, st.booleans()),
    st.builds(Exit, TIME, RANK, st.none() | st.integers(-64, 255)),
    st.builds(Fact, TIME, RANK, TEXT, FIELDS, TEXT),
    st.builds(
        Joined, TIME, RANK, st.none() | TEXT, st.none() | st.integers(1, 1 << 22), st.none() | st.integers(1, 99)
    ),
    st.builds(Attempt, TIME, st.integers(0, 99)),
    st.builds(Blind, TIME, TIME),
    st.builds(Dump, TIME, RANK, source=TEXT),
)
BATCHES = st.lists(st.lists(EVENTS, min_size=1, max_size=4), min_size=1, max_size=4)


def as_bytes(message: Message) -> bytes:
    return encode_message(message, [(row.start, row.number, lines(row.batches)) for row in message.rows])


@given(batches=BATCHES, node=TEXT, job=TEXT, sent=TIME, number=st.integers(1, 1 << 50))
def test_a_message_is_read_as_it_was_meant(
    batches: list[list[Event]], node: str, job: str, sent: float, number: int
) -> None:
    told = [{"key": "k", "evidence": [{"text": "a\nb"}]}]
    message = Message(node, job, sent, (0, 5), 16, [Row("run", number, batches)], told)
    assert decode_message(as_bytes(message)) == message


@given(told=st.lists(st.fixed_dictionaries({"key": TEXT, "revision": st.integers(1, 99)}), max_size=3), why=TEXT)
def test_a_word_is_read_as_it_was_meant(told: list[dict[str, object]], why: str) -> None:
    word = Word("hub1", 7, told, [("job", Want(1.0, "stacks", (1, 2), why))])
    assert decode_word(encode_word(word)) == word


@given(
    data=st.binary(max_size=200), begin=st.sampled_from([b"", b"\x00", b"\x01", b'\x00{"v":1,', b"\x00[", b"\x00{}"])
)
def test_whatever_comes_over_the_network_is_refused_with_a_reason(data: bytes, begin: bytes) -> None:
    for decode in (decode_message, decode_word):
        with pytest.raises(WireError):
            decode(begin + data)


INF, HUGE = float("inf"), 1 << 60
TOLD_WRONGLY: list[dict[str, object]] = [
    {"opened_t": "soon"},
    {"opened_t": INF},
    {"revision": [], "key": "k"},
    {"job": "another"},
    {"severity": None},
    {"initiating_ranks": "abc"},
    {"initiating_ranks": ["0"]},
    {"evidence": 7},
    {"evidence": ["text"]},
    {"nodes": ["gpu-1"]},
    {"sent": [1]},
    {"sent": []},
    {"sent": {"pager": None}},
    {"sent": {"pager": []}},
    {"sent": {"pager": {"revision": 1, "event": "opened", "at": "noon"}}},
]
WRONG: list[dict[str, object]] = [
    {"rows": [["s", 1, [[{"event": "Nonsense"}]]]]},
    {"rows": [["s", HUGE, []]]},
    {"rows": [["s", 1, [[{"event": "Attempt", "t": -1.7e308, "number": 1}]]]]},
    {"rows": [["s", 1, [[{"event": "Blind", "t": 1.0, "since": -1.7e308}]]]]},
    {"v": 2},
    *({"sent": sent} for sent in ("x", float("nan"), 10**400)),
    *({"ranks": ranks} for ranks in (None, [INF], [HUGE], [0] * 100_000)),
    *({"world_size": size} for size in (INF, HUGE)),
    *({"told": [told]} for told in (1, *TOLD_WRONGLY)),
]


@pytest.mark.parametrize("change", WRONG)
def test_a_message_with_something_else_in_it_is_refused(change: dict[str, object]) -> None:
    whole = json.loads(as_bytes(Message("n", "j", 1.0))[1:])
    with pytest.raises(WireError):
        decode_message(b"\x00" + json.dumps(whole | change).encode())


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": INF},
        *({"wants": [["j", t, "stacks", ranks, ""]]} for t, ranks in ((10**400, []), (INF, []), (1, [INF]))),
        *({"told": [told]} for told in TOLD_WRONGLY if "job" not in told),
    ],
)
def test_a_word_with_something_else_in_it_is_refused(change: dict[str, object]) -> None:
    whole = json.loads(encode_word(Word("h", 1))[1:])
    with pytest.raises(WireError):
        decode_word(b"\x00" + json.dumps(whole | change).encode())


def test_a_batch_without_events_is_none() -> None:
    whole = json.loads(as_bytes(Message(HUB, "j", 1.0))[1:])
    message = decode_message(b"\x00" + json.dumps(whole | {"rows": [["s", 1, [[]]]]}).encode())
    (merge := Merge()).take(message, 2.0)
    assert merge.waiting == 0


def test_a_message_that_grows_beyond_measure_is_refused() -> None:
    bomb = b"\x01" + zlib.compress(b'{"v":1,"node":"' + b"x" * (64 << 20))
    with pytest.raises(WireError, match="bytes"):
        decode_message(bomb)


@given(job=st.text(min_size=1))
def test_every_job_has_one_subject_in_one_partition(job: str) -> None:
    assert 0 <= partition(job) < PARTITIONS
    assert subject(job).startswith(events_of(partition(job)).removesuffix(">"))
    assert subject(job).isascii()
    assert subject(job).count(".") == 3


def test_the_partition_of_a_job_never_changes() -> None:
    assert [partition(job) for job in ("llama-70b", "run7", "höhe")] == [12, 14, 2]


class TestAxis:
    @given(
        skew=st.floats(-1e6, 1e6),
        gaps=st.lists(st.tuples(st.floats(0, 5), st.floats(0, 3)), min_size=1, max_size=30),
    )
    def test_a_clock_that_is_off_gives_the_times_of_a_right_one(
        self, skew: float, gaps: list[tuple[float, float]]
    ) -> None:
        right, off = Axis(), Axis()
        t = 1000.0
        for gap, delay in gaps:
            t += gap
            right.learn(t + delay, t)
            off.learn(t + delay, t + skew)
            assert off.place(t + skew - 0.5) == pytest.approx(right.place(t - 0.5), abs=1e-6)

    @given(gaps=st.lists(st.tuples(st.floats(0.001, 5), st.floats(0, 30)), min_size=2, max_size=30))
    def test_the_order_of_a_node_is_kept_and_nothing_is_later_than_its_message(
        self, gaps: list[tuple[float, float]]
    ) -> None:
        axis, t, before = Axis(), 0.0, float("-inf")
        for gap, delay in gaps:
            t += gap
            axis.learn(t + delay, t)
            placed = axis.place(t)
            assert placed >= before
            assert placed <= max(b + d for b, d in [(t, delay), (0, 30 + t)])
            before = placed

    def test_a_message_that_was_long_on_its_way_is_not_taken_for_a_late_clock(self) -> None:
        axis = Axis()
        axis.learn(100.01, 100.0)
        axis.learn(140.0, 105.0)  # spooled for 35 seconds after it was stamped as sent
        assert axis.place(105.0) == pytest.approx(105.01, abs=0.02)

    def test_the_present_never_goes_back_and_is_the_end_of_a_backlog(self) -> None:
        now = Now()
        assert now.at(5.0) is None
        now.learn(100.0, 5000.0)  # an hour old
        assert now.at(5000.0) == 100.0
        now.learn(3900.0, 5001.0)
        assert now.at(5001.0) == 3900.0
        now.learn(3000.0, 5001.0)
        assert now.at(5001.5) == 3900.5


def sent(
    node: str, t: float, *batches: Sequence[Event], start: str = "run", number: int = 1, **more: object
) -> Message:
    return Message(node, "job", t, rows=[Row(start, number, batches)], **more)


def all_of(merge: Merge, t: float = 1e12) -> list[Event]:
    return [event for batch in merge.due(t) for event in batch]


class TestMerge:
    def test_batches_come_in_the_order_of_the_axis_whoever_was_sent_first(self) -> None:
        merge = Merge()
        merge.take(sent("a", 1003.0, [Activity(1001.0, 0, "f", 1)], [Activity(1002.5, 0, "f", 1)]), 3.0)
        merge.take(sent("b", 3.1, [Activity(0.5, 1, "f", 1)], [Activity(2.0, 1, "f", 1)]), 3.1)
        found = [(e.t, e.rank) for e in all_of(merge) if isinstance(e, Activity)]
        assert found == [(0.5, 1), (1.0, 0), (2.0, 1), (2.5, 0)]

    def test_rows_that_come_again_count_once_and_gaps_are_known(self) -> None:
        merge = Merge()
        for number in (1, 2, 2, 1, 5):
            merge.take(sent("a", float(number), [Exit(float(number), number)], number=number), float(number))
        assert (merge.repeated, merge.lost) == (2, 2)
        assert [e.rank for e in all_of(merge) if isinstance(e, Exit)] == [1, 2, 5]

    def test_a_daemon_that_was_started_again_numbers_from_one(self) -> None:
        merge = Merge()
        merge.take(sent("a", 1.0, [Exit(1.0, 1)], number=7), 1.0)
        merge.take(sent("a", 2.0, [Exit(2.0, 2)], number=1, start="again"), 2.0)
        assert (merge.repeated, merge.lost) == (0, 0)

    def test_a_daemon_that_was_started_again_after_its_clock_was_set_back_is_not_an_hour_late(self) -> None:
        merge = Merge()
        merge.take(sent("a", 3610.0, [Exit(3610.0, 1)]), 10.0)
        merge.take(sent("a", 20.0, [Exit(20.0, 2)], start="again"), 20.0)
        assert [(e.t, e.rank) for e in all_of(merge) if isinstance(e, Exit)] == [(10.0, 1), (20.0, 2)]

    def test_every_node_tells_of_a_new_attempt_and_the_job_has_one(self) -> None:
        merge = Merge()
        for node in ("a", "b", "c"):
            merge.take(sent(node, 1.0, [Attempt(1.0, 1)]), 1.0)
        merge.take(sent("b", 9.0, [Attempt(9.0, 2)], number=2), 9.0)
        assert [e.number for e in all_of(merge) if isinstance(e, Attempt)] == [1, 2]

    def test_with_the_launcher_of_a_node_its_ranks_end_and_with_the_last_one_the_job(self) -> None:
        merge = Merge()
        for node, ranks in (("a", (0, 1)), ("b", (2, 3))):
            merge.take(sent(node, 1.0, [Activity(1.0, -1, "/launcher.log", 5)], ranks=ranks), 1.0)
        all_of(merge)
        merge.take(sent("a", 5.0, [Exit(5.0, -1, 1)], number=2), 5.0)
        assert [(e.rank, e.code) for e in all_of(merge) if isinstance(e, Exit)] == [(0, None), (1, None)]
        merge.take(sent("b", 6.0, [Exit(6.0, -1, 1)], number=2), 6.0)
        assert [(e.rank, e.code) for e in all_of(merge) if isinstance(e, Exit)] == [(-1, 1)]

    def test_the_only_launcher_is_that_of_the_job(self) -> None:
        merge = Merge()
        merge.take(sent("a", 1.0, [Activity(1.0, -1, "/srun.log", 5)], ranks=(0,)), 1.0)
        merge.take(sent("b", 1.0, [Activity(1.0, 1, "/rank1.log", 5)], ranks=(1,)), 1.0)
        merge.take(sent("a", 5.0, [Exit(5.0, -1, 0)], number=2), 5.0)
        assert [e.rank for e in all_of(merge) if isinstance(e, Exit)] == [-1]

    def test_equal_paths_of_two_nodes_are_two_files(self) -> None:
        merge = Merge()
        for node, rank in (("a", 0), ("b", 1)):
            merge.take(sent(node, 1.0, [Hit(1.0, rank, "s", "/logs/out.log", 0, "text")]), 1.0)
        assert {e.source for e in all_of(merge) if isinstance(e, Hit)} == {"a:/logs/out.log", "b:/logs/out.log"}

    def test_what_a_witness_is_called_stays(self) -> None:
        merge = Merge()
        merge.take(sent("a", 1.0, [Fact(1.0, 0, "frozen", source="ras"), Exit(1.0, 0, 1)]), 1.0)
        assert [e.source for e in all_of(merge) if isinstance(e, Fact | Exit)] == ["ras", "process"]

    def test_a_node_that_says_nothing_is_silent_until_it_speaks_and_one_that_leaves_at_once(self) -> None:
        merge = Merge()
        for node, rank in (("a", 0), ("b", 1)):
            merge.take(Message(node, "job", 1.0, (rank,)), 1.0)
        merge.take(Message("b", "job", 20.0, (1,), leaving=True), 20.0)
        assert [(n.name, [f.rank for f in facts]) for n, facts in merge.fell_silent(21.0)] == [("b", [1])]
        assert [n.name for n, _ in merge.fell_silent(1.0 + SILENT + 0.1)] == ["a"]
        assert list(merge.fell_silent(2 * SILENT)) == []
        merge.take(Message("a", "job", 90.0, (0,)), 90.0)
        assert ("node_heard", 0) in {(e.name, e.rank) for e in all_of(merge) if isinstance(e, Fact)}

    def test_a_rank_that_comes_back_elsewhere_belongs_there(self) -> None:
        merge = Merge()
        merge.take(Message("a", "job", 1.0, (0, 1)), 1.0)
        merge.take(Message("b", "job", 2.0, (1,)), 2.0)
        joined = [(e.rank, e.node) for e in all_of(merge) if isinstance(e, Joined)]
        assert joined == [(0, "a"), (1, "a"), (1, "b")]
        assert merge.nodes["a"].ranks == {0}

    def test_what_a_hub_has_concluded_is_on_the_axis_already(self) -> None:
        merge = Merge()
        merge.take(sent(HUB, 7.0, [Fact(7.0, -1, "stop_over", {"by": "hand"})], start="hub1"), 99.0)
        assert [e.t for e in all_of(merge)] == [7.0]
        assert merge.nodes == {}

    def test_nothing_is_told_before_the_others_had_their_time(self) -> None:
        merge = Merge()
        merge.take(sent("a", 10.0, [Exit(10.0, 0)]), 10.0)
        assert all_of(merge, 12.0 - SETTLE) == []
