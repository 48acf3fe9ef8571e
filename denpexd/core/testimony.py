"""What each source of evidence says on its own about who began a stop, beside what the rule of a verdict asks for.

A source that names the same ranks is one more witness; one that names others speaks against the verdict, and what is
contradicted is never confirmed. Nothing counts that was seen before the rank moved last.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from denpexd.core import flight_facts, stands
from denpexd.core.candidate import Candidate
from denpexd.core.evidence import Evidence, beginning
from denpexd.core.numbers import ranks_named
from denpexd.core.rank import RankState
from denpexd.core.records import Snapshot
from denpexd.core.state import JobState

TOGETHER = 2.0  # seconds: two polls of the process table
GOES_ON = 5.0  # seconds after an error from which on work proves that it was not the end
_STATES = {  # of a process or its GPU, as a witness outside of it tells: kind of that witness, words
    "oom_killed": ("kernel", "was killed because memory ran out"),
    "frozen": ("process", "is stopped, or stuck in the kernel"),
    "unreachable": ("ras", "cannot be reached by NCCL"),
    "gpu_lost": ("gpu", "has lost its GPU"),
}
_LEAVING = re.compile(
    r"(?i)destroy_process_group|shutdown|atexit|_exit\b|__exit__|finali[sz]e|finish|clean_?up|teardown"
)


@dataclass(frozen=True, slots=True)
class Testimony:
    """One source names `ranks`; `text`: why, with them as its subject; `said`: what to quote."""

    kind: str
    ranks: tuple[int, ...]
    text: str
    said: tuple[Evidence, ...] = ()


def is_hang(c: Candidate, job: JobState) -> bool:
    """Nobody failed on its own: ranks waited for each other (also when that ended in timeouts)."""
    waited = any("timeout" in s.states for s in job.ranks.values())
    if c.rule.entry.category == "hang":
        return waited or not any(s.reported for s in job.ranks.values())  # else they lost a peer, and at once
    died = any(job.ranks[r].gone for r in c.initiating if r in job.ranks)
    stood = c.rule.correlation is not None and not any(s.gone or s.raised or s.reported for s in job.ranks.values())
    return c.rule.stops and (waited or stood) and not died


def weighed(c: Candidate, job: JobState, now: float) -> Candidate:
    """The candidate after every source was heard: what agrees is quoted, what contradicts is told as `against`."""
    if not c.initiating or not c.rule.stops:
        return c
    hang, named = is_hang(c, job), set(c.initiating)
    own = {e.kind for e in c.evidence if e.rank in named}
    against = [*_disproved(c, job, hang=hang)]
    agree: list[Evidence] = []
    for told in job.once(("testimonies", hang), lambda: [*_testimonies(job, now, hang=hang)]):
        if set(told.ranks) == named:
            agree += [e for e in told.said if e.kind not in own]
        elif named.isdisjoint(told.ranks) and (told.kind != "stack" or _waits_instead(c, job)):
            against.append(told.text)
    certainty = c.certainty
    if certainty == "likely" and c.sure and agree:
        certainty = "confirmed"
    if certainty == "confirmed" and against:
        certainty = "likely"
    return replace(c, certainty=certainty, evidence=(*c.evidence, *agree), against=tuple(against))


def _testimonies(job: JobState, now: float, *, hang: bool) -> Iterator[Testimony]:
    ranks = {r: s for r, s in sorted(job.ranks.items()) if r >= 0}
    for name, (kind, words) in _STATES.items():
        if found := {r: said for r, s in ranks.items() if (said := s.states.get(name)) and stands.still(job, s, said)}:
            text = f"{ranks_named(sorted(found))} {words}: {beginning(next(iter(found.values())).text, 200)}"
            yield Testimony(kind, tuple(found), text, tuple(replace(e, kind=kind, means=words) for e in found.values()))
    yield from _dumps(job, now)
    if hang:
        yield from _launched(job, ranks)
        yield from _outside(job, ranks)
        yield from _ended(job, ranks)
    else:
        yield from _launcher(ranks)


def _dumps(job: JobState, now: float) -> Iterator[Testimony]:
    case = flight_facts.analysis(job, now)
    if case is None or not case.verdict.initiating:
        return
    named = case.verdict.initiating
    said = (job.ranks[r].dump for r in named if r in job.ranks)
    means = "the Flight Recorder dumps of all ranks name it"
    quotes = (Evidence(d.dump.rank, "dump", d.dump.source, 0, d.dump.t, case.verdict.text, means) for d in said if d)
    yield Testimony(
        "dump", named, f"the Flight Recorder dumps name {ranks_named(named)}: {case.verdict.text}", (*quotes,)
    )


def _launched(job: JobState, ranks: dict[int, RankState]) -> Iterator[Testimony]:
    """NCCL's RAS counts what each rank has launched."""
    less = {r: s.states["launched_less"] for r, s in ranks.items() if _counted(job, s, "launched_less")}
    if less:
        text = f"{ranks_named(sorted(less))} launched less than most: {beginning(next(iter(less.values())).text, 200)}"
        yield Testimony("ras", tuple(less), text, tuple(less.values()))
    elif ranks and all(r in ranks and _counted(job, ranks[r], "launched_same") for r in job.universe):
        yield Testimony("ras", (), "NCCL's RAS says that all ranks have launched the same, so nobody was late in NCCL")


