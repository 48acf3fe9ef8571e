"""Who is told what, and when: a pure function of an incident, a route, and what that route was told before.

It is asked when an incident changes and again as time passes, so what has to wait is not forgotten: it is decided anew.
Every decision has a named reason. Sending, retrying and storing are elsewhere. Times are Unix seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from denpexd.notify.match import Matcher
from denpexd.notify.windows import Window

Verdict = Mapping[str, object]

LONGEST = 8 * 3600.0  # between two reminders
_EVERYTHING = Matcher()

Action = Literal["send", "hold", "drop", "nothing"]


@dataclass(frozen=True, slots=True)
class Quiet:
    """Hours in which incidents of these severities wait."""

    window: Window
    severity: frozenset[str]


@dataclass(frozen=True, slots=True)
class Route:
    """A sink as the policy sees it: what it wants to hear of, and when. `severity` None: all; `remind` 0: never."""

    name: str
    severity: frozenset[str] | None = None
    match: Matcher = _EVERYTHING
    unless: Matcher | None = None
    remind: float = 0.0
    quiet: tuple[Quiet, ...] = ()
    tags: Mapping[str, str] | None = None

    def refusal(self, verdict: Verdict) -> tuple[str, str] | None:
        """Reason and detail why this sink is not told of such an incident; None if it is."""
        tags = self.tags or {}
        if self.severity is not None and verdict.get("severity") not in self.severity:
            return "severity", f"severity is {verdict.get('severity')}"
        if (why := self.match.misfit(verdict, tags)) is not None:
            return "match", why
        if self.unless is not None and self.unless.matches(verdict, tags):
            return "unless", f"unless {self.unless.text()}"
        return None


@dataclass(frozen=True, slots=True)
class Sent:
    """The last message about an incident that was planned for a sink, whether it has arrived yet or not.

    `told`: the revision of the verdict in it; `at`: when it was planned; `reminders`, `flaps`: messages with this
    reason so far; `acknowledged`: whether that was told.
    """

    revision: int
    event: str
    told: int = 0
    at: float = 0.0
    reminders: int = 0
    flaps: int = 0
    acknowledged: bool = False


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message for one sink. `idempotency_key` is equal on every repeat; `told`: the verdict's own revision.

    `reason`: first | updated | closed | reminder | acknowledged | reopened | settled | digest.
    """

    sink: str
    key: str
    revision: int
    event: str
    idempotency_key: str
    reason: str
    verdict: Verdict
    told: int = 0


@dataclass(frozen=True, slots=True)
class Moment:
    """What else counts now. `silence`, `maintenance`: what holds for this incident, "" if nothing does.

    `acknowledged`: by a person. `told_together`: the revision of which a digest has told, 0 if none has.
    `flap`: seconds after the end within which the same failure is no new one; `ended`: when it ended.
    """

    now: float
    silence: str = ""
    maintenance: str = ""
    acknowledged: bool = False
    told_together: int = 0
    flap: float = 0.0
    ended: float = 0.0


@dataclass(frozen=True, slots=True)
class Decision:
    """What is done about an incident and a sink now, why, and the particulars in words."""

    action: Action
    reason: str = ""
    event: str = ""
    detail: str = ""


NOTHING = Decision("nothing")


def decide(verdict: Verdict, route: Route, last: Sent | None, at: Moment) -> Decision:
    """What this sink is told now about an incident as it stands.

    A sink hears of an incident when it passes the route for the first time, and from then on everything, so that
    whoever was alarmed is also told the end. An end is told at once; all else waits for silences and quiet times.
    """
    if verdict.get("state") == "closed":
        return _end(last, at)
    if last is None:
        if revision_of(verdict) <= at.told_together:
            return NOTHING
        if (refused := route.refusal(verdict)) is not None:
            return Decision("drop", refused[0], detail=refused[1])
        return muted(verdict, route, at) or Decision("send", "first", "opened")
    said = _news(verdict, route, last, at)
    if said is NOTHING or said.reason == "acknowledged":
        return said
    return muted(verdict, route, at) or said


def _end(last: Sent | None, at: Moment) -> Decision:
    if last is None or last.event == "closed":
        return NOTHING
    # Where the clock was set back, what was in the future is over: nothing waits for that.
    if last.flaps and at.ended <= at.now < at.ended + at.flap:
        return Decision("hold", "flapping", detail=f"it has come back before: told after {at.flap:g} s without it")
    if last.flaps:
        return Decision("send", "settled", "closed")
    return Decision("send", "closed", "closed")


def _news(verdict: Verdict, route: Route, last: Sent, at: Moment) -> Decision:
    if last.event == "closed":
        if last.at <= at.now < last.at + at.flap:
            return Decision("send", "reopened", "updated", f"again within {at.flap:g} s of its end")
        return Decision("send", "first", "opened")
    if revision_of(verdict) > (last.told or last.revision):
        return Decision("send", "updated", "updated")
    if at.acknowledged:
        return NOTHING if last.acknowledged else Decision("send", "acknowledged", "updated")
    wait = min(LONGEST, route.remind * 2.0 ** min(last.reminders, 16))
    if route.remind and abs(at.now - last.at) >= wait:  # a clock that was set back by less is no reason
        return Decision("send", "reminder", "updated")
    return NOTHING


def muted(verdict: Verdict, route: Route, at: Moment) -> Decision | None:
    """Why nothing but an end is said now."""
    if at.silence:
        return Decision("drop", "silenced", detail=f"silence {at.silence}")
    if at.maintenance:
        return Decision("hold", "maintenance", detail=at.maintenance)
    for quiet in route.quiet:
        if verdict.get("severity") in quiet.severity and quiet.window.holds(at.now):
            return Decision("hold", "quiet", detail="quiet hours")
    return None


def delivery(verdict: Verdict, sink: str, decision: Decision, last: Sent | None) -> Delivery:
    """The message of a decision to send."""
    key, told = str(verdict["key"]), revision_of(verdict)
    # Reminders count too, and a restarted core may count lower than what was sent before.
    revision = told if last is None else max(told, last.revision + 1)
    shown = {**verdict, "event": decision.event, "revision": revision}
    return Delivery(sink, key, revision, decision.event, f"{key}:{revision}", decision.reason, shown, told)


def after(message: Delivery, last: Sent | None, now: float) -> Sent:
    """What the sink has been told once this message is planned."""
    reason, was = message.reason, last or Sent(0, "")
    if message.event == "opened":
        was = Sent(0, "")  # it begins anew
    return Sent(
        message.revision,
        message.event,
        message.told or message.revision,
        now,
        was.reminders + (reason == "reminder"),
        was.flaps + (reason == "reopened"),
        was.acknowledged or reason == "acknowledged",
    )


def revision_of(verdict: Verdict) -> int:
    """The revision of a verdict as a number; 1 where it has none."""
    revision = verdict.get("revision", 1)
    return revision if isinstance(revision, int) else 1
