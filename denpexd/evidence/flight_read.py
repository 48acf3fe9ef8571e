"""Flight Recorder dumps from files, read by a child process with limits (flight_child.py): a dump is data of strangers.

Whatever is wrong with a file is told with its name, and never stops the others.
"""

import json
import os
import re
import select
import stat
import subprocess
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from denpexd.core.flight import Dump
from denpexd.evidence.flight_format import to_dump

MOST_OPS = 256
"""How many operations of a dump the core is told of: enough for several steps of a model."""
ALL_OPS = 4096
"""How many are read where nothing else waits; PyTorch keeps 2,000 if nobody asks for another number."""

_CHILD = Path(__file__).with_name("flight_child.py")
_AT_ONCE = 32
_PATIENCE = 4.5  # seconds for one file
_MOST = 64 << 20
_LONGEST = 512 << 20  # bytes that a child may print
_SUFFIX = re.compile(r"\.(?:json|pkl|pickle|bin|txt|dump|trace)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Found:
    """One file: what it holds, or what is wrong with it."""

    path: Path
    rank: int
    dump: Dump | None = None
    wrong: str = ""
    bytes: int = 0


def rank_of(name: str) -> int | None:
    """The global rank that ends a dump's name, as in `nccl_trace_rank_3`, `_dump_12`, `rank0.json`, `trace_node7_3`."""
    found = re.search(r"(?<![0-9])([0-9]{1,6})$", _SUFFIX.sub("", name))
    return int(found[1]) if found else None


def files_in(folder: Path) -> dict[int, list[Path]]:
    """The files of a folder that are named like dumps, by rank, oldest first."""
    found: dict[int, list[tuple[float, Path]]] = {}
    for entry in os.scandir(folder):
        rank = rank_of(entry.name)
        if rank is not None and not entry.name.startswith(".") and entry.is_file():
            found.setdefault(rank, []).append((entry.stat().st_mtime, Path(entry.path)))
    return {rank: [path for _, path in sorted(paths)] for rank, paths in sorted(found.items())}


def read_folder(folder: Path, t: float = 0.0) -> list[Found]:
    """All dumps of a folder; of several files of one rank the newest that can be read counts, the others are told."""
    named = [(rank, path) for rank, paths in files_in(folder).items() for path in reversed(paths)]
    found = _related(read_files([path for _, path in named], t))
    taken: set[int] = set()
    for at, one in enumerate(found):
        if one.dump is not None and one.rank in taken:
            found[at] = replace(one, dump=None, wrong=f"older than another dump of rank {one.rank}")
        elif one.dump is not None:
            taken.add(one.rank)
    return found


def _related(found: Sequence[Found]) -> list[Found]:
    """A file that is no dump at all and is not named like one either is nobody's."""
    heads = {one.path.name[:4] for one in found if one.dump is not None}
    strange = ("neither a pickle nor JSON", "it holds no dump")
    return [
        replace(one, rank=-1) if one.wrong in strange and heads and one.path.name[:4] not in heads else one
        for one in found
    ]


def read_files(paths: Iterable[Path], t: float = 0.0, most: int = ALL_OPS) -> list[Found]:
    """Each file once, in this order; its rank is in its name (-1: in no way). `most`: operations to keep of each."""
    named = list(paths)
    parts = [named[begin : begin + _AT_ONCE] for begin in range(0, len(named), _AT_ONCE)]
    with ThreadPoolExecutor(2) as pool:  # one child decodes while the answers of another are read
        return [one for found in pool.map(lambda part: _batch(part, t, most), parts) for one in found]


def _batch(paths: Sequence[Path], t: float, most: int) -> list[Found]:
    opened: list[tuple[Path, int | str]] = [(path, _open(path)) for path in paths]
    numbers = [number for _, number in opened if isinstance(number, int)]
    try:
        answers = _answers(numbers, most)
    finally:
        for number in numbers:
            os.close(number)
    return [
        _found(path, {"wrong": number} if isinstance(number, str) else answers[number], t) for path, number in opened
    ]


def _open(path: Path) -> int | str:
    """An open regular file of bearable size, or what is wrong with it; nothing here can block."""
    try:
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as error:
        return f"cannot be opened: {error.strerror}"
    about = os.fstat(number)
    wrong = "" if stat.S_ISREG(about.st_mode) else "no regular file"
    if about.st_size > _MOST:
        wrong = f"larger than {_MOST >> 20} MiB"
    if wrong:
        os.close(number)
    return wrong or number


def _answers(numbers: Sequence[int], most: int) -> dict[int, dict[str, Any]]:
    """What the child says of each open file; a file that it does not survive is told, and the next child goes on."""
    answers: dict[int, dict[str, Any]] = {}
    left = list(numbers)
    while left:
        lines = _child(left, most)
        for line in lines:
            answers[left.pop(0)] = json.loads(line)
        if left:
            answers[left.pop(0)] = {"wrong": "corrupt: reading it took too long or too much memory"}
    return answers


def _child(numbers: Sequence[int], most: int) -> list[bytes]:
    """The lines that one child printed before it ended or ran out of patience."""
    command = [sys.executable, "-I", "-S", str(_CHILD), *map(str, (most, *numbers))]
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        pass_fds=numbers,
        env={"PATH": os.defpath, "LC_ALL": "C.UTF-8"},
        cwd="/",
        start_new_session=True,
    ) as child:
        try:
            return _lines(child.stdout) if child.stdout is not None else []
        finally:
            child.kill()


def _lines(stream: IO[bytes]) -> list[bytes]:
    lines: list[bytes] = []
    piece, size = bytearray(), 0
    while select.select([stream], [], [], _PATIENCE)[0]:
        data = os.read(stream.fileno(), 1 << 20)
        size += len(data)
        if not data or size > _LONGEST:
            break
        piece += data
        if b"\n" in data:
            *whole, rest = bytes(piece).split(b"\n")
            lines += whole
            piece = bytearray(rest)
    return lines


def _found(path: Path, answer: dict[str, Any], t: float) -> Found:
    rank = rank_of(path.name)
    size = int(answer.get("bytes", 0))
    if "dump" not in answer:
        return Found(path, -1 if rank is None else rank, None, str(answer["wrong"]), size)
    dump = to_dump(answer["dump"], -1 if rank is None else rank, t, path.name)
    empty = "" if dump.tells else f"holds no entries ({size} bytes): the recorder was off or had recorded nothing"
    return Found(path, dump.rank, dump, empty, size)
