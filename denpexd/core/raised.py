"""Exceptions that a rank raised: as facts, and what they weigh once the rank says what it does about them.

Who says that it caught something (shared signals of role `caught`) still may have been at its end: then a process is
gone, or nothing moves any more. Only the words alone prove less.
"""

from dataclasses import replace

from denpexd.core import cadence
from denpexd.core.events import Raised
from denpexd.core.evidence import Evidence
from denpexd.core.rank import RankState
from denpexd.core.records import RaisedBy
from denpexd.core.rule import Signal
from denpexd.core.state import Answer, JobState

RECENT = 120.0  # seconds back to which such a line may speak


def raised(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    if signal.params.get("alone") and _raised_elsewhere(job, rank, signal):
        return []
    found = []
    for known in rank.raised:
        event = known.event
        over = rank.phase == "end" and event.t > rank.phase_t and not any(e.event.code for e in rank.exits)
        past = (event.history and rank.outlived(event.source, known.seq)) or any(e.event.code == 0 for e in rank.exits)
        if known.collateral or over or past or signal.id not in known.fits or job.lapsed(rank, event.t):
            continue
        where = signal.param_matchers.get("in")
        if where and not any(where.search(f.canonical) or where.search(f.qualified) for f in event.frames):
            continue
        found.append(of_exception(rank.rank, known, event.text, signal.means))
    return found


def _raised_elsewhere(job: JobState, rank: RankState, signal: Signal) -> bool:
    """Whether another rank raised the same by itself."""

    def who() -> list[int]:
        known = ((r, k) for r, s in job.ranks.items() if r >= 0 for k in s.raised)
        return [r for r, k in known if not k.collateral and signal.id in k.fits]

    return any(r != rank.rank for r in job.once(("raised by", signal.id), who))


def chain_matches(signal: Signal, chain: tuple[tuple[str, str], ...]) -> bool:
    """Whether an exception of the chain has the type and words that the signal asks for, none that it excludes."""
    if signal.exclude and any(signal.exclude.search(f"{name}: {said}") for name, said in chain):
        return False
    message = signal.param_matchers.get("message")
    return any((message is None or message.search(said)) and is_type(signal, name) for name, said in chain)


def is_type(signal: Signal, name: str) -> bool:
    """Whether the signal asks for exceptions of that name, with its module or without, or for any."""
    kind = signal.param_matchers.get("type")
    return kind is None or bool(kind.search(name) or kind.search(name.rsplit(".", 1)[-1]))


def of_exception(rank: int, known: RaisedBy, text: str, means: str) -> Evidence:
    """`text` of a known exception, as evidence that `means` something."""
    event, weight = known.event, "fatal" if known.event.uncaught else "suspect"
    at = (rank, "log", event.source, event.offset, event.t)
    return Evidence(*at, text, means, seq=known.seq, weight=weight, history=event.history)


def caught(state: RankState, said: Evidence) -> None:
    """What the rank raised and printed shortly before this line is weighed as something that was dealt with."""
    state.caught = said
    state.raised = [replace(known, event=weighed(state, known.event)) for known in state.raised]
    for seen in state.seen.values():
        seen.first, seen.last = (
            replace(e, weight="suspect") if _before(said, e.t, e.source, e.offset) else e
            for e in (seen.first, seen.last)
        )


def weighed(state: RankState, event: Raised) -> Raised:
    """The exception, not uncaught if the rank has said since what it does about it."""
    said = state.caught
    if said is not None and event.uncaught and _before(said, event.t, event.source, event.offset):
        return replace(event, uncaught=False)
    return event


def _before(said: Evidence, t: float, source: str, offset: int) -> bool:
    earlier = t < said.t or (t == said.t and (source != said.source or offset < said.offset))
    return earlier and t >= said.t - RECENT
