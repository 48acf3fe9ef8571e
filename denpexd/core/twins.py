"""Numbers that ranks print after they have averaged them: the same on all of them, until they are not.

No line says whether its loss is a rank's own or the average of all; it is learned. Ranks on which a number was the same
at each of many steps, while it changed from step to step, are twins. A loss of the rank's own differs at once and makes
no twins; nor does one that is equal only now and then, as with few digits.
"""

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field

from denpexd.core.evidence import Evidence
from denpexd.core.numbers import Place

LEARN = 10  # different values that ranks must have had in common
APART = 0.002  # relative; less may be rounding
OPEN = 8  # steps that some ranks have printed and others not yet
MAX_NAMES = 8
BLEMISHES = 2  # so many differences that went away again: never mind these ranks

Values = dict[int, tuple[float, Evidence]]


@dataclass(slots=True)
class Group:
    """Ranks that have always printed the same."""

    ranks: set[int]
    last: float | None = None
    blemishes: int = 0
    parted: int = 0  # steps in a row at which they differed
    rounds: deque[Values] = field(default_factory=lambda: deque(maxlen=8))  # the newest of these

    def agreed(self) -> None:
        self.blemishes += self.parted > 0
        self.parted = 0
        self.rounds.clear()

    def differed(self, values: Values) -> None:
        self.parted += 1
        self.rounds.append(values)

    def odd(self, steps: int) -> set[int]:
        """Those without whom a strict majority would still agree, at each of the last steps."""
        found = [_odd(values) for values in list(self.rounds)[-steps:]]
        return set.intersection(*found) if found else set()


@dataclass(slots=True)
class Twins:
    """One number, as all ranks print it."""

    open: dict[Place, Values] = field(default_factory=dict)
    groups: dict[int, Group] = field(default_factory=dict)  # by rank
    common: dict[int, int] = field(default_factory=dict)  # by rank: different values it shared with its group

    def note(self, rank: int, place: Place, value: float, evidence: Evidence) -> None:
        """A rank printed the number; a step is judged when all ranks that print it have done so, or when it is old."""
        values = self.open.setdefault(place, {})
        values[rank] = value, evidence
        if rank not in self.groups:
            self.groups[rank] = Group({rank})
        complete = len(values) == len(self.groups) > 1
        while (complete and place in self.open) or len(self.open) > OPEN:
            self._settle(self.open.pop(next(iter(self.open))))

    def _settle(self, values: Values) -> None:
        for group in {id(g): g for rank in values if (g := self.groups[rank])}.values():
            self._compare(group, {r: v for r, v in values.items() if r in group.ranks})
        self._join(values)

    def _compare(self, group: Group, values: Values) -> None:
        """Those that are bound to each other by many equal values have parted; others were no twins."""
        if len(values) < 2:
            return
        first = next(iter(values.values()))[0]
        if all(value == first for value, _ in values.values()):
            if first != group.last:
                self.common.update({r: self.common.get(r, 0) + 1 for r in values})
            group.last = first
            group.agreed()
            return
        bound = {r: v for r, v in values.items() if self.common[r] >= LEARN and group.blemishes < BLEMISHES}
        for rank in values.keys() - bound:
            group.ranks.discard(rank)
            self.groups[rank], self.common[rank] = Group({rank}), 0
        if len(bound) > 1 and _apart(bound):
            group.differed(bound)

    def _join(self, values: Values) -> None:
        """Ranks that print the same become one group, unless they are bound to another."""
        groups: dict[float, Group] = {}
        for rank, (value, _) in values.items():
            group = self.groups[rank]
            if group.parted or (value in groups and groups[value] is group):
                continue
            if value not in groups and len(group.ranks) > 1:
                groups[value] = group
            elif self.common.get(rank, 0) < LEARN:
                group.ranks.discard(rank)
                into = groups.setdefault(value, Group(set(), last=value))
                into.ranks.add(rank)
                self.groups[rank], self.common[rank] = into, 1

    def parted(self, steps: int) -> Mapping[int, Group]:
        """The groups that have differed at so many steps in a row, by rank."""
        return {rank: group for rank, group in self.groups.items() if group.parted >= steps}


def _apart(values: Values) -> bool:
    numbers = [value for value, _ in values.values()]
    return max(numbers) - min(numbers) > APART * max(1e-9, *map(abs, numbers))


def _odd(values: Values) -> set[int]:
    counts = Counter(value for value, _ in values.values())
    common, count = counts.most_common(1)[0]
    if len(values) < 3 or count * 2 <= len(values):
        return set()
    return {r for r, (value, _) in values.items() if abs(value - common) > APART * max(1e-9, abs(value), abs(common))}
