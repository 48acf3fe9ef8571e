"""Dumps of several ranks side by side: the process groups, and how far each member is in each of them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from denpexd.core.flight import Dump, Op, Outline, Progress, Track


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


def groups(dumps: Mapping[int, Outline], world: int | None = None) -> dict[str, Group]:
    """All groups that any dump speaks of, by name."""
    mixed = {name for one in dumps.values() for name in one.exchanges}  # their own count mixes both kinds
    users: dict[str, set[int]] = {}
    told: dict[str, set[tuple[int, ...]]] = {}
    numbers: dict[str, set[int]] = {}
    texts: dict[str, str] = {}
    for rank, one in dumps.items():
        for name in one.groups:
            users.setdefault(name, set()).add(rank)
        for name, members in one.dump.members.items():
            told.setdefault(name, set()).add(members)
        for number, name in one.dump.numbers.items():
            numbers.setdefault(name, set()).add(number)
        for name, text in one.dump.descriptions.items():
            texts[name] = max(texts.get(name, ""), text, key=len)
    found = {}
    for name in sorted(users):
        everybody, certain = _members(name, users[name], told.get(name, ()), dumps, world)
        places = {}
        for rank in sorted(dumps.keys() & everybody):
            known = dumps[rank]
            said = None if name in mixed else _progress(known.dump, name, numbers.get(name, ()))
            if (place := _place(rank, known.tracks.get(name), said)) is not None:
                places[rank] = place
        found[name] = Group(name, texts.get(name, ""), everybody, places, certain)
    return found


def _members(
    name: str, users: set[int], told: Iterable[tuple[int, ...]], dumps: Mapping[int, Outline], world: int | None
) -> tuple[tuple[int, ...], bool]:
    """Who belongs to the group, and whether the dumps say so; else everybody who has used it, or the whole job."""
    different = {tuple(sorted(set(members))) for members in told if members}
    if different:
        everybody = users.union(*different)
        return tuple(sorted(everybody)), len(different) == 1 and everybody == set(*different)
    if name == "0":
        return tuple(sorted(users | set(dumps) | set(range(world or 0)))), world is not None
    return tuple(sorted(users)), False


def _progress(dump: Dump, name: str, numbers: Iterable[int]) -> Progress | None:
    """By the dump itself; where it gives only the number of the group, by what that number means to other members."""
    if name in dump.progress:
        return dump.progress[name]
    known = [dump.unnamed[n] for n in numbers if n in dump.unnamed]
    return known[0] if len(known) == 1 else None


def _place(rank: int, track: Track | None, progress: Progress | None) -> Place | None:
    if track is None and progress is None:
        return None
    enqueued, done = (-1, -1) if track is None else (track.newest, track.done)
    if progress is not None:
        enqueued = max(enqueued, progress.enqueued)
    if track is not None and track.first is not None:
        return Place(rank, enqueued, track.first.seq - 1, track.first)
    done = max(done, progress.completed if progress is not None else -1)
    return Place(rank, enqueued, min(done, enqueued))
