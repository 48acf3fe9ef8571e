"""What people said about alerts and what waits to be told: silences, acknowledgements, and what is held for whom.

In memory it is asked by the policy; each change also leaves a statement for the next transaction, so that it survives a
restart. Every table is bounded: what was used least recently goes first. Times are Unix seconds.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from denpexd.notify.database import Statement
from denpexd.notify.match import Matcher, Verdict
from denpexd.notify.policy import Decision
from denpexd.notify.rows import MAX_TOLD, YEAR

MOST_SILENCES = 500  # that have not expired
_KEPT_SILENCES = 1_000
TOGETHER = "digest"  # the reason of what a digest has told of

Rows = Callable[[str], list[tuple[Any, ...]]]


@dataclass(frozen=True, slots=True)
class Silence:
    """Nothing but ends is told of incidents that match, from `starts` to `ends`."""

    id: str
    match: Matcher
    starts: float
    ends: float
    created: float
    by: str
    comment: str

    def state(self, now: float) -> str:
        """pending, active or expired."""
        return "pending" if now < self.starts else "active" if now < self.ends else "expired"

    def plain(self, now: float) -> dict[str, object]:
        """As the API tells it."""
        times = {"starts_t": self.starts, "ends_t": self.ends, "created_t": self.created}
        said = {"by": self.by, "comment": self.comment, "state": self.state(now)}
        return {"id": self.id, "match": self.match.plain(), **times, **said}


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """Who has taken an incident on, and what was said; `closed`: also ended it by hand."""

    key: str
    t: float
    by: str
    note: str
    closed: bool

    def plain(self) -> dict[str, object]:
        """As a verdict tells it."""
        return {name: value for name, value in asdict(self).items() if name != "key"}


@dataclass(frozen=True, slots=True)
class Held:
    """An incident that a sink will hear of later or, with the reason TOGETHER, has heard of in a digest."""

    sink: str
    key: str
    reason: str
    since: float
    revision: int


class Book:
    """All of it. `take()` gives what is to be written."""

    def __init__(self, rows: Rows, now: float) -> None:
        self.silences: dict[str, Silence] = {}
        self.acknowledged: dict[str, Acknowledgement] = {}
        self.held: dict[tuple[str, str], Held] = {}
        self._changes: dict[tuple[object, ...], Statement] = {}
        self._last: dict[tuple[str, str], tuple[str, str]] = {}
        for id_, starts, ends, created, who, comment, match in rows("SELECT * FROM silences ORDER BY created"):
            wants = tuple((field, tuple(values)) for field, values in json.loads(match))
            self.silences[id_] = Silence(id_, Matcher(wants), starts, ends, created, who, comment)
        for key, t, who, note, closed in rows("SELECT * FROM acknowledgements ORDER BY t"):
            self.acknowledged[key] = Acknowledgement(key, t, who, note, bool(closed))
        for values in rows("SELECT * FROM held ORDER BY since"):
            one = Held(*values)
            self.held[one.sink, one.key] = one
        self._next = rows("SELECT coalesce(max(id), 0) + 1 FROM decisions")[0][0]
        self._prune(now)

    def take(self) -> dict[tuple[object, ...], Statement]:
        """The statements since the last call, by what they are about."""
        taken, self._changes = self._changes, {}
        return taken

    @property
    def kept(self) -> dict[str, int]:
        """Entries in memory, by kind."""
        return {"silence": len(self.silences), "acknowledged": len(self.acknowledged), "decided": len(self._last)}

    # --- silences ---------------------------------------------------------------------------------------------------

    def put_silence(self, silence: Silence) -> None:
        """Add or change one."""
        self.silences[silence.id] = silence
        wants = json.dumps(silence.match.wants)
        times = (silence.starts, silence.ends, silence.created)
        values = (silence.id, *times, silence.by, silence.comment, wants)
        self._changes["silence", silence.id] = ("INSERT OR REPLACE INTO silences VALUES (?,?,?,?,?,?,?)", values)
        self._prune(silence.created)

    def expire(self, silence: Silence, now: float) -> Silence:
        """End it now, if it has not ended."""
        ended = replace(silence, ends=min(silence.ends, now), starts=min(silence.starts, now))
        self.put_silence(ended)
        return ended

    def silence_of(self, verdict: Verdict, tags: Mapping[str, str], now: float) -> str:
        """The id of the silence that holds for an incident, "" if none does."""
        for one in self.silences.values():
            if one.starts <= now < one.ends and one.match.matches(verdict, tags):
                return one.id
        return ""

    def _prune(self, now: float) -> None:
        expired = [one for one in self.silences.values() if one.ends <= now]
        too_many = max(0, len(self.silences) - _KEPT_SILENCES)
        for number, one in enumerate(sorted(expired, key=lambda s: s.ends)):
            if number < too_many or one.ends <= now - YEAR:
                del self.silences[one.id]
                self._changes["silence", one.id] = ("DELETE FROM silences WHERE id = ?", (one.id,))

    # --- acknowledgements -------------------------------------------------------------------------------------------

    def acknowledge(self, one: Acknowledgement) -> None:
        """The last word about an incident counts."""
        self.acknowledged.pop(one.key, None)
        self.acknowledged[one.key] = one
        sql = "INSERT OR REPLACE INTO acknowledgements VALUES (?,?,?,?,?)"
        self._changes["acknowledgement", one.key] = (sql, (one.key, one.t, one.by, one.note, int(one.closed)))
        while len(self.acknowledged) > MAX_TOLD:
            oldest = next(iter(self.acknowledged))
            del self.acknowledged[oldest]
            sql = "DELETE FROM acknowledgements WHERE key = ?"
            self._changes["acknowledgement", oldest] = (sql, (oldest,))

    # --- what waits -------------------------------------------------------------------------------------------------

    def hold(self, one: Held) -> None:
        """Remember it; since when it waits stays."""
        at = one.sink, one.key
        if (was := self.held.get(at)) is not None and was.reason == one.reason and was.revision == one.revision:
            return
        self.held[at] = one
        values = (one.sink, one.key, one.reason, one.since, one.revision)
        self._changes["held", *at] = ("INSERT OR REPLACE INTO held VALUES (?,?,?,?,?)", values)
        while len(self.held) > MAX_TOLD:
            self.let_go(*next(iter(self.held)))

    def let_go(self, sink: str, key: str) -> None:
        """It has been told, or will not be."""
        if self.held.pop((sink, key), None) is not None:
            self._changes["held", sink, key] = ("DELETE FROM held WHERE sink = ? AND key = ?", (sink, key))

    def waiting(self, sink: str, reasons: Iterable[str]) -> list[Held]:
        """What is held for a sink for one of these reasons, oldest first."""
        wanted = set(reasons)
        return [one for one in self.held.values() if one.sink == sink and one.reason in wanted]

    # --- decisions --------------------------------------------------------------------------------------------------

    def note(self, key: str, sink: str, decision: Decision, revision: int, now: float) -> None:
        """Keep what was decided and why; that the same still holds is not said again."""
        said = (decision.action, f"{decision.reason} {decision.detail}")
        if decision.action != "send" and self._last.get((sink, key)) == said:
            return
        self._last.pop((sink, key), None)
        self._last[sink, key] = said
        if len(self._last) > MAX_TOLD:
            del self._last[next(iter(self._last))]
        told = (decision.action, decision.reason, decision.event, revision, decision.detail)
        values = (self._next, now, key, sink, *told)
        self._changes["decision", self._next] = ("INSERT OR REPLACE INTO decisions VALUES (?,?,?,?,?,?,?,?,?)", values)
        self._next += 1
