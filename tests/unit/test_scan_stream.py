"""Streams: the same events however the bytes arrive, progress of unfinished lines, bounds, activity."""

import re

import pytest
import re2
from hypothesis import given, settings
from hypothesis import strategies as st

from denpexd.core.events import UNKNOWN_RANK, Activity, Event, Fact, Hit, Raised
from denpexd.core.rule import Signal
from denpexd.scan.engine import EngineFactory
from denpexd.scan.re2_engine import Re2Engine
from denpexd.scan.scanner import Scanner
from denpexd.scan.stream import Stream

HyperscanEngine = pytest.importorskip("denpexd.scan.hyperscan_engine").HyperscanEngine
ENGINES: tuple[EngineFactory, ...] = (HyperscanEngine, Re2Engine)


def signal(name: str, pattern: str, role: str | None = None, exclude: str | None = None) -> Signal:
    veto = re2.compile(exclude) if exclude else None
    return Signal(name, "log", "means", role, pattern, re2.compile(pattern), exclude=veto)


OOM = signal("oom", r"CUDA out of memory\. Tried to allocate (?P<size>[\d.]+ \w+)")
ERROR = signal("error", r"^(?P<type>\w+Error): ", exclude=r"ignore me")
PHASE = signal("phase", r"(?i)validation", "phase")
STEP = signal("step", r"\bstep (?P<step>\d+)(?:/(?P<total>\d+))?", "progress")
BAR = signal("bar", r"\d+%\|[^|]*\| (?P<step>\d+)/(?P<total>\d+) \[", "progress")
METRIC = signal("metric", r"\bloss (?P<value>[\d.]+|nan)", "progress")
SIGNALS = (OOM, ERROR, PHASE, STEP, BAR, METRIC, Signal("f", "frame", "x"), Signal("g", "fact", "x"))


@pytest.fixture(scope="module", params=ENGINES)
def scanner(request: pytest.FixtureRequest) -> Scanner:
    return Scanner(SIGNALS, request.param)


def hits(events: list[Event], name: str | None = None) -> list[Hit]:
    return [event for event in events if isinstance(event, Hit) and name in (None, event.signal)]


TOKENS = (
    "CUDA out of memory. Tried to allocate 2.5 GiB", "ValueError: x", "ValueError: ignore me", "Validation",
    "loss nan", "loss 1.5 ", "é█", "\x1b[31m", "\x1b[0m", "plain", " ", "\r", "\n", "\n", "\r\n",
    "step 3/9 ", "[rank1]: ", "[1,2]<stdout>:",
    "Traceback (most recent call last):\n", '  File "a.py", line 3, in f\n', "    raise ValueError('step 3')\n",
)  # fmt: skip
DATA = st.lists(st.sampled_from(TOKENS), max_size=40).map(lambda tokens: "".join(tokens).encode())


def story(scanner: Scanner, data: bytes, cuts: list[int], rank: int) -> list[str]:
    """All events except those that depend on how the bytes were cut by design."""
    stream, events, start = Stream(scanner, "x", rank), [], 0
    for cut in [*sorted(cut % (len(data) + 1) for cut in cuts), len(data)]:
        events += stream.feed(1.0, start, data[start:cut])
        start = cut
    events += stream.flush(1.0)
    latest = {STEP.id, BAR.id}
    return sorted(
        repr(event)
        for event in events
        if not isinstance(event, Activity) and not (isinstance(event, Hit) and event.signal in latest)
    )


@given(data=DATA, cuts=st.lists(st.integers(0, 2000), max_size=12), rank=st.sampled_from([UNKNOWN_RANK, 0]))
@settings(max_examples=200, deadline=None)
def test_how_the_bytes_are_cut_and_which_engine_reads_them_changes_nothing(
    data: bytes, cuts: list[int], rank: int
) -> None:
    whole = story(SCANNERS[0], data, [], rank)
    assert story(SCANNERS[0], data, cuts, rank) == whole
    assert story(SCANNERS[1], data, cuts, rank) == whole


SCANNERS = [Scanner(SIGNALS, make) for make in ENGINES]
PLAIN = st.lists(
    st.sampled_from([token for token in TOKENS if not token.startswith(("[", "\x1b", "Trace", "  "))] + ["\udcff"]),
    max_size=40,
).map(lambda tokens: "".join(tokens).encode("utf-8", "surrogateescape"))


