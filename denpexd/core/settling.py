"""When a candidate may be said: late ranks have had their say, and what training survives is never told."""

from collections.abc import Iterable
from dataclasses import dataclass

from denpexd.core import cadence, operations
from denpexd.core.incident import QUIET, SETTLE, Incident, due
from denpexd.core.match import Candidate
from denpexd.core.state import JobState

MOST_PATIENT = 300.0
LAST_WORDS = 2.0  # a process may be known to have ended before what it printed last has been read
AGAIN = 600.0  # seconds after which the same failure is a new incident


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
