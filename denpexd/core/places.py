"""Which ranks share a machine: by the names that are known of it, and by the blocks in which launchers number ranks."""

from math import gcd

from denpexd.core.rank import RankState
from denpexd.core.state import JobState


def on(job: JobState, name: str) -> set[int]:
    """The ranks known to run on that host, pod or address, with the silent ones of their block."""
    return of_block(job, {r for r, s in job.ranks.items() if r >= 0 and is_on(s, name)})


def of_block(job: JobState, some: set[int]) -> set[int]:
    """These ranks, with those of unknown place between them and the next machine: consecutive ranks share one.

    Only where the machines that are known begin at multiples of one size, and none of them is met twice.
    """
    begins = job.once("machines", lambda: _begins(job))
    each = gcd(len(job.universe), *begins)
    if len(begins) < 2 or len({r // each for r in some}) != 1 or len({r // each for r in begins}) != len(begins):
        return some
    begin = min(some) // each * each
    return some | {r for r in range(begin, begin + each) if r not in job.ranks or not _names(job.ranks[r])}


def _begins(job: JobState) -> list[int]:
    """The lowest known rank of each known machine."""
    lowest: dict[str, int] = {}
    for r, s in sorted(job.ranks.items()):
        if r >= 0 and (names := _names(s)):
            lowest.setdefault(names[0], r)
    return sorted(lowest.values())


def _names(state: RankState) -> list[str]:
    return ([state.node] if state.node else []) + sorted(state.known_as)


def is_on(state: RankState, name: str) -> bool:
    return bool(name) and (same_host(state.node, name) or name in state.known_as)


def same_host(one: str | None, other: str) -> bool:
    return one is not None and (one == other or (not one[:1].isdigit() and one.split(".")[0] == other.split(".")[0]))