@given(data=PLAIN)
@settings(max_examples=200, deadline=None)
def test_hits_are_those_of_plain_re_on_each_segment(data: bytes) -> None:
    wanted, start = set(), 0
    for end in [found.start() for found in re.finditer(rb"[\r\n]", data)] + [len(data)]:
        text = data[start:end].decode("utf-8", "replace")
        for each in (OOM, ERROR, PHASE, METRIC):
            vetoed = each.exclude and re.search(each.exclude.pattern, text, re.ASCII)
            if re.search(each.pattern or "", text, re.ASCII) and not vetoed:
                wanted.add((start, each.id, text))
        start = end + 1
    for scanner in SCANNERS:
        stream = Stream(scanner, "x", 0)
        found = hits(stream.feed(1.0, 0, data) + stream.flush(1.0))
        assert {(hit.offset, hit.signal, hit.text) for hit in found if hit.signal not in ("step", "bar")} == wanted


def test_a_hit_says_where_who_and_what(scanner: Scanner) -> None:
    stream = Stream(scanner, "/logs/rank3.log", 3)
    (hit,) = hits(
        stream.feed(7.0, 100, b"fine\n2025-10-14 03:00:12 WARNING CUDA out of memory. Tried to allocate 2.50 GiB\n")
    )
    assert (hit.t, hit.rank, hit.source, hit.offset) == (7.0, 3, "/logs/rank3.log", 105)
    assert hit.fields == {"size": "2.50 GiB"}
    assert hit.handled


def test_colours_inside_a_word_do_not_hide_a_hit(scanner: Scanner) -> None:
    raw = b"fine\n\x1b[31mCUDA out \x1b[1mof memory\x1b[0m. Tried to allocate 2 GiB\n"
    (hit,) = hits(Stream(scanner, "x", 0).feed(1.0, 0, raw))
    assert (hit.offset, hit.text) == (5, "CUDA out of memory. Tried to allocate 2 GiB")


def test_only_the_latest_progress_of_a_read_is_told_but_every_value(scanner: Scanner) -> None:
    events = Stream(scanner, "x", 0).feed(1.0, 0, b"".join(b"step %d loss 1.%d\n" % (n, n) for n in range(9)))
    assert [hit.fields["step"] for hit in hits(events, "step")] == ["8"]
    assert len(hits(events, "metric")) == 9


def test_an_interleaved_stream_tells_the_latest_progress_of_each_rank(scanner: Scanner) -> None:
    data = b"".join(b"[default%d]:step %d of a long line %s\n" % (n % 4, n, b"x" * 200) for n in range(100))
    found = hits(Stream(scanner, "console").feed(1.0, 0, data), "step")
    assert sorted((hit.rank, hit.fields["step"]) for hit in found) == [(0, "96"), (1, "97"), (2, "98"), (3, "99")]


def test_progress_is_found_although_a_traceback_follows_it(scanner: Scanner) -> None:
    events = Stream(scanner, "x", 0).feed(1.0, 0, b"step 7\n" + b"  some frame of a traceback\n" * 300)
    assert [hit.fields["step"] for hit in hits(events, "step")] == ["7"]


def test_a_progress_bar_without_a_line_feed_is_told_once_for_each_state(scanner: Scanner) -> None:
    stream, told, at = Stream(scanner, "x", 0), [], 0
    for data in (b"\r 24%|## | 120/500 [0", b"2:52]", b"\r 25%|## | 125/500 [02:53]", b"\n", b"done\n"):
        told += [hit.fields["step"] for hit in hits(stream.feed(1.0, at, data), "bar")]
        at += len(data)
    assert told == ["120", "125"]


def test_an_error_between_carriage_returns_is_found(scanner: Scanner) -> None:
    events = Stream(scanner, "x", 0).feed(1.0, 0, b"\r 1%|# | 1/9 [x]\rValueError: boom\r 2%|# | 2/9 [x]")
    assert [hit.offset for hit in hits(events, "error")] == [17]
    assert [hit.fields["step"] for hit in hits(events, "bar")] == ["2"]


def test_an_unfinished_line_counts_when_it_has_been_idle_and_is_not_told_twice(scanner: Scanner) -> None:
    stream = Stream(scanner, "x", 0)
    assert hits(stream.feed(1.0, 0, b"ValueError: bo")) == []
    assert hits(stream.idle(1.5)) == []
    assert len(hits(stream.idle(2.5))) == 1
    assert hits(stream.idle(3.5)) == []
    assert hits(stream.feed(4.0, 14, b"om\n")) == []


