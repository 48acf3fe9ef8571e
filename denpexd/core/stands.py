"""Where a rank stands: what its newest stacks say, for how long they count, and who stands at the same place."""

import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from denpexd.core import cadence
from denpexd.core.events import Frame
from denpexd.core.evidence import Evidence
from denpexd.core.rank import RankState
from denpexd.core.records import Snapshot
from denpexd.core.rule import Signal
from denpexd.core.state import Answer, JobState

CRASHES = frozenset({-4, -7, -8, -9, -11, 132, 135, 136, 137, 139})  # nothing is printed before these
COLLECTIVE = re.compile(
    r"(?:(?:monitored_)?barrier|(?:all_reduce|all_gather|broadcast|reduce|gather|scatter|all_to_all)\w*) "
    r"(?:torch/distributed/distributed_c10d\.py|deepspeed/comm/\S+|horovod/\S+)"
)
WAITING = re.compile(
    r" (?:torch/distributed/|deepspeed/(?:comm|runtime)/|horovod/|accelerate/|megatron/core/|colossalai/)|"
    r"(?:_engine_run_backward|backward) torch/|(?:_sync_buffers|_sync_module_buffers|_distributed_broadcast_coalesced) "
    r"torch/nn/parallel/| torch/nn/modules/_functions\.py"
)
WORKER_LOOP = "_worker_loop torch/utils/data/_utils/worker.py"
MOST_GROUPS = 16
_NAMELESS = re.compile(r"\.<locals>\.<\w+>")  # a comprehension, as py-spy and Python 3.11 name it
_STATES = {"T": "stopped", "t": "stopped by a debugger", "D": "in uninterruptible sleep"}


def counts(job: JobState, rank: RankState, snapshot: Snapshot) -> bool:
    """A stack counts until the rank moves again; a look at a live process convicts only when it was steady.

    Or when a collective is known that does not complete.
    """
    t = snapshot.frames.t
    if t < rank.moved_t or job.moved_on(rank, t):
        return False
    if snapshot.frames.kind == "traceback" and _only_noticed_a_crash(job, rank):
        return False
    return snapshot.steady or snapshot.frames.kind != "py-spy" or job.once("gave up", lambda: _gave_up(job))


def _gave_up(job: JobState) -> bool:
    """A rank reported that a collective did not complete in time: with that, one look is enough."""
    return any(still(job, s, s.states.get("timeout")) for r, s in job.ranks.items() if r >= 0)


def _only_noticed_a_crash(job: JobState, rank: RankState) -> bool:
    """Another process was killed and all that this one raised is about others: where it waited proves nothing."""
    if not rank.raised or not all(r.collateral for r in rank.raised):
        return False

    def crashed() -> list[int]:
        exits = ((r, e) for r, s in job.ranks.items() if r != -1 for e in s.exits)
        return [r for r, e in exits if not e.forced and e.event.code in CRASHES]

    return any(r != rank.rank for r in job.once("crashed", crashed))


def still(job: JobState, rank: RankState, known: Evidence | None) -> bool:
    """What was seen of the rank then still holds: it has not moved since, nor has training."""
    return known is not None and known.t >= rank.moved_t and not job.moved_on(rank, known.t)


def frame(job: JobState, rank: RankState, signal: Signal) -> Answer:
    found = []
    for snapshot in rank.snapshots.values():
        hit = snapshot.hits.get(signal.id)
        if hit is None or not counts(job, rank, snapshot):
            continue
        text = f"{hit.function} ({hit.path}:{hit.line})"
        f = snapshot.frames
        source = f.source or f.kind
        found.append(Evidence(rank.rank, "stack", source, f.offset, f.t, text, signal.means, seq=snapshot.seq))
    return found


