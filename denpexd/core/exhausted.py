"""The fact that something had run full when a rank failed: never a failure by itself, but the reason for one."""

from denpexd.core import cadence
from denpexd.core.rule import Signal
from denpexd.core.state import Answer, JobState, RankState

AFTER = 15.0  # seconds for which what was full still explains a failure: its end is noticed late
BEFORE = 5.0  # seconds by which it may be noticed after the failure that it led to


def exhausted(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """Something (`what`) was full on the node of the rank at the time at which it raised an exception or went."""
    what = str(signal.params.get("what", ""))
    known = rank.states.get(f"exhausted {what}")
    if known is None:
        return []
    eased = rank.states.get(f"eased {what}")
    until = eased.t if eased is not None and eased.t > known.t else float("inf")
    failed = [r.event.t for r in rank.raised if not r.collateral] + [e.event.t for e in rank.exits]
    if not any(known.t - BEFORE <= t <= until + AFTER for t in failed):
        return []
    return [known.saying(signal.means)]
