"""Counters and numbers of ranks, as lines write them."""

MAX_RANKS = 1_000_000  # larger numbers are no ranks, whatever a line says
MAX_RANGE = 65_536


def counter(text: str | None) -> int | None:
    """'12,345' -> 12345; anything else, and what no counter can be, -> None."""
    if not text:
        return None
    digits = text.replace(",", "").replace("_", "")
    return int(digits) if len(digits) < 19 and digits.removeprefix("-").isdecimal() else None


def ranks_in(text: str) -> list[int]:
    """`3` or `0-3` as ranks; what can be none is left out."""
    first, _, last = text.partition("-")
    low, high = counter(first), counter(last or first)
    if low is None or high is None or not 0 <= low <= high < min(MAX_RANKS, low + MAX_RANGE):
        return []
    return list(range(low, high + 1))
