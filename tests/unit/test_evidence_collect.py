"""Answering wishes for evidence and watching processes: real ranks, real py-spy, simulated time."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from denpexd.clock import ManualClock, SystemClock
from denpexd.core.events import Exit, Fact, Frame, Frames, Joined, Want
from denpexd.evidence.collect import Collector
from denpexd.evidence.looks import Looks
from denpexd.evidence.procs import Processes, RankProcess
from denpexd.evidence.ranks import ancestors
from denpexd.evidence.stacks import PySpy, find_py_spy

CODE = """
import sys
def stuck():
    print('ready', flush=True); sys.stdin.read()
stuck()
"""
WITH_WORKER = """
import multiprocessing, signal
fork = multiprocessing.get_context('fork')
here, there = fork.Pipe()
def load():
    there.send(1); signal.pause()
worker = fork.Process(target=load)
worker.start()
here.recv()
print('ready', flush=True)
worker.join()
"""


class Ranks:
    """Ranks of one job that are this test's own children."""

    def __init__(self):
        self.children = {}

    def start(self, rank, code=CODE, port="29500"):
        env = {"PATH": os.environ["PATH"], "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_PORT": port}
        child = subprocess.Popen(
            [sys.executable, "-c", code],
            env=env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # pytest's own is a file
            text=True,
            start_new_session=True,
        )
        self.children.setdefault(rank, []).append(child)
        assert child.stdout.readline() == "ready\n"
        return child.pid

    def signal(self, rank, number):
        child = self.children[rank][-1]
        os.kill(child.pid, number)
        wanted = {signal.SIGSTOP: os.WSTOPPED, signal.SIGCONT: os.WCONTINUED}.get(number, os.WEXITED)
        os.waitid(os.P_PID, child.pid, wanted | os.WNOWAIT)

    def end(self):
        for child in (child for started in self.children.values() for child in started):
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            child.communicate()


@pytest.fixture
def ranks():
    ranks = Ranks()
    yield ranks
    ranks.end()


@pytest.fixture
def clock():
    return ManualClock(100.0)


@pytest.fixture
def collector(clock):
    return Collector(mine(), clock)


def mine():
    return Processes(root_pid=os.getpid(), node="n1")


def everybody():
    """As for a daemon on a node, which does not know the command: but only what these tests started is there."""
    processes = mine()
    table, own = processes._table, os.getpid()
    processes._root = None
    processes._table = lambda: {pid: row for pid, row in table().items() if own in (pid, *ancestors(pid, table()))}
    return processes


def fake(tmp_path, script):
    path = tmp_path / "py-spy"
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o755)
    return PySpy(str(path), time_limit=60.0)


class Source:
    """A witness that must not be asked."""

    def __init__(self):
        self.asked = 0

    async def collect(self, here):
        self.asked += 1
        return []

    async def plan(self, here):
        return [f"the oracle about {len(here)} ranks"]


def want(kind, *ranks):
    return Want(100.0, kind, ranks, "a test")


def of(events, kind):
    return [event for event in events if isinstance(event, kind)]


def facts(events):
    return [(event.name, event.rank) for event in of(events, Fact)]


async def test_ranks_are_reported_once_when_they_come_and_once_when_they_go(ranks, collector, clock):
    pid = ranks.start(0)
    assert await collector.watch() == [Joined(100.0, 0, "n1", pid, 2)]
    assert await collector.watch() == []
    ranks.signal(0, signal.SIGKILL)
    assert await collector.watch() == [Exit(100.0, 0, None, "process")]
    await clock.advance(10)
    assert await collector.watch() == []
    assert collector.ranks == {}


async def test_new_ranks_are_looked_for_every_two_seconds(ranks, collector, clock):
    ranks.start(0)
    await collector.watch()
    pid = ranks.start(1)
    await clock.advance(1)
    assert await collector.watch() == []
    await clock.advance(1)
    assert await collector.watch() == [Joined(102.0, 1, "n1", pid, 2)]


async def test_a_restarted_rank_goes_and_comes_in_this_order(ranks, collector):
    ranks.start(0)
    await collector.watch()
    ranks.signal(0, signal.SIGKILL)
    pid = ranks.start(0)
    assert await collector.watch() == [Exit(100.0, 0), Joined(100.0, 0, "n1", pid, 2)]


