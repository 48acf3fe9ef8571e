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
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import floor
from typing import Any

from denpexd.core import cadence
from denpexd.core.events import UNKNOWN_RANK, Closed, Event, Fact, Tick, Updated, Want
from denpexd.core.witnesses import NODE_GONE
from denpexd.daemon import Daemon, Loop
from denpexd.errors import BrokerError, WireError, Withdrawn
from denpexd.hub.axis import Now
from denpexd.hub.board import Board, Record, sent_of
from denpexd.hub.broker import MOST_READ, Broker, Stored
from denpexd.hub.leases import RENEW, Leases
from denpexd.hub.merge import HUB, SETTLE, Merge, Node
from denpexd.hub.wire import (
    PARTITIONS,
    Message,
    Row,
    Word,
    decode_message,
    encode_message,
    lines,
    partition,
    subject,
    word_of,
)
from denpexd.hub.wire import encode_word as encoded
from denpexd.ledger import Beside
from denpexd.notify.policy import Delivery, Sent, after
from denpexd.pipeline import Change, Outcome
from denpexd.settings import Hub

log = logging.getLogger(__name__)

SPEAK = 2.0  # seconds between two words to the nodes
AGAIN = 2.0  # after the broker has failed
MOST_KNOWN = 50_000  # events of one job that are read quietly
SLICE = 500  # of them at once
TURN = 0.05  # seconds of judging after which all else has its turn
MOST_STEPS = 60  # ticks in which any backlog is judged
EARLY = 60.0  # seconds before a node told of an incident in which the hub may know of it already
_FAULTS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)  # what wrong data causes
MISSED = 60.0  # seconds before a node's last word in which others may have begun to miss it

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
    """A partition of ours. `after`: last message read, at `read_at` by our clock; `done`: last one that is judged."""

    number: int
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

    @property
    def present(self) -> float | None:
        """The present on the axis, as of the last answer of the broker."""
        return self.now.at(self.read_at)


