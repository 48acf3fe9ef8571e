"""An ordinary job under DDP. Once the file that GO names exists, the rank of `--rank` makes one mistake.

`barrier`: a collective in a branch that only it takes. `backward`: it skips the backward of a batch whose loss is not
finite. `loader`: reading a sample blocks in a worker of its DataLoader. `order`: it uses two process groups in the
other order. `validate`: it evaluates alone and forgot model.eval(). `none`: nothing of its own.
"""

import argparse
import os
import time
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path

import cpu_batch_norm
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
GO = Path(os.environ["GO"])
STEPS, BATCH = 1000, 8


class Images(Dataset[tuple[torch.Tensor, int]]):
    def __init__(self, blocks: bool) -> None:
        self._blocks = blocks

    def __len__(self) -> int:
        return STEPS * BATCH * WORLD

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if self._blocks and GO.exists():
            self._read(GO.with_name("sample.pipe"))
        return torch.randn(3, 16, 16), index % 10

    def _read(self, path: Path) -> bytes:
        os.mkfifo(path)
        return path.read_bytes()  # nobody will ever write it


def validate(model: nn.Module) -> float:
    with torch.no_grad():
        return float(model(torch.randn(BATCH, 3, 16, 16)).argmax(1).float().mean())


def average(loss: torch.Tensor, first: dist.ProcessGroup, second: dist.ProcessGroup, crossed: bool) -> None:
    if crossed:
        dist.all_reduce(loss, group=second)  # the other order
        dist.all_reduce(loss, group=first)
    else:
        dist.all_reduce(loss, group=first)
        dist.all_reduce(loss, group=second)


def train(
    model: DistributedDataParallel,
    loader: DataLoader[tuple[torch.Tensor, int]],
    groups: Sequence[dist.ProcessGroup],
    mistake: str,
) -> None:
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    for step, (images, labels) in enumerate(loader):
        time.sleep(0.3)  # what a GPU would compute
        bad = bool(mistake) and GO.exists()
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        if bad and mistake == "backward":
            loss = loss * torch.nan
        if not torch.isfinite(loss):
            mistake = ""
            continue
        loss.backward()
        optimiser.step()
        if groups:
            average(loss.detach(), *groups, crossed=bad)
        if bad and mistake == "barrier":
            dist.barrier()
        if bad and mistake == "validate":
            print(f"accuracy {validate(model.module):.3f}", flush=True)
        print(f"epoch 0 step {step} loss {loss.item():.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("mistake")
    parser.add_argument("--rank", type=int, default=0)
    chosen = parser.parse_args()
    mistake = chosen.mistake if chosen.rank == RANK else ""

    cpu_batch_norm.install()
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    norm = nn.SyncBatchNorm(8) if chosen.mistake == "validate" else nn.BatchNorm2d(8)
    net = nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10))
    data = Images(blocks=mistake == "loader")
    workers = int(chosen.mistake == "loader")
    loader = DataLoader(data, BATCH, sampler=DistributedSampler(data, shuffle=False), num_workers=workers)
    groups = [dist.new_group(), dist.new_group()] if chosen.mistake == "order" else []
    train(DistributedDataParallel(net), loader, groups, mistake)


if __name__ == "__main__":
    main()
