"""A text that one rank prints again and again is not looked at each time."""

from denpexd.scan.scanner import Named, Scanner

_REPEATS = 4
_SECOND = 1.0


class Repeats:
    """How often each id was named lately in the stream of one rank."""

    def __init__(self, scanner: Scanner) -> None:
        self._scanner = scanner
        self._told: dict[int, int] = {}  # by id, since ...
        self._since = float("-inf")

    def leave_out(self, named: list[Named], t: float) -> list[Named]:
        """Of ids that tell nothing new only some first ones in a second stay, and the last of those read at `t`."""
        if not 0.0 <= t - self._since < _SECOND:
            self._told, self._since = {}, t
        last = {number: place for place, (_, _, ids) in enumerate(named) for number in ids}
        kept: list[Named] = []
        for place, (start, end, ids) in enumerate(named):
            for number in ids:
                self._told[number] = self._told.get(number, 0) + 1
            wanted = tuple(
                n for n in ids if self._told[n] <= _REPEATS or last[n] == place or not self._scanner.repeats_itself(n)
            )
            if wanted:
                kept.append((start, end, wanted))
        return kept
