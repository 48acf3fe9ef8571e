"""What launchers say: exits, who is told to stop, who exists, restarts."""

import re
import textwrap

import pytest

from denpexd.core.events import UNKNOWN_RANK, Activity, Attempt, Event, Exit, Fact, Joined, Raised
from denpexd.scan.re2_engine import Re2Engine
from denpexd.scan.scanner import Scanner
from denpexd.scan.stream import Stream

SCANNER = Scanner([], Re2Engine)

SUMMARY = """
    E1130 1 torch/distributed/elastic/x.py:1002] failed (exitcode: -9) local_rank: 1 (pid: 10519) of binary: python
    ============================================================
    train.py FAILED
    ------------------------------------------------------------
    Failures:
    [1]:
      time      : 2026-11-30_02:43:52
      host      : node-b
      rank      : 8 (local_rank: 0)
      exitcode  : -15 (pid: 9865)  (SIGTERM)
      error_file: <N/A>
      traceback : Signal 15 (SIGTERM) received by PID 9865
    ------------------------------------------------------------
    Root Cause (first observed failure):
    [0]:
      time      : 2026-11-30_02:43:52
      host      : node-b
      rank      : 9 (local_rank: 1)
      exitcode  : -9 (pid: 10519)  (SIGKILL)
      error_file: <N/A>
      traceback : Signal 9 (SIGKILL) received by PID 10519
    ============================================================
"""


def events(text: str, rank: int = UNKNOWN_RANK) -> list[Event]:
    stream = Stream(SCANNER, "console", rank)
    found = stream.feed(1.0, 0, textwrap.dedent(text).lstrip("\n").encode()) + stream.idle(9.0) + stream.flush(9.0)
    return [event for event in found if not isinstance(event, Activity)]


def exits(text: str) -> dict[int, int | None]:
    found = [event for event in events(text) if isinstance(event, Exit)]
    assert all(event.source == "launcher" for event in found)
    assert len({event.rank for event in found}) == len(found)
    return {event.rank: event.code for event in found}


def test_the_summary_of_torchrun_names_global_ranks_and_its_root() -> None:
    found = events(SUMMARY)
    assert exits(SUMMARY) == {8: -15, 9: -9}
    failed, root = [event for event in found if isinstance(event, Fact)]
    assert (failed.name, failed.rank, failed.fields["pid"]) == ("attempt_failed", 9, "10519")
    assert (root.name, root.rank) == ("launcher_root", 9)
    assert root.fields["exitcode"] == "-9"
    assert root.fields["host"] == "node-b"


def test_without_a_summary_the_local_rank_is_all_there_is() -> None:
    line = "E1 1 torch/distributed/elastic/x.py:1] failed (exitcode: 1) local_rank: 2 (pid: 32275) of binary: python\n"
    assert exits(line) == {2: 1}


def test_a_recorded_traceback_in_the_summary_belongs_to_the_rank_of_its_entry() -> None:
    text = SUMMARY.replace(
        "      traceback : Signal 9 (SIGKILL) received by PID 10519\n",
        '      traceback : Traceback (most recent call last):\n        File "train.py", line 62, in main\n'
        "          loss.backward()\n      ValueError: boom\n",
    )
    (event,) = [event for event in events(text) if isinstance(event, Raised)]
    assert (event.rank, event.chain, event.frames[0].path) == (9, (("ValueError", "boom"),), "train.py")
    assert exits(text) == {8: -15, 9: -9}


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("mpirun noticed that process rank 1 with PID 0 on node a exited on signal 9 (Killed).\n", {1: -9}),
        ("srun: error: node-b: task 5: Out Of Memory\n", {5: -9}),
        ("srun: error: node-a: tasks 0-2,6: Terminated\n", {0: -15, 1: -15, 2: -15, 6: -15}),
        ("srun: error: node-0: task 0: Exited with exit code 3\n", {0: 3}),
        ("srun: error: node-b: tasks 8-9: Aborted (core dumped)\n", {8: -6, 9: -6}),
        ("srun: error: node-b: task 2: Segmentation fault (core dumped)\n", {2: -11}),
        ("srun: error: cn31: tasks 4-5: Illegal instruction (core dumped)\n", {4: -4, 5: -4}),
        ("ERROR:  One or more process (first noticed rank 3) terminated with signal 9\n", {3: -9}),
        ("  Process name: [[4425,1],1]\n  Exit code:    3\n", {1: 3}),
        ("  Exit code:    3\n", {}),
        ("  Process name: [prterun-node-1-41211@1,2]\n  Exit code:    1\n", {2: 1}),
        ("mpiexec noticed that process rank 5 with PID 538 on node 10 exited on \nsignal 6 (Aborted).\n", {5: -6}),
        ("signal 6 (Aborted).\n", {}),
        ("=   RANK 1 PID 650 RUNNING AT node-a\n=   KILLED BY SIGNAL: 11 (Segmentation fault)\n", {1: -11}),
        ("=   RANK 1 PID 650 RUNNING AT node-a\n=   EXIT STATUS: 1\n", {1: 1}),
        ("setup rank=3 world_size=4 pid=77\n=   PID 77 RUNNING AT node-a\n=   EXIT CODE: 11\n", {3: -11}),
        ("=   RANK 1 PID 650 RUNNING AT node-a\n=   KILLED BY SIGNAL: 9 (Killed)\n", {UNKNOWN_RANK: -9}),
        ("=   PID 77 RUNNING AT node-a\n=   EXIT CODE: 134\n", {UNKNOWN_RANK: 134}),
        ("x4006c0s6b0n0.hsn.alcf.example: rank 256 died from signal 11 and dumped core\n", {256: -11}),
        ("x1000c0s0b0n0: rank 2 exited with code 1\nx1000c0s0b0n0: rank 0 died from signal 15\n", {2: 1, 0: -15}),
        ("Process 2 exit with status code 1.\nProcess 1 exit with status code 143.\n", {2: 1, 1: 143}),
        ("[rank: 1] Child process with PID 19803 terminated with code -9. Forcefully terminating all\n", {1: -9}),
    ],
)
def test_exits_as_other_launchers_tell_them(text: str, wanted: dict[int, int]) -> None:
    assert exits(text) == wanted


