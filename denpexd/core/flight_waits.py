"""Who waits for whom: from the oldest operation that each rank has entered and not completed.

A rank that others wait for and that waits for nobody is where the chain of waiting ends. Operations of one group
complete in order, so the oldest one is what a rank stands in; a rank stands at the oldest of all its groups.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from denpexd.core.flight import Dump, Op
from denpexd.core.flight_groups import Group, Place

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
    """`on`: by rank, the ranks that it waits for. `stands`: the operation that each waiting rank stands in.

    `idle`: have nothing open. `passed`: stand in something that another member of the group has completed.
    `older`: their dump was taken before others went on, so it does not show where they are now.
    """

    on: dict[int, set[int]] = field(default_factory=dict)
    stands: dict[int, Op] = field(default_factory=dict)
    idle: set[int] = field(default_factory=set)
    passed: set[int] = field(default_factory=set)
    older: set[int] = field(default_factory=set)

    def ends(self) -> set[int]:
        """Ranks that others wait for, directly or not, where the chain of waiting ends: they wait for nobody."""
        awaited = {m for ranks in self.on.values() for m in ranks}
        return {m for m in awaited if not self.on.get(m)}

    def circle(self) -> set[int]:
        """Ranks that wait for each other, each for another of them; empty if every chain has an end."""
        known = set(self.on)
        while known:
            left = {r for r in known if self.on[r] & known}
            back = {r for r in left if any(r in self.on[other] for other in left)}
            if back == known:
                return known
            known = back
        return set()


def waits(dumps: Mapping[int, Dump], groups: Mapping[str, Group]) -> Waits:
    """What the dumps show of waiting; ranks without a readable dump appear only as waited for."""
    found = Waits()
    for group in groups.values():
        found.older |= _older(group, dumps)
    for rank, dump in dumps.items():
        if not dump.pending:
            if dump.tells and not any(g.places[rank].waits for g in groups.values() if rank in g.places):
                found.idle.add(rank)
            continue
        op = min(dump.pending, key=lambda o: o.record)
        found.stands[rank] = op
        group = groups[op.group]
        if op.peer is not None:
            on, passed = _other_side(rank, op, group, dumps), False
        else:
            on, passed = _missed(group.places[rank], op, group)
        found.on[rank] = on
        if passed and not on:
            found.passed.add(rank)
    return found


def _missed(mine: Place, op: Op, group: Group) -> tuple[set[int], bool]:
    """The members that have not come to this collective, and whether one has completed it."""
    on, passed = set(), False
    for member in group.members:
        if member == mine.rank:
            continue
        place = group.places.get(member)
        if place is None or place.done < op.seq - 1 or place.enqueued < op.seq:
            on.add(member)
        elif place.done >= op.seq:
            passed = True
    return on, passed


def _other_side(rank: int, op: Op, group: Group, dumps: Mapping[int, Dump]) -> set[int]:
    """The peer of a send or receive, unless it stands in the counterpart."""
    if op.peer is None or not 0 <= op.peer < len(group.members):
        return set()
    peer = group.members[op.peer]
    dump = dumps.get(peer)
    if dump is None or not dump.pending:
        return {peer}
    other = min(dump.pending, key=lambda o: o.record)
    mine = group.members.index(rank) if rank in group.members else -1
    meets = other.group == op.group and other.peer == mine and other.sends != op.sends
    return set() if meets else {peer}


def _older(group: Group, dumps: Mapping[int, Dump]) -> set[int]:
    """Members that cannot be where their dump shows them: others have completed what needs them too."""
    if not group.places:
        return set()
    ahead = max(group.places.values(), key=lambda place: (place.done, -place.rank))
    done = [o for o in dumps[ahead.rank].ops if o.group == group.name and o.peer is None and o.seq <= ahead.done]
    last = max((o.seq for o in done if not o.pending and o.name in EVERYBODY), default=-1)
    newest = max((o.seq for o in done), default=-1)
    found = set()
    for member, place in group.places.items():
        unknown = newest <= place.enqueued and ahead.done > place.enqueued + AHEAD
        if ahead.done > place.enqueued and (last > place.enqueued or unknown):
            found.add(member)
    return found
