"""What the Flight Recorder of one rank holds: the operations it entered, in which group, and how far each group is.

evidence/flight_format.py makes dumps from what PyTorch writes. An `Outline` is a dump made ready, once, to be compared
with a thousand others: flight_groups, flight_match and flight_verdict then look at each only once.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

EVEN = frozenset(  # as much goes in on every rank, and as much comes out
    [
        "all_reduce",
        "allreduce",
        "all_reduce_sparse",
        "allreduce_coalesced",
        "broadcast",
        "_broadcast_oop",
        "_all_gather_base",
        "all_gather_into_tensor",
        "all_gather_into_tensor_coalesced",
        "_reduce_scatter_base",
        "reduce_scatter_tensor",
        "reduce_scatter_tensor_coalesced",
    ]
)
EVEN_IN = frozenset({"reduce", "_reduce_oop"})  # only the root has something that comes out
EVEN_OUT = frozenset({"all_gather"})  # a list of tensors: uneven ones may go in, all ranks get the same
SAME = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "all_reduce_barrier": "barrier",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "all_to_all_single": "all_to_all",
    "all_to_allv": "all_to_all",
    "reduce_scatter_v": "reduce_scatter",
}

Token = tuple[str, str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Op:
    """One recorded operation. `seq` counts within its group, collectives and point-to-point operations apart.

    `record`: its place in the order of the rank. `pending`: entered and not completed; `timed_out`: given up.
    `peer`: place of the other side within the group (point to point); `sends`: this side sends.
    `place`: where the program called it (`train.py:214 in validate`), if recorded.
    `sizes`, `given`: elements that go in and come out, each as recorded; `dtypes`: of what goes in.
    """

    group: str
    seq: int
    name: str
    record: int
    pending: bool
    timed_out: bool = False
    sizes: tuple[int, ...] = ()
    given: tuple[int, ...] = ()
    dtypes: tuple[str, ...] = ()
    peer: int | None = None
    sends: bool = False
    place: str = ""

    @property
    def call(self) -> str:
        """What it is, as a person would write it: `all_gather of 17`."""
        if self.peer is not None:
            return f"{self.name} {'to' if self.sends else 'from'} member {self.peer}"
        size = f" of {self.numel}" if self.sizes else ""
        return f"{self.name}{size}"

    @property
    def numel(self) -> int:
        """Elements that this rank puts in."""
        return sum(self.sizes)


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a group is on one rank by its own count; -1: nothing yet."""

    enqueued: int
    completed: int


@dataclass(frozen=True, slots=True)
class Dump:
    """The dump of one rank at time `t`, oldest operation first.

    `members`: global ranks by group where the dump says so. `progress`: by group; `unnamed`: by number of the group,
    where the dump does not say which group that is. `numbers`: number -> group, as its operations say.
    """

    t: float
    rank: int
    version: str = ""
    ops: tuple[Op, ...] = ()
    members: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    descriptions: Mapping[str, str] = field(default_factory=dict)
    progress: Mapping[str, Progress] = field(default_factory=dict)
    unnamed: Mapping[int, Progress] = field(default_factory=dict)
    numbers: Mapping[int, str] = field(default_factory=dict)
    source: str = ""

    @property
    def pending(self) -> tuple[Op, ...]:
        """What it has entered and not completed, oldest first."""
        return tuple(op for op in self.ops if op.pending)

    def shortened(self, most: int) -> "Dump":
        """With the newest `most` operations, and the oldest ones that are open: an event must stay small."""
        if len(self.ops) <= most:
            return self
        older = [op for op in self.ops[:-most] if op.pending][:most]
        return replace(self, ops=(*older, *self.ops[-most:]))

    @property
    def tells(self) -> bool:
        """Whether it says anything about any group."""
        return bool(self.ops or self.progress or self.unnamed)


@dataclass(frozen=True, slots=True)
class Track:
    """The collectives of one group, as they were recorded.

    `places`: number and, of several under one number (coalesced), which; `calls`: what the members must agree on.
    `newest`, `done`: highest number, of all and of those that have completed; -1: none. `first`: the oldest open one.
    """

    ops: tuple[Op, ...]
    places: tuple[tuple[int, int], ...]
    calls: tuple[str, ...]
    newest: int
    done: int
    first: Op | None

    def at(self, seq: int) -> tuple[Op, ...]:
        """What was called under this number."""
        return tuple(op for op, (number, _) in zip(self.ops, self.places, strict=True) if number == seq)


@dataclass(frozen=True, slots=True)
class Outline:
    """`tracks`: by group; `groups`: all that it has used; `exchanges`: those with sends and receives.

    `stands`: the oldest operation that it has entered and not completed. `tokens`: one an operation.
    """

    dump: Dump
    tracks: Mapping[str, Track]
    groups: frozenset[str]
    exchanges: frozenset[str]
    stands: Op | None
    tokens: tuple[Token, ...]

    def before(self, op: Op) -> tuple[Token, ...]:
        """What preceded an operation."""
        ops = zip(self.dump.ops, self.tokens, strict=True)
        return tuple(token for known, token in ops if known.record < op.record)


def outline(dump: Dump) -> Outline:
    """Of one dump."""
    by_group: dict[str, list[Op]] = {}
    for op in dump.ops:
        if op.peer is None:
            by_group.setdefault(op.group, []).append(op)
    exchanges = frozenset(op.group for op in dump.ops if op.peer is not None)
    return Outline(
        dump,
        {name: _track(ops) for name, ops in by_group.items()},
        frozenset({*by_group, *exchanges, *dump.progress}),
        exchanges,
        min(dump.pending, key=lambda op: op.record, default=None),
        tuple(token(op) for op in dump.ops),
    )


def _track(ops: list[Op]) -> Track:
    times: dict[int, int] = {}
    places = []
    for op in ops:
        nth = times[op.seq] = times.get(op.seq, -1) + 1
        places.append((op.seq, nth))
    return Track(
        tuple(ops),
        tuple(places),
        tuple(f"{kind(op)} {amount(op)} {types(op)}" for op in ops),
        max(op.seq for op in ops),
        max((op.seq for op in ops if not op.pending), default=-1),
        min((op for op in ops if op.pending), key=lambda op: (op.seq, op.record), default=None),
    )


def kind(op: Op) -> str:
    """The operation under one name in all versions."""
    return SAME.get(op.name, op.name)


def amount(op: Op) -> object:
    """Elements that go in and out, as far as all members must have the same."""
    if op.name in EVEN:
        return (sum(op.sizes), sum(op.given))
    if op.name in EVEN_IN:
        return sum(op.sizes)
    return op.given if op.name in EVEN_OUT else None


def types(op: Op) -> object:
    """The type of what goes in, as far as all members must have the same."""
    return op.dtypes[:1] if op.name in EVEN and op.sizes else None


def token(op: Op) -> Token:
    """What it is in the order of a rank."""
    return (op.group, kind(op), op.sizes if op.name in EVEN else ())