async def test_a_stopped_rank_is_frozen_once_and_resumed_once(ranks, collector):
    pid = ranks.start(0)
    await collector.watch()
    ranks.signal(0, signal.SIGSTOP)
    (fact,) = await collector.watch()
    assert (fact.name, fact.rank, fact.fields["state"], fact.fields["pid"]) == ("frozen", 0, "T", str(pid))
    assert f"process {pid}" in fact.text
    assert await collector.watch() == []
    ranks.signal(0, signal.SIGCONT)
    assert facts(await collector.watch()) == [("resumed", 0)]
    assert await collector.watch() == []


async def test_disk_sleep_counts_only_when_it_lasts_without_progress(tmp_path, clock):
    collector = Collector(Processes(tmp_path), clock)

    def put(state, ticks):
        (tmp_path / "10").mkdir(exist_ok=True)
        (tmp_path / "10/stat").write_text(f"10 (python) {state} 1 1 1 0 -1 0 0 0 0 0 {ticks} 0 0 0 20 0 1 0 5 0 0\n")
        (tmp_path / "10/environ").write_bytes(b"RANK=0\0")
        (tmp_path / "10/cmdline").write_bytes(b"python\0a.py\0")
        (tmp_path / "10/wchan").write_text("rpc_wait_bit_killable")

    seen = []
    for ticks in (1, 2, 3, 4, 5, 6, 6, 6, 6):
        put("D", ticks)
        seen += facts(await collector.watch())
    assert seen == []
    assert facts(await collector.watch()) == [("frozen", 0)]
    put("S", 7)
    assert facts(await collector.watch()) == [("resumed", 0)]


async def test_a_paused_container_is_frozen_although_its_state_says_sleeping(tmp_path, clock):
    (tmp_path / "10").mkdir()
    (tmp_path / "10/stat").write_text("10 (python) S 1 1 1 0 -1 0 0 0 0 0 1 0 0 0 20 0 1 0 5 0 0\n")
    (tmp_path / "10/environ").write_bytes(b"RANK=0\0")
    (tmp_path / "10/cmdline").write_bytes(b"python\0a.py\0")
    (tmp_path / "10/wchan").write_text("do_freezer_trap")
    assert facts(await Collector(Processes(tmp_path), clock).watch()) == [("frozen", 0)]


async def test_a_wish_for_processes_says_who_lives_who_is_frozen_and_who_is_gone(ranks, collector):
    pids = [ranks.start(rank) for rank in range(3)]
    await collector.watch()
    ranks.signal(1, signal.SIGSTOP)
    ranks.signal(2, signal.SIGKILL)
    for _ in range(2):  # the second answer is as complete as the first
        events = await collector.collect(want("process"))
        assert [(event.rank, event.pid) for event in of(events, Joined)] == [(0, pids[0]), (1, pids[1])]
        assert facts(events) == [("frozen", 1)]
        assert [event.rank for event in of(events, Exit)] == [2]
    assert collector.counts["process", "ok"] == 4
    assert collector.counts["process", "gone"] == 2


async def test_a_wish_for_stacks_is_answered_for_every_living_rank(ranks, collector):
    pids = [ranks.start(rank) for rank in range(3)]
    await collector.watch()
    ranks.signal(1, signal.SIGSTOP)
    ranks.signal(2, signal.SIGKILL)
    events = await collector.collect(want("stacks"))
    stacks = of(events, Frames)
    assert [(f.rank, f.kind, f.source) for f in stacks] == [(r, "py-spy", f"pid {pids[r]}") for r in range(2)]
    assert all(f.frames[0].function == "stuck" and f.ticks is not None for f in stacks)
    assert stacks[1].state == "T"
    assert [event.rank for event in of(events, Exit)] == [2]
    assert facts(events) == [("frozen", 1)]
    assert collector.counts == {("stacks", "ok"): 2, ("stacks", "gone"): 1}


async def test_only_the_wanted_ranks_are_asked_and_those_of_other_nodes_are_passed_over(ranks, collector):
    for rank in range(2):
        ranks.start(rank)
    events = await collector.collect(want("stacks", 1, 7))
    assert [frames.rank for frames in of(events, Frames)] == [1]
    assert of(events, Exit) == []


async def test_two_looks_at_a_rank_that_waits_are_equal(ranks, collector):
    ranks.start(0)
    (first,) = of(await collector.collect(want("stacks")), Frames)
    (second,) = of(await collector.collect(want("stacks")), Frames)
    assert (first.frames, first.ticks) == (second.frames, second.ticks)


