"""What it means that a rule holds: for which ranks, on whose word, and how sure that is; and all that hold now."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from denpexd.core.evidence import Evidence
from denpexd.core.rule import Rule


@dataclass(frozen=True, slots=True)
class Candidate:
    """A rule that holds: the ranks by role, the evidence (initiators' first), and how sure that makes us."""

    rule: Rule
    initiating: tuple[int, ...]
    collateral: tuple[int, ...]
    evidence: tuple[Evidence, ...]
    roles: Mapping[str, tuple[int, ...]]
    certainty: str
    cause_t: float
    cause_seq: int
    fatal: bool
    sure: bool = False  # one more witness that agrees would confirm it
    against: tuple[str, ...] = ()  # what other witnesses say against it

    @property
    def history(self) -> bool:
        """Everything it rests on stood in the files before the daemon came."""
        return all(e.history for e in self.evidence)


@dataclass(slots=True)
class Matches:
    """The rules that match at present, since when each does, and when anything new was last heard."""

    live: dict[str, Candidate] = field(default_factory=dict)
    since: dict[str, float] = field(default_factory=dict)
    news_t: float = float("-inf")

    def clear(self) -> None:
        self.live.clear()
        self.since.clear()

    def forget_stops(self) -> None:
        """A stop is over, and with it whatever explained it."""
        self.live = {k: c for k, c in self.live.items() if not c.rule.stops}
        self.since = {k: t for k, t in self.since.items() if k in self.live}
