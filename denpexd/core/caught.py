"""A rank says what it does about what it has just printed (shared signals of role `caught`): it was caught.

It still may have been the end: then a process is gone, or nothing moves any more. Only the words alone prove less.
"""

from dataclasses import replace
from typing import TYPE_CHECKING

from denpexd.core.events import Raised
from denpexd.core.evidence import Evidence

if TYPE_CHECKING:
    from denpexd.core.state import RankState

RECENT = 120.0  # seconds back to which such a line may speak


def caught(state: "RankState", said: Evidence) -> None:
    """What the rank raised and printed shortly before this line is weighed as something that was dealt with."""
    state.caught = said
    state.raised = [replace(known, event=weighed(state, known.event)) for known in state.raised]
    for seen in state.seen.values():
        seen.first, seen.last = (
            replace(e, weight="suspect") if _before(said, e.t, e.source, e.offset) else e
            for e in (seen.first, seen.last)
        )


def weighed(state: "RankState", event: Raised) -> Raised:
    """The exception, not uncaught if the rank has said since what it does about it."""
    said = state.caught
    if said is not None and event.uncaught and _before(said, event.t, event.source, event.offset):
        return replace(event, uncaught=False)
    return event


def _before(said: Evidence, t: float, source: str, offset: int) -> bool:
    earlier = t < said.t or (t == said.t and (source != said.source or offset < said.offset))
    return earlier and t >= said.t - RECENT
