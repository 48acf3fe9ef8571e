"""Numbers that ranks print: read from their progress lines, kept in small windows, judged across ranks elsewhere.

Signals with a `quantity` say how a number looks. They are not scanned for: each is tried on the newest progress line of
every read only, so that they cost nothing per line. Values that are not finite are scanned for everywhere.
"""

import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from denpexd.core.evidence import Evidence
from denpexd.core.rule import Signal

MAX_SERIES = 48  # numbers of different names that one rank may print
WINDOW = 8  # newest readings of each
BASE = 64  # readings of a usual level
LEVEL_FROM = 8  # readings that make a level
_UNITS = {"ms": 1e-3, "us": 1e-6, "µs": 1e-6, "m": 60.0, "min": 60.0, "h": 3600.0}
_ASIDE = re.compile(r"\b(?:val|valid|validation|eval|evaluation|test|dev|best|lowest|min)\b")
_SIDE = re.compile(r"resolution|image|img|crop")  # the side of a square
_DIGITS = str.maketrans("", "", ",_")
_COMMA = re.compile(r"(?<![\d.,(\[])0,\d+(?![\d,.])|\d,(?:\d{1,2}|\d{4,})$")  # what only a decimal comma makes

Place = tuple[str | None, int | None]
"""Epoch and step of a line."""

MAX_RANKS = 1_000_000  # larger numbers are no ranks, whatever a line says
MAX_RANGE = 65_536


@dataclass(slots=True)
class Reading:
    """One number: when, at which epoch and step."""

    t: float
    place: Place
    value: float


@dataclass(slots=True)
class Raised:
    """A value far above its usual `level` that has not come back: its first evidence and the newest values."""

    level: float
    since: Evidence
    place: Place
    count: int = 0
    newest: deque[float] = field(default_factory=lambda: deque(maxlen=16))


@dataclass(slots=True)
class Series:
    """One quantity of one rank under the name it prints."""

    newest: deque[Reading] = field(default_factory=lambda: deque(maxlen=WINDOW))
    evidence: Evidence | None = None
    base: deque[float] | None = None
    start: float = 0.0  # the first level: the mean of the first three readings
    count: int = 0
    since: float = 0.0  # the first reading
    above: Raised | None = None

    def add(self, reading: Reading, evidence: Evidence) -> None:
        self.newest.append(reading)
        self.evidence = evidence
        if self.count == 0:
            self.since = reading.t
        if self.count < 3:
            self.start = (self.start * self.count + reading.value) / (self.count + 1)
        self.count += 1

    def levelled(self, reading: Reading, evidence: Evidence) -> None:
        """Compare with the usual level; what lies far above it teaches nothing about that level."""
        base = self.base = deque(maxlen=BASE) if self.base is None else self.base
        level = self.above.level if self.above else median(base) if len(base) >= LEVEL_FROM else None
        if level is None or not self._far(reading.value, level, base):
            base.append(reading.value)
            self.above = None
            return
        if self.above is None:
            self.above = Raised(level, evidence, reading.place)
        self.above.count += 1
        self.above.newest.append(reading.value)

    def _far(self, value: float, level: float, base: Iterable[float]) -> bool:
        """Well above the level, its scatter, and not near zero when compared with where training began."""
        scatter = median(abs(v - level) for v in base)
        return level > 0 and value > max(1.3 * level, level + 8 * scatter, 0.2 * self.start)


@dataclass(slots=True)
class NotFinite:
    """A number that has been nan or inf since `first`, `count` readings in a row."""

    first: Evidence
    last: Evidence
    place: Place
    last_place: Place
    count: int = 1


@dataclass(slots=True)
class Numbers:
    """All numbers of one rank."""

    series: dict[tuple[str, str], Series] = field(default_factory=dict)
    bad: dict[str, NotFinite] = field(default_factory=dict)
    interval: int | None = None  # the fewest steps between two lines
    step: int | None = None
    line: tuple[str, int] | None = None  # the last line that was read
    layout: "Layout" = field(default_factory=lambda: Layout())

    @property
    def size(self) -> float:
        """How many times as large a step is as the first ones were, by the sizes that are printed with it."""
        size = 1.0
        for (quantity, name), series in self.series.items():
            if quantity == "size" and series.start > 0 and series.newest[-1].value > 0:
                grown = series.newest[-1].value / series.start
                size *= grown * grown if _SIDE.search(name) else grown
        return size

    def place(self, place: Place) -> None:
        """Learn how many steps lie between two lines."""
        step = place[1]
        if step is not None and self.step is not None and step > self.step:
            self.interval = min(self.interval or step - self.step, step - self.step)
        self.step = step if step is not None else self.step

    def read(self, quantity: str, name: str, reading: Reading, evidence: Evidence) -> None:
        """A finite number."""
        known = self.bad.get(name)
        if known is not None and known.last.offset != evidence.offset:
            del self.bad[name]  # it is finite again
        series = self.series.get((quantity, name))
        if series is None:
            if len(self.series) >= MAX_SERIES:
                return
            series = self.series[quantity, name] = Series()
        series.add(reading, evidence)
        if quantity in ("loss", "gradient_norm"):
            series.levelled(reading, evidence)

    def not_finite(self, name: str, place: Place, evidence: Evidence) -> None:
        """A nan or inf; readings far apart are not in a row (only the newest finite one of a read is known)."""
        known = self.bad.get(name)
        apart = known is not None and _far_apart(known.last_place, place, self.interval)
        self.place(place)
        if known is None or apart:
            if len(self.bad) < MAX_SERIES:
                self.bad[name] = NotFinite(evidence, evidence, place, place)
            return
        known.last, known.last_place, known.count = evidence, place, known.count + 1


