"""Whom a line of the kernel or of a driver is about: the rank of the process or device it names, else the node.

Such lines stand in the log of another rank, of the launcher, or in a stream of their own. They are kept as they came
and placed when somebody asks, because the lines that tell which rank uses which device, or has which pid, may come
later. Nothing is guessed where several ranks remain: then the line belongs to UNKNOWN_RANK.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from denpexd.core.events import UNKNOWN_RANK, Hit
from denpexd.core.evidence import Evidence

if TYPE_CHECKING:
    from denpexd.core.rank import RankState
    from denpexd.core.state import JobState

MAX_LINES = 256
ONE_NODE = 8  # so many ranks are taken for those of one node where nothing tells
_SAME_REPORT = 1.0  # a report of several lines names its device in the first
_HOST = re.compile(
    r"^(?:<\d+>)?(?:[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d|\d{4}-\d\d-\d\d[T ][\d:.,]+(?:Z|[+-]\d\d:?\d\d)?) "
    r"([A-Za-z0-9][\w.-]*) kernel(?:\[\d+\])?: "
)
ENDED_BY_OTHERS = (-15, 143, -2, 130, -1, 129)  # SIGTERM, SIGINT, SIGHUP: sent by a launcher, a person, a scheduler
_OF_A_JOB = re.compile(
    r"(?i)^(?:python|pt_|ray|torchrun|train|pretrain|finetune|deepspeed|accelerate|vllm|sglang|mpirun|orted|cuda-)|\.py$"
)


@dataclass(slots=True)
class Noticed:
    """Equal lines of the kernel: what they name, the first and the last of them."""

    signal: str
    fields: Mapping[str, str]
    host: str | None
    first: Evidence
    last: Evidence
    count: int = 1


@dataclass(slots=True)
class Devices:
    """What the kernel and the drivers have said about the job's machines."""

    lines: dict[tuple[str, ...], Noticed] = field(default_factory=dict)

    def note(self, event: Hit, evidence: Evidence) -> None:
        """Remember a line; of too many different ones the newest is left out."""
        fields = {**event.fields}
        if "pci" in fields:
            fields["pci"] = address(fields["pci"])
        elif (above := self._above(event)) is not None:
            fields["pci"] = above
        names = ("xid", "sxid", "pci", "pid", "gpu", "hsa")
        key = (event.signal, str(event.rank), event.source, *(fields.get(name, "") for name in names))
        known = self.lines.get(key)
        if known is not None:
            known.last, known.count = evidence, known.count + 1
        elif len(self.lines) < MAX_LINES:
            host = _HOST.search(event.text)
            self.lines[key] = Noticed(event.signal, fields, host.group(1) if host else None, evidence, evidence)

    def _above(self, event: Hit) -> str | None:
        """The device named by the line just above, in a report of several lines."""
        newest = max((n for n in self.lines.values() if n.last.source == event.source), key=_seq, default=None)
        if newest is None or "pid" in event.fields or event.t - newest.last.t > _SAME_REPORT:
            return None
        return newest.fields.get("pci") if "head" in newest.fields else None

    def forget(self, before_seq: int) -> None:
        """Drop what belongs to a stop that is over."""
        self.lines = {key: n for key, n in self.lines.items() if n.last.seq > before_seq}


def _seq(noticed: Noticed) -> int:
    return noticed.last.seq


def address(text: str) -> str:
    """`0000:4f:00.0`, `00000000:4F:00.0`, `4f:00.0` and NCCL's `4f000` as `0000:4f:00`; others in lower case."""
    text = text.strip().lower()
    if ":" not in text:
        try:
            number = int(text, 16)
        except ValueError:
            return text
        return f"{number >> 20:04x}:{number >> 12 & 0xFF:02x}:{number >> 4 & 0xFF:02x}"
    parts = text.split(".")[0].split(":")
    domain = parts[-3] if len(parts) > 2 else "0"
    try:
        return f"{int(domain or '0', 16):04x}:{int(parts[-2], 16):02x}:{int(parts[-1], 16):02x}"
    except ValueError:
        return text


