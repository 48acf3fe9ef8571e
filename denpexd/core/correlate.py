"""The correlator: events of one job in, incidents and requests for evidence out.

Theory of operation
- Events only update state and mark rules dirty. Dirty rules are judged at the end of each batch; rules about time at
  the tick. A batch without a hit judges nothing.
- Silence beyond `suspicion` asks for evidence (cheap, with back-off) and tells nobody.
- Of a job with so many ranks that judging takes long, it is judged less often: never more than a share of the time.
- An incident opens when its explanation has settled; it keeps its key while the explanation improves.
- The same events in the same batches give the same outputs: no clock, no chance, no I/O in here.
"""

from collections.abc import Iterable, Mapping
from typing import assert_never

from denpexd.core import cadence, touches
from denpexd.core.asking import Asking
from denpexd.core.candidate import Matches
from denpexd.core.events import Activity, Attempt, Blind, Event, Exit, Fact, Frames, Hit, Joined, Output, Raised, Tick
from denpexd.core.flight import Dump
from denpexd.core.intake import Intake
from denpexd.core.match import candidate
from denpexd.core.rule import Catalog, Rule
from denpexd.core.speaker import STOP_OVER, Speaker
from denpexd.core.state import JobState

# Judging asks questions about single ranks, of which ten thousand have many.
BETWEEN = 10_000  # such questions that batches may ask between two ticks; what is dirty then waits for the tick
AT_ONCE = 10_000  # at one tick: the rest of the rules has its turn at the next ones, and only then is anything said
EACH_SECOND = 40_000  # on the average: a round that asked more is followed by a rest


