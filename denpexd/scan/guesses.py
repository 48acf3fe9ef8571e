"""Whose line it is where no tag and no file tells it: by what it says of itself, by the number of its pod.

Of `[pod/llm-worker-3/pytorch] ` (`kubectl logs --prefix`) the number at the end of the name is the replica. It is the
rank if a pod has said so of itself and none has said otherwise; workers beside a `-master-0` (Kubeflow's PyTorchJob)
count from 1. Pod 0 proves nothing: it has rank 0 anyway.
"""

import re
from dataclasses import dataclass, field

import re2

from denpexd.core.events import UNKNOWN_RANK

_REPLICA = re.compile(r"^(.{1,200})-(\d{1,6})$")
_LEADS = ("-master", "-launcher", "-chief")
_MOST = 8  # names

_HEADER = (
    r"^\s*(?:\[?[\d/:.,TZ+-]{5,35}(?: [\d/:.,+-]{5,20})?\]?\s+)?"
    r"(?:[\[(]?(?:DEBUG|INFO|WARN|WARNING|ERROR|CRITICAL)[\])]?[\s:]+)?"
)
_IN_TEXT = tuple(
    re2.compile(pattern)
    for pattern in (
        r"^.{0,120}?\[(?:[Gg]lobal[_ ]?|[Ww]orld[_ ]?)?[Rr]ank[ _:=]{0,2}(\d{1,6})\]",
        r"^.{0,160}?(?:^|[\s,{(|;\[])(?:global_|world_)?rank=(\d{1,6})\b",
        r'^.{0,160}?"(?:global_|world_)?rank": ?(\d{1,6})\b',
        r'^\{.*[^\\]"(?:global_|world_)?rank": ?(\d{1,6})\b.{0,80}\}$',
        r"^.{0,80}?\bGLOBAL_RANK: (\d{1,6}),",
        _HEADER
        + r"[Rr]ank[ _]?(\d{1,6})(?:\s*(?:[|:,-]|$)|\s+(?:epoch|ep|step|it|iter|batch|val|train|eval|loss|lr|done"
        r"|finished|model|start\w*|loading|saving|validation|world)\b)",
        r"^\s*[A-Za-z_]+\[(\d{1,6})\]:\s+\d+%\|",
        r"^.{0,40}?\b(?:step|iter|loss) .{0,60}?\b[Rr]ank (\d{1,6})(?:$| (?:loss|lr|step|ms)\b)",
    )
)
_GROUP_RANK = re2.compile(r"\bPG (?:ID|GUID)\b")  # ranks in such lines count inside a process group


def rank_in_text(text: str) -> int:
    """The rank that a line gives itself near its start (`rank=3`, `[Rank 3]`, `"rank": 3`); else UNKNOWN_RANK."""
    if "ank" not in text and "RANK" not in text and "%|" not in text:
        return UNKNOWN_RANK
    if _GROUP_RANK.search(text) is not None:
        return UNKNOWN_RANK
    for pattern in _IN_TEXT:
        if (found := pattern.search(text)) is not None:
            return int(found.group(1))
    return UNKNOWN_RANK


@dataclass(slots=True)
class Pods:
    """What the pods of one stream have said about their ranks: by name without number, the differences."""

    _shifts: dict[str, set[int]] = field(default_factory=dict)
    _proven: set[str] = field(default_factory=set)
    _led: bool = False

    def placed(self, pod: str, rank: int) -> int:
        """The rank of a line of this pod, `rank` if that is known; from which the others can be learned."""
        if rank == UNKNOWN_RANK:
            return self._rank(pod)
        self._learn(pod, rank)
        return rank

    def _learn(self, pod: str, rank: int) -> None:
        """A line of this pod is known to be of that rank."""
        found = _REPLICA.search(pod)
        if found is None or (found.group(1) not in self._shifts and len(self._shifts) >= _MOST):
            return
        name, number = found.group(1), int(found.group(2))
        shifts = self._shifts.setdefault(name, set())
        if len(shifts) < 2:
            shifts.add(rank - number)
        if number > 0:
            self._proven.add(name)
        self._led = self._led or (rank == 0 and name.endswith(_LEADS))

    def _rank(self, pod: str) -> int:
        """The rank of a pod; UNKNOWN_RANK where nothing has proven that pods count as ranks do."""
        found = _REPLICA.search(pod)
        if found is None or found.group(1) not in self._proven:
            return UNKNOWN_RANK
        shifts = self._shifts[found.group(1)]
        if shifts == {0} or (shifts == {1} and self._led):
            return int(found.group(2)) + next(iter(shifts))
        return UNKNOWN_RANK
