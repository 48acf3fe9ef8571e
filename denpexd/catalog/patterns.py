"""Patterns: compiled with RE2, and judged by their syntax tree for what a scanner can use.

A pattern must be readable by RE2 (linear time, no look-around, no back-references) and by Python's `re`, whose
parser gives the syntax tree and which the tests use as the slow reference.
"""

import re
import re._constants as op  # type: ignore[import-not-found]  # private: the only syntax tree there is
import re._parser as sre  # type: ignore[import-not-found]  # private, as above
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import re2

from denpexd.core.rule import Matcher

_OPTIONS = re2.Options()
_OPTIONS.log_errors = False


def compile_pattern(pattern: str) -> Matcher:
    """The pattern as a linear-time matcher with search semantics. ValueError says what RE2 refuses.

    The matcher takes text without lone surrogates (decode log bytes with errors="replace").
    """
    return cast(Matcher, _compile(pattern))


def group_names(pattern: str) -> frozenset[str]:
    """Names of the captures of a pattern. ValueError as for `compile_pattern`."""
    return frozenset(_compile(pattern).groupindex)


def full_match(pattern: str) -> Matcher:
    """The pattern as a matcher that must take the whole text, for names of types."""
    compile_pattern(pattern)
    return compile_pattern(f"^(?:{pattern})$")


def _compile(pattern: str) -> Any:
    if not pattern:
        raise ValueError("the pattern is empty")
    try:
        return re2.compile(pattern, _OPTIONS)
    except re2.error as error:
        reason = error.args[0] if error.args else "unknown reason"
        text = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        raise ValueError(f"RE2 cannot compile the pattern: {text}") from None


@dataclass(frozen=True, slots=True)
class Shape:
    """`literal`: bytes of the longest text that EVERY match contains; `empty`: the empty string matches."""

    literal: int
    empty: bool


def shape(pattern: str) -> Shape:
    """What the pattern demands of a line. ValueError where Python's `re` cannot read it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "possible nested set": RE2 has no such plans
            tree = sre.parse(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"Python's re cannot read the pattern: {error}") from None
    return Shape(_required(tree), tree.getwidth()[0] == 0)


def hyperscan_refusals(patterns: Iterable[str]) -> dict[str, str]:
    """The patterns that hyperscan cannot compile, with its reason; none if it is not installed."""
    try:
        import hyperscan
    except ImportError:
        return {}

    def refusal(*some: str) -> str:
        try:
            hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK).compile(
                expressions=[pattern.encode() for pattern in some],
                ids=list(range(len(some))),
                elements=len(some),
                flags=[hyperscan.HS_FLAG_MULTILINE] * len(some),
            )
        except hyperscan.error as error:
            return str(error)
        return ""

    every = list(dict.fromkeys(patterns))
    if not every or not refusal(*every):  # all at once takes a third of the time
        return {}
    return {pattern: why for pattern in every if (why := refusal(pattern))}


def _required(items: Iterable[tuple[Any, Any]]) -> int:
    """Length of the longest literal run that every match of this sequence contains."""
    best = run = 0
    for kind, value in items:
        if kind is op.LITERAL:
            run += len(chr(value).encode("utf-8", "replace"))
        elif (fixed := _fixed(kind, value)) is not None:
            run += fixed
        elif kind is not op.AT:
            best, run = max(best, run, _inside(kind, value)), 0
    return max(best, run)


def _fixed(kind: Any, value: Any) -> int | None:
    """Length of a group that is one literal and nothing else; None for everything else."""
    if kind is not op.SUBPATTERN:
        return None
    inner = list(value[3])
    if all(k is op.LITERAL for k, _ in inner):
        return sum(len(chr(v).encode("utf-8", "replace")) for _, v in inner)
    return None


def _inside(kind: Any, value: Any) -> int:
    if kind is op.SUBPATTERN:
        return _required(value[3])
    if kind is op.BRANCH:
        return min(_required(branch) for branch in value[1])
    if kind in (op.MAX_REPEAT, op.MIN_REPEAT) and value[0] >= 1:
        return _required(value[2])
    return 0
