"""Finding the processes of ranks: real processes, and made-up process trees for what cannot be arranged."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from denpexd.evidence.procs import Processes

SLEEPER = "import sys; print('ready', flush=True); sys.stdin.read()"
TWO_CHILDREN = """
import os, signal
for _ in range(2):
    if os.fork() == 0:
        break
else:
    signal.pause()
os.write(1, b'ready\\n')
signal.pause()
"""


def rank_env(rank, **more):
    return {"PATH": os.environ["PATH"], "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_PORT": "29500", **more}


@pytest.fixture
def start():
    """Starts a program in its own session and waits for its `ready` lines; kills it and its children at the end."""
    started = []

    def run(command, env, lines=1):
        child = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        started.append(child)
        for _ in range(lines):
            assert child.stdout.readline() == "ready\n"
        return child

    yield run
    for child in started:
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        child.stdin.close()
        child.wait()
        child.stdout.close()


@pytest.fixture
def processes():
    """Only what this test started: other tests may run ranks of their own."""
    return Processes(root_pid=os.getpid(), node="n1")


def python(rank, start, code=SLEEPER, lines=1, **more):
    return start([sys.executable, "-c", code], rank_env(rank, **more), lines)


def test_real_ranks_are_found_with_what_their_environment_and_the_kernel_say(start, processes):
    children = [python(rank, start, LOCAL_RANK=str(rank), TORCHELASTIC_RUN_ID="r7") for rank in range(2)]
    found = processes.refresh()
    assert [(p.rank, p.pid, p.local_rank, p.world_size, p.node) for p in found] == [
        (rank, child.pid, rank, 2, "n1") for rank, child in enumerate(children)
    ]
    assert {(p.run_id, p.job) for p in found} == {("r7", "run r7")}
    assert all(p.state in "SRD" and p.threads == 1 and p.ticks >= 0 and p.start > 0 for p in found)


def test_workers_belong_to_their_rank_and_do_not_take_its_place_when_it_is_killed(start):
    port = str(os.getpid())
    child = python(0, start, TWO_CHILDREN, lines=2, MASTER_PORT=port)
    processes = Processes(jobs=[f":{port}"])
    (rank,) = processes.refresh()
    assert (rank.pid, len(rank.children)) == (child.pid, 2)
    child.kill()
    child.wait()
    assert all(Path("/proc", str(pid)).exists() for pid in rank.children)
    assert processes.again(rank) is None
    assert processes.refresh() == []


def test_orphans_of_a_dead_rank_are_passed_over_and_its_successor_is_found(tmp_path):
    tree = Tree(tmp_path)
    tree.add(10, 1, RANK="0")
    tree.add(11, 10, RANK="0")
    processes = Processes(tmp_path)
    assert [p.pid for p in processes.refresh()] == [10]
    tree.remove(10)
    tree.add(11, 1, RANK="0")
    assert processes.refresh() == []
    tree.add(12, 1, RANK="0")
    assert [p.pid for p in processes.refresh()] == [12]


def test_a_shell_that_starts_python_is_not_the_rank(start, processes):
    line = f'{sys.executable} -c "{SLEEPER}"; true'
    shell = start(["/bin/sh", "-c", line], rank_env(1))
    (rank,) = processes.refresh()
    assert rank.rank == 1
    assert rank.pid != shell.pid


def test_a_stopped_process_shows_its_state_and_a_killed_one_is_gone(start, processes):
    child = python(0, start)
    (rank,) = processes.refresh()
    os.kill(child.pid, signal.SIGSTOP)
    os.waitid(os.P_PID, child.pid, os.WSTOPPED | os.WNOWAIT)
    assert processes.again(rank).state == "T"
    assert processes.gone([rank]) == []
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert processes.gone([rank]) == [rank], "a zombie is gone, whether or not its parent has noticed"
    assert processes.refresh() == []


def test_the_rank_that_writes_a_file_is_known_for_certain(start, processes, tmp_path):
    code = "import sys; f = open(sys.argv[1], 'a'); g = open(sys.argv[2], 'a'); h = open(sys.argv[3]); " + SLEEPER
    shared, read = tmp_path / "all.log", tmp_path / "config.log"
    read.touch()
    for rank in range(2):
        start([sys.executable, "-c", code, str(tmp_path / f"{rank}.log"), str(shared), str(read)], rank_env(rank))
    link = tmp_path / "latest.log"
    link.symlink_to(tmp_path / "1.log")
    paths = [tmp_path / "0.log", link, shared, read, tmp_path / "missing.log"]
    (claim,) = processes.claims(paths)
    assert {path.name: rank for path, rank in claim.files.items()} == {"0.log": 0, "latest.log": 1, "all.log": -1}


def test_a_file_held_by_a_program_beside_the_rank_is_the_ranks(start, processes, tmp_path):
    log = tmp_path / "rank1.log"
    line = f'{sys.executable} -c "{SLEEPER}" | tee {log}'
    start(["/bin/sh", "-c", line], rank_env(1))
    assert [claim.files for claim in processes.claims([log])] == [{log: 1}]


def test_a_job_is_ours_if_its_launcher_writes_the_file_and_elsewhere_if_its_ranks_only_write_others(tmp_path):
    """A made-up tree, but with links of the kernel's kind: what a process is, its command line tells."""
    tree = Tree(tmp_path / "proc")
    tree.root.mkdir()
    watched, other = tmp_path / "launcher.log", tmp_path / "other.out"
    for port, target in (("1", watched), ("2", other), ("3", "pipe:[77]")):
        launcher, rank = int(port) * 100, int(port) * 100 + 1
        (tree.add(launcher, 1) / "cmdline").write_bytes(b"/usr/bin/python3\0/venv/bin/torchrun\0train.py\0")
        tree.open(launcher, 1, target)
        tree.add(rank, launcher, RANK="0", WORLD_SIZE="1", MASTER_PORT=port)
        for number in (1, 2):
            tree.open(rank, number, "pipe:[77]" if port == "3" else other)
    watched.touch()
    other.touch()
    claims = {claim.job: claim for claim in Processes(tmp_path / "proc").claims([watched])}
    assert {job: (claim.ours, claim.files, claim.elsewhere) for job, claim in claims.items()} == {
        ":1": (True, {watched: -1}, str(other)),
        ":2": (False, {}, str(other)),
        ":3": (False, {}, ""),
    }


