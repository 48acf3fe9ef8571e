"""All ranks of a job as one board: compact enough to be drawn, sent and compared for 16,384 of them.

A cell is what is told of one rank: state, phase, and how many steps it is behind the first. Neighbours with equal
cells make one run, so a healthy job of any size is a single run and a change costs what changed.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from denpexd.web.view import RANK_STATES, JobView, RankState, RankView

MOST_GROUPS = 40
WORST: tuple[RankState, ...] = ("failed", "gone", "silent", "waiting", "unheard", "running", "done")
COLUMNS = (16, 32, 64, 128)
PITCH = 10  # SVG units from cell to cell


class Cell(NamedTuple):
    """`lag`: steps behind the first rank, None while its step is unknown."""

    state: RankState
    phase: str
    lag: int | None


class Run(NamedTuple):
    """`length` ranks from `first` on, in the order of Board.ranks, with equal cells."""

    first: int
    length: int
    cell: Cell

    def packed(self) -> list[object]:
        """As it is sent: [first, length, state, phase, lag]."""
        return [self.first, self.length, RANK_STATES.index(self.cell.state), self.cell.phase, self.cell.lag]


@dataclass(frozen=True, slots=True)
class Board:
    """`ranks`: their numbers, ascending; `cells`: in the same order."""

    job: str
    attempt: int
    ranks: Sequence[int]
    cells: Sequence[Cell]

    def runs(self, before: "Board | None" = None) -> list[Run]:
        """All runs, or those in which something is not as `before`; all of them too where the ranks are others."""
        same = before is not None and (before.attempt, before.ranks) == (self.attempt, self.ranks)
        changed = range(len(self.cells))
        places: Iterable[int] = changed
        if same and before is not None:
            places = [at for at in changed if self.cells[at] != before.cells[at]]
        return list(self._runs(places))

    def _runs(self, places: Iterable[int]) -> Iterator[Run]:
        first, count = -1, 0
        for at in places:
            if count and at == first + count and self.cells[at] == self.cells[first]:
                count += 1
                continue
            if count:
                yield Run(first, count, self.cells[first])
            first, count = at, 1
        if count:
            yield Run(first, count, self.cells[first])

    def is_successor(self, before: "Board | None") -> bool:
        """Whether what changed since is enough to know this one."""
        return before is not None and (before.attempt, before.ranks) == (self.attempt, self.ranks)


def board(job: JobView) -> Board:
    """The board of a job."""
    ranks = sorted(job.ranks)  # by number: it comes first
    front = job.step
    cells = [
        Cell(r.state, r.phase or "", None if r.step is None or front is None else max(0, front - r.step)) for r in ranks
    ]
    return Board(job.job, job.attempt, [rank.rank for rank in ranks], cells)


class Group(NamedTuple):
    """Ranks of which the same is to be said; `silent_for`: (least, most) seconds since their last lines."""

    cell: Cell
    ranks: Sequence[int]
    nodes: Sequence[str]
    silent_for: tuple[float, float] | None


def groups(job: JobView) -> tuple[list[Group], int]:
    """The board in words: ranks with equal cells together, the worst state first; and how many groups were left out."""
    found: dict[Cell, list[RankView]] = {}
    ranks = {rank.rank: rank for rank in job.ranks}
    made = board(job)
    for number, cell in zip(made.ranks, made.cells, strict=True):
        found.setdefault(cell, []).append(ranks[number])
    # Lags of one or two steps only say when the last line came.
    ordered = sorted(found, key=lambda c: (WORST.index(c.state), -(c.lag or 0), c.phase))
    return [_group(cell, found[cell]) for cell in ordered[:MOST_GROUPS]], max(0, len(ordered) - MOST_GROUPS)


def _group(cell: Cell, ranks: Sequence[RankView]) -> Group:
    silences = [rank.silent_for for rank in ranks if rank.silent_for is not None]
    nodes = dict.fromkeys(rank.node for rank in ranks if rank.node)
    spread = (min(silences), max(silences)) if silences else None
    return Group(cell, [rank.rank for rank in ranks], list(nodes), spread)


class Shape(NamedTuple):
    """All cells of one state (`late`: those of them that are behind) as one SVG path."""

    state: str
    path: str


def columns(count: int) -> int:
    """How wide the picture is, in cells: about twice as wide as high, in powers of two as nodes have GPUs."""
    return next((wide for wide in COLUMNS if count <= wide * wide / 2), COLUMNS[-1])


def shapes(made: Board) -> tuple[int, int, list[Shape]]:
    """Width and height in cells, and a path for each state: a rectangle for each row of a run."""
    wide = min(columns(len(made.cells)), max(1, len(made.cells)))
    paths: dict[str, list[str]] = {}
    for run in made.runs():
        paths.setdefault(run.cell.state, []).extend(_cells(run.first, run.length, wide))
    high = -(-len(made.cells) // wide)
    return wide, high, [Shape(state, "".join(paths[state])) for state in RANK_STATES if state in paths]


def _cells(first: int, count: int, wide: int) -> Iterator[str]:
    side = PITCH - 1
    for at in range(first, first + count):
        yield f"M{at % wide * PITCH} {at // wide * PITCH}h{side}v{side}h-{side}z"
