"""Bytes of many files -> events -> one correlator a job. Synchronous and without I/O: the daemon feeds and ticks it.

A job is named by the discovery of its files. Each file has a stream of its own; what a batch of reads caused comes back
as Outcome: what the core said and what belongs into the journal.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from denpexd.core.cadence import Limits
from denpexd.core.correlate import Correlator
from denpexd.core.events import UNKNOWN_RANK, Blind, Closed, Event, Fact, Output, Tick
from denpexd.core.rule import Catalog
from denpexd.errors import CaseError
from denpexd.ingest.discover import Found
from denpexd.ingest.tail import TailRead
from denpexd.journal import decode
from denpexd.scan.scanner import Scanner
from denpexd.scan.stream import Stream
from denpexd.tape import Tape, depth_of
from denpexd.toll import Toll
from denpexd.watched import Job, Outcome

log = logging.getLogger(__name__)

QUIET = 86400.0  # seconds after which a job that says nothing, and of which nothing is open, is forgotten
LATELY = 600.0  # seconds before a restart: what a job said then may have to be told yet, even if its files are gone
GONE_QUIET = 3600.0  # and one that has no file any more, whatever is open
MOST_JOBS = 2_000
MOST_COUNTED = 5_000  # label sets of settled incidents; older ones are counted under OTHER
OTHER = "_other"
_TAPES = 3  # recordings share as much memory as this many may have alone

Verdict = Mapping[str, object]


class Pipeline:
    """All jobs of this daemon. Times are Unix seconds on a steady axis (`start_t`: when the daemon started).

    `record`: bytes and seconds of each job that are kept to be judged again; no bytes: nothing is.
    """

    def __init__(
        self,
        catalog: Catalog,
        scanner: Scanner,
        *,
        start_t: float,
        limits: Limits,
        max_line: int = 65536,
        record: tuple[int, float] = (0, 0.0),
    ) -> None:
        self.catalog, self.scanner = catalog, scanner
        self.jobs: dict[str, Job] = {}
        self.lines = self.bytes = 0
        self.forgotten: Counter[str] = Counter()  # jobs, labels
        self._past: Counter[str] = Counter()  # what forgotten jobs and files had counted
        self.settled: Counter[tuple[str, str, str, str]] = Counter()
        self.toll = Toll(start_t)
        self._named: set[str] = set()  # jobs that files are there of
        self._unsettled: set[str] = set()  # jobs that said something just before the restart
        self._start_t, self._limits, self._max_line, self._record = start_t, limits, max_line, record
        self._now = start_t
        self.journals = True  # whether what the cores were fed is to be kept in the state

    def job(self, name: str, start_t: float | None = None) -> Job:
        """The job, begun now if need be. `start_t`: since when it is watched, if not since the daemon's start."""
        if name not in self.jobs:
            start_t = self._start_t if start_t is None else start_t
            core = Correlator(self.catalog, name, start_t=start_t, limits=self._limits)
            self.jobs[name] = Job(name, core, self._max_line, tape=self._tape(name, start_t), heard=self._now)
        return self.jobs[name]

    def _tape(self, job: str, start_t: float) -> Tape | None:
        room, age = self._record
        if not room:
            return None
        return Tape(job, start_t, self._limits, lambda s: depth_of(self.catalog, s), room=room, age=age)

    def use(self, catalog: Catalog, scanner: Scanner) -> None:
        """Other rules from now on, for all jobs."""
        self.catalog, self.scanner = catalog, scanner
        for job in self.jobs.values():
            job.use(catalog, scanner)

    def judge_by(self, limits: Limits) -> None:
        """Other limits from now on, for all jobs, which share them."""
        self._limits.min_silence, self._limits.budgets = limits.min_silence, limits.budgets

    def restore(self, journal: Iterable[str], open_verdicts: Sequence[Verdict], now: float) -> None:
        """Take in the journal of the daemon before this one; a damaged line is left out and said."""
        self._now = now
        events: dict[str, list[Event]] = {str(v["job"]): [] for v in open_verdicts}
        damaged = 0
        for line in journal:
            try:
                job, event = decode(line)
                events.setdefault(job, []).append(event)
            except CaseError:
                damaged += 1
        if damaged:
            log.warning("%d lines of the journal are damaged and were left out", damaged)
        for job, known in events.items():
            core, tape = self.job(job).core, self.job(job).tape
            if tape is not None:
                tape.known([*known, Blind(now, now)])
            if known and now - known[-1].t < LATELY:
                self._unsettled.add(job)
            core.restore(known, [v for v in open_verdicts if v["job"] == job], now)
        for verdict in open_verdicts:
            self.toll.resume(verdict, now)

    def settle(self, found: Iterable[Found]) -> None:
        """What files there are now. A later look may know their jobs better: what has begun in them moves along."""
        jobs = {one.path: one.job for one in found}
        names = set(jobs.values())
        for job in list(self.jobs.values()):
            for path in [path for path in job.streams if jobs.get(path, job.name) != job.name]:
                self.job(jobs[path]).adopt(path, job.streams.pop(path))
        for name in self._named - names:  # it was another job's all the time
            if name in self.jobs and not self.jobs[name].core.is_open:
                self._forget(name)
        self._named = names
        for each in self.jobs.values():  # of files that are forgotten
            for stream in each.without(lambda path: path not in jobs):
                self._drop(stream)

    def forget(self, t: float) -> Outcome:
        """Let go of jobs that are quiet for a day, or for an hour without any file, or of the quietest of too many.

        What is open keeps a job as long as there are files of it: nobody may have looked at it yet.
        """
        outcome = Outcome()
        by_silence = sorted(self.jobs.values(), key=lambda job: (job.core.is_open, job.heard))
        for number, job in enumerate(by_silence):
            gone = bool(self._named) and job.name not in self._named
            due = t - job.heard >= (GONE_QUIET if gone else QUIET) and (gone or not job.core.is_open)
            if not due and number >= len(by_silence) - MOST_JOBS:
                continue
            for verdict in job.core.verdicts():
                outcome.merge(self.close(job.name, str(verdict["key"])))
            self._forget(job.name)
        while len(self.settled) > MOST_COUNTED:
            old = next((key for key in self.settled if key[0] not in self.jobs), next(iter(self.settled)))
            self.settled[(OTHER, *old[1:])] += self.settled.pop(old)
            self.forgotten["label"] += 1
        room = self._record[0] * _TAPES // max(_TAPES, len(self.jobs))
        for job in self.jobs.values():
            if job.tape is not None:
                job.tape.fit(room)
        return outcome

    def _forget(self, name: str) -> None:
        job = self.jobs.pop(name)
        self.toll.forget(name)
        self._past["suspected"] += job.core.suspected
        for stream in job.streams.values():
            self._drop(stream)
        self._past["unmet"] += job.core.job.unmet
        self.forgotten["job"] += 1

    def _drop(self, stream: Stream) -> None:
        self._past["repeated"] += stream.repeated_lines
        self._past["truncated"] += stream.truncated_lines

    @property
    def suspected(self) -> int:
        """Times any job fell silent beyond its rhythm."""
        return self._past["suspected"] + sum(job.core.suspected for job in self.jobs.values())

    @property
    def unmet(self) -> int:
        """Times that a rank was spoken of which is not remembered, as there were too many."""
        return self._past["unmet"] + sum(job.core.job.unmet for job in self.jobs.values())

    @property
    def repeated(self) -> int:
        """Lines that only said again what had just been said many times."""
        return self._past["repeated"] + sum(stream.repeated_lines for stream in self._streams())

    @property
    def truncated(self) -> int:
        """Lines of which the middle was left out."""
        return self._past["truncated"] + sum(stream.truncated_lines for stream in self._streams())

    def _streams(self) -> Iterator[Stream]:
        return (stream for job in self.jobs.values() for stream in job.streams.values())

    def _is_judged(self, job: Job) -> bool:
        """A job of the journal that no file belongs to says nothing by its silence: see `tick` for its last words."""
        return not self._named or job.name in self._named or job.core.is_open

    # --- reading ----------------------------------------------------------------------------------------------------

    def feed(self, found: Found, read: TailRead, t: float) -> Outcome:
        """New bytes of one file."""
        self._now = t
        job = self.job(found.job)
        events = job.read(found, read, t, self.scanner)
        if events is None:
            return Outcome()
        self.bytes += len(read.data)
        self.lines += read.data.count(b"\n")
        return self.take(job, events)

    def beside(self, name: str, source: str, data: bytes, t: float, wanted: Callable[[Event], bool]) -> Outcome:
        """Whole lines about the machines of a job that none of its ranks printed; only `wanted` events count."""
        job = self.job(name)
        return self.take(job, [event for event in job.beside(source, data, t, self.scanner) if wanted(event)])

    def take(self, job: Job, events: Sequence[Event]) -> Outcome:
        """Events of one job, as one batch."""
        outcome = Outcome()
        if events:
            outputs = job.core.feed(events)
            if job.tape is not None:
                job.tape.add(events)
            outcome.add(job.name, events if self.journals else (), outputs)
            outcome.told.append((job.name, events))
            self._count(outputs)
        return outcome

    def say(self, name: str, outputs: Sequence[Output]) -> Outcome:
        """What a core says without having been fed."""
        outcome = Outcome()
        outcome.add(name, [], outputs)
        self._count(outputs)
        return outcome

    def leave(self, name: str) -> None:
        """Another daemon watches this job from now on."""
        if name in self.jobs:
            self._forget(name)

    def evidence(self, name: str, events: Sequence[Event]) -> Outcome:
        """Answers of witnesses about one job."""
        job = self.job(name)
        job.heard = self._now
        return self.take(job, events)

    def recent(self, name: str, t: float, *, recent: bool) -> Outcome:
        """Whether what stood in the job's files at the start was written lately."""
        return self.take(self.job(name), [Fact(t, UNKNOWN_RANK, "recent", {"recent": str(recent).lower()})])

    def blind(self, t: float, since: float) -> Outcome:
        """The daemon could not look: silence in between proves nothing."""
        outcome = Outcome()
        for job in self.jobs.values():
            outcome.merge(self.take(job, [Blind(t, since)]))
        return outcome

    def idle(self, t: float) -> Iterator[Outcome]:
        """What nothing has followed for a second is over: of jobs of many files, some files at a time, before a tick.

        Between two of them others may have their turn: ten thousand tracebacks that end together take seconds.
        """
        for job in [job for job in self.jobs.values() if job.is_large and self._is_judged(job)]:
            for events in job.ends(t):
                yield self.take(job, events)

    def tick(self, t: float) -> Outcome:
        """The clock moved by a second."""
        self._now = t
        outcome = Outcome()
        for job in filter(self._is_judged, self.jobs.values()):
            over = [] if job.is_large else [event for events in job.ends(t) for event in events]  # else see `idle`
            outcome.merge(self.take(job, [*over, Tick(t)]))
            self.toll.tick(job.core.job, t)
        for name in self._unsettled & self.jobs.keys():
            if not self._is_judged(self.jobs[name]):
                outcome.merge(self.say(name, self.jobs[name].core.feed([Blind(t, t), Tick(t)])))
        return outcome

    def is_amid(self, found: Found) -> bool:
        """Whether something of several lines has begun in a file and is not told yet."""
        job = self.jobs.get(found.job)
        return job is not None and job.is_amid(found.path)

    def flush(self, t: float) -> Outcome:
        """No more bytes will come: unfinished lines count as lines."""
        outcome = Outcome()
        for job in self.jobs.values():
            outcome.merge(self.take(job, job.rest(t)))
            outputs = job.core.finish(t)
            if job.tape is not None:
                job.tape.finish(t)
            outcome.merge(self.say(job.name, outputs))
        return outcome

    def close(self, name: str, key: str) -> Outcome:
        """Somebody has closed an incident by hand; nothing changes if the job knows of none with this key."""
        job = self.jobs.get(name)
        return Outcome() if job is None else self.say(name, job.core.close(key))

    def _count(self, outputs: Sequence[Output]) -> None:
        """An incident counts once, for the failure it settled on: at its end, or while it is open as it stands."""
        self.toll.note(outputs)
        for output in outputs:
            if isinstance(output, Closed):
                self.settled[labels(output.verdict)] += 1

    @property
    def open_labels(self) -> Counter[tuple[str, str, str, str]]:
        """Open incidents by (job, failure, category, severity)."""
        return Counter(
            (job.core.job.job, rule.id, rule.entry.category, rule.entry.severity)
            for job in self.jobs.values()
            for rule in job.core.open_rules()
        )


def labels(verdict: Verdict) -> tuple[str, str, str, str]:
    """What an incident is counted by."""
    return str(verdict["job"]), str(verdict["failure"]), str(verdict["category"]), str(verdict["severity"])