def test_who_is_told_to_stop_is_named_where_the_pid_is_known() -> None:
    text = """
        2025-10-14 03:00:00,500 INFO setup rank=3 world_size=4 local_rank=3 pid=1813
        W1130 02:37:05.8 1809 torch/distributed/elastic/x.py:1028] Sending process 1813 closing signal SIGTERM
        Unable to shutdown process 4712 via 15, forcefully exiting via 9
    """
    found = [event for event in events(text) if isinstance(event, Fact)]
    assert [(event.rank, event.fields) for event in found] == [
        (3, {"pid": "1813", "signal": "SIGTERM"}),
        (UNKNOWN_RANK, {"pid": "4712", "signal": "SIGKILL"}),
    ]


@pytest.mark.parametrize(
    ("text", "rank", "wanted"),
    [
        ("2025 INFO setup rank=0 world_size=8 local_rank=0 pid=8323\n", -1, [Joined(1.0, 0, None, 8323, 8)]),
        (
            "(TorchTrainer pid=7) - (node_id=1, ip=10.0.0.4, pid=30751) world_rank=3, local_rank=0, node_rank=0\n",
            -1,
            [Joined(1.0, 3, "10.0.0.4", 30751)],
        ),
        ("Initializing distributed: GLOBAL_RANK: 3, MEMBER: 4/8\n", -1, [Joined(1.0, 3, None, None, 8)]),
        (
            "node-0:4907:4907 [1] NCCL INFO comm 0x5 rank 1 nranks 2 cudaDev 1 busId 0 - Init COMPLETE\n"
            "node-0:4907:4999 [1] NCCL INFO comm 0x6 rank 0 nranks 1 cudaDev 1 busId 0 - Init COMPLETE\n",
            -1,
            [Joined(1.0, 1, "node-0", 4907, 2)],
        ),
        ("[rank 2] starting training: world_size=4 params=1610\n", 2, [Joined(1.0, 2, None, None, 4)]),
        ("checkpoint was saved with world_size=16, resuming\n", 2, []),
    ],
)
def test_who_exists(text: str, rank: int, wanted: list[Joined]) -> None:
    assert [event for event in events(text, rank) if isinstance(event, Joined)] == wanted


def test_restarts_count_attempts() -> None:
    text = """
        I0213 1 torch/x.py:889] [default] Worker group FAILED. 3/3 attempts left; will restart worker group
          restart_count=1
        I0213 1 torch/x.py:889] [default] Worker group FAILED. 2/3 attempts left; will restart worker group
    """
    assert [event for event in events(text) if isinstance(event, Attempt)] == [Attempt(1.0, 1), Attempt(1.0, 2)]


def test_the_exit_that_led_to_a_restart_belongs_to_the_attempt_that_it_ended() -> None:
    text = """
        E0213 1 torch/x.py:882] failed (exitcode: 1) local_rank: 2 (pid: 4114) of binary: python
        I0213 1 torch/x.py:889] [default] Worker group FAILED. 3/3 attempts left; will restart worker group
    """
    found = [event for event in events(text) if isinstance(event, Exit | Attempt)]
    assert found == [Exit(1.0, 2, 1, "launcher"), Attempt(1.0, 1)]


def test_lightning_kills_all_others_without_naming_them() -> None:
    text = "[rank: 1] Child process with PID 7 terminated with code 1. Forcefully terminating all other processes\n"
    assert exits(text) == {1: 1}
    (killing,) = [event for event in events(text) if isinstance(event, Fact)]
    assert (killing.name, killing.rank, killing.fields["signal"]) == ("launcher_killing", UNKNOWN_RANK, "SIGKILL")


