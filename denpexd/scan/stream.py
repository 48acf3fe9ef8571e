"""The state of one file or pipe: bytes in as they come, events out.

A chunk without a hit costs one scan and one Activity. Lines become Python objects only where an engine names a
candidate, or while a block (a traceback, a dump) is open. Everything works on whole segments, so that how the bytes
were cut into reads changes nothing, except for progress, of which only the latest of each read matters.
"""

from denpexd.core.events import UNKNOWN_RANK, Activity, Event, Hit
from denpexd.core.records import process_of
from denpexd.core.rule import Signal
from denpexd.scan.bare import bare_exception, under_task
from denpexd.scan.blocks import Opening
from denpexd.scan.launcher import PATTERNS, LauncherReader, is_launcher_line
from denpexd.scan.lines import View, abridged, is_handled, is_quoted, segment_end, shorten, view
from denpexd.scan.prefixes import Line, PrefixReader
from denpexd.scan.scanner import Named, Repeats, Scanner, present
from denpexd.scan.writers import OpenBlocks, census, line_above, shares

_MOST_HITS = 2000
_MOST_HITS_OF_ONE = 1000
_BACK = 2 << 10
_PARTIAL_IDLE = 1.0
_ORDINARY = ("progress", "phase", "handled", "caught")
_RAY_SYSTEM = ("raylet", "gcs_server", "autoscaler")


