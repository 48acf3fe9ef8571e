"""The nodes of one job as one stream of batches, in the order of one axis, and which of the nodes are heard. Pure.

A batch waits for SETTLE seconds, so that what other nodes saw before it has come too: what a rule says of before and
after must not depend on who was sent first. What is counted or numbered a node is told once a job.
"""

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from denpexd.core.events import UNKNOWN_RANK, Activity, Attempt, Blind, Event, Exit, Fact, Hit, Joined, Raised
from denpexd.core.witnesses import NODE_HEARD, NODE_SILENT
from denpexd.hub.axis import Axis
from denpexd.hub.wire import Message, Row

SETTLE = 4.0  # a node sends what is remarkable within two seconds, and the rest within three
SILENT = 35.0  # three heartbeats and a little
LEFT_OUT = 600.0  # seconds after which a node that has left is forgotten
HUB = ""  # instead of a node: what the hub before this one has concluded, on the axis already
MOST_NODES = 20_000
MOST_WAITING = 200_000  # batches of one job
_STARTS = 4  # runs of a node's daemon of which is known what was read
_LINES = (Hit, Raised, Activity)


@dataclass(slots=True)
class Node:
    """One node of the job. `heard`: on the axis, when its last message came."""

    name: str
    heard: float
    axis: Axis = field(default_factory=Axis)
    ranks: set[int] = field(default_factory=set)
    known: set[int] = field(default_factory=set)  # ranks of which the core knows that they are here
    read: dict[str, int] = field(default_factory=dict)  # by run of its daemon, the last row
    attempts: int = 0
    launches: bool = False  # has a launcher of its own; srun and mpirun have one for all nodes
    ended: bool = False  # and that has ended
    silent: bool = False
    left: bool = False
    gone: bool = False  # that was told


class Merge:
    """All nodes of one job. `lost`: rows that never came; `repeated`: rows that came again."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.lost = self.repeated = self.dropped = 0
        self._waiting: list[tuple[float, int, Sequence[Event]]] = []
        self._number = 0
        self._attempts = self._world_size = 0
        self._recent = False

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def take(self, message: Message, stamp: float) -> None:
        """What a node sent; `stamp`: when the broker took it."""
        if message.node == HUB:
            for batch in (batch for row in message.rows for batch in row.batches):
                self._wait(max(event.t for event in batch), batch)
            return
        node = self.nodes.get(message.node)
        if node is None:
            if len(self.nodes) >= MOST_NODES:
                self.dropped += len(message.rows)
                return
            node = self.nodes[message.node] = Node(message.node, stamp)
        if message.rows and message.rows[-1].start not in node.read:
            node.axis = Axis()  # another run of its daemon: the clock may have been set in between
        node.axis.learn(stamp, message.sent)
        node.heard, node.left, node.gone = max(node.heard, stamp), message.leaving, False
        node.ranks |= set(message.ranks)
        head: list[Event] = []
        if message.world_size and message.world_size > self._world_size:
            self._world_size = message.world_size
            head.append(Joined(stamp, UNKNOWN_RANK, world_size=message.world_size))
        if node.silent and not message.leaving:
            node.silent = False
            head += [Fact(stamp, rank, NODE_HEARD) for rank in sorted(node.ranks)]
        head += self._new_ranks(node, message.ranks, stamp)
        if head:
            self._wait(stamp, head)
        for row in message.rows:
            self._row(node, row, stamp)

    def _row(self, node: Node, row: Row, stamp: float) -> None:
        last = node.read.get(row.start)
        if last is not None and row.number <= last:
            self.repeated += 1
            return
        if last is not None and row.number > last + 1:
            self.lost += row.number - last - 1
            self._wait(stamp, [Blind(stamp, stamp)])  # silence in between proves nothing
        node.read[row.start] = row.number
        while len(node.read) > _STARTS:
            del node.read[next(iter(node.read))]
        for batch in row.batches:
            if told := [event for one in batch for event in self._told(node, one)]:
                self._wait(max(event.t for event in told), told)

    def _wait(self, t: float, events: Sequence[Event]) -> None:
        self._number += 1
        if len(self._waiting) >= MOST_WAITING:
            self.dropped += 1
            return
        heapq.heappush(self._waiting, (t, self._number, events))

    def place(self, node: str, t: float) -> float:
        """A time of the node's clock on the axis."""
        known = self.nodes.get(node)
        return t if known is None else known.axis.place(t)

    def blind(self, t: float) -> None:
        """Nobody could be heard until `t`."""
        self._wait(t, [Blind(t, t)])
        for node in self.nodes.values():
            node.heard = max(node.heard, t)

    def due(self, t: float) -> Iterator[Sequence[Event]]:
        """The batches until `t`, each to be fed on its own."""
        while self._waiting and self._waiting[0][0] <= t:
            yield heapq.heappop(self._waiting)[2]

    @property
    def first(self) -> float | None:
        """Time of the batch that is next."""
        return self._waiting[0][0] if self._waiting else None

    # --- events of a node as those of the job -----------------------------------------------------------------------

    def _new_ranks(self, node: Node, ranks: Sequence[int], t: float) -> list[Event]:
        new = [rank for rank in ranks if rank >= 0 and rank not in node.known]
        node.known |= set(new)
        for other in self.nodes.values():  # a rank may come back elsewhere
            if other is not node:
                other.ranks -= set(new)
                other.known -= set(new)
        return [Joined(t, rank, node=node.name) for rank in new]

    def _told(self, node: Node, event: Event) -> Iterator[Event]:
        t = node.axis.place(event.t)
        match event:
            case Attempt():
                node.attempts += 1
                node.ended = False
                if node.attempts > self._attempts:  # every node tells of the same one
                    self._attempts = node.attempts
                    yield replace(event, t=t)
                return
            case Exit(rank=rank) if rank == UNKNOWN_RANK:
                yield from self._launcher_ended(node, event, t)
                return
            case Fact(name="recent"):
                self._recent = self._recent or event.fields.get("recent") != "false"
                yield replace(event, t=t, fields={"recent": str(self._recent).lower()})
                return
            case Blind():
                yield Blind(t, node.axis.place(event.since))
                return
            case Joined(rank=rank) if rank >= 0:
                node.known.add(rank)
                node.ranks.add(rank)
                yield replace(event, t=t, node=event.node or node.name)
                return
        node.launches = node.launches or (isinstance(event, _LINES) and event.rank == UNKNOWN_RANK)
        source: str = getattr(event, "source", "")
        if source and (isinstance(event, _LINES) or source.startswith("/")):
            yield replace(event, t=t, source=f"{node.name}:{source}")  # type: ignore[arg-type]  # all these have one
        else:
            yield replace(event, t=t)

    def _launcher_ended(self, node: Node, event: Exit, t: float) -> Iterator[Event]:
        """One a node: with the last of them the job has ended, with each the ranks of its node."""
        node.ended = True
        node.launches = True
        if all(each.ended for each in self.nodes.values() if each.launches):
            yield replace(event, t=t)
            return
        for rank in sorted(node.ranks):
            yield Exit(t, rank, None, event.source)

    # --- who is heard -----------------------------------------------------------------------------------------------

    def fell_silent(self, t: float) -> Iterator[tuple[Node, list[Event]]]:
        """Nodes of which nothing comes any more, from now on, and what that means for their ranks."""
        for name, node in list(self.nodes.items()):
            if not node.silent and (t - node.heard > SILENT or node.left):
                node.silent = True
                yield node, [Fact(t, rank, NODE_SILENT) for rank in sorted(node.ranks)]
            elif node.left and t - node.heard > LEFT_OUT:
                del self.nodes[name]
