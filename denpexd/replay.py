"""Recorded jobs in simulated time: the same scanner and the same core as the daemon, without a clock.

Also the runner of the rules' examples, and the reader of finished logs for `diagnose`.
"""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from denpexd.catalog.examples import TimelineEvent
from denpexd.core.cadence import Limits
from denpexd.core.correlate import Correlator
from denpexd.core.events import UNKNOWN_RANK, Closed, Event, Exit, Fact, Joined, Opened, Output, Tick, Updated, Want
from denpexd.core.rule import Catalog
from denpexd.recording import Printed, Recording, from_timeline
from denpexd.scan.engine import EngineFactory
from denpexd.scan.stream import Scanner, Stream

Verdict = Mapping[str, object]
MAX_ANSWERS = 4  # a want that answers itself again and again would never end


@dataclass(slots=True)
class Replayed:
    """What came out of one recording: every output in order, and the last state of each incident."""

    outputs: list[Output] = field(default_factory=list)

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


class Replayer:
    """Compiled once, used for many recordings."""

    def __init__(self, catalog: Catalog, engine: EngineFactory, *, limits: Limits | None = None) -> None:
        self.catalog, self._limits = catalog, limits
        self._scanner = Scanner([s for s in catalog.signals.values() if s.kind == "log"], engine)

    def run(self, recording: Recording) -> Replayed:
        """Play the recording to its end; ticks go on in silence until `observe_until`."""
        start, world = recording.start, recording.world_size
        core = Correlator(self.catalog, recording.name, start_t=start, world_size=world, limits=self._limits)
        done = Replayed()
        streams: dict[tuple[int, str], Stream] = {}
        offsets: dict[tuple[int, str], int] = {}
        if world:
            self._feed(core, recording, [Joined(start, -1, world_size=world)], done)
        for t, group in _steps(recording):
            batch: list[Event] = []
            for line in group:
                if isinstance(line, Printed):
                    where = (line.rank, line.stream)
                    stream = streams.setdefault(where, Stream(self._scanner, _source(line), line.rank))
                    data = line.text.encode(errors="replace") + b"\n"
                    batch += stream.feed(t, offsets.get(where, 0), data)
                    offsets[where] = offsets.get(where, 0) + len(data)
                else:
                    batch.append(line)
            if any(isinstance(e, Tick) for e in group):
                batch = [e for s in streams.values() for e in s.idle(t)] + batch
            self._feed(core, recording, batch, done)
        rest = [event for stream in streams.values() for event in stream.flush(recording.observe_until)]
        self._feed(core, recording, rest, done)
        done.outputs += [o for o in core.finish(recording.observe_until) if not isinstance(o, Want)]
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

    def __call__(self, events: Sequence[TimelineEvent], *, world_size: int, observe_until: float) -> Sequence[Verdict]:
        """Run a rule's example (the Runner of catalog.examples)."""
        return self.run(from_timeline(events, "example", world_size, observe_until)).verdicts


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
    ranks = want.ranks or tuple(sorted({look.rank for look in recording.looks} | {f.rank for f in recording.states}))
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
    return found
