"""What two answers of NCCL's RAS, taken during one standstill, show about the ranks of the job. Pure.

Counts are launches, not completions, and programs launch ahead: a difference counts only if both answers agree, hence
nothing moves, and only against a strict majority. Where everybody has launched the same, RAS can name nobody, which
speaks against whoever else is named.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Set
from itertools import pairwise

from denpexd.core.events import Event, Fact
from denpexd.evidence.ras_report import Communicator, Member, Report

MOST = 1024  # facts from one answer
# NCCL's names of operations as torch's watchdog prints them, which is what rules look for.
_AS_TORCH = {"AllReduce": "ALLREDUCE", "AllGather": "ALLGATHER", "ReduceScatter": "REDUCE_SCATTER"}
Ranks = Mapping[tuple[str, int], int]


def global_ranks(
    report: Report, local: Mapping[int, Set[int]], world: int | None, here: Callable[[str], bool]
) -> Ranks:
    """Global ranks by (host, pid). `local`: the pids that each rank of this node may go by; `here`: is that host ours?

    Processes of other nodes are known only through a communicator over all ranks whose numbers are the global ones, as
    those of this node prove. Pids alone prove nothing: every pod has the same.
    """
    hosts = {host for host, _ in report.processes() if host}
    ours = {host for host in hosts if here(host)} or (hosts if len(hosts) == 1 else set())
    by_pid = {pid: rank for rank, pids in local.items() for pid in pids}
    found = {(host, pid): by_pid[pid] for host, pid in report.processes() if host in ours and pid in by_pid}
    for one in report.communicators:
        members = [*one.members.values(), *(absent.member for absent in one.absent)]
        known = [m for m in members if (m.host, m.pid) in found]
        if one.size == world and known and all(found[m.host, m.pid] == m.rank for m in known):
            found |= {(m.host, m.pid): m.rank for m in members if m.pid}
    several = {
        process
        for one in report.communicators
        for process, number in Counter((m.host, m.pid) for m in one.members.values()).items()
        if number > 1
    }
    return {process: rank for process, rank in found.items() if process not in several}


def facts(before: Report | None, now: Report, ranks: Ranks, t: float) -> list[Event]:
    """The facts `unreachable`, `launched_less`, `launched_other` and `launched_same` (docs/rule-format.md)."""
    found: list[Event] = list(_unreachable(before, now, ranks, t))
    if before is not None:
        former = {one.name: one for one in before.communicators}
        stuck = [c for c in now.communicators if c.name in former and former[c.name].counts == c.counts and c.counts]
        found += [*_launches(stuck, ranks, t)] or ([] if found else _same(stuck, ranks, t))
    return found[:MOST]


def _unreachable(before: Report | None, now: Report, ranks: Ranks, t: float) -> Iterator[Fact]:
    """Given up by NCCL, or without an answer twice: its network thread does not run, or its node cannot be reached."""
    twice = now.lost & before.lost if before is not None else set()
    for process in sorted(twice | now.dead):
        if (rank := ranks.get(process)) is not None:
            host, pid = process
            how = "is considered dead" if process in now.dead else "did not answer twice"
            yield Fact(
                t,
                rank,
                "unreachable",
                {"host": host, "pid": str(pid), "dead": str(process in now.dead).lower()},
                source="ras",
                text=f"process {pid} on {host} {how} (NCCL RAS)",
            )


def _launches(stuck: list[Communicator], ranks: Ranks, t: float) -> Iterator[Fact]:
    """Who is behind in one communicator while others wait for it in another is a victim himself: not named."""
    less: dict[int, Fact] = {}
    waiting: set[int] = set()
    for one in stuck:
        ops = sorted(one.counts)
        told = sorted(set.intersection(*(set(one.counts[op]) for op in ops)))
        vectors = {r: tuple(one.counts[op][r] for op in ops) for r in told}
        steps = sorted(set(vectors.values()), key=sum)
        pairs = pairwise(steps)
        if not all(all(a <= b for a, b in zip(low, high, strict=True)) for low, high in pairs):
            yield from _other(one, ops, vectors, ranks, t)
        elif len(steps) > 1:
            behind = {fact.rank: fact for fact in _less(one, vectors, ranks, t)}
            less = {**behind, **less}
            waiting |= {r for n in vectors if (r := _global(one, n, ranks)) is not None and r not in behind}
    yield from (fact for rank, fact in sorted(less.items()) if rank not in waiting)


def _same(stuck: list[Communicator], ranks: Ranks, t: float) -> Iterator[Fact]:
    """Every member of a communicator has answered, and all have launched the same: it shows nobody to be late."""
    for one in stuck:
        told = [set(counts) for counts in one.counts.values()]
        alike = all(len(set(counts.values())) == 1 for counts in one.counts.values())
        if alike and not one.absent and all(len(members) == one.size for members in told):
            text = f"launched as many collectives as every other rank of communicator {one.name} (NCCL RAS)"
            for number in sorted(one.members):
                if (rank := _global(one, number, ranks)) is not None:
                    yield Fact(t, rank, "launched_same", {"group": one.name}, source="ras", text=text)


def _less(one: Communicator, vectors: Mapping[int, tuple[int, ...]], ranks: Ranks, t: float) -> Iterator[Fact]:
    """Those behind a strict majority that stands together."""
    totals = {r: sum(vector) for r, vector in vectors.items()}
    most, number = Counter(totals.values()).most_common(1)[0]
    if number * 2 <= max(one.size, len(totals)):
        return
    for r, total in totals.items():
        rank = _global(one, r, ranks)
        if total < most and rank is not None:
            text = f"launched {total} collectives in communicator {one.name}, most of its ranks {most} (NCCL RAS)"
            fields = {"group": one.name, "launched": str(total), "most": str(most)}
            yield Fact(t, rank, "launched_less", fields, source="ras", text=text)


def _other(
    one: Communicator, ops: list[str], vectors: Mapping[int, tuple[int, ...]], ranks: Ranks, t: float
) -> Iterator[Fact]:
    """Ranks of one communicator that call in the same order can never each be ahead of the other."""
    base = [min(values) for values in zip(*vectors.values(), strict=True)]
    for r, vector in vectors.items():
        extra = [op for op, mine, least in zip(ops, vector, base, strict=True) if mine > least]
        rank = _global(one, r, ranks)
        if len(extra) == 1 and rank is not None:
            op = _AS_TORCH.get(extra[0], extra[0].upper())
            text = f"launched one more {extra[0]} than others in communicator {one.name} (NCCL RAS)"
            yield Fact(t, rank, "launched_other", {"group": one.name, "op": op}, source="ras", text=text)


def _global(one: Communicator, number: int, ranks: Ranks) -> int | None:
    member = one.members.get(number, Member(number))
    return ranks.get((member.host, member.pid))
