"""The processes of the job's ranks on this node.

Every call reads files and blocks for some microseconds a process of the node: keep it off the event loop.
"""

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from denpexd.errors import EvidenceUnavailable
from denpexd.evidence.procfs import About, ProcFs, file_id
from denpexd.evidence.ranks import DEAD_STATES, Found, Row, choose

_LOOKS_UNTIL_SETTLED = 3
_FREEZER_PLACES = frozenset({"__refrigerator", "do_freezer_trap"})


@dataclass(frozen=True, slots=True)
class RankProcess:
    """One rank's main process. `start`: clock ticks since boot, with `pid` its identity; `ticks`: CPU ticks used.

    `state`: the letter of /proc stat; `children`: Python processes working below it (data loader workers);
    `job`: equal for all ranks of one job, "" where the environment names none.
    """

    rank: int
    pid: int
    start: int
    node: str
    local_rank: int | None
    world_size: int | None
    run_id: str | None
    state: str
    ticks: int
    wchan: str | None
    threads: int
    children: tuple[int, ...]
    job: str = ""

    @property
    def in_freezer(self) -> bool:
        """Whether its control group is frozen, as a paused container's is; the state letter does not show it."""
        return self.wchan in _FREEZER_PLACES

    def is_same(self, other: "RankProcess") -> bool:
        """Whether both speak of one process: pids are used again, the start tells them apart."""
        return (self.pid, self.start) == (other.pid, other.start)


@dataclass(frozen=True, slots=True)
class _Remembered:
    start: int
    comm: str
    about: About
    looks: int


