"""`denpexd exec -- CMD` and `CMD | denpexd run -`: the job notices nothing, also when the daemon is killed."""

import importlib.util
import os
import pty
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]
NEEDS_TORCH = [
    pytest.mark.torch,
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed (group e2e)"),
]

DENPEXD = str(Path(sys.executable).parent / "denpexd")
CRASH = ["--bad-rank", "1", "--bad-step", "8"]
# Both streams, bytes that are no text, a line without an end, output larger than a pipe.
BYTES = r"""
import os, sys
for n in range(20000):
    os.write(1, b"%d \xff\x00\r\x1b[31mred\x1b[0m\n" % n)
os.write(2, b"warning\n")
os.write(1, b"no end")
"""


def execute(place: Any, *command: str, sinks: Any = (), **more: Any) -> list[str]:
    config = place.config("exec", [{"type": "webhook", "url": sink.url} for sink in sinks], **more)
    return [DENPEXD, "exec", "-c", str(config), "--job", "e2e", "--", *command]


# --- without torch ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "code", "failures"),
    [("exit 0", 0, []), ("exit 3", 3, ["single-rank-exception"]), ("kill -KILL $$", 137, ["rank-oom-killed"])],
)
def test_exec_returns_the_exit_code_and_explains_a_command_that_ends_without_a_word(
    place: Any, command: str, code: int, failures: list[str]
) -> None:
    sink = place.sink()

    done = subprocess.run(execute(place, "sh", "-c", f"echo step 1; {command}", sinks=[sink]), check=False)

    assert done.returncode == code
    assert [alert.verdict["failure"] for alert in sink.alerts] == failures


def test_exec_passes_output_through_unchanged(place: Any) -> None:
    alone = subprocess.run([sys.executable, "-c", BYTES], capture_output=True, check=True)

    watched = subprocess.run(execute(place, sys.executable, "-c", BYTES), capture_output=True, check=True)

    assert watched.stdout == alone.stdout
    assert watched.stderr.startswith(alone.stderr)


def test_exec_hands_sigterm_on_and_waits_for_the_command_to_end_its_own_way(place: Any) -> None:
    script = "trap 'echo bye; exit 7' TERM; echo ready; while :; do sleep 0.1; done"
    process = place.start(execute(place, "sh", "-c", script))
    assert process.stdout.readline() == b"ready\n"

    process.terminate()

    assert process.stdout.read() == b"bye\n"
    assert process.wait(200) == 7


def test_exec_does_not_wait_for_a_process_that_outlives_the_command(place: Any) -> None:
    process = place.start(execute(place, "sh", "-c", "sleep 600 & echo $!; exit 0"))
    sleeper = int(process.stdout.readline())

    assert process.wait(200) == 0
    os.kill(sleeper, signal.SIGKILL)


def test_exec_explains_a_command_that_fails_before_the_daemon_is_up(place: Any) -> None:
    sink = place.sink()
    script = "raise MemoryError('cannot allocate the index of the data set')"

    code = subprocess.run(execute(place, sys.executable, "-c", script, sinks=[sink]), check=False).returncode

    assert code == 1
    assert [alert.verdict["failure"] for alert in sink.alerts] == ["cpu-allocator-failure"]


def test_the_daemon_beside_a_command_ends_with_it_also_when_exec_is_killed(place: Any) -> None:
    process = place.start(execute(place, "sh", "-c", "sleep 20; echo over"))
    daemon = daemon_below(process.pid)
    process.kill()

    assert process.stdout.read() == b"over\n", "the command and the relay go on"
    wait_for_end(daemon, 150.0)


# --- real ranks ---------------------------------------------------------------------------------------------------


@dataclass
class Run:
    """How a watched job ended, what it printed, and what was told about it."""

    code: int
    printed: bytes
    alerts: list[Any]


def crash_under_exec(place: Any) -> Run:
    sink = place.sink()
    command = execute(place, *place.launch("steady.py", *CRASH), sinks=[sink])
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
    return Run(done.returncode, done.stdout, sink.alerts)


def terminated_under_exec(place: Any) -> Run:
    process = place.start(execute(place, *place.launch("steady.py")), stderr=subprocess.DEVNULL)
    while b"step 10 " not in process.stdout.readline():
        pass
    process.terminate()
    return Run(process.wait(120), process.stdout.read(), [])


def interrupted_at_a_terminal(place: Any) -> Run:
    """Ctrl-C reaches exec and the command alike: the terminal sends it to both."""
    main, side = pty.openpty()
    process = place.start(
        execute(place, *place.launch("steady.py")),
        stdin=side,
        stdout=side,
        stderr=side,
        start_new_session=True,
        preexec_fn=take_terminal,
    )
    os.close(side)
    printed = bytearray()
    reader = threading.Thread(target=read_all, args=(main, printed))
    reader.start()
    while b"step 10 " not in printed:
        time.sleep(0.1)
    os.write(main, b"\x03")
    code = process.wait(120)
    reader.join(60)
    return Run(code, bytes(printed), [])


