"""Two groups that all ranks use in one order, until the last rank uses them in the other. Its stack looks the same.

Gloo has no debug pipe, so each rank listens at one as torch's NCCL backend does, and writes its Flight Recorder dump to
the file that TORCH_FR_DUMP_TEMP_FILE names.
"""

import os
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
GO = Path(os.environ["TORCH_FR_DUMP_TEMP_FILE"] + "go")  # from when this exists on


def listen() -> None:
    from torch._C import _distributed_c10d as c10d

    pipe = Path(os.environ["TORCH_NCCL_DEBUG_INFO_PIPE_FILE"] + f"{RANK}.pipe")
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    while True:
        time.sleep(0.2)
        try:
            asked = os.read(reader, 128)
        except BlockingIOError:
            continue
        if asked:
            with Path(os.environ["TORCH_FR_DUMP_TEMP_FILE"] + "asked.log").open("a") as log:
                log.write(f"{RANK} {len(asked)}\n")
            Path(os.environ["TORCH_FR_DUMP_TEMP_FILE"] + str(RANK)).write_bytes(c10d._dump_fr_trace())


def main() -> None:
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    groups = [dist.new_group(), dist.new_group()]
    threading.Thread(target=listen, daemon=True).start()
    for step in range(1000):
        time.sleep(0.3)
        crossed = RANK == WORLD - 1 and GO.exists()
        for group in reversed(groups) if crossed else groups:
            dist.all_reduce(torch.ones(100), group=group)
        print(f"epoch 0 step {step} loss {2 + 1 / (step + 1):.4f}", flush=True)


if __name__ == "__main__":
    main()
