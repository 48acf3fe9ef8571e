"""Text as it comes out of a ticket, a chat or a terminal, made a log again.

What was put around the log is taken off where nearly all lines have it: quotation marks of mail, line numbers,
HTML entities, the frame of a table or a comment. Logs side by side come one below the other: panes are told by what
stands between them at the same place of nearly all lines, and both sides must look like logs, so that a table inside a
log stays a table. Lines that were cut at a fixed width, in the middle of words, are joined. Text without such traces
comes back as it is.
"""

import html
import json
import re
from collections import Counter
from collections.abc import Callable
from itertools import pairwise

LARGEST = 8 << 20
"""Bytes: nobody pastes more; larger input is a log that was piped."""

_NEARLY_ALL = 0.9
_QUOTED = re.compile(r"^\s{0,3}>\s?")
_NUMBERED = re.compile(r"^\s{0,8}(\d{1,7})(?:[ \t]*[:|)\]│](?:\s|$)|\.\s|\t| {1,3})")
_FRAMED = re.compile(r"^\s*[|│┃#*]\s?(.*?)\s*[|│┃]?$")
_ENTITY = re.compile(r"&(?:lt|gt|amp|quot|apos|nbsp|#\d{1,5}|#x[0-9a-f]{1,5});", re.IGNORECASE)
_NARROWEST, _FULL = 40, 3
_WIDEST = 400

NARROWEST = 30  # characters of a pane
FEWEST = 5  # lines that show it
MOST_PANES = 8
_RULE = "│┃║|¦"
_GAP = re.compile(r"\S( {2,})(?=\S)")
_LOG = re.compile(
    r"""(?ix) ^\s*(?: \[?\d{4}[-/]\d\d[-/]\d\d | \[?\d\d:\d\d:\d\d | \[?[IWEF]\d{3,4}\s\d\d:
    | \[(?:rank|default|\d+\]:) | \{["']
    | traceback\s\(most | file\s" | (?:debug|info|warning|warn|error|critical)\b | (?:\w+\.)*\w*(?:error|exception)\b
    | (?:step|epoch|iter\w*|rank|train\w*)\W*\d | \S+:\d+:\d+\s\[\d+\]\s | \d{1,3}%\| | \#\d+\s | frame\s\#\d )"""
)
_MIDDLE = re.compile(r"^\s{2,}\S")  # source code of a traceback, say


def restored(data: bytes) -> bytes:
    """The pasted log without what pasting did to it."""
    if len(data) > LARGEST:
        return data
    text = data.decode(errors="surrogateescape")
    if (written := error_file(text)) is not None:
        return written.encode(errors="replace")
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    for take_off in (_unquoted, _unnumbered, _unquoted, _unframed):
        lines = take_off(lines)
    if sum(bool(_ENTITY.search(line)) for line in lines) >= 1:
        lines = [html.unescape(line) for line in lines]
    panes = below_each_other(lines)
    lines = [line for pane in panes for line in _joined(pane)]
    return "\n".join(lines).encode(errors="surrogateescape")


