"""What the ranks of this node run out of: shared memory, disk, open files, and the memory of their control group.

A few system calls a rank and second, none of which can block: file systems of other machines are left alone. Full is
told when it begins and when it ends, because what a dying process held is free again a moment later.
"""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from denpexd.core.events import Fact
from denpexd.evidence.places import memory_cgroup
from denpexd.evidence.procs import RankProcess

FULL, EASED = 0.97, 0.95
FILES_EVERY = 10  # looks between two counts of open files
KILLED_WITHIN = 10.0  # seconds between an OOM kill in a group and the end of a process in it
_MOST_DESCRIPTORS = 1 << 20
_ELSEWHERE = (
    *("nfs", "cifs", "smb", "lustre", "fuse", "ceph", "gpfs", "beegfs", "9p", "afs", "glusterfs", "wekafs", "orangefs"),
    *("autofs", "pvfs", "ocfs", "panfs", "virtiofs"),
)


@dataclass(slots=True)
class _Watched:
    process: RankProcess
    group: Path | None  # where its control group counts OOM kills
    disk: Path | None  # its working directory, if it is on a disk of this machine
    score: int = 0  # by which the kernel chooses whom to kill
    full: set[str] = field(default_factory=set)


@dataclass(slots=True)
class _Group:
    """A control group. `left`: kills of the last seconds that no rank's end is known for; `whole`: it kills all."""

    kills: int
    whole_kills: int
    left: int = 0
    whole: bool = False
    killed_t: float = float("-inf")
    limits: str = ""


