"""Answers the core's wishes for evidence about the ranks of this node, and watches their processes between wishes."""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from denpexd.clock import Clock
from denpexd.core.events import UNKNOWN_RANK, Event, Exit, Fact, Frames, Joined, Want
from denpexd.errors import EvidenceUnavailable
from denpexd.evidence.cpu_time import CpuTime
from denpexd.evidence.flight_watch import FlightRecorder
from denpexd.evidence.frozen import FrozenRanks, frozen
from denpexd.evidence.looks import Looks
from denpexd.evidence.procs import Processes, RankProcess
from denpexd.evidence.ranks import Claim
from denpexd.evidence.stacks import PySpy
from denpexd.evidence.witness import Witness

log = logging.getLogger(__name__)

_DEADLINE = 15.0
_MOST_CAUSES = 1000
_SHOWN = 4  # of what a dry run would have asked
_SCAN_EVERY = 2.0
_LATE = EvidenceUnavailable(
    "py-spy was not done with all ranks in time", "the node may be overloaded; it is asked again"
)


class Collector:
    """Evidence about one job on one node. `stacks`: "auto" or "off"; `lone`: a job that nothing ties to the watched
    files is taken for theirs, as long as its output goes to no other file. `sources`: further witnesses, by the kind
    of wish that they answer; other kinds are answered by nothing. `active`: "on", "off" (nobody is asked, processes
    are only watched), or "dry-run" (what would have been asked is told instead).

    `counts` holds (kind, outcome) -> number, `seconds` kind -> total time spent; both are for the metrics. Outcomes:
    ok, gone, unavailable, off. Use from one event loop; reading and parsing happen in threads.
    """

    def __init__(
        self,
        processes: Processes,
        clock: Clock,
        *,
        active: str = "on",
        stacks: str = "auto",
        lone: bool = False,
        spy: PySpy | None = None,
        deadline: float = _DEADLINE,
        sources: Mapping[str, Witness] | None = None,
        flight: FlightRecorder | None = None,
    ) -> None:
        self._flight, self._sources = flight, {**(sources or {}), **({"dumps": flight} if flight else {})}
        self._processes, self._clock, self._lone, self._active = processes, clock, lone, active
        self._looks = None if stacks == "off" else Looks(processes, clock, spy or PySpy(), deadline)
        self._known: dict[int, RankProcess] = {}
        self._lost: dict[int, RankProcess] = {}
        self._frozen = FrozenRanks()
        self._said: set[tuple[str, str]] = set()
        self._job: str | None = None  # that writes the watched files
        self._files: dict[Path, int] = {}
        self._sure = False  # such a job has been seen
        self._strangers: list[Claim] = []
        self._next_scan, self._cpu = float("-inf"), CpuTime()
        self._table_lock = asyncio.Lock()
        self.counts: Counter[tuple[str, str]] = Counter()
        self.seconds: dict[str, float] = {"process": 0.0, "stacks": 0.0}

    @property
    def pause(self) -> float:
        """Seconds of the longest look at one process: no look stops it, so it was never stopped for longer."""
        return self._looks.longest if self._looks is not None else 0.0

    @property
    def ranks(self) -> dict[int, RankProcess]:
        """The ranks that lived here when last looked at."""
        return dict(self._known)

    async def attach(self, paths: Iterable[Path]) -> dict[Path, int]:
        """Which rank writes which file (UNKNOWN_RANK: more than one); from then on only that job is spoken of.

        With `lone`, as long as none has been seen to write one, a job whose output goes to no file at all may be it:
        its pipe may end in what is watched.
        """
        watched = list(paths)
        async with self._table_lock:
            try:
                claims = await asyncio.to_thread(self._processes.claims, watched)
            except OSError as error:
                log.warning("the process table cannot be read: %s", error)
                return {}
            ours = {claim.job: claim for claim in claims if claim.ours}
            if not ours and self._sure:
                return dict(self._files)  # it has ended, or its files were renamed: no other takes its place
            if self._job not in ours:
                self._job = max(ours.values(), key=lambda claim: len(claim.files)).job if ours else None
            self._files = ours[self._job].files if self._job is not None else {}
            # Jobs that write the very same files cannot be told apart: the next look says so.
            same = [claim.job for claim in ours.values() if claim.files.keys() == self._files.keys()]
            kept = same or [claim.job for claim in claims if watched and self._lone and not claim.elsewhere]
            self._processes.keep(kept)
            self._strangers = [] if kept else claims
            others = [process for process in self._known.values() if process.job not in kept]
            ended = await asyncio.to_thread(self._processes.gone, others) if self._sure else []
            for process in others:
                if process not in ended:  # the end of a rank is still to be told
                    self._forget(process.rank)
            self._sure = bool(same)
            return dict(self._files)

    async def watch(self) -> list[Event]:
        """To be called about once a second: ranks that came, went, froze or went on since the last call."""
        error = None
        async with self._table_lock:
            events = self._update(await self._look_again())
            if events or self._clock.now() >= self._next_scan:
                found, error = await self._scan()
                events += found
        if error is not None and (("process", error.why) not in self._said):
            events += self._cannot("process", error)
        return events + await self._dumps()

    async def _dumps(self) -> list[Event]:
        """Flight Recorder dumps that have appeared."""
        events = await self._flight.watch(list(self._known.values())) if self._flight else []
        self._count("dumps", "read", len(events))
        return events

    async def collect(self, want: Want) -> list[Event]:
        """What can be seen of the wanted ranks that live here, within the deadline; a Fact names what cannot."""
        if want.kind not in ("stacks", "process", *self._sources):
            return []
        started = self._clock.now()
        async with self._table_lock:
            events = self._update(await self._look_again())
            found, error = await self._scan()
            events += found
        if error is not None:
            events += self._cannot("process", error)
        ranks = set(want.ranks) or self._known.keys() | self._lost.keys()
        here = [self._known[rank] for rank in sorted(ranks & self._known.keys())]
        if want.kind != "process" and self._active != "on":
            events += await self._unasked(want.kind, here)
        elif want.kind in self._sources:
            events += await self._source(want.kind, here)
        else:
            events += await self._stacks(here) if want.kind == "stacks" else self._states(here, events)
            events += self._cpu.facts(process.rank for process in here)
        reported = {event.rank for event in events if isinstance(event, Exit)}
        gone = sorted(ranks & self._lost.keys())
        events += [Exit(self._clock.now(), rank) for rank in gone if rank not in reported]
        self._count(want.kind, "gone", len(gone))
        self.seconds[want.kind] = self.seconds.get(want.kind, 0.0) + self._clock.now() - started
        return events

    async def _look_again(self) -> dict[int, RankProcess | None]:
        known = dict(self._known)
        return await asyncio.to_thread(lambda: {rank: self._processes.again(old) for rank, old in known.items()})

    def _update(self, now: Mapping[int, RankProcess | None]) -> list[Event]:
        """Take over what a second look at known ranks gave."""
        t, events = self._clock.now(), list[Event]()
        for rank, process in now.items():
            if rank not in self._known:
                continue  # found to be gone by a look at its stack meanwhile
            if process is not None:
                self._known[rank] = process
                events += self._frozen.look(t, process)
            else:
                self._lost[rank] = self._forget(rank)
                events.append(Exit(t, rank))
        return events

    def _forget(self, rank: int) -> RankProcess:
        self._frozen.forget(rank)
        return self._known.pop(rank)

    async def _scan(self) -> tuple[list[Event], EvidenceUnavailable | None]:
        """Look for ranks that are new or were replaced by another process; the error says why none can be told."""
        self._next_scan = self._clock.now() + _SCAN_EVERY
        try:
            found = await asyncio.to_thread(self._processes.refresh)
            replaced = [old for p in found if (old := self._known.get(p.rank)) is not None and not p.is_same(old)]
            dead = await asyncio.to_thread(self._processes.gone, replaced)
        except OSError as error:
            return [], EvidenceUnavailable(f"the process table cannot be read: {error.strerror}", "check /proc")
        if len(jobs := sorted({process.job for process in found})) > 1:
            names = ", ".join(job or "unnamed" for job in jobs[:5])
            why = f"{len(jobs)} jobs run on this node ({names}), and no open log file tells which one is meant"
            return [], EvidenceUnavailable(why, "give denpexd the paths of one job's logs")
        events = self._update({process.rank: None for process in dead})
        self._cpu.note(self._clock.now(), found)
        for process in found:
            before = self._known.get(process.rank)
            self._known[process.rank] = process
            if before is None or not process.is_same(before):
                self._lost.pop(process.rank, None)
                t = self._clock.now()
                events += [_joined(t, process), *self._frozen.began(t, process)]
        return events, None if found or self._known else self._processes.unavailable() or self._elsewhere()

    def _elsewhere(self) -> EvidenceUnavailable | None:
        """Ranks live here, but they write to files that are not watched."""
        if not self._strangers:
            return None
        stranger = self._strangers[0]
        job = stranger.job or "unnamed"
        if not stranger.elsewhere:
            return EvidenceUnavailable(
                f"nothing ties the ranks of this node (job {job}) to the watched files: they count as somebody else's",
                "if this node or container runs no other job, set evidence.processes: any",
            )
        return EvidenceUnavailable(
            f"the ranks of this node (job {job}) write to {stranger.elsewhere}, "
            "which is not watched, so they count as a job of somebody else",
            "give denpexd that path too if it is the same job",
        )

    def _states(self, here: list[RankProcess], said: list[Event]) -> list[Event]:
        """That these ranks live and which of them are frozen, without what was `said` just now."""
        t = self._clock.now()
        self._count("process", "ok", len(here))
        joined = {event.rank for event in said if isinstance(event, Joined)}
        facts = {event.rank for event in said if isinstance(event, Fact)}
        stopped = [p for p in here if p.rank in self._frozen and p.rank not in facts]
        return [*(_joined(t, p) for p in here if p.rank not in joined), *(frozen(t, p) for p in stopped)]

    async def _unasked(self, kind: str, here: list[RankProcess]) -> list[Event]:
        """What stands in the place of an answer when nobody may be asked."""
        self._count(kind, "off", 1)
        if self._active == "off":
            return self._cannot(kind, EvidenceUnavailable("nobody was asked: evidence.active is off", "set it to on"))
        try:
            source = self._sources.get(kind, self._looks)
            planned = await source.plan(here) if source is not None else []
        except EvidenceUnavailable as error:
            return self._cannot(kind, error)
        if not planned:
            return []
        more = f", and {len(planned) - _SHOWN} more" if len(planned) > _SHOWN else ""
        why = f"dry run: would have asked {', '.join(planned[:_SHOWN])}{more}"
        return self._cannot(kind, EvidenceUnavailable(why, "set evidence.active: on"))

    async def _source(self, kind: str, here: list[RankProcess]) -> list[Event]:
        try:
            events = await self._sources[kind].collect(here)
        except EvidenceUnavailable as error:
            self._count(kind, "unavailable", 1)
            return self._cannot(kind, error)
        self._count(kind, "ok", 1)
        return events

    async def _stacks(self, here: list[RankProcess]) -> list[Event]:
        """One look at every rank; those that are not done by the deadline are given up."""
        if self._looks is None:
            self._count("stacks", "off", 1)
            off = EvidenceUnavailable("stacks are switched off", "set evidence.stacks: auto")
            return self._cannot("stacks", off, [process.rank for process in here])
        answers = await self._looks.at(here)
        events: list[Event] = []
        causes: dict[tuple[str, str], list[int]] = {}
        for process in here:
            answer = answers.get(process.rank, _LATE)
            if isinstance(answer, Frames):
                events.append(answer)
                self._count("stacks", "ok", 1)
            elif answer is None:
                events += self._update({process.rank: None})
            else:
                causes.setdefault((answer.why, answer.how), []).append(process.rank)
                self._count("stacks", "unavailable", 1)
        for (why, how), ranks in causes.items():
            events += self._cannot("stacks", EvidenceUnavailable(why, how), ranks)
        return events

    def _cannot(self, kind: str, error: EvidenceUnavailable, ranks: Sequence[int] = ()) -> list[Event]:
        """The gap as an event; logged once for each cause."""
        if (kind, error.why) not in self._said and len(self._said) < _MOST_CAUSES:
            self._said.add((kind, error.why))
            log.warning("no evidence (%s): %s", kind, error)
        fields = {"kind": kind, "why": error.why, "how": error.how}
        if ranks:
            fields["ranks"] = ",".join(map(str, ranks))
        rank = ranks[0] if len(ranks) == 1 else UNKNOWN_RANK
        return [Fact(self._clock.now(), rank, "evidence_unavailable", fields, source="process", text=error.why)]

    def _count(self, kind: str, outcome: str, number: int) -> None:
        if number:
            self.counts[kind, outcome] += number


def _joined(t: float, process: RankProcess) -> Joined:
    return Joined(t, process.rank, process.node, process.pid, process.world_size)