def test_a_traceback_glued_to_an_idle_progress_bar_is_not_lost(scanner: Scanner) -> None:
    stream = Stream(scanner, "x", 1)
    bar = b"\rtrain[1]:  50%|## | 4/8 [00:07<00:04, loss=2.4]"
    rest = (
        b'[rank1]: Traceback (most recent call last):\n[rank1]:   File "a.py", line 3, in f\n[rank1]: ValueError: x\n'
    )
    events = stream.feed(1.0, 0, bar) + stream.idle(3.0) + stream.feed(4.0, len(bar), rest) + stream.idle(5.5)
    (event,) = [event for event in events if isinstance(event, Raised)]
    assert (event.rank, event.t, event.uncaught) == (1, 4.0, True)


def test_a_gap_ends_the_line_before_it(scanner: Scanner) -> None:
    stream = Stream(scanner, "x", 0)
    stream.feed(1.0, 0, b"ValueError: cut")
    (hit,) = hits(stream.feed(2.0, 5000, b"off\n"))
    assert hit.text == "ValueError: cut"


def test_quoted_source_code_says_nothing(scanner: Scanner) -> None:
    data = (
        b'Traceback (most recent call last):\n  File "a.py", line 3, in f\n'
        b"    raise E('CUDA out of memory. Tried to allocate 1 GiB')\nValueError: x\n"
    )
    stream = Stream(scanner, "x", 0)
    assert [hit.signal for hit in hits(stream.feed(1.0, 0, data) + stream.flush(2.0))] == ["error"]


def test_a_blocks_end_does_not_wait_for_more_lines(scanner: Scanner) -> None:
    stream = Stream(scanner, "x", 0)
    data = b'Traceback (most recent call last):\n  File "a.py", line 3, in f\nValueError: x\n'
    assert not [event for event in stream.feed(1.0, 0, data) if isinstance(event, Raised)]
    (event,) = [event for event in stream.idle(2.0) if isinstance(event, Raised)]
    assert event.t == 1.0


def test_a_long_line_keeps_head_and_tail_however_it_comes(scanner: Scanner) -> None:
    line = b"ValueError: " + b"x" * 5000 + b" CUDA out of memory. Tried to allocate 1 GiB\n"
    for step in (len(line), 700):
        stream, found = Stream(scanner, "x", 0, max_line=1024), []
        for at in range(0, len(line), step):
            found += hits(stream.feed(1.0, at, line[at : at + step]))
        assert [(hit.signal, hit.offset, len(hit.text) <= 1024) for hit in found] == [
            ("error", 0, True),
            ("oom", 0, True),
        ]
        assert stream.truncated_lines == 1


def test_a_long_line_that_says_nothing_is_counted_too(scanner: Scanner) -> None:
    stream, at = Stream(scanner, "x", 0, max_line=1024), 0
    for data in (b"x" * 700, b"x" * 700, b"x" * 700, b"x\nshort\n", b"y" * 2000, b"\n" + b"z" * 2000, b"z\n"):
        stream.feed(1.0, at, data)
        at += len(data)
    assert stream.truncated_lines == 3


def test_a_storm_is_capped_and_counted(scanner: Scanner) -> None:
    stream = Stream(scanner, "x", 0)
    found = hits(stream.feed(1.0, 0, b"ValueError: x\n" * 5000 + b"CUDA out of memory. Tried to allocate 1 GiB\n"))
    assert len(found) == 100 + 2  # the first ones, and the last
    assert (found[-2].offset, found[-1].signal) == (4999 * len(b"ValueError: x\n"), "oom")
    assert stream.repeated_lines == 4899


def test_a_storm_of_lines_that_differ_in_their_time_stamp_only_is_one(scanner: Scanner) -> None:
    stream = Stream(scanner, "x", 0)
    lines = b"".join(
        b"2026-01-02 03:04:05,%03d CUDA out of memory. Tried to allocate 1 GiB\n" % (number % 1000)
        for number in range(5000)
    )
    assert len(hits(stream.feed(1.0, 0, lines))) == 101


def test_ranks_that_say_the_same_in_one_stream_are_all_heard(scanner: Scanner) -> None:
    stream = Stream(scanner, "x")
    found = hits(stream.feed(1.0, 0, b"".join(b"[rank%d]: ValueError: x\n" % rank for rank in range(900))))
    assert {hit.rank for hit in found} == set(range(900))