def belongs(job: "JobState", event: Hit) -> None:
    """A line says which device (`pci`, index `gpu`) the process of a rank uses."""
    fields, rank = event.fields, event.rank
    if rank == UNKNOWN_RANK and "pid" in fields:
        rank = next((r for r, s in job.ranks.items() if r >= 0 and str(s.pid) == fields["pid"]), UNKNOWN_RANK)
    if rank == UNKNOWN_RANK and fields.get("rank", "").isdigit():
        rank = int(fields["rank"])
    if rank == UNKNOWN_RANK or rank not in job.ranks:
        return
    state = job.ranks[rank]
    if state.pci is None and "pci" in fields:
        state.pci = address(fields["pci"])
    if state.gpu is None and fields.get("gpu", "").isdigit():
        state.gpu = int(fields["gpu"])
    state.node = state.node or fields.get("node")


# --- placing --------------------------------------------------------------------------------------------------------


def place(job: "JobState", line: Noticed, of: str) -> tuple[int, ...]:
    """The ranks the line is about; (UNKNOWN_RANK,) if that cannot be told, () if it is about nobody of the job.

    `of`: whose fault it is. A `device` is found by its address, then by the process that used it; a `process` the
    other way round, and somebody else's is no matter of the job; a `node` is all its ranks that are not known to live.
    """
    line = _whole(job, line)
    near, certain = _near(job, line)
    pid = _pid(job, line)
    by_pid = [r for r in near if pid and str(_state(job, r, "pid")) == pid]
    by_pci = [r for r in near if "pci" in line.fields and _state(job, r, "pci") == line.fields["pci"]]
    if of == "process" and not by_pid and _is_foreign(line):
        return ()
    for found in (by_pid, by_pci) if of != "device" else (by_pci, by_pid):
        if len(found) == 1 or (found and certain):
            return tuple(found)
        if line.first.teller in found:
            return (line.first.teller,)
    if of == "node":
        return _of_node(job, near, certain=certain)
    if (index := _index(job, line, near, certain=certain)) is not None:
        return (index,)
    if not _may_tell_of_itself(line):
        return (UNKNOWN_RANK,)
    return _one_of(job, line, by_pci or near, named=bool(pid))


def _may_tell_of_itself(line: Noticed) -> bool:
    """Whether the rank in whose log it stands can have the GPU of that index, on nodes of any equal size."""
    if not line.fields.get("gpu", "").isdigit() or line.first.teller == UNKNOWN_RANK:
        return True
    further = line.first.teller - int(line.fields["gpu"])  # whole nodes lie before it, each of more GPUs than the index
    return further == 0 or further > int(line.fields["gpu"])


def _whole(job: "JobState", line: Noticed) -> Noticed:
    """With the address and the process that another signal found in the very same line."""
    at = line.first.source, line.first.offset
    same = (n for n in job.devices.lines.values() if (n.first.source, n.first.offset) == at)
    told = {name: n.fields[name] for n in same for name in ("pci", "pid") if n.fields.get(name)}
    return replace(line, fields={**told, **line.fields})


def _pid(job: "JobState", line: Noticed) -> str | None:
    """The process that the line names, or else another line about the same device in the same log."""
    told = [line.fields.get("pid", "")]
    if "pci" in line.fields and not told[0]:
        same = (n for n in job.devices.lines.values() if n.first.source == line.first.source)
        told += [n.fields.get("pid", "") for n in same if n.fields.get("pci") == line.fields["pci"]]
    return next((pid for pid in told if pid.isdigit()), None)


def _near(job: "JobState", line: Noticed) -> tuple[list[int], bool]:
    """The ranks of the node that the line comes from, and whether that node is known."""
    everyone = job.universe
    nodes = {r: node for r in everyone if (node := _state(job, r, "node"))}
    wanted = {r for r, node in nodes.items() if line.host and _short(str(node)) == _short(line.host)}
    if not wanted and line.first.teller in nodes:
        wanted = {r for r, node in nodes.items() if node == nodes[line.first.teller]}
    if wanted:
        return sorted(wanted), True
    return everyone, len(everyone) == 1 or (len(nodes) == len(everyone) and len(set(nodes.values())) == 1)


