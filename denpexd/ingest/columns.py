"""Two or more logs pasted side by side, as panes of a terminal or cells of a table: one below the other again.

Panes are told by what stands between them at the same place of nearly all lines: a vertical rule, or nothing but
spaces up to where the next pane begins. Both sides must look like logs, so that a table inside a log stays a table.
"""

import re
from collections import Counter

NARROWEST = 30  # characters of a pane
FEWEST = 5  # lines that show it
MOST_PANES = 8
_NEARLY_ALL = 0.9
_RULE = "│┃║|¦"
_GAP = re.compile(r"\S( {2,})(?=\S)")
_LOG = re.compile(
    r"""(?ix) ^\s*(?: \[?\d{4}[-/]\d\d[-/]\d\d | \[?\d\d:\d\d:\d\d | \[?[IWEF]\d{3,4}\s\d\d:
    | \[(?:rank|default|\d+\]:) | \{["']
    | traceback\s\(most | file\s" | (?:debug|info|warning|warn|error|critical)\b | (?:\w+\.)*\w*(?:error|exception)\b
    | (?:step|epoch|iter\w*|rank|train\w*)\W*\d | \S+:\d+:\d+\s\[\d+\]\s | \d{1,3}%\| | \#\d+\s | frame\s\#\d )"""
)
_MIDDLE = re.compile(r"^\s{2,}\S")  # source code of a traceback, say


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
