"""Recorded jobs in simulated time: the same scanner and the same core as the daemon, without a clock.

Also the runner of the rules' examples, and the player of finished logs for `diagnose`.
"""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import floor

from denpexd.catalog.examples import timeline
from denpexd.core.cadence import Limits
from denpexd.core.correlate import Correlator
from denpexd.core.events import (
    UNKNOWN_RANK,
    Activity,
    Attempt,
    Closed,
    Event,
    Exit,
    Fact,
    Frames,
    Hit,
    Joined,
    Opened,
    Output,
    Tick,
    Updated,
    Want,
)
from denpexd.core.rule import Catalog, Example, Signal
from denpexd.merge import SETTLED
from denpexd.recording import Printed, Recording, from_timeline
from denpexd.scan.engine import EngineFactory
from denpexd.scan.scanner import Scanner
from denpexd.scan.stream import Stream

Verdict = Mapping[str, object]
LOOKS = (1.0, 7.0)  # a pasted stack stands for two equal looks: nobody pastes the stack of a job that moves
MAX_ANSWERS = 4  # a want that answers itself again and again would never end

THIN_AFTER, THIN = 12.0, 10.0


@dataclass(slots=True)
class Replayed:
    """What came out of one recording: every output in order, every rule that ever matched, every signal that held."""

    outputs: list[Output] = field(default_factory=list)
    matched: frozenset[str] = frozenset()
    held: frozenset[str] = frozenset()

    @property
    def verdicts(self) -> list[Verdict]:
        """The final verdict of each incident; root cause before consequence, then by opening time."""
        final: dict[str, Verdict] = {}
        for output in self.outputs:
            if isinstance(output, Opened | Updated | Closed):
                final[str(output.verdict["key"])] = output.verdict
        return sorted(final.values(), key=_order)


def _order(verdict: Verdict) -> tuple[int, float]:
    stops = 0 if verdict["collateral_ranks"] or verdict["hang"] or verdict["initiating_ranks"] else 1
    return stops, float(str(verdict["opened_t"]))


@dataclass(frozen=True, slots=True)
class Heard:
    """A recording as the core is told it, batch by batch."""

    recording: Recording
    batches: Sequence[Sequence[Event]]

    def thinned(self) -> "Heard":
        """With a tick every ten seconds where nothing has happened for long: a few times cheaper, nearly as exact."""
        kept: list[Sequence[Event]] = []
        news = 0.0
        for batch in self.batches:
            if len(batch) != 1 or not isinstance(batch[0], Tick):
                news = max((event.t for event in batch), default=news)
            elif batch[0].t > news + THIN_AFTER and batch[0].t % THIN:
                continue
            kept.append(batch)
        return Heard(self.recording, kept)


class Replayer:
    """Compiled once, used for many recordings."""

    def __init__(self, catalog: Catalog, engine: EngineFactory, *, limits: Limits | None = None) -> None:
        self.catalog, self._limits = catalog, limits
        self._scanner = Scanner([s for s in catalog.signals.values() if s.kind == "log"], engine)

    def run(self, recording: Recording) -> Replayed:
        """Play the recording to its end; ticks go on in silence until `observe_until`."""
        return self.judge(self.hear(recording))

    def hear(self, recording: Recording, changed: Mapping[str, Signal] | None = None) -> Heard:
        """Scan it. `changed`: signals that have other exceptions than those of the catalogue, but the same pattern."""
        if recording.told is not None:
            return Heard(recording, recording.told.batches)
        scanner = self._scanner.with_signals(changed) if changed else self._scanner
        batches: list[list[Event]] = []
        streams: dict[tuple[int, str], Stream] = {}
        offsets: dict[tuple[int, str], int] = {}
        if recording.world_size:
            batches.append([Joined(recording.start, -1, world_size=recording.world_size)])
        for t, group in _steps(recording):
            batch: list[Event] = []
            for line in group:
                if isinstance(line, Printed):
                    where = (line.rank, line.stream)
                    stream = streams.setdefault(where, Stream(scanner, _source(line), line.rank))
                    data = line.text.encode(errors="replace") + b"\n"
                    batch += stream.feed(t, offsets.get(where, 0), data)
                    offsets[where] = offsets.get(where, 0) + len(data)
                else:
                    batch.append(line)
            if any(isinstance(e, Tick) for e in group):
                batch = [e for s in streams.values() for e in s.idle(t)] + batch
            batches.append(batch)
        batches.append([event for stream in streams.values() for event in stream.flush(recording.observe_until)])
        return Heard(recording, batches)

    def judge(self, heard: Heard, catalog: Catalog | None = None) -> Replayed:
        """What the core says to it, by this catalogue or the replayer's own."""
        recording = heard.recording
        start, world, catalog = recording.start, recording.world_size, catalog or self.catalog
        told = recording.told
        limits = told.limits if told is not None else self._limits
        core = Correlator(catalog, recording.name, start_t=start, world_size=world, limits=limits)
        done, core.held = Replayed(), set()
        if told is not None:
            for _, known in itertools.groupby(told.before, key=lambda event: event.t):
                core.feed(known)  # what followed from it was said before the recording begins
        for batch in heard.batches:
            self._feed(core, recording, batch, done)
        if told is None or told.finished:
            done.outputs += [o for o in core.finish(recording.observe_until) if not isinstance(o, Want)]
        if told is not None and told.before:  # an incident may have begun before the recording does
            said = {str(verdict["key"]) for verdict in done.verdicts}
            done.outputs += [Updated(v) for v in core.verdicts() if str(v["key"]) not in said]
        done.matched, done.held = frozenset(core.fingerprints), frozenset(core.held)
        return done

    def _feed(self, core: Correlator, recording: Recording, batch: Sequence[Event], done: Replayed) -> None:
        for _ in range(MAX_ANSWERS):
            outputs = core.feed(batch)
            done.outputs += [o for o in outputs if not isinstance(o, Want)]
            wants = [o for o in outputs if isinstance(o, Want)]
            if not wants:
                return
            batch = [event for want in wants for event in _answers(want, recording)]
            if not batch:
                return

    def play(self, example: Example, changed: Mapping[str, Signal] | None = None) -> Heard:
        """The timeline of a rule's example, scanned (with `judge` the Stage of catalog.trials)."""
        events = timeline(example)
        return self.hear(from_timeline(events, "example", example.world_size, example.observe_until), changed)


