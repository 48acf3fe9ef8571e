"""Tags that look like ordinary text until they stand before something that only a tag stands before.

`worker-1: ` of pdsh (DeepSpeed's launcher on several nodes) and clush names a node; `[3] ` of `mpiexec -prepend-rank`
(Hydra: MPICH, Intel MPI) a rank. Both are taken for tags from the first line on that proves it.
"""

from dataclasses import dataclass, field

import re2

_OPTIONS = re2.Options()
_OPTIONS.encoding = re2.Options.Encoding.LATIN1
_HOST = re2.compile(rb"^([A-Za-z][\w.-]*|\d+(?:\.\d+){3}): ", _OPTIONS)
_NO_HOST = re2.compile(
    rb"(?i)^(?:debug|info|warn|error|critical|fatal|rank\d*)$|(?:error|exception|warning)$", _OPTIONS
)
_HOST_PROOF = re2.compile(
    rb"^[\w.-]+: (?:\[rank\d+\]:|\[[\d: ,-]{10,}\] \[\w+\] \[launch\.py:\d+:main\] "
    rb"|[IWEF]\d{4} [\d:.]+ \d+ (?:torch/|site-packages/torch/))",
    _OPTIONS,
)
_TASK = re2.compile(rb"^\[(\d{1,6})\] ", _OPTIONS)
_TASK_PROOF = re2.compile(
    rb"^\[\d+\] (?:Traceback \(most recent call last\):|  File \"|\[rank\d+\]:|[\w.-]+:\d+:\d+ \[\d+\] NCCL "
    rb"|/\S+\.py:\d+: \w*Warning: )",
    _OPTIONS,
)
_MOST_HOSTS = 10_000


@dataclass(slots=True)
class ProvenTags:
    """What the lines of one stream have proven so far."""

    _hosts: set[bytes] = field(default_factory=set)
    _tasks: bool = False

    def host(self, piece: bytes) -> tuple[str, bytes] | None:
        """The node that a piece is tagged with, and the rest of it."""
        found = _HOST.search(piece)
        if found is None:
            return None
        name = found.group(1)
        if name not in self._hosts:
            if len(self._hosts) >= _MOST_HOSTS or _HOST_PROOF.search(piece) is None or _NO_HOST.search(name):
                return None
            self._hosts.add(name)
        return name.decode(), piece[found.end() :]

    def task(self, piece: bytes) -> tuple[int, bytes] | None:
        """The rank that a piece is tagged with, and the rest of it."""
        found = _TASK.search(piece)
        if found is None:
            return None
        self._tasks = self._tasks or _TASK_PROOF.search(piece) is not None
        return (int(found.group(1)), piece[found.end() :]) if self._tasks else None
