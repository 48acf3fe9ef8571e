"""Logs that nobody writes to any more: found, opened and judged usable, for `diagnose`.

Files, folders, globs and templates as the daemon takes them, and besides: gzip files given by name, and "-" for a
stream. What cannot be used is said at once, unless it is one of many files of a folder.
"""

import gzip
import io
import logging
import os
import re
import shutil
import tempfile
import zlib
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, cast

from denpexd.core.events import UNKNOWN_RANK
from denpexd.errors import SourceError
from denpexd.ingest.discover import Discovery, Found
from denpexd.ingest.layouts import rank_of
from denpexd.ingest.patterns import is_magic
from denpexd.ingest.unpaste import LARGEST, restored

log = logging.getLogger(__name__)

STDIN, ERROR_FILE = "-", "error.json"
IN_MEMORY = 16 << 20  # bytes of a stream; more go to a temporary file
_SAMPLE, _SAMPLES = 8 << 10, 16
_HOLE = re.compile(rb"\0{16,}")  # left by a truncation or a crash of the node, and no writing of any program
_CONTROL = bytes(c for c in range(32) if c not in b"\a\b\t\n\f\r\x1b")
_MOST_CONTROL = 0.03  # of the bytes of a text; of compressed or compiled data it is a tenth
_RUN = re.compile(r"run|exp|job|trial|sweep|seed|attempt|restart|version|fold")
_NODE = re.compile(r"node|host|worker|master|machine|server|pod|gpu|rank")
_HOW = "give log files, folders that hold *.log, *.out or *.err files, globs, or - for standard input"


@dataclass(frozen=True, slots=True)
class Finished:
    """One finished log. `changed`: Unix time of its last write, None for a stream; `size` in bytes as it lies there.

    `named`: a person gave its very path.
    """

    found: Found
    changed: float | None = None
    named: bool = False
    size: int = 0
    stream: BinaryIO | None = None

    @contextmanager
    def open(self) -> Iterator[tuple[BinaryIO, int]]:
        """The log as a seekable file, and its size in bytes. SourceError if it cannot be read or is no text."""
        with self._opened() as file:
            size = file.seek(0, os.SEEK_END)
            if size == 0 and (self.named or self.stream is not None):
                raise SourceError(f"{self.found.path}: is empty: there is nothing to explain")
            if _is_mostly_binary(file, size):
                raise SourceError(f"{self.found.path}: is not a text log (binary content, or not UTF-8); {_HOW}")
            file.seek(0)
            yield file, size

    @contextmanager
    def _opened(self) -> Iterator[BinaryIO]:
        path = self.found.path
        try:
            if self.stream is None and path.suffix != ".gz":
                with path.open("rb") as file:
                    yield io.BytesIO(restored(file.read(LARGEST + 1))) if path.name == ERROR_FILE else file
                return
            # What is pasted stays in memory.
            with tempfile.SpooledTemporaryFile(IN_MEMORY) as copy:
                if self.stream is not None:
                    copy.write(restored(self.stream.read(LARGEST + 1)))
                    shutil.copyfileobj(self.stream, copy)
                else:
                    with gzip.open(path) as packed:
                        shutil.copyfileobj(packed, copy)
                yield cast(BinaryIO, copy)
        except (OSError, EOFError, zlib.error) as error:
            why = getattr(error, "strerror", None) or str(error)
            raise SourceError(f"{path}: cannot be read: {why}") from error


def is_binary(sample: bytes) -> bool:
    """Whether bytes of a file are no text that we read: binary content, or UTF-16."""
    return len(sample) - len(sample.translate(None, _CONTROL)) > _MOST_CONTROL * len(sample)


def _is_mostly_binary(file: BinaryIO, size: int) -> bool:
    """Whether more than half of the samples, taken evenly from the file, are no text; holes count neither way."""
    binary = text = 0
    for offset in range(0, size, max(_SAMPLE, size // _SAMPLES)):
        file.seek(offset)
        sample = _HOLE.sub(b"", file.read(_SAMPLE))
        if is_binary(sample):
            binary += 1
        elif sample:
            text += 1
    return binary > text


def find(paths: Sequence[str], stdin: BinaryIO) -> list[Finished]:
    """All logs that `paths` name. SourceError: nothing there, or a path that names nothing."""
    streams = (
        [Finished(Found(Path("stdin"), "stdin", UNKNOWN_RANK, None, "", False), stream=stdin)] if STDIN in paths else []
    )
    packed = [path for path in paths if path.endswith(".gz")]
    plain = [path for path in paths if path != STDIN and path not in packed]
    for path in (*plain, *packed):
        if not is_magic(path) and not os.path.exists(Path(path).expanduser()):
            raise SourceError(f"{path}: no such file or folder; {_HOW}")
    named = {Path(path).expanduser().absolute() for path in paths}
    logs = [_finished(found, named) for found in (*_discover(plain), *_packed(packed))]
    if not logs and not streams:
        raise SourceError(f"{', '.join(paths)}: no log files found there; {_HOW}")
    return logs + streams


def _discover(paths: Sequence[str]) -> list[Found]:
    if not paths:
        return []
    files = [Path(path).expanduser().absolute() for path in paths]
    if len(files) > 1 and all(path.is_file() for path in files):
        # A list of files, as a shell makes it of a glob, is one job, unless two of them claim the same rank.
        name = Path(os.path.commonpath([path.parent for path in files])).name
        found = Discovery(paths, name or None).scan()
        if not any("is claimed in" in each.note for each in found):
            return found
    discovery = Discovery(paths, None)
    found = discovery.scan()
    said = [why for why in discovery.errors if not why.endswith("waiting for one")]
    if not found and said:
        raise SourceError(f"{'; '.join(said)}; {_HOW}")
    return _runs_apart(found)


def _runs_apart(found: list[Found]) -> list[Found]:
    """Of folders that claim the same ranks and are named like runs, each is a job; those of nodes stay one."""
    folders = {each.path.parent for each in found if "is claimed in" in each.note and not each.run}
    if not folders or not _are_runs([folder.name for folder in folders]):
        return found
    runs = [each for folder in sorted(folders) for each in Discovery([str(folder)], None).scan()]
    apart = {each.path for each in runs}
    log.warning("by their names these folders are %d runs: each is a job", len(folders))
    return sorted([*(each for each in found if each.path not in apart), *runs], key=lambda each: each.path)


def _are_runs(names: Sequence[str]) -> bool:
    """Whether folders side by side are runs: by a word for it, or each has a word of its own, as nodes have not."""
    words = [re.sub(r"[^a-z]+", "", name.lower()) for name in names]
    if any(_NODE.search(word) for word in words):
        return False
    return len({*words}) == len(words) > 1 or all(_RUN.search(word) for word in words)


def _packed(paths: Sequence[str]) -> list[Found]:
    """Gzip files by name: their rank is that of the name without its suffix."""
    found = []
    for path in paths:
        full = Path(path).expanduser().absolute()
        layout = rank_of(str(full).removesuffix(".gz"), str(full.parent))
        each = Found(full, full.parent.name, UNKNOWN_RANK, layout.attempt, layout.stream, layout.local)
        found.append(each if layout.siblings else replace(each, rank=layout.rank))
    return found


def _finished(found: Found, named: Collection[Path]) -> Finished:
    try:
        info = found.path.stat()
    except OSError:
        return Finished(found, None, found.path in named)
    return Finished(found, info.st_mtime, found.path in named, info.st_size)
