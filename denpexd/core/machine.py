"""Facts about the machine under a rank: its GPU and its memory, what had run full, what kernel and drivers say of it.

Whom a line of the kernel is about: see devices.
"""

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from denpexd.core import cadence, stands
from denpexd.core.devices import Noticed, place
from denpexd.core.events import UNKNOWN_RANK
from denpexd.core.evidence import Evidence
from denpexd.core.raised import of_exception
from denpexd.core.rank import RankState
from denpexd.core.records import Exited, RaisedBy
from denpexd.core.rule import Signal
from denpexd.core.state import Answer, JobState

FRESH = 300.0  # seconds for which a look counts; while training is slow it is repeated before that
CPU_FRESH = 150.0  # longer than between two looks in the first minutes of a standstill
_EXCLUDES = {"gpu_idle": "gpu_busy", "gpu_busy": "gpu_idle", "cpu_idle": "cpu_busy", "cpu_busy": "cpu_idle"}

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
_IN_USE = re.compile(_SIZE + r" is allocated by PyTorch")
OTHERS_SHARE = 0.1  # of the device; a context of an idle process takes less
CONTEXT = 2 * _UNITS["G"]  # what a process uses beside torch's allocator, at most, as a rule

AFTER = 15.0  # seconds for which what was full still explains a failure: its end is noticed late
BEFORE = 5.0  # seconds by which it may be noticed after the failure that it led to
START = 600.0  # seconds for which a line proves nothing in a job that has not trained yet: it may quote the past
AFTERMATH = 3.0  # seconds after a failure in which a line of the kernel may still tell its cause
LASTS = 3600.0  # seconds for which a degradation that the kernel reported is told
_DEVICE_WORDS = re.compile(r"(?i)cuda|nccl|cublas|cudnn|nvml|\bhip|rccl|xla|gpu")


