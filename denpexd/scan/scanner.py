"""Signals and built-in patterns compiled for scanning: two databases, one for all bytes, one for progress.

A text that one rank prints again and again is not looked at each time.
"""

import copy
import math
import re
from collections.abc import Iterable, Mapping

import re2

from denpexd.core.rule import Signal
from denpexd.scan import bare, blocks, dumps, launcher, lines
from denpexd.scan.engine import Engine, EngineFactory
from denpexd.scan.launcher import PATTERNS, SUMMARY
from denpexd.scan.lines import segment_end

_TAIL = 2 << 10  # progress of a one-rank stream is looked for in the last bytes of a chunk ...
_WIDER_TAIL = 16 << 10  # ... and, if there is none, in these
_LAST_SEGMENTS = 2

_BUILT_IN = PATTERNS | {
    "traceback": blocks.TRACEBACK,
    "faulthandler": dumps.FAULTHANDLER,
    "watchdog": dumps.WATCHDOG,
    "summary": SUMMARY,
    "exception": bare.EXCEPTION,
}
_NAMES = tuple(_BUILT_IN)
_MATCHERS = {name: re2.compile(pattern) for name, pattern in _BUILT_IN.items()}

_CAPTURE = re.compile(r"\(\?P?<\w+>")  # two patterns may use the same name

Named = tuple[int, int, tuple[int, ...]]
"""A segment that may match something: start, end, ids."""

_REPEATS = 4
_SAME = 100  # more than any rule counts, and a second of them is read in some hundredths of one
_MOST = 1000  # of one rank's lines that one pattern names in a second, whatever they say
_SECOND = 1.0
_STAMP = b"0123456789-:.,/TZ[] "  # what one rank's line may begin with that differs each time
_BLOCKS = {"traceback", "faulthandler", "watchdog", "summary"}  # what follows them may differ


class Scanner:
    """Signals compiled for scanning; immutable, shared by all streams and threads.

    Two databases: failures, phases and metrics over every byte, progress (role "progress", no capture named `value`)
    where it matters. Signals of other kinds than "log" are left out. Ids: signals of the first database, then the
    built-in patterns, then progress signals.
    """

    def __init__(self, signals: Iterable[Signal], engine: EngineFactory) -> None:
        logs = [
            signal
            for signal in signals
            if signal.kind == "log" and signal.matcher is not None and signal.quantity in (None, "duration")
        ]
        self._signals = tuple(signal for signal in logs if not _only_latest(signal))
        self._handled = [signal for signal in logs if signal.role in ("handled", "caught")]
        remarks = [launcher.OWN_LINE.pattern, *lines.HANDLED, *(signal.pattern or "" for signal in self._handled)]
        self._remark = re2.compile("|".join(f"(?:{_CAPTURE.sub('(?:', pattern)})" for pattern in remarks))
        self._progress = tuple(signal for signal in logs if _only_latest(signal))
        self._first_built_in = len(self._signals)
        self._first_progress = len(self._signals) + len(_NAMES)
        patterns = [signal.pattern or "" for signal in self._signals]
        self._everything: Engine = engine(patterns + list(_BUILT_IN.values()))
        self._steps: Engine = engine([signal.pattern or "" for signal in self._progress])
        self.engine_name = self._everything.name

    def with_signals(self, changed: Mapping[str, Signal]) -> "Scanner":
        """The same patterns, so nothing to compile, for signals that differ in anything else."""
        twin = copy.copy(self)
        twin._signals = tuple(changed.get(signal.id, signal) for signal in self._signals)
        twin._progress = tuple(changed.get(signal.id, signal) for signal in self._progress)
        return twin

    def wait(self) -> None:
        """Until everything is compiled, which an engine may do in a thread of its own."""
        for engine in (self._everything, self._steps):
            engine.scan(b"")

    def named(self, data: bytes, *, whole: bool) -> list[Named]:
        """Segments that may match, in order. `whole`: look for progress everywhere, not only at the end."""
        return _by_segment(data, self._everything.scan(data) + self._progress_in(data, whole))

    def named_progress(self, data: bytes) -> tuple[int, ...]:
        """Ids of progress signals that may match somewhere in `data`."""
        return tuple({self._first_progress + number for _, number in self._steps.scan(data)} if self._progress else ())

    def signal(self, number: int) -> Signal | None:
        """The signal of an id; None if the id belongs to a built-in pattern."""
        if number >= self._first_progress:
            return self._progress[number - self._first_progress]
        return self._signals[number] if number < self._first_built_in else None

    def remarks(self, text: str) -> bool:
        """Whether the line may say that a launcher printed it or that the program dealt with what it tells.

        One look instead of a handful; most lines say neither.
        """
        return self._remark.search(text) is not None

    def handles(self, text: str) -> bool:
        """Whether a signal of the catalogue says that the program dealt with what this line tells."""
        return any(
            s.matcher is not None and s.matcher.search(text) and not (s.exclude and s.exclude.search(text))
            for s in self._handled
        )

    def most(self, number: int) -> float:
        """How many hits of the same rank in a second may tell something new: few without captures and count."""
        signal = self.signal(number)
        if signal is not None and signal.count == 1 and "(?P<" not in (signal.pattern or ""):
            return _REPEATS
        return math.inf if self.opens_block(number) else _MOST

    def opens_block(self, number: int) -> bool:
        """Whether the id is that of the first line of something longer."""
        place = number - self._first_built_in
        return 0 <= place < len(_NAMES) and _NAMES[place] in _BLOCKS

    def is_progress(self, number: int) -> bool:
        """Whether the id is that of a signal of which only the latest hit counts."""
        return number >= self._first_progress

    def built_in(self, number: int, text: str) -> tuple[str, dict[str, str]] | None:
        """Name and captures of the built-in pattern with this id, if it matches."""
        name = _NAMES[number - self._first_built_in]
        found = _MATCHERS[name].search(text)
        return None if found is None else (name, present(found.groupdict()))

    def _progress_in(self, data: bytes, whole: bool) -> list[tuple[int, int]]:
        if not self._progress:
            return []
        for size in (len(data),) if whole else (_TAIL, _WIDER_TAIL):
            start = max(0, len(data) - size)
            start = max(data.rfind(b"\n", 0, start), data.rfind(b"\r", 0, start)) + 1 if start else 0
            steps = self._steps.scan(data[start:] if start else data)
            if steps or not start:
                break
        if not whole:
            steps = _last_segments(data[start:], steps)
        return [(start + position, self._first_progress + number) for position, number in steps]