async def test_a_rank_that_waits_for_its_worker_brings_the_workers_stack(ranks, collector):
    ranks.start(0, WITH_WORKER)
    await collector.watch()
    (worker,) = collector.ranks[0].children
    for _ in range(100):  # it is ready a moment before it waits
        (frames,) = of(await collector.collect(want("stacks")), Frames)
        if frames.others:
            break
    label, stack = frames.others[-1]
    assert label == f"worker {worker}"
    assert stack[0].function == "load"
    assert frames.frames[0].path.startswith("multiprocessing/")


async def test_stacks_that_are_switched_off_are_said_to_be_and_processes_are_still_watched(ranks, clock):
    collector = Collector(mine(), clock, stacks="off")
    ranks.start(0)
    events = await collector.collect(want("stacks"))
    (fact,) = of(events, Fact)
    assert (fact.name, fact.fields["kind"]) == ("evidence_unavailable", "stacks")
    assert "stacks: auto" in fact.fields["how"]
    assert len(of(events, Joined)) == 1


async def test_off_asks_nobody_and_processes_are_still_watched(ranks, clock, tmp_path):
    asked = Source()
    collector = Collector(
        mine(), clock, active="off", spy=fake(tmp_path, f"touch {tmp_path}/asked"), sources={"ras": asked}
    )
    ranks.start(0)
    events = [*await collector.collect(want("stacks")), *await collector.collect(want("ras"))]
    assert {fact.fields["why"] for fact in of(events, Fact)} == {"nobody was asked: evidence.active is off"}
    assert [joined.rank for joined in of(events, Joined)] == [0]
    assert not asked.asked
    assert not (tmp_path / "asked").exists()


async def test_a_dry_run_tells_what_it_would_have_asked_and_asks_nobody(ranks, clock, tmp_path, caplog):
    asked = Source()
    collector = Collector(
        mine(), clock, active="dry-run", spy=fake(tmp_path, f"touch {tmp_path}/asked"), sources={"ras": asked}
    )
    pid = ranks.start(0)
    events = [*await collector.collect(want("stacks")), *await collector.collect(want("ras"))]
    assert [fact.fields["why"] for fact in of(events, Fact)] == [
        f"dry run: would have asked py-spy dump --nonblocking --json --pid {pid} (rank 0)",
        "dry run: would have asked the oracle about 1 ranks",
    ]
    assert caplog.text.count("dry run: would have asked") == 2
    assert not asked.asked
    assert not (tmp_path / "asked").exists()


async def test_a_refusal_is_one_fact_for_all_ranks_and_one_line_in_the_log(ranks, clock, tmp_path, caplog):
    collector = Collector(mine(), clock, spy=fake(tmp_path, "echo 'Permission Denied: sudo' >&2; exit 1"))
    for rank in range(3):
        ranks.start(rank)
    for _ in range(2):
        (fact,) = of(await collector.collect(want("stacks")), Fact)
        assert (fact.name, fact.rank, fact.fields["ranks"]) == ("evidence_unavailable", -1, "0,1,2")
    assert [record.message for record in caplog.records if "no evidence" in record.message] == [caplog.messages[0]]
    assert collector.counts["stacks", "unavailable"] == 6


async def test_one_rank_that_cannot_be_read_does_not_cost_the_others_their_stacks(ranks, clock, tmp_path):
    for rank in range(2):
        ranks.start(rank)
    bad = ranks.children[1][0].pid
    script = f'case "$*" in *" {bad}") echo "Error: odd" >&2; exit 1;; esac; exec {find_py_spy()} "$@"'
    collector = Collector(mine(), clock, spy=fake(tmp_path, script))
    events = await collector.collect(want("stacks"))
    assert [frames.rank for frames in of(events, Frames)] == [0]
    (fact,) = of(events, Fact)
    assert fact.rank == 1
    assert "odd" in fact.fields["why"]


async def test_a_rank_that_dies_during_the_look_is_gone(ranks, clock, tmp_path):
    pid = ranks.start(0)
    dead = f"until grep -q ') Z' /proc/{pid}/stat; do sleep 0.01; done"
    collector = Collector(mine(), clock, spy=fake(tmp_path, f"kill -9 {pid}; {dead}; echo '[]'"))
    events = await collector.collect(want("stacks"))
    assert of(events, Frames) == []
    assert [event.rank for event in of(events, Exit)] == [0]


