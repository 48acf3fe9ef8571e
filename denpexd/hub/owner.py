"""The hub's side: a daemon without files, whose events come from the nodes of the jobs in the partitions it has.

Theory of operation
- A partition's messages are read in the order of the stream; `Merge` gives those of each job in the order of one axis.
- Time is the broker's. It moves on only while the broker answers, so an outage is no silence of any job.
- What follows from a message is on the board before the message counts as done. The next owner reads on from there,
  loudly, after it has read what came before, quietly. So nothing is lost, and no incident gets a second key.
- Nobody is told anything before the broker has confirmed that the partition is still ours.
"""

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from denpexd.core.events import Closed, Fact, Want
from denpexd.daemon import Daemon, Loop
from denpexd.errors import BrokerError
from denpexd.hub.board import Board
from denpexd.hub.broker import MOST_READ, Broker, Stored
from denpexd.hub.judge import Judge
from denpexd.hub.leases import RENEW, Leases
from denpexd.hub.merge import HUB
from denpexd.hub.part import Part
from denpexd.hub.takeover import Takeover
from denpexd.hub.wire import PARTITIONS, Message, Word, encode_message, encode_word, lines, partition, subject, word_of
from denpexd.ledger import Beside
from denpexd.settings_hub import Hub
from denpexd.watched import Change, Outcome

log = logging.getLogger(__name__)

SPEAK = 2.0  # seconds between two words to the nodes
AGAIN = 2.0  # after the broker has failed

Verdict = Mapping[str, Any]


