"""Who waits for whom: from the oldest operation that each rank has entered and not completed.

A rank that others wait for and that waits for nobody is where the chain of waiting ends. Operations of one group
complete in order, so the oldest one is what a rank stands in; a rank stands at the oldest of all its groups.
"""

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field

from denpexd.core.flight import Op, Outline
from denpexd.core.flight_groups import Group

EVERYBODY = frozenset(  # completes nowhere before all have come
    [
        "all_reduce",
        "allreduce",
        "all_reduce_barrier",
        "barrier",
        "all_gather",
        "allgather",
        "_all_gather_base",
        "all_gather_into_tensor",
        "reduce_scatter",
        "_reduce_scatter_base",
        "reduce_scatter_tensor",
        "all_to_all",
    ]
)
AHEAD = 8  # broadcasts that may complete before the last has come, where nothing tells what they were


@dataclass(slots=True)
class Waits:
    """`on`: by rank, the ranks that it waits for; one set for all who wait in the same. `stands`: the operation that
    each waiting rank stands in.

    `idle`: have nothing open. `passed`: stand in something that another member of the group has completed.
    `older`: their dump was taken before others went on, so it does not show where they are now.
    """

    on: dict[int, Set[int]] = field(default_factory=dict)
    stands: dict[int, Op] = field(default_factory=dict)
    idle: set[int] = field(default_factory=set)
    passed: set[int] = field(default_factory=set)
    older: set[int] = field(default_factory=set)

    def together(self) -> Iterator[tuple[list[int], Set[int]]]:
        """Ranks that wait for the same, and whom they wait for."""
        alike: dict[int, tuple[list[int], Set[int]]] = {}
        for rank, on in self.on.items():
            alike.setdefault(id(on), ([], on))[0].append(rank)
        yield from alike.values()

    def ends(self) -> set[int]:
        """Ranks that others wait for, directly or not, where the chain of waiting ends: they wait for nobody."""
        awaited = {m for _, on in self.together() for m in on}
        return {m for m in awaited if not self.on.get(m)}

    def circle(self) -> set[int]:
        """Ranks that wait for each other, each for another of them; empty if every chain has an end."""
        alike, known = list(self.together()), set(self.on)
        while known:
            waiting, awaited = set[int](), set[int]()
            for ranks, on in alike:
                if not on.isdisjoint(known) and (left := known.intersection(ranks)):
                    waiting |= left
                    awaited |= on
            if (back := waiting & awaited) == known:
                return known
            known = back
        return set()


def waits(dumps: Mapping[int, Outline], groups: Mapping[str, Group]) -> Waits:
    """What the dumps show of waiting; ranks without a readable dump appear only as waited for."""
    found = Waits()
    busy: set[int] = set()
    for group in groups.values():
        found.older |= _older(group, dumps)
        busy |= {rank for rank, place in group.places.items() if place.waits}
    missed: dict[tuple[str, int], tuple[set[int], bool]] = {}
    for rank, one in dumps.items():
        op = one.stands
        if op is None:
            if one.dump.tells and rank not in busy:
                found.idle.add(rank)
            continue
        found.stands[rank] = op
        group = groups[op.group]
        if op.peer is not None:
            found.on[rank] = _other_side(rank, op, group, dumps)
            continue
        on, passed = missed.get((op.group, op.seq)) or missed.setdefault((op.group, op.seq), _missed(op.seq, group))
        found.on[rank] = on - {rank} if rank in on else on
        if passed and not found.on[rank]:
            found.passed.add(rank)
    return found


def _missed(seq: int, group: Group) -> tuple[set[int], bool]:
    """The members that have not come to this collective, and whether one has completed it."""
    on, passed = set(), False
    for member in group.members:
        place = group.places.get(member)
        if place is None or place.done < seq - 1 or place.enqueued < seq:
            on.add(member)
        elif place.done >= seq:
            passed = True
    return on, passed


def _other_side(rank: int, op: Op, group: Group, dumps: Mapping[int, Outline]) -> set[int]:
    """The peer of a send or receive, unless it stands in the counterpart."""
    if op.peer is None or not 0 <= op.peer < len(group.members):
        return set()
    peer = group.members[op.peer]
    known = dumps.get(peer)
    if known is None or (other := known.stands) is None:
        return {peer}
    mine = group.members.index(rank) if rank in group.members else -1
    meets = other.group == op.group and other.peer == mine and other.sends != op.sends
    return set() if meets else {peer}


def _older(group: Group, dumps: Mapping[int, Outline]) -> set[int]:
    """Members that cannot be where their dump shows them: others have completed what needs them too."""
    if not group.places:
        return set()
    ahead = max(group.places.values(), key=lambda place: (place.done, -place.rank))
    track = dumps[ahead.rank].tracks.get(group.name)
    done = [op for op in (track.ops if track is not None else ()) if op.seq <= ahead.done]
    last = max((o.seq for o in done if not o.pending and o.name in EVERYBODY), default=-1)
    newest = max((o.seq for o in done), default=-1)
    found = set()
    for member, place in group.places.items():
        unknown = newest <= place.enqueued and ahead.done > place.enqueued + AHEAD
        if ahead.done > place.enqueued and (last > place.enqueued or unknown):
            found.add(member)
    return found