class Stream:
    """One file or pipe, read from some offset on. Not for use by two threads at once.

    `rank`: the global rank where path or process tell it. `interleaved`: whether several ranks write here; None:
    it is, if the rank is unknown or tags name more than one. Lines longer than `max_line` bytes keep head and tail.
    Events of one call stand in the order of the file; their `t` is that of the read which brought their first line, so
    a Raised may be older than its neighbours.
    """

    def __init__(
        self,
        scanner: Scanner,
        source: str,
        rank: int = UNKNOWN_RANK,
        *,
        interleaved: bool | None = None,
        max_line: int = 65536,
    ) -> None:
        self.source, self.rank = source, rank
        self.truncated_lines = self.repeated_lines = 0
        self._scanner, self._interleaved, self._max_line = scanner, interleaved, max(max_line, 256)
        self._prefixes = PrefixReader(rank)
        self._launcher = LauncherReader(rank, source)
        self._blocks = OpenBlocks(self._launcher)
        self._carry, self._carry_offset, self._next = b"", 0, -1
        self._in_line = self._after_return = False  # where the last chunk ended
        self._cut = False  # the middle of the carried segment is gone, and counted
        self._head: Line | None = None  # of the physical line that a carriage return has left unfinished
        self._seen: dict[str, dict[str, str]] = {}  # hits of the carried segment, told before it was whole
        self._taken = 0  # bytes of the carried segment that blocks and launcher have had
        self._back = b""
        self._t, self._fed, self._history, self._at = 0.0, 0.0, False, 0
        self._out: list[tuple[int, Event]] = []
        self._candidates: list[tuple[Signal, Line, dict[str, dict[str, str]], int]] = []  # of progress, with offset
        self._latest: dict[tuple[int, str], Hit] = {}
        self._counts: dict[str, int] = {}
        self._heard: dict[int, int] = {}
        self._repeats = Repeats(scanner)

    @property
    def interleaved(self) -> bool:
        """Whether several ranks write to this stream, as far as is known."""
        if self._interleaved is not None:
            return self._interleaved
        return self.rank == UNKNOWN_RANK or len(self._prefixes.ranks | {self.rank}) > 1

    def use(self, scanner: Scanner) -> None:
        """Look for other signals from the next chunk on."""
        self._scanner, self._repeats = scanner, Repeats(scanner)

    def belongs_to(self, rank: int) -> None:
        """Whose file it is was learned later; what has begun already, a line or a traceback, goes on."""
        self.rank = self._prefixes.rank = self._launcher.rank = rank

    def feed(self, t: float, offset: int, data: bytes, *, history: bool = False) -> list[Event]:
        """The events of bytes that stand at `offset` and were read at `t`; a gap before them ends the open line."""
        before = self.flush(t) if self._next >= 0 and offset != self._next else []
        self._begin(t, history)
        self._fed, self._next = t, offset + len(data)
        size = len(data)
        if self._after_return and data.startswith(b"\n"):  # the other half of a CRLF
            data, offset, self._in_line, self._head = data[1:], offset + 1, False, None
        self._after_return = self._after_return and not size
        self._emit(self._blocks.stale(t))
        buffer, join = self._carry + data, len(self._carry)
        start = self._carry_offset if join else offset
        cut = buffer.rfind(b"\n") + 1
        cut = max(cut, buffer.rfind(b"\r", cut) + 1)
        if cut:
            self._chunk(view(buffer[:cut], join, start, offset, at_line_start=not self._in_line))
            self._after_return = buffer[cut - 1 : cut] == b"\r"
            start = offset + cut - join
        self._carry, self._carry_offset = abridged(buffer[cut:], self._max_line), start
        too_long = len(self._carry) > self._max_line
        self.truncated_lines += too_long and (bool(cut) or not self._cut)
        self._cut = too_long
        if self._carry and self._in_line:  # a progress bar is written behind its carriage return, often for an epoch
            self._partial(progress_only=True)
        return before + self._activity(size, buffer) + self._end()

    @property
    def waits(self) -> bool:
        """Whether something is unfinished that time may end."""
        return self.is_amid or len(self._carry) > self._taken

    @property
    def is_amid(self) -> bool:
        """Whether something of several lines, a traceback say, has begun and is not told yet."""
        return bool(self._blocks or self._launcher.waits)

    def idle(self, t: float) -> list[Event]:
        """To be called about once a second: what nothing has followed for a second is over."""
        if not self.waits:
            return []
        self._begin(t, self._history)
        if len(self._carry) > self._taken and t - self._fed >= _PARTIAL_IDLE:
            self._partial(progress_only=False)
        self._emit(self._blocks.idle(t) + self._launcher.idle(t))
        return self._end()

    def flush(self, t: float) -> list[Event]:
        """The end of the stream (or of what is contiguous): the unfinished line counts, open blocks end."""
        self._begin(t, self._history)
        if len(self._carry) > self._taken:
            self._partial(progress_only=False)
        self._emit(self._blocks.end() + self._launcher.idle(t, end=True))
        self._carry, self._head, self._in_line, self._after_return, self._back = b"", None, False, False, b""
        self._seen, self._taken, self._next, self._cut = {}, 0, -1, False
        return self._end()

    def _begin(self, t: float, history: bool) -> None:
        self._t, self._history = t, history
        self._counts, self._heard = {}, {}

    def _emit(self, events: list[Event]) -> None:
        self._out.extend((self._at, event) for event in events)

    def _end(self) -> list[Event]:
        self._out.extend((hit.offset, hit) for hit in self._latest.values())
        events = [event for _, event in sorted(self._out, key=lambda pair: pair[0])]
        self._out, self._latest = [], {}
        return events

    def _chunk(self, chunk: View) -> None:
        """Scan whole segments and look at those that are named, or at all while a block is open."""
        data = chunk.data
        self._prefixes.sample(data)
        named = self._scanner.named(data, whole=self.interleaved)
        every, named = named, self._repeats.leave_out(data, named, self._t, one_rank=not self.interleaved)
        self.repeated_lines += len(every) - len(named)
        heads = {0: self._head} if self._in_line else {}
        seen, taken, self._seen, self._taken = self._seen, self._taken, {}, 0
        position = at = 0
        while position < len(data):
            while at < len(named) and named[at][0] < position:
                at += 1
            if self._blocks:
                segment: Named = (position, segment_end(data, position), ())
                segment = named[at] if at < len(named) and named[at][0] == position else segment
            elif at < len(named):
                segment = named[at]
            else:
                break
            start, end, ids = segment
            if end > start or data[end : end + 1] == b"\n":
                head = self._line_head(data, start, heads)
                carried = start == 0
                self._segment(chunk, start, end, ids, head, seen if carried else {}, taken=taken if carried else 0)
            position = end + (2 if data[end : end + 2] == b"\r\n" else 1)
        self._match_progress()
        self._remember(data, heads)

    def _match_progress(self) -> None:
        """Of each rank only the latest counts, so the last candidates are asked first and the others not at all."""
        for signal, line, seen, at in reversed(self._candidates):
            if (line.rank, signal.id) not in self._latest:
                self._at = at
                self._match(signal, line, seen, latest=True, partial=False)
        self._candidates = []

    def _line_head(self, data: bytes, start: int, heads: dict[int, Line | None]) -> Line | None:
        """What the first segment of the physical line says, for a segment that follows a carriage return."""
        line = data.rfind(b"\n", 0, start) + 1
        if line not in heads:
            if line == start:
                return None
            heads[line] = self._prefixes.read(data[line : segment_end(data, line)][: self._max_line])[-1]
        return heads[line]

    def _remember(self, data: bytes, heads: dict[int, Line | None]) -> None:
        """What the next chunk needs to know about this one."""
        self._in_line = not data.endswith(b"\n")
        self._head = self._line_head(data, len(data), heads) if self._in_line else None
        self._back = (self._back + data[-_BACK:])[-_BACK:]

    def _partial(self, *, progress_only: bool) -> None:
        """Look at the unfinished segment as if it ended here; what is found is not told again when it does."""
        size, offset = len(self._carry), self._carry_offset
        chunk = view(self._carry, size, offset, offset, at_line_start=not self._in_line)
        ids = set(self._scanner.named_progress(chunk.data))
        if not progress_only:
            ids.update(number for _, _, each in self._scanner.named(chunk.data, whole=True) for number in each)
        size, taken = len(chunk.data), len(chunk.data) if progress_only else self._taken
        self._segment(chunk, 0, size, tuple(sorted(ids)), self._head, dict(self._seen), taken=taken, partial=True)
        self._taken = self._taken if progress_only else size

    def _segment(
        self,
        chunk: View,
        start: int,
        end: int,
        ids: tuple[int, ...],
        head: Line | None,
        seen: dict[str, dict[str, str]],
        *,
        taken: int = 0,
        partial: bool = False,
    ) -> None:
        """One segment: its pieces go to the open blocks, then to the patterns that may match them.

        `seen`: hits told while it was partial. `taken`: so many bytes of it blocks and launcher have had already.
        """
        raw, self._at = chunk.data[start:end], chunk.where(start)
        if len(raw) > self._max_line:
            self.truncated_lines += not (partial or (self._cut and start == 0))
            raw = shorten(raw, self._max_line)
        lines: list[Line] = []
        for part in raw.split(b"\r"):
            lines += self._prefixes.read(part, head)
            head = head or lines[0]
        fresh = lines if not taken else self._prefixes.read(raw[taken:], lines[0]) if len(raw) > taken else []
        built_in = [number for number in ids if self._scanner.signal(number) is None]
        above = chunk.data[max(0, start - _BACK) : start] if built_in else b""
        code = [self._told(line, built_in, above) for line in fresh]
        for line in [each for each, quoted in zip(lines, code, strict=True) if not quoted] if not taken else lines:
            self._heard[line.rank] = self._heard.get(line.rank, 0) + len(line.text)
            for number in ids:
                latest = self._scanner.is_progress(number)
                if (signal := self._scanner.signal(number)) is None:
                    continue
                if latest and not partial:
                    self._candidates.append((signal, line, seen, self._at))
                else:
                    self._match(signal, line, seen, latest=latest, partial=partial)

    def _told(self, line: Line, built_in: list[int], above: bytes) -> bool:
        """Show a line to blocks and launcher; whether it is source code that a traceback quotes."""
        code, kept, ended = self._blocks.feed(line, self._t)
        self._emit(ended)
        for number in built_in:
            self._built_in(number, line, kept, above)
        return code

    def _match(
        self, signal: Signal, line: Line, seen: dict[str, dict[str, str]], *, latest: bool, partial: bool
    ) -> None:
        """Ask the exact matcher, and tell the hit unless it was told before."""
        found = signal.matcher.search(line.text) if signal.matcher is not None else None
        if found is None or (signal.exclude is not None and signal.exclude.search(line.text) is not None):
            return
        captured = present(dict(found.groupdict()))
        if signal.id in seen and (not latest or seen[signal.id] == captured):
            return
        if partial:
            self._seen[signal.id] = captured
        if signal.role not in _ORDINARY and is_quoted(line.text):
            return
        remarks = self._scanner.remarks(line.text)
        system = line.fields.get("actor") in _RAY_SYSTEM or (remarks and is_launcher_line(line.text))
        rank = UNKNOWN_RANK if system and not latest else line.rank
        fields = {**line.fields, **captured}
        tells = signal.role not in _ORDINARY and "value" not in captured
        handled = remarks and tells and is_handled(line.text, known=self._scanner.handles(line.text))
        hit = Hit(self._t, rank, signal.id, self.source, self._at, line.text, fields, handled, self._history)
        told = self._counts.get(signal.id, 0)
        if latest:
            self._latest[rank, signal.id] = hit
        elif told < _MOST_HITS_OF_ONE and sum(self._counts.values()) < _MOST_HITS:
            self._counts[signal.id] = told + 1
            self._emit([hit])

    def _built_in(self, number: int, line: Line, kept: set[str], above: bytes) -> None:
        """A launcher's line, or the first line of a block unless an open block (`kept`) has taken it."""
        found = self._scanner.built_in(number, line.text)
        if found is None or is_quoted(line.text):
            return
        name, groups = found
        if name in PATTERNS:
            self._emit(self._launcher.read(name, line, groups, self._t, self._at, self._history))
        elif name == "exception":
            if "traceback" not in kept and not is_handled(line.text, known=self._scanner.handles(line.text)):
                before = (self._back + above)[-_BACK:].decode("utf-8", "replace")
                raised = bare_exception(under_task(self._opening(line), before))
                self._emit([] if raised is None else [raised])
        elif name not in kept:
            above_it = line_above(line, (self._back + above)[-_BACK:], self._prefixes) if name == "traceback" else ""
            self._emit(self._blocks.open(name, line, self._opening(line, above_it, entry=name == "traceback")))

    def _opening(self, line: Line, before: str = "", *, entry: bool = False) -> Opening:
        named = self._blocks.entry_rank(line) if entry else None
        rank = line.rank if named is None else named
        process = process_of(line.fields) if rank == UNKNOWN_RANK else ""
        return Opening(self._t, rank, self.source, self._at, line.text, line.hooked, before, self._history, process)

    def _activity(self, size: int, buffer: bytes) -> list[Event]:
        """Who wrote these bytes. Interleaved: shares by lines of the last 64 KiB; history: only by lines looked at."""
        if size and not self.interleaved:
            return [Activity(self._t, self.rank, self.source, size, self._history)]
        heard = self._heard
        if size and not self._history:
            heard = census(buffer, self._prefixes, None if b"\n" in buffer else self._head)
        return shares(size, heard, self._t, self.source, self._history) if size else []
