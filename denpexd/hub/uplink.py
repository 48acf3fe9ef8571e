"""The node's side: forwards what its cores were fed, does what the hub asks, and speaks for itself when there is none.

The hub is there while its word for the job's partition is heard. After `alone_after` without it the node tells of its
incidents itself, and says what it could not know; when a hub is back, both go on under one key.
"""

import logging
import secrets
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from denpexd.clock import Clock, iso
from denpexd.core.events import UNKNOWN_RANK, Activity, Event, Exit, Frames, Hit, Joined, Tick, Updated
from denpexd.core.flight import Dump
from denpexd.daemon import Daemon
from denpexd.errors import BrokerError, WireError
from denpexd.hub.board import sent_of
from denpexd.hub.broker import Broker
from denpexd.hub.spool import Spool, Waiting
from denpexd.hub.wire import MOST_BYTES, Message, Word, decode_word, encode_message, partition, subject, word_of
from denpexd.notify.database import Statement
from denpexd.notify.outbox import Store
from denpexd.settings_hub import Hub
from denpexd.watched import Outcome

log = logging.getLogger(__name__)

HOLD = 2.0  # seconds that what nobody is judged by may wait for more of the kind
BEAT = 10.0  # a word from the node at least that often
_LOOK = 0.25
_AGAIN = 2.0  # seconds after the broker has failed
_EASY = ("progress", "phase", "config", "metric", "device")  # roles of lines that are no hurry
_ASKED_ALREADY = 2.0  # seconds in which a hub's wish is the one that we had ourselves

Verdict = Mapping[str, Any]