class Resources:
    """`proc` and `cgroups`: where the two file systems are mounted. Not for the event loop."""

    def __init__(self, proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> None:
        self._proc, self._cgroups = proc, cgroups
        self._watched: dict[tuple[int, int], _Watched] = {}
        self._groups: dict[Path, _Group] = {}
        self._looks = 0

    def news(self, ranks: Mapping[int, RankProcess], t: float) -> list[Fact]:
        """What has run full or has room again since the last call, and who went when its group had an OOM kill."""
        found: list[Fact] = []
        alive = {(p.pid, p.start): p for p in ranks.values()}
        for path, group in self._groups.items():
            self._count(path, group, t)
        gone = [self._watched.pop(key) for key in self._watched.keys() - alive.keys()]
        for path, group in self._groups.items():
            found += _killed(path, group, [known for known in gone if known.group == path], t)
        for key in sorted(alive.keys() - self._watched.keys()):
            self._watched[key] = self._begin(alive[key])
        for known in self._watched.values():
            known.score = _number(self._proc / str(known.process.pid) / "oom_score") or 0
            found += self._fill(known, t)
        self._looks += 1
        return found

    def _begin(self, process: RankProcess) -> _Watched:
        group = self._group(process.pid)
        if group is not None and group not in self._groups:
            counted = _counted(group) or {}
            self._groups[group] = _Group(counted.get("oom_kill", 0), counted.get("oom_group_kill", 0))
        return _Watched(process, group, self._disk(process.pid))

    def _group(self, pid: int) -> Path | None:
        path = memory_cgroup(self._proc, pid)
        if path is None or ".." in path:
            return None
        for file in (f"{path}/memory.events", f"memory{path}/memory.oom_control"):
            if (self._cgroups / file.lstrip("/")).is_file():
                return self._cgroups / file.lstrip("/")
        return None

    def _disk(self, pid: int) -> Path | None:
        cwd = self._proc / str(pid) / "cwd"
        try:
            place = str(cwd.readlink())
            mounts = (self._proc / str(pid) / "mountinfo").read_text("utf-8", "replace")
        except OSError:
            return None
        return None if _type_of(place, mounts).startswith(_ELSEWHERE) else cwd

    @staticmethod
    def _count(path: Path, group: _Group, t: float) -> None:
        counted = _counted(path) or {}
        if t - group.killed_t > KILLED_WITHIN:
            group.left, group.whole = 0, False
        if (new := counted.get("oom_kill", 0) - group.kills) > 0:
            group.left, group.killed_t, group.limits = group.left + new, t, _limits(path)
            group.whole = group.whole or counted.get("oom_group_kill", 0) > group.whole_kills
        group.kills = max(group.kills, counted.get("oom_kill", 0))
        group.whole_kills = max(group.whole_kills, counted.get("oom_group_kill", 0))

    def _fill(self, known: _Watched, t: float) -> Iterator[Fact]:
        pid = str(known.process.pid)
        shares = {
            "shm": (_used(self._proc / pid / "root/dev/shm"), "/dev/shm"),  # noqa: S108 - the mount, no file in it
            "disk": (_used(known.disk), "the file system of its working directory"),
        }
        if self._looks % FILES_EVERY == 0:
            shares["files"] = (self._files(pid), "its limit of open files")
        for what, (share, name) in shares.items():
            if share is None:
                continue
            is_full = share >= (EASED if what in known.full else FULL)
            if is_full and what not in known.full:
                known.full.add(what)
                text = f"{name} was {share:.0%} used"
                fields = {"what": what, "share": f"{share:.3f}"}
                yield Fact(t, known.process.rank, "exhausted", fields, source="process", text=text)
            elif not is_full and what in known.full:
                known.full.discard(what)
                yield Fact(t, known.process.rank, "eased", {"what": what}, source="process")

    def _files(self, pid: str) -> float | None:
        try:
            limits = (self._proc / pid / "limits").read_text("ascii", "replace")
            line = next(line for line in limits.splitlines() if line.startswith("Max open files"))
            most = int(line.split()[3])
            with os.scandir(self._proc / pid / "fd") as entries:
                number = sum(1 for _, _ in zip(entries, range(_MOST_DESCRIPTORS), strict=False))
        except (OSError, StopIteration, ValueError, IndexError):
            return None
        return number / most if most > 0 else None


def _killed(path: Path, group: _Group, gone: list[_Watched], t: float) -> Iterator[Fact]:
    """Which of the ranks that went were killed for their memory: as many as were killed, those first that the kernel
    would choose. A launcher ends all others of the group in the same second.
    """
    most = len(gone) if group.whole else group.left
    for known in sorted(gone, key=lambda known: -known.score)[:most]:
        group.left = max(0, group.left - 1)
        how = "it kills all of its processes together" if group.whole else f"oom_score {known.score}"
        text = f"Memory cgroup of the rank counted an OOM kill as the process went ({path}; {how}{group.limits})"
        yield Fact(t, known.process.rank, "oom_killed", {"pid": str(known.process.pid)}, source="process", text=text)


def _counted(events: Path) -> dict[str, int] | None:
    """What a control group has counted (`oom_kill N` in either version, `oom_group_kill N` since Linux 5.17)."""
    try:
        words = [line.split() for line in events.read_text("ascii", "replace").splitlines()]
    except OSError:
        return None
    return {pair[0]: int(pair[1]) for pair in words if len(pair) == 2 and pair[1].isdecimal()}


def _limits(events: Path) -> str:
    """The limit of a control group and the most it has used, as `; limit 64.0 GiB, most used 64.0 GiB`."""
    names = {
        "limit": ("memory.max", "memory.limit_in_bytes"),
        "most used": ("memory.peak", "memory.max_usage_in_bytes"),
    }
    told = {
        what: next((n for one in files if (n := _number(events.with_name(one)))), None) for what, files in names.items()
    }
    return "".join(f"{';' if what == 'limit' else ','} {what} {n / 2**30:.1f} GiB" for what, n in told.items() if n)


def _number(file: Path) -> int | None:
    try:
        text = file.read_text("ascii", "replace").strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


def _used(place: Path | None) -> float | None:
    """The share of a file system that is used, by blocks or by inodes, as far as an ordinary user may go."""
    try:
        status = os.statvfs(place) if place is not None else None
    except OSError:
        return None
    if status is None or not status.f_blocks:
        return None
    free = status.f_bavail / status.f_blocks
    inodes = status.f_favail / status.f_files if status.f_files else 1.0
    return 1.0 - min(free, inodes)


def _type_of(place: str, mountinfo: str) -> str:
    """The type of the file system that a path lies on; "autofs", which is left alone, where that cannot be told."""
    best, found = -1, "autofs"
    for line in mountinfo.splitlines():
        head, _, tail = line.partition(" - ")
        words = head.split()
        if len(words) < 5 or not tail:
            continue
        point = words[4].replace("\\040", " ")
        inside = place == point or place.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= best:
            best, found = len(point), tail.split()[0]
    return found
