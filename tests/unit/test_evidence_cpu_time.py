"""Which ranks use no CPU time: made-up counts for the rules, real processes for the counting."""

import os
import subprocess
import sys
import time

import pytest

from denpexd.evidence.cpu_time import LEAST, CpuTime
from denpexd.evidence.procs import Processes, RankProcess

WORKER_SPINS = """
import os, time
if os.fork() == 0:
    while True: pass
print('ready', flush=True)
time.sleep(600)
"""


def process(rank: int, work: int, pid: int = 100) -> RankProcess:
    return RankProcess(rank, pid, 1, "n1", rank, 2, None, "S", work, None, 3, (), "job", work)


def looks(*work: int, every: float = 10.0) -> CpuTime:
    known = CpuTime()
    for number, ticks in enumerate(work):
        known.note(number * every, [process(0, ticks)])
    return known


def told(known: CpuTime) -> list[str]:
    return [fact.name for fact in known.facts([0])]


def test_a_rank_that_hardly_uses_any_time_is_idle():
    (fact,) = looks(500, 505, 510, 516).facts([0, 1])
    assert (fact.rank, fact.name, fact.t) == (0, "cpu_idle", 30.0)
    assert fact.text == "process 100 and those below it have used 0.16 s of CPU time in 30 s"


def test_a_rank_that_spins_is_busy_and_what_lies_between_is_not_judged():
    assert told(looks(0, 1000, 2000, 3000)) == ["cpu_busy"]
    assert told(looks(0, 100, 200, 300)) == []


def test_half_a_minute_of_looks_is_needed():
    assert told(looks(5, 5, 5)) == []
    assert told(looks(5, 5, 5, every=LEAST / 2)) == ["cpu_idle"]


def test_only_the_last_half_minute_counts():
    assert told(looks(0, 1000, 2000, 2001, 2002, 2003)) == ["cpu_idle"]


def test_another_process_or_fewer_workers_begin_anew():
    assert told(looks(900, 900, 900, 40)) == []
    known = looks(5, 5, 5)
    known.note(30.0, [process(0, 5, pid=101)])
    assert told(known) == []


def test_what_workers_use_is_counted_too():
    """A rank that sleeps while its worker computes is at work."""
    env = {"PATH": os.environ["PATH"], "RANK": "0", "WORLD_SIZE": "1", "MASTER_PORT": str(os.getpid())}
    child = subprocess.Popen(
        [sys.executable, "-c", WORKER_SPINS], env=env, stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        processes, known = Processes(root_pid=child.pid), CpuTime()
        (first,) = processes.refresh()
        known.note(0.0, [first])
        until = time.monotonic() + 90.0
        while (now := processes.refresh()[0]).work < first.work + 30 and time.monotonic() < until:
            pass
        assert now.ticks < first.ticks + 10
        assert now.work >= first.work + 30
    finally:
        os.killpg(child.pid, 9)
        child.wait()
        child.stdout.close()


@pytest.mark.parametrize("name", ["cpu_idle", "cpu_busy"])
def test_the_pid_is_told_so_that_a_person_can_look(name):
    work = (5, 5, 5, 5) if name == "cpu_idle" else (0, 1000, 2000, 3000)
    (fact,) = looks(*work).facts([0])
    assert (fact.name, fact.fields, fact.source) == (name, {"pid": "100"}, "process")