class NodeUplink:
    """Implements daemon.Uplink."""

    def __init__(self, settings: Hub, node: str, broker: Broker, store: Store, clock: Clock) -> None:
        self._settings, self._node, self._broker = settings, node, broker
        self._store, self._clock = store, clock
        self._spool = Spool(store, secrets.token_hex(6), settings.spool)
        self._began = clock.now()
        self._words: dict[int, tuple[float, Word]] = {}  # by partition: when, and what
        self._listening: set[int] = set()
        self._alone: dict[str, float] = {}  # jobs that we tell of, and since when no hub does, in Unix seconds
        self._ranks: dict[str, set[int]] = {}
        self._said: dict[str, float] = {}  # by job, when it was last spoken of
        self._asked: dict[tuple[str, str], float] = {}
        self._heard: list[Word] = []
        self._failing = False
        self._messages: Counter[str] = Counter({"sent": 0, "failed": 0})
        self._daemon: Daemon | None = None

    def open(self) -> "NodeUplink":
        """Take over what waits in the state (disk)."""
        self._spool.open(self._clock.now())
        return self

    def bind(self, daemon: Daemon) -> None:
        self._daemon = daemon

    @property
    def daemon(self) -> Daemon:
        assert self._daemon is not None, "bind comes first"
        return self._daemon

    # --- forwarding -------------------------------------------------------------------------------------------------

    def forward(self, outcome: Outcome) -> None:
        for job, told in outcome.told:
            events = [event for event in told if not isinstance(event, Tick)]
            if events:
                self._ranks.setdefault(job, set()).update(r for e in events if (r := _lives_here(e)) >= 0)
                self._spool.add(job, events, urgent=any(self._hurries(event) for event in events))
        for job, want in outcome.wants:
            self._asked[job, want.kind] = self._clock.now()

    def _hurries(self, event: Event) -> bool:
        if isinstance(event, Activity | Joined):
            return False
        signal = self.daemon.pipeline.catalog.signals.get(event.signal) if isinstance(event, Hit) else None
        return signal is None or signal.role not in _EASY or "metric" in getattr(event, "fields", {})

    def cut(self) -> Callable[[], Mapping[tuple[object, ...], Statement]] | None:
        return self._spool.cut(self._clock.now())

    def written(self) -> None:
        self._spool.written()

    async def forever(self) -> None:
        """Forward, listen, and see who speaks."""
        while True:
            await self._clock.sleep(_LOOK if not self._failing else _AGAIN)
            await self.turn()

    async def turn(self) -> None:
        """Once: what the hub has said, who speaks, what is due to be sent."""
        heard, self._heard = self._heard, []
        for word in heard:
            await self._take(word)
        await self._see_who_speaks()
        try:
            await self._listen()
            await self._send()
        except BrokerError as error:
            self._messages["failed"] += 1
            if not self._failing:
                log.warning("%s; what is to be forwarded waits in the state", error)
            self._failing = True
        else:
            if self._failing:
                log.info("the broker is there again")
            self._failing = False

    async def _send(self, *, leaving: bool = False) -> None:
        now = self._clock.now()
        rows: dict[str, list[Waiting]] = {}
        for row in self._spool.waiting:
            rows.setdefault(row.job, []).append(row)
        jobs = self.daemon.pipeline.jobs
        for job in [*rows, *(name for name in jobs if name not in rows and name in self._ranks)]:
            waiting = rows.get(job, [])
            due = leaving or any(row.urgent or now - row.since >= HOLD for row in waiting)
            if not due and now - self._said.get(job, float("-inf")) < BEAT:
                continue
            while True:
                some = _some(waiting)
                waiting = waiting[len(some) :]
                await self._publish(job, some, leaving=leaving and not waiting)
                if not waiting:
                    break
        for job in [job for job in self._said if job not in jobs]:
            del self._said[job]
            self._ranks.pop(job, None)
        self._asked = {key: t for key, t in self._asked.items() if key[0] in jobs}

    async def _publish(self, job: str, rows: list[Waiting], *, leaving: bool) -> None:
        known = self.daemon.pipeline.jobs.get(job)
        size = None if known is None else known.core.job.world_size
        sent = self._clock.now()
        ranks = tuple(sorted(self._ranks.get(job, ())))
        message = Message(self._node, job, sent, ranks, size, (), self._told_alone(job), leaving)
        data = encode_message(message, [(row.start, row.number, row.lines) for row in rows])
        name = f"{rows[0].start}-{rows[0].id}-{rows[-1].id}" if rows else f"beat-{sent:.3f}"
        if len(data) > MOST_BYTES:
            log.warning("job %s: a message of %d bytes is too long for the broker and left out", job, len(data))
            self._spool.dropped += len(rows)
        else:
            await self._broker.publish(subject(job), data, f"{self._node}-{partition(job)}-{name}")
            self._messages["sent"] += 1
        self._said[job] = sent
        self._spool.sent(rows)

    def _told_alone(self, job: str) -> tuple[Verdict, ...]:
        """Open incidents of which we have told somebody, and the hub does not know yet."""
        word = self._words.get(partition(job))
        known = {told["key"] for told in word[1].told} if word is not None else set()
        found = []
        for key, verdict in self.daemon.ledger.incidents.items():
            is_news = verdict["job"] == job and verdict["state"] == "open" and key not in known
            if is_news and (sent := self._store.sent(key)):
                found.append({**verdict, "sent": {sink: asdict(last) for sink, last in sent.items()}})
        return tuple(found)

    # --- the hub ----------------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        for part in {partition(job) for job in self.daemon.pipeline.jobs} - self._listening:
            await self._broker.listen(word_of(part), partial(self._hear, part))
            self._listening.add(part)

    def _hear(self, part: int, data: bytes) -> None:
        try:
            word = decode_word(data)
        except WireError as error:
            log.warning("%s", error)
            return
        known = self._words.get(part)
        if known is None or word.epoch >= known[1].epoch or self._clock.now() - known[0] >= self._settings.alone_after:
            self._words[part] = (self._clock.now(), word)
            self._heard.append(word)

    async def _take(self, word: Word) -> None:
        for told in word.told:
            job = self.daemon.pipeline.jobs.get(str(told.get("job")))
            if job is not None and {"key", "failure", "opened_t"} <= told.keys():
                await self._same(told)
        for name, want in word.wants:
            last = self._asked.get((name, want.kind), float("-inf"))
            if name in self.daemon.pipeline.jobs and self._clock.now() - last >= _ASKED_ALREADY:
                await self.daemon.handle(Outcome(wants=[(name, replace(want, t=self._clock.now()))]))

    async def _same(self, told: Verdict) -> None:
        """The hub tells of an incident: if it is open here too, it is the same."""
        daemon, key = self.daemon, str(told["key"])
        self._store.told_by_another(key, sent_of(told))
        core = daemon.pipeline.job(str(told["job"])).core
        same = core.same_as(told)
        if same is None or same[0] == key:
            return
        was = daemon.ledger.told_key(same[0])
        if was in daemon.ledger.incidents and self._store.sent(was):
            daemon.ledger.end(was, f"It is told further as {key}.")
        daemon.ledger.leave(was)
        await daemon.handle(Outcome(changes=[Updated(v) for v in core.verdicts() if v["key"] == key]))

    # --- who speaks -------------------------------------------------------------------------------------------------

    def _unheard(self, job: str) -> float:
        """Seconds since a hub spoke of this job."""
        word = self._words.get(partition(job))
        return self._clock.now() - (self._began if word is None else word[0])

    async def _see_who_speaks(self) -> None:
        for name, job in list(self.daemon.pipeline.jobs.items()):
            alone = self._unheard(name) >= self._settings.alone_after
            if alone == (name in self._alone):
                continue
            if not alone:
                del self._alone[name]
                log.info("job %s: a hub tells of it again", name)
                continue
            self._alone[name] = self._clock.wall() - self._unheard(name)
            log.warning("job %s: no hub for %.0f s, this node tells of what it sees", name, self._unheard(name))
            if (word := self._words.get(partition(name))) is not None:
                await self._take(Word(word[1].hub, word[1].epoch, word[1].told))
            await self.daemon.handle(Outcome(changes=[Updated(v) for v in job.core.verdicts()]))
        for name in self._alone.keys() - self.daemon.pipeline.jobs.keys():
            del self._alone[name]

    def voice(self, verdict: Verdict) -> Verdict | None:
        job = str(verdict["job"])
        if job not in self._alone:
            return None
        where = ", ".join(self._settings.url)
        gap = {
            "fact": f"what other nodes saw: only {self._node} was heard, no hub since {iso(self._alone[job])}",
            "how": f"see that denpexd hub runs and that it and the nodes reach {where}",
        }
        missing = verdict.get("missing")
        return {**verdict, "missing": [*(missing if isinstance(missing, list) else ()), gap]}

    async def leave(self) -> None:
        """This daemon ends in order: what waits is sent, and that no more will come."""
        try:
            await self._send(leaving=True)
            await self.daemon.ledger.commit(last=True)
        except BrokerError as error:
            log.warning("%s; what is to be forwarded waits in the state", error)
        finally:
            await self._broker.close()

    def counts(self) -> Mapping[str, Mapping[str, float]]:
        spool = self._spool
        return {
            "messages": {**self._messages, "dropped": spool.dropped},
            "waiting": {"rows": len(spool.waiting), "bytes": spool.bytes},
            "state": {"alone": len(self._alone)},
            "nodes": {},
        }


def _lives_here(event: Event) -> int:
    """The rank whose log or process the event shows to be here, else UNKNOWN_RANK."""
    match event:
        case Activity() | Frames() | Dump():
            return event.rank
        case Joined() if event.pid is not None:
            return event.rank
        case Exit(source="process"):
            return event.rank
    return UNKNOWN_RANK


def _some(rows: list[Waiting]) -> list[Waiting]:
    """The first of the rows, as many as one message carries; their text shrinks to a fifth or less."""
    size, some = 0, list[Waiting]()
    for row in rows:
        size += row.bytes
        if some and size > 2 * MOST_BYTES:
            break
        some.append(row)
    return some