def gpu_throttled(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """Its GPU has lowered its clocks because of heat or power, whether training goes on or not."""
    known = _fresh(rank, "gpu_throttled", now)
    return [known.saying(signal.means)] if known is not None else []


def gpu_ecc(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """Its GPU counts uncorrected memory errors, perhaps old ones: a local failure needs more."""
    known = rank.states.get("gpu_ecc")
    return [known.saying(signal.means)] if known is not None else []


def gpu_lost(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """The driver cannot talk to its GPU any more, and it has not moved since."""
    known = rank.states.get("gpu_lost")
    return [known.saying(signal.means)] if known is not None and stands.still(job, rank, known) else []


def gpu_idle(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """Its GPU does nothing while most known ones are busy, as they are in a collective that waits."""
    known = _fresh(rank, "gpu_idle", now)
    if known is None or not stands.still(job, rank, known):
        return []
    return [known.saying(signal.means)] if job.once("gpus busy", lambda: _most_gpus_busy(job, now)) else []


def _most_gpus_busy(job: JobState, now: float) -> bool:
    others = [s for r, s in job.ranks.items() if r >= 0 and (_fresh(s, "gpu_idle", now) or _fresh(s, "gpu_busy", now))]
    return 2 * sum(_fresh(s, "gpu_busy", now) is not None for s in others) > len(others)


def cpu_idle(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """Its process uses no CPU time while most known ones do, as those that wait for it inside NCCL."""
    few = rank.rank >= 0 and is_idle(job, rank, now) and job.once("few cpus idle", lambda: _few_cpus_idle(job, now))
    return [rank.states["cpu_idle"].saying(signal.means)] if few else []


def _few_cpus_idle(job: JobState, now: float) -> bool:
    ranks = [s for r, s in job.ranks.items() if r >= 0]
    busy = [s for s in ranks if (known := _fresh(s, "cpu_busy", now)) is not None and stands.still(job, s, known)]
    return len(busy) > sum(is_idle(job, s, now) for s in ranks)


def is_idle(job: JobState, rank: RankState, now: float) -> bool:
    """The newest look at the CPU time of its process, and of those below it, shows that it uses none."""
    known = _fresh(rank, "cpu_idle", now)
    return known is not None and now - known.t <= CPU_FRESH and stands.still(job, rank, known)


def _fresh(rank: RankState, name: str, now: float) -> Evidence | None:
    """The newest look at it, if that says so; of two that exclude each other the later counts."""
    known, other = rank.states.get(name), rank.states.get(_EXCLUDES.get(name, ""))
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
    named = sum(_named(text))
    mine, free = _one(_MINE, text), _one(_FREE, text) or 0.0
    if mine is None and (reserved := _one(_RESERVED, text)) is not None:
        mine = reserved + CONTEXT
    others = max(named, total - free - mine if mine is not None else 0.0)
    return others >= asked and others >= OTHERS_SHARE * total


def _named(text: str) -> list[float]:
    """What the message says of other processes, in bytes.

    In a container torch does not know its own pid, which is the host's, and names itself like another process: it is
    the smallest of those that hold at least what torch has.
    """
    sizes = sorted(_bytes(m.groups()) for m in _OTHERS.finditer(text))
    in_use = _one(_IN_USE, text)
    if _MINE.search(text) or in_use is None:
        return sizes
    torch = 0.99 * (in_use + (_one(_UNUSED, text) or 0.0))  # the numbers of the message are rounded
    own = next((size for size in sizes if size >= torch), None)
    if own is not None:
        sizes.remove(own)
    return sizes


def _one(pattern: re.Pattern[str], text: str) -> float | None:
    found = pattern.search(text)
    return _bytes(found.groups()) if found else None


def _bytes(groups: tuple[str | None, ...]) -> float:
    number, unit = [g for g in groups if g is not None][:2]
    try:
        return float(number) * _UNITS[unit]
    except ValueError:
        return 0.0


def xid(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """NVIDIA's driver reported one of these codes about the rank's process or its GPU."""
    unless = _with_code(job, str(signal.params.get("unless", "")))
    if unless and _about(job, rank, signal, now, unless):
        return []
    return _about(job, rank, signal, now, _with_code(job, str(signal.params.get("code", ""))))


def _with_code(job: JobState, codes: str) -> list[Noticed]:
    wanted = codes.replace(" ", "").split(",")
    return [n for n in job.devices.lines.values() if n.fields.get("xid") in wanted]


def kernel_line(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """The kernel or a driver printed such a line about the rank, its GPU or its node."""
    return _about(job, rank, signal, now, [n for n in job.devices.lines.values() if n.signal == signal.id])


def _about(job: JobState, rank: RankState, signal: Signal, now: float, lines: Iterable[Noticed]) -> Answer:
    """Those about this rank. The end of a process makes drivers complain, too: what came after it is no cause of it."""
    of = str(signal.params.get("of", "device"))
    found: Answer = []
    for one in lines:
        if one.count < signal.count or rank.rank not in job.once(("place", id(one), of), partial(place, job, one, of)):
            continue
        if of == "process" and _was_going_down(job, rank, one.first.t):
            continue
        if job.once(("had failed", one.first.t), partial(_had_failed, job, one.first.t)):
            continue
        if signal.lasting and _of_another_job(job, one):
            continue
        ends = [one.first] if one.first is one.last else [one.first, one.last]
        quoted = job.moved_t is None and now < one.first.t + START and job.once("prints", partial(_prints, job))
        weight = "suspect" if quoted else "fatal"
        found += [replace(e, rank=rank.rank, means=signal.means, weight=weight) for e in ends]
    return found


def _prints(job: JobState) -> bool:
    return any(s.ordinary for s in job.ranks.values())


def _had_failed(job: JobState, t: float) -> bool:
    """Well before `t` some rank had raised an exception that has nothing to do with a device, and that was the end."""
    raised = ((s, r) for s in job.ranks.values() for r in s.raised if r.event.uncaught and not r.collateral)
    return any(
        r.event.t < t - AFTERMATH and not _names_a_device(r) and not job.moved_on(s, r.event.t) for s, r in raised
    )


def _of_another_job(job: JobState, one: Noticed) -> bool:
    """Every rank has told which GPU it uses, and this is none of them."""
    used = {s.pci for r in job.universe if (s := job.ranks.get(r)) is not None}
    return "pci" in one.fields and None not in used and one.fields["pci"] not in used


def _names_a_device(raised: RaisedBy) -> bool:
    return any(_DEVICE_WORDS.search(f"{kind} {said}") for kind, said in raised.event.chain)


def _was_going_down(job: JobState, rank: RankState, t: float) -> bool:
    """Before `t` the rank had failed for a reason of its own, reported another one's failure, or was told to end."""
    if rank.reported is not None and rank.reported.t < t:
        return True
    if rank.phase == "end" or any(e.event.t < t - AFTERMATH or (e.event.t < t and _killed(e)) for e in rank.exits):
        return True
    told = [s for s in (rank, job.ranks.get(UNKNOWN_RANK)) if s is not None]
    if any(s.killing_t < t for s in told):
        return True
    return any(r.event.t < t and not _names_a_device(r) for r in rank.raised)


def _killed(exited: Exited) -> bool:
    """It was killed or left in good order; an abort may be what the line is about, and be seen before it."""
    return exited.event.code in (0, -9, 137, -15, 143)


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
