"""Which bytes of a chunk may hit which pattern: the contract of the two engines, and the choice between them."""

import functools
import importlib.util
import logging
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Protocol

log = logging.getLogger(__name__)

_SELF_TEST_SECONDS = 30.0


class Engine(Protocol):
    """Patterns (RE2 syntax, for one decoded line) compiled for raw chunks."""

    name: str

    def scan(self, data: bytes) -> list[tuple[int, int]]:
        """Candidates as (offset of a byte inside the hit segment, pattern index).

        May hold duplicates and false candidates, in any order, but never misses: a segment (what stands between
        line feeds and carriage returns) that the exact matcher accepts is named. Safe to call from many threads.
        """
        ...


EngineFactory = Callable[[Sequence[str]], Engine]


def choose_engine() -> EngineFactory:
    """The engine to use: hyperscan where it is installed and passes its self-test, else re2; says which and why.

    The self-test runs once in a child process (some 0.2 s), so that a broken
    wheel or a missing CPU feature cannot take the daemon down.
    """
    from denpexd.scan.re2_engine import Re2Engine

    why = hyperscan_unusable()
    if why is not None:
        log.info("scan engine: re2 (%s)", why)
        return Re2Engine
    from denpexd.scan.hyperscan_engine import HyperscanEngine

    log.info("scan engine: hyperscan (self-test passed)")
    return HyperscanEngine


@functools.cache
def hyperscan_unusable() -> str | None:
    """Why hyperscan cannot be used, or None."""
    if importlib.util.find_spec("hyperscan") is None:
        return "hyperscan is not installed: pip install 'denpexd[fast]'"
    if not sys.executable:
        return "hyperscan cannot be tested: no interpreter to start"
    try:
        test = subprocess.run(
            [sys.executable, "-m", "denpexd.scan.hyperscan_engine"],
            capture_output=True,
            timeout=_SELF_TEST_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"hyperscan's self-test could not run: {error}"
    if test.returncode == 0:
        return None
    said = test.stderr.decode("utf-8", "replace").strip().splitlines()
    return f"hyperscan's self-test failed with code {test.returncode}: {said[-1] if said else 'no message'}"


def every_segment(data: bytes) -> list[int]:
    """An offset in each line, for patterns that may match anything."""
    offsets, at = [], 0
    while 0 <= at < len(data):
        offsets.append(at)
        newline, carriage = data.find(b"\n", at), data.find(b"\r", at)
        at = (min(newline, carriage) if newline >= 0 and carriage >= 0 else max(newline, carriage)) + 1 or len(data)
    return offsets
