"""What the Flight Recorder of one rank holds: the operations it entered, in which group, and how far each group is.

Values only. evidence/flight_format.py makes them from the dumps that PyTorch writes; flight_groups, flight_match and
flight_verdict read them.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace


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
