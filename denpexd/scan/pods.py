"""Which rank a pod is, where each has one: `[pod/llm-worker-3/pytorch] ` of `kubectl logs --prefix`.

The number at the end of a pod's name is the replica. It is the rank if a pod has said so of itself and none has said
otherwise; workers beside a `-master-0` (Kubeflow's PyTorchJob) count from 1. Pod 0 proves nothing: it has
rank 0 anyway.
"""

import re
from dataclasses import dataclass, field

from denpexd.core.events import UNKNOWN_RANK

_REPLICA = re.compile(r"^(.{1,200})-(\d{1,6})$")
_LEADS = ("-master", "-launcher", "-chief")
_MOST = 8  # names


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