class HubDaemon(Daemon):
    """A Daemon. `span` gives it the broker; before that it does nothing."""

    def span(self, settings: Hub, broker: Broker, prepare: Callable[[], Awaitable[None]] | None = None) -> "HubDaemon":
        self.hub = secrets.token_hex(4)
        self._settings, self._broker, self._make_ready = settings, broker, prepare
        self.leases, self.board = Leases(broker, self.hub, self.clock), Board(broker)
        self.parts: dict[int, Part] = {}
        self._wants: list[tuple[str, Want]] = []
        self.messages: Counter[str] = Counter()
        self._takeover = Takeover(self.pipeline, self.store, self.ledger, self.board, self.clock)
        self._judging = Judge(self.pipeline, self._takeover, self.clock, self.handle)
        self._is_ready = False
        self._judged_at = self.clock.now()
        return self

    def loops(self, alive: Callable[[], object]) -> dict[str, Loop]:
        """What a hub does beside what every daemon does."""
        return {**super().loops(alive), "own": self.own_forever, "speak": self.speak_forever}

    # --- partitions -------------------------------------------------------------------------------------------------

    async def own_forever(self) -> None:
        """Hold our share of the partitions; make stream and buckets first."""
        prepared = False
        while True:
            try:
                if not prepared and self._make_ready is not None:
                    await self._make_ready()
                prepared = True
                await self.own()
                self.keep_reading()
            except BrokerError as error:
                log.warning("%s; partitions are given up when their leases end", error)
            await self._let_go_of(self.leases.lost())
            await self.clock.sleep(RENEW)

    async def own(self) -> None:
        """Once: renew, take what is free, release what is too much, say how far we are."""
        await self.leases.renew()
        await self._let_go_of(self.leases.lost())
        free, excess = await self.leases.share()
        for part in excess:
            await self._let_go(part)
            await self.leases.release(part)
        taken = [part for part in free if await self._begin(part)]
        if taken or excess:
            log.info("%d of %d partitions are ours, shared by %d hubs", len(self.parts), PARTITIONS, self.leases.hubs)
        for state in list(self.parts.values()):
            await self._tell_done(state)
        self._is_ready = True

    async def _begin(self, number: int) -> bool:
        if not await self.leases.take(number):
            return False
        records, done = await self.board.read(number)
        for record in records:
            self.store.told_by_another(record.key, record.sent, wholly=True)
        await self._withdraw(number)
        self.parts[number] = Part(number, self.hub, self.messages, told_done=done, done=done, records=records)
        return True

    async def _let_go_of(self, parts: Iterable[int]) -> None:
        gone = list(parts)
        for part in gone:
            await self._let_go(part)
        if gone and not self.stopping.is_set():
            log.warning("partitions %s are not ours any more", ", ".join(map(str, gone)))

    async def _let_go(self, number: int) -> None:
        """Another hub has it, or will: forget its jobs, tell nobody of them."""
        part = self.parts.pop(number, None)
        if part is None:
            return
        part.ours = False
        if part.reader is not None:
            part.reader.cancel()
        await self._broker.forget(number)
        for name in part.jobs:
            self.pipeline.leave(name)
        for key, verdict in list(self.ledger.incidents.items()):
            if partition(str(verdict["job"])) == number:
                self.ledger.leave(key)
        self.board.leave(number)
        await self._withdraw(number)

    async def _withdraw(self, number: int) -> None:
        await asyncio.to_thread(self.store.withdraw, lambda d: partition(str(d.verdict.get("job", ""))) == number)

    def keep_reading(self) -> None:
        """Each partition has a reader; one that failed over a message goes on behind it."""
        for part in self.parts.values():
            if (was := part.reader) is not None and was.done() and not was.cancelled():
                log.error("partition %d: reading failed and begins again", part.number, exc_info=was.exception())
            if was is None or was.done():
                part.reader = asyncio.create_task(self._read_forever(part), name=f"read-{part.number}")

    # --- reading ----------------------------------------------------------------------------------------------------

    async def _read_forever(self, part: Part) -> None:
        while part.ours:  # the library may swallow that we are told to end
            if await self.read(part, 1.0):
                await self.clock.sleep(0)
            elif part.blind:
                await self.clock.sleep(AGAIN)

    async def read(self, part: Part, wait: float) -> int:
        """Once: how many messages there were within so many seconds; none also while the broker does not answer."""
        since = self.clock.wall() - self._settings.rebuild
        try:
            found = await self._broker.read(part.number, part.after, since, wait)
        except BrokerError as error:
            if not (part.blind or self.stopping.is_set()):
                log.warning("partition %d cannot be read: %s", part.number, error)
            part.blind = True
            return 0
        await self.take(part, found)
        if not part.live and len(found) < MOST_READ:  # caught up
            await self.handle(await self._takeover.resume(part))
        return len(found)

    async def take(self, part: Part, found: Sequence[Stored]) -> None:
        """Messages of the partition, in their order; none: the broker has no newer one."""
        now = self.clock.now()
        for number, stored in enumerate(found):
            if number % 16 == 15:
                await self.clock.sleep(0)
            part.take(stored, now)
        part.heard(now)

    # --- judging ----------------------------------------------------------------------------------------------------

    async def _paused(self, now: float, since: float) -> None:
        """The stream has what we missed."""
        log.warning("paused for %.0f s", now - since)

    async def _judge(self, now: float) -> None:
        await self._let_go_of(self.leases.lost())
        await self._judging.judge(list(self.parts.values()))
        self._judged_at = now
        await self.write_board()

    async def handle(self, outcome: Outcome) -> None:
        """As a daemon; who reads the stream later must know which stops are over."""
        for change in outcome.changes:
            if isinstance(change, Closed) and change.over is not None:
                await self._concluded(str(change.verdict["job"]), change.over)
        await super().handle(outcome)

    def _noted(self, changes: Sequence[Change]) -> None:
        """Who takes over must know what we told: before anybody is told, this is written."""
        super()._noted(changes)
        for change in changes:
            self.board.note(change.verdict)

    async def _concluded(self, job: str, over: Fact) -> None:
        data = encode_message(Message(HUB, job, over.t), [(self.hub, 0, lines([[over]]))])
        try:
            await self._broker.publish(subject(job), data, f"over-{self.hub}-{job}-{over.t:.3f}")
        except BrokerError as error:
            log.warning("that a stop of job %s is over could not be written: %s", job, error)

    async def write_board(self) -> None:
        """Bring the board up to date, as far as the broker lets us."""
        try:
            await self.board.write()
        except BrokerError as error:
            log.warning("the board of incidents could not be written: %s", error)

    async def _tell_done(self, part: Part) -> None:
        if part.live and part.done > part.told_done and not self.board.unwritten:
            part.told_done = part.done
            await self.board.done(part.number, part.done)

    # --- nodes ------------------------------------------------------------------------------------------------------

    async def look(self, job: str, want: Want) -> None:
        """The node that has the ranks looks; its answer comes as events."""
        self._wants.append((job, want))
        await self.speak({partition(job)})

    async def speak_forever(self) -> None:
        while True:
            await self.speak(set(self.parts))
            await self.clock.sleep(SPEAK)

    async def speak(self, parts: set[int]) -> None:
        """Tell the nodes that we are there, what we tell of, and what we want."""
        wants, self._wants = self._wants, []
        for number in parts:
            if number not in self.parts or not self.leases.has(number):
                continue
            told = [r.brief() for r in self.board.records.values() if r.is_open and partition(r.job) == number]
            mine = [(job, want) for job, want in wants if partition(job) == number]
            word = Word(self.hub, self.leases.epochs.get(number, 0), told, mine)
            try:
                await self._broker.say(word_of(number), encode_word(word))
            except BrokerError as error:
                log.debug("the nodes of partition %d were not told: %s", number, error)

    # --- ledger.Beside ----------------------------------------------------------------------------------------------

    def _beside(self) -> Beside:
        return self

    def voice(self, verdict: Verdict) -> Verdict | None:
        """What is another hub's is not ours to tell; so are notices of this daemon about itself."""
        return verdict if partition(str(verdict["job"])) in self.parts else None

    def cut(self) -> None:
        return None

    def written(self) -> None:
        pass

    # --- lifecycle --------------------------------------------------------------------------------------------------

    async def finish(self) -> None:
        """Leave the partitions to others; the jobs go on."""
        await self.deliverer.drain(2.0)
        await self.write_board()
        for part in list(self.parts.values()):
            try:
                await self._tell_done(part)
            except BrokerError:
                log.debug("partition %d: the next owner judges some seconds again", part.number)
        numbers = list(self.parts)
        await self.leases.leave()
        for number in numbers:
            await self._let_go(number)
        await self.ledger.commit(last=True)
        if self.keeper is not None:
            await self.keeper.finish()
        await self._broker.close()

    def healthy(self) -> tuple[bool, str]:
        """Whether jobs are judged; that the broker does not answer is nothing that a restart would mend."""
        quiet = self.clock.now() - self._judged_at
        return (True, "ok") if quiet < 60.0 else (False, f"judging has stood still for {quiet:.0f} s")

    def ready(self) -> tuple[bool, str]:
        """Whether the broker has answered: partitions may all be with other hubs."""
        return (True, "ok") if self._is_ready else (False, "the broker has not answered yet")

    def counts(self) -> Mapping[str, Mapping[str, float]]:
        merges = [job.merge for part in self.parts.values() for job in part.jobs.values()]
        nodes: dict[str, set[str]] = {"heard": set(), "silent": set(), "left": set()}
        for merge in merges:
            for node in merge.nodes.values():
                nodes["left" if node.left else "silent" if node.silent else "heard"].add(node.name)
        return {
            "messages": {
                **{outcome: self.messages[outcome] for outcome in ("read", "refused")},
                "repeated": sum(merge.repeated for merge in merges),
                "lost": sum(merge.lost for merge in merges),
                "dropped": sum(merge.dropped for merge in merges),
            },
            "waiting": {"batches": sum(merge.waiting for merge in merges)},
            "state": {"partitions": len(self.parts), "hubs": self.leases.hubs},
            "nodes": {state: len(names) for state, names in nodes.items()},
        }
