"""Facts about what happens to a job from outside: who told it to stop, who killed it, how often it was restarted.

A stop that somebody asked for explains what follows it, never what came before: a job that had failed or stood still
when it was told to stop was not stopped by that. A word that a failing job's own launcher also causes (SIGTERM to the
other workers, a step that is cancelled) counts only where nothing else explains the end.
"""

import re
from collections.abc import Iterator

from denpexd.core import cadence, places
from denpexd.core.events import UNKNOWN_RANK
from denpexd.core.evidence import Evidence
from denpexd.core.rank import RankState
from denpexd.core.records import Round, Told
from denpexd.core.rule import Rule, Signal
from denpexd.core.state import Answer, JobState

_SAVES = re.compile(r"(?i)\bsav(?:e|ing)\b|\bcheckpoint")
WEAK = ("cancelled", "signal", "probe")
OF_A_NODE = ("spot", "eviction", "node_failure")
PLACED = (*OF_A_NODE, "probe")  # said of a part of the job: the rest loses a peer
NOTICES = ("spot", "probe")  # said in advance: training goes on for a while
SURE = ("time_limit", "memory_limit", "preemption", "spot", "eviction", "node_failure")  # a scheduler gives the reason
LIMITS = ("time_limit", "memory_limit")  # of the job as a whole; some schedulers say so when all are killed
SILENT = ("person", "program")  # nothing is wrong, nobody is told
NOTICE = 600.0  # seconds that a notice is given in advance, at most
GRACE = 10.0  # seconds between SIGTERM and SIGKILL, at least
KILLED_WITHIN = 60.0  # a kernel or scheduler line and the end of the process it is about
ASKED = frozenset({-15, 143, -2, 130, -1, 129})
KILLED = frozenset({-9, 137})
LATE = 3600.0  # seconds after which a lost node is declared, at most
SAME_REPORT = 2.0  # seconds between the lines of one report
ROUND = 1800.0  # attempts that end within this time of each other are a loop


