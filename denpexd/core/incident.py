"""Incidents: which candidate explains a stop best, when to speak, when it is over.

An attempt stops once: every candidate that stops training belongs to one incident until training moves again, and
the best explanation may change while its key does not. A degradation is an incident of its own.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from denpexd.core.match import Candidate
from denpexd.core.rule import Rule

SETTLE = 10.0  # late ranks print for seconds after the first error
QUIET = 5.0
CAP = 40.0
DEGRADATION_OVER = 600.0

_PRECISION = {"exact": 0, "general": 1, "symptom": 2}
_CERTAINTY = {"confirmed": 0, "likely": 1, "undetermined": 2}


@dataclass(slots=True)
class Incident:
    """One open incident and what was last said about it."""

    key: str
    opened_t: float
    candidate: Candidate
    attempt: int
    revision: int = 1
    updated_t: float = 0.0
    lapsed_since: float | None = None
    said: tuple[object, ...] = ()
    alternatives: list[tuple[str, str]] = field(default_factory=list)
    found_at_start: bool = False


def essence(candidate: Candidate) -> tuple[object, ...]:
    """What makes an update worth a message."""
    return (candidate.rule.id, candidate.certainty, candidate.initiating, candidate.collateral)


def superseded(rules: Mapping[str, Rule]) -> dict[str, frozenset[str]]:
    """For each rule the ids that it explains better, transitively."""
    closure: dict[str, frozenset[str]] = {}

    def reach(rule_id: str, path: frozenset[str]) -> frozenset[str]:
        if rule_id in closure or rule_id in path or rule_id not in rules:
            return closure.get(rule_id, frozenset())
        below = set(rules[rule_id].supersedes)
        for other in rules[rule_id].supersedes:
            below |= reach(other, path | {rule_id})
        return frozenset(below)

    for rule_id in rules:
        closure[rule_id] = reach(rule_id, frozenset())
    return closure


def beats(a: Candidate, b: Candidate, below: Mapping[str, frozenset[str]]) -> str | None:
    """Why `a` explains the stop better than `b`, or None."""
    if b.rule.id in below[a.rule.id]:
        return "explained by a more specific failure"
    if a.rule.id in below[b.rule.id]:
        return None
    symptom_a, symptom_b = a.rule.precision == "symptom", b.rule.precision == "symptom"
    if symptom_a != symptom_b:
        return "only describes the symptom" if symptom_b else None
    local = a.rule.correlation is None or b.rule.correlation is None
    if local and abs(a.cause_t - b.cause_t) > 1.0:
        return "came later, as a consequence" if a.cause_t < b.cause_t else None
    return "is less specific or less certain" if _before(a, b) else None


def _before(a: Candidate, b: Candidate) -> bool:
    """Of two ranks that failed at the same time, neither their numbers nor the order of reading decides anything."""
    worth_a, worth_b = _worth(a), _worth(b)
    if worth_a == worth_b and a.evidence and b.evidence and a.evidence[0].rank == b.evidence[0].rank:
        worth_a, worth_b = (*worth_a, a.cause_seq), (*worth_b, b.cause_seq)
    return (*worth_a, a.rule.id) < (*worth_b, b.rule.id)


def _worth(c: Candidate) -> tuple[float, ...]:
    """What was seen on a rank itself goes before what is concluded from several."""
    kind = (_PRECISION[c.rule.precision], _CERTAINTY[c.certainty], not c.fatal)
    return (*kind, c.cause_t, c.rule.correlation is not None)


def best(
    candidates: Iterable[Candidate], below: Mapping[str, frozenset[str]]
) -> tuple[Candidate | None, list[tuple[str, str]]]:
    """The candidate that most others yield to, and for the others why not. Deterministic for any input order."""
    pool = sorted(candidates, key=lambda c: c.rule.id)
    if not pool:
        return None, []

    def losses(c: Candidate) -> int:
        return sum(beats(other, c, below) is not None for other in pool if other is not c)

    winner = min(pool, key=lambda c: (losses(c), _PRECISION[c.rule.precision], c.cause_t, c.rule.id))
    return winner, [
        (c.rule.id, beats(winner, c, below) or "is less likely on this evidence") for c in pool if c is not winner
    ]


def make_key(job: str, attempt: int, stop: int, t: float) -> str:
    """A stable, readable key: same journal, same key; different runs of one job differ by the time."""
    slug = "".join(c if c.isalnum() else "-" for c in job.lower()).strip("-")[:40] or "job"
    return f"{slug}-a{attempt}-{stop}-{round(t * 1000):x}"


def due(first_t: float, news_t: float, now: float) -> bool:
    """Late ranks have had their say."""
    return (now >= first_t + SETTLE and now >= news_t + QUIET) or now >= first_t + CAP


def ranks_text(ranks: Sequence[int]) -> str:
    """(0, 1, 2, 5) -> "0-2,5"."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)