def error_file(text: str) -> str | None:
    """The traceback in torchelastic's error.json, which a rank under `@record` writes as it dies; None for other text.

    Format: torch.distributed.elastic.multiprocessing.errors.ErrorHandler; older releases have a plain `message`.
    """
    if not text.lstrip().startswith('{"message"'):
        return None
    try:
        said = json.loads(text)["message"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    if isinstance(said, dict):
        more = said.get("extraInfo")
        stack = more.get("py_callstack") if isinstance(more, dict) else None
        said = stack if isinstance(stack, str) and stack.strip() else said.get("message")
    return said if isinstance(said, str) else None


def _filled(lines: list[str]) -> list[str]:
    return [line for line in lines if line.strip()]


def _without(lines: list[str], pattern: re.Pattern[str], accept: Callable[[list[str]], bool]) -> list[str]:
    filled = _filled(lines)
    if len(filled) < 2 or not accept(filled):
        return lines
    return [pattern.sub("", line, count=1) for line in lines]


def _unquoted(lines: list[str]) -> list[str]:
    return _without(lines, _QUOTED, lambda filled: _share(filled, _QUOTED) >= _NEARLY_ALL)


def _unnumbered(lines: list[str]) -> list[str]:
    """Numbers count as line numbers when they grow by one; steps of training and times do not stand so on each line."""

    def counting(filled: list[str]) -> bool:
        if _share(filled, _NUMBERED) < _NEARLY_ALL or len(filled) < 3:
            return False
        numbers = [int(found[1]) for line in filled if (found := _NUMBERED.match(line))]
        steps = [b - a for a, b in pairwise(numbers)]
        return sum(0 < step <= 3 for step in steps) >= _NEARLY_ALL * len(steps)  # blank lines count too

    return _without(lines, _NUMBERED, counting)


def _unframed(lines: list[str]) -> list[str]:
    filled = _filled(lines)
    if len(filled) < 3 or _share(filled, re.compile(r"^\s*[|│┃]")) < _NEARLY_ALL:
        return lines
    return [_FRAMED.sub(r"\1", line) for line in lines]


def _share(lines: list[str], pattern: re.Pattern[str]) -> float:
    return sum(bool(pattern.match(line)) for line in lines) / len(lines)


def _joined(lines: list[str]) -> list[str]:
    """Lines of exactly the greatest width go on in the next one, if several have it and none is longer."""
    widths = Counter(len(line) for line in lines)
    width = max(widths)
    if not _NARROWEST <= width <= _WIDEST or widths[width] < _FULL or widths[width] < 2 * widths[width - 1]:
        return lines
    found: list[str] = []
    rests: list[str] = []
    goes_on = False
    for line in lines:
        if goes_on:
            found[-1] += line
            rests.append(line)
        else:
            found.append(line)
        goes_on = len(line) == width
    starts = {_start(line) for line in found}
    alike = sum(_start(line) in starts for line in rests)
    return lines if alike > 0.3 * len(rests) else found


def _start(line: str) -> str:
    """How a line begins; the lines of a program that are all equally long begin alike, rests of cut lines do not."""
    return re.sub(r"\d", "0", line[:6])


def below_each_other(lines: list[str]) -> list[list[str]]:
    """The panes, from left to right; the lines as they are if there is only one."""
    panes: list[list[str]] = []
    rest = lines
    while len(panes) < MOST_PANES - 1 and (parts := _split(rest)) is not None:
        panes.append(parts[0])
        rest = parts[1]
    return [*panes, rest]


def _split(lines: list[str]) -> tuple[list[str], list[str]] | None:
    for find in (_tab, _rule, _gap):
        place = find(lines)
        if place is None:
            continue
        left, right = place
        if _is_log(left) and _is_log(right):
            return [line.rstrip(" ") for line in left], [line.rstrip(" ") for line in right]
    return None


def _is_log(lines: list[str]) -> bool:
    filled = [line for line in lines if line.strip()]
    alike = [line for line in filled if _LOG.search(line)]
    shown = len(alike) + sum(bool(_MIDDLE.search(line)) for line in filled if line not in alike)
    return len(filled) >= FEWEST and len(alike) >= 2 and shown >= 0.3 * len(filled)


def _tab(lines: list[str]) -> tuple[list[str], list[str]] | None:
    """Cells of a table: a tab in nearly every line, and mostly not at its beginning."""
    filled = [line for line in lines if line]
    tabs, empty = sum("\t" in line for line in filled), sum(line.startswith("\t") for line in filled)
    if len(filled) < FEWEST or tabs < _NEARLY_ALL * len(filled) or 2 * empty > len(filled):
        return None
    parts = [line.partition("\t") for line in lines]
    return [part[0] for part in parts], [part[2] for part in parts]


def _rule(lines: list[str]) -> tuple[list[str], list[str]] | None:
    """A vertical rule at the same place of all lines that reach so far."""
    counts = Counter((at, c) for line in lines for at, c in enumerate(line) if c in _RULE and at >= NARROWEST)
    for (at, rule), count in counts.most_common(3):
        reach = [line for line in lines if len(line) > at]
        if count >= max(FEWEST, _NEARLY_ALL * len(reach)) and len(reach) >= len([x for x in lines if x.strip()]) / 2:
            cut = all(line[at + 1 : at + 2] in ("", " ") for line in reach if line[at] == rule)
            return [x[:at] for x in lines], [x[at + 1 + cut :] for x in lines]
    return None


def _gap(lines: list[str]) -> tuple[list[str], list[str]] | None:
    """The left pane is filled up with spaces to the place where the right one begins."""
    ends = Counter(found.end() for line in lines for found in _GAP.finditer(line) if found.end() >= NARROWEST)
    for at, count in ends.most_common(3):
        reach = [line for line in lines if len(line) > at]
        apart = sum(line[at - 1] == " " for line in reach)
        begins = sum(line[at] != " " for line in reach)
        if count >= max(FEWEST, 0.3 * len(reach)) and apart >= _NEARLY_ALL * len(reach) and begins >= 0.6 * len(reach):
            return [line[:at] for line in lines], [line[at:] for line in lines]
    return None
