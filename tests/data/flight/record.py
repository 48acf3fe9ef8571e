"""Records the dumps of this folder from real torch ranks on CPU (torch 2.13, gloo): `python record.py`.

Each job runs a few steps, then one rank does something else; two seconds later every rank writes its Flight Recorder,
the even ones as JSON, the odd ones as a pickle, as the debug handlers do, and the job is ended.
"""

import os
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

HERE = Path(__file__).parent
JOBS = {"kinds2": 2, "kinds3": 3, "groups2": 2, "absent3": 3, "alone3": 3, "late2": 2}


def dump(job: str, rank: int) -> None:
    from torch._C import _distributed_c10d as c10d

    time.sleep(2.0)
    folder = HERE / job
    folder.mkdir(exist_ok=True)
    if rank % 2 == 0:
        (folder / f"rank{rank}.json").write_bytes(c10d._dump_fr_trace_json())
    else:
        (folder / f"trace_rank_{rank}").write_bytes(c10d._dump_fr_trace())
    os._exit(0)


def step(job: str, groups: list[dist.ProcessGroup], odd: bool) -> None:
    gradients, metric = torch.ones(100), torch.ones(10)
    if job == "groups2":
        for group in reversed(groups) if odd else groups:
            dist.all_reduce(gradients, group=group)
        return
    calls = [lambda: dist.all_reduce(gradients), lambda: dist.broadcast(metric, 0)]
    if odd and job.startswith("kinds"):
        calls.reverse()
    if odd and job in ("absent3", "late2"):
        time.sleep(60)
    if odd and job == "alone3":
        dist.all_gather([torch.ones(5) for _ in range(3)], torch.ones(5))
    for call in calls:
        call()


def rank_main(rank: int, job: str, world: int) -> None:
    dist.init_process_group("gloo", rank=rank, world_size=world)
    groups = [dist.new_group() for _ in range(2)] if job == "groups2" else []
    for i in range(5):
        if i == 4:
            threading.Thread(target=dump, args=(job, rank)).start()
        last = {"kinds3": rank == 2, "absent3": rank == 2, "alone3": rank == 0}.get(job, rank == 1)
        if i == 4 and job == "alone3" and rank:
            time.sleep(60)
        step(job, groups, i == 4 and last)
    time.sleep(60)


def main() -> None:
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "TORCH_FR_BUFFER_SIZE": "6"}
    for number, job in enumerate(sys.argv[1:] or JOBS):
        os.environ["MASTER_PORT"] = str(29610 + number)
        mp.start_processes(rank_main, (job, JOBS[job]), JOBS[job], start_method="spawn")


if __name__ == "__main__":
    main()
