"""Decides about all incidents and all sinks together, and remembers what was decided: the policy with its state.

Asked when an incident changes, and every few seconds, so that what waits for the end of a silence, of quiet hours or of
maintenance is told then. Nothing here does I/O. Times are Unix seconds, those of the wall clock.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from denpexd.notify.book import TOGETHER, Book, Held
from denpexd.notify.match import Matcher
from denpexd.notify.policy import (
    Decision,
    Delivery,
    Moment,
    Route,
    Sent,
    after,
    decide,
    delivery,
    muted,
    revision_of,
)
from denpexd.notify.storm import Storm, digest
from denpexd.notify.windows import Window

log = logging.getLogger(__name__)

DROPPED, STORM, FLAPPING = "dropped", "storm", "flapping"
_LATER = ("maintenance", "quiet")

Verdict = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Maintenance:
    """A time in which trouble with these incidents is expected."""

    name: str
    window: Window
    match: Matcher = field(default_factory=Matcher)


@dataclass(frozen=True, slots=True)
class Alerting:
    """The settings of all this: routes by sink, what holds for all of them, tags of the daemon's jobs."""

    routes: Sequence[Route] = ()
    maintenance: Sequence[Maintenance] = ()
    flap: float = 600.0
    fix_window: float = 86400.0
    tags: Mapping[str, str] = field(default_factory=dict)


def under_maintenance(alerting: Alerting, verdict: Verdict, now: float) -> str:
    """The name of the maintenance that holds for an incident, "" if none does."""
    tags, times = alerting.tags, alerting.maintenance
    return next((one.name for one in times if one.window.holds(now) and one.match.matches(verdict, tags)), "")


