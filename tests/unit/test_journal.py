"""Events as journal lines and back."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denpexd.core.events import Activity, Attempt, Blind, Event, Exit, Fact, Frame, Frames, Hit, Joined, Raised, Tick
from denpexd.core.flight import Dump, Op, Progress
from denpexd.errors import CaseError
from denpexd.journal import DUMPED, decode, encode

times = st.floats(allow_nan=False, allow_infinity=False)
ranks = st.integers(-1, 10**6)
texts = st.text(max_size=30) | st.text(max_size=9).map(lambda text: f"{text}\udcff")  # a file name that is no UTF-8
fields = st.dictionaries(texts, texts, max_size=3)
frames = st.lists(st.builds(Frame, texts, texts, st.integers(0, 10**6)), max_size=4).map(tuple)
chains = st.lists(st.tuples(texts, texts), max_size=3).map(tuple)
threads = st.lists(st.tuples(texts, frames), max_size=2).map(tuple)
some = st.none() | st.integers(-64, 10**6)
counts = st.integers(-1, 10**6)
sizes = st.lists(st.integers(0, 10**9), max_size=3).map(tuple)
ops = st.builds(Op, texts, counts, texts, counts, st.booleans(), st.booleans(), sizes, sizes, peer=some, place=texts)
progress = st.builds(Progress, counts, counts)
dumps = st.builds(
    Dump,
    times,
    ranks,
    texts,
    st.lists(ops, max_size=4).map(tuple),
    st.dictionaries(texts, sizes, max_size=2),
    fields,
    st.dictionaries(texts, progress, max_size=2),
    st.dictionaries(counts, progress, max_size=2),
    st.dictionaries(counts, texts, max_size=2),
)
events: st.SearchStrategy[Event] = st.one_of(
    st.builds(Hit, times, ranks, texts, texts, st.integers(0), texts, fields, st.booleans(), st.booleans()),
    st.builds(Frames, times, ranks, texts, frames, texts, st.integers(0), some, st.none() | texts, threads),
    st.builds(
        Raised,
        times,
        ranks,
        texts,
        st.integers(0),
        texts,
        chains,
        frames,
        uncaught=st.booleans(),
        history=st.booleans(),
    ),
    st.builds(Exit, times, ranks, some, texts),
    st.builds(Fact, times, ranks, texts, fields, texts, st.integers(0), texts, st.booleans()),
    st.builds(Joined, times, ranks, st.none() | texts, some, some),
    st.builds(Attempt, times, st.integers(0, 99)),
    st.builds(Blind, times, times),
    dumps,
)


@given(texts, events)
def test_an_event_comes_back_as_it_was(job: str, event: Event) -> None:
    written = encode(job, event)
    assert written is not None
    assert "\n" not in written
    assert decode(written) == (job, event)


@pytest.mark.parametrize("event", [Activity(1.0, 0, "rank0", 10), Tick(1.0)])
def test_what_other_events_imply_is_left_out(event: Event) -> None:
    assert encode("job", event) is None


@pytest.mark.parametrize(
    "line",
    [
        "",
        "nonsense",
        "[]",
        "7",
        "null",
        "{}",
        '{"job": "j"}',
        '{"job": "j", "event": "Tick", "t": 1}',
        '{"job": "j", "event": ["Exit"], "t": 1}',
        '{"job": "j", "event": "Exit"}',
        '{"job": "j", "event": "Exit", "t": 1, "rank": 0, "more": 1}',
        '{"event": "Exit", "t": 1, "rank": 0}',
        '{"job": "j", "event": "Frames", "t": 1, "rank": 0, "kind": "x", "frames": [{"function": "f"}]}',
        '{"job": "j", "event": "Frames", "t": 1, "rank": 0, "kind": "x", "frames": 3}',
    ],
)
def test_a_line_that_is_none_is_refused_and_quoted(line: str) -> None:
    with pytest.raises(CaseError, match="not a journal line"):
        decode(line)


@given(events, st.data())
def test_a_line_that_was_cut_off_is_refused(event: Event, data: st.DataObject) -> None:
    written = encode("job", event) or ""
    with pytest.raises(CaseError):
        decode(written[: data.draw(st.integers(0, len(written) - 1))])


def test_lines_are_compact_and_readable() -> None:
    written = encode("run ü", Exit(1.5, 3, -9))
    assert written == '{"job":"run ü","event":"Exit","t":1.5,"rank":3,"code":-9,"source":"process"}'
    assert json.loads(written)["rank"] == 3


def test_the_journal_keeps_of_a_long_dump_the_newest_and_the_open_operations() -> None:
    ops = tuple(Op("0", number, "all_reduce", number, pending=number in (3, 499)) for number in range(500))
    line = encode("job", Dump(1.0, 2, ops=ops))
    assert line is not None
    _, event = decode(line)
    assert isinstance(event, Dump)
    assert [op.seq for op in event.ops] == [3, *range(500 - DUMPED, 500)]