def test_the_launchers_lines_belong_to_no_rank(scanner: Scanner) -> None:
    line = b"W1130 02:43:52.2 9764 torch/distributed/elastic/x.py:1] CUDA out of memory. Tried to allocate 1 GiB\n"
    assert hits(Stream(scanner, "x", 3).feed(1.0, 0, line))[0].rank == UNKNOWN_RANK


def test_events_stand_in_the_order_of_the_file(scanner: Scanner) -> None:
    data = b"step 8\nstarting validation\nstep 9\nSending process 7 closing signal SIGTERM\n"
    events = [event for event in Stream(scanner, "x", 0).feed(1.0, 0, data) if isinstance(event, Hit | Fact)]
    assert [event.offset for event in events] == sorted(event.offset for event in events)
    assert [type(event) for event in events] == [Hit, Hit, Fact]


def test_one_activity_for_a_one_rank_stream(scanner: Scanner) -> None:
    events = Stream(scanner, "x", 2).feed(1.0, 0, b"a\nb\nunfinished", history=True)
    assert events == [Activity(1.0, 2, "x", 14, history=True)]
    assert Stream(scanner, "x", 2).feed(1.0, 0, b"") == []


def test_the_bytes_of_an_interleaved_stream_are_shared_by_its_ranks(scanner: Scanner) -> None:
    data = b"[rank0]: aaa\n[rank1]: bbb\n[rank1]: ccc\nnobody\n"
    events = Stream(scanner, "console").feed(1.0, 0, data)
    shares = {event.rank: event.bytes for event in events if isinstance(event, Activity)}
    assert set(shares) == {UNKNOWN_RANK, 0, 1}
    assert shares[1] > shares[0] > 0
    assert sum(shares.values()) == len(data)


def test_a_coloured_prefix_of_ray_teaches_the_rank_of_its_process(scanner: Scanner) -> None:
    prefix = "\x1b[36m(RayTrainWorker pid=7, ip=10.0.0.4)\x1b[0m "
    stream = Stream(scanner, "console")
    stream.feed(1.0, 0, first := f"{prefix}[rank 5] ready\n".encode())
    events = stream.feed(2.0, len(first), f"{prefix}ValueError: x\n".encode())
    assert [event.rank for event in [*events, *stream.flush(3.0)] if isinstance(event, Raised)] == [5]


@pytest.mark.parametrize(
    ("text", "kind", "said"),
    [
        (
            '{"level": "error", "rank": 3, "exc": "OSError: [Errno 28] No space left: \'/tmp/a\'\\n\\nnote"}',
            "OSError",
            "[Errno 28] No space left: '/tmp/a'\n\nnote",
        ),
        (
            '{"rank": 3, "exception": [{"exc_type": "ValueError", "exc_value": "a \\"b\\" c", "frames": []}]}',
            "ValueError",
            'a "b" c',
        ),
        ('{"exception.type": "KeyError", "exception.message": "\'step\'", "rank": 3}', "KeyError", "'step'"),
        ('{"rank": 3, "error": "RuntimeError(\'bad\')"}', "RuntimeError", "bad"),
    ],
)
def test_an_exception_in_a_field_of_a_json_log_is_found(scanner: Scanner, text: str, kind: str, said: str) -> None:
    (raised,) = (e for e in Stream(scanner, "x").feed(1.0, 0, text.encode() + b"\n") if isinstance(e, Raised))
    assert (raised.rank, raised.chain, raised.uncaught) == (3, ((kind, said),), False)


@pytest.mark.parametrize(
    "text", ['{"rank": 3, "error": 0.2}', '{"metric": "error", "exc_type": null}', '{"exc": "none"}']
)
def test_a_field_of_a_json_log_without_an_exception_is_none(scanner: Scanner, text: str) -> None:
    events = Stream(scanner, "x").feed(1.0, 0, text.encode() + b"\n")
    assert not [event for event in events if isinstance(event, Raised)]


def test_a_second_rank_makes_a_stream_interleaved(scanner: Scanner) -> None:
    stream = Stream(scanner, "x", 0)
    stream.feed(1.0, 0, b"[rank0]: ValueError: x\n")
    assert not stream.interleaved
    stream.feed(1.0, 23, b"[rank1]: ValueError: x\n")
    assert stream.interleaved
    assert Stream(scanner, "x").interleaved
    assert not Stream(scanner, "x", interleaved=False).interleaved


