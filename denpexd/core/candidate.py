"""What it means that a rule holds: for which ranks, on whose word, and how sure that is."""

from collections.abc import Mapping
from dataclasses import dataclass

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
