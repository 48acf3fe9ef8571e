"""What the jobs of these tests share: a small convolutional net under DDP and an ordinary training loop."""

import os
import time
from collections.abc import Callable
from datetime import timedelta

import cpu_batch_norm
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

RANK = int(os.environ["RANK"])
STEP_SECONDS = 0.3


def say(text: str) -> None:
    """A line of this rank, at once."""
    print(text, flush=True)


def begin() -> DistributedDataParallel:
    """Join the process group and wrap the net, with the batch norm layers synchronised."""
    torch.manual_seed(RANK)
    cpu_batch_norm.install()
    dist.init_process_group("gloo", timeout=timedelta(minutes=30))
    say(f"rank {RANK}: process group of {dist.get_world_size()} ranks is up")
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)
    )
    return DistributedDataParallel(nn.SyncBatchNorm.convert_sync_batchnorm(net))


def train(model: DistributedDataParallel, first: int, steps: int, before: Callable[[int], None] | None = None) -> None:
    """Steps `first` to `first + steps - 1`; `before` is called at the start of each."""
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(first, first + steps):
        if before is not None:
            before(step)
        time.sleep(STEP_SECONDS)  # what a GPU would compute
        images, labels = batch()
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimiser.step()
        say(f"epoch 0 step {step} loss {loss.item():.4f}")


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    """Images and labels."""
    return torch.randn(8, 3, 16, 16), torch.randint(0, 10, (8,))


def end() -> None:
    """Leave together."""
    dist.barrier()
    say("training finished")
    dist.destroy_process_group()
