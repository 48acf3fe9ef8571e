"""Facts about ranks that are not there: who never joined, who says nothing while the others report a loss.

Same shape as those of facts.py. The facts in ABSENT also hold for ranks that were never heard from.
"""

from denpexd.core import cadence, places, stands
from denpexd.core.events import UNKNOWN_RANK
from denpexd.core.evidence import Evidence
from denpexd.core.rank import RankState
from denpexd.core.records import Seen
from denpexd.core.rule import Signal
from denpexd.core.state import Answer, JobState, observed

ABSENT = frozenset({"missing_rank", "unreported", "rank_is"})
STARTUP = "startup."  # shared signals of this file speak about a start that is not complete


def rank_is(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    if signal.params.get("number", rank.rank) != rank.rank:
        return []
    return [observed(rank, now, f"it is rank {rank.rank}", signal.means)]


def complete(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """Its loop reached its last step, or it said after its last step that training is over, or it left with 0."""
    said = rank.seen.get("phase.end")
    if said is not None and said.last.t >= rank.moved_t:
        return [said.last.saying(signal.means)]
    reached = rank.total is not None and rank.step is not None and 1 < rank.total <= rank.step + 1
    if rank.phase == "end" or reached or any(e.event.code == 0 for e in rank.exits):
        return [observed(rank, now, f"it was done (last step {rank.step})", signal.means)]
    return []


def unreported(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """Other ranks reported a loss or a timeout; this one said nothing of the kind and did not end well."""
    others = job.once("reports", lambda: [s.reported.t for r, s in job.ranks.items() if r >= 0 and s.reported])
    if not others or rank.rank < 0 or rank.reported or rank.moved_t > job.once("first report", lambda: min(others)):
        return []
    if complete(job, rank, signal, now, limits):
        return []
    text = "reported nothing" if rank.heard else "was never heard from"
    return [observed(rank, now, f"{text} when {len(others)} others did", signal.means)]


def named_peer(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """Other ranks name its host as the peer that they lost."""
    named = job.once("peers", lambda: _peers(job))
    told = [e for name in (_hosts(rank) if named else ()) for r, e in named.get(_host(name), ()) if r != rank.rank]
    return [told[0].saying(signal.means)] if told else []


def _peers(job: JobState) -> dict[str, list[tuple[int, Evidence]]]:
    """Host -> who named it as a lost peer, at most two of them."""
    named: dict[str, list[tuple[int, Evidence]]] = {}
    for number, state in job.ranks.items():
        for seen in state.seen.values() if number != UNKNOWN_RANK else ():
            host = _host(seen.fields.get("peer", "").partition("<")[0].strip("[]"))
            if host and len(named.setdefault(host, [])) < 2:
                named[host].append((number, seen.first))
    return named


def _host(name: str) -> str:
    """A name without its domain; an address as it is."""
    return name if name[:1].isdigit() else name.partition(".")[0]


def _hosts(rank: RankState) -> list[str]:
    said = {value for s in rank.seen.values() for key in ("host", "address") if (value := s.fields.get(key))}
    return sorted(said | ({rank.node} if rank.node else set()))


def whole_nodes(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """It raised an error of its own, as did every rank of its node, and no rank of the other nodes did."""
    failed = job.once("failed", lambda: _failed(job))
    if rank.rank not in failed or not job.once("whole nodes", lambda: _are_nodes(job, frozenset(failed))):
        return []
    text = f"ranks {min(failed)}-{max(failed)} raised errors of their own: all of their nodes, none of others"
    return [observed(rank, now, text, signal.means)]


def _failed(job: JobState) -> set[int]:
    return {r for r, s in job.ranks.items() if r >= 0 and any(e.event.uncaught and not e.collateral for e in s.raised)}


def _are_nodes(job: JobState, some: frozenset[int]) -> bool:
    """Whether these ranks are whole nodes; where nodes are not known: one of several equal blocks of ranks."""
    ranks = job.universe
    nodes = {r: job.ranks[r].node for r in ranks if r in job.ranks and job.ranks[r].node}
    if len(nodes) == len(ranks):
        inside = {nodes[r] for r in some}
        return some == {r for r in ranks if nodes[r] in inside} and len(some) < len(ranks)
    size, first = len(some), min(some)
    block = max(some) - first + 1 == size and first % size == 0
    return block and 1 < size < len(ranks) and len(ranks) % size == 0


def several_nodes(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """The ranks of the job are known to run on several nodes."""
    nodes = job.once("nodes", lambda: sorted({s.node for s in job.ranks.values() if s.node}))
    return [observed(rank, now, f"the job runs on {len(nodes)} nodes", signal.means)] if len(nodes) > 1 else []


def missing_rank(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """Did not join while the others wait for it at the start."""
    missing = job.once(("missing_rank", now), lambda: _missing(job, now, limits))
    if rank.rank not in missing:
        return []
    text = "is elsewhere" if rank.heard else "was never heard from"

    def begun() -> list[Evidence]:
        said = [s.first for r in job.ranks.values() for s in _start_lines(r)]
        return [min(said, key=lambda e: (e.t, e.seq))] if said else []

    first = job.once("first of the start", begun)
    return [observed(rank, now, f"{text} while the others wait at the start", signal.means), *first]


def _missing(job: JobState, now: float, limits: cadence.Limits) -> frozenset[int]:
    ranks = job.universe
    states = {r: job.ranks[r] for r in ranks if r in job.ranks and job.ranks[r].heard}
    waiting = {r for r, s in states.items() if s.reported or _stands_at_start(job, s)}
    said = any(_says_start(job, s) for s in job.ranks.values())
    overdue = not job.over and job.silence(now) >= limits.budgets["start"]
    if job.trained_t > float("-inf") or not (said or (waiting and overdue)):
        return frozenset()
    waiting |= {r for one in waiting for r in places.of_block(job, {one}) if r not in states}  # one speaks for its pod
    rest = frozenset(ranks) - waiting
    unheard = frozenset(r for r in ranks if r not in states)
    need = _shortfall(job, len(ranks))
    if need is not None:
        lost = frozenset(r for r, s in states.items() if f"{STARTUP}connect_gave_up" in s.seen)  # never joined
        counted = [some for some in (rest, rest | lost, unheard) if some and _is(some, *need)]
        return counted[0] if counted else frozenset()
    names = {name for s in job.ranks.values() for name in s.seen}
    cut_off = {name for name in names if name.startswith(STARTUP)} == {f"{STARTUP}connect_gave_up"}
    if cut_off and ("torch.unroutable" in names or rest != unheard or 0 not in rest):
        return frozenset()  # the store may be there, and the way to it wrong
    if not waiting or not (0 < 2 * len(rest) < len(ranks) or rest == unheard == {0}):
        return frozenset()
    return rest


def _shortfall(job: JobState, world: int) -> tuple[int, int] | None:
    """How many did not join, and how many ranks each of them is, in the newest count of a store or a launcher."""
    counts = [s for r in job.ranks.values() for s in r.seen.values() if {"joined", "world"} <= s.fields.keys()]
    if not counts:
        return None
    newest = max(counts, key=lambda s: s.last.seq).fields
    joined, total = int(newest["joined"]), int(newest["world"])
    each = world // total if total and world % total == 0 else 0
    return (total - joined, each) if each and joined < total else None


def _is(some: frozenset[int], count: int, each: int) -> bool:
    """Whether these ranks are `count` whole nodes of `each` ranks."""
    nodes = {r // each for r in some}
    return len(some) == count * each and len(nodes) == count


def _start_lines(rank: RankState) -> list[Seen]:
    return [s for name, s in rank.seen.items() if name.startswith(STARTUP) and s.first.weight == "fatal"]


def _says_start(job: JobState, rank: RankState) -> bool:
    """It gave up waiting at the start: a line of startup.yaml, or an exception about others raised in there."""
    died = any(r.collateral and r.event.uncaught for r in rank.raised) and "traceback" in rank.snapshots
    return bool(_start_lines(rank)) or (died and _stands_at_start(job, rank))


def _stands_at_start(job: JobState, rank: RankState) -> bool:
    """Its newest looks show it in the initialisation of the process group or at the rendezvous."""
    hits = (s.hits for s in rank.snapshots.values() if stands.counts(job, rank, s))
    return any(name.startswith(STARTUP) for found in hits for name in found)
