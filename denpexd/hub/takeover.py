"""How an incident goes on under its key: from the hub that had the partition before, and from nodes that told alone.

A new owner reads quietly what the former one had judged, so that its cores know the jobs, and takes over what the board
says was told. What it then does again is what was missing.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from denpexd.clock import Clock
from denpexd.core.events import Closed, Event, Updated
from denpexd.hub.board import Board, Record, sent_of
from denpexd.hub.part import Job, Part, Verdict
from denpexd.ledger import Ledger
from denpexd.notify.outbox import Store
from denpexd.notify.policy import Sent
from denpexd.pipeline import Pipeline
from denpexd.watched import Outcome

MOST_KNOWN = 50_000  # events of one job that are read quietly
SLICE = 500  # of them at once
EARLY = 60.0  # seconds before a node told of an incident in which the hub may know of it already


class Takeover:
    """Of one hub, for all its partitions."""

    def __init__(self, pipeline: Pipeline, store: Store, ledger: Ledger, board: Board, clock: Clock) -> None:
        self._pipeline, self._store, self._ledger = pipeline, store, ledger
        self._board, self._clock = board, clock

    async def resume(self, part: Part) -> Outcome:
        """All that the owner before us has dealt with is read: know it, and its incidents; from now on speak."""
        stamp = max((stamp for number, stamp in part.unjudged if number <= part.done), default=None)
        for name in {record.job for record in part.records} | part.jobs.keys():
            job = part.job(name)
            open_ = [record.verdict for record in part.records if record.job == name and record.is_open]
            if stamp is None and not open_:
                continue
            until = stamp if stamp is not None else (part.present or self._clock.now())
            known: deque[Event] = deque((e for batch in job.merge.due(until) for e in batch), maxlen=MOST_KNOWN)
            job.ticked = until
            await self._learn(job, list(known), open_, until)
            if not part.ours:
                return Outcome()
        while part.unjudged and part.unjudged[0][0] <= part.done:
            part.unjudged.popleft()
        part.live = True
        # Who was told is on the board, so these are the messages that are missing.
        return Outcome(changes=[_change(record) for record in part.records])

    async def _learn(self, job: Job, known: list[Event], open_: Sequence[Verdict], until: float) -> None:
        """What the core is to know of the time before, a little at a time: all else goes on beside it."""
        core = self._pipeline.job(job.name, min((event.t for event in known), default=until)).core
        for begin in range(0, len(known), SLICE):
            core.feed(known[begin : begin + SLICE])
            await self._clock.sleep(0)
        if (tape := self._pipeline.job(job.name).tape) is not None:
            tape.known(known)
        core.restore((), open_, until)

    def told_alone(self, job: Job, t: float) -> Outcome:
        """Nodes have told of incidents while they heard no hub: they keep those keys.

        Looked at when the hub is about as far: what happened long before has nothing to do with them.
        """
        outcome, told, job.told = Outcome(), job.told, []
        for name, verdict in told:
            try:
                opened = job.merge.place(name, float(verdict["opened_t"]))
                key, sent = str(verdict["key"]), sent_of(verdict)
            except (KeyError, TypeError, ValueError):
                job.part.messages["refused"] += 1
                continue
            if opened - EARLY > t:
                job.told.append((name, verdict))
            elif key not in self._board.records and {"failure", "job", "state", "revision"} <= verdict.keys():
                outcome.merge(self._go_on(job, {**verdict, "opened_t": opened}, sent))
        return outcome

    def _go_on(self, job: Job, told: dict[str, Any], sent: Mapping[str, Sent]) -> Outcome:
        """With an incident that a node has told of, as the hub's."""
        del told["sent"]
        key, core, rules = str(told["key"]), self._pipeline.job(job.name).core, self._pipeline.catalog.rules
        ours = [r.verdict for r in self._board.records.values() if r.job == job.name and r.is_open]
        if any(_slot(verdict, rules) == _slot(told, rules) for verdict in ours):
            return Outcome()  # we have told of it, under our key: the node hears so, and ends its own
        self._store.told_by_another(key, sent)
        self._board.records[key] = Record(told, dict(sent))
        same = core.same_as(told)
        if same is None:
            core.expect(told)
            return Outcome(changes=[Updated(told)])
        was, outputs = same
        self._ledger.leave(was)
        outcome = self._pipeline.say(job.name, outputs)
        outcome.changes = outcome.changes or [Updated(v) for v in core.verdicts() if v["key"] == key]
        return outcome


def _change(record: Record) -> Updated | Closed:
    return Updated(record.verdict) if record.is_open else Closed(record.verdict)


def _slot(verdict: Verdict, rules: Mapping[str, Any]) -> str:
    """A job has one stop at a time, and one incident of each degradation."""
    rule = rules.get(str(verdict["failure"]))
    return "stop" if rule is None or rule.stops else str(verdict["failure"])