def told_to_stop(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """Holds for the ranks of the node it was said about; for a whole job on the stream of no rank, as nobody began."""
    by, wait = signal.params.get("by"), float(signal.params.get("for", 0.0))
    found = []
    for told in [each for event, every in job.told.items() if by in (event, None) for each in every]:
        since = max(told.evidence.t, job.moved_t or told.evidence.t)
        if now - since >= wait and stands(job, told, limits) and not _vague(job, told) and _concerns(job, rank, told):
            said = told.evidence.saying(signal.means)
            found.append(said if rank.rank == said.rank else _about(said, rank.rank))
    return found[:1]


def stands(job: JobState, told: Told, limits: cadence.Limits) -> bool:
    """Whether that is what stopped the job: it moved until then, has not moved since, and nothing had failed."""
    return job.once(("told", id(told)), lambda: _stands(job, told, limits))


def _stands(job: JobState, told: Told, limits: cadence.Limits) -> bool:
    t = told.evidence.t
    last = max((s.moved_t for r, s in job.ranks.items() if r >= 0), default=float("-inf"))
    if told.event in NOTICES:
        stop = min((e.t for e in _ends(job) if e.t >= t), default=None)
        if stop is None or stop > t + NOTICE or last > stop + _flight(job):
            return False
    elif last > t + _flight(job):
        return False
    if told.event not in SILENT and told.event != "rescaled" and told.silence > _patience(told, limits):
        return False
    if told.phase == "end" or (told.event in WEAK and _by_its_launcher(job, t)):
        return False
    if told.event == "signal" and any(t <= one.evidence.t <= t + NOTICE for one in job.told.get("program", ())):
        return False  # the program was prepared, saved and left: that is news only if it does not come back
    until = float("inf") if told.event in WEAK else t
    return not any(e.t <= until and _counts(told, e) for e in _failures(job))


def _by_its_launcher(job: JobState, t: float) -> bool:
    """The launcher had said that it would stop its workers, for another one or for a new set of nodes."""
    told = any(one.evidence.t <= t for one in job.told.get("launcher", ()))
    planned = any(t - NOTICE <= one.evidence.t <= t for one in job.told.get("rescaled", ()))
    return planned or (not told and any(t - NOTICE <= s.killing_t <= t for s in job.ranks.values()))


def left_on_purpose(job: JobState, limits: cadence.Limits) -> bool:
    """Whether the program said that it saves and leaves, and nothing had failed: it may well be started again."""
    left = [*job.told.get("program", ()), *(t for t in job.told.get("signal", ()) if _SAVES.search(t.evidence.text))]
    return any(stands(job, told, limits) for told in left)


def sure(job: JobState, rule: Rule, limits: cadence.Limits) -> bool:
    """Whether a scheduler or the cloud itself gave this rule's reason: that is no guess."""
    reasons = [s.params.get("by") for s in rule.signals.values() if s.fact == "told_to_stop"]
    return any(stands(job, told, limits) for by in reasons if by in SURE for told in job.told.get(str(by), ()))


def _flight(job: JobState) -> float:
    """Steps that were on their way still appear."""
    return max(2.0, 2 * (job.usual or 0.0))


def _patience(told: Told, limits: cadence.Limits) -> float:
    """Silence before the word came after which something else had stopped the job."""
    if told.event in OF_A_NODE:
        return LATE  # it is noticed by timeouts, and said after them
    if told.usual is None or told.phase not in ("train", "start"):
        return limits.budgets.get(told.phase, 1200.0)
    return max(120.0, 10 * told.usual)


def _counts(told: Told, failed: Evidence) -> bool:
    """A forced end after a weak word is what follows when a process does not stop in time.

    Who lost a node says so, and may end, before anybody declares the node lost.
    """
    lost = told.event in PLACED or (told.node and failed.t > told.evidence.t)
    if lost and failed.kind in ("report", "victim"):
        return False
    if told.event in LIMITS and failed.text in ("-9", "137") and told.evidence.t - failed.t <= KILLED_WITHIN:
        return False
    forced = (
        failed.kind in ("process", "victim") and failed.text in ("-9", "137") and failed.t >= told.evidence.t + GRACE
    )
    return not (told.event in WEAK and forced)


def _failures(job: JobState) -> Iterator[Evidence]:
    """What failed by itself, or reported that another rank did. `text` of a process is its exit code."""
    for number, state in job.ranks.items():
        for known in state.raised:
            if not known.collateral and not job.moved_on(state, known.event.t):
                yield Evidence(number, "log", "", 0, known.event.t, known.event.text, "")
        if state.reported is not None and not job.moved_on(state, state.reported.t):
            yield Evidence(number, "report", "", 0, state.reported.t, state.reported.text, "")
        followed = state.reported is not None or (bool(state.raised) and all(r.collateral for r in state.raised))
        for exited in state.exits:
            code = exited.event.code
            if not exited.forced and code not in (0, None) and code not in ASKED and not (followed and code > 0):
                kind = "victim" if followed else "process"  # a watchdog aborts who waits for a lost rank
                yield Evidence(number, kind, "", 0, exited.event.t, str(code), "")


def _ends(job: JobState) -> Iterator[Evidence]:
    """Whatever shows that the job has stopped."""
    yield from _failures(job)
    for event in ("launcher", "signal", "cancelled", "program", "node_failure", "eviction"):
        for told in job.told.get(event, ()):
            yield told.evidence
    for number, state in job.ranks.items():
        for exited in state.exits:
            yield Evidence(number, "process", "", 0, exited.event.t, "", "")


def _concerns(job: JobState, rank: RankState, told: Told) -> bool:
    if told.event in PLACED:
        lost = job.once(("node", id(told)), lambda: _ranks_of_node(job, told))
    else:
        lost = job.once(("part", told.event), lambda: _part(job, told.event)) if told.node else set()
    return rank.rank in lost if lost else rank.rank == UNKNOWN_RANK


def _vague(job: JobState, told: Told) -> bool:
    """Another line of the same report names the machine."""
    if told.node or told.event not in PLACED:
        return False
    near = [one for one in job.told[told.event] if abs(one.evidence.t - told.evidence.t) <= SAME_REPORT]
    return job.once(("vague", id(told)), lambda: any(one.node and places.on(job, one.node) for one in near))


def _part(job: JobState, event: str) -> set[int]:
    """The ranks of all machines to which it was said; nobody's where they are the whole job, or not known."""
    named = {r for told in job.told[event] for r in places.on(job, told.node)}
    return named if len(named) < len(job.universe) else set()


def _ranks_of_node(job: JobState, told: Told) -> set[int]:
    """The ranks of the node that is named or on which it was said; where nodes are not known, who did not report."""
    ranks = {r: s for r, s in job.ranks.items() if r >= 0}
    if named := places.on(job, told.node):
        return named
    teller = told.evidence.rank
    mine = ranks[teller].node if teller in ranks and not told.node else None
    there = {r for r, s in ranks.items() if mine and places.same_host(s.node, mine)}
    living = {r for r, s in ranks.items() if s.reported is not None and r != teller}
    if told.event == "node_failure":  # who tells of it is elsewhere, as is who was seen to end
        living |= {teller, *there, *(r for r, s in ranks.items() if _seen_to_end(s))} - {UNKNOWN_RANK}
        teller = UNKNOWN_RANK
    elif there - living:
        return there - living
    return set(job.universe) - living if living else {teller} - {UNKNOWN_RANK}


def _seen_to_end(state: RankState) -> bool:
    """Its launcher told its exit code, as none can of a node that is gone."""
    return any(e.event.source == "launcher" and e.event.code is not None for e in state.exits)


def asked_before(job: JobState, t: float) -> bool:
    """Whether somebody had told the job to stop before: how its processes then ended is no failure."""
    return any(
        told.evidence.t <= t and not job.moved_on(job.rank(UNKNOWN_RANK), told.evidence.t)
        for event in (*SILENT, "launcher", *LIMITS, "preemption", "eviction", "spot")
        for told in job.told.get(event, ())
    )


def interrupted(job: JobState, t: float) -> bool:
    """A person stopped the job: what is seen from then on, until it trains again or for a while, is the end of it."""
    return any(
        told.evidence.t - 2.0 <= t
        and (t <= told.evidence.t + NOTICE or job.over)
        and not job.moved_on(job.rank(UNKNOWN_RANK), told.evidence.t)
        for told in job.told.get("person", ())
    )


def asked(job: JobState, limits: cadence.Limits) -> Iterator[float]:
    """When the job was told to stop, by anybody whose word explains the stop."""
    for event, told in job.told.items():
        if event not in SILENT and not event.startswith("oom_") and event != "rescaled":
            yield from (each.evidence.t for each in told if stands(job, each, limits))


def oom_killed(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """A witness named the process; or it was killed, or vanished, when a witness told of an OOM kill."""
    by = signal.params.get("by")
    known = rank.states.get("oom_killed")
    found = []
    if (
        known is not None
        and known.t >= rank.moved_t
        and not job.moved_on(rank, known.t)
        and by in (None, _kernel_or_cgroup(known.text))
    ):
        found.append(known.saying(signal.means))
    return found + [
        _about(told.evidence.saying(signal.means), rank.rank)
        for told in job.told.get(f"oom_{by}", ())
        if not job.moved_on(rank, told.evidence.t) and _killed_then(job, rank, told)
    ]


def _kernel_or_cgroup(text: str) -> str:
    if "emory cgroup" in text or "MEMCG" in text:
        return "cgroup"
    return "kernel" if "ut of memory" in text or "oom-kill" in text else ""


def _killed_then(job: JobState, rank: RankState, told: Told) -> bool:
    t = told.evidence.t
    if rank.rank == UNKNOWN_RANK or rank.reported is not None:
        return False
    named = places.is_on(rank, told.node)
    if told.node and rank.node and not named:
        return False
    near = [e for e in rank.exits if abs(e.event.t - t) <= KILLED_WITHIN and not e.forced]
    if any(e.event.code in KILLED for e in near):
        return True
    if job.once("killed", lambda: _some_killed(job)):
        return False  # it was another one
    complained = job.once("lost", lambda: {r for r, s in job.ranks.items() if s.reported is not None})
    lost = bool(complained)
    only = lost and len(complained - {UNKNOWN_RANK}) == len(job.universe) - 1  # all but this one
    vanished = any(e.event.code is None for e in near) and not any(e.event.code is not None for e in rank.exits)
    here = (named or only or told.evidence.rank == rank.rank) and not rank.raised and (lost or bool(near))
    return here or (vanished and lost)


def _some_killed(job: JobState) -> bool:
    return any(e.event.code in KILLED and not e.forced for s in job.ranks.values() for e in s.exits)


def restarted(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """Holds for the rank that failed first in a row of attempts which ended with the same code."""
    times = int(signal.params.get("times", 3))
    row: list[Round] = []
    for one in reversed(job.rounds):
        if row and (one.agent != row[-1].agent or one.code != row[-1].code or row[-1].t - one.t > ROUND):
            break
        row.append(one)
    if len(row) < times or row[-1].rank != rank.rank:
        return []
    when = ", ".join(f"{one.t:.0f} s" for one in reversed(row))
    text = f"{len(row)} attempts in a row ended with exit code {row[0].code} (at {when}); {row[0].evidence.text}"
    e, since = row[0].evidence, row[-1].evidence.seq  # what it reported in later attempts makes it no victim
    return [Evidence(rank.rank, e.kind, e.source, e.offset, e.t, text, signal.means, seq=since)]


def _about(said: Evidence, rank: int) -> Evidence:
    """The same line as evidence about another rank than the one in whose stream it stands."""
    return Evidence(
        rank, said.kind, said.source, said.offset, said.t, said.text, said.means,
        teller=said.teller, seq=said.seq, weight=said.weight, history=said.history,
    )  # fmt: skip
