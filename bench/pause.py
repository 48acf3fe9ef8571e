"""For how long one look at its stack stops a process: the longest gap in a busy loop, with and without a look.

Run by hand on a quiet machine: `python bench/pause.py [ROUNDS]`. Two busy ranks; a round lasts half a second, in every
other one the collector takes the stacks of both, as it does at a suspicion. On a loaded machine both figures hold the
scheduler's own pauses; their difference is ours.
"""

import asyncio
import os
import statistics
import subprocess
import sys
import time

from denpexd.clock import SteadyClock
from denpexd.core.events import Frames, Want
from denpexd.evidence.collect import Collector
from denpexd.evidence.procs import Processes

ROUND = 0.5
RANK = """
import select, sys, time
def train():
    worst, last = 0, time.perf_counter_ns()
    while True:
        now = time.perf_counter_ns()
        worst, last = max(worst, now - last), now
        if now % 4096 < 64 and select.select([sys.stdin], [], [], 0)[0]:
            if not sys.stdin.readline():
                return
            print(worst / 1e6, flush=True)
            worst, last = 0, time.perf_counter_ns()
print(0.0, flush=True)
train()
"""


def start(rank: int) -> "subprocess.Popen[str]":
    """A busy rank that answers each line with its longest gap since the last one, in ms."""
    env = {**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_PORT": "29500"}
    return subprocess.Popen(
        [sys.executable, "-c", RANK], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def ask(ranks: "list[subprocess.Popen[str]]") -> list[float]:
    """The longest gap of each rank since it was asked last."""
    told = []
    for rank in ranks:
        assert rank.stdin is not None
        assert rank.stdout is not None
        rank.stdin.write("?\n")
        rank.stdin.flush()
        told.append(float(rank.stdout.readline()))
    return told


async def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 40
    ranks = [start(0), start(1)]
    try:
        for rank in ranks:
            assert rank.stdout is not None
            rank.stdout.readline()
        clock = SteadyClock()
        collector = Collector(Processes(root_pid=os.getpid()), clock, lone=True)
        gaps: dict[bool, list[float]] = {False: [], True: []}
        took: list[float] = []
        for number in range(rounds):
            look = bool(number % 2)
            ask(ranks)
            began = time.perf_counter()
            if look:
                events = await collector.collect(Want(clock.now(), "stacks", (0, 1), "bench"))
                took.append(time.perf_counter() - began)
                if sum(isinstance(event, Frames) for event in events) != len(ranks):
                    sys.exit(f"no stacks: {events}")
            await asyncio.sleep(max(0.0, ROUND - (time.perf_counter() - began)))
            gaps[look] += ask(ranks)
        for look, name in ((False, "without a look"), (True, "with one")):
            worst = sorted(gaps[look])
            sys.stdout.write(
                f"longest gap {name:<15} median {statistics.median(worst):.2f} ms, worst {worst[-1]:.2f} ms\n"
            )
        sys.stdout.write(f"one round of two ranks takes {statistics.median(took) * 1000:.0f} ms\n")
    finally:
        for rank in ranks:
            rank.kill()


if __name__ == "__main__":
    asyncio.run(main())
