"""The processes of the job's ranks on this node.

Every call reads files and blocks for some microseconds a process of the node: keep it off the event loop.
"""

import functools
import os
import stat
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from denpexd.core.events import UNKNOWN_RANK
from denpexd.errors import EvidenceUnavailable
from denpexd.evidence.procfs import About, ProcFs
from denpexd.evidence.ranks import (
    DEAD_STATES,
    Claim,
    Found,
    Row,
    ancestors,
    children,
    choose,
    descendants,
    shared_by_jobs,
)

_LOOKS_UNTIL_SETTLED = 3
_LONGEST_PIPELINE = 8  # programs between the ranks and what is watched
_FREEZER_PLACES = frozenset({"__refrigerator", "do_freezer_trap"})


@dataclass(frozen=True, slots=True)
class RankProcess:
    """One rank's main process. `start`: clock ticks since boot, with `pid` its identity; `ticks`: CPU ticks used.

    `state`: the letter of /proc stat; `children`: Python processes working below it (data loader workers);
    `work`: CPU ticks of the process and of all below it, when the table was read last;
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
    work: int = 0

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
    """Finds the ranks. `root_pid`: only that process and what descends from it; `jobs`: only these (see `keep`).

    `pipe`: the inode of the pipe that the job's output comes through, where there is one.
    """

    def __init__(
        self,
        proc: Path = Path("/proc"),
        *,
        root_pid: int | None = None,
        jobs: Collection[str] | None = None,
        node: str | None = None,
        pipe: int | None = None,
    ) -> None:
        self._fs, self._root, self._pipe = ProcFs(proc), root_pid, pipe
        self._node = node or os.uname().nodename
        self._memory: dict[int, _Remembered] = {}
        self._rows: dict[int, Row] = {}
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

    def environ(self, process: RankProcess, names: Collection[str]) -> dict[str, str]:
        """Those of the variables that the process was started with; none where it is gone or we may not look."""
        try:
            return self._fs.environ(process.pid, names)
        except OSError:
            return {}

    def gone(self, known: Iterable[RankProcess]) -> list[RankProcess]:
        """Those of `known` that no longer live."""
        return [process for process in known if self.again(process) is None]

    def claims(self, paths: Iterable[Path]) -> list[Claim]:
        """What each job of the node has to do with the files, whatever `keep` said: this is how the right one is found.

        OSError: the process table cannot be read.
        """
        wanted, names = _known_by(paths)

        @functools.cache
        def written(pid: int) -> list[Path]:
            try:
                held = self._fs.written(pid, names) if names else set()
            except OSError:
                return []
            return [path for key in held for path in wanted.get(key, ())]

        claims: dict[str, Claim] = {}
        launchers: dict[str, set[int]] = {}
        pipes = self._pipes(written)
        for process, pid in self._writers():
            claim = claims.setdefault(process.job, Claim(process.job))
            outputs = self._fs.links(pid, 1, 2)
            for path in written(pid):
                same = claim.files.get(path, process.rank) == process.rank
                claim.files[path] = process.rank if same else UNKNOWN_RANK
            claim.pipe = claim.pipe or not pipes.isdisjoint(outputs)
            if pid == process.pid and self._root is None:
                claim.elsewhere = next(filter(_is_file, outputs), claim.elsewhere)
            above = (parent for parent in ancestors(pid, self._rows) if parent in self._rows)
            launchers.setdefault(process.job, set()).update(p for p in above if self._rows[p].launcher)
        for job, pids in launchers.items():
            for pid in pids:
                for path in written(pid):  # torchrun holds the files of its ranks too
                    claims[job].files.setdefault(path, UNKNOWN_RANK)
                claims[job].pipe = claims[job].pipe or not pipes.isdisjoint(self._fs.links(pid, 1, 2))
        return shared_by_jobs(list(claims.values()))

    def _pipes(self, written: Callable[[int], list[Path]]) -> set[str]:
        """What leads to us: our pipe, those written to watched files (`job | tee x.log`), and those that feed them."""
        pipes = {f"pipe:[{self._pipe}]"} if self._pipe is not None else set()
        readers: list[tuple[str, list[str]]] = []
        for pid in self._fs.pids():
            for source in (link for link in self._fs.links(pid, 0) if link.startswith("pipe:")):
                readers.append((source, self._fs.links(pid, 1)))
                if written(pid):
                    pipes.add(source)
        for _ in range(_LONGEST_PIPELINE):
            pipes |= {source for source, outputs in readers if not pipes.isdisjoint(outputs)}
        return pipes

    def unavailable(self) -> EvidenceUnavailable | None:
        """Why ranks may be hidden from us: Python processes whose environment we may not read."""
        if not self.denied:
            return None
        return EvidenceUnavailable(
            "Python processes of other users may not be looked at (/proc/PID/environ), "
            "so which ranks they are is not known",
            "run denpexd as the user of the job or with CAP_SYS_PTRACE (Kubernetes: "
            "securityContext.capabilities.add [SYS_PTRACE] on its container, shareProcessNamespace: true on the pod)",
        )

    def _all(self) -> list[RankProcess]:
        table = self._rows = self._table()
        self._bar_orphans(table)
        found = choose(table, self._barred, self._root)
        self._mains |= {(f.identity.job, f.identity.rank): (f.row.pid, f.row.start) for f in found}
        self._seen = {(row.pid, row.start) for row in table.values()}
        below = children(table)
        return [self._rank(f, sum(table[p].ticks for p in descendants(f.row.pid, below))) for f in found]

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

    def _rank(self, found: Found, below: int) -> RankProcess:
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
            work=row.ticks + below,
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


def _known_by(paths: Iterable[Path]) -> tuple[dict[tuple[int, int], list[Path]], set[str]]:
    """Files by their identity, and the names under which whoever holds them has them."""
    wanted: dict[tuple[int, int], list[Path]] = {}
    names: set[str] = set()
    for path in paths:
        try:
            info, name = path.lstat(), path.name
            if stat.S_ISLNK(info.st_mode):  # only a link has another name than its file (resolving all is slow)
                info, name = path.stat(), path.resolve().name
        except OSError:
            continue
        wanted.setdefault((info.st_dev, info.st_ino), []).append(path)
        names.add(name)
    return wanted, names


def _is_file(link: str) -> bool:
    """Whether a link of /proc/PID/fd leads to a file and not to a pipe, socket, terminal or device."""
    return link.startswith("/") and not link.startswith(("/dev/", "/memfd:"))