def test_the_job_at_the_other_end_of_the_pipe_is_ours_also_through_a_program_in_between(tmp_path):
    tree = Tree(tmp_path)
    for port, pipe in (("1", 5), ("2", 6)):
        tree.add(pipe * 10, 1, RANK="0", WORLD_SIZE="1", MASTER_PORT=port)
        tree.open(pipe * 10, 1, f"pipe:[{pipe}]")
    tree.add(10, 1)
    tree.open(10, 0, "pipe:[5]")  # tee
    tree.open(10, 1, "pipe:[9]")
    claims = Processes(tmp_path, pipe=9).claims([])
    assert {claim.job: claim.ours for claim in claims} == {":1": True, ":2": False}


def test_a_file_that_a_rank_writes_and_its_launcher_holds_is_the_ranks(tmp_path):
    tree, log = Tree(tmp_path / "proc"), tmp_path / "stdout.log"
    tree.root.mkdir()
    log.touch()
    (tree.add(10, 1) / "cmdline").write_bytes(b"/usr/bin/python3\0/venv/bin/torchrun\0train.py\0")
    tree.add(11, 10, RANK="1", WORLD_SIZE="2", MASTER_PORT="1")
    tree.open(10, 5, log)
    tree.open(11, 1, log)
    assert [claim.files for claim in Processes(tmp_path / "proc").claims([log])] == [{log: 1}]


def test_the_job_whose_output_another_program_writes_to_the_file_is_ours(tmp_path):
    tree, log = Tree(tmp_path / "proc"), tmp_path / "train.log"
    tree.root.mkdir()
    log.touch()
    for port, pipe in (("1", 5), ("2", 6)):
        tree.add(pipe * 10, 1, RANK="0", WORLD_SIZE="1", MASTER_PORT=port)
        tree.open(pipe * 10, 1, f"pipe:[{pipe}]")
    tree.add(10, 1)
    tree.open(10, 0, "pipe:[6]")  # tee
    tree.open(10, 3, log)
    claims = Processes(tmp_path / "proc").claims([log])
    assert {claim.job: claim.ours for claim in claims} == {":1": False, ":2": True}


def test_a_file_that_two_jobs_write_tells_no_rank(start, processes, tmp_path):
    code = "import sys; f = open(sys.argv[1], 'a'); " + SLEEPER
    for port in ("29500", "29501"):
        start([sys.executable, "-c", code, str(tmp_path / "all.log")], rank_env(0, MASTER_PORT=port))
    assert [claim.files for claim in processes.claims([tmp_path / "all.log"])] == [{tmp_path / "all.log": -1}] * 2


def test_the_right_job_can_be_kept(start, processes, tmp_path):
    python(0, start)
    other = python(0, start, MASTER_PORT="29501")
    assert [p.job for p in processes.refresh()] == [":29500", ":29501"]
    processes.keep([":29501"])
    assert [p.pid for p in processes.refresh()] == [other.pid]
    processes.keep(None)
    assert len(processes.refresh()) == 2