def _short(host: str) -> str:
    return host.split(".")[0].lower()


def _state(job: "JobState", rank: int, name: str) -> object:
    """What is known of a rank; of its GPU what was printed, else what its environment says."""
    state = job.ranks.get(rank)
    if state is None:
        return None
    if name == "pci" and state.pci is None:
        return address(state.place[0]) if state.place[0] else None
    if name == "gpu" and state.gpu is None:
        index = state.place[1] or ""
        return int(index) if index.isdigit() else None
    return getattr(state, name)


def _is_foreign(line: Noticed) -> bool:
    """The process has a name, and not one that a training job has."""
    name = line.fields.get("name", "").strip("'\" ")
    return bool(name) and not name.startswith("<") and _OF_A_JOB.search(name) is None


def _quiet(job: "JobState", ranks: Sequence[int]) -> list[int]:
    """Those that did not complain about a peer, if anybody did: who complains lives."""
    complained = {r for r, s in job.ranks.items() if s.reported is not None}
    return [r for r in ranks if r not in complained] if complained else list(ranks)


def _failed_itself(state: "RankState") -> bool:
    """It raised something that is no report about a peer, or ended badly and not because its launcher ended it."""
    raised = any(not r.collateral for r in state.raised)
    return raised or any(not e.forced and e.event.code not in (0, None, *ENDED_BY_OTHERS) for e in state.exits)


def _of_node(job: "JobState", near: list[int], *, certain: bool) -> tuple[int, ...]:
    quiet = _quiet(job, near)
    certain = certain or (len(near) <= ONE_NODE and not any(_state(job, r, "node") for r in near))
    if not quiet or (not certain and quiet == near):
        return (UNKNOWN_RANK,)
    return tuple(quiet)


def _index(job: "JobState", line: Noticed, near: list[int], *, certain: bool) -> int | None:
    """The rank of the node's n-th GPU. ROCm's agents count the CPU sockets first, of which servers have two."""
    if (hsa := line.fields.get("hsa", "")).isdigit():
        same = [n for n in job.devices.lines.values() if n.signal == line.signal]
        tellers = sorted({n.first.teller for n in same})
        alone = len(tellers) == len({n.fields.get("hsa") for n in same})
        if alone and line.first.teller != UNKNOWN_RANK:
            return line.first.teller  # only the process that caused it says so
        at, near = int(hsa) - 2, [r for r in tellers if r != UNKNOWN_RANK]  # every process of the node says so
    elif line.fields.get("gpu", "").isdigit():
        at = int(line.fields["gpu"])
        if not certain and not _one_node_only(len(near), at):
            return None
        if known := [r for r in near if _state(job, r, "gpu") == at]:
            return known[0] if len(known) == 1 else None
    else:
        return None
    return near[at] if 0 <= at < len(near) else None


def _one_node_only(world: int, at: int) -> bool:
    """Of nodes of equal size, only one that holds all ranks can have a GPU of this index."""
    return at < world and all(world % size for size in range(at + 1, world))


def _one_of(job: "JobState", line: Noticed, near: list[int], *, named: bool) -> tuple[int, ...]:
    """The only rank it can be, the only one that failed by itself, or the one in whose log the line stands, unless the
    line names another process, or others failed by themselves: a kernel's lines stand where somebody collects them."""
    quiet = _quiet(job, near)
    failed = [r for r in quiet if r in job.ranks and _failed_itself(job.ranks[r])]
    if len(failed) == 1:
        return tuple(failed)
    if len(quiet) == 1:
        return tuple(quiet)
    teller = line.first.teller
    return (teller,) if teller in quiet and not failed and not named else (UNKNOWN_RANK,)
