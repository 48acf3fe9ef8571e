"""Logs side by side are read one below the other; a table inside a log stays a table."""

from itertools import zip_longest

import pytest

from denpexd.ingest.unpaste import below_each_other, restored

STEPS = [f"2025-10-14 03:00:{n:02d} INFO rank {{rank}} step {n} loss {2.5 - n / 100:.2f}" for n in range(10)]
FAILED = [
    "Traceback (most recent call last):",
    '  File "/ws/train.py", line 118, in main',
    "    loss = train(batch)",
    '  File "/ws/train.py", line 40, in train',
    "    return batch[17]",
    "KeyError: 17",
]


def log(rank: int, *more: str) -> list[str]:
    return [line.format(rank=rank) for line in STEPS] + list(more)


def beside(width: int, between: str, *panes: list[str]) -> list[str]:
    return [between.join(line.ljust(width) for line in row).rstrip() for row in zip_longest(*panes, fillvalue="")]


PANES = [log(0), log(1, *FAILED), log(2)]


@pytest.mark.parametrize(("width", "between"), [(60, " │ "), (60, "│"), (70, " | "), (58, "  "), (64, "        ")])
@pytest.mark.parametrize("count", [2, 3])
def test_panes_are_told_apart(width: int, between: str, count: int) -> None:
    found = below_each_other(beside(width, between, *PANES[:count]))
    assert [[line for line in pane if line] for pane in found] == PANES[:count]


def test_cells_of_a_table() -> None:
    rows = ["\t".join(row) for row in zip_longest(*PANES, fillvalue="")]
    found = below_each_other(rows)
    assert [[line for line in pane if line] for pane in found] == PANES


def test_lines_cut_at_the_width_of_a_pane_are_joined() -> None:
    def cut(line: str) -> list[str]:
        return [line[at : at + 48] for at in range(0, max(1, len(line)), 48)]

    panes = [[part for line in pane for part in cut(line)] for pane in PANES[:2]]
    text = "\n".join(beside(48, " │ ", *panes))
    assert [line for line in restored(text.encode()).decode().split("\n") if line] == PANES[0] + PANES[1]


@pytest.mark.parametrize(
    "lines",
    [
        PANES[1],
        [f"step {n:4d}                                     | loss 2.31 | lr 3e-4" for n in range(20)],
        [f"rank {n}   busy                                 0.{n}   12.1   yes" for n in range(20)],
        [f" iteration {n:8d}/  500000 | consumed samples: {n * 10:12d} | lm loss: 2.3E+00 |" for n in range(20)],
        ["| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |"] * 8,
        [f"worker {n}\tstep {n}\tloss 2.31" for n in range(3)],
        [],
        [""],
    ],
)
def test_one_log_is_one_pane(lines: list[str]) -> None:
    assert below_each_other(lines) == [lines]
