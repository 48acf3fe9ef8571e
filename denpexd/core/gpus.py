"""Facts about the state of GPUs, as NVIDIA's library tells it at an incident."""

from denpexd.core import cadence
from denpexd.core.evidence import Evidence
from denpexd.core.rule import Signal
from denpexd.core.state import Answer, JobState, RankState

FRESH = 300.0  # seconds for which a look counts; while training is slow it is repeated before that


def throttled(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """Its GPU has lowered its clocks because of heat or power, whether training goes on or not."""
    known = _fresh(rank, "gpu_throttled", now)
    return [known.saying(signal.means)] if known is not None else []


def ecc(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """Its GPU counts uncorrected memory errors, perhaps old ones: a local failure needs more."""
    known = rank.states.get("gpu_ecc")
    return [known.saying(signal.means)] if known is not None else []


def lost(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """The driver cannot talk to its GPU any more, and it has not moved since."""
    known = rank.states.get("gpu_lost")
    if known is None or known.t < rank.moved_t or job.moved_on(rank, known.t):
        return []
    return [known.saying(signal.means)]


def idle(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """Its GPU does nothing while most known ones are busy, as they are in a collective that waits."""
    known = _fresh(rank, "gpu_idle", now)
    if known is None or known.t < rank.moved_t or job.moved_on(rank, known.t):
        return []
    others = [s for r, s in job.ranks.items() if r >= 0 and (_fresh(s, "gpu_idle", now) or _fresh(s, "gpu_busy", now))]
    busy = [s for s in others if _fresh(s, "gpu_busy", now) is not None]
    return [known.saying(signal.means)] if len(busy) * 2 > len(others) else []


def _fresh(rank: RankState, name: str, now: float) -> Evidence | None:
    """The newest look at it, if that says so; of two that exclude each other the later counts."""
    known, other = (
        rank.states.get(name),
        rank.states.get({"gpu_idle": "gpu_busy", "gpu_busy": "gpu_idle"}.get(name, "")),
    )
    if known is None or now - known.t > FRESH or (other is not None and other.t > known.t):
        return None
    return known
