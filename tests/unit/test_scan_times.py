"""Timestamps of log lines are found in their headers, completed, and made a time for every offset."""

import itertools
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denpexd.scan.times import Axis, Stamp, find, resolve


def unix(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


def time_of(line: str, *, reference: str = "2025-12-31 00:00:00") -> float | None:
    stamp = find(line.encode())
    if stamp is None:
        return None
    return resolve([(0, stamp)], [], unix(reference)).at(0)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("2025-03-15 13:47:07,250 INFO train: step 3", "2025-03-15 13:47:07.250"),
        ("[2025-03-15 13:47:07,000] [INFO] [rank 3] hello", "2025-03-15 13:47:07"),
        ("2025-03-15T13:47:07.5Z stdout F 2024-01-01 00:00:00 inner", "2025-03-15 13:47:07.500"),
        ("2025-03-15T13:47:07+02:00 x", "2025-03-15 11:47:07"),
        ("[2025-03-15 13:47:07.000000] iteration 3/ 10", "2025-03-15 13:47:07"),
        ("  time      : 2025-03-15_13:47:07", "2025-03-15 13:47:07"),
        ("2025/03/15 13:47:07 - mmengine - INFO - x", "2025-03-15 13:47:07"),
        ("03/15/2025 13:47:07 - WARNING - __main__ - x", "2025-03-15 13:47:07"),
        ("03/15/2025 01:47:07 PM x", "2025-03-15 13:47:07"),
        ("15/03/2025 13:47:07 x", "2025-03-15 13:47:07"),
        ("[03/15/25 13:47:07] INFO  x", "2025-03-15 13:47:07"),
        ("25/03/15 13:47:07 INFO executor: x", "2025-03-15 13:47:07"),
        ("15/Mar/2025:13:47:07 +0000 GET", "2025-03-15 13:47:07"),
        ("Sat Mar 15 13:47:07 2025 [0] x", "2025-03-15 13:47:07"),
        ("[rank3]:[E315 13:47:07.000000095 ProcessGroupNCCL.cpp:607] [Rank 3] Watchdog", "2025-03-15 13:47:07"),
        ("E1206 18:44:12.750 x", "2025-12-06 18:44:12.750"),
        ("W0315 13:47:07.500000 20268 torch/distributed/run.py:793] ", "2025-03-15 13:47:07.500"),
        (" 98%|#### | 300/305 [06:53<00:10,  2.00s/it][rank0]:[E315 13:47:07.5 x", "2025-03-15 13:47:07.500"),
        ("(APIServer pid=1) INFO 03-15 13:47:07 [loggers.py:127] x", "2025-03-15 13:47:07"),
        ("03/15 13:47:07 - mmengine - INFO - x", "2025-03-15 13:47:07"),
        ("Mar  5 02:31:55 node kernel: x", "2025-03-05 02:31:55"),
        ('{"ts": 1742046427.5, "rank": 0}', "2025-03-15 13:47:07.500"),
        ('[default0]:{"level": "info", "timestamp": 1742046427500}', "2025-03-15 13:47:07.500"),
        ('{"time": "2025-03-15T13:47:07Z", "level": "info"}', "2025-03-15 13:47:07"),
        ("ts=1742046427.5 level=info", "2025-03-15 13:47:07.500"),
        ("1742046427.5 hello", "2025-03-15 13:47:07.500"),
        ('{"log":"x 2020-01-01 00:00:00\\n","stream":"stdout","time":"2025-03-15T13:47:07Z"}', "2025-03-15 13:47:07"),
        ("\x1b[2m13:47:07\x1b[0m [\x1b[32mINFO\x1b[0m] x", "2025-12-30 13:47:07"),
        ("[13:47:07] x", "2025-12-30 13:47:07"),
    ],
)
def test_a_header_tells_the_time(line: str, expected: str) -> None:
    assert time_of(line) == pytest.approx(unix(expected), abs=1e-3)


@pytest.mark.parametrize(
    "line",
    [
        "step 100 loss 2.31",
        "100%|####| 3/3 [01:02:03<02:33:43, 1.2s/it]",
        "elapsed 02:33:43 so far",
        "E1306 18:44:12 not a month",
        "2025-13-40 13:47:07 not a date",
        'loss {"t": 3.5}',
        "",
        "x" * 500 + " 2025-03-15 13:47:07",
    ],
)
def test_what_is_no_timestamp_is_not_taken_for_one(line: str) -> None:
    assert find(line.encode()) is None