def test_crlf_lines(scanner: Scanner) -> None:
    stream, found, at = Stream(scanner, "x", 0), [], 0
    for data in (b"ValueError: a\r", b"\nValueError: b\r\nVal", b"ueError: c\r\n"):
        found += hits(stream.feed(1.0, at, data))
        at += len(data)
    assert [(hit.text, hit.offset) for hit in found] == [
        ("ValueError: a", 0),
        ("ValueError: b", 15),
        ("ValueError: c", 30),
    ]
    assert found[-1].fields == {"type": "ValueError"}


def test_a_signal_of_the_catalogue_marks_what_else_its_line_says_as_handled() -> None:
    second_try = signal("smaller", r"halving the batch size", "handled")
    stream = Stream(Scanner((OOM, second_try), Re2Engine), "x", 0)
    told = "CUDA out of memory. Tried to allocate 2 GiB"
    found = hits(stream.feed(1.0, 0, f"{told}\n{told}: halving the batch size\n".encode()))
    assert [(hit.signal, hit.handled) for hit in found] == [("oom", False), ("oom", True), ("smaller", False)]


def test_what_one_rank_repeats_is_told_a_few_times_a_second_and_once_a_read(scanner: Scanner) -> None:
    stream, data, offset, told = Stream(scanner, "x", 0), b"Validation\n" * 50, 0, []
    for t in (1.0, 1.1, 1.2, 2.5):
        told.append([hit.offset - offset for hit in hits(stream.feed(t, offset, data), "phase")])
        offset += len(data)
    assert told == [[0, 11, 22, 33, 539], [539], [539], [0, 11, 22, 33, 539]]


def test_only_the_latest_progress_of_each_rank_is_told_also_where_a_later_line_only_looks_like_it(
    scanner: Scanner,
) -> None:
    data = b"[rank0]: step 1/9\n[rank1]: step 4/9\n[rank0]: step 2/9\n[rank0]: misstep 7/9\n"
    found = hits(Stream(scanner, "x").feed(1.0, 0, data), "step")
    assert [(hit.rank, hit.fields["step"], hit.offset) for hit in found] == [(1, "4", 18), (0, "2", 36)]


@pytest.mark.parametrize(
    ("lines", "process"),
    [
        (("Traceback (most recent call last):", '  File "a.py", line 3, in f', "ValueError: x"), "pid=7, ip=10.0.0.4"),
        (("torch.cuda.OutOfMemoryError: CUDA out of memory.",), "pid=7, ip=10.0.0.4"),
    ],
)
def test_an_exception_keeps_the_process_that_its_prefix_names(
    scanner: Scanner, lines: tuple[str, ...], process: str
) -> None:
    stream = Stream(scanner, "x", UNKNOWN_RANK)
    text = "".join(f"(RayTrainWorker pid=7, ip=10.0.0.4) {line}\n" for line in lines).encode()
    (raised,) = (e for e in [*stream.feed(1.0, 0, text), *stream.flush(2.0)] if isinstance(e, Raised))
    assert (raised.rank, raised.process) == (UNKNOWN_RANK, process)


@pytest.mark.parametrize(
    ("above", "rank", "process"),
    [
        ("2026 ERROR worker_group.py:118 -- Worker 3 failed:\nray::X.next() (pid=7, ip=10.0.0.4, a=1)\n", 3, ""),
        ("Worker 3 has failed.\nray::X.next() (pid=7, ip=10.0.0.4)\n", 3, ""),
        ("ray::X.next() (pid=7, ip=10.0.0.4)\n(W pid=9, ip=10.0.0.5) step 9\n", UNKNOWN_RANK, "pid=7, ip=10.0.0.4"),
        ("ray::X.next() (pid=7, ip=10.0.0.4)\nsomething else\n", UNKNOWN_RANK, ""),
        ("Worker 3 failed:\nsomething else\n", UNKNOWN_RANK, ""),
    ],
)
def test_frames_below_a_task_of_ray_belong_to_its_process(
    scanner: Scanner, above: str, rank: int, process: str
) -> None:
    stream = Stream(scanner, "x", UNKNOWN_RANK)
    text = f'{above}  File "a.py", line 3, in f\n    f(x)\nValueError: x\n'.encode()
    (raised,) = (e for e in [*stream.feed(1.0, 0, text), *stream.flush(2.0)] if isinstance(e, Raised))
    assert (raised.rank, raised.process) == (rank, process)
