"""Trains for `--steps` steps; with `--bad-rank` that rank raises an exception before step `--bad-step`."""

import argparse

import training


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--bad-rank", type=int, default=-1)
    parser.add_argument("--bad-step", type=int, default=10)
    chosen = parser.parse_args()

    def load_sample(step: int) -> None:
        if (training.RANK, step) == (chosen.bad_rank, chosen.bad_step):
            raise ValueError(f"sample {step} has 3 channels, expected 1")

    model = training.begin()
    training.train(model, 0, chosen.steps, load_sample)
    training.end()


if __name__ == "__main__":
    main()
