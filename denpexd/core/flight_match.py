"""Do the members of a group call the same? Where their histories part, and who left the common order.

What must agree is the kind of the operation, and for most kinds how much goes in and out. Not for those that may be
uneven by design: all_to_all, gather, scatter, lists of tensors, point to point.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from denpexd.core.flight import Op, Outline, Token, amount, kind, token, types
from denpexd.core.flight_groups import Group

LONGEST, OFTEN = 4, 2  # how many calls before are looked at, how often they must have been followed by the same one


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


def first_mismatch(group: Group, dumps: Mapping[int, Outline]) -> Mismatch | None:
    """Where the histories of the members part, as far back as the dumps reach; None if they agree."""
    for seq in _in_question(group, dumps):
        found: dict[int, Sequence[Op]] = {}
        for rank in group.places:
            track = dumps[rank].tracks.get(group.name)
            if track is not None and (ops := track.at(seq)):
                found[rank] = ops
        calls = _aligned(found, dumps)
        if len(calls) > 1 and (what := _differ(calls)):
            return _judged(group, seq, what, calls, dumps)
    return None


def _in_question(group: Group, dumps: Mapping[int, Outline]) -> list[int]:
    """Numbers under which not all called the same. Equal histories, which most ranks have, are looked at once."""
    tracks = [track for rank in group.places if (track := dumps[rank].tracks.get(group.name)) is not None]
    common: dict[tuple[int, int], str] = {}
    parted: set[int] = set()
    for places, calls in {(track.places, track.calls) for track in tracks}:
        for place, call in zip(places, calls, strict=True):
            if common.setdefault(place, call) != call:
                parted.add(place[0])
    return sorted(parted)


def _aligned(calls: Mapping[int, Sequence[Op]], dumps: Mapping[int, Outline]) -> dict[int, Sequence[Op]]:
    """What several were called under one number (coalesced), as far as all have got; the oldest operation in a ring
    may be what is left of such a batch.
    """
    if max(len(ops) for ops in calls.values()) > 1:
        calls = {rank: ops for rank, ops in calls.items() if dumps[rank].dump.ops[0] is not ops[0]}
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
    return tuple(amount(op) for op in ops)


def _types(ops: Sequence[Op]) -> tuple[object, ...]:
    return tuple(types(op) for op in ops)


def _judged(
    group: Group, seq: int, what: str, calls: Mapping[int, Sequence[Op]], dumps: Mapping[int, Outline]
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


def left_the_order(dumps: Mapping[int, Outline], ops: Mapping[int, Op]) -> tuple[int, ...]:
    """Whose operation breaks the order that it had kept, where those of all others keep theirs; none if unsure.

    A call never seen before breaks nothing: an epoch ends, an evaluation begins, and who is early is not told.
    """
    answers: dict[tuple[tuple[Token, ...], Token], bool | None] = {}
    kept = {}
    for rank, op in ops.items():
        known = dumps[rank].before(op), token(op)
        if known not in answers:
            answers[known] = _follows(*known)
        kept[rank] = answers[known]
    if any(answer is None for answer in kept.values()) or not any(kept.values()):
        return ()
    return tuple(sorted(rank for rank, answer in kept.items() if not answer))


def keeps_order(dump: Outline, op: Op) -> bool | None:
    """Whether `op` follows what preceded it as it always did; None where that is not known."""
    return _follows(dump.before(op), token(op))


def _follows(history: Sequence[Token], now: Token) -> bool | None:
    for length in range(min(LONGEST, len(history)), 0, -1):
        before = history[-length:]
        after = [history[i + length] for i in range(len(history) - length) if history[i : i + length] == before]
        if len(after) >= OFTEN and len(set(after)) == 1:
            if after[0] == now:
                return True
            return False if now in history else None
    return None