def deepspeed(host: str, *told: str) -> str:
    stamp = "[2026-11-30 10:00:01,113] [INFO]"
    return "".join(f"{host}{stamp} [launch.py:163:{text}\n" for text in told)


SPAWNED = "process {} spawned with command: ['python', '-u', 'train.py', '--local_rank=0']"
MAPPING = "main] global_rank_mapping=defaultdict(<class 'list'>, {'worker-0': [0, 1], 'worker-1': [2]})"


def test_deepspeeds_launchers_tell_which_process_is_which_rank() -> None:
    text = ""
    for number, pids in enumerate([[500, 501], [500]]):
        node = f"main] nnodes=2, num_local_procs={len(pids)}, node_rank={number}"
        spawned = [f"main] {SPAWNED.format(pid)}" for pid in pids]
        text += deepspeed(f"worker-{number}: ", node, MAPPING, *spawned)
    assert [event for event in events(text) if isinstance(event, Joined)] == [
        Joined(1.0, 0, "worker-0", 500, 3),
        Joined(1.0, 1, "worker-0", 501, 3),
        Joined(1.0, 2, "worker-1", 500, 3),
    ]


def test_deepspeeds_last_line_tells_an_exit_code_and_no_rank() -> None:
    node, mapping = "main] nnodes=1, num_local_procs=2, node_rank=0", MAPPING.replace(", 'worker-1': [2]", "")
    started = deepspeed("", node, mapping, "main] " + SPAWNED.format(500), "main] " + SPAWNED.format(501))
    last = "sigkill_handler] ['python', '-u', 'train.py', '--local_rank=1'] exits with return code = -9"
    killed = deepspeed("", "main] Process 500 exits successfully.", "sigkill_handler] Killing subprocess 501", last)
    assert exits(started + killed) == {0: 0, UNKNOWN_RANK: -9}
    assert [event.rank for event in events(started + killed) if isinstance(event, Fact)] == [1]


def test_the_only_process_of_a_node_is_the_one_that_deepspeeds_last_line_means() -> None:
    node = deepspeed("", "main] nnodes=2, num_local_procs=1, node_rank=1", MAPPING)
    assert exits(node + deepspeed("", "sigkill_handler] ['python', 'train.py'] exits with return code = 1")) == {2: 1}


def test_a_launcher_of_deepspeed_that_names_no_ranks_is_read_without_them() -> None:
    told = ["main] nnodes=2, num_local_procs=1, node_rank=7", MAPPING, "main] " + SPAWNED.format(500)]
    assert [event for event in events(deepspeed("", *told)) if isinstance(event, Joined)] == []


@pytest.mark.parametrize(
    ("first", "second", "signal"),
    [
        ("=   RANK {} PID 6 RUNNING AT a\n=   KILLED BY SIGNAL: 6 (Aborted)\n", "KILLED BY SIGNAL: 9", "SIGKILL"),
        ("a: rank {} died from signal 6\n", "died from signal 15", "SIGTERM"),
        ("Process {} exit with status code 134.\n", "status code 143", "SIGTERM"),
    ],
)
def test_the_first_rank_that_fails_ends_the_others_and_not_itself(first: str, second: str, signal: str) -> None:
    failed = first.format(2)
    other = re.sub(r"KILLED BY SIGNAL: 6|died from signal 6|status code 134", second, first.format(0))
    killings = [event for event in events(failed + other) if isinstance(event, Fact)]
    assert [(event.name, event.rank, event.fields) for event in killings] == [
        ("launcher_killing", UNKNOWN_RANK, {"signal": signal})
    ]
    assert [event for event in events(other) if isinstance(event, Fact)] == []


@pytest.mark.parametrize(
    "text",
    [
        "x] Sending process {} closing signal SIGTERM",
        "a: rank {} died from signal 9",
        "srun: error: node-b: task {}: Killed",
        "srun: error: node-b: tasks 1-{}: Killed",
        "setup rank={} world_size=4 pid={}",
        "world_size={}",
        "Failures:\n[1]:\n  rank      : {} (local_rank: 0)\n  exitcode  : -{} (pid: {})  (SIGTERM)\n====",
        "[1,{}]<stderr>:Process 1 exit with status code 1.",
        "[launch.py:1:sigkill_handler] x exits with return code = -{}",
        "[launch.py:1:main] nnodes=2, num_local_procs=2, node_rank={}",
    ],
)
def test_a_number_without_end_stops_nothing(text: str) -> None:
    found = events(text.replace("{}", "9" * 5000) + "\nsrun: error: node-b: task 5: Out Of Memory\n")
    assert Exit(1.0, 5, -9, "launcher") in found


def test_a_damaged_mapping_of_deepspeed_stops_nothing() -> None:
    node, broken = "main] nnodes=2, num_local_procs=2, node_rank=0", MAPPING.replace("[0, 1]", "[0 1,, ]")
    found = events(deepspeed("", node, broken, "main] " + SPAWNED.format(500)))
    assert [event.rank for event in found if isinstance(event, Joined)] == [0]
