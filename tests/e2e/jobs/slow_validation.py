"""Rank 0 validates the bare module for 40 s, rightly in eval mode, while the others wait; then training goes on."""

import time

import torch
import torch.distributed as dist
import training

SECONDS = 40.0


def validate(model: torch.nn.Module) -> float:
    model.eval()
    right = seen = 0
    until = time.monotonic() + SECONDS
    with torch.no_grad():
        while time.monotonic() < until:
            images, labels = training.batch()
            right += int((model(images).argmax(1) == labels).sum())
            seen += len(labels)
            time.sleep(0.05)  # reading the next images
    model.train()
    return right / seen


def main() -> None:
    model = training.begin()
    training.train(model, 0, 10)
    if training.RANK == 0:
        training.say("running validation on rank 0")
        training.say(f"validation accuracy {validate(model.module):.3f}")
    dist.barrier()
    training.train(model, 10, 30)
    training.end()


if __name__ == "__main__":
    main()
