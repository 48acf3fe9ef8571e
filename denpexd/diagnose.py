"""Finished logs in, verdicts out: the scanner and the core of the daemon, with the times that the lines carry.

Every file is read alone; then its events get the time of their line (or of the nearest line above that has one), the
events of all files are merged by time and played to one correlator a job. Silence proves nothing in a finished log.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import BinaryIO

from denpexd.clock import Clock, SystemClock
from denpexd.core.cadence import BUDGETS, Limits
from denpexd.core.correlate import Correlator
from denpexd.core.events import (
    UNKNOWN_RANK,
    Activity,
    Hit,
    Joined,
    Raised,
)
from denpexd.core.rule import Catalog
from denpexd.core.state import JobState
from denpexd.errors import SourceError
from denpexd.evidence.pasted import BY_ORDER, dumps
from denpexd.ingest.finished import Finished, find
from denpexd.merge import PLACE, Told, merged
from denpexd.notify.redact import redact_name
from denpexd.notify.text import one_line, rank_words
from denpexd.replay import Player, Replayed
from denpexd.scan.engine import choose_engine
from denpexd.scan.scanner import Scanner
from denpexd.scan.stream import Stream
from denpexd.scan.times import Stamp, resolve
from denpexd.scan.times import find as find_stamp

log = logging.getLogger(__name__)

Verdict = Mapping[str, object]
Generation = tuple[str, int]

NEVER = 1e12
STAMP = "log with timestamps: logging.basicConfig(format='%(asctime)s %(message)s'), or give the merged output"
NAME = "save each dump as rank<N>.txt and give the folder"
# About so many chunks altogether: of the progress in one only the last is told, so small logs are read in small ones.
READS = 20_000
SMALLEST, LARGEST = 64, 64 << 10
MOST_NAMED = 5
LARGEST_DUMP = 4 << 20
ABOVE = 4 << 10  # how far above an event a timestamp is looked for
LAST_WORDS = 4 << 10
QUIET_ROLES = ("progress", "metric", "config")
STARTING = ("init", "load")


@dataclass(slots=True)
class Coverage:
    """What a diagnosis has read, so that "no failure found" says how much it means.

    `unheard`: ranks that belong to the job, but of which nothing was read. `ended`: ranks that said they finished.
    `left_out`: rank and reason of each file that could not be used.
    """

    files: int = 0
    jobs: int = 0
    ranks: set[int] = field(default_factory=set)
    unheard: set[int] = field(default_factory=set)
    step: int | None = None
    ended: set[int] = field(default_factory=set)
    left_out: list[tuple[int, str]] = field(default_factory=list)

    def add(self, job: JobState) -> None:
        """What is known of one job when all its logs are read."""
        heard = {rank for rank, state in job.ranks.items() if rank >= 0 and state.heard}
        self.ranks |= heard
        self.unheard |= set(job.universe) - heard
        steps = [state.step for state in job.ranks.values() if state.step is not None]
        self.step = max([*steps, *([] if self.step is None else [self.step])], default=None)

    def text(self) -> str:
        """One line for people."""
        ended = sorted(rank for rank in self.ended if rank >= 0)
        parts = [
            f"{self.files} file{'' if self.files == 1 else 's'}" + (f" of {self.jobs} jobs" if self.jobs > 1 else ""),
            rank_words(sorted(self.ranks)) if self.ranks else "no rank known",
            f"last step {self.step}" if self.step is not None else "no step seen",
            "no end line seen" if not self.ended else f"end line seen{f' ({rank_words(ended)})' if ended else ''}",
        ]
        said = [f"Read: {', '.join(parts)}."]
        files = [(f"{rank_words([rank])}, " if rank >= 0 else "") + why.split(";")[0] for rank, why in self.left_out]
        more = f"; and {len(files) - MOST_NAMED} more" if len(files) > MOST_NAMED else ""
        said += [f"Left out, so nothing is known of it: {'; '.join(files[:MOST_NAMED])}{more}."] if files else []
        silent = self.unheard - {rank for rank, _ in self.left_out}
        said += [f"Nothing was read of {rank_words(sorted(silent))}."] if silent else []
        return one_line(" ".join([*said, "Logs without stacks or times cannot show a silent hang."]))


class Diagnosis:
    """Finished logs of one or more jobs. `clock`: only for the year of pasted lines that carry none.

    `coverage`: what the last call of `paths` has read. `progress` is told how many bytes of how many have been read.
    """

    def __init__(
        self, catalog: Catalog, *, clock: Clock | None = None, progress: Callable[[int, int], None] | None = None
    ) -> None:
        self._progress, self._done, self._total = progress, 0, 0
        self._catalog, self._clock = catalog, clock or SystemClock()
        logs = [s for s in catalog.signals.values() if s.kind == "log"]
        self._scanner = Scanner(logs, choose_engine())
        self._quiet = frozenset(s.id for s in logs if s.role in QUIET_ROLES)
        self.coverage = Coverage()

    def paths(self, paths: Sequence[str], stdin: BinaryIO) -> list[Verdict]:
        """The verdicts on all logs that `paths` name ("-": `stdin`), job by job. SourceError: unusable input."""
        logs = find(paths, stdin)
        self._done, self._total = 0, sum(each.size for each in logs)
        chunk = min(max(self._total // READS, SMALLEST), LARGEST)
        self.coverage = covered = Coverage()
        jobs: dict[str, list[Told]] = {}
        for each in logs:
            try:
                jobs.setdefault(redact_name(each.found.job), []).append(self._read(each, chunk))
            except SourceError as error:
                if len(logs) == 1 or each.named:
                    raise
                covered.left_out.append((each.found.rank, str(error)))
                log.warning("left out: %s", error)
        if len(covered.left_out) == len(logs):
            raise SourceError("; ".join(why for _, why in covered.left_out[:MOST_NAMED]))
        covered.files, covered.jobs = len(logs) - len(covered.left_out), len(jobs)
        return [verdict for name, told in jobs.items() for verdict in self._job(name, told)]

    # --- one file ---------------------------------------------------------------------------------------------------

    def _read(self, source: Finished, chunk: int) -> Told:
        told = Told(source)
        stream = Stream(self._scanner, str(source.found.path), source.found.rank)
        with source.open() as (file, told.size):
            ends = []
            offset = 0
            while data := file.read(chunk):
                told.place(stream.feed((offset + len(data)) * PLACE, offset, data), offset)
                offset += len(data)
                ends.append(offset - 1)
                self._done += len(data)
                if self._progress is not None:
                    self._progress(min(self._done, self._total), self._total)
            told.place(stream.flush(offset * PLACE), offset)
            self._mark(told)
            if told.size <= LARGEST_DUMP:
                file.seek(0)
                told.dumps = dumps(file.read().decode("utf-8", "replace"), told.rank, str(source.found.path))
            places = {place for place, event in told.events if not isinstance(event, Activity | Joined)}
            told.stamps = list(_stamps(file, sorted(places.union(ends))))
        return told

    def _mark(self, told: Told) -> None:
        """Note what helps to place a file without timestamps among the others, and leave out what tells nothing."""
        active = {event.rank for _, event in told.events if isinstance(event, Activity)}
        if active - {UNKNOWN_RANK}:  # bytes between the lines of known ranks are nobody's sign of life
            told.events = [e for e in told.events if not (isinstance(e[1], Activity) and e[1].rank == UNKNOWN_RANK)]
        starting = True
        for place, event in told.events:
            if not isinstance(event, Hit):
                starting = starting and isinstance(event, Activity | Joined)
                continue
            signal = self._catalog.signals[event.signal]
            starting = starting and (signal.phase in STARTING or signal.role in QUIET_ROLES)
            told.started = place + 1 if starting else told.started
            if signal.phase == "end":
                told.ended = True
                self.coverage.ended.add(event.rank)
            if signal.role == "collateral" and not event.handled:
                told.stopped.append(place)
            elif signal.role == "progress":
                told.moves.append(place)
        self._take_last_words(told)

    @staticmethod
    def _take_last_words(told: Told) -> None:
        """An exception of which only the last line is there ended the program if the log ends with it."""
        moved = max(told.moves, default=-1)
        near = told.size - LAST_WORDS
        for number, (place, event) in enumerate(told.events):
            if isinstance(event, Raised) and not event.frames and place > max(moved, near) and not told.ended:
                told.events[number] = place, replace(event, uncaught=True)

    # --- one job ----------------------------------------------------------------------------------------------------

    def _job(self, name: str, files: Sequence[Told]) -> list[Verdict]:
        self._date(files)
        events = merged(files)
        core = Correlator(self._catalog, name, start_t=events[0].t if events else 0.0, limits=_limits())
        player = Player(core, self._quiet)
        player.play(events)
        outputs = player.end([frames for told in files for frames in told.dumps])
        self.coverage.add(core.job)
        return [_capped(verdict, files) for verdict in Replayed(outputs).verdicts]

    def _date(self, files: Sequence[Told]) -> None:
        """Make the axis of every file: first where whole dates stand, they date the others."""
        reference = max((f.source.changed or 0.0 for f in files), default=0.0) or self._clock.wall()
        known = False
        for told in sorted(files, key=lambda f: not any(s.year is not None for _, s in f.stamps)):
            told.axis = resolve(told.stamps, told.moves, reference)
            if told.axis.times:
                last = told.axis.times[-1]
                reference, known = (max(reference, last) if known else last), True


def _limits() -> Limits:
    return Limits(min_silence=NEVER, budgets=dict.fromkeys(BUDGETS, NEVER))


def _stamps(file: BinaryIO, places: Sequence[int]) -> Iterator[tuple[int, Stamp]]:
    """The timestamps at or nearest above some places (ascending), each once, with the offset of its line."""
    looked = 0  # every line before it has been looked at
    for place in places:
        if place < looked:
            continue
        low = max(looked, place - ABOVE)
        file.seek(low)
        window = file.read(place - low + ABOVE)
        stop = window.find(b"\n", place - low)
        window = window[: stop if stop >= 0 else None]
        cut = window.find(b"\n") if low > looked else -1
        first = cut + 1 if low == looked or cut >= 0 else len(window)  # whole lines only
        looked, end = low + len(window) + 1, len(window)
        for line in reversed(window[first:].split(b"\n")):
            end -= len(line)
            if (stamp := find_stamp(line)) is not None:
                yield low + end, stamp
                break
            end -= 1


def _capped(verdict: Verdict, files: Sequence[Told]) -> Verdict:
    """Nothing is confirmed where the order of events between files, or the rank of a stack, is only a guess."""
    told = {str(f.source.found.path): f for f in files}
    quoted, wanted = verdict["evidence"], verdict["missing"]
    places = [(str(q["source"]), int(q["offset"])) for q in quoted] if isinstance(quoted, list) else []
    missing = []
    if len(files) > 1 and not all(source not in told or told[source].knows(offset) for source, offset in places):
        missing.append({"fact": "the order of the ranks' errors", "how": STAMP})
    if any(source.endswith(BY_ORDER) for source, _ in places):
        missing.append({"fact": "which rank each of the stacks belongs to", "how": NAME})
    if verdict["certainty"] != "confirmed" or not missing:
        return verdict
    return {**verdict, "certainty": "likely", "missing": [*(wanted if isinstance(wanted, list) else []), *missing]}
