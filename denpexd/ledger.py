"""What a batch of input caused, made durable in one transaction together with how far was read.

Here an incident gets what only the daemon knows of it (tags, who has taken it on), and a failure that comes back soon
after its end goes on under the key it had.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from denpexd.clock import Clock
from denpexd.core.events import Closed, Opened
from denpexd.errors import StateError
from denpexd.notify.book import Book
from denpexd.notify.database import Statement
from denpexd.notify.deliver import Deliverer
from denpexd.notify.desk import Alerting, Desk
from denpexd.notify.history import History
from denpexd.notify.outbox import Store
from denpexd.notify.policy import Delivery, revision_of
from denpexd.notify.redact import redact_verdict
from denpexd.notify.rows import MAX_JOURNAL
from denpexd.watched import Change

log = logging.getLogger(__name__)

KEPT = 1000  # incidents shown
REVIEW = 5.0  # seconds between two looks at what has become due
MOST_ENDS = 2_000  # failures of which the last end is remembered

Verdict = Mapping[str, object]


@dataclass(slots=True)
class _Batch:
    """What is to be written with the next transaction, beside the positions."""

    journal: list[str] = field(default_factory=list)
    incidents: list[Verdict] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.journal or self.incidents or self.deliveries)


class Beside(Protocol):
    """Further things that are to be written together with the positions, or not at all; and who speaks."""

    def cut(self) -> Callable[[], Mapping[tuple[object, ...], Statement]] | None:
        """What is to be written with the next transaction, once; made in a worker thread. None: nothing."""
        ...

    def written(self) -> None:
        """The transaction is over: on disk or, while that cannot be written, kept until it can."""
        ...

    def voice(self, verdict: Verdict) -> Verdict | None:
        """What may be told of an incident; None: nothing, because another daemon tells of that job."""
        ...


class Ledger:
    """What is to be written, and the last verdict of each incident. `positions`: how far has been read."""

    def __init__(
        self,
        positions: Callable[[], Mapping[str, str | None]],
        store: Store,
        deliverer: Deliverer,
        alerting: Alerting,
        clock: Clock,
        beside: Beside | None = None,
    ) -> None:
        self._beside = beside
        self._positions, self._store, self._deliverer, self._clock = positions, store, deliverer, clock
        self._writing = asyncio.Lock()
        self._pending = _Batch()
        self.forgotten = 0  # lines of the journal that waited for the disk in vain
        self.incidents: dict[str, Verdict] = {str(v["key"]): v for v in reversed(store.incidents(None, KEPT))}
        self.book = Book(store.rows, clock.wall())
        self.history = History(store.rows, alerting.fix_window)
        self.desk = Desk(alerting, self.book, store.sent, deliverer.well)
        self.desk.resume(self.incidents, clock.wall())
        self._ends: dict[tuple[object, object], str] = {}  # the incident of each job and failure that ended last
        self._same: dict[str, tuple[str, int]] = {}  # key of the core -> the key it goes on under, revisions before
        self._review_at = float("-inf")
        for verdict in self.incidents.values():
            self._ended(verdict)

    # --- what happens -----------------------------------------------------------------------------------------------

    def add(self, changes: Sequence[Change], journal: Sequence[str]) -> list[Change]:
        """Note it for the next transaction; the changes as they are told."""
        pending = self._pending
        pending.journal += journal
        if (excess := len(pending.journal) - MAX_JOURNAL) > 0:
            del pending.journal[:excess]
            self.forgotten += excess
        told = [self._as_told(change) for change in changes]
        for change in told:
            pending.incidents.append(change.verdict)
            pending.deliveries += self._tell(change.verdict)
            self._remember(change.verdict)
            self._ended(change.verdict)
        return told

    def use(self, alerting: Alerting) -> None:
        """Other settings from now on."""
        self.desk.use(alerting)
        self.history.window = alerting.fix_window

    def say(self, key: str) -> None:
        """An incident has been acknowledged: whoever was told of it is told that, too."""
        verdict = self._with_more(self.incidents[key])
        self._pending.incidents.append(verdict)
        self._pending.deliveries += self._tell(verdict)
        self._remember(verdict)

    def _tell(self, verdict: Verdict) -> list[Delivery]:
        said = verdict if self._beside is None else self._beside.voice(verdict)
        return [] if said is None else self.desk.changed(said, self._clock.wall())

    def _ours(self) -> Mapping[str, Verdict]:
        """The incidents that are ours to tell of."""
        if self._beside is None:
            return self.incidents
        found = {key: self._beside.voice(verdict) for key, verdict in self.incidents.items()}
        return {key: verdict for key, verdict in found.items() if verdict is not None}

    def end(self, key: str, why: str) -> None:
        """Whoever was told of this incident is told that it is over, whoever else may tell of its job."""
        was = self.incidents[key]
        end = {"state": "closed", "event": "closed", "revision": revision_of(was) + 1}
        verdict = {**was, **end, "summary": f"{was['summary']} {why}"}
        self._pending.incidents.append(verdict)
        self._pending.deliveries += self.desk.changed(verdict, self._clock.wall())
        self._remember(verdict)

    def leave(self, key: str) -> None:
        """Another daemon tells of this incident, or it is told of under another key: no more of it here."""
        if (verdict := self.incidents.pop(key, None)) is not None:
            self._pending.incidents.append({**verdict, "state": "closed"})

    def told_key(self, key: str) -> str:
        """The key under which an incident of the core is told of."""
        return self._same.get(key, (key, 0))[0]

    def core_key(self, key: str) -> str:
        """The key under which the core knows an incident."""
        return next((own for own, (told, _) in self._same.items() if told == key), key)

    @property
    def held(self) -> int:
        """Incidents that some sink will be told of later, or together with others."""
        return self.desk.held

    def _as_told(self, change: Change) -> Change:
        verdict = change.verdict
        key = str(verdict["key"])
        if isinstance(change, Opened) and (was := self._came_back(verdict)) is not None:
            self._same[key] = (str(was["key"]), revision_of(was))
        if (same := self._same.get(key)) is not None:
            verdict = {**verdict, "key": same[0], "revision": same[1] + revision_of(verdict)}
            verdict["opened_t"] = self.incidents.get(same[0], verdict)["opened_t"]
            if isinstance(change, Closed):
                del self._same[key]
        self.history.note(verdict, self._clock.wall())
        return replace(change, verdict=self._with_more(verdict))

    def _came_back(self, verdict: Verdict) -> Verdict | None:
        """The incident that this one goes on, as the same failure of the same job has only just ended."""
        was = self.incidents.get(self._ends.get((verdict.get("job"), verdict.get("failure")), ""))
        if was is None or was["state"] != "closed" or was["key"] == verdict["key"]:
            return None
        now, ended = verdict.get("opened_t"), was.get("updated_t")
        if not (isinstance(now, int | float) and isinstance(ended, int | float)):
            return None
        return was if 0 <= now - ended < self.desk.alerting.flap else None

    def _ended(self, verdict: Verdict) -> None:
        if verdict["state"] == "closed":
            self._ends[verdict.get("job"), verdict.get("failure")] = str(verdict["key"])
            if len(self._ends) > MOST_ENDS:
                del self._ends[next(iter(self._ends))]

    def _with_more(self, verdict: Verdict) -> Verdict:
        more: dict[str, object] = {}
        if tags := self.desk.alerting.tags:
            more["tags"] = dict(tags)
        if (said := self.book.acknowledged.get(str(verdict["key"]))) is not None:
            more["acknowledged"] = said.plain()
        if (before := self.history.of(verdict, self._clock.wall())) is not None:
            more["history"] = before
        return {**verdict, **more}

    def _remember(self, verdict: Verdict) -> None:
        key = str(verdict["key"])
        clean, _ = redact_verdict(verdict)
        self.incidents.pop(key, None)
        self.incidents[key] = clean
        while len(self.incidents) > KEPT:
            del self.incidents[next(iter(self.incidents))]

    # --- what is written --------------------------------------------------------------------------------------------

    async def commit(self, *, last: bool = False) -> None:
        """One transaction: what was read, what it means and whom to tell, so that a crash loses or repeats nothing.

        `last`: nothing is kept for a later message.
        """
        async with self._writing:
            self._look_what_is_due(last=last)
            batch, self._pending = self._pending, _Batch()
            positions, more = self._positions(), self.book.take() | self.history.take()
            beside = None if self._beside is None else self._beside.cut()
            if not (positions or batch or more or beside is not None or self._store.kept["unsaved"]):
                return
            with contextlib.suppress(StateError):  # the store has said so, and goes on in memory
                await asyncio.to_thread(
                    self._store.commit,
                    positions=positions,
                    incidents=batch.incidents,
                    deliveries=batch.deliveries,
                    journal=batch.journal,
                    more=more,
                    **({"beside": beside} if beside is not None else {}),
                )
            if self._beside is not None:
                self._beside.written()
            if not self._pending.deliveries:
                self.desk.stored()  # the store knows them all
            if batch.deliveries:
                self._deliverer.wake()

    def _look_what_is_due(self, *, last: bool) -> None:
        now = self._clock.wall()
        if self._store.dropped:
            self.desk.dropped(self._store.take_dropped(), now)
        if not last and abs(now - self._review_at) < REVIEW:
            return
        self._review_at = now
        ours = self._ours()
        self._pending.deliveries += self.desk.review(ours, now)
        self._pending.deliveries += self.desk.digests(ours, now, last=last)
