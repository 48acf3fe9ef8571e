"""Chunks and lines: colours and container envelopes off, offsets kept; which lines begin something, which are handled.

A physical line ends at a line feed; carriage returns (progress bars) separate segments inside it. Everything here and
above works on segments.
"""

import json
import re
from bisect import bisect_right
from dataclasses import dataclass, field

import re2

# Colour and cursor codes. `re` and not RE2: one fixed, linear pattern, ten times faster as a C-level substitution.
_ANSI = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b\r\n]*(?:\x07|\x1b\\)|[@-Z\\^_])")
_TERMINATOR = re.compile(rb"[\r\n]")
_LINE_FEED = re.compile(rb"\n")
_WORD = 512  # a longer one may be cut in the middle
_DOCKER = b'{"log":"'

# A logging header at the start of a line: time, logger, level in any order, within the first 80 characters.
_HEADER_START = r"^(?:\[[\w.-]+\] )?(?:[\[(]?[\d/:.,TZ+ -]{8,35}[\])]?)?[ :-]*(?:[\w.]+ - )?\[?"
_LEVEL = re2.compile(
    _HEADER_START + r"(?:DEBUG|INFO|WARN|WARNING|NOTICE)\b"
    r'|^\{.{0,80}"(?:level|lvl|levelname|severity)": ?"(?i:debug|info|warn|warning|notice)"'
    r"|^(?:\S+ ){0,3}(?:level|lvl|severity)=(?i:debug|info|warn|warning)\b"
)
# NCCL's and the kernel's own levels say nothing about whether the program dealt with it.
_NOT_A_LEVEL = re2.compile(r"NCCL (?:WARN|INFO)|INFO: task |INFO: rcu")
_LOGGED = re2.compile(
    _HEADER_START + r"(?:WARN|WARNING|ERROR|CRITICAL|FATAL|EXCEPTION)\b"
    r'|"(?:level|lvl|levelname|severity)": ?"(?i:warn|warning|error|critical|fatal)"'
    r"|\b(?:level|lvl|severity)=(?i:warn|warning|error|critical|fatal)\b"
    r"|^Exception ignored in|^--- Logging error ---"
)
_GLOG_WARNING = re2.compile(r"^\[?W\d{3,4} \d\d:\d\d:")  # torch._logging puts it before every line of a traceback
_DEALT_WITH = re2.compile(
    r"(?i)\b(?:skipping|skipped (?:a|it|this|the|batch|sample|step|file|record|shard|corrupt|bad)|retry|retrying"
    r"|retried|will try again|ignored|ignoring|falling back|fell back|recovered|recovering|reconnecting|continuing"
    r"|(?:exception|error) (?:was )?caught|(?:was|is|been|gracefully|already) handled|using the default)\b"
    r"|\bskipped[.!]?$"
)
_GAVE_UP = re2.compile(
    r"(?i)giv(?:ing|en|e) up|gave up|exhausted|no more retr|exceeded|(?:retry|retries|retrying) failed|after \d+ retr"
    r"|(?:not|cannot|can't|without|never|no) (?:be )?(?:retry|retried|retrying|recovered|ignored|skipped|handled)"
)
# Somebody's words: "> " behind nothing but the tag of who quotes them, say a script that shows the log of a past run.
_QUOTED = re2.compile(r"^(?:\[[\w .:/-]{1,40}\]:? |[\w.-]{1,40}: )?> ")
HANDLED = (_DEALT_WITH.pattern, _LEVEL.pattern)  # what is_handled looks for
_NEW_START = re2.compile(
    r"^\[?\d{4}-\d\d-\d\d[ T_]\d|^\[?\d\d/\d\d[ /]|^(?:DEBUG|INFO|WARNING|ERROR|CRITICAL|FATAL)\b"
    r"|^\[?[IWEF]\d{3,4} \d\d:|^\[[IWEF] [\w./]+:\d+\]|^={5,}|^-{5,}|\d%\||^\{[\"']|^(?:level|ts|time)="
    r"|^(?:srun|slurmstepd[\w.-]*|mpirun|prterun): |^(?:mpirun|prterun) noticed|^terminate called|^Fatal Python error"
    r"|^Exception (?:in thread|ignored)|^\S+:\d+: \w*Warning:|^\S+:\d+:\d+ \[\d+\] |NCCL (?:INFO|WARN) "
    r"|^\[rank\d+\]:|^(?i:epoch|step|iter|iteration|rank|train|val|eval)(?:\[|[ _=:]+\[? ?\d)"
)