def odd_stack(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """Its stack ends in another place than that of a strict majority, which agrees among itself (at a frame `rest`).

    `pair`: of two ranks none is a majority; there the other one stands at a frame `rest`, and this one does not.
    """
    places = job.once("stacks", lambda: _places(job))
    mine = places.get(rank.rank)
    if mine is None or len(places) < 2:
        return []
    common, count = job.once("ends", lambda: Counter(p for p, _ in places.values())).most_common(1)[0]
    rest = signal.param_matchers.get("rest")
    if len(job.universe) == 2 and rest and signal.params.get("pair"):
        (common,) = (place for r, (place, _) in places.items() if r != rank.rank)
        apart = not any(rest.search(f) for f in mine[0])
    else:
        apart = count * 2 > len(places) > 2 and mine[0] != common
    if not apart or (rest and not any(rest.search(f) for f in common)):
        return []
    frame, snapshot = mine[1]
    text = f"{frame.function} ({frame.path}:{frame.line})"
    return [
        Evidence(rank.rank, "stack", snapshot.frames.kind, 0, snapshot.frames.t, text, signal.means, seq=snapshot.seq)
    ]


def _places(job: JobState) -> dict[int, tuple[tuple[str, ...], tuple[Frame, Snapshot]]]:
    return {r: place for r, s in job.ranks.items() if r >= 0 and (place := place_of(job, s)) is not None}


def place_of(job: JobState, rank: RankState) -> tuple[tuple[str, ...], tuple[Frame, Snapshot]] | None:
    """The functions at the inner end of a rank's newest stack that counts, and what to quote."""
    stack = newest(job, rank)
    return (
        None
        if stack is None
        else (tuple(f.canonical for f in stack.frames.frames[:6]), (stack.frames.frames[0], stack))
    )


def newest(job: JobState, rank: RankState) -> Snapshot | None:
    """The newest stack of the rank that counts."""
    fresh = [s for s in rank.snapshots.values() if s.frames.frames and counts(job, rank, s)]
    return max(fresh, key=lambda s: s.frames.t, default=None)


def call(job: JobState, rank: RankState) -> tuple[str, Evidence] | None:
    """The collective that the program calls and the rank stands in, as its newest stack shows: its name, what to quote.

    The outermost of nested ones: all_gather_object calls all_gather twice.
    """
    stack = newest(job, rank)
    if stack is None:
        return None
    found = None
    for at in stack.frames.frames:
        found = at if COLLECTIVE.fullmatch(at.canonical) else found
    if found is None:
        return None
    f, text = stack.frames, f"{found.function} ({found.path}:{found.line})"
    quoted = Evidence(rank.rank, "stack", f.source or f.kind, f.offset, f.t, text, "", seq=stack.seq)
    return found.canonical.split(" ", 1)[0], quoted


def site(job: JobState, rank: RankState) -> tuple[tuple[str, ...], Evidence] | None:
    """From where in its own code the program calls the collective that the rank stands in: the places, innermost first,
    and what to quote. None where it stands in none, or where no own code is in the stack.
    """
    called, stack = call(job, rank), newest(job, rank)
    places = tuple(place(frame) for frame in stack.frames.frames if is_own(frame.path)) if stack else ()
    if called is None or not places:
        return None
    return (called[0], *places), replace(called[1], text=f"{called[1].text} under {places[0]}")


def busy(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """The newest look since it moved shows it at work, in nothing that waits for other ranks; it need not be steady."""
    looks = [s for s in rank.snapshots.values() if s.frames.kind in ("py-spy", "faulthandler") and s.frames.frames]
    last = max(looks, key=lambda s: s.frames.t, default=None)
    if last is None or last.frames.t < rank.moved_t or any(WAITING.search(f.canonical) for f in last.frames.frames):
        return []
    f, top = last.frames, last.frames.frames[0]
    text = f"{top.function} ({top.path}:{top.line})"
    return [Evidence(rank.rank, "stack", f.source or f.kind, f.offset, f.t, text, signal.means, seq=last.seq)]


def groups(job: JobState) -> list[dict[str, object]]:
    """Ranks with equal stacks, the smallest groups first: `ranks`, `at`, `under` (innermost own code), `state`.

    Only looks that were made since the rank moved last. At most MOST_GROUPS; the largest groups are always among them.
    """
    found: dict[tuple[object, ...], list[int]] = {}
    for number, rank in sorted(job.ranks.items()):
        look = _look(job, rank) if number >= 0 else None
        if look is not None:
            found.setdefault((look.frames.frames, _state(rank, look)), []).append(number)
    largest = sorted(found.items(), key=lambda group: (-len(group[1]), group[1]))[:MOST_GROUPS]
    told = []
    for (frames, state), ranks in reversed(largest):
        assert isinstance(frames, tuple)
        told.append({"ranks": ranks, "at": _at(frames), "under": _under(frames), "state": state})
    return told


def worker(job: JobState, rank: RankState) -> str:
    """Where in the program's own code a worker of its DataLoader is, by the same looks; "" where none is in any."""
    look = _look(job, rank)
    for label, frames in look.frames.others if look else ():
        loop = next((at for at, frame in enumerate(frames) if frame.canonical == WORKER_LOOP), 0)
        if label.startswith("worker ") and (reads := _under(frames[:loop])):
            return reads
    return ""


def _look(job: JobState, rank: RankState) -> Snapshot | None:
    fresh = [
        s
        for s in rank.snapshots.values()
        if s.frames.frames and s.frames.t >= rank.moved_t and s.frames.kind != "traceback"
    ]
    newest = max(fresh, key=lambda s: s.frames.t, default=None)
    return None if newest is None or job.moved_on(rank, newest.frames.t) else newest


def _state(rank: RankState, look: Snapshot) -> str:
    state = _STATES.get(look.frames.state or "")
    if state is None and "frozen" in rank.states and rank.states["frozen"].t >= rank.moved_t:
        state = "stopped"
    return state or ("has not moved between two looks" if look.steady else "")


def _at(frames: Sequence[Frame]) -> str:
    """The collective that the program called, where it stands in one; else the innermost frame."""
    called = [frame for frame in frames if COLLECTIVE.fullmatch(frame.canonical)]
    return place(called[-1] if called else frames[0])


def _under(frames: Sequence[Frame]) -> str:
    """The innermost frame of the program's own code; "" where the stack holds none."""
    return _NAMELESS.sub("", next((place(frame) for frame in frames if is_own(frame.path)), ""))


def is_own(path: str) -> bool:
    """Own code has only its file name left, see scan.frames; so have modules of the standard library."""
    return path.endswith(".py") and "/" not in path and path.removesuffix(".py") not in sys.stdlib_module_names


def place(frame: Frame) -> str:
    return f"{frame.function} ({frame.path}:{frame.line})" if frame.line else f"{frame.function} ({frame.path})"