async def test_hanging_looks_end_at_the_deadline_and_leave_nothing_running(ranks, clock, tmp_path):
    note = tmp_path / "pids"
    for rank in range(3):
        ranks.start(rank)
    spy = fake(tmp_path, f"echo $$ >> {note}; exec sleep 600")
    for deadline in (1.0, 5.0, 25.0):  # more, where three processes do not start in a second
        note.write_text("")
        async with asyncio.timeout(60):
            (fact,) = of(await Collector(mine(), clock, spy=spy, deadline=deadline).collect(want("stacks")), Fact)
        assert "in time" in fact.fields["why"]
        if len(pids := note.read_text().split()) == 3:
            break
    assert len(pids) == 3
    assert not [pid for pid in pids if Path("/proc", pid).exists()]


async def test_two_wishes_at_once_never_look_at_a_process_twice_at_a_time(ranks, clock, tmp_path):
    lock = tmp_path / "lock"
    script = f'mkdir {lock} || exit 9; {find_py_spy()} "$@"; code=$?; rmdir {lock}; exit $code'
    ranks.start(0)
    collector = Collector(mine(), clock, spy=fake(tmp_path, script))
    answers = await asyncio.gather(*(collector.collect(want("stacks")) for _ in range(3)))
    assert [len(of(events, Frames)) for events in answers] == [1, 1, 1]


async def test_the_job_is_the_one_that_writes_the_watched_files(ranks, collector, tmp_path):
    log = tmp_path / "x.log"
    ranks.start(0)
    pid = ranks.start(1, f"f = open({str(log)!r}, 'a')\n" + CODE, port="29501")
    events = await collector.watch()
    (fact,) = of(events, Fact)
    assert fact.name == "evidence_unavailable"
    assert ":29500, :29501" in fact.fields["why"]
    assert await collector.attach([log]) == {log: 1}
    events = await collector.collect(want("process"))
    assert [(event.rank, event.pid) for event in events] == [(1, pid)]


def elsewhere(tmp_path, name="theirs.out"):
    """Code of a rank whose output goes to a file of its own."""
    move = "import os; f = os.open({!r}, os.O_WRONLY | os.O_CREAT); os.dup2(f, 1); os.dup2(f, 2)\n"
    return CODE.replace("sys.stdin.read()", move.format(str(tmp_path / name)).replace("\n", "; sys.stdin.read()"))


async def wait_for_file(path):
    for _ in range(6000):
        if path.exists():
            return
        await asyncio.sleep(0.01)
    raise TimeoutError(path)


async def test_a_job_that_writes_elsewhere_is_a_neighbours_and_its_death_is_not_told(ranks, clock, tmp_path):
    collector, mine_log = Collector(everybody(), clock), tmp_path / "train.log"
    mine_log.touch()
    ranks.start(0, elsewhere(tmp_path))
    await wait_for_file(tmp_path / "theirs.out")
    assert await collector.attach([mine_log]) == {}
    (gap,) = await collector.watch()
    assert gap.name == "evidence_unavailable"
    assert f"write to {tmp_path}/theirs.out, which is not watched" in gap.fields["why"]
    ranks.signal(0, signal.SIGKILL)
    await clock.advance(10)
    await collector.attach([mine_log])
    assert await collector.watch() == []
    assert collector.ranks == {}


async def test_a_job_that_nothing_ties_to_the_watched_files_is_not_theirs(ranks, clock, tmp_path):
    collector, mine_log = Collector(everybody(), clock), tmp_path / "train.log"
    mine_log.touch()
    ranks.start(0)
    assert await collector.attach([mine_log]) == {}
    (gap,) = await collector.watch()
    assert (gap.name, collector.ranks) == ("evidence_unavailable", {})
    assert "evidence.processes: any" in gap.fields["how"]


async def test_beside_a_neighbour_the_job_is_the_one_whose_output_may_be_what_is_watched(ranks, clock, tmp_path):
    collector, mine_log = Collector(everybody(), clock, lone=True), tmp_path / "train.log"
    mine_log.touch()
    ranks.start(0, elsewhere(tmp_path))
    await wait_for_file(tmp_path / "theirs.out")
    pid = ranks.start(1, port="29501")
    await collector.attach([mine_log])
    assert [(event.rank, event.pid) for event in of(await collector.watch(), Joined)] == [(1, pid)]


