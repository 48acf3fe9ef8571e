"""Secrets are taken out of every text before it leaves the process or is written to disk.

What is found (`secret_shapes`) becomes `[REDACTED:<kind>]`. A secret is also found where its text was escaped for JSON,
a URL or HTML, split by colours, or wrapped over lines: patterns look at a plain reading of the text, and what they find
is hidden in the text itself. Redacting a text twice gives the same text as redacting it once.
"""

import json
import re
import string
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, pairwise

from denpexd.notify.no_secrets import DOUBTFUL, is_harmless, is_other
from denpexd.notify.secret_shapes import MARK, candidates

# Escape sequences of terminals: colours, cursor, titles, links. They could split a secret and never belong to a text.
_ESCAPES = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]{0,64}[ -/]{0,8}[@-~]|(?:\x1b\]|\x9d)[^\x07\x1b\x9c\n]{0,4096}(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]{0,4}[0-Z\\^-~]"
)
_DONE = re.compile(r"\[REDACTED:[a-z_]{1,40}\]")
_ESCAPED = re.compile(
    r"(?P<done>\[REDACTED:[a-z_]{1,40}\])|%(?:25)*(?P<hex>[0-7][0-9A-Fa-f])|\\+u(?P<code>[0-9A-Fa-f]{4})"
    r"|\\+(?P<end>[nrt])|\\+(?P<plain>[\"'/])|&(?P<name>quot|amp|#39|#34|lt|gt);"
)
_NAMED = {"quot": '"', "amp": "&", "#39": "'", "#34": '"', "lt": "<", "gt": ">"}
# Where a line was wrapped, perhaps in a box, a secret goes on after it.
_BOX = " \t│┃|"
_GOES_ON = frozenset(string.ascii_letters + string.digits + "+/=_.-")
_NARROWEST = 30  # characters of a line that was wrapped
_OF_ONE_LINE = frozenset({"email", "prefixed_token", "basic", "key"})  # a word and the next line look like these
_ORDINARY = re.compile(r"[IWEF]\d{4}|[A-Z]?[a-z]*|[A-Z]+|[\d:.,TZ/+\-]+")

# Identifiers that other programs match on; none of them can hold text of a job.
_IDENTIFIERS = frozenset({"key", "failure", "category", "severity", "certainty", "state", "event", "domain"})
_SECRET_NAME = re.compile(r"(?i)(?:^|[_.\-])(?:password|passwd|passphrase|secret|api_?key|access_?key|token)$")

Span = tuple[int, int, str]
"""Where a secret stands in a text, and its kind."""


def redact(text: str) -> tuple[str, int]:
    """The text with secrets replaced by `[REDACTED:<kind>]`, and how many were replaced.

    Bytes that were not UTF-8 (lone surrogates) come back as `?`; colours, which could split a secret, are dropped.
    """
    clean = text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")
    if "\x1b" in clean or "\x9b" in clean or "\x9d" in clean:
        clean = _ESCAPES.sub("", clean)
    plain, places = _read(clean)
    spans = [(places(a), _closed(clean, places(a), places(b)), kind) for a, b, kind in _found(plain)]
    if "\n" in plain:
        spans += _wrapped(plain, places)
    return _hide(clean, spans) if spans else (clean, 0)


_known = lru_cache(maxsize=4096)(redact)  # names of operations and groups come back by the thousand
_SHORT = 128  # characters of a text that may come back


@lru_cache(maxsize=4096)
def redact_name(text: str) -> str:
    """`redact` for names that come again and again: of jobs, nodes, files."""
    return redact(text)[0]


def _read(text: str) -> tuple[str, Callable[[int], int]]:
    """The text without escapes, and where a place in it is in the text."""
    if "\\" not in text and "%" not in text and "&" not in text and "[REDACTED:" not in text:
        return text, int
    parts, edges, last, length = [], [(0, 0)], 0, 0
    for found in _ESCAPED.finditer(text):
        parts += [text[last : found.start()], _meant(found)]
        length += found.start() - last
        edges += [(length, found.start()), (length + 1, found.end())]
        last, length = found.end(), length + 1
    return "".join([*parts, text[last:]]), _mapping(edges)


def _meant(found: "re.Match[str]") -> str:
    """The one character that an escape stands for."""
    if found["done"]:
        return MARK
    if found["hex"] or found["code"]:
        character = chr(int(found["hex"] or found["code"], 16))
        return character if character.isprintable() else " "
    return "\n" if found["end"] in ("n", "r") else " " if found["end"] else found["plain"] or _NAMED[found["name"]]


def _mapping(edges: Sequence[tuple[int, int]]) -> Callable[[int], int]:
    """From places of a reading to places of its text; `edges` are pairs of both, ascending."""
    starts = [start for start, _ in edges]

    def place(at: int) -> int:
        start, there = edges[bisect_right(starts, at) - 1]
        return there + at - start

    return place


def _found(plain: str) -> Iterator[Span]:
    """Secrets in a plain reading, most specific kind first."""
    for kind, pattern in candidates(plain):
        for match in pattern.finditer(plain):
            start, end = match.end(1) if pattern.groups else match.start(), match.end()
            end -= kind == "url_password"  # the @ stays
            secret = plain[start:end]
            if MARK in secret and not secret.strip(MARK + "\"' "):
                continue
            name = plain[min(match.start(), max(0, start - 3)) : start]
            if is_other(kind, name, secret, plain[end : end + 2]):
                continue
            opening = len(secret) - len(secret.lstrip("\"'"))
            yield start + opening, end - (secret[-1:] in "\"'" and opening > 0), kind


