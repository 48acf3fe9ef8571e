"""Chunks and lines: colours, envelopes, offsets, and what a line says about being handled."""

import json

import pytest

from denpexd.catalog.load import load, shipped_rules
from denpexd.scan.engine import choose_engine
from denpexd.scan.lines import is_handled, is_logged, shorten, starts_something, view
from denpexd.scan.scanner import Scanner

SHIPPED, _ = load([shipped_rules()], strict=False)


def test_colours_inside_words_go_and_offsets_stay() -> None:
    raw = b"first\n\x1b[1mepoch \x1b[36m0\x1b[0m step\nlast\r\x1b[Abar\n"
    chunk = view(raw, 0, 0, 1000, at_line_start=True)
    assert chunk.data == b"first\nepoch 0 step\nlast\rbar\n"
    for text, where in ((b"first", 0), (b"epoch", raw.index(b"\x1b")), (b"last", raw.index(b"last"))):
        assert chunk.where(chunk.data.index(text)) == 1000 + where
    assert chunk.where(chunk.data.index(b"bar")) == 1000 + raw.index(b"\x1b[A")


def test_a_plain_chunk_is_not_copied() -> None:
    raw = b"no escape\n"
    assert view(raw, 0, 0, 0, at_line_start=True).data is raw


def test_what_was_carried_over_keeps_its_own_offset() -> None:
    chunk = view(b"carried line\nnext\n", 8, 100, 5000, at_line_start=True)
    assert chunk.where(0) == 100
    assert chunk.where(13) == 5005


def test_docker_envelopes_are_opened() -> None:
    entries = ['File "x", line 1\n', "\x1b[31mred\x1b[0m\n", "tail"]
    raw = b"".join(
        json.dumps({"log": log, "stream": "stderr", "time": "2025-05-04T05:05:38Z"}, separators=(",", ":")).encode()
        + b"\n"
        for log in entries
    )
    chunk = view(raw, 0, 0, 0, at_line_start=True)
    assert chunk.data == b'File "x", line 1\nred\ntail\n'
    assert chunk.where(chunk.data.index(b"red")) == raw.index(b"\n") + 1


def test_what_is_no_envelope_stays_between_those_that_are() -> None:
    envelope, deep = b'{"log":"x\\n","stream":"stdout"}\n', b'{"log":"x","a":' + b"[" * 100_000 + b"\n"
    assert view(envelope + deep + envelope, 0, 0, 0, at_line_start=True).data == b"x\n" + deep + b"x\n"


def test_json_logs_of_a_program_are_left_alone() -> None:
    raw = b'{"log":"x","rank":3}\n'
    assert view(raw, 0, 0, 0, at_line_start=True).data == raw


def test_a_long_line_keeps_head_and_tail_as_two_segments() -> None:
    assert shorten(b"a" * 50 + b"b" * 50, 20) == b"a" * 10 + b"\r" + b"b" * 10
    assert shorten(b"short", 20) == b"short"


@pytest.mark.parametrize(
    "text",
    [
        "2025-10-14 03:00:12,200 WARNING train: skipping batch: CUDA out of memory. Tried to allocate 1.70 GiB",
        "[rank 1] skipping batch 4: ValueError: Expected input batch_size (7) to match target batch_size (8).",
        "reading shard 17 failed (attempt 1/5): ConnectionResetError: [Errno 104] Connection reset by peer; retrying",
        "WARNING retrying download of shard 0007 after ReadTimeout (attempt 1/5)",
        "RuntimeError: CUDA out of memory, falling back to gradient checkpointing",
        '{"ts": 1.5, "level": "warning", "msg": "CUDA out of memory"}',
        "[2025-03-07 16:20:08,000] [INFO] [x.py:129] loss is nan",
        "level=warn rank=3 msg=oom",
        "bad record skipped",
    ],
)
def test_lines_that_say_they_were_dealt_with(text: str) -> None:
    assert is_handled(text)


@pytest.mark.parametrize(
    "text",
    [
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB.",
        "ValueError: Caught ValueError in DataLoader worker process 1.",
        "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)",
        "node-a:2131:2290 [3] misc/socket.cc:49 NCCL WARN socketProgress: Connection closed by remote peer",
        "INFO: task jfsmount:136986 blocked for more than 120 seconds.",
        "iteration 10/ 500 | number of skipped iterations:   0 | number of nan iterations:   1 |",
        "2025-10-14 03:00:12 ERROR train: out of memory, giving up after 3 retries",
        "download failed: retrying exhausted, 5 of 5",
        "[W socket.cpp:464] [c10d] The server socket has failed to bind to [::]:29500",
        "step=100, skipped=2, lr=[1e-05]",
    ],
)
def test_lines_that_do_not(text: str) -> None:
    assert not is_handled(text)


def test_headers_of_logged_exceptions() -> None:
    assert is_logged("2025-10-14 03:00:12,200 ERROR train: step failed")
    assert is_logged("ERROR:root:step failed")
    assert is_logged("Exception ignored in: <function Pool.__del__ at 0x7f>")
    assert not is_logged("2025-10-14 03:00:12,200 INFO train: step 3")


def test_what_starts_something_new() -> None:
    for text in (
        "2025-10-14 03:00:12 x",
        "Epoch 3:  42%|##",
        "=====",
        "[E1206 18:44:12.7 P.cpp:607] x",
        "step 12 loss 3",
    ):
        assert starts_something(text), text
    for text in ("For debugging consider passing CUDA_LAUNCH_BLOCKING=1", "ncclRemoteError: A call failed", "hint: x"):
        assert not starts_something(text), text


def test_a_handled_signal_has_exceptions() -> None:
    warning = next(s for s in SHIPPED.signals.values() if s.id == "handled.warning_level")
    scanner = Scanner([warning], choose_engine())
    assert scanner.handles("[WARNING] worker 3 restarted")
    assert not scanner.handles("n:1:2 [0] misc/ibvwrap.cc:252 NCCL WARN Call to ibv_reg_mr failed")
