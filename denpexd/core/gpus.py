"""Facts about GPUs: their state, as NVIDIA's library tells it at an incident, and whose memory was missing."""

import re

from denpexd.core import cadence
from denpexd.core.evidence import Evidence
from denpexd.core.raised import of_exception
from denpexd.core.rule import Signal
from denpexd.core.state import Answer, JobState, RankState

FRESH = 300.0  # seconds for which a look counts; while training is slow it is repeated before that

_UNITS = {"K": 2.0**10, "M": 2.0**20, "G": 2.0**30, "T": 2.0**40, "": 1.0}
_SIZE = r"([\d.]+) ?([KMGT]?)i?B"
_ASKED = re.compile(r"Tried to allocate " + _SIZE)
_TOTAL = re.compile(_SIZE + r" total capac?ity|total capac?ity of " + _SIZE)
_FREE = re.compile(_SIZE + r" (?:is )?free")
_MINE = re.compile(r"this process has " + _SIZE)
_OTHERS = re.compile(r"Process \d+ has " + _SIZE)
_UNUSED = re.compile(_SIZE + r" is reserved by PyTorch but unallocated")
_RESERVED = re.compile(_SIZE + r" reserved in total by PyTorch")
_ALLOCATED = re.compile(_SIZE + r" already allocated")
OTHERS_SHARE = 0.1  # of the device; a context of an idle process takes less
CONTEXT = 2 * _UNITS["G"]  # what a process uses beside torch's allocator, at most, as a rule


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


def gpu_memory(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """`fragmented`: what torch holds without using it would have been enough; `other_process`: what others hold."""
    why = signal.params.get("why")

    def judge(text: str) -> bool:
        return (why != "other_process" and _fragmented(text)) or (why != "fragmented" and _other_process(text))

    found = []
    for known in rank.raised:
        event = known.event
        text = next((m for _, m in event.chain if _ASKED.search(m)), None)
        if text is not None and judge(text) and not job.moved_on(rank, event.t):
            found.append(of_exception(rank.rank, known, text, signal.means))
    for seen in rank.seen.values():
        found += [
            said.saying(signal.means)
            for said in (seen.first, seen.last)
            if _ASKED.search(said.text) and judge(said.text) and not job.moved_on(rank, said.t)
        ]
    return list(dict.fromkeys(found))


def _fragmented(text: str) -> bool:
    asked, unused = _one(_ASKED, text), _one(_UNUSED, text)
    if unused is None:
        reserved, allocated = _one(_RESERVED, text), _one(_ALLOCATED, text)
        unused = None if reserved is None or allocated is None else reserved - allocated
    return asked is not None and unused is not None and unused >= asked and unused >= 0.05 * (_one(_TOTAL, text) or 0)


def _other_process(text: str) -> bool:
    asked, total = _one(_ASKED, text), _one(_TOTAL, text)
    if asked is None or total is None:
        return False
    named = sum(_bytes(m.groups()) for m in _OTHERS.finditer(text))
    mine, free = _one(_MINE, text), _one(_FREE, text) or 0.0
    if mine is None and (reserved := _one(_RESERVED, text)) is not None:
        mine = reserved + CONTEXT
    others = max(named, total - free - mine if mine is not None else 0.0)
    return others >= asked and others >= OTHERS_SHARE * total


def _one(pattern: re.Pattern[str], text: str) -> float | None:
    found = pattern.search(text)
    return _bytes(found.groups()) if found else None


def _bytes(groups: tuple[str | None, ...]) -> float:
    number, unit = [g for g in groups if g is not None][:2]
    try:
        return float(number) * _UNITS[unit]
    except ValueError:
        return 0.0
