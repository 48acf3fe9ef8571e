"""Dumps of several ranks side by side: the process groups, and how far each member is in each of them."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from denpexd.core.flight import Dump, Op, Progress


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank is in one group. `enqueued`, `done`: numbers of collectives, -1 before the first.

    `op`: the oldest collective that it has entered and not completed, where the dump still holds it.
    """

    rank: int
    enqueued: int
    done: int
    op: Op | None = None

    @property
    def waits(self) -> bool:
        """It has entered something in this group that has not completed."""
        return self.enqueued > self.done


@dataclass(frozen=True, slots=True)
class Group:
    """A process group: all members that are known, and the places of those that left a readable dump.

    `silent`: members whose dump says nothing about it. `certain`: the dumps say who belongs to it.
    """

    name: str
    description: str
    members: tuple[int, ...]
    places: Mapping[int, Place]
    certain: bool

    @property
    def silent(self) -> tuple[int, ...]:
        return tuple(m for m in self.members if m not in self.places)

    @property
    def label(self) -> str:
        """Its name as a person may know it."""
        known = self.description not in ("", "undefined", self.name)
        return f"{self.name} ({self.description})" if known else self.name


def groups(dumps: Mapping[int, Dump], world: int | None = None) -> dict[str, Group]:
    """All groups that any dump speaks of, by name."""
    mixed = _point_to_point(dumps.values())
    found: dict[str, Group] = {}
    for name in sorted({op.group for d in dumps.values() for op in d.ops} | _named(dumps)):
        members, certain = _members(name, dumps, world)
        places = {}
        for rank in members:
            if (dump := dumps.get(rank)) is not None:
                place = _place(dump, name, _progress(dump, name, dumps, members), counts=name not in mixed)
                if place is not None:
                    places[rank] = place
        texts = [d.descriptions.get(name, "") for d in dumps.values()]
        found[name] = Group(name, max(texts, key=len, default=""), members, places, certain)
    return found


def _named(dumps: Mapping[int, Dump]) -> set[str]:
    return {name for d in dumps.values() for name in d.progress}


def _point_to_point(dumps: Iterable[Dump]) -> set[str]:
    """Groups that carry point-to-point operations: their own count mixes both kinds, so it cannot be compared."""
    return {op.group for dump in dumps for op in dump.ops if op.peer is not None}


def _members(name: str, dumps: Mapping[int, Dump], world: int | None) -> tuple[tuple[int, ...], bool]:
    """Who belongs to the group, and whether the dumps say so; else everybody who has used it, or the whole job."""
    users = {r for r, d in dumps.items() if name in d.progress or any(op.group == name for op in d.ops)}
    told = {tuple(sorted(set(d.members[name]))) for d in dumps.values() if d.members.get(name)}
    if told:
        everybody = users.union(*told)
        return tuple(sorted(everybody)), len(told) == 1 and everybody == set(*told)
    if name == "0":
        return tuple(sorted(users | set(dumps) | set(range(world or 0)))), world is not None
    return tuple(sorted(users)), False


def _progress(dump: Dump, name: str, dumps: Mapping[int, Dump], members: Sequence[int]) -> Progress | None:
    """By the dump itself; where it gives only the number of the group, by what that number means to other members."""
    if name in dump.progress:
        return dump.progress[name]
    numbers = {n for r in members if (other := dumps.get(r)) is not None for n, g in other.numbers.items() if g == name}
    known = [dump.unnamed[n] for n in numbers if n in dump.unnamed]
    return known[0] if len(known) == 1 else None


def _place(dump: Dump, name: str, progress: Progress | None, *, counts: bool) -> Place | None:
    ops = [op for op in dump.ops if op.group == name and op.peer is None]
    progress = progress if counts else None
    if not ops and progress is None:
        return None
    enqueued = max([op.seq for op in ops], default=-1)
    pending = [op for op in ops if op.pending]
    if progress is not None:
        enqueued = max(enqueued, progress.enqueued)
    if pending:
        first = min(pending, key=lambda op: (op.seq, op.record))
        return Place(dump.rank, enqueued, first.seq - 1, first)
    finished = max((op.seq for op in ops if not op.pending), default=-1)
    done = max(finished, progress.completed if progress is not None else -1)
    return Place(dump.rank, enqueued, min(done, enqueued))
