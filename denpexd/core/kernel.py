"""Facts that lines of the kernel and of drivers establish about a rank. Whom a line is about: see devices."""

import re
from collections.abc import Iterable
from dataclasses import replace

from denpexd.core import cadence
from denpexd.core.devices import Noticed, place
from denpexd.core.events import UNKNOWN_RANK
from denpexd.core.records import Exited, RaisedBy
from denpexd.core.rule import Signal
from denpexd.core.state import Answer, JobState, RankState

START = 600.0  # seconds for which a line proves nothing in a job that has not trained yet: it may quote the past
AFTERMATH = 3.0  # seconds after a failure in which a line of the kernel may still tell its cause
LASTS = 3600.0  # seconds for which a degradation that the kernel reported is told
_DEVICE_WORDS = re.compile(r"(?i)cuda|nccl|cublas|cudnn|nvml|\bhip|rccl|xla|gpu")


def xid(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """NVIDIA's driver reported one of these codes about the rank's process or its GPU."""
    unless = _with_code(job, str(signal.params.get("unless", "")))
    if unless and _about(job, rank, signal, now, unless):
        return []
    return _about(job, rank, signal, now, _with_code(job, str(signal.params.get("code", ""))))


def _with_code(job: JobState, codes: str) -> list[Noticed]:
    wanted = codes.replace(" ", "").split(",")
    return [n for n in job.devices.lines.values() if n.fields.get("xid") in wanted]


def line(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """The kernel or a driver printed such a line about the rank, its GPU or its node."""
    return _about(job, rank, signal, now, [n for n in job.devices.lines.values() if n.signal == signal.id])


def _about(job: JobState, rank: RankState, signal: Signal, now: float, lines: Iterable[Noticed]) -> Answer:
    """Those about this rank. The end of a process makes drivers complain, too: what came after it is no cause of it."""
    of = str(signal.params.get("of", "device"))
    found: Answer = []
    for one in lines:
        if one.count < signal.count or rank.rank not in place(job, one, of):
            continue
        if of == "process" and _was_going_down(job, rank, one.first.t):
            continue
        if _had_failed(job, one.first.t) or (signal.lasting and _of_another_job(job, one)):
            continue
        ends = [one.first] if one.first is one.last else [one.first, one.last]
        quoted = job.moved_t is None and now < one.first.t + START and any(s.ordinary for s in job.ranks.values())
        weight = "suspect" if quoted else "fatal"
        found += [replace(e, rank=rank.rank, means=signal.means, weight=weight) for e in ends]
    return found


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
