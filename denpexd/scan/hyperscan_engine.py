"""The fast engine: hyperscan in block mode, about 2 GB/s a core.

MULTILINE only: with DOTALL every `.*` runs to the end of the chunk and reports each byte on its way. No UTF8 flag:
logs hold invalid UTF-8, which it must not see. Run as a module this file is the self-test of choose_engine.
"""

import logging
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import Future

import hyperscan
import re2

from denpexd.scan.engine import every_segment
from denpexd.scan.loosen import from_literal, longest_literal, loosen, samples, trimmed
from denpexd.scan.re2_engine import Re2Engine
from denpexd.scan.syntax import Node

log = logging.getLogger(__name__)

_SAMPLES = 8
_OPTIONS = re2.Options()
_OPTIONS.encoding = re2.Options.Encoding.LATIN1
_OPTIONS.log_errors = False
_LARGE_BLOCK = 64  # smaller blocks take another path through hyperscan

Compiled = tuple[hyperscan.Database | None, Re2Engine | None, list[int]]
"""The database; the patterns that run on re2 beside it, and their indexes."""


class HyperscanEngine:
    """See engine.Engine. Patterns that hyperscan refuses, or is caught missing, run on re2 beside it."""

    name = "hyperscan"

    def __init__(self, patterns: Sequence[str]) -> None:
        trees = [trimmed(pattern) for pattern in patterns]
        prefilters = {index: form for index, tree in enumerate(trees) if (form := from_literal(tree))}
        self._everywhere = [index for index in range(len(trees)) if index not in prefilters]
        self._local = threading.local()
        self._compiled: Future[Compiled] = Future()
        # Compiling takes a second and lets go of the interpreter: a daemon that starts does something else meanwhile.
        # An interpreter that ends waits for it: to end a thread inside of C++ ends the process, or hangs it.
        threading.Thread(target=self._compile, args=(patterns, trees, prefilters), name="compile").start()

    def _compile(self, patterns: Sequence[str], trees: Sequence[Node], prefilters: dict[int, bytes]) -> None:
        try:
            self._compiled.set_result(_compile_all(patterns, trees, prefilters))
        except Exception as error:  # raised where the engine is used
            self._compiled.set_exception(error)

    def scan(self, data: bytes) -> list[tuple[int, int]]:
        database, beside, slow = self._compiled.result()
        hits = _scan(database, data, self._scratch(database)) if database is not None and data else []
        if self._everywhere:
            hits.extend((at, index) for at in every_segment(data) for index in self._everywhere)
        if beside is not None:
            hits.extend((at, slow[index]) for at, index in beside.scan(data))
        return hits

    def _scratch(self, database: hyperscan.Database) -> hyperscan.Scratch:
        """One scratch per thread: two threads in one scratch is an error."""
        scratch = getattr(self._local, "scratch", None)
        if scratch is None:
            scratch = self._local.scratch = hyperscan.Scratch(database)
        return scratch


def _scan(database: hyperscan.Database, data: bytes, scratch: hyperscan.Scratch) -> list[tuple[int, int]]:
    hits: list[tuple[int, int]] = []
    append = hits.append

    def found(pattern: int, _start: int, end: int, _flags: int, _context: object) -> None:
        append((end - 1, pattern))

    database.scan(data, match_event_handler=found, scratch=scratch)
    return hits


def _compile_all(patterns: Sequence[str], trees: Sequence[Node], prefilters: dict[int, bytes]) -> Compiled:
    database: hyperscan.Database | None = None
    beside: list[int] = []
    while prefilters:
        database, refused = _compile(prefilters)
        missed = _missed(database, trees, prefilters) if database is not None else []
        for index in missed:
            simpler = longest_literal(trees[index])
            if simpler is None or simpler == prefilters[index]:
                refused.append(index)
            else:
                prefilters[index] = simpler
        beside.extend(refused)
        prefilters = {index: form for index, form in prefilters.items() if index not in set(refused)}
        if not missed:
            break
    for index in beside:
        log.warning("hyperscan cannot take pattern %r; it runs on re2 and slows every scan down", patterns[index])
    return database, Re2Engine([patterns[index] for index in beside]) if beside else None, beside


def _missed(database: hyperscan.Database, trees: Sequence[Node], prefilters: dict[int, bytes]) -> list[int]:
    """Patterns that this database does not find in texts made from them (see loosen.from_literal for why)."""
    missed, scratch = [], hyperscan.Scratch(database)
    for index in prefilters:
        for sample in samples(trees[index], _SAMPLES, seed=index):
            line = b" " * _LARGE_BLOCK + sample + b" " * _LARGE_BLOCK
            if all(found != index for _, found in _scan(database, line, scratch)) and _accepts(trees[index], line):
                missed.append(index)
                break
    return missed


def _accepts(tree: Node, line: bytes) -> bool:
    """Whether the pattern really matches: a sample may break a word boundary."""
    return re2.search(loosen(tree) or b"", line, _OPTIONS) is not None


def _compile(prefilters: dict[int, bytes]) -> tuple[hyperscan.Database | None, list[int]]:
    """The database and the patterns it refused."""
    refused: list[int] = []
    while prefilters:
        database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
        try:
            _fill(database, prefilters)
        except hyperscan.HyperscanError:
            bad = [index for index, prefilter in prefilters.items() if not _compiles(prefilter)]
            if not bad:  # all are fine alone: the set as a whole is too large for one database
                bad = list(prefilters)[len(prefilters) // 2 :]
            refused.extend(bad)
            prefilters = {index: form for index, form in prefilters.items() if index not in set(bad)}
        else:
            return database, refused
    return None, refused


def _compiles(prefilter: bytes) -> bool:
    try:
        _fill(hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK), {0: prefilter})
    except hyperscan.HyperscanError:
        return False
    return True


def _fill(database: hyperscan.Database, prefilters: dict[int, bytes]) -> None:
    database.compile(
        expressions=list(prefilters.values()),
        ids=list(prefilters),
        elements=len(prefilters),
        flags=[hyperscan.HS_FLAG_MULTILINE] * len(prefilters),
    )


def self_test() -> None:
    """Compare with known counts; raises RuntimeError when hyperscan counts wrongly."""
    block = b"ordinary line of a log with numbers 123\n" * 50
    data = (block + b"Watchdog caught: OpType=ALLREDUCE\n" + b"\xff\xfe caf\xc3\xa9 loss nan\r\n" + b"Xid 79\n") * 200
    engine = HyperscanEngine([r"OpType=\w+", r"(?i)LOSS.{1,3}NAN$", r"^Xid (?P<xid>\d+)", "never in there"])
    lines = {(data.rfind(b"\n", 0, at), index) for at, index in engine.scan(data)}
    counts = [sum(1 for _, found in lines if found == index) for index in range(4)]
    if counts != [200, 200, 200, 0]:
        raise RuntimeError(f"hyperscan found {counts} hits where 200, 200, 200 and 0 are")


if __name__ == "__main__":
    try:
        self_test()
    except RuntimeError as error:
        sys.exit(str(error))