def _counted(job: JobState, state: RankState, name: str) -> bool:
    return stands.still(job, state, state.states.get(name))


def _outside(job: JobState, ranks: dict[int, RankState]) -> Iterator[Testimony]:
    """Most stacks end in a wait for other ranks, and some do not."""
    looks = _looks(job)
    outside = {r: look for r, look in looks.items() if not _waits(look)}
    if outside and 2 * len(outside) <= len(looks):
        means = "its stack is outside of any collective, while the others wait in one"
        places = {r: stands.place(look.frames.frames[0]) for r, look in outside.items()}
        quotes = (
            Evidence(r, "stack", look.frames.kind, 0, look.frames.t, places[r], means, seq=look.seq)
            for r, look in outside.items()
        )
        whose, where = ranks_named(sorted(outside)), places[min(outside)]
        text = f"the stack of {whose} is outside of any collective, in {where}, while others wait"
        yield Testimony("stack", tuple(outside), text, (*quotes,))


def _looks(job: JobState) -> dict[int, Snapshot]:
    known = {r: stands.newest(job, s) for r, s in job.ranks.items() if r >= 0}
    return {r: look for r, look in sorted(known.items()) if look is not None and look.frames.kind != "traceback"}


def _waits(look: Snapshot) -> bool:
    return any(stands.WAITING.search(frame.canonical) for frame in look.frames.frames)


def _waits_instead(c: Candidate, job: JobState) -> bool:
    """The verdict does not rest on stacks, and those of the ranks that it blames show them waiting for others."""
    looks = _looks(job)
    rests = any(e.kind == "stack" and e.rank in c.initiating for e in c.evidence)
    return not rests and all(r in looks and _waits(looks[r]) for r in c.initiating)


def _ended(job: JobState, ranks: dict[int, RankState]) -> Iterator[Testimony]:
    """One process ended badly before anybody complained, and well before any other: others waited for it."""
    ends = sorted((s.gone.event.t, r) for r, s in ranks.items() if s.gone is not None)
    if not ends:
        return
    (t, first), rest = ends[0], [t for t, _ in ends[1:]]
    said = [s.reported.t for s in ranks.values() if s.reported]
    exits = ranks[first].exits
    if t + TOGETHER >= min([*rest, *said], default=float("inf")) or job.clean or len(ranks) == 1:
        return
    codes = {e.event.code for e in exits if e.event.code is not None}
    if 0 in codes or any(e.forced for e in exits) or ranks[first].phase == "end":
        return
    how = f"exit code {min(codes)}" if codes else "nobody saw how"
    text = f"the process of {ranks_named((first,))} had ended ({how}) before any rank complained"
    yield Testimony("process", (first,), text, (Evidence(first, "process", exits[0].event.source, 0, t, text, how),))


def _launcher(ranks: dict[int, RankState]) -> Iterator[Testimony]:
    """Of crashes the launcher's summary is right, except where it means a rank that had lost another by then."""
    roots = {r: s.states["launcher_root"] for r, s in ranks.items() if "launcher_root" in s.states and not s.reported}
    if roots:
        text = f"the launcher's summary names {ranks_named(sorted(roots))} as the one that failed first"
        yield Testimony("launcher", tuple(roots), text, tuple(roots.values()))


def _disproved(c: Candidate, job: JobState, *, hang: bool) -> Iterator[str]:
    """What a rank does after its error, which was not its end; and counts that leave no room for a late rank."""
    if hang or c.rule.correlation is not None:
        return
    last: dict[int, float] = {}
    for e in c.evidence:
        if e.kind == "log":
            last[e.rank] = max(e.t, last.get(e.rank, e.t))
    for rank in c.initiating:
        state, said = job.ranks.get(rank), last.get(rank)
        look = _work_after(state, said) if state is not None and said is not None and not state.gone else None
        if look is not None and said is not None:
            at = next(stands.place(f) for f in look.frames.frames if stands.is_own(f.path))
            yield f"rank {rank} goes on: {look.frames.t - said:.0f} s after its error its stack is in {at}"


def _work_after(state: RankState, t: float) -> Snapshot | None:
    """The newest look at the rank if it shows it at work in its own program after `t`, and not on its way out."""
    looks = [s for s in state.snapshots.values() if s.frames.kind == "py-spy" and s.frames.t >= t + GOES_ON]
    look = max(looks, key=lambda s: s.frames.t, default=None)
    if look is None or _waits(look) or not any(stands.is_own(f.path) for f in look.frames.frames):
        return None
    return None if any(_LEAVING.search(f.canonical) for f in look.frames.frames) else look