class HubDaemon(Daemon):
    """A Daemon. `span` gives it the broker; before that it does nothing."""

    def span(self, settings: Hub, broker: Broker, prepare: Callable[[], Awaitable[None]] | None = None) -> "HubDaemon":
        self.hub = secrets.token_hex(4)
        self._settings, self._broker, self._make_ready = settings, broker, prepare
        self.leases, self.board = Leases(broker, self.hub, self.clock), Board(broker)
        self.parts: dict[int, Part] = {}
        self._wants: list[tuple[str, Want]] = []
        self.messages: Counter[str] = Counter()
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
        await asyncio.to_thread(self.store.withdraw, lambda d: partition(str(d.verdict.get("job", ""))) == number)
        self.parts[number] = Part(number, told_done=done, done=done, records=records)
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
        if part.reader is not None:
            part.reader.cancel()
        await self._broker.forget(number)
        for name in part.jobs:
            self.pipeline.leave(name)
        for key, verdict in list(self.ledger.incidents.items()):
            if partition(str(verdict["job"])) == number:
                self.ledger.leave(key)
        self.board.leave(number)
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
        while self.parts.get(part.number) is part:  # the library may swallow that we are told to end
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
            await self._resume(part)
        return len(found)

    async def take(self, part: Part, found: Sequence[Stored]) -> None:
        """Messages of the partition, in their order; none: the broker has no newer one."""
        now = self.clock.now()
        for number, stored in enumerate(found):
            if number % 16 == 15:
                await self.clock.sleep(0)
            part.after = stored.number
            part.now.learn(stored.stamp, now)
            part.unjudged.append((stored.number, stored.stamp))
            self.messages["read"] += 1
            try:
                message = decode_message(stored.data)
            except WireError as error:
                self.messages["refused"] += 1
                log.warning("message %d is left out: %s", stored.number, error)
                continue
            if partition(message.job) != part.number:
                self.messages["refused"] += 1
                continue
            if message.node == HUB and part.live and message.rows and message.rows[0].start == self.hub:
                continue  # we know
            job = part.jobs.setdefault(message.job, Job(message.job, part))
            job.merge.take(message, stored.stamp)
            if stored.number > part.done:
                job.told += [(message.node, told) for told in message.told]
        part.read_at = now
        if part.blind:
            part.blind = False
            if (present := part.present) is not None:
                for job in part.jobs.values():
                    job.merge.blind(present)  # nodes may need a while to be heard again, too

    async def _resume(self, part: Part) -> None:
        """All that the owner before us has dealt with is read: know it, and its incidents; from now on speak."""
        done, records = part.done, part.records
        stamp = max((stamp for number, stamp in part.unjudged if number <= done), default=None)
        jobs = {record.job for record in records} | part.jobs.keys()
        for name in jobs:
            job = part.jobs.setdefault(name, Job(name, part))
            open_ = [record.verdict for record in records if record.job == name and record.is_open]
            if stamp is None and not open_:
                continue
            until = stamp if stamp is not None else (part.present or self.clock.now())
            known: deque[Event] = deque((e for batch in job.merge.due(until) for e in batch), maxlen=MOST_KNOWN)
            job.ticked = until
            await self._learn(job, list(known), open_, until)
            if self.parts.get(part.number) is not part:
                return
        while part.unjudged and part.unjudged[0][0] <= done:
            part.unjudged.popleft()
        part.live = True
        # Who was told is on the board, so these are the messages that are missing.
        await self.handle(Outcome(changes=[_change(record) for record in records]))

    async def _learn(self, job: Job, known: list[Event], open_: Sequence[Verdict], until: float) -> None:
        """What the core is to know of the time before, a little at a time: all else goes on beside it."""
        core = self.pipeline.job(job.name, min((event.t for event in known), default=until)).core
        for begin in range(0, len(known), SLICE):
            core.feed(known[begin : begin + SLICE])
            await self.clock.sleep(0)
        if (tape := self.pipeline.job(job.name).tape) is not None:
            tape.known(known)
        core.restore((), open_, until)

    def _told_alone(self, job: Job, t: float) -> Outcome:
        """Nodes have told of incidents while they heard no hub: they keep those keys.

        Looked at when the hub is about as far: what happened long before has nothing to do with them.
        """
        outcome, told, job.told = Outcome(), job.told, []
        for name, verdict in told:
            try:
                opened = job.merge.place(name, float(verdict["opened_t"]))
                key, sent = str(verdict["key"]), sent_of(verdict)
            except (KeyError, TypeError, ValueError):
                self.messages["refused"] += 1
                continue
            if opened - EARLY > t:
                job.told.append((name, verdict))
            elif key not in self.board.records and {"failure", "job", "state", "revision"} <= verdict.keys():
                outcome.merge(self._go_on(job, {**verdict, "opened_t": opened}, sent))
        return outcome

    def _go_on(self, job: Job, told: dict[str, Any], sent: Mapping[str, Sent]) -> Outcome:
        """With an incident that a node has told of, as the hub's."""
        del told["sent"]
        key, core, rules = str(told["key"]), self.pipeline.job(job.name).core, self.pipeline.catalog.rules
        ours = [r.verdict for r in self.board.records.values() if r.job == job.name and r.is_open]
        if any(_slot(verdict, rules) == _slot(told, rules) for verdict in ours):
            return Outcome()  # we have told of it, under our key: the node hears so, and ends its own
        self.store.told_by_another(key, sent)
        self.board.records[key] = Record(told, dict(sent))
        same = core.same_as(told)
        if same is None:
            core.expect(told)
            return Outcome(changes=[Updated(told)])
        was, outputs = same
        self.ledger.leave(was)
        outcome = self.pipeline.say(outputs)
        outcome.changes = outcome.changes or [Updated(v) for v in core.verdicts() if v["key"] == key]
        return outcome

    # --- judging ----------------------------------------------------------------------------------------------------

    async def _paused(self, now: float, since: float) -> None:
        """The stream has what we missed."""
        log.warning("paused for %.0f s", now - since)

    async def _judge(self, now: float) -> None:
        await self._let_go_of(self.leases.lost())
        began = self.clock.now()
        for part in list(self.parts.values()):
            present = part.present
            if not part.live or part.blind or present is None:
                continue
            for job in list(part.jobs.values()):
                try:
                    await self._catch_up(job, present - SETTLE)
                except _FAULTS:  # of one job: the others must not end with it, nor every hub after us
                    log.exception("job %s cannot be judged and begins anew", job.name)
                    self.pipeline.leave(job.name)
                    part.jobs[job.name] = Job(job.name, part)
                if self.clock.now() - began > TURN:
                    await self.clock.sleep(0)
                    began = self.clock.now()
                if self.parts.get(part.number) is not part:
                    break
            ticked = min((job.ticked for job in part.jobs.values() if job.ticked is not None), default=present)
            while part.unjudged and part.unjudged[0][1] <= ticked:
                part.done = part.unjudged.popleft()[0]
            for name in [
                name for name in part.jobs if name not in self.pipeline.jobs and not part.jobs[name].merge.waiting
            ]:
                if part.jobs[name].ticked is not None:  # quiet for a day, and forgotten
                    del part.jobs[name]
        self._judged_at = now
        await self._write_board()

    async def _catch_up(self, job: Job, until: float) -> None:
        """Judge a job up to this time, tick by tick."""
        if job.ticked is None:
            if (first := job.merge.first) is None or first > until:
                return
            job.ticked = floor(first)  # ticks come on a grid of whole seconds
            self.pipeline.job(job.name, first)
        outcome = Outcome()
        step = max(1.0, (until - job.ticked) / MOST_STEPS)
        while job.ticked + step <= until + 1e-6:
            t = job.ticked = job.ticked + step
            watched = self.pipeline.job(job.name, t)
            if job.told:
                outcome.merge(self._told_alone(job, t))
            for batch in job.merge.due(t):
                watched.heard = t
                outcome.merge(self.pipeline.take(watched, batch))
            events: list[Event] = []
            for node, facts in job.merge.fell_silent(t + SETTLE):
                log.info(
                    "job %s: node %s %s", job.name, node.name, "has left" if node.left else "is not heard any more"
                )
                events += facts
            events += [fact for node in job.merge.nodes.values() if (fact := self._gone(job, node, t)) is not None]
            outcome.merge(self.pipeline.take(watched, [*events, Tick(t)]))
        await self.handle(outcome)

    def _gone(self, job: Job, node: Node, t: float) -> Fact | None:
        """A node that is silent altogether, and missed: by the ranks elsewhere, or by training that stands for long."""
        if not node.silent or node.left or node.gone or not node.ranks:
            return None
        state = self.pipeline.job(job.name).core.job
        if state.moved_t is not None and state.moved_t > node.heard + max(2.0, 2 * (state.usual or 0.0)):
            return None
        missed = [
            s.reported.t for r, s in state.ranks.items() if s.reported is not None and r >= 0 and r not in node.ranks
        ]
        patience = max(120.0, 10 * state.usual) if state.usual is not None and state.last_phase == "train" else None
        busiest = state.busiest
        if patience is None and busiest is not None:
            patience = cadence.budget(cadence.Limits(), state.last_phase, busiest.rhythm)
        stands = patience is not None and state.silence(t) >= patience
        if not stands and not any(at >= node.heard - MISSED for at in missed):
            return None
        node.gone = True
        text = (
            f"node {node.name} has sent nothing for {t + SETTLE - node.heard:.0f} s: neither its ranks nor its denpexd"
        )
        return Fact(t, UNKNOWN_RANK, NODE_GONE, {"node": node.name}, f"hub {self.hub}", text=text)

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
        message = Message(HUB, job, over.t)
        row = Row(self.hub, 0, [[over]])
        data = encode_message(message, [(row.start, row.number, lines(row.batches))])
        try:
            await self._broker.publish(subject(job), data, f"over-{self.hub}-{job}-{over.t:.3f}")
        except BrokerError as error:
            log.warning("that a stop of job %s is over could not be written: %s", job, error)

    async def _write_board(self) -> None:
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
                await self._broker.say(word_of(number), encoded(word))
            except BrokerError as error:
                log.debug("the nodes of partition %d were not told: %s", number, error)

    # --- senders ----------------------------------------------------------------------------------------------------

    async def may_tell(self, verdict: Verdict) -> None:
        """Return when this message is ours to send, for certain; Withdrawn if it is not."""
        if verdict.get("job") == "denpexd":
            return  # a notice of this daemon about itself
        part = partition(str(verdict.get("job")))
        while part in self.parts and self.leases.has(part):
            try:
                await self.board.write(str(verdict.get("key")))
                if await self.leases.confirm(part):
                    return
                break
            except BrokerError:
                await self.clock.sleep(1.0)
        raise Withdrawn("another hub has this job")

    async def told(self, delivery: Delivery) -> None:
        """A sink has taken the message."""
        last = self.store.sent(delivery.key).get(delivery.sink)
        if last is None or last.revision != delivery.revision:  # a later one is on its way
            last = after(delivery, self.board.last(delivery.key, delivery.sink), self.clock.wall())
        self.board.sent(delivery.key, delivery.sink, last)
        await self._write_board()

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
        await self._write_board()
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


def _change(record: Record) -> Updated | Closed:
    return Updated(record.verdict) if record.is_open else Closed(record.verdict)


def _slot(verdict: Verdict, rules: Mapping[str, Any]) -> str:
    """A job has one stop at a time, and one incident of each degradation."""
    rule = rules.get(str(verdict["failure"]))
    return "stop" if rule is None or rule.stops else str(verdict["failure"])
