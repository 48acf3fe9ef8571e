"""Exceptions and stacks of a rank: what rules see in them, and what an error weighs once the rank deals with it.

Who says that it caught something (shared signals of role `caught`) still may have been at its end: then a process is
gone, or nothing moves any more. Only the words alone prove less.
"""

from dataclasses import replace
from functools import lru_cache

from denpexd.core import cadence
from denpexd.core.events import Frame, Raised
from denpexd.core.evidence import Evidence
from denpexd.core.rank import RankState
from denpexd.core.records import RaisedBy
from denpexd.core.rule import Catalog, Signal
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


class Texts:
    """What the rules of a catalogue see in exceptions and stacks.

    Ten thousand ranks raise the same at once, and stand at the same place: it is worked out once, for all jobs.
    """

    def __init__(self, catalog: Catalog) -> None:
        signals = catalog.signals.values()
        self._exceptions = [s for s in signals if s.fact == "raised"]
        self._frames = [s for s in signals if s.kind == "frame"]
        self._others = [s for s in signals if s.kind == "log" and s.role in ("collateral", "teardown", "event")]
        self._of_types = lru_cache(maxsize=256)(self._with_types)
        self.fits = lru_cache(maxsize=256)(self._fits)
        self.hits = lru_cache(maxsize=256)(self._hits)
        self.harmless = lru_cache(maxsize=256)(self._harmless)

    def _fits(self, chain: tuple[tuple[str, str], ...]) -> frozenset[str]:
        """The signals that ask for the type and the message of one of these exceptions."""
        return frozenset(s.id for s in self._of_types(tuple(name for name, _ in chain)) if chain_matches(s, chain))

    def _with_types(self, names: tuple[str, ...]) -> list[Signal]:
        """The signals that ask for one of these types: messages differ from rank to rank, types hardly."""
        return [s for s in self._exceptions if any(is_type(s, name) for name in names)]

    def _hits(self, frames: tuple[Frame, ...]) -> dict[str, Frame]:
        """By signal the innermost frame that fits it."""
        found = {}
        for signal in self._frames:
            looked = _callers(signal, frames)
            frame = next((f for f in looked if _frame_fits(signal, f.canonical, f.qualified)), None)
            if frame is not None:
                found[signal.id] = frame
        return found

    def _harmless(self, text: str, placed: str) -> bool:
        """Whether the exception says nothing about its own rank; `except` also sees the innermost frame."""
        return any(
            s.matcher and s.matcher.search(text) and not (s.exclude and s.exclude.search(placed)) for s in self._others
        )


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


def _callers(signal: Signal, frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """The frames that count: with `outside`, only those that lead to the outermost frame which fits it."""
    matcher = signal.param_matchers.get("outside")
    if matcher is None:
        return frames
    inner = max((i for i, f in enumerate(frames) if matcher.search(f.canonical)), default=-1)
    return frames[inner + 1 :]


def _frame_fits(signal: Signal, canonical: str, qualified: str) -> bool:
    if signal.matcher is None or not (signal.matcher.search(canonical) or signal.matcher.search(qualified)):
        return False
    return not (signal.exclude and (signal.exclude.search(canonical) or signal.exclude.search(qualified)))


def of_exception(rank: int, known: RaisedBy, text: str, means: str) -> Evidence:
    """`text` of a known exception, as evidence that `means` something."""
    event, weight = known.event, "fatal" if known.event.uncaught else "suspect"
    at = (rank, "log", event.source, event.offset, event.t)
    return Evidence(*at, text, means, seq=known.seq, weight=weight, history=event.history)


def caught(state: RankState, said: Evidence) -> None:
    """What the rank raised and printed shortly before this line is weighed as something that was dealt with."""
    state.caught = said
    if state.reported is not None and _before(said, state.reported.t, state.reported.source, state.reported.offset):
        state.reported = None
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
