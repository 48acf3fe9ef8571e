"""Signals that strengthen a local failure without being able to make one: what was full, what its GPU counts."""

from collections.abc import Iterable

from denpexd.core.cadence import Limits
from denpexd.core.evidence import Evidence
from denpexd.core.facts import holds
from denpexd.core.rule import Rule, Signal
from denpexd.core.state import JobState

SUPPORTING = frozenset({"exhausted", "gpu_ecc"})


def leading(rule: Rule) -> list[Signal]:
    """The signals each of which is enough."""
    return [s for s in rule.signals.values() if s.fact not in SUPPORTING]


def support(rule: Rule, job: JobState, ranks: Iterable[int], now: float, limits: Limits) -> list[Evidence]:
    """What the other signals add about these ranks."""
    states = [job.ranks[r] for r in ranks if r in job.ranks]
    more = [s for s in rule.signals.values() if s.fact in SUPPORTING]
    return [e for s in more for state in states for e in holds(job, state, s, now, 1e12, limits)]