def _far_apart(before: Place, now: Place, interval: int | None) -> bool:
    if before[0] != now[0] or before[1] is None or now[1] is None or interval is None:
        return False
    return now[1] - before[1] > 3 * interval


@dataclass(slots=True)
class Layout:
    """Which signals fit the lines of one rank."""

    known: set[int] = field(default_factory=set)
    lines: int = 0
    comma: bool = False  # decimals stand behind a comma

    def next(self, of: int) -> Iterable[int]:
        """The signals to try on the next line."""
        self.lines += 1
        every = self.lines <= 8 or self.lines % 16 == 0
        return range(of) if every else sorted(n for n in self.known if n < of)


class Reader:
    """The signals of a catalogue that say how numbers and step counters look."""

    def __init__(self, signals: Iterable[Signal]) -> None:
        known = [s for s in signals if s.matcher is not None]
        self._quantities = [(s.quantity, s) for s in known if s.quantity and s.quantity != "duration"]
        self._counters = [s for s in known if s.role == "progress" and "(?P<step>" in (s.pattern or "")]

    def numbers(self, text: str, layout: "Layout") -> list[tuple[str, str, float]]:
        """(quantity, name, value) of each finite number of a line; times are in seconds.

        Only signals that matched lines of this rank lately are tried, and all of them now and then.
        """
        found: dict[tuple[str, str], float] = {}
        layout.comma = layout.comma or ("0," in text and _COMMA.search(text) is not None)
        for number in layout.next(len(self._quantities)):
            quantity, signal = self._quantities[number]
            if (fields := _fields(signal, text)) is not None:
                layout.known.add(number)
                value, name = value_of(fields, comma=layout.comma), normal(fields.get("metric") or quantity)
                if value is not None and not is_aside(name):
                    found.setdefault((quantity, name), value)
        return [(quantity, name, value) for (quantity, name), value in found.items()]

    def step(self, text: str) -> int | None:
        """The step counter of a line, if it has one."""
        for signal in self._counters:
            if (fields := _fields(signal, text)) is not None and fields.get("step"):
                return int(fields["step"].translate(_DIGITS)) if len(fields["step"]) < 19 else None
        return None


def _fields(signal: Signal, text: str) -> dict[str, str] | None:
    found = signal.matcher.search(text) if signal.matcher else None
    if found is None or (signal.exclude and signal.exclude.search(text)):
        return None
    return found.groupdict()


def value_of(fields: Mapping[str, str], *, comma: bool = False) -> float | None:
    """The number of a line, times in seconds. `comma`: its decimals stand behind a comma."""
    try:
        text = fields["value"]
        if "," in text and "e" not in text and (comma or ("." not in text and _COMMA.search(text) is not None)):
            text = text.replace(".", "").replace(",", ".")
        value = float(text.translate(_DIGITS))
    except (KeyError, ValueError, AttributeError):
        return None
    value *= _UNITS.get(fields.get("unit") or "", 1.0)
    return 1 / value if fields.get("inverse") and value else value


def normal(name: str) -> str:
    """One spelling of a metric's name."""
    return " ".join(name.lower().replace("_", " ").replace("-", " ").split())


def is_aside(name: str) -> bool:
    """Whether a metric is one of an evaluation, or a record: nothing that training is judged by."""
    return _ASIDE.search(name.replace("/", " ")) is not None


def is_not_finite(value: str) -> bool:
    return value.lower().lstrip("+-") in ("nan", "inf", "infinity", "infinite")


def counter(text: str | None) -> int | None:
    """'12,345' -> 12345; anything else, and what no counter can be, -> None."""
    if not text:
        return None
    digits = text.replace(",", "").replace("_", "")
    return int(digits) if len(digits) < 19 and digits.removeprefix("-").isdecimal() else None


def ranks_in(text: str) -> list[int]:
    """`3` or `0-3` as ranks; what can be none is left out."""
    first, _, last = text.partition("-")
    low, high = counter(first), counter(last or first)
    if low is None or high is None or not 0 <= low <= high < min(MAX_RANKS, low + MAX_RANGE):
        return []
    return list(range(low, high + 1))


def ranks_text(ranks: Sequence[int]) -> str:
    """(0, 1, 2, 5) -> "0-2,5"; the inverse of `ranks_in`, for several such parts."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def ranks_named(ranks: Sequence[int]) -> str:
    """`rank 3`, `ranks 0-6,9`."""
    return f"rank{'s' if len(ranks) > 1 else ''} {ranks_text(ranks)}"


def order(a: Place, a_t: float, b: Place, b_t: float) -> int:
    """Which of two places in training comes first: -1, 0 or 1; by time only where no counter tells."""
    one, two = _key(a), _key(b)
    if one is None or two is None:
        one, two = (a_t,), (b_t,)
        if abs(a_t - b_t) < 1.0:
            return 0
    return (one > two) - (one < two)


def _key(place: Place) -> tuple[float, ...] | None:
    epoch, step = place
    if step is None and epoch is None:
        return None
    try:
        return float(epoch or 0), float(step or 0)
    except ValueError:
        return 0.0, float(step or 0)
