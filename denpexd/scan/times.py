"""Timestamps of log lines: found in a line, completed from what stands around them, made a time for every offset.

Lines carry all shades: full dates, no year (glog, syslog), no date at all. What is missing comes from the other lines
of the file, else from a reference (when the file was last written). A time without a zone is taken for UTC: the digits
that people see in the report are then those of the log.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

_MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"]
_MON = rf"(?P<name>{'|'.join(_MONTHS)})[a-z]*"
_CLOCK = r"(?P<h>[01]\d|2[0-3]):(?P<m>[0-5]\d):(?P<s>[0-5]\d|60)(?P<f>[.,]\d{1,9})?"
_ZONE = r"(?: ?(?P<zone>Z|UTC|GMT|[+-]\d\d:?\d\d))?(?![\d:])"
_FREE = r"(?<![\w.:/-])"
_JSON_KEY = r'"(?:@?timestamp|ts|time|asctime|created|date|datetime|unix_time|t)": ?"?'

# In order of trust; what a header may hold in the middle of a line comes before what counts at its start only.
# `re` and not RE2: fixed, bounded patterns on the first characters of few lines.
_FORMS = tuple(
    re.compile(form)
    for form in (
        rf"{_FREE}(?P<Y>\d{{4}})[-/](?P<M>\d\d)[-/](?P<D>\d\d)[T _]{{1,2}}{_CLOCK}{_ZONE}",
        rf"(?<!\w)[IWEFDC](?P<M>1[0-2]|0?[1-9])(?P<D>0[1-9]|[12]\d|3[01]) {_CLOCK}",
        rf"{_JSON_KEY}(?P<epoch>1\d{{9}}(?:\d{{3}}|\d{{6}}|\d{{9}})?(?:\.\d+)?)\b",
        r"\b(?:ts|time|timestamp)=\"?(?P<epoch>1\d{9}(?:\d{3})?(?:\.\d+)?)\b",
        rf"{_FREE}(?P<A>\d\d)/(?P<B>\d\d)/(?P<Y>\d{{4}}),? {_CLOCK}(?: ?(?P<half>[AP]M))?",
        rf"\[(?P<A>\d\d)/(?P<B>\d\d)/(?P<y>\d\d) {_CLOCK}\]",
        rf"{_FREE}(?P<y>[23]\d)/(?P<M>\d\d)/(?P<D>\d\d) {_CLOCK}",
        rf"{_FREE}(?P<D>\d\d?)[ /-]{_MON}[ /-](?P<Y>\d{{4}})[ :]{_CLOCK}{_ZONE}",
        rf"\b{_MON} {{1,2}}(?P<D>\d\d?) {_CLOCK}(?: [A-Z]{{3,4}})? (?P<Y>20\d\d)\b",
        rf"^[\[<\d>]{{0,6}}{_MON} {{1,2}}(?P<D>\d\d?) {_CLOCK}",
        rf"{_FREE}(?P<M>\d\d)-(?P<D>\d\d) {_CLOCK}",
        rf"^\[?(?P<A>\d\d)/(?P<B>\d\d) {_CLOCK}",
        rf"^\[?{_CLOCK}(?=\]|\s|$)",
        r"^\[?(?P<epoch>1\d{9}\.\d+)\]?\s",
    )
)
_CHEAP = re.compile(r"\d\d:\d\d:\d\d|1\d{9}")
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_PREFIX = re.compile(
    r"^\s*(?:\[[A-Za-z_]\w*?\d+\]: ?|\d{1,6}: |\([A-Za-z_]\w* pid=[^)]*\) |\[\d+,\d+\]<std\w+>: ?"
    r"|\[pod/[^\]]+\] |(?:DEBUG|INFO|WARNING|WARN|ERROR|CRITICAL)[: ] ?)*\s*"
)
_HEAD = 200
_JSON_HEAD = 600
_DAY = 86400.0
_AHEAD = 31 * _DAY  # a log without years is older than its reference rather than this much younger


@dataclass(frozen=True, slots=True)
class Stamp:
    """What a line says about its time. `month` None: only the time of day; `year` None: no year.

    `seconds`: of the day, in UTC if the line names a zone. `a`, `b`: day and month of a date with slashes, in an order
    that only other lines can tell (`month` and `day` hold the American one).
    """

    seconds: float
    year: int | None = None
    month: int | None = None
    day: int = 1
    slashes: tuple[int, int] | None = None


def find(line: bytes) -> Stamp | None:
    """The timestamp in the header of a line, prefixes of launchers allowed; None where it has none."""
    head = line[:_JSON_HEAD] if b"{" in line[:80] else line[:_HEAD]
    if line.startswith(b'{"log":"') and (at := line.rfind(b'"time":"')) > 0:
        head = line[at : at + 60]
    text = head.decode("latin-1")
    if _CHEAP.search(text) is None:
        return None
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    text = _PREFIX.sub("", text)
    for form in _FORMS:
        found = form.search(text)
        if found is not None and (stamp := _stamp(found.groupdict())) is not None:
            return stamp
    return None


def _stamp(part: dict[str, str | None]) -> Stamp | None:
    if part.get("epoch"):
        return _of_epoch(str(part["epoch"]))
    year = int(part["Y"] or 0) if part.get("Y") else 2000 + int(part["y"] or 0) if part.get("y") else None
    if year is not None and not 2000 <= year < 2100:  # noise, or the epoch of a clock that was never set
        return None
    month, day, slashes = _date(part)
    seconds = int(part["h"] or 0) * 3600 + int(part["m"] or 0) * 60 + int(part["s"] or 0)
    exact = seconds + float(f"0{(part.get('f') or '.0').replace(',', '.')}")
    if part.get("half"):
        exact += (part["half"] == "PM") * 43200.0 - (seconds >= 43200) * 43200.0
    if month is not None and not _exists(year or 2000, month, day):
        if slashes is None or not _exists(year or 2000, day, month):
            return None
        month, day = day, month
    if zone := part.get("zone"):
        exact -= _zone(zone)
    return Stamp(exact, year, month, day, slashes)


def _date(part: dict[str, str | None]) -> tuple[int | None, int, tuple[int, int] | None]:
    if part.get("name"):
        return _MONTHS.index(str(part["name"])) + 1, int(part["D"] or 1), None
    if part.get("M"):
        return int(part["M"] or 1), int(part["D"] or 1), None
    if part.get("A"):
        return int(part["A"] or 1), int(part["B"] or 1), (int(part["A"] or 1), int(part["B"] or 1))
    return None, 1, None


def _exists(year: int, month: int, day: int) -> bool:
    try:
        datetime(year, month, day, tzinfo=UTC)
    except ValueError:
        return False
    return True


def _of_epoch(text: str) -> Stamp:
    whole = text.partition(".")[0]
    seconds = float(text) / 10 ** (len(whole) - 10)
    moment = datetime.fromtimestamp(seconds, UTC)
    return Stamp(seconds % _DAY, moment.year, moment.month, moment.day)


def _zone(text: str) -> float:
    if not text[-1].isdigit():
        return 0.0
    digits = text[1:].replace(":", "")
    return (int(digits[:2]) * 3600 + int(digits[2:]) * 60) * (-1.0 if text[0] == "-" else 1.0)


def _unix(year: int, month: int, day: int, seconds: float) -> float:
    if not _exists(year, month, day):  # the 29th of February of the wrong year
        month, day = 3, 1
    return (datetime(year, month, day, tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(seconds=1) + seconds


@dataclass(slots=True)
class Axis:
    """Times of one file: Unix seconds at some offsets, and a guess between and behind them.

    `moves`: offsets at which training moved. Where no line tells the time, a movement takes a second and 64 KiB of
    anything else take one: a burst of error text is short, a long progress bar is not. Movements between two timestamps
    fill the time between them.
    """

    offsets: list[int] = field(default_factory=list)
    times: list[float] = field(default_factory=list)
    moves: list[int] = field(default_factory=list)

    NEAR = 64 << 10  # bytes behind a timestamp within which it still tells the time

    def knows(self, offset: int) -> bool:
        """Whether a timestamp stands at `offset` or near enough before it."""
        at = bisect_right(self.offsets, offset) - 1
        return at >= 0 and offset - self.offsets[at] <= self.NEAR

    def pace(self, offset: int) -> float:
        """Seconds from the start of the file to `offset` by the pseudo-clock alone."""
        return bisect_left(self.moves, offset) + offset / self.NEAR

    def at(self, offset: int) -> float:
        """The time of `offset`; seconds of the pseudo-clock in a file without timestamps."""
        if not self.offsets:
            return self.pace(offset)
        at = bisect_right(self.offsets, offset) - 1
        if at < 0:
            return self.times[0] - (self.pace(self.offsets[0]) - self.pace(offset))
        guess = self.pace(offset) - self.pace(self.offsets[at])
        if at + 1 < len(self.times):
            gap = self.times[at + 1] - self.times[at]
            if self.moved(self.offsets[at], self.offsets[at + 1]):
                guess *= gap / (self.pace(self.offsets[at + 1]) - self.pace(self.offsets[at]))
            guess = min(guess, gap)
        return self.times[at] + guess

    def moved(self, start: int, stop: int) -> bool:
        """Whether training moved between two offsets."""
        return bisect_left(self.moves, stop) > bisect_left(self.moves, start)


def resolve(stamps: Sequence[tuple[int, Stamp]], moves: Sequence[int], reference: float) -> Axis:
    """The axis of one file. `stamps`: by offset; `reference`: Unix time near its end, for what the lines leave out.

    Lines whose time fits no order with the others (a quoted date, another clock) are left out.
    """
    dated = next((s for _, s in stamps if s.year is not None), None)
    day_first = any(s.slashes is not None and s.slashes[0] > 12 for _, s in stamps)
    near = _unix(dated.year or 2000, dated.month or 1, dated.day, dated.seconds) if dated else reference
    offsets, times = [], []
    for offset, stamp in stamps:
        near = _complete(stamp, near, day_first)
        offsets.append(offset)
        times.append(near)
    if times and not any(s.month is not None for _, s in stamps):
        shift = _DAY * round((times[-1] - reference) / _DAY)
        times = [t - shift for t in times]
    kept = _rising(times)
    return Axis([offsets[k] for k in kept], [times[k] for k in kept], list(moves))


def _complete(stamp: Stamp, near: float, day_first: bool) -> float:
    """The Unix time that fits the stamp and is nearest to `near`."""
    if stamp.month is None:
        same_day = near - near % _DAY + stamp.seconds
        return min((same_day - _DAY, same_day, same_day + _DAY), key=lambda t: abs(t - near))
    month, day = (stamp.month, stamp.day) if not (day_first and stamp.slashes) else stamp.slashes[::-1]
    if stamp.year is not None:
        return _unix(stamp.year, month, day, stamp.seconds)
    year = datetime.fromtimestamp(near, UTC).year
    times = [_unix(y, month, day, stamp.seconds) for y in (year - 1, year, year + 1)]
    return min((t for t in times if t <= near + _AHEAD), key=lambda t: abs(t - near))


def _rising(times: Sequence[float]) -> list[int]:
    """Indices of a longest part of `times` that never falls."""
    ends: list[float] = []  # the smallest end of a rising part of each length, ...
    where: list[int] = []  # ... where it stands, ...
    before: list[int] = []  # ... and for each time what comes before it in its part
    for index, t in enumerate(times):
        length = bisect_right(ends, t)
        before.append(where[length - 1] if length else -1)
        if length == len(ends):
            ends.append(t)
            where.append(index)
        else:
            ends[length], where[length] = t, index
    kept: list[int] = []
    index = where[-1] if where else -1
    while index >= 0:
        kept.append(index)
        index = before[index]
    return kept[::-1]