_DEEPEST = 8  # times that a text is escaped
_LONGEST = 4096  # characters of a quoted value that are looked through for its end


def _closed(text: str, start: int, end: int) -> int:
    """Where a quoted value ends: a quote that is escaped more often than the one that opens it is part of it."""
    quote = text[start - 1 : start]
    if quote not in ("'", '"') or not text.startswith("\\", end):
        return end
    before = text[max(0, start - 1 - _DEEPEST) : start - 1]
    depth = len(before) - len(before.rstrip("\\"))
    if not re.compile(rf"\\{{{depth + 1},}}{quote}").match(text, end):
        return end
    closing = re.compile(rf"(?<!\\)\\{{{depth}}}{quote}").search(text, end, end + _LONGEST)
    return closing.start() if closing else end


def _wrapped(plain: str, places: Callable[[int], int]) -> Iterator[Span]:
    """Secrets that go on after a line end; of those on one line nothing is said again."""
    joined, edges, ends = list[str](), [(0, 0)], list[int]()
    last = length = at = 0
    for row, below in pairwise(plain.split("\n")):
        kept, more = row.removesuffix("\r").rstrip(_BOX), below.lstrip(_BOX)
        if len(kept) >= _NARROWEST and kept[-1] in _GOES_ON and more[:1] in _GOES_ON:
            joined.append(plain[last : at + len(kept)])
            length += len(joined[-1])
            last = at + len(row) + 1 + len(below) - len(more)
            ends.append(length)
            edges.append((length, last))
        at += len(row) + 1
    if not ends:
        return
    text, place = "".join([*joined, plain[last:]]), _mapping(edges)
    for start, end, kind in _found(text):
        first, last = bisect_right(ends, start), bisect_left(ends, end) - 1  # the line ends in it
        if first > last or kind in _OF_ONE_LINE:
            continue
        whole = kind in DOUBTFUL and is_harmless("", text[start : ends[first]], "")
        if kind == "private_key" or not (whole or _ORDINARY.fullmatch(text, ends[last], end)):
            yield places(place(start)), places(place(end - 1)) + 1, kind


def _hide(text: str, spans: Sequence[Span]) -> tuple[str, int]:
    """The text with the spans replaced; of spans that meet the first kind is named."""
    # The end of a password before @ looks like the name of a person at that host.
    found = sorted((start, end) for start, end, kind in spans if kind != "email")
    starts, reach = [start for start, _ in found], list(accumulate((end for _, end in found), max))
    spans = [
        (start, end, kind)
        for start, end, kind in spans
        if kind != "email" or (at := bisect_left(starts, end)) == 0 or reach[at - 1] <= start
    ]
    order = sorted(range(len(spans)), key=lambda n: spans[n][0])
    merged: list[tuple[int, int, int]] = []
    for n in order:
        start, end, _ = spans[n]
        if merged and start < merged[-1][1]:
            before = merged.pop()
            merged.append((before[0], max(before[1], end), min(before[2], n)))
        else:
            merged.append((start, end, n))
    parts, last = [], 0
    for start, end, n in merged:
        parts += [text[last:start], f"[REDACTED:{spans[n][2]}]"]
        last = end
    return "".join([*parts, text[last:]]), len(merged)


def redact_value(value: object) -> tuple[object, int]:
    """Any JSON-ready value with every string inside redacted, whole where its key names a secret; keys stay."""
    if isinstance(value, str):
        return _known(value) if len(value) <= _SHORT else redact(value)
    if isinstance(value, Mapping):
        pairs = {key: _under(key, item) for key, item in value.items()}
        return {key: item for key, (item, _) in pairs.items()}, sum(count for _, count in pairs.values())
    if isinstance(value, list | tuple):
        items = [redact_value(item) if isinstance(item, str | Mapping | list | tuple) else (item, 0) for item in value]
        return [item for item, _ in items], sum(count for _, count in items)
    return value, 0


def _under(key: object, item: object) -> tuple[object, int]:
    if isinstance(item, str) and isinstance(key, str) and _SECRET_NAME.search(key) and not _DONE.fullmatch(item):
        return ("[REDACTED:assignment]", 1) if len(item) > 2 and not is_harmless(key, f'"{item}"', "") else (item, 0)
    return redact_value(item)


def redact_verdict(verdict: Mapping[str, object]) -> tuple[dict[str, object], int]:
    """A copy of a verdict fit to leave the process, and how many secrets were hidden in it."""
    clean: dict[str, object] = {}
    found = 0
    for name, value in verdict.items():
        clean[name], count = (value, 0) if name in _IDENTIFIERS else redact_value(value)
        found += count
    return clean, found


def redact_json(line: str) -> tuple[str, int]:
    """A line of JSON with every string inside redacted, as it was where there is none; another text as `redact`."""
    try:
        value, found = redact_value(json.loads(line))
    except ValueError:
        return redact(line)
    return json.dumps(value, separators=(",", ":")) if found else line, found
