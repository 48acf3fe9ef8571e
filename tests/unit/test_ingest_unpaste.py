"""Pasted logs: what pasting did is undone, and a log that was never pasted stays as it is."""

import html
import json
from pathlib import Path

import pytest

from denpexd.ingest.unpaste import LARGEST, restored

LOG = (
    b"2025-10-14 03:00:10,000 INFO train: step 100 loss 2.31\n"
    b"[rank3]: Traceback (most recent call last):\n"
    b'[rank3]:   File "/workspace/very/long/path/to/some/package/data/collate.py", line 118, in collate_padded_batch\n'
    b"[rank3]:     raise ValueError(\"sample 17 has 0 tokens & <pad> 'x'\")\n"
    b"[rank3]: ValueError: sample 17 has 0 tokens and this sentence goes on to be far wider than a terminal is\n"
    b"\n"
    b"srun: error: node-0: task 3: Exited with exit code 1 and more words so that this line is wide too\n"
)
LINES = LOG.decode().split("\n")[:-1]


def test_a_log_that_was_not_pasted_stays_as_it_is() -> None:
    assert restored(LOG) == LOG
    for path in sorted((Path(__file__).parents[1] / "cases").glob("*/timeline.jsonl")):
        assert restored(path.read_bytes()) == path.read_bytes()


@pytest.mark.parametrize("mark", ["> ", ">", ">> ", "> > "])
def test_quotation_marks_are_taken_off(mark: str) -> None:
    quoted = "".join(f"{mark}{line}\n" for line in LINES)
    assert restored(quoted.encode()) == LOG


@pytest.mark.parametrize("form", ["{n:5d}\t", "{n}: ", "{n:4d} | ", "{n}. ", "  {n} "])
def test_line_numbers_are_taken_off(form: str) -> None:
    numbered = "".join(form.format(n=n) + line + "\n" for n, line in enumerate(LINES, 417))
    assert restored(numbered.encode()) == LOG


def test_html_entities_become_characters() -> None:
    assert restored(html.escape(LOG.decode()).encode()) == LOG


@pytest.mark.parametrize("width", [40, 50, 64, 72, 80])
def test_lines_cut_at_a_fixed_width_are_joined(width: int) -> None:
    cut = "".join(line[at : at + width] + "\n" for line in LINES for at in range(0, max(len(line), 1), width))
    assert restored(cut.encode()) == LOG


def test_windows_line_ends_and_bytes_that_are_no_text_survive() -> None:
    assert restored(b"step 1\xff\r\nstep 2\r\n") == b"step 1\xff\nstep 2\n"


@pytest.mark.parametrize(
    "log",
    [
        "".join(f"{n * 10} loss 2.{n}\n" for n in range(30)),  # steps, not line numbers
        "".join(f"{t}.5 step done\n" for t in range(30)),
        "| epoch | loss |\n",
        "=" * 60 + "\n" + "x" * 30 + "\n" + "=" * 60 + "\n" + "y\n",
    ],
)
def test_what_only_looks_pasted_is_left_alone(log: str) -> None:
    assert restored(log.encode()) == log.encode()


STACK = 'Traceback (most recent call last):\n  File "/ws/train.py", line 6, in main\nValueError: é\n'


@pytest.mark.parametrize(
    ("said", "becomes"),
    [
        ({"message": {"message": "ValueError: é", "extraInfo": {"py_callstack": STACK, "timestamp": "1"}}}, STACK),
        ({"message": {"message": "Signal 9", "extraInfo": {"py_callstack": None}}}, "Signal 9"),
        ({"message": "RuntimeError: old", "extraInfo": 3}, "RuntimeError: old"),
    ],
)
def test_torchelastic_s_error_file_is_the_traceback_that_it_holds(said: object, becomes: str) -> None:
    assert restored(json.dumps(said).encode()).decode() == becomes


@pytest.mark.parametrize("text", ['{"message": ', '{"message": 3}', '{"message": {"message": []}}'])
def test_what_only_begins_like_an_error_file_stays_as_it_is(text: str) -> None:
    assert restored(text.encode()) == text.encode()


def test_a_piped_log_is_not_touched() -> None:
    log = b"> step\n" * (LARGEST // 7 + 1)
    assert restored(log) is log
