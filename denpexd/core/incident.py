"""Incidents: which candidate explains a stop best, when it may be said, when it is over.

An attempt stops once: every candidate that stops training belongs to one incident until training moves again, and
the best explanation may change while its key does not. A degradation is an incident of its own. Late ranks have their
say first, and what training survives is never told.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from denpexd.core import cadence, operations
from denpexd.core.candidate import Candidate
from denpexd.core.state import JobState

SETTLE = 10.0  # late ranks print for seconds after the first error
QUIET = 5.0
CAP = 40.0
DEGRADATION_OVER = 600.0

_PRECISION = {"exact": 0, "general": 1, "symptom": 2}
_CERTAINTY = {"confirmed": 0, "likely": 1, "undetermined": 2}

MOST_PATIENT = 300.0
LAST_WORDS = 2.0  # a process may be known to have ended before what it printed last has been read
AGAIN = 600.0  # seconds after which the same failure is a new incident


@dataclass(slots=True)
class Incident:
    """One open incident and what was last said about it; `stopped_t`: the last progress before it, if it is a stop."""

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
    stopped_t: float | None = None


def essence(candidate: Candidate) -> tuple[object, ...]:
    """What makes an update worth a message."""
    return (candidate.rule.id, candidate.certainty, candidate.initiating, candidate.collateral)


def told_over(told: Mapping[str, object], now: float) -> Mapping[str, object]:
    """The end of an incident of which only its last verdict is known."""
    change = {"state": "closed", "event": "closed", "revision": told_revision(told) + 1, "updated_t": now}
    return {**told, **change}


def told_essence(told: Mapping[str, object]) -> tuple[object, ...]:
    """What was told, as `essence` has it."""
    ranks = (_told_ranks(told, f"{role}_ranks") for role in ("initiating", "collateral"))
    return (told.get("failure"), told.get("certainty"), *ranks)


def told_revision(told: Mapping[str, object]) -> int:
    """How often it was told."""
    return int(str(told.get("revision", 1)))


def _told_ranks(told: Mapping[str, object], name: str) -> tuple[int, ...]:
    found = told.get(name)
    return tuple(int(r) for r in found) if isinstance(found, list | tuple) else ()


def told_stopped(told: Mapping[str, object]) -> float | None:
    """When its last progress was, if that was told."""
    stopped = told.get("stopped_t")
    return float(stopped) if isinstance(stopped, int | float) else None


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


@dataclass(frozen=True, slots=True)
class Moment:
    """Now, and since when the rule has matched and nothing new was heard. `ending`: nothing more will be observed."""

    now: float
    matched_since: float
    news_t: float
    ending: bool


def stop_witness(job: JobState, limits: cadence.Limits) -> float | None:
    """When the first witness said that training has stopped, other than by silence; None if nobody did."""
    times = list(operations.asked(job, limits))
    for state in job.ranks.values():
        if state.reported and not job.lapsed(state, state.reported.t):
            times.append(state.reported.t)
        times += [r.event.t for r in state.raised if r.event.uncaught and not job.lapsed(state, r.event.t)]
        times += [e.event.t for e in state.exits if not e.forced and e.event.code not in (0, None)]
    return min(times, default=None)


def ready(c: Candidate, job: JobState, limits: cadence.Limits, at: Moment) -> bool:
    """May this candidate open an incident?"""
    if (c.history and not job.recent) or (job.clean and c.certainty != "confirmed"):
        return False
    if at.now - at.matched_since < (c.rule.correlation.hold if c.rule.correlation else 0.0):
        return False
    if c.rule.stops and operations.interrupted(job, c.cause_t):
        return False
    witness = stop_witness(job, limits)
    if witness is not None and (job.over or at.ending):
        exact = c.rule.precision == "exact"
        return exact or at.ending or at.now >= at.news_t + LAST_WORDS
    if at.ending and c.fatal and c.rule.correlation is None and at.now >= c.cause_t + SETTLE:
        return True  # nothing was printed since that speaks against it, and nothing more will be
    if c.history and job.silence(at.now) < limits.min_silence:
        return False  # it stood there before we came; the job may well be past it
    first = c.cause_t if witness is None else min(witness, c.cause_t)
    settled = due(first, at.news_t, at.now) and _no_survival_expected(job, first, at.now)
    settled = settled and (at.now >= first + AGAIN or not operations.left_on_purpose(job, limits))
    reported, ended = _reported(job), _ended_badly(job, c.initiating)
    if c.rule.correlation is None:
        if c.fatal and c.certainty == "confirmed" and (reported or ended):
            return True
        return settled and (c.fatal or reported or _ended_badly(job, job.ranks))
    if c.certainty == "confirmed" and ended:
        return at.now >= at.news_t + QUIET
    stalled = job.silence(at.now) >= cadence.page(limits, job.usual)
    if witness is None or (stalled and c.certainty == "confirmed"):
        return stalled
    return settled


def _no_survival_expected(job: JobState, first: float, now: float) -> bool:
    """Words alone stop nothing: unless a process has ended, the next steps get the chance to prove it."""
    return _ended_badly(job, job.ranks) or _reported(job) or now >= first + min(MOST_PATIENT, job.proof)


def _reported(job: JobState) -> bool:
    return any(s.reported for s in job.ranks.values())


def _ended_badly(job: JobState, ranks: Iterable[int]) -> bool:
    """A process of these ranks has ended, and not with exit code 0: what they could say is said."""
    return any(e.event.code != 0 for r in ranks if r in job.ranks for e in job.ranks[r].exits)


def moved_on(job: JobState, incident: Incident) -> bool:
    """Training goes on: two more steps after the incident opened, beyond those that were in flight."""
    since = max(incident.opened_t, incident.candidate.evidence[-1].t)
    ended = any(r in job.ranks and job.ranks[r].gone for r in incident.candidate.initiating)
    moved = job.trained_t if ended else job.moved_t  # an evaluation that goes on elsewhere brings no process back
    return moved is not None and moved > since + max(2.0, 2 * (job.usual or 0.0))


def comes_again(was: Incident, c: Candidate, job: JobState, now: float) -> bool:
    """The launcher started the workers anew after that incident, and the same ranks have failed again soon."""
    failed = [one.t for one in job.rounds if one.t >= was.opened_t - SETTLE]
    return bool(failed) and now - was.updated_t <= AGAIN and was.candidate.initiating == c.initiating