async def test_when_the_job_has_ended_a_neighbour_does_not_take_its_place(ranks, clock, tmp_path):
    collector, log = Collector(everybody(), clock), tmp_path / "x.log"
    ranks.start(0, f"f = open({str(log)!r}, 'a')\n" + CODE)
    await collector.attach([log])
    await collector.watch()
    ranks.start(1, port="29501")
    ranks.signal(0, signal.SIGKILL)
    await clock.advance(5)
    await collector.attach([log])
    assert await collector.watch() == [Exit(105.0, 0)]
    assert collector.ranks == {}


async def test_the_end_of_a_job_is_told_also_when_the_next_one_writes_its_files_already(ranks, clock, tmp_path):
    collector, log = Collector(everybody(), clock), tmp_path / "x.log"
    ranks.start(0, f"f = open({str(log)!r}, 'a')\n" + CODE)
    await collector.attach([log])
    await collector.watch()
    ranks.signal(0, signal.SIGKILL)
    pid = ranks.start(0, f"f = open({str(log)!r}, 'a')\n" + CODE, port="29501")
    await collector.attach([log])
    assert await collector.watch() == [Exit(100.0, 0), Joined(100.0, 0, "n1", pid, 2)]


async def test_two_jobs_that_write_one_file_are_not_told_apart(ranks, clock, tmp_path):
    collector, log = Collector(everybody(), clock), tmp_path / "all.log"
    for rank, port in enumerate(("29500", "29501")):
        ranks.start(rank, f"f = open({str(log)!r}, 'a')\n" + CODE, port=port)
    assert await collector.attach([log]) == {log: -1}
    assert facts(await collector.watch()) == [("evidence_unavailable", -1)]


async def test_the_job_is_kept_while_it_lives_also_when_its_file_was_renamed(ranks, clock, tmp_path):
    collector, log = Collector(everybody(), clock), tmp_path / "x.log"
    ranks.start(0, f"f = open({str(log)!r}, 'a')\n" + elsewhere(tmp_path))
    await wait_for_file(tmp_path / "theirs.out")
    assert await collector.attach([log]) == {log: 0}
    log.rename(tmp_path / "x.log.1")
    log.touch()
    assert await collector.attach([log]) == {log: 0}
    assert len(of(await collector.watch(), Joined)) == 1


async def test_a_process_table_that_cannot_be_read_kills_no_rank_and_is_said_once(ranks, tmp_path, clock):
    collector = Collector(Processes(tmp_path / "missing"), clock)
    assert facts(await collector.watch()) == [("evidence_unavailable", -1)]
    await clock.advance(5)
    assert await collector.watch() == []
    assert facts(await collector.collect(want("stacks"))) == [("evidence_unavailable", -1)]
    assert await collector.attach([tmp_path]) == {}


class Slow:
    """Stands for py-spy: each look lasts until all that may run at once have begun."""

    def __init__(self, most):
        self.most, self.now, self.highest, self.begun = most, set(), 0, asyncio.Event()

    async def dump(self, pid, rank, t):
        assert pid not in self.now
        self.now.add(pid)
        self.highest = max(self.highest, len(self.now))
        if self.highest == self.most:
            self.begun.set()
        await self.begun.wait()
        await asyncio.sleep(0)
        self.now.remove(pid)
        return Frames(t, rank, "py-spy", (Frame("f", "a.py", 1),))


async def test_at_most_eight_looks_run_at_the_same_time(clock):
    many = [RankProcess(rank, 100 + rank, 1, "n", rank, 20, None, "S", 5, None, 1, ()) for rank in range(20)]
    spy = Slow(8)
    looks = Looks(SimpleNamespace(again=lambda process: process), clock, spy, 5.0)
    answers = await looks.at(many)
    assert sorted(answers) == list(range(20))
    assert spy.highest == 8


async def test_the_longest_look_at_one_process_is_measured(ranks, tmp_path):
    collector = Collector(mine(), SystemClock(), spy=fake(tmp_path, f'sleep 0.3; exec {find_py_spy()} "$@"'))
    ranks.start(0)
    assert collector.pause == 0.0
    await collector.collect(want("stacks"))
    assert collector.pause > 0.3


async def test_the_time_spent_is_measured_for_each_kind(ranks):
    collector = Collector(mine(), SystemClock())
    ranks.start(0)
    await collector.collect(want("process"))
    assert collector.seconds["process"] > 0
    assert collector.seconds["stacks"] == 0
    await collector.collect(want("stacks"))
    assert collector.seconds["stacks"] > 0