def crash_in_a_stream(place: Any) -> Run:
    sink = place.sink()
    run, (code, *_) = stream(place, place.launch("steady.py", *CRASH), sink)
    printed = run.stdout.read()
    run.wait(120)
    assert (place.folder / "copy").read_bytes() == printed
    return Run(int(code()), printed, sink.alerts)


def daemon_killed_in_a_stream(place: Any) -> Run:
    run, (code, pid) = stream(place, place.launch("steady.py", "--steps", "40"), place.sink())
    head = b""
    while b"step 10 " not in head:
        head += run.stdout.readline()
    os.kill(int(pid()), signal.SIGKILL)
    printed = head + run.stdout.read()
    run.wait(120)
    assert (place.folder / "copy").read_bytes() == printed
    return Run(int(code()), printed, [])


def stream(place: Any, command: list[str], sink: Any) -> Any:
    """`CMD 2>&1 | tee copy | denpexd run -` by a shell, and readers of CMD's exit code and of the daemon's pid."""
    config = place.config("stream", [{"type": "webhook", "url": sink.url}])
    folder = shlex.quote(str(place.folder))
    daemon = f"echo $$ > {folder}/pid; exec {DENPEXD} run - -c {shlex.quote(str(config))} --job e2e"
    script = (
        f"( {shlex.join(command)} 2>&1; echo $? > {folder}/code ) | tee {folder}/copy | sh -c {shlex.quote(daemon)}"
    )
    with (place.folder / "denpexd.log").open("wb") as log:
        run = place.start(["bash", "-c", script], stderr=log)
    return run, [lambda name=name: (place.folder / name).read_text() for name in ("code", "pid")]


STORIES = {
    "crash under exec": (40, crash_under_exec),
    "terminated under exec": (40, terminated_under_exec),
    "interrupted at a terminal": (40, interrupted_at_a_terminal),
    "crash in a stream": (40, crash_in_a_stream),
    "daemon killed in a stream": (45, daemon_killed_in_a_stream),
}


def torch(test: Any) -> Any:
    """Mark a test that needs real ranks."""
    for mark in NEEDS_TORCH:
        test = mark(test)
    return test


@torch
def test_exec_explains_a_crash_of_real_ranks_and_returns_torchruns_code(stories: Any) -> None:
    run = stories["crash under exec"]

    assert run.code == 1
    assert b"epoch 0 step 7 " in run.printed
    verdict = run.alerts[-1].verdict
    assert (verdict["failure"], verdict["initiating_ranks"]) == ("single-rank-exception", [1])
    assert verdict["collateral_ranks"] == [0]
    assert len({alert.verdict["key"] for alert in run.alerts}) == 1


@torch
def test_torchrun_under_exec_ends_at_sigterm_as_it_does_alone(stories: Any) -> None:
    # 1, as a rule; torch's own threads may make torchrun abort while it is torn down, alone as well as under exec.
    assert stories["terminated under exec"].code in (1, 128 + signal.SIGABRT)


@torch
def test_ctrl_c_at_a_terminal_ends_torchrun_under_exec(stories: Any) -> None:
    run = stories["interrupted at a terminal"]

    assert run.code == 1
    # Which of the two torchrun prints depends on what it does when the signal comes.
    assert b"KeyboardInterrupt" in run.printed or b"got signal: 2" in run.printed


@torch
def test_a_merged_stream_of_real_ranks_is_explained_and_passed_on(stories: Any) -> None:
    run = stories["crash in a stream"]

    assert run.code == 1
    verdict = run.alerts[-1].verdict
    assert (verdict["failure"], verdict["initiating_ranks"]) == ("single-rank-exception", [1])


@torch
def test_a_job_survives_the_death_of_the_daemon_at_the_end_of_its_pipe(stories: Any) -> None:
    run = stories["daemon killed in a stream"]

    assert run.code == 0
    assert len(re.findall(rb"epoch 0 step 39 ", run.printed)) == 2
    assert run.printed.count(b"training finished") == 2


# --- processes ----------------------------------------------------------------------------------------------------


def take_terminal() -> None:
    """Make standard input the controlling terminal of this new session."""
    import fcntl
    import termios

    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def read_all(fd: int, into: bytearray) -> None:
    """Until the terminal is closed, which reads as an error."""
    try:
        while data := os.read(fd, 65536):
            into += data
    except OSError:
        pass


def daemon_below(pid: int) -> int:
    """The daemon that `exec` has started."""
    for _ in range(1500):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            if b"denpexd.execute" in Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
        time.sleep(0.1)
    raise TimeoutError("exec has started no daemon")


def wait_for_end(pid: int, seconds: float) -> None:
    """Until a process that is not our child has ended."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]
        except OSError:
            return
        if state in "ZX":
            return
        time.sleep(0.2)
    raise TimeoutError(f"process {pid} still runs after {seconds:.0f} s")
