"""Which processes are ranks: pure decisions over a table of processes and their environments.

A rank is told by the environment its launcher gave it. Children inherit that environment (data loader workers, shells),
launchers carry a weaker form of it (a pod's RANK is the node's), so the choice needs the whole tree. Which job is ours,
the files tell that its processes write.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from denpexd.core.events import UNKNOWN_RANK

_MOST_RANKS = 1_000_000
_DEEPEST = 64
DEAD_STATES = "ZXx"


@dataclass(frozen=True, slots=True)
class _Source:
    rank: str
    local: tuple[str, ...] = ()
    world: tuple[str, ...] = ()


# Strongest first: what torch reads itself, then what the starters of processes set.
_SOURCES = (
    _Source("RANK", ("LOCAL_RANK",), ("WORLD_SIZE",)),
    _Source("OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_LOCAL_RANK",), ("OMPI_COMM_WORLD_SIZE",)),
    _Source("PMI_RANK", ("MPI_LOCALRANKID", "PMI_LOCAL_RANK"), ("PMI_SIZE",)),
    _Source("SLURM_PROCID", ("SLURM_LOCALID",), ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")),
    # The index of a pod: a rank only where each pod runs one process, hence only together with a world size.
    _Source("JOB_COMPLETION_INDEX", (), ("WORLD_SIZE",)),
)
_POD_INDEX = len(_SOURCES) - 1
WANTED_KEYS = frozenset(
    {key for source in _SOURCES for key in (source.rank, *source.local, *source.world)}
    | {"MASTER_ADDR", "MASTER_PORT", "GROUP_RANK", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"}
    | {"SLURM_JOB_ID", "SLURM_STEP_ID", "PMIX_NAMESPACE"}
)


@dataclass(frozen=True, slots=True)
class Identity:
    """What a process's environment says it is; `source` 0 is the strongest, `job` equal for all ranks of one job."""

    source: int
    rank: int
    local_rank: int | None
    world_size: int | None
    job: str
    run_id: str | None = None
    restart: int = 0


@dataclass(frozen=True, slots=True)
class Row:
    """One live or dead process; `launcher` starts ranks, `helper` serves Python and holds no stack worth reading."""

    pid: int
    parent: int
    start: int
    state: str
    ticks: int
    threads: int
    identity: Identity | None = None
    python: bool = False
    launcher: bool = False
    helper: bool = False


@dataclass(frozen=True, slots=True)
class Found:
    """The main process of one rank and, nearest first, the Python processes that work below it."""

    row: Row
    identity: Identity
    workers: tuple[int, ...] = field(default=())


@dataclass(slots=True)
class Claim:
    """What ties one job of this node to the watched files.

    `files`: those it writes, with the rank or UNKNOWN_RANK (several ranks or the launcher write it); `pipe`: it writes
    into the pipe we read; `elsewhere`: a file that is not watched and takes the output of a rank, or "".
    """

    job: str
    files: dict[Path, int] = field(default_factory=dict)
    pipe: bool = False
    elsewhere: str = ""

    @property
    def ours(self) -> bool:
        """Whether it is certainly the job whose output is watched."""
        return self.pipe or bool(self.files)


def identify(environ: Mapping[str, str]) -> Identity | None:
    """The rank an environment states, or None; numbers that make no sense count as absent."""
    for level, source in enumerate(_SOURCES):
        rank = _number(environ.get(source.rank))
        if rank is None:
            continue
        world = next((n for key in source.world if (n := _number(environ.get(key))) is not None), None)
        if world is not None and not rank < world:
            world = None
        if level == _POD_INDEX and world is None:
            continue
        run = environ.get("TORCHELASTIC_RUN_ID", "")[:200]
        return Identity(
            source=level,
            rank=rank,
            local_rank=next((n for key in source.local if (n := _number(environ.get(key))) is not None), None),
            world_size=world,
            job=_job(environ, run),
            run_id=run if run and run != "none" else None,
            restart=_number(environ.get("TORCHELASTIC_RESTART_COUNT")) or 0,
        )
    return None


def choose(table: Mapping[int, Row], barred: Collection[tuple[int, int]] = (), root: int | None = None) -> list[Found]:
    """One process for each (job, rank), in that order; `barred` holds (pid, start) that are known not to be one."""
    named = {
        pid: row for pid, row in table.items() if row.identity and row.state not in DEAD_STATES and not row.launcher
    }
    spawners = _spawners(named, table)
    named = {pid: row for pid, row in named.items() if row.identity not in spawners}
    below = children(table)
    best: dict[tuple[str, int], Row] = {}
    for row in named.values():
        main = _main(row, named, table, below)
        if main is None or main.identity is None or (main.pid, main.start) in barred:
            continue
        if root is not None and main.pid != root and root not in ancestors(main.pid, table):
            continue
        key = (main.identity.job, main.identity.rank)
        if key not in best or _preference(main) < _preference(best[key]):
            best[key] = main
    mains = {row.pid for row in best.values()}
    return [
        Found(row, row.identity, _workers(row.pid, table, below, mains))
        for _, row in sorted(best.items())
        if row.identity is not None
    ]