@dataclass(slots=True)
class View:
    """A chunk of whole segments, cleaned for scanning, which still knows where each segment stands in the file.

    `data` is what is scanned. `join` is where the bytes carried over from earlier reads end in the raw chunk:
    positions before it belong to the segment at file offset `carried_offset`, later ones count from `offset`.
    """

    data: bytes
    raw: bytes
    join: int
    carried_offset: int
    offset: int
    lines_only: bool = False
    _starts: tuple[list[int], list[int]] | None = field(default=None)

    def where(self, position: int) -> int:
        """File offset of the segment that starts at `position` of `data` (of its line, in a docker envelope)."""
        if self.data is not self.raw:
            if self._starts is None:
                mark = _LINE_FEED if self.lines_only else _TERMINATOR
                clean = [found.end() for found in mark.finditer(self.data)]
                self._starts = clean, [0] + [found.end() for found in mark.finditer(self.raw)]
            clean, raw = self._starts
            position = raw[min(bisect_right(clean, position), len(raw) - 1)]
        return self.carried_offset if position < self.join else self.offset + position - self.join


def view(raw: bytes, join: int, carried_offset: int, offset: int, *, at_line_start: bool) -> View:
    """The chunk without escape sequences and without docker's JSON envelope."""
    data, lines_only = raw, False
    if at_line_start and raw.startswith(_DOCKER) and b'"stream":"std' in raw[: raw.find(b"\n") + 1 or None]:
        data, lines_only = _docker(raw), True
    data = uncoloured(data)
    return View(data, raw, join, carried_offset, offset, lines_only)


def uncoloured(data: bytes) -> bytes:
    """Without colour and cursor codes."""
    return _ANSI.sub(b"", data) if b"\x1b" in data else data


def _docker(raw: bytes) -> bytes:
    """The `log` text of each line; lines that are no such JSON stay."""
    lines = raw.split(b"\n")
    for number, line in enumerate(lines):
        if line.startswith(_DOCKER):
            try:
                text = json.loads(line)["log"]
            except (ValueError, KeyError, RecursionError):
                continue
            lines[number] = str(text).rstrip("\r\n").replace("\n", " ").encode("utf-8", "replace")
    return b"\n".join(lines)


def segment_end(data: bytes, position: int) -> int:
    """Where the segment that holds `position` ends: at the next line feed or carriage return, or with the data."""
    newline = data.find(b"\n", position)
    newline = len(data) if newline < 0 else newline
    carriage = data.find(b"\r", position, newline)
    return newline if carriage < 0 else carriage


def abridged(rest: bytes, max_line: int) -> bytes:
    """An unfinished segment to be carried over, not more of it than a line may have."""
    if len(rest) <= max_line + 1:
        return rest
    half = max_line // 2  # and a byte between: longer than a line may be, so it is shortened at its end
    return rest[:half] + b"\0" * (max_line + 1 - 2 * half) + rest[-half:]


def shorten(segment: bytes, limit: int) -> bytes:
    """Head and tail of a segment longer than `limit` bytes, as two segments; the same however it arrived."""
    if len(segment) <= limit:
        return segment
    half = limit // 2
    head, tail = segment[:half], segment[-half:]
    # Between words, where there are any: half a secret would not be recognised as one.
    word = min(_WORD, half // 4)
    end, begin = head.rfind(b" ", half - word), tail.find(b" ", 0, word)
    return (head[:end] if end > 0 else head) + b"\r" + (tail[begin:] if begin >= 0 else tail)


def is_handled(text: str, *, known: bool = False) -> bool:
    """Whether the line itself says that the program dealt with it: its level, or words such as "retrying".

    `known`: a signal of the catalogue says so.
    """
    if known or _DEALT_WITH.search(text) is not None:
        return _GAVE_UP.search(text) is None
    return _LEVEL.search(text[:160]) is not None and _NOT_A_LEVEL.search(text[:160]) is None


def is_logged(text: str) -> bool:
    """Whether a line is the header of a logged exception (so that the traceback below it ended nothing)."""
    return _LOGGED.search(text[:200]) is not None


def is_quoted(text: str) -> bool:
    """Whether the line is a quotation: what it tells of happened elsewhere, or in a past attempt."""
    return _QUOTED.search(text[:60]) is not None


def is_glog_warning(text: str) -> bool:
    """Whether glog's prefix says that this is a warning: what it quotes ended nothing."""
    return _GLOG_WARNING.search(text[:40]) is not None


def starts_something(text: str) -> bool:
    """Whether the line clearly begins something new, so that a message above it is over."""
    return _NEW_START.search(text[:200]) is not None
