"""One job as it is watched: its correlator, a stream for each of its files, its recording, and what came of a batch."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from denpexd.core.correlate import Correlator
from denpexd.core.events import UNKNOWN_RANK, Attempt, Closed, Event, Opened, Output, Updated, Want
from denpexd.core.rule import Catalog
from denpexd.ingest.discover import Found
from denpexd.ingest.tail import TailRead
from denpexd.journal import encode
from denpexd.scan.scanner import Scanner
from denpexd.scan.stream import Stream
from denpexd.tape import Tape

_FILES = 128  # of a job whose ends are looked at together
_MOST_STARTS = 256  # earlier starts of one job

Change = Opened | Updated | Closed
Generation = tuple[str, int]


@dataclass(slots=True)
class Outcome:
    """What one batch caused, by job: changes to tell, evidence to fetch, journal lines to keep."""

    changes: list[Change] = field(default_factory=list)
    wants: list[tuple[str, Want]] = field(default_factory=list)
    journal: list[str] = field(default_factory=list)
    told: list[tuple[str, Sequence[Event]]] = field(default_factory=list)  # what the cores were fed

    def add(self, job: str, events: Iterable[Event], outputs: Iterable[Output]) -> None:
        self.journal += [line for event in events if (line := encode(job, event)) is not None]
        for output in outputs:
            if isinstance(output, Want):
                self.wants.append((job, output))
                continue
            self.changes.append(output)
            if isinstance(output, Closed) and output.over is not None:
                self.journal += [line for line in (encode(job, output.over),) if line is not None]

    def merge(self, other: "Outcome") -> None:
        self.changes += other.changes
        self.wants += other.wants
        self.journal += other.journal
        self.told += other.told


@dataclass(slots=True)
class Job:
    """`generation`: the start of the job that is being watched, by torchrun's run id and attempt."""

    name: str
    core: Correlator
    max_line: int
    streams: dict[Path, Stream] = field(default_factory=dict)
    tape: Tape | None = None
    generation: Generation | None = None
    heard: float = 0.0  # when it said something last
    lines: int = 0
    _past: dict[Generation, None] = field(default_factory=dict)
    _unfinished: dict[Path, None] = field(default_factory=dict)  # streams that time may end something of
    _beside: dict[Path, int] = field(default_factory=dict)  # bytes so far of sources that are no files of the job

    def use(self, catalog: Catalog, scanner: Scanner) -> None:
        """Other rules from now on."""
        self.core.use(catalog)
        for stream in self.streams.values():
            stream.use(scanner)

    def read(self, found: Found, read: TailRead, t: float, scanner: Scanner) -> list[Event] | None:
        """What new bytes of a file say; None if it is one of an earlier start of the job: over."""
        self.heard = t
        events = self._started(found, t)
        if (found.run or found.attempt is not None) and (found.run, found.attempt or 0) != self.generation:
            return None
        stream = self.streams.get(found.path)
        if stream is None:
            stream = Stream(scanner, str(found.path), found.rank, max_line=self.max_line)
            self.streams[found.path] = stream
        elif found.rank != UNKNOWN_RANK:
            stream.belongs_to(found.rank)
        if read.anew:
            events += stream.flush(t)
        self.lines += read.data.count(b"\n")
        return events + self._fed(found.path, stream.feed(t, read.offset, read.data, history=read.history))

    def _fed(self, path: Path, events: list[Event]) -> list[Event]:
        if self.streams[path].waits:
            self._unfinished[path] = None
        return events

    def _started(self, found: Found, t: float) -> list[Event]:
        """A folder of a new start (torchrun's run id and attempt) means that the job was started again."""
        if not found.run and found.attempt is None:
            return []  # a launcher's own log beside the folders belongs to every start
        here = (found.run, found.attempt or 0)
        if self.generation is None:
            self.generation = here
        elif here != self.generation and here not in self._past:
            self._past[self.generation] = None
            while len(self._past) > _MOST_STARTS:
                del self._past[next(iter(self._past))]
            self.generation = here
            return [Attempt(t, found.attempt or 0)]
        return []

    def adopt(self, path: Path, stream: Stream) -> None:
        """A file was taken for one of another job so far."""
        self.streams.setdefault(path, stream)
        self._unfinished[path] = None

    def beside(self, source: str, data: bytes, t: float, scanner: Scanner) -> list[Event]:
        """What whole lines say that none of its ranks printed."""
        path = Path(f"beside:{source}")
        if path not in self.streams:
            self.streams[path] = Stream(scanner, source, interleaved=True, max_line=self.max_line)
        offset = self._beside.get(path, 0)
        self._beside[path] = offset + len(data)
        return self._fed(path, self.streams[path].feed(t, offset, data))

    def without(self, is_gone: Callable[[Path], bool]) -> list[Stream]:
        """Let go of the streams of files of which this is so."""
        return [self.streams.pop(path) for path in list(self.streams) if path not in self._beside and is_gone(path)]

    @property
    def is_large(self) -> bool:
        """So many files that the ends of all are not looked at in one go: see `ends`."""
        return len(self.streams) > _FILES

    def ends(self, t: float) -> Iterator[list[Event]]:
        """What nothing has followed for a second is over, some files at a time."""
        paths = list(self._unfinished)
        for begin in range(0, len(paths), _FILES):
            events = list[Event]()
            for path in paths[begin : begin + _FILES]:
                stream = self.streams.get(path)
                if stream is not None:
                    events += stream.idle(t)
                if stream is None or not stream.waits:
                    del self._unfinished[path]
            if events:
                yield events

    def is_amid(self, path: Path) -> bool:
        """Whether something of several lines has begun in a file and is not told yet."""
        return path in self._unfinished and path in self.streams and self.streams[path].is_amid

    def rest(self, t: float) -> list[Event]:
        """No more bytes will come: unfinished lines count as lines."""
        return [event for stream in self.streams.values() for event in stream.flush(t)]
