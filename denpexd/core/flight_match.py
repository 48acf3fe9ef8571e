"""Do the members of a group call the same? Where their histories part, and who left the common order.

What must agree is the kind of the operation, and for most kinds how much goes in and out. Not for those that may be
uneven by design: all_to_all, gather, scatter, lists of tensors, point to point.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from denpexd.core.flight import Dump, Op
from denpexd.core.flight_groups import Group

EVEN = frozenset(  # as much goes in on every rank, and as much comes out
    [
        "all_reduce",
        "allreduce",
        "all_reduce_sparse",
        "allreduce_coalesced",
        "broadcast",
        "_broadcast_oop",
        "_all_gather_base",
        "all_gather_into_tensor",
        "all_gather_into_tensor_coalesced",
        "_reduce_scatter_base",
        "reduce_scatter_tensor",
        "reduce_scatter_tensor_coalesced",
    ]
)
EVEN_IN = frozenset({"reduce", "_reduce_oop"})  # only the root has something that comes out
EVEN_OUT = frozenset({"all_gather"})  # a list of tensors: uneven ones may go in, all ranks get the same
SAME = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "all_reduce_barrier": "barrier",
    "alltoall": "all_to_all",
    "alltoall_base": "all_to_all",
    "all_to_all_single": "all_to_all",
    "all_to_allv": "all_to_all",
    "reduce_scatter_v": "reduce_scatter",
}
LONGEST, OFTEN = 4, 2  # how many calls before are looked at, how often they must have been followed by the same one

Token = tuple[str, str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """At `seq` of the group its members called different things. `what`: op, size or dtype; `calls`: by rank.

    `odd`: who left the order that a strict majority of the group keeps, or (`by_pattern`) that all kept until then.
    """

    group: str
    seq: int
    what: str
    calls: Mapping[int, Op]
    odd: tuple[int, ...]
    by_pattern: bool = False


def kind(op: Op) -> str:
    """The operation under one name in all versions."""
    return SAME.get(op.name, op.name)


def first_mismatch(group: Group, dumps: Mapping[int, Dump]) -> Mismatch | None:
    """Where the histories of the members part, as far back as the dumps reach; None if they agree."""
    by_seq: dict[int, dict[int, list[Op]]] = {}
    for rank in group.places:
        for op in dumps[rank].ops:
            if op.group == group.name and op.peer is None:
                by_seq.setdefault(op.seq, {}).setdefault(rank, []).append(op)
    for seq in sorted(by_seq):
        calls = _aligned(by_seq[seq], dumps)
        if len(calls) > 1 and (what := _differ(calls)):
            return _judged(group, seq, what, calls, dumps)
    return None


def _aligned(calls: Mapping[int, Sequence[Op]], dumps: Mapping[int, Dump]) -> dict[int, Sequence[Op]]:
    """What several were called under one number (coalesced), as far as all have got; the oldest operation in a ring
    may be what is left of such a batch.
    """
    if max(len(ops) for ops in calls.values()) > 1:
        calls = {rank: ops for rank, ops in calls.items() if dumps[rank].ops[0] is not ops[0]}
    common = min((len(ops) for ops in calls.values()), default=0)
    return {rank: ops[:common] for rank, ops in calls.items()}


def _differ(calls: Mapping[int, Sequence[Op]]) -> str:
    for what, view in (("op", _kinds), ("size", _amounts), ("dtype", _types)):
        if len({view(ops) for ops in calls.values()}) > 1:
            return what
    return ""


def _kinds(ops: Sequence[Op]) -> tuple[str, ...]:
    return tuple(kind(op) for op in ops)


def _amounts(ops: Sequence[Op]) -> tuple[object, ...]:
    return tuple(_amount(op) for op in ops)


def _amount(op: Op) -> object:
    if op.name in EVEN:
        return (sum(op.sizes), sum(op.given))
    if op.name in EVEN_IN:
        return sum(op.sizes)
    return op.given if op.name in EVEN_OUT else None


def _types(ops: Sequence[Op]) -> tuple[object, ...]:
    return tuple(op.dtypes[:1] if op.name in EVEN and op.sizes else None for op in ops)


def _judged(
    group: Group, seq: int, what: str, calls: Mapping[int, Sequence[Op]], dumps: Mapping[int, Dump]
) -> Mismatch:
    views = {"op": _kinds, "size": _amounts, "dtype": _types}
    seen: dict[int, tuple[object, ...]] = {rank: views[what](ops) for rank, ops in calls.items()}
    common, count = Counter(seen.values()).most_common(1)[0]
    shown = {rank: ops[0] for rank, ops in calls.items()}
    if count * 2 > len(group.members) and len(group.members) > 2:
        return Mismatch(group.name, seq, what, shown, tuple(sorted(r for r, v in seen.items() if v != common)))
    whole = len(calls) == len(group.members)
    odd = left_the_order({rank: dumps[rank] for rank in calls}, shown) if whole and what == "op" else ()
    return Mismatch(group.name, seq, what, shown, odd, by_pattern=bool(odd))


def left_the_order(dumps: Mapping[int, Dump], ops: Mapping[int, Op]) -> tuple[int, ...]:
    """Whose operation breaks the order that it had kept, where those of all others keep theirs; none if unsure.

    A call never seen before breaks nothing: an epoch ends, an evaluation begins, and who is early is not told.
    """
    kept = {rank: keeps_order(dumps[rank], op) for rank, op in ops.items()}
    if any(answer is None for answer in kept.values()) or not any(kept.values()):
        return ()
    return tuple(sorted(rank for rank, answer in kept.items() if not answer))


def keeps_order(dump: Dump, op: Op) -> bool | None:
    """Whether `op` follows what preceded it as it always did; None where that is not known."""
    history = [_token(known) for known in dump.ops if known.record < op.record]
    now = _token(op)
    for length in range(min(LONGEST, len(history)), 0, -1):
        before = history[-length:]
        after = [history[i + length] for i in range(len(history) - length) if history[i : i + length] == before]
        if len(after) >= OFTEN and len(set(after)) == 1:
            if after[0] == now:
                return True
            return False if now in history else None
    return None


def _token(op: Op) -> Token:
    return (op.group, kind(op), op.sizes if op.name in EVEN else ())
