"""The rhythm of a job: how often it moves, how long silence is normal, and when to look or to page.

Two levels, on purpose far apart (collect early, page late): `suspicion` costs a look at the processes, `page` may end
in a message to a person. Silence alone pages only beyond the budget of the phase in which it began.
"""

from collections import deque
from dataclasses import dataclass, field
from statistics import median

LEARN_FROM = 3  # gaps needed before a rhythm counts as learned
UNLEARNED = 1.5  # times as long a silence before a page as long as no rhythm is known
BUDGETS = {
    "start": 1200.0,
    "init": 1200.0,
    "load": 1200.0,
    "compile": 1200.0,
    "train": 1200.0,
    "eval": 900.0,
    "checkpoint": 900.0,
    "end": 900.0,
}


@dataclass(slots=True)
class Limits:
    """The configurable numbers, all in seconds."""

    min_look: float = 5.0
    look_factor: float = 8.0
    min_silence: float = 30.0
    page_factor: float = 5.0
    budget_factor: float = 10.0
    learned_floor: float = 120.0
    budgets: dict[str, float] = field(default_factory=lambda: dict(BUDGETS))


@dataclass(slots=True)
class Rhythm:
    """Gaps between two movements of one rank, and how long each phase took, bounded."""

    gaps: deque[float] = field(default_factory=lambda: deque(maxlen=64))
    # Seconds of one step, where the lines count steps.
    steps: deque[float] = field(default_factory=lambda: deque(maxlen=64))
    longest: float = 0.0
    phases: dict[str, deque[float]] = field(default_factory=dict)

    def moved(self, gap: float, phase: str, steps: int = 0) -> None:
        """One more movement, `gap` seconds and `steps` steps after the last; another phase's gap is not a step."""
        self.longest = max(self.longest, gap)
        if phase in ("train", "start"):
            self.gaps.append(gap)
            if steps > 0:
                self.steps.append(gap / steps)

    @property
    def step_seconds(self) -> float | None:
        """Median seconds of one step, None where the lines do not count steps."""
        return median(self.steps) if self.steps else None

    def phase_took(self, phase: str, seconds: float) -> None:
        self.phases.setdefault(phase, deque(maxlen=16)).append(seconds)

    @property
    def learned(self) -> bool:
        return len(self.gaps) >= LEARN_FROM

    @property
    def usual(self) -> float | None:
        """Usual seconds between two movements, None before it is learned.

        The median by time, not by number: half of all time passed in gaps at most this long. Lines that come in pairs
        (a bar and a dictionary a step) or in bursts (buffered output) would halve or ruin the plain median.
        """
        if not self.learned:
            return None
        gaps = sorted(self.gaps)
        if len(gaps) > LEARN_FROM:
            gaps.pop()  # one outlier, such as a slow first step, teaches nothing
        half, passed = sum(gaps) / 2, 0.0
        for gap in gaps:
            passed += gap
            if passed >= half:
                return gap
        return gaps[-1]

    def usual_phase(self, phase: str) -> float | None:
        seen = self.phases.get(phase)
        return median(seen) if seen else None


def suspicion(limits: Limits, usual: float | None) -> float:
    """Silence after which a cheap look is worth it: never later than a page could be due."""
    if usual is None:
        return limits.min_silence
    return max(limits.min_look, min(limits.look_factor * usual, page(limits, usual)))


def page(limits: Limits, usual: float | None) -> float:
    """Silence below which nothing about a hang is said, whatever the stacks show."""
    if usual is None:
        return UNLEARNED * limits.min_silence
    return max(limits.min_silence, limits.page_factor * usual)


def budget(limits: Limits, phase: str, rhythm: Rhythm) -> float:
    """Silence that is worth a page on its own, in seconds."""
    return budget_and_why(limits, phase, rhythm)[0]


def budget_and_why(limits: Limits, phase: str, rhythm: Rhythm) -> tuple[float, str]:
    """The learned length of this phase times ten, else its default; and the setting or measure that it comes from."""
    ten = limits.budget_factor
    if phase in ("eval", "checkpoint", "compile", "load", "init", "end"):
        usual = rhythm.usual_phase(phase)
        if usual is None:
            return limits.budgets[phase], f"hang.budgets.{phase}"
        return max(limits.learned_floor, ten * usual), f"{ten:g} times the usual length of phase {phase}"
    if rhythm.usual is None:
        return limits.budgets["start"], "hang.budgets.start"
    # Between steps an unannounced evaluation may hide, so a fast rhythm alone does not shorten the budget below
    # that of an evaluation; only a slow one lengthens it, and only the user's own budget shortens it.
    least = min(("eval", "train"), key=limits.budgets.__getitem__)
    return max(
        (limits.budgets[least], f"hang.budgets.{least}"),
        (ten * rhythm.usual, f"{ten:g} usual gaps between steps"),
        (3 * rhythm.longest, "3 times the longest gap between steps"),
    )
