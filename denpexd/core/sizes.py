"""How many ranks a role may have, and which it may have at all."""

from collections.abc import Collection, Sequence

from denpexd.core.events import UNKNOWN_RANK


def free(size: str, universe: Sequence[int], taken: Collection[int]) -> list[int]:
    """The ranks that a role of that size may take; `somewhere` takes none away, so it looks at all and the launcher."""
    if size == "launcher":
        return [UNKNOWN_RANK]
    return [*universe, UNKNOWN_RANK] if size == "somewhere" else [r for r in universe if r not in taken]


def fits(size: str, count: int, world: int, universe: Sequence[int], taken: Collection[int]) -> bool:
    """Whether `count` ranks of a world of that many are what a role of that size asks for."""
    if size in ("one", "none"):
        return count == (size == "one")
    if size == "minority":
        return 1 <= count <= world / 2
    if size == "majority":
        return count > world / 2
    if size == "rest":
        return count == len([r for r in universe if r not in taken])
    return count >= 1 or size in ("maybe", "few", "launcher")  # any, all, somewhere: at least one