def present(groups: dict[str, str | None]) -> dict[str, str]:
    """The captures that took part in a match."""
    return {name: value for name, value in groups.items() if value is not None}


def _only_latest(signal: Signal) -> bool:
    pattern = signal.pattern or ""
    return signal.role == "progress" and "(?P<value>" not in pattern and "(?<value>" not in pattern


def _last_segments(data: bytes, candidates: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """For each id the candidates in its last segments: only the latest counts, some may turn out false."""
    kept: list[tuple[int, int]] = []
    told: dict[int, int] = {}
    start, here = len(data), set[int]()
    for position, number in sorted(candidates, reverse=True):
        if position < start:
            start, here = _segment_start(data, position), set()
        if number not in here and told.get(number, 0) < _LAST_SEGMENTS:
            here.add(number)
            told[number] = told.get(number, 0) + 1
            kept.append((position, number))
    return kept


def _by_segment(data: bytes, candidates: list[tuple[int, int]]) -> list[Named]:
    named: list[tuple[int, int, set[int]]] = []
    end = -1
    for position, number in sorted(candidates):
        if position >= end:
            end = segment_end(data, position)
            named.append((_segment_start(data, position), end, set()))
        named[-1][2].add(number)
    return [(start, end, tuple(sorted(ids))) for start, end, ids in named]


def _segment_start(data: bytes, position: int) -> int:
    line = data.rfind(b"\n", 0, position) + 1
    return max(line, data.rfind(b"\r", line, position) + 1)


class Repeats:
    """How often each id, and each text, was named lately in one stream."""

    def __init__(self, scanner: Scanner) -> None:
        self._scanner = scanner
        self._told: dict[int, int] = {}  # by id, since ...
        self._texts: dict[int, int] = {}  # by hash of the text, since ...
        self._since = float("-inf")

    def leave_out(self, data: bytes, named: list[Named], t: float, *, one_rank: bool) -> list[Named]:
        """What tells something new: of equal texts the first hundred in a second, and the last of those read at `t`;
        where `one_rank` writes, also only so many hits of each id as may tell something.
        """
        if not 0.0 <= t - self._since < _SECOND:
            self._told, self._texts, self._since = {}, {}, t
        if len(named) > _REPEATS:
            named = self._without_storm(data, named, _STAMP if one_rank else b"")
        return self._without_repeats(named) if one_rank else named

    def _without_storm(self, data: bytes, named: list[Named], stamp: bytes) -> list[Named]:
        texts = [hash(data[start:end].lstrip(stamp)) for start, end, _ in named]
        last = {text: place for place, text in enumerate(texts)}
        kept: list[Named] = []
        for place, (text, segment) in enumerate(zip(texts, named, strict=True)):
            said = self._texts[text] = self._texts.get(text, 0) + 1
            if said <= _SAME or last[text] == place or any(self._scanner.opens_block(n) for n in segment[2]):
                kept.append(segment)
        return kept

    def _without_repeats(self, named: list[Named]) -> list[Named]:
        last = {number: place for place, (_, _, ids) in enumerate(named) for number in ids}
        kept: list[Named] = []
        for place, (start, end, ids) in enumerate(named):
            for number in ids:
                self._told[number] = self._told.get(number, 0) + 1
            wanted = tuple(n for n in ids if self._told[n] <= self._scanner.most(n) or last[n] == place)
            if wanted:
                kept.append((start, end, wanted))
        return kept
