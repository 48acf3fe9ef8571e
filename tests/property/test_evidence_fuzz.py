"""Damaged and hostile stacks, error files, reports, kernel lines: no crash, no hang. `make explore` tries 10,000."""

import json
import os
import time
from pathlib import Path

from mutations import dice_of, mutated

from denpexd.catalog.load import load, shipped_rules
from denpexd.core.events import Event, Frames
from denpexd.evidence.pasted import dumps
from denpexd.evidence.stacks import parse_json, parse_text
from denpexd.ingest.unpaste import restored
from denpexd.scan.engine import choose_engine
from denpexd.scan.stream import Scanner, Stream

DATA = Path(__file__).parents[1] / "data" / "stacks"
COUNT = 250 * int(os.environ.get("DENPEXD_EXPLORE", "1"))
SECONDS = 30.0  # of CPU time; usual are milliseconds
KERNEL = """\
NVRM: Xid (PCI:0000:4f:00): 79, pid=17742, name=python, GPU has fallen off the bus.
oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=c1,oom_memcg=/job,task_memcg=/job/c1,task=pt_main,pid=7,uid=0
Memory cgroup out of memory: Killed process 17742 (pt_main_thread) total-vm:81922304kB, anon-rss:31457280kB, UID:0
mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 7: 8c00004000010090
nfs: server nas01 not responding, still trying
"""
LAUNCHER = """\
W0102 10:00:00.000000 4711 torch/distributed/elastic/multiprocessing/api.py:9] Sending process 47 closing signal SIGTERM
E0102 10:00:01.000000 4711 api.py:874] failed (exitcode: -9) local_rank: 1 (pid: 4713) of binary: /usr/bin/python3
============================================================
train.py FAILED
------------------------------------------------------------
Failures:
  <NO_OTHER_FAILURES>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-01-02_10:00:01
  host      : node1
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 4713)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 4713
============================================================
"""


def bounded(frames: Frames | None) -> None:
    if frames is not None:
        stacks = [frames.frames, *(stack for _, stack in frames.others)]
        assert len(stacks) <= 65
        assert all(len(stack) <= 200 for stack in stacks)
        texts = [text for stack in stacks for frame in stack for text in (frame.function, frame.path)]
        assert all(text.isprintable() and len(text) <= 300 for text in texts)
        assert all(0 <= frame.line < 1 << 31 for stack in stacks for frame in stack)


def test_mutated_stacks_of_py_spy_are_read_or_refused() -> None:
    dice = dice_of(11)
    originals = [path.read_text() for path in sorted([*DATA.glob("*.py-spy.*"), *DATA.glob("*.native.txt")])]
    read = 0
    for _ in range(COUNT):
        text = mutated(dice.choice(originals), dice)
        began = time.process_time()
        known = parse_json(text, 0, 1.0) or parse_text(text, 0, 1.0)
        bounded(known)
        for pasted in dumps(text, -1, "pasted"):
            bounded(pasted)
        assert time.process_time() - began < SECONDS
        read += known is not None
    assert read > COUNT / 4


def test_json_that_is_no_dump_at_all_is_refused() -> None:
    dice = dice_of(12)
    values: list[object] = [None, True, -1, 1e308, "x" * 1000, [], {}, [[]], {"frames": [1]}, [{"frames": [{}]}]]
    for _ in range(COUNT):
        entry = {
            key: dice.choice(values)
            for key in ("pid", "thread_id", "thread_name", "os_thread_id", "active", "frames", "name")
        }
        frame = {key: dice.choice(values) for key in ("name", "filename", "short_filename", "line", "module", "locals")}
        entry["frames"] = dice.choice([entry["frames"], [frame], [frame, None, 3]])
        bounded(parse_json(json.dumps(dice.choice([[entry], entry, [entry, entry], [entry, 7]])), 0, 1.0))


def test_mutated_error_files_of_torchelastic_are_read_or_left_alone() -> None:
    dice = dice_of(14)
    stack = 'Traceback (most recent call last):\n  File "/ws/train.py", line 6, in main\nValueError: é\n' * 20
    said = {"message": {"message": "ValueError: é", "extraInfo": {"py_callstack": stack, "timestamp": "1796051494"}}}
    assert restored(json.dumps(said).encode()).decode() == stack
    for _ in range(COUNT):
        data = mutated(json.dumps(said, ensure_ascii=dice.random() < 0.5), dice).encode("utf-8", "replace")
        began = time.process_time()
        assert isinstance(restored(data), bytes)
        assert time.process_time() - began < SECONDS
    for hostile in (b'{"message": ' * 100_000, b'{"message": ' + b"[" * 200_000, b'{"message"' + b"9" * 100_000):
        restored(hostile)


def test_mutated_reports_in_logs_harm_nobody() -> None:
    """faulthandler, launchers and the kernel, through the scanner with all shipped rules, cut into pieces anywhere."""
    dice = dice_of(13)
    catalog, _ = load([shipped_rules()])
    scanner = Scanner([s for s in catalog.signals.values() if s.kind == "log"], choose_engine())
    originals = [path.read_text() for path in sorted(DATA.glob("*.faulthandler.txt"))] + [KERNEL, LAUNCHER]
    told = 0
    for number in range(COUNT):
        data = mutated(dice.choice(originals), dice).encode("utf-8", "replace")
        began = time.process_time()
        stream, found, at = Stream(scanner, "log", number % 3 - 1), list[Event](), 0
        while at < len(data):
            size = dice.choice((50, 400, 4096))
            found += stream.feed(1.0, at, data[at : at + size])
            at += size
        found += stream.flush(9.0)
        assert time.process_time() - began < SECONDS
        told += bool(found)
    assert told > COUNT / 2
