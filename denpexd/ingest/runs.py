"""Which of several torchrun runs in one folder goes on, and to which of them a launcher's own output belongs."""

import os
import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from denpexd.core.events import UNKNOWN_RANK
from denpexd.ingest.layouts import Layout

_LAUNCHERS = re.compile(r"launcher|torchrun|slurm|srun|sbatch|mpirun|nohup", re.IGNORECASE)
_STALE = 600.0  # a log that was last written so many seconds before a run began tells nothing about it


@dataclass(frozen=True, slots=True)
class Source:
    """A log file as it was found. `link`: by a symbolic link; `root`: the folder given or meant."""

    path: str
    link: bool
    root: str
    job: str
    layout: Layout
    named: bool = False  # the pattern tells the job
    job_how: str = ""  # what tells the job, for people


def without_earlier_runs(sources: list[Source]) -> tuple[list[Source], list[str]]:
    """Those of runs that go on, and the folders of the runs that are over.

    torchrun makes a new folder at each start: of two in one log folder, the first may be over.
    """
    runs: dict[tuple[str, str], dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for source in sources:
        if source.layout.run:
            runs[source.layout.run.rpartition("/")[0], source.layout.job][source.layout.run].append(source.path)
    over: set[str] = set()
    for group in runs.values():
        if len(group) > 1:
            over |= _earlier({run: _lifetime(paths) for run, paths in group.items()})
    return [source for source in sources if source.layout.run not in over or not source.layout.run], sorted(over)


def with_launchers(sources: list[Source]) -> tuple[list[Source], bool]:
    """A launcher's own output lies beside the folders of its ranks: it belongs to the job of the run that goes on.

    So does any merged log right beside one run; further up only what is named like a launcher's. Also returned:
    whether a later look may decide otherwise although no folder changes.
    """
    runs: dict[str, tuple[str, list[str]]] = {}
    for source in sources:
        if source.layout.run:
            runs.setdefault(source.layout.run, (source.job, []))[1].append(source.path)
    if not runs:
        return sources, False
    lives = {run: _lifetime(paths) for run, (_, paths) in runs.items()}
    undecided = len({job for job, _ in runs.values()}) > 1
    result: list[Source] = []
    for source in sources:
        if source.named or source.layout.run or source.layout.rank != UNKNOWN_RANK:
            result.append(source)
            continue
        folder, _, name = source.path.rpartition("/")
        far = _LAUNCHERS.search(name) is not None
        near = {run: life for run, life in lives.items() if _is_beside(run, folder, far=far)}
        going_on = near.keys() - _earlier(near) if near else set()
        jobs = {runs[run][0] for run in going_on}
        if len(jobs) == 1 and (job := jobs.pop()) != source.job:
            if _written(source.path) < min(lives[run].start for run in going_on) - _STALE:
                undecided = True
            else:
                source = replace(source, job=job, job_how="the run that it lies beside")
        result.append(source)
    return result, undecided


@dataclass(frozen=True, slots=True)
class _Lifetime:
    start: float
    last: float
    empty: bool


def _lifetime(paths: Sequence[str]) -> _Lifetime:
    """Start (when the ranks' folders were made) and last write of one run, in file time; now-ish where unknown."""
    start, last, empty = float("inf"), 0.0, True
    for path in paths:
        try:
            info, folder = os.stat(path), os.stat(path.rsplit("/", 2)[0])
        except OSError:
            continue
        start, last, empty = min(start, folder.st_mtime), max(last, info.st_mtime), empty and info.st_size == 0
    return _Lifetime(start, last, empty)


def _is_beside(run: str, folder: str, *, far: bool) -> bool:
    """Whether a run lies right in the folder, or anywhere below it if that is near enough."""
    parent = run.rpartition("/")[0]
    return parent == folder or (far and parent.startswith(f"{folder}/"))


def _written(path: str) -> float:
    """When a file was last written, in file time; 0 if it is gone."""
    try:
        return os.stat(path).st_mtime
    except OSError:
        return 0.0


def _earlier(runs: dict[str, _Lifetime]) -> set[str]:
    """Runs that had fallen silent before the newest began. Nodes of one run begin together and overlap."""
    newest = max(runs.values(), key=lambda life: life.start if life.last else 0.0)
    together = 60.0  # seconds within which the nodes of one run start, so that an empty log proves nothing
    return {
        run
        for run, life in runs.items()
        if life.last + 2.0 < newest.start and not (life.empty and newest.start - life.start < together)
    }