class Correlator:
    """One job. `start_t` is the time on the events' axis from which silence counts."""

    def __init__(
        self,
        catalog: Catalog,
        job: str,
        *,
        start_t: float = 0.0,
        world_size: int | None = None,
        limits: cadence.Limits | None = None,
    ) -> None:
        self.limits = limits or cadence.Limits()
        self.job = JobState(job, start_t, world_size=world_size)
        self.now = start_t
        self.fingerprints: dict[str, int] = {}
        self.held: set[str] | None = None  # ids of signals that held for some rank at some time, where somebody asks
        self._matches = Matches()
        self._speaker = Speaker(self.job, self.limits, self._matches)
        self.use(catalog)
        self._measured = -1  # the newest number that was judged
        self.asked = 0  # questions about single ranks that were answered in judging so far: what it costs
        self._asked_at_tick = self._asked_before = 0  # of them until the last tick, and until the last round
        self._round: list[str] = []  # rules that the round of judging has yet to come to
        self._rest_until = start_t
        self._asking = Asking()

    @property
    def suspected(self) -> int:
        """Times the job fell silent beyond its rhythm."""
        return self._asking.suspected

    @property
    def is_open(self) -> bool:
        """Whether an incident is open."""
        return self._speaker.is_open

    def use(self, catalog: Catalog) -> None:
        """Judge by this catalogue from now on; what was seen stays known, under the ids that still exist."""
        self.catalog = catalog
        self._intake, self.job.kept = Intake(catalog, self.job), None
        self._index = catalog.index
        self._matches.live = {}
        self._speaker.use(catalog)
        self._dirty = set(catalog.rules)
        self._later = set[str]()  # for the next tick: dumps come by the hundred, and count after some seconds only

    def finish(self, now: float) -> list[Output]:
        """Nothing more will be observed: what is explained but has not settled is said now."""
        self._speaker.ending = True
        return self.feed([Tick(now)])

    # --- restart ----------------------------------------------------------------------------------------------------

    def restore(self, journal: Iterable[Event], open_verdicts: Iterable[Mapping[str, object]], now: float) -> None:
        """Go on after a restart: take in what was known, keep the keys of incidents that are still open.

        Nothing is said about the past: what it led to was said (or is in the outbox) already. Silence while nobody
        looked proves nothing.
        """
        started, self.job.started_t = self.job.started_t, float("-inf")  # history was history for an earlier daemon
        self.feed(journal)
        self.job.started_t = max(started, self.job.started_t)
        self._speaker.adopt(open_verdicts)
        self.now = max(self.now, now)
        self.feed([Blind(now, now)])

    def same_as(self, told: Mapping[str, object]) -> tuple[str, list[Output]] | None:
        """Another daemon tells of this incident: if it is open here, it has that key from now on.

        Returns the key it had so far, and what there is to say beyond what was told; None if it is not open here.
        """
        return self._speaker.same_as(told, self.now)

    def expect(self, told: Mapping[str, object]) -> None:
        """Another daemon has told of this incident, which may open here: then it has that key."""
        self._speaker.expect(told)

    # --- feeding ----------------------------------------------------------------------------------------------------

    def feed(self, events: Iterable[Event]) -> list[Output]:
        """One batch: everything that was read or answered at once, in order. Returns what follows from it."""
        out: list[Output] = []
        events = list(events)
        loud = {e.rank for e in events if isinstance(e, Hit | Raised | Frames) and self._remarkable(e)}
        for event in events:
            self.job.seq += 1
            self.now = max(self.now, event.t)
            if not isinstance(event, Tick):  # time alone changes nothing that was seen
                self.job.kept = None
            self._take(event, out)
            if isinstance(event, Activity) and event.rank not in loud:
                self._intake.ordinary(event)
            if self.job.kept is None:
                self.job.kept = {}
        room = BETWEEN - (self.asked - self._asked_at_tick)
        if self._dirty and not self._round and room > 0:
            rest = sorted(self._dirty)
            self._judge(rest, most=room)
            self._dirty = set(rest)
            if not rest:
                self._speaker.speak(out, self.now, at_tick=False)
        return out

    def _remarkable(self, event: Hit | Raised | Frames) -> bool:
        """Output that may be about a failure; all other output shows that the rank lives."""
        if not isinstance(event, Hit):
            return True
        signal = self.catalog.signals.get(event.signal)
        return signal is None or signal.role not in touches.ORDINARY

    def _take(self, event: Event, out: list[Output]) -> None:
        match event:
            case Activity():
                self._intake.activity(event)
            case Hit():
                self._hit(event)
            case Raised():
                self._intake.raised(event)
                self._touch(self._index.facts("raised", "gone", "whole_nodes", "gpu_memory"), news=True)
                out.append(self._asking.of_raised(self.now, event.rank))
            case Frames():
                self._intake.frames(event)
                self._touch(self._index.facts(*touches.STACK_FACTS), news=event.kind == "traceback")
            case Dump():
                self._intake.dumped(event)
                self._later |= self._index.facts("dump", *touches.COLLECTIVE_FACTS)
            case Exit():
                if self._intake.exit(event):
                    self._touch({*self._index.facts(*touches.END_FACTS), *self._matches.live}, news=event.code != 0)
            case Fact() if event.name == STOP_OVER:
                self._speaker.stop_over(event)
            case Fact():
                self._fact(event)
            case Joined():
                self._intake.joined(event)
                self._placed_anew()
            case Attempt():
                self._last_words(out)
                self._intake.attempt(event)
                self._matches.clear()
                self._speaker.dismissed = None
                self._asking.anew()
            case Blind():
                self.job.blind_until = max(self.job.blind_until, event.t)
            case Tick():
                self._tick(out)
            case _:
                assert_never(event)

    def _fact(self, event: Fact) -> None:
        self._intake.fact(event)
        if event.name == "placed":
            self._placed_anew()
        more = touches.FIELD_FACTS if event.name == "launched_other" else ("disk_sleep",)
        self._touch(self._index.facts(touches.FACT_OF.get(event.name, event.name), *more), news=False)

    def _hit(self, hit: Hit) -> None:
        moves, placed = self.job.moves, len(self.job.processes.ranks)
        self._intake.hit(hit)
        if len(self.job.processes.ranks) > placed and self.job.processes.speakers:
            self._touch({*self._index.facts("raised", "gone"), *self._matches.live}, news=True)
        signal = self.catalog.signals.get(hit.signal)
        if signal is None:
            return
        if signal.role == "progress":
            if self.job.moves > moves:
                self._touch(self._matches.live, news=False)
            return
        if signal.role == "device":
            self._placed_anew()
        elif signal.role == "kernel":
            self._touch(self._index.kernel, news=True)
        told = signal.role not in ("phase", "config", "metric") and "metric" not in hit.fields
        self._touch(self._index.signal(hit.signal), news=told)
        if signal.event:
            self._touch(self._index.facts("told_to_stop", "oom_killed", *touches.END_FACTS), news=True)
        if signal.role == "phase":
            self._touch(self._index.facts(*touches.PHASE_FACTS), news=False)
        elif signal.role == "collateral":
            self._touch({*self._index.facts(*touches.WAIT_FACTS), *self._matches.live}, news=True)
        if hit.fields:
            self._touch(self._index.facts(*touches.STATED_FACTS), news=False)
        if hit.fields and signal.role != "config":
            self._touch(self._index.facts(*touches.FIELD_FACTS, *touches.NUMBER_FACTS), news=False)

    def _last_words(self, out: list[Output]) -> None:
        """The workers are started anew because one failed: what explains it is said now or never."""
        if any(e.event.code not in (0, None) and not e.forced for s in self.job.ranks.values() for e in s.exits):
            self._judge(sorted({*self._dirty, *self._round, *self._matches.live}))
            was, self._speaker.ending = self._speaker.ending, True
            self._speaker.speak(out, self.now, at_tick=False)
            self._speaker.ending = was

    def _placed_anew(self) -> None:
        """More is known about who uses which device: lines of the kernel may be about other ranks than we thought."""
        if self.job.devices.lines:
            self._touch(self._index.kernel, news=False)

    def _touch(self, rules: Iterable[str], *, news: bool) -> None:
        before = len(self._dirty)
        self._dirty |= set(rules)
        if news and (len(self._dirty) > before or self._matches.live):
            self._matches.news_t = self.now

    # --- time -------------------------------------------------------------------------------------------------------

    def _tick(self, out: list[Output]) -> None:
        silence = self.job.silence(self.now)
        slow = not self._matches.live.keys().isdisjoint(self._index.facts("slow"))
        out += self._asking.at(self.now, self.job, self.limits, slow=slow)
        if self.job.numbers_seq != self._measured:
            self._measured = self.job.numbers_seq
            self._dirty |= self._index.facts(*touches.PACE_FACTS)
        if not self._round and (self.now >= self._rest_until or self._speaker.ending):
            timed = self._index.timed if silence >= self.limits.min_silence else set()
            self._round = sorted(timed | set(self._matches.live) | self._dirty | self._later)
            self._dirty, self._later = set(), set()
            self._asked_before = self.asked
        if self._round:
            self._judge(self._round, most=None if self._speaker.ending else AT_ONCE)
            self._rest_until = self.now + (self.asked - self._asked_before) / EACH_SECOND
        self._asked_at_tick = self.asked
        if not self._round:
            self._speaker.speak(out, self.now, at_tick=True)

    # --- judging ----------------------------------------------------------------------------------------------------

    def _judge(self, rules: list[str], most: int | None = None) -> None:
        """Judge these rules, and take them off the list; `most`: questions after which the rest stays there."""
        memo = self.job.memo = {}  # the state stands still: what one rule has asked, the next need not ask again
        self.job.asks_all = self.held is not None
        try:
            while rules and (most is None or len(memo) < most):
                self._judge_one(rules.pop())
            if self.held is not None:
                self.held |= {key[0] for key, answer in memo.items() if isinstance(key, tuple) and answer}
        finally:
            self.asked += len(memo) + len(self.job.ranks)  # all of them are looked through once, whatever is asked
            self.job.memo = None

    def _judge_one(self, rule_id: str) -> None:
        rule = self.catalog.rules.get(rule_id)
        if rule is None:
            return
        found = candidate(rule, self.catalog.signals, self.job, self.now, self.limits)
        if found is None:
            self._matches.live.pop(rule_id, None)
            self._matches.since.pop(rule_id, None)
            return
        if rule_id not in self._matches.live:
            self.fingerprints[rule_id] = self.fingerprints.get(rule_id, 0) + 1
        self._matches.since.setdefault(rule_id, self.now)
        self._matches.live[rule_id] = found

    # --- incidents --------------------------------------------------------------------------------------------------

    def close(self, key: str) -> list[Output]:
        """Close an incident by hand; what stopped training is not told again before training goes on."""
        return self._speaker.close(key, self.now)

    def open_rules(self) -> list[Rule]:
        """The rules that the open incidents are told by now: cheaper than their verdicts."""
        return self._speaker.open_rules()

    def verdicts(self) -> list[Mapping[str, object]]:
        """The present state of every open incident."""
        return self._speaker.verdicts(self.now)
