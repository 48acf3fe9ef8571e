"""Which ranks stand at the same place: their stacks in groups, for people to look at."""

import re
import sys
from collections.abc import Sequence

from denpexd.core import stands
from denpexd.core.events import Frame
from denpexd.core.records import Snapshot
from denpexd.core.state import JobState, RankState

MOST_GROUPS = 16
_NAMELESS = re.compile(r"\.<locals>\.<\w+>")  # a comprehension, as py-spy and Python 3.11 name it
_STATES = {"T": "stopped", "t": "stopped by a debugger", "D": "in uninterruptible sleep"}


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
    called = [frame for frame in frames if stands.COLLECTIVE.fullmatch(frame.canonical)]
    return _place(called[-1] if called else frames[0])


def _under(frames: Sequence[Frame]) -> str:
    """The innermost frame of the program's own code; "" where the stack holds none."""
    return _NAMELESS.sub("", next((_place(frame) for frame in frames if _is_own(frame.path)), ""))


def _is_own(path: str) -> bool:
    """Own code has only its file name left, see scan.frames; so have modules of the standard library."""
    return path.endswith(".py") and "/" not in path and path.removesuffix(".py") not in sys.stdlib_module_names


def _place(frame: Frame) -> str:
    return f"{frame.function} ({frame.path}:{frame.line})" if frame.line else f"{frame.function} ({frame.path})"
