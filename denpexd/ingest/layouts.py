"""What the name of a log file says about who wrote it: rank, attempt, stream. Pure text, no file is touched.

Known by their shape: torchrun (`<id>_XXXXXXXX/attempt_N/<local rank>/stdout.log`), mpirun (`1/rank.0/stdout`), Slurm
(`job5-0.out`, `job-<name>-<id>-<task>.log`), and a word before the number, in the file or a folder: `rank3`, `rank_3`,
`r3.log`. Weaker words (`worker-3`, `gpu3`, `proc_3`, `task-3`) and bare numbers (`3.log`, `3/out.log`, Slurm's) mean a
rank only among siblings that count from 0, see `counts_ranks`. `slurm-<jobid>.out` and all else is a merged stream.
"""

import re
from collections.abc import Collection
from dataclasses import dataclass

from denpexd.core.events import UNKNOWN_RANK

_TORCHRUN = re.compile(
    r"(?:(?P<run>.*/(?P<id>[^/]+)_[a-z0-9_]{8})/)?(?:.*/)?attempt_(?P<attempt>\d+)/(?P<rank>\d+)"
    r"/(?:std(?:out|err)\.log|error\.json)"
)
_MPIRUN = re.compile(r"(?P<origin>(?:.*/)?\d+)/rank\.(?P<rank>\d+)/std(?:out|err)")
_SLURM = re.compile(r"(?:job|slurm|srun)[^/]*\d[^/]*-(?P<rank>\d{1,6})\.(?:out|err|log)")
_BARE_FILE = re.compile(r"(?P<rank>\d{1,6})\.(?:log|out|err|txt|stdout|stderr)")
_BARE_FOLDER = re.compile(r"\d{1,6}")
_ATTEMPT = re.compile(r"(?:attempt|restart)[_\-]?(\d+)")
_STREAM = re.compile(r"(?<![a-z])(?:std(?P<std>out|err)(?![a-z])|(?P<word>out|err)(?:\.log|\.txt)?$)")
# The first word of this list that is found decides, in a file name before its folders: train_rank3_gpu1.log is rank 3.
# (pattern, is it a local rank, is the word proof enough; a gpu8 folder may as well mean eight GPUs)
_WORDS = tuple(
    (re.compile(rf"{word}[_\-.]?(?P<rank>\d{{1,6}})(?!\d)", re.IGNORECASE), local, certain)
    for word, local, certain in (
        (r"(?:^|[^a-z])local[_\-]?rank", True, True),
        (r"(?<!node)(?<!node[_\-.])(?:^|(?<![a-z]))rank", False, True),
        (r"(?:^|[^a-z])(?:proc|process|worker|task)", False, False),
        (r"(?:^|[^a-z])(?:gpu|cuda|device)", True, False),
        (r"^r(?=\d+(?:\.|$))", False, True),
    )
)
_LEADERS = re.compile(r"(?:^|[^a-z])(?:master|chief|launcher|leader)(?![a-z])")


@dataclass(frozen=True, slots=True)
class Layout:
    """What one path says. `origin`: the folder within which a rank can exist once. `job`: torchrun's run id.

    `run`: the folder that torchrun made for this run. `siblings`: the path with its number taken out, if only the
    siblings can tell what the number means. `worker`: the word was "worker" (see `is_leader`). `how`: what in the path
    gave the rank, for people.
    """

    rank: int = UNKNOWN_RANK
    attempt: int | None = None
    stream: str = ""
    local: bool = False
    origin: str = ""
    run: str = ""
    job: str = ""
    siblings: str = ""
    worker: bool = False
    how: str = ""


def rank_of(path: str, root: str) -> Layout:
    """Layout of an absolute path. Of what lies above `root`, only its last folder and the launchers' shapes count."""
    inside = path[len(root) :].lstrip("/") if path.startswith(root) else path.rpartition("/")[2]
    parts = [root, *inside.split("/")]
    stream = _stream(parts)
    if found := _TORCHRUN.fullmatch(path):
        run, job = found["run"] or path.rsplit("/", 3)[0], found["id"] or "none"
        job = "" if job == "none" else job
        return Layout(int(found["rank"]), int(found["attempt"]), stream, True, run, run, job, how="torchrun's folder")
    attempt = _attempt(parts)
    if found := _MPIRUN.fullmatch(path):
        return Layout(int(found["rank"]), attempt, stream, origin=found["origin"], how="mpirun's folder")
    for at in range(len(parts) - 1, -1, -1):
        part = parts[at] if at else root.rpartition("/")[2]
        for pattern, local, certain in _WORDS:
            if word := pattern.search(part):
                origin = "/".join(parts[:at]) or root.rpartition("/")[0]
                siblings = "" if certain else _hidden(origin, part, word, parts[at + 1 :])
                worker = "worker" in word[0].lower()
                how = f"{word[0].lstrip('_-. ')!r} in {'its name' if at == len(parts) - 1 else f'the folder {part}'}"
                return Layout(
                    int(word["rank"]), attempt, stream, local, origin, siblings=siblings, worker=worker, how=how
                )
    return _numbered(parts, attempt, stream)


def _numbered(parts: list[str], attempt: int | None, stream: str) -> Layout:
    """A number without a word is a candidate at best."""
    name = parts[-1]
    if found := _SLURM.fullmatch(name) or _BARE_FILE.fullmatch(name):
        origin = "/".join(parts[:-1])
        siblings = _hidden(origin, name, found, [])
        return Layout(
            int(found["rank"]), attempt, stream, origin=origin, siblings=siblings, how="the number in its name"
        )
    for at in range(len(parts) - 2, 0, -1):
        if _BARE_FOLDER.fullmatch(parts[at]):
            siblings = "/".join([*parts[:at], "#", *parts[at + 1 :]])
            how = f"the folder {parts[at]}"
            return Layout(int(parts[at]), attempt, stream, origin="/".join(parts[:at]), siblings=siblings, how=how)
    return Layout(attempt=attempt, stream=stream, origin="/".join(parts[:-1]))


def _hidden(origin: str, part: str, number: re.Match[str], rest: list[str]) -> str:
    return "/".join([origin, f"{part[: number.start('rank')]}#{part[number.end('rank') :]}", *rest])


def counts_ranks(numbers: Collection[int]) -> bool:
    """Do bare numbers of siblings look like ranks: at least two, from 0, few gaps (job ids and steps are not)?"""
    return len(numbers) > 1 and 0 in numbers and max(numbers) < 2 * len(numbers)


def is_leader(name: str) -> bool:
    """A pod or process beside numbered workers that is itself rank 0, so that the workers' numbers are not ranks."""
    return _LEADERS.search(name.lower()) is not None


def _stream(parts: list[str]) -> str:
    for part in reversed(parts[1:]):
        if found := _STREAM.search(part.lower()):
            return f"std{found['std'] or found['word']}"
    return ""


def _attempt(parts: list[str]) -> int | None:
    for part in reversed(parts):
        if found := _ATTEMPT.fullmatch(part.rpartition("/")[2].lower()):
            return int(found[1])
    return None
