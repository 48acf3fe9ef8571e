"""Exceptions that a rank raised, as facts, and what had run full when it did: never a failure by itself."""

from denpexd.core import cadence
from denpexd.core.evidence import Evidence
from denpexd.core.records import RaisedBy
from denpexd.core.rule import Signal
from denpexd.core.state import Answer, JobState, RankState

AFTER = 15.0  # seconds for which what was full still explains a failure: its end is noticed late
BEFORE = 5.0  # seconds by which it may be noticed after the failure that it led to


def raised(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    if signal.params.get("alone") and _raised_elsewhere(job, rank, signal):
        return []
    found = []
    for known in rank.raised:
        event = known.event
        over = rank.phase == "end" and event.t > rank.phase_t and not any(e.event.code for e in rank.exits)
        past = (event.history and rank.outlived(event.source, known.seq)) or any(e.event.code == 0 for e in rank.exits)
        if known.collateral or over or past or job.lapsed(rank, event.t) or not chain_matches(signal, event.chain):
            continue
        where = signal.param_matchers.get("in")
        if where and not any(where.search(f.canonical) or where.search(f.qualified) for f in event.frames):
            continue
        if signal.exclude and any(signal.exclude.search(f"{kind}: {message}") for kind, message in event.chain):
            continue
        found.append(of_exception(rank.rank, known, event.text, signal.means))
    return found


def _raised_elsewhere(job: JobState, rank: RankState, signal: Signal) -> bool:
    """Whether another rank raised the same by itself."""
    others = (known for r, s in job.ranks.items() if r >= 0 and r != rank.rank for known in s.raised)
    return any(not known.collateral and chain_matches(signal, known.event.chain) for known in others)


def chain_matches(signal: Signal, chain: tuple[tuple[str, str], ...]) -> bool:
    """Whether an exception of the chain is of the type, and says, what the signal asks for."""
    kind, message = signal.param_matchers.get("type"), signal.param_matchers.get("message")
    for name, said in chain:
        right_kind = kind is None or kind.search(name) or kind.search(name.rsplit(".", 1)[-1])
        if right_kind and (message is None or message.search(said)):
            return True
    return False


def of_exception(rank: int, known: RaisedBy, text: str, means: str) -> Evidence:
    """`text` of a known exception, as evidence that `means` something."""
    event, weight = known.event, "fatal" if known.event.uncaught else "suspect"
    at = (rank, "log", event.source, event.offset, event.t)
    return Evidence(*at, text, means, seq=known.seq, weight=weight, history=event.history)


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