class Processes:
    """Finds the ranks. `root_pid`: only that process and what descends from it; `jobs`: only these (see `keep`)."""

    def __init__(
        self,
        proc: Path = Path("/proc"),
        *,
        root_pid: int | None = None,
        jobs: Collection[str] | None = None,
        node: str | None = None,
    ) -> None:
        self._fs, self._root = ProcFs(proc), root_pid
        self._node = node or os.uname().nodename
        self._memory: dict[int, _Remembered] = {}
        self._seen: set[tuple[int, int]] = set()
        self._mains: dict[tuple[str, int], tuple[int, int]] = {}
        self._barred: set[tuple[int, int]] = set()
        self.denied = 0
        self.keep(jobs)

    def keep(self, jobs: Collection[str] | None) -> None:
        """From now on report only the ranks of these jobs; None means of every job."""
        self._jobs = None if jobs is None else frozenset(jobs)

    def refresh(self) -> list[RankProcess]:
        """Every rank that lives here now, ordered by job and rank. OSError: the process table cannot be read."""
        return [process for process in self._all() if self._jobs is None or process.job in self._jobs]

    def again(self, process: RankProcess) -> RankProcess | None:
        """The same process as it is now, None when it is gone; a dead one that waits for its parent is gone too."""
        try:
            now = self._fs.stat(process.pid)
        except (FileNotFoundError, ProcessLookupError):
            return None
        except OSError:
            return process  # we could not look, which says nothing about the process
        if now is None or now[0].start != process.start or now[0].state in DEAD_STATES:
            return None
        row, wchan = now[0], self._fs.wchan(process.pid)
        return replace(process, state=row.state, ticks=row.ticks, threads=row.threads, wchan=wchan)

    def gone(self, known: Iterable[RankProcess]) -> list[RankProcess]:
        """Those of `known` that no longer live."""
        return [process for process in known if self.again(process) is None]

    def holders(self, paths: Iterable[Path]) -> dict[Path, RankProcess]:
        """Which rank has each file open for writing; files of no rank, or of more than one, are left out.

        All ranks of the node are asked, whatever `keep` said: this is how the right job is found.
        """
        wanted: dict[tuple[int, int], list[Path]] = {}
        names: set[str] = set()
        for path in paths:
            try:
                real = path.resolve()
                wanted.setdefault(file_id(real), []).append(path)
            except OSError:
                continue
            names.add(real.name)
        owners: dict[Path, dict[int, RankProcess]] = {}
        for process, pid in self._writers() if wanted else ():
            try:
                written = self._fs.written(pid, names)
            except OSError:
                continue
            for path in (path for key in written for path in wanted.get(key, ())):
                owners.setdefault(path, {})[process.pid] = process
        return {path: found.popitem()[1] for path, found in owners.items() if len(found) == 1}

    def unavailable(self) -> EvidenceUnavailable | None:
        """Why ranks may be hidden from us: Python processes whose environment we may not read."""
        if not self.denied:
            return None
        return EvidenceUnavailable(
            f"{self.denied} Python process(es) of other users may not be looked at (/proc/PID/environ), "
            "so which ranks they are is not known",
            "run denpexd as the user of the job or with CAP_SYS_PTRACE (Kubernetes: "
            "securityContext.capabilities.add [SYS_PTRACE] on its container, shareProcessNamespace: true on the pod)",
        )

    def _all(self) -> list[RankProcess]:
        table = self._table()
        self._bar_orphans(table)
        found = choose(table, self._barred, self._root)
        self._mains |= {(f.identity.job, f.identity.rank): (f.row.pid, f.row.start) for f in found}
        self._seen = {(row.pid, row.start) for row in table.values()}
        return [self._rank(f) for f in found]

    def _table(self) -> dict[int, Row]:
        table: dict[int, Row] = {}
        memory: dict[int, _Remembered] = {}
        own = os.getpid()
        for pid in self._fs.pids():
            try:
                parsed = self._fs.stat(pid)
                if parsed is None:
                    continue
                row, comm = parsed
                memory[pid] = self._look(pid, row.start, comm)
            except OSError:
                continue  # gone between listing and reading
            about = memory[pid].about
            table[pid] = replace(
                row,
                identity=about.identity if pid != own else None,
                python=about.python,
                launcher=about.launcher,
                helper=about.helper,
            )
        self._memory = memory
        self.denied = sum(known.about.denied and known.about.python for known in memory.values())
        return table

    def _look(self, pid: int, start: int, comm: str) -> _Remembered:
        """What is remembered, or read anew: a young process may still execute another program."""
        known = self._memory.get(pid)
        looks = known.looks if known is not None and (known.start, known.comm) == (start, comm) else 0
        if known is not None and looks >= _LOOKS_UNTIL_SETTLED:
            return known
        return _Remembered(start, comm, self._fs.about(pid, comm), looks + 1)

    def _bar_orphans(self, table: dict[int, Row]) -> None:
        """Workers outlive a killed rank and carry its environment: what lived beside it never becomes the rank."""
        alive = {(row.pid, row.start) for row in table.values() if row.state not in DEAD_STATES}
        self._barred &= alive
        for key, main in list(self._mains.items()):
            if main in alive:
                continue
            del self._mains[key]
            self._barred |= {
                (row.pid, row.start)
                for row in table.values()
                if row.identity and (row.identity.job, row.identity.rank) == key and (row.pid, row.start) in self._seen
            }

    def _rank(self, found: Found) -> RankProcess:
        row, identity = found.row, found.identity
        return RankProcess(
            rank=identity.rank,
            pid=row.pid,
            start=row.start,
            node=self._node,
            local_rank=identity.local_rank,
            world_size=identity.world_size,
            run_id=identity.run_id,
            state=row.state,
            ticks=row.ticks,
            wchan=self._fs.wchan(row.pid),
            threads=row.threads,
            children=found.workers,
            job=identity.job,
        )

    def _writers(self) -> list[tuple[RankProcess, int]]:
        """Every process that carries a rank's identity, with that rank: a shell or a `tee` may hold its log."""
        ranks = {(process.job, process.rank): process for process in self._all()}
        result = []
        for pid, known in self._memory.items():
            identity = known.about.identity
            if identity is not None and not known.about.launcher:
                process = ranks.get((identity.job, identity.rank))
                if process is not None:
                    result.append((process, pid))
        return result