class Desk:
    """What to send. `sent`: what sinks were told of an incident by messages that the outbox knows.

    `well`: whether a sink took its last message.
    """

    def __init__(
        self,
        alerting: Alerting,
        book: Book,
        sent: Callable[[str], Mapping[str, Sent]],
        well: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self.alerting, self.book = alerting, book
        self._sent, self._well = sent, well
        self._planned: dict[str, dict[str, Sent]] = {}  # by incident and sink, not yet known to the outbox
        self._storms: dict[str, Storm] = {}
        self._hush: tuple[Verdict, str, str] | None = None  # of the incident that is looked at
        self.use(alerting)

    def use(self, alerting: Alerting) -> None:
        """Other settings from now on; what was held for a sink that is gone is nobody's any more."""
        self.alerting = alerting
        names = {route.name for route in alerting.routes}
        self._storms = {name: self._storms.get(name) or Storm() for name in sorted(names)}
        for sink, key in [at for at in self.book.held if at[0] not in names]:
            self.book.let_go(sink, key)

    def resume(self, incidents: Mapping[str, Verdict], now: float) -> None:
        """What waited to be told together when the daemon before this one ended, waits again."""
        for one in [one for one in self.book.held.values() if one.reason == STORM]:
            if (verdict := incidents.get(one.key)) is not None:
                self._storms[one.sink].hold(verdict, now)
            else:
                self.book.let_go(one.sink, one.key)

    @property
    def held(self) -> int:
        """Incidents that some sink will hear of later."""
        return len({one.key for one in self.book.held.values() if one.reason != TOGETHER})

    def stored(self) -> None:
        """All messages so far are known to the outbox."""
        self._planned.clear()

    def changed(self, verdict: Verdict, now: float) -> list[Delivery]:
        """The messages that an incident causes as it stands now."""
        self._hush = None
        told = [self._tell(verdict, route, now) for route in self.alerting.routes]
        return [one for one in told if one is not None]

    def review(self, incidents: Mapping[str, Verdict], now: float) -> list[Delivery]:
        """The messages that have become due by the passing of time."""
        found: list[Delivery] = []
        for verdict in incidents.values():
            if verdict.get("state") != "closed":
                found += self.changed(verdict, now)
        routes = {route.name: route for route in self.alerting.routes}
        for one in list(self.book.held.values()):
            verdict = incidents.get(one.key, {})
            if one.reason == FLAPPING and verdict and (told := self._tell(verdict, routes[one.sink], now)):
                found.append(told)
        return found

    def digests(self, incidents: Mapping[str, Verdict], now: float, *, last: bool = False) -> list[Delivery]:
        """One message for each sink and reason about what was not told alone; `last`: nothing waits any longer."""
        found: list[Delivery] = []
        for route in self.alerting.routes:
            if together := self._storms[route.name].take(now, last=last):
                found.append(self._digest(STORM, route.name, together, now))
            dropped = self.book.waiting(route.name, [DROPPED]) if self._well(route.name) else []
            for reason, held in ((DROPPED, dropped), *self._over(route, incidents, now)):
                if known := [incidents[one.key] for one in held if one.key in incidents]:
                    found.append(self._digest(reason, route.name, known, now))
                for one in held:
                    if one.reason != TOGETHER:
                        self.book.let_go(one.sink, one.key)
        return found

    def dropped(self, messages: Iterable[Delivery], now: float) -> None:
        """These did not fit into the outbox; their sink is told when it is back."""
        for one in messages:
            self.book.hold(Held(one.sink, one.key, DROPPED, now, one.told))

    def acknowledged(self, key: str) -> bool:
        """Whether a person has taken an open incident on."""
        said = self.book.acknowledged.get(key)
        return said is not None and not said.closed

    # ----------------------------------------------------------------------------------------------------------------

    def _tell(self, verdict: Verdict, route: Route, now: float) -> Delivery | None:
        key, sink = str(verdict["key"]), route.name
        last = self._last(key, sink)
        storm, closed = self._storms[sink], verdict.get("state") == "closed"
        if key in storm.held:
            storm.held[key] = verdict
            return None
        at = self._moment(verdict, sink, now)
        decision = decide(verdict, route, last, at)
        if decision.action == "send":  # only then it matters what silences it
            decision = decide(verdict, route, last, self._hushed(verdict, at))
        if decision.reason == "first" and storm.holds(verdict, now):
            decision = Decision("hold", STORM, detail="too many incidents for a message each")
            if len(storm.held) == 1:
                log.warning("sink %s: too many incidents for a message each; further ones are told together", sink)
        if decision.action == "nothing":
            if closed and (held := self.book.held.get((sink, key))) and held.reason == TOGETHER:
                self.book.let_go(sink, key)
            return None
        self.book.note(key, sink, decision, revision_of(verdict), now)
        if decision.action == "hold":
            self.book.hold(Held(sink, key, decision.reason, now, 0))
            return None
        self.book.let_go(sink, key)
        if decision.action == "drop":
            return None
        message = delivery(verdict, sink, decision, last)
        self._planned.setdefault(key, {})[sink] = after(message, last, now)
        return message

    def _last(self, key: str, sink: str) -> Sent | None:
        planned = self._planned.get(key, {}).get(sink)
        return planned if planned is not None else self._sent(key).get(sink)

    def _moment(self, verdict: Verdict, sink: str, now: float) -> Moment:
        key, alerting = str(verdict["key"]), self.alerting
        held = self.book.held.get((sink, key))
        return Moment(
            now,
            acknowledged=self.acknowledged(key),
            told_together=held.revision if held is not None and held.reason == TOGETHER else 0,
            flap=alerting.flap,
            ended=self.ended_at(verdict, now),
        )

    def _hushed(self, verdict: Verdict, at: Moment) -> Moment:
        """With what holds for the incident, which is the same for all sinks."""
        if self._hush is None or self._hush[0] is not verdict:
            silence = self.book.silence_of(verdict, self.alerting.tags, at.now)
            self._hush = (verdict, silence, under_maintenance(self.alerting, verdict, at.now))
        return replace(at, silence=self._hush[1], maintenance=self._hush[2])

    @staticmethod
    def ended_at(verdict: Verdict, now: float) -> float:
        """When a closed incident ended."""
        t = verdict.get("updated_t")
        return float(t) if isinstance(t, int | float) else now

    def _over(self, route: Route, incidents: Mapping[str, Verdict], now: float) -> list[tuple[str, list[Held]]]:
        """What waited and has ended without a message, by the reason why it waited, if that does not hold any more."""
        found: dict[str, list[Held]] = {}
        for one in self.book.waiting(route.name, _LATER):
            verdict = incidents.get(one.key)
            if verdict is None:
                found.setdefault(one.reason, []).append(one)
            elif verdict.get("state") == "closed":
                self._hush = None
                still = muted(verdict, route, self._hushed(verdict, self._moment(verdict, route.name, now)))
                if still is None:
                    found.setdefault(one.reason, []).append(one)
        return list(found.items())

    def _digest(self, reason: str, sink: str, verdicts: Sequence[Verdict], now: float) -> Delivery:
        told = digest(reason, sink, verdicts, now)
        key = str(told["key"])
        for verdict in verdicts:
            incident, revision = str(verdict["key"]), revision_of(verdict)
            self.book.note(incident, sink, Decision("send", "digest", "opened", f"in {key}"), revision, now)
            if verdict.get("state") == "closed":
                self.book.let_go(sink, incident)
            elif reason == STORM:
                self.book.hold(Held(sink, incident, TOGETHER, now, revision))
        return Delivery(sink, key, 1, "opened", f"{key}:1", "digest", told, 1)
