"""What a hub knows of a partition that it has: its jobs, how far its messages are read, and how far they are judged."""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from denpexd.errors import WireError
from denpexd.hub.axis import Now
from denpexd.hub.board import Record
from denpexd.hub.broker import Stored
from denpexd.hub.merge import HUB, Merge
from denpexd.hub.wire import decode_message, partition

log = logging.getLogger(__name__)

Verdict = Mapping[str, Any]


@dataclass(slots=True)
class Job:
    """A job of ours. `ticked`: how far it is judged, on the axis of the broker."""

    name: str
    part: "Part"
    merge: Merge = field(default_factory=Merge)
    ticked: float | None = None
    told: list[tuple[str, Verdict]] = field(default_factory=list)  # by nodes on their own, not looked at yet


@dataclass(slots=True)
class Part:
    """A partition of ours. `after`: last message read, at `read_at` by our clock; `done`: last one that is judged.

    `hub`: our name; `messages`: of all partitions, by what became of them.
    """

    number: int
    hub: str
    messages: Counter[str]
    after: int = 0
    done: int = 0
    told_done: int = 0
    read_at: float = 0.0
    now: Now = field(default_factory=Now)
    jobs: dict[str, Job] = field(default_factory=dict)
    unjudged: deque[tuple[int, float]] = field(default_factory=deque)  # (number, stamp) of messages
    records: list[Record] = field(default_factory=list)  # what the owner before us has told
    reader: asyncio.Task[None] | None = None
    blind: bool = False
    live: bool = False  # what comes now is new
    ours: bool = True  # False for ever once another hub has it, or may have it

    @property
    def present(self) -> float | None:
        """The present on the axis, as of the last answer of the broker."""
        return self.now.at(self.read_at)

    def job(self, name: str) -> Job:
        """The job, known from now on."""
        return self.jobs.setdefault(name, Job(name, self))

    def take(self, stored: Stored, now: float) -> None:
        """The next message of the stream, read at `now` by our clock."""
        self.after = stored.number
        self.now.learn(stored.stamp, now)
        self.unjudged.append((stored.number, stored.stamp))
        self.messages["read"] += 1
        try:
            message = decode_message(stored.data)
        except WireError as error:
            self.messages["refused"] += 1
            log.warning("message %d is left out: %s", stored.number, error)
            return
        if partition(message.job) != self.number:
            self.messages["refused"] += 1
            return
        if message.node == HUB and self.live and message.rows and message.rows[0].start == self.hub:
            return  # we know
        job = self.job(message.job)
        job.merge.take(message, stored.stamp)
        if stored.number > self.done:
            job.told += [(message.node, told) for told in message.told]

    def heard(self, now: float) -> None:
        """The broker has answered, and all that it gave is taken."""
        self.read_at = now
        if self.blind:
            self.blind = False
            if (present := self.present) is not None:
                for job in self.jobs.values():
                    job.merge.blind(present)  # nodes may need a while to be heard again, too

    def judged(self, until: float) -> None:
        """All messages that were stamped until then are done with."""
        while self.unjudged and self.unjudged[0][1] <= until:
            self.done = self.unjudged.popleft()[0]