@given(st.binary(max_size=300))
def test_any_bytes_are_survived(line: bytes) -> None:
    stamp = find(line)
    assert stamp is None or 0 <= stamp.seconds < 90_000 or stamp.year is not None


FORMS = (
    "%Y-%m-%d %H:%M:%S",
    "%Y-%m-%dT%H:%M:%SZ",
    "[%Y/%m/%d %H:%M:%S]",
    "%m/%d/%Y %H:%M:%S",
    "%b %d %H:%M:%S",
    "I%m%d %H:%M:%S",
    "INFO %m-%d %H:%M:%S",
)


@given(st.integers(0, 364 * 86_400), st.sampled_from(FORMS))
def test_every_time_is_read_back(second: int, form: str) -> None:
    moment = datetime(2025, 1, 1, tzinfo=UTC) + timedelta(seconds=second)
    text = moment.strftime(form)
    reference = str(moment + timedelta(days=100))[:19]
    assert time_of(f"{text} x", reference=reference) == moment.timestamp()


def test_the_year_comes_from_another_line_of_the_file() -> None:
    stamps = [(0, Stamp(10.0, 2023, 12, 31)), (100, Stamp(5.0, None, 1, 1))]
    axis = resolve(stamps, [], unix("2026-06-01 00:00:00"))
    assert axis.at(100) == unix("2024-01-01 00:00:05")


def test_a_time_of_day_goes_on_past_midnight() -> None:
    axis = resolve([(0, Stamp(86_390.0)), (100, Stamp(10.0))], [], unix("2025-03-02 00:00:20"))
    assert axis.at(0) == unix("2025-03-01 23:59:50")
    assert axis.at(100) == unix("2025-03-02 00:00:10")


def test_a_day_above_twelve_tells_how_slashes_are_meant() -> None:
    lines = [b"03/04/2025 10:00:00 x", b"13/04/2025 10:00:00 x"]
    stamps = [(n, stamp) for n, line in enumerate(lines) if (stamp := find(line)) is not None]
    assert resolve(stamps, [], 0.0).at(0) == unix("2025-04-03 10:00:00")


def test_a_quoted_date_does_not_move_the_clock() -> None:
    quoted = Stamp(0.0, 2031, 1, 1)
    stamps = [(n * 100, Stamp(1000.0 + n, 2025, 3, 1)) for n in range(10)]
    axis = resolve([*stamps[:5], (450, quoted), *stamps[5:]], [], 0.0)
    assert axis.at(900) == unix("2025-03-01 00:16:49")
    assert axis.at(450) < axis.at(500)


def test_movement_fills_the_time_between_two_timestamps() -> None:
    axis = Axis([0, 1000], [0.0, 100.0], [250, 500, 750])
    assert axis.at(600) == pytest.approx(66.0, abs=2.0)
    assert axis.at(1000) == 100.0


def test_a_burst_of_text_takes_no_time() -> None:
    axis = Axis([0, 4000], [0.0, 100.0])
    assert axis.at(3000) < 0.1


def test_only_nearby_timestamps_tell_the_time() -> None:
    axis = Axis([1000], [5.0])
    assert not axis.knows(0)
    assert axis.knows(1000)
    assert not axis.knows(1000 + 2 * Axis.NEAR)
    assert not Axis().knows(0)


@given(
    st.lists(st.tuples(st.integers(0, 10_000), st.floats(0, 86_399)), max_size=30, unique_by=lambda pair: pair[0]),
    st.lists(st.integers(0, 10_000), max_size=20),
)
def test_time_never_runs_backwards_in_a_file(marks: list[tuple[int, float]], moves: list[int]) -> None:
    stamps = [(offset, Stamp(seconds, 2025, 3, 1)) for offset, seconds in sorted(marks)]
    axis = resolve(stamps, sorted(moves), 0.0)
    times = [axis.at(offset) for offset in range(0, 12_000, 97)]
    assert all(b >= a - 1e-6 for a, b in itertools.pairwise(times))