def _source(line: Printed) -> str:
    return f"rank{line.rank}.{line.stream}" if line.rank >= 0 else f"job.{line.stream}"


def _steps(recording: Recording) -> Iterator[tuple[float, list[Printed | Event]]]:
    """Everything that happens, grouped by time; the tick of a second comes after what was printed in it."""
    happens: list[tuple[float, int, Printed | Event]] = [(p.t, 0, p) for p in recording.lines]
    happens += [(e.t, 1, e) for e in recording.exits]
    seconds = range(int(recording.start) + 1, int(recording.observe_until) + 1)
    happens += [(float(s), 2, Tick(float(s))) for s in seconds]
    happens.append((recording.observe_until, 2, Tick(recording.observe_until)))
    happens.sort(key=lambda h: (h[0], h[1]))
    for t, group in itertools.groupby(happens, key=lambda h: h[0]):
        yield t, [event for _, _, event in group]


def _answers(want: Want, recording: Recording) -> list[Event]:
    """What the processes would have answered at that time."""
    if want.kind == "dumps":
        return []  # those that were recorded come with the stacks
    ranks = want.ranks or tuple(recording.asked())
    found: list[Event] = []
    for rank in ranks:
        if recording.exited(rank, want.t) or recording.exited(UNKNOWN_RANK, want.t):
            found.append(Exit(want.t, rank, None))
            continue
        found += [
            Fact(want.t, f.rank, f.name, f.fields, f.source, 0, f.text)
            for f in recording.states
            if f.rank == rank and f.t <= want.t
        ]
        if want.kind == "stacks":
            found += [replace(look, t=want.t) for look in recording.answer(rank, want.t)]
            found += [replace(dump, t=want.t) for dump in recording.dumped(rank, want.t)]
    return found


class Player:
    """Plays events to a correlator as the daemon would have: a batch a second, ticks in between where they matter.

    `quiet`: ids of signals after which nothing has to settle.
    """

    def __init__(self, core: Correlator, quiet: frozenset[str]) -> None:
        self._core, self._quiet = core, quiet
        self._outputs: list[Output] = []
        self._now, self._news = 0.0, float("-inf")

    def play(self, events: Sequence[Event]) -> None:
        """Feed events that stand in the order of their times."""
        if events:
            self._now = float(floor(events[0].t))
        for second, group in itertools.groupby(events, key=lambda e: floor(e.t)):
            self._pass(float(second))
            for new, part in itertools.groupby(group, key=lambda e: isinstance(e, Attempt)):
                if new:
                    self._pass(self._now + SETTLED)  # what the attempt before ended with, before it is forgotten
                self._feed(list(part))
            self._tick(max(self._now, second + 1.0))

    def end(self, looks: Sequence[Frames]) -> list[Output]:
        """Everything the core has said, to the end of all. `looks`: stacks of the job as it stood at the end."""
        self._pass(self._now + SETTLED)
        if looks or self._dumped():
            self._core.limits.min_silence = Limits().min_silence
            start = max(self._now, 0.0)
            for after in LOOKS if looks else ():
                self._feed([replace(frames, t=start + after) for frames in looks])
            self._news = start + Limits().min_silence
            self._pass(self._news + SETTLED)
        self._say(self._core.finish(self._now + 1.0))
        return self._outputs

    def _dumped(self) -> bool:
        """Whether the last that was heard of the job is where it stood: nobody dumps the stacks of a job that moves."""
        moved = self._core.job.moved_t if self._core.job.moved_t is not None else float("-inf")
        seen = [s.snapshots.get("faulthandler") for r, s in self._core.job.ranks.items() if r >= 0]
        return any(dump is not None and dump.frames.t > moved for dump in seen)

    def _feed(self, batch: Sequence[Event]) -> None:
        self._say(self._core.feed(batch))
        if any(self._is_news(event) for event in batch):
            self._news = max(self._now, batch[-1].t)

    def _is_news(self, event: Event) -> bool:
        return not isinstance(event, Activity | Joined) and not (isinstance(event, Hit) and event.signal in self._quiet)

    def _pass(self, until: float) -> None:
        """The seconds up to a time, as long as something may still settle."""
        while self._now + 1.0 <= min(until, self._news + SETTLED):
            self._tick(self._now + 1.0)

    def _tick(self, t: float) -> None:
        self._now = t
        self._say(self._core.feed([Tick(t)]))

    def _say(self, outputs: Iterable[Output]) -> None:
        self._outputs += [output for output in outputs if not isinstance(output, Want)]