def shared_by_jobs(claims: list[Claim]) -> list[Claim]:
    """A file that several jobs write is nobody's own."""
    writers = Counter(path for claim in claims for path in claim.files)
    for claim in claims:
        claim.files |= dict.fromkeys((path for path in claim.files if writers[path] > 1), UNKNOWN_RANK)
    return claims


def ancestors(pid: int, table: Mapping[int, Row]) -> Iterator[int]:
    """Parents of a process, nearest first, as far as the table knows them; a broken table ends it early."""
    for _ in range(_DEEPEST):
        row = table.get(pid)
        if row is None or row.parent <= 0:
            return
        pid = row.parent
        yield pid


def _number(text: str | None) -> int | None:
    if text is None or not (text.isascii() and text.isdigit()) or len(text) > 9:
        return None
    return number if (number := int(text)) <= _MOST_RANKS else None


def _job(environ: Mapping[str, str], run: str) -> str:
    """A name that stays the same over restarts; the port only where no better name exists, for it may change."""
    parts = [f"slurm {environ['SLURM_JOB_ID'][:40]}"] if environ.get("SLURM_JOB_ID") else []
    if run and run != "none":
        parts.append(f"run {run}")
    elif port := environ.get("MASTER_PORT", "")[:10]:
        parts.append(f"{environ.get('MASTER_ADDR', '')[:200]}:{port}")
    elif namespace := environ.get("PMIX_NAMESPACE", "")[:200]:
        parts.append(f"pmix {namespace}")
    elif step := environ.get("SLURM_STEP_ID", "")[:40]:
        parts.append(f"step {step}")
    return " ".join(parts)


def _spawners(named: Mapping[int, Row], table: Mapping[int, Row]) -> set[Identity]:
    """Identities of launchers: something below them carries a stronger or more complete identity."""
    result: set[Identity] = set()
    for row in named.values():
        if row.identity is None:
            continue
        for pid in ancestors(row.pid, table):
            above = table[pid].identity if pid in table else None
            if above is not None and _weaker(above, row.identity):
                result.add(above)
    return result


def _weaker(one: Identity, other: Identity) -> bool:
    if one.source != other.source:
        return one.source > other.source
    return one.local_rank is None and other.local_rank is not None


def _same(one: Identity | None, other: Identity | None) -> bool:
    return (
        one is not None
        and other is not None
        and (one.source, one.rank, one.job) == (other.source, other.rank, other.job)
    )


def children(table: Mapping[int, Row]) -> dict[int, list[int]]:
    below: dict[int, list[int]] = defaultdict(list)
    for row in sorted(table.values(), key=lambda row: (row.start, row.pid)):
        below[row.parent].append(row.pid)
    return below


def descendants(pid: int, below: Mapping[int, list[int]]) -> Iterator[int]:
    """Breadth first, each once, whatever a torn table says."""
    seen, level = {pid}, [pid]
    while level:
        level = [child for parent in level for child in below.get(parent, ()) if child not in seen]
        seen.update(level)
        yield from level


def _main(top: Row, named: Mapping[int, Row], table: Mapping[int, Row], below: Mapping[int, list[int]]) -> Row | None:
    """The rank's own process if `top` is the topmost of its identity: the first Python one from there down."""
    if any(pid in named and _same(named[pid].identity, top.identity) for pid in ancestors(top.pid, table)):
        return None
    if top.python:
        return top
    for pid in descendants(top.pid, below):
        if pid in named and named[pid].python and _same(named[pid].identity, top.identity):
            return named[pid]
    # A shell with RANK exported is not a rank; a program that also knows its world may well be one.
    return top if top.identity and top.identity.source == 0 and top.identity.world_size else None


def _preference(row: Row) -> tuple[int, bool, int, int]:
    """Newest attempt first, then Python, then the oldest: helpers start after the process they help."""
    return (-row.identity.restart if row.identity else 0, not row.python, row.start, row.pid)


def _workers(
    pid: int, table: Mapping[int, Row], below: Mapping[int, list[int]], mains: Collection[int]
) -> tuple[int, ...]:
    rows = (table[child] for child in descendants(pid, below) if child not in mains)
    return tuple(row.pid for row in rows if row.python and not row.helper and row.state not in DEAD_STATES)[:_DEEPEST]
