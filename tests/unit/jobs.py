"""Small jobs for tests of the core, by the tiny catalogue: what ranks show, and what is said of it."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from denpexd.catalog.load import load
from denpexd.catalog.patterns import compile_pattern, full_match
from denpexd.core.cadence import Limits
from denpexd.core.correlate import Correlator
from denpexd.core.events import (
    Activity,
    Attempt,
    Closed,
    Event,
    Exit,
    Fact,
    Frame,
    Frames,
    Hit,
    Joined,
    Opened,
    Output,
    Raised,
    Tick,
    Updated,
    Want,
)
from denpexd.core.evidence import Evidence
from denpexd.core.facts import holds
from denpexd.core.intake import Intake
from denpexd.core.rule import Catalog, Matcher, Signal
from denpexd.core.state import JobState

LIMITS = Limits()
TINY, _ = load([Path(__file__).parents[1] / "data" / "tiny"], strict=False)


class World:
    """What the ranks of a job have shown, and what follows for a fact."""

    def __init__(self, world_size: int | None = 4) -> None:
        self.job = JobState("job", 0.0, world_size=world_size)
        self.intake = Intake(TINY, self.job)

    def at(self, t: float, *events: Event) -> Self:
        takes = {
            Activity: self.intake.activity,
            Hit: self.intake.hit,
            Raised: self.intake.raised,
            Frames: self.intake.frames,
            Exit: self.intake.exit,
            Fact: self.intake.fact,
            Joined: self.intake.joined,
            Attempt: self.intake.attempt,
        }
        for event in events:
            self.job.seq += 1
            takes[type(event)](replace(event, t=t))
        return self

    def steps(self, *ranks: int, until: int = 10) -> Self:
        """Each of the ranks makes a step a second, up to `until`."""
        for n in range(1, until + 1):
            self.at(float(n), *(step(rank, n) for rank in ranks))
        return self

    def evidence(self, rank: int, signal: Signal, now: float = 100.0, window: float = 3600.0) -> list[Evidence]:
        if signal.fact == "raised":  # a rule that came later, as with a reload
            Intake(Catalog({}, {**TINY.signals, signal.id: signal}), self.job)
        return holds(self.job, self.job.rank(rank), signal, now, window, LIMITS)

    def who(self, signal: Signal, now: float = 100.0) -> list[int]:
        """The ranks for which the signal holds."""
        return [rank for rank in sorted(self.job.ranks) if self.evidence(rank, signal, now)]


class Run:
    """A job that is watched: ticks come once a second, everything else when it is told."""

    def __init__(self, world_size: int | None = 2, limits: Limits | None = None, *, catalog: Catalog = TINY) -> None:
        self.core = Correlator(catalog, "run", world_size=world_size, limits=limits)
        self.said: list[Output] = []
        self.fed: list[Event] = []
        self.t = 0

    def until(self, t: float) -> Self:
        while self.t + 1 <= t:
            self.t += 1
            self.said += self.core.feed([Tick(float(self.t))])
        return self

    def at(self, t: float, *events: Event) -> Self:
        self.until(t)
        timed = [replace(event, t=float(t)) for event in events]
        self.fed += timed
        self.said += self.core.feed(timed)
        return self

    def trains(self, first: int, last: int, *ranks: int, start: float | None = None) -> Self:
        """Each of the ranks (all, if none is given) makes the steps, one a second."""
        for n in range(first, last + 1):
            t = n if start is None else start + n - first
            self.at(t, *(step(rank, n) for rank in ranks or range(len(self.core.job.universe))))
        return self

    def changes(self, kind: type[Opened] | type[Updated] | type[Closed] | None = None) -> list[Mapping[str, Any]]:
        wanted = kind or (Opened, Updated, Closed)
        return [o.verdict for o in self.said if isinstance(o, wanted) and not isinstance(o, Want)]

    @property
    def wants(self) -> list[Want]:
        return [o for o in self.said if isinstance(o, Want)]

    @property
    def final(self) -> list[Mapping[str, Any]]:
        """The last state of each incident."""
        return list({v["key"]: v for v in self.changes()}.values())

    @property
    def only(self) -> Mapping[str, Any]:
        """The last state of the one incident there was."""
        assert len(self.final) == 1, [(v["key"], v["failure"]) for v in self.final]
        return self.final[0]


def line(rank: int, signal: str, fields: Mapping[str, str] | None = None, **how: Any) -> Hit:
    """A line of the rank in which a signal was found, one of the tiny catalogue's or, with a dot, another."""
    name = signal if "." in signal else f"line.{signal}"
    return Hit(0.0, rank, name, f"rank{rank}", 0, signal, fields or {}, **how)


def step(rank: int, number: int, **how: Any) -> Hit:
    return line(rank, "step", {"step": str(number)}, **how)


def mean(rank: int, value: str, epoch: int = 1) -> Hit:
    """A number that must be the same on all ranks."""
    return line(rank, "mean", {"metric": "mean", "value": value, "epoch": str(epoch)})


def raised(rank: int, kind: str = "ValueError", message: str = "bad", *, uncaught: bool = True) -> Raised:
    return Raised(0.0, rank, f"rank{rank}", 0, f"{kind}: {message}", ((kind, message),), (), uncaught)


def stack(rank: int, *functions: str, kind: str = "py-spy", at_line: int = 0) -> Frames:
    """The rank's stack, innermost first, each frame as `function path`."""
    return Frames(0.0, rank, kind, tuple(Frame(*f.split(), at_line) for f in functions))


def fact(kind: str, /, **given: str | int | float | bool) -> Signal:
    """A fact of that kind; what the rule format has as patterns is compiled."""
    patterns: dict[str, Matcher] = {}
    for key in ("type", "message", "in", "op", "name", "rest"):
        if key in given and (key != "name" or kind == "metric_spread"):
            compiled = full_match if key == "type" else compile_pattern
            patterns[key] = compiled(str(given.pop(key)))
    return Signal("own.x", "fact", "because", fact=kind, params=given, param_matchers=patterns)
