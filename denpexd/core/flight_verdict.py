"""The verdict that Flight Recorder dumps carry on their own: who keeps the others waiting, and how sure that is.

It never goes beyond the dumps: a rank without one, or with one that is older than the others', may be the cause
whenever somebody waits for it, and then nobody is named.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from denpexd.core.flight import Dump, Outline, outline
from denpexd.core.flight_groups import Group, groups
from denpexd.core.flight_match import Mismatch, first_mismatch, keeps_order, left_the_order
from denpexd.core.flight_waits import Waits, waits
from denpexd.core.numbers import ranks_named

FAILURES = {"op": "collective-order-mismatch", "circle": "collective-order-mismatch",
            "size": "collective-shape-mismatch", "dtype": "collective-shape-mismatch"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Verdict:
    """`finding`: op, size, dtype (members of a group call different things), circle (they wait for each other in
    several groups), absent (some have not come and wait for nothing), passed (some stand in what others completed),
    alone (some came, but not most), together (all stand in the same), open (what is missing decides), none (nobody
    waits).

    `suspected`: who may be it where nobody is named. `waiting`: everybody else who stands in something.
    """

    finding: str
    certainty: str
    initiating: tuple[int, ...]
    waiting: tuple[int, ...]
    suspected: tuple[int, ...]
    text: str
    missing: tuple[str, ...] = ()

    @property
    def failure(self) -> str | None:
        """The entry of the encyclopedia, where the dumps alone show which."""
        return FAILURES.get(self.finding)


@dataclass(frozen=True, slots=True)
class Analysis:
    """Everything found in a set of dumps."""

    dumps: Mapping[int, Outline]
    groups: Mapping[str, Group]
    waits: Waits
    mismatches: tuple[Mismatch, ...]
    verdict: Verdict
    absent: tuple[int, ...] = field(default=())  # ranks of the job that left no readable dump


def analyse(dumps: Mapping[int, Dump], world: int | None = None) -> Analysis:
    """Judge the dumps of one moment, by rank; `world`: how many ranks the job has, if known."""
    return compare({rank: outline(dump) for rank, dump in dumps.items()}, world)


def compare(dumps: Mapping[int, Outline], world: int | None = None) -> Analysis:
    """The same, of dumps that have been made ready before."""
    telling = {rank: one for rank, one in dumps.items() if one.dump.tells}
    found = groups(telling, world)
    known = waits(telling, found)
    mismatches = tuple(m for g in found.values() if (m := first_mismatch(g, telling)) is not None)
    everybody = {m for g in found.values() for m in g.members} | set(dumps) | set(range(world or 0))
    absent = tuple(sorted(everybody - set(telling)))
    case = Analysis(telling, found, known, mismatches, _NOTHING, absent)
    return replace(case, verdict=_verdict(case))


def _verdict(case: Analysis) -> Verdict:
    live = [m for m in case.mismatches if _matters(m, case.waits)]
    if live:
        # Of several, the first that its ranks came to: what follows from it is younger.
        return _mismatched(min(live, key=lambda m: min(op.record for op in m.calls.values())), case)
    if not case.waits.stands:
        return replace(_NOTHING, missing=_gaps(case.absent))
    ends = case.waits.ends()
    unknown = ends & (set(case.absent) | case.waits.older) | _unseen(case, ends)
    if unknown:
        return _open(case, ends, unknown)
    if ends:
        return _named(case, ends)
    if ring := case.waits.circle():
        return _circle(case, ring)
    return _together(case)


def _matters(mismatch: Mismatch, known: Waits) -> bool:
    """Some rank still stands in that group at that call or behind it: what was survived is not what stops the job."""
    return any(op.group == mismatch.group and op.seq >= mismatch.seq for op in known.stands.values())


def _unseen(case: Analysis, ends: set[int]) -> set[int]:
    """Ends of the chain that have a dump which does not show what they do."""
    return {r for r in ends if r not in case.waits.idle and r not in case.waits.stands}


def _mismatched(found: Mismatch, case: Analysis) -> Verdict:
    group = case.groups[found.group]
    calls: dict[str, list[int]] = {}
    for rank, op in sorted(found.calls.items()):
        shown = op.call if found.what != "dtype" else f"{op.call} {'/'.join(op.dtypes)}"
        calls.setdefault(shown, []).append(rank)
    sides = ", ".join(f"{ranks_named(ranks)} in {call}" for call, ranks in calls.items())
    text = f"group {group.label}, collective {found.seq}: {sides}"
    if not found.odd:
        why = ("which side left the common order: no majority and no pattern in the recorded history tells it",)
        gaps = _gaps(group.silent)
        return Verdict(found.what, "undetermined", (), (), tuple(sorted(found.calls)), text, gaps or why)
    if case.absent and not group.certain:
        whole = ("who belongs to the group: the dumps do not say it, and some are missing", *_gaps(case.absent))
        return Verdict(found.what, "undetermined", (), (), tuple(sorted(found.calls)), text, whole)
    sure = "likely" if found.by_pattern else "confirmed"
    if found.by_pattern:
        text += f"; {ranks_named(found.odd)} left the order that all had kept"
    return Verdict(found.what, sure, found.odd, _others(case, found.odd), (), text)


def _named(case: Analysis, ends: set[int]) -> Verdict:
    idle, passed = sorted(ends & case.waits.idle), sorted(ends & case.waits.passed)
    named = sorted({*idle, *passed})
    if not named:
        return _together(case)
    if ends - set(named):  # stand in what all of their group stand in, and others wait for them
        return replace(_together(case), suspected=tuple(sorted(ends)))
    if not _few_are_missing(case).issuperset(idle):
        return _alone(case, idle)
    said = []
    if idle:
        said.append(f"{ranks_named(idle)} entered nothing more while others wait{_for(case, set(idle))}")
    if passed:
        first = case.waits.stands[passed[0]]
        label = case.groups[first.group].label
        said.append(f"{ranks_named(passed)} did not complete what the peers have (oldest: {first.call}, group {label})")
    timed_out = any(op.timed_out for op in case.waits.stands.values())
    certainty = "confirmed" if timed_out and case.groups else "likely"
    finding = "absent" if idle else "passed"
    return Verdict(finding, certainty, tuple(named), _others(case, named), (), "; ".join(said))


def _few_are_missing(case: Analysis) -> set[int]:
    """Who is waited for where most have come, or, of two halves, by one that called what it always calls there."""
    found: set[int] = set()
    for waiting, on in case.waits.together():
        size = len(case.groups[case.waits.stands[waiting[0]].group].members)
        if len(on) * 2 < size or (len(on) * 2 == size and _as_always(case, waiting)):
            found |= on
    return found


def _as_always(case: Analysis, waiting: Sequence[int]) -> bool:
    return any(keeps_order(case.dumps[rank], case.waits.stands[rank]) for rank in waiting)


def _alone(case: Analysis, idle: Sequence[int]) -> Verdict:
    came = sorted(r for waiting, on in case.waits.together() if not on.isdisjoint(idle) for r in waiting)
    text = f"only {ranks_named(came)} came{_for(case, set(idle))}; {ranks_named(idle)} entered nothing more"
    why = f"whether {ranks_named(idle)} would have called it: the stacks of all ranks show it"
    return Verdict("alone", "undetermined", (), (), tuple(sorted({*came, *idle})), text, (why,))


def _for(case: Analysis, idle: set[int]) -> str:
    """Where somebody waits for them: ` in all_reduce of 1610, group 0, number 31`."""
    waiting = sorted(min(ranks) for ranks, on in case.waits.together() if not on.isdisjoint(idle))
    if not waiting:
        return ""
    op = min((case.waits.stands[rank] for rank in waiting), key=lambda op: op.peer is not None)
    return f" in {op.call}, group {case.groups[op.group].label}, number {op.seq}"


def _open(case: Analysis, ends: set[int], unknown: set[int]) -> Verdict:
    older = sorted(unknown & case.waits.older)
    gone = sorted(unknown - set(older))
    missing = list(_gaps(gone))
    if older:
        missing.append(f"a newer dump of {ranks_named(older)}: others have completed what needs them too")
    known = sorted(ends - unknown)
    text = f"others wait for {ranks_named(sorted(unknown))}, of which no dump shows what they do"
    if known:
        text += f"; {ranks_named(known)} keep others waiting as well"
    return Verdict("open", "undetermined", (), (), tuple(sorted(ends)), text, tuple(missing))


def _circle(case: Analysis, ring: set[int]) -> Verdict:
    stands = {r: case.waits.stands[r] for r in ring}
    odd = left_the_order({r: case.dumps[r] for r in ring}, stands)
    sides = ", ".join(f"rank {r} in {op.call} of group {op.group}" for r, op in sorted(stands.items())[:4])
    text = f"{ranks_named(sorted(ring))} wait for each other in several groups: {sides}"
    if not odd:
        why = "the order in which the program enters its groups: the recorded history does not tell it"
        return Verdict("circle", "undetermined", (), (), tuple(sorted(ring)), text, (why,))
    text += f"; {ranks_named(odd)} left the order that all had kept"
    return Verdict("circle", "likely", odd, _others(case, odd), (), text)


def _together(case: Analysis) -> Verdict:
    calls = sorted({f"{op.call}, group {case.groups[op.group].label}" for op in case.waits.stands.values()})
    text = "all who wait stand in the same, with everybody there: " + "; ".join(calls[:3])
    why = "why it does not complete: network, device, or the moment of the dumps was an ordinary one"
    return Verdict("together", "undetermined", (), (), (), text, (why, *_gaps(case.absent)))


def _others(case: Analysis, named: Sequence[int]) -> tuple[int, ...]:
    everybody = set(case.dumps) | set(case.absent)
    return tuple(sorted(everybody - set(named)))


def _gaps(ranks: Sequence[int]) -> tuple[str, ...]:
    return (f"a readable dump of {ranks_named(ranks)}",) if ranks else ()


_NOTHING = Verdict(
    "none", "undetermined", (), (), (), "nothing that the recorder keeps is open (gloo keeps no send and receive)"
)
