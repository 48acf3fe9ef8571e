"""Reading py-spy's answers, and living with a py-spy that hangs, lies or is refused."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denpexd.core.events import Frame, Frames
from denpexd.errors import EvidenceUnavailable
from denpexd.evidence.stacks import PySpy, add_worker, find_py_spy, parse_json, parse_text, rights_remedy
from denpexd.scan.re2_engine import Re2Engine
from denpexd.scan.stream import Scanner, Stream

TEXT = """\
Process 30107: /opt/venv/bin/python -u train.py --note "Thread 1 (idle)"
Python v3.11.7 (/usr/bin/python3.11)

Thread 30140 (idle): "tqdm_monitor"
    Condition.wait (threading.py:331)
Thread 30107 (active+gil): "MainThread"
    all_gather (torch/distributed/distributed_c10d.py:4287)
    SyncBatchNorm.forward (torch/nn/modules/_functions.py:45)
    validate.<locals>.<listcomp> (models/train.py:19)
    c10d::ProcessGroup::wait(int) (libtorch.so)
    <module> (train.py:27)
Thread 0x7F00AA (idle)
    loop (helper.py:3)
"""
MAIN = (
    Frame("all_gather", "torch/distributed/distributed_c10d.py", 4287),
    Frame("SyncBatchNorm.forward", "torch/nn/modules/_functions.py", 45),
    Frame("validate.<locals>.<listcomp>", "models/train.py", 19),
    Frame("c10d::ProcessGroup::wait(int)", "libtorch.so", 0),
    Frame("<module>", "train.py", 27),
)


def json_frame(name, filename, line, short=None):
    return {"name": name, "filename": filename, "short_filename": short, "line": line, "locals": None}


def thread(name, frames, pid=5, tid=5):
    return {"pid": pid, "thread_id": 1, "os_thread_id": tid, "thread_name": name, "active": False, "frames": frames}


def test_text_gives_the_main_thread_wherever_it_stands_and_the_others_with_their_names():
    frames = parse_text(TEXT, 2, 7.5)
    assert frames is not None
    assert (frames.t, frames.rank, frames.kind, frames.frames) == (7.5, 2, "py-spy", MAIN)
    assert frames.others == (
        ("tqdm_monitor", (Frame("Condition.wait", "threading.py", 331),)),
        ("thread 0x7F00AA", (Frame("loop", "helper.py", 3),)),
    )


def test_an_unnamed_main_thread_is_the_one_with_the_pid_of_the_process_else_the_first():
    text = 'Process 8: python\n\nThread 9 (idle): "a"\n    f (x.py:1)\nThread 8 (idle)\n    g (x.py:2)\n'
    by_pid = parse_text(text, 0, 0.0)
    first = parse_text(text.replace("Process 8", "Process 1"), 0, 0.0)
    assert by_pid is not None
    assert first is not None
    assert (by_pid.frames[0].function, first.frames[0].function) == ("g", "f")


@pytest.mark.parametrize(
    "text",
    ["", "Error: Failed to find python version from target process\n", "Thread 1 (idle)\n", "Process \nThread 1"],
)
def test_text_without_a_stack_is_none(text):
    assert parse_text(text, 0, 0.0) is None


def test_json_says_the_same_as_text():
    site = "/opt/conda/lib/python3.10/site-packages/torch"
    document = [
        thread("tqdm_monitor", [json_frame("Condition.wait", "/usr/lib/python3.11/threading.py", 331)], tid=6),
        thread(
            "MainThread",
            [
                json_frame(
                    "all_gather", f"{site}/distributed/distributed_c10d.py", 4287, "distributed/distributed_c10d.py"
                ),
                json_frame("SyncBatchNorm.forward", f"{site}/nn/modules/_functions.py", 45, None),
                json_frame("validate.<locals>.<listcomp>", "/home/u/models/train.py", 19, "models/train.py"),
                json_frame("c10d::ProcessGroup::wait(int)", "/x/libtorch.so", 0),
                json_frame("<module>", "/home/u/train.py", 27, "train.py"),
            ],
        ),
    ]
    frames = parse_json(json.dumps(document), 2, 7.5)
    assert frames is not None
    assert frames.frames == MAIN
    assert frames.others == (("tqdm_monitor", (Frame("Condition.wait", "threading.py", 331),)),)


def test_an_answer_that_is_too_deep_or_dirty_is_cut_and_cleaned():
    deep = [json_frame(f"f{n}", "/a/b.py", n) for n in range(5000)]
    dirty = thread("\x1b[31mred\n", [json_frame("g\x00" + "x" * 5000, "a\u202eb.py", -5)], tid=6)
    frames = parse_json(json.dumps([dirty, thread("MainThread", deep)]), 0, 0.0)
    assert frames is not None
    assert len(frames.frames) == 200
    assert (frames.frames[0].function, frames.frames[-1].function) == ("f0", "f4999")
    ((label, (frame,)),) = frames.others
    assert label == "?[31mred?"
    assert (frame.function[:3], len(frame.function), frame.path, frame.line) == ("g?x", 300, "a?b.py", 0)


@pytest.mark.parametrize(
    "text", ["", "[", "null", "{}", "[]", "[1]", '[{"frames": 3}]', '[{"frames": [3]}]', "[" * 100_000]
)
def test_json_that_is_no_dump_is_none(text):
    assert parse_json(text, 0, 0.0) is None


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["frames", "thread_name", "pid", "os_thread_id", "name", "line", "filename"]), inner
        )
    ),
    max_leaves=12,
)


@given(st.lists(_values, max_size=3))
def test_no_json_makes_the_reader_fail(document):
    parse_json(json.dumps(document), 0, 0.0)


@given(st.text())
def test_no_text_makes_the_reader_fail(text):
    parse_text("Process 1: x\nThread 1 (idle)\n    " + text, 0, 0.0)
    parse_text(text, 0, 0.0)


RECORDED = Path(__file__).parents[1] / "data" / "stacks"
VERSIONS = ("3.9", "3.10", "3.11", "3.12", "3.13")
WAITS = [  # what a rank of tests/data/stacks/train.py stands in, whichever Python it is and whoever tells it
    ("wait threading.py", None),
    ("wait threading.py", None),
    ("enter torchlike/__init__.py", 8),
    ("wait torchlike/__init__.py", 12),
    ("batches train.py", 19),
    ("validate train.py", 22),
    ("fit train.py", 26),
    ("main train.py", 43),
    ("<module> train.py", 48),
]


def calls(frames):
    """Canonical frames with their lines, but for lines of the standard library, as `<listcomp>` until 3.11."""
    told = [(frame.canonical, frame.line if frame.path != "threading.py" else None) for frame in frames]
    return [one for one in told if not one[0].startswith("<listcomp>")]


@pytest.mark.parametrize("version", VERSIONS)
def test_text_and_json_of_every_python_give_the_same_frames(version):
    text = parse_text((RECORDED / f"{version}.py-spy.txt").read_text(), 3, 7.0)
    as_json = parse_json((RECORDED / f"{version}.py-spy.json").read_bytes(), 3, 7.0)
    assert calls(text.frames) == WAITS
    assert text == as_json
    assert [label for label, _ in text.others] == [
        "metrics é",
        "loader_0",
        "Thread-1" if version == "3.9" else "Thread-1 (<lambda>)",
    ]
    knows_classes = version not in ("3.9", "3.10")
    assert any(frame.qualified == "Trainer.validate train.py" for frame in text.frames) is knows_classes


def test_the_entry_that_older_releases_of_py_spy_show_below_python_3_12_is_no_frame():
    text = "Thread 1721748 (idle)\n    longsleep (longsleep.py:5)\n    <module> (longsleep.py:9)\n"
    shim = "    <interpreter trampoline> (<shim>:1)\n"
    assert parse_text(text + shim, 0, 0.0) == parse_text(text, 0, 0.0)
    frames = [json_frame("<module>", "longsleep.py", 9), json_frame("<interpreter trampoline>", "<shim>", 1)]
    assert len(parse_json(json.dumps([thread("MainThread", frames)]), 0, 0.0).frames) == 1


@pytest.mark.parametrize("version", VERSIONS)
def test_native_frames_stand_beside_those_of_the_program(version):
    native = parse_text((RECORDED / f"{version}.native.txt").read_text(), 3, 7.0)
    assert calls(frame for frame in native.frames if frame.path.endswith(".py")) == WAITS
    assert any(frame.path.startswith("libc.so") and frame.line == 0 for frame in native.frames)


@pytest.mark.parametrize("version", [*VERSIONS, "3.14"])
def test_faulthandler_of_every_python_gives_the_same_frames(version):
    stream = Stream(Scanner([], Re2Engine), "log", 3)
    found = stream.feed(7.0, 0, (RECORDED / f"{version}.faulthandler.txt").read_bytes()) + stream.flush(9.0)
    (stack,) = [event for event in found if isinstance(event, Frames)]
    assert calls(stack.frames) == WAITS
    assert len(stack.others) == 3
    if version == "3.14":
        assert [label for label, _ in stack.others] == ["python", "loader_0", "metrics ?"]


def test_half_a_character_in_a_path_is_replaced():
    (frame,) = parse_json(json.dumps([thread("MainThread", [json_frame("f", "/x/a\ud800.py", 3)])]), 0, 0.0).frames
    assert (frame.path, frame.line) == ("a?.py", 3)


def test_a_worker_is_added_to_the_others_with_its_label():
    frames, worker = parse_text(TEXT, 2, 7.5), parse_text("Thread 1 (idle)\n    read (data.py:9)\n", 2, 8.0)
    assert frames is not None
    assert worker is not None
    assert add_worker(frames, "worker 12", worker).others[-1] == ("worker 12", (Frame("read", "data.py", 9),))


@pytest.fixture
def target():
    """A Python process that stands in `stuck`, below `Model.step`."""
    code = (
        "import sys\ndef stuck():\n    print('ready', flush=True); sys.stdin.read()\n"
        "class Model:\n    def step(self):\n        stuck()\nModel().step()\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "ready\n"
    yield child
    child.kill()
    child.communicate()


def fake(tmp_path, script):
    path = tmp_path / "py-spy"
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o755)
    return str(path)


async def refusal(spy, pid=1):
    with pytest.raises(EvidenceUnavailable) as caught:
        await spy.dump(pid, 0, 0.0)
    return caught.value


async def test_a_real_process_is_read(target):
    frames = await PySpy().dump(target.pid, 3, 1.0)
    assert (frames.rank, frames.t, frames.source) == (3, 1.0, f"pid {target.pid}")
    assert [frame.function.rsplit(".", 1)[-1] for frame in frames.frames] == ["stuck", "step", "<module>"]


async def test_a_stopped_process_is_read_too(target):
    os.kill(target.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, target.pid, os.WSTOPPED | os.WNOWAIT)
    frames = await PySpy().dump(target.pid, 0, 0.0)
    assert frames.frames[0].function == "stuck"
    assert Path(f"/proc/{target.pid}/stat").read_text().split()[2] == "T"


async def test_a_process_that_is_no_python_is_named_with_py_spys_own_reason():
    child = subprocess.Popen(["sleep", "60"])
    try:
        error = await refusal(PySpy(), child.pid)
    finally:
        child.kill()
        child.wait()
    assert f"pid {child.pid}" in error.why
    assert "python" in error.why.rpartition(":")[2]


async def test_a_py_spy_that_hangs_is_killed_with_everything_it_started(tmp_path):
    note = tmp_path / "pids"
    script = fake(tmp_path, f"sleep 600 & echo $$ $! > {note}; wait")
    for limit in (1.0, 5.0, 25.0):  # more, where two processes do not start in a second
        assert f"within {limit:g} s" in (await refusal(PySpy(script, time_limit=limit))).why
        if note.exists() and note.read_text().endswith("\n"):
            break
    own, child = map(int, note.read_text().split())
    assert not Path(f"/proc/{own}").exists(), "neither running nor a zombie"
    state = Path(f"/proc/{child}/stat")
    assert not state.exists() or state.read_text().split()[2] == "Z"


async def test_endless_output_is_cut_off_and_the_writer_killed(tmp_path):
    spy = PySpy(fake(tmp_path, "exec yes '[[[['"))
    assert "more than 4 MiB" in (await refusal(spy)).why


async def test_endless_complaints_do_no_harm(tmp_path):
    spy = PySpy(fake(tmp_path, "head -c 3000000 /dev/zero | tr '\\0' 'x' >&2; exit 1"))
    assert len((await refusal(spy)).why) < 500


async def test_garbage_is_asked_for_once_more_and_then_given_up(tmp_path):
    note = tmp_path / "calls"
    spy = PySpy(fake(tmp_path, f"echo \"$@\" >> {note}; printf '\\377\\000 no json'"))
    assert "no Python stack" in (await refusal(spy)).why
    assert note.read_text().splitlines() == ["dump --nonblocking --json --pid 1"] * 2


async def test_a_torn_look_is_repeated(tmp_path, target):
    note = tmp_path / "calls"
    script = (
        f"if [ -e {note} ]; then exec {find_py_spy()} \"$@\"; fi; touch {note}; echo 'Error: Bad address' >&2; exit 1"
    )
    assert (await PySpy(fake(tmp_path, script)).dump(target.pid, 0, 0.0)).frames


async def test_without_rights_the_remedy_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    complaint = "Permission Denied: Try running again with elevated permissions by going 'sudo !!'"
    error = await refusal(PySpy(fake(tmp_path, f'echo "{complaint}" >&2; exit 1')))
    assert "may not read" in error.why
    assert "[SYS_PTRACE]" in error.how
    assert "shareProcessNamespace: true" in error.how


async def test_a_missing_py_spy_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert find_py_spy() is None
    assert "denpexd[stacks]" in (await refusal(PySpy())).how


async def test_a_py_spy_that_cannot_start_is_said_so(tmp_path):
    path = tmp_path / "py-spy"
    path.write_text("not a program")
    assert "does not start" in (await refusal(PySpy(str(path)))).why


async def test_the_child_gets_nothing_of_our_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "0")
    note = tmp_path / "env"
    await refusal(PySpy(fake(tmp_path, f"env > {note}")))
    assert "RANK=0" not in note.read_text()


def test_py_spy_on_the_path_is_found_by_its_absolute_path(tmp_path, monkeypatch):
    fake(tmp_path, "")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_py_spy() == str(tmp_path / "py-spy")


@pytest.mark.parametrize(
    ("environ", "file", "remedy"),
    [
        ({"KUBERNETES_SERVICE_HOST": "1"}, None, "shareProcessNamespace"),
        ({}, ".dockerenv", "--cap-add SYS_PTRACE"),
        ({"INVOCATION_ID": "a"}, None, "AmbientCapabilities=CAP_SYS_PTRACE"),
        ({}, None, "kernel.yama.ptrace_scope=0"),
    ],
)
def test_the_remedy_fits_the_place(tmp_path, environ, file, remedy):
    if file:
        (tmp_path / file).touch()
    assert remedy in rights_remedy(environ, tmp_path)
