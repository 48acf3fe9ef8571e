"""Who is told what: a pure function from a change of an incident to the messages it causes.

Every message has a named reason. Sending, retrying and storing are elsewhere.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from denpexd.core.events import Closed, Opened, Updated

Verdict = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class SinkFilter:
    """A sink as the policy sees it; `severity` None lets every incident through."""

    name: str
    severity: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Sent:
    """The last message about an incident that was planned for a sink, whether it has arrived yet or not."""

    revision: int
    event: str


@dataclass(frozen=True, slots=True)
class Delivery:
    """One message for one sink. `reason`: first | updated | closed; `idempotency_key` is equal on every repeat."""

    sink: str
    key: str
    revision: int
    event: str
    idempotency_key: str
    reason: str
    verdict: Verdict


def plan(change: Opened | Updated | Closed, sinks: Sequence[SinkFilter], sent: Mapping[str, Sent]) -> list[Delivery]:
    """The messages that a change causes; `sent` is the last message of this incident by sink name.

    A sink hears of an incident when its severity passes the filter for the first time, and from then on everything,
    so that whoever was alarmed is also told the end. A revision that a sink already has is never repeated.
    """
    planned = (_for_sink(change, sink, sent.get(sink.name)) for sink in sinks)
    return [delivery for delivery in planned if delivery is not None]


def _for_sink(change: Opened | Updated | Closed, sink: SinkFilter, last: Sent | None) -> Delivery | None:
    verdict, revision = change.verdict, revision_of(change.verdict)
    closed = isinstance(change, Closed)
    if last is None:
        if closed or not passes(sink, verdict):
            return None
        return _delivery(sink.name, verdict, revision, "opened", "first")
    if closed:
        if last.event == "closed":
            return None
        # A restarted core may count lower than what was sent before; the end must not be lost as an old revision.
        return _delivery(sink.name, verdict, max(revision, last.revision + 1), "closed", "closed")
    if revision <= last.revision:
        return None
    if last.event == "closed":
        return _delivery(sink.name, verdict, revision, "opened", "first")
    return _delivery(sink.name, verdict, revision, "updated", "updated")


def passes(sink: SinkFilter, verdict: Verdict) -> bool:
    """Whether a sink wants to hear of an incident of this severity."""
    return sink.severity is None or verdict.get("severity") in sink.severity


def _delivery(sink: str, verdict: Verdict, revision: int, event: str, reason: str) -> Delivery:
    key = str(verdict["key"])
    told = {**verdict, "event": event, "revision": revision}
    return Delivery(sink, key, revision, event, f"{key}:{revision}", reason, told)


def revision_of(verdict: Verdict) -> int:
    """The revision of a verdict as a number; 1 where it has none."""
    revision = verdict.get("revision", 1)
    return revision if isinstance(revision, int) else 1