class Tree:
    """A process file system made of plain files."""

    def __init__(self, root):
        self.root = root

    def add(self, pid, parent, comm="python", state="S", start=None, flags=0, **env):
        folder = self.root / str(pid)
        folder.mkdir(exist_ok=True)
        counters = f"0 0 0 0 7 5 0 0 20 0 3 0 {pid if start is None else start} 0 0"
        (folder / "stat").write_text(f"{pid} ({comm}) {state} {parent} 1 1 0 -1 {flags} {counters}\n")
        (folder / "environ").write_bytes(b"".join(f"{k}={v}\0".encode() for k, v in env.items()))
        (folder / "cmdline").write_bytes(b"python\0train.py\0")
        (folder / "wchan").write_text("futex_do_wait")
        return folder

    def open(self, pid, number, target):
        """A descriptor, open for writing."""
        for name in ("fd", "fdinfo"):
            (self.root / str(pid) / name).mkdir(exist_ok=True)
        (self.root / str(pid) / "fd" / str(number)).symlink_to(target)
        (self.root / str(pid) / "fdinfo" / str(number)).write_text("pos:\t0\nflags:\t0100001\n")

    def remove(self, pid):
        for file in (self.root / str(pid)).iterdir():
            file.unlink()
        (self.root / str(pid)).rmdir()


def test_names_with_blanks_and_brackets_and_odd_folders_are_read_right(tmp_path):
    tree = Tree(tmp_path)
    tree.add(10, 1, comm="python :) 3 (x) S", RANK="4")
    tree.add(11, 1, flags=0x00200000, RANK="5")
    (tree.add(12, 1, RANK="6") / "stat").write_bytes(b"\xff garbage")
    (tree.add(13, 1, RANK="7") / "stat").unlink()
    (tmp_path / "self").mkdir()
    (rank,) = Processes(tmp_path).refresh()
    assert (rank.rank, rank.ticks, rank.threads, rank.wchan) == (4, 12, 3, "futex_do_wait")


def test_a_young_process_is_read_again_because_it_may_still_execute_its_program(tmp_path):
    tree = Tree(tmp_path)
    tree.add(10, 1)
    processes = Processes(tmp_path)
    assert processes.refresh() == []
    tree.add(10, 1, RANK="0")
    assert [p.rank for p in processes.refresh()] == [0]


def test_a_settled_process_is_read_again_when_it_becomes_another_program(tmp_path):
    tree = Tree(tmp_path)
    tree.add(10, 1, comm="bash")
    processes = Processes(tmp_path)
    for _ in range(5):
        assert processes.refresh() == []
    tree.add(10, 1, RANK="0")
    assert [p.rank for p in processes.refresh()] == [0]


def test_a_pid_that_was_used_again_is_another_process(tmp_path):
    tree = Tree(tmp_path)
    tree.add(10, 1, RANK="0")
    processes = Processes(tmp_path)
    (rank,) = processes.refresh()
    tree.add(10, 1, start=99, RANK="0")
    assert processes.gone([rank]) == [rank]
    assert [p.start for p in processes.refresh()] == [99]


def test_launchers_are_known_by_what_they_run(tmp_path):
    tree = Tree(tmp_path)
    commands = {
        20: b"/usr/bin/python3\0-u\0-m\0torch.distributed.run\0train.py\0",
        21: b"/usr/bin/python3\0-X\0dev\0/opt/venv/bin/accelerate\0launch\0",
        22: b"python\0/opt/venv/bin/denpexd\0exec\0--\0python\0",
        23: b"python\0train.py\0--strategy\0deepspeed\0",
    }
    for pid, command in commands.items():
        (tree.add(pid, 1, RANK=str(pid), WORLD_SIZE="99") / "cmdline").write_bytes(command)
    assert [p.pid for p in Processes(tmp_path).refresh()] == [23]


def test_a_look_that_fails_does_not_declare_a_process_dead(tmp_path):
    tree = Tree(tmp_path)
    folder = tree.add(10, 1, RANK="0")
    processes = Processes(tmp_path)
    (rank,) = processes.refresh()
    (folder / "stat").unlink()
    (folder / "stat").mkdir()
    assert processes.again(rank) == rank


def test_no_process_table_is_an_error_not_an_empty_node(tmp_path):
    with pytest.raises(FileNotFoundError):
        Processes(tmp_path / "missing").refresh()


def test_processes_of_others_are_counted_and_the_message_says_what_to_grant(start):
    """Asked by a program without rights, because tests may run as root."""
    if os.getuid() != 0:
        pytest.skip("needs root to become somebody else")
    child = python(0, start)
    code = (
        "import os, sys; os.setgroups([]); os.setgid(65534); os.setuid(65534); "
        "from denpexd.evidence.procs import Processes; p = Processes(root_pid=int(sys.argv[1])); "
        "print(p.refresh(), p.denied > 0, p.unavailable())"
    )
    if not os.access(Path(sys.executable).resolve(), os.X_OK):
        pytest.skip("this Python cannot be run")
    result = subprocess.run(
        [sys.executable, "-c", "import denpexd.evidence.procs; " + code, str(child.pid)], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith(
        "[] True Python processes of other users"
    )  # no number: said once, not once for each
    assert "SYS_PTRACE" in result.stdout
