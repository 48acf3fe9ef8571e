"""The correlator: events of one job in, incidents and requests for evidence out.

Theory of operation
- Events only update state and mark rules dirty. Dirty rules are judged at the end of each batch; rules about time at
  the tick. A batch without a hit judges nothing.
- Silence beyond `suspicion` asks for evidence (cheap, with back-off) and tells nobody.
- An incident opens when its explanation has settled; it keeps its key while the explanation improves.
- The same events in the same batches give the same outputs: no clock, no chance, no I/O in here.
"""

from collections.abc import Iterable, Mapping
from typing import assert_never

from denpexd.core import cadence
from denpexd.core.events import (
    Activity,
    Attempt,
    Blind,
    Closed,
    Event,
    Exit,
    Fact,
    Frames,
    Hit,
    Joined,
    Opened,
    Output,
    Raised,
    Tick,
    Updated,
    Want,
)
from denpexd.core.explain import verdict
from denpexd.core.incident import (
    DEGRADATION_OVER,
    QUIET,
    Incident,
    best,
    due,
    essence,
    make_key,
    superseded,
)
from denpexd.core.index import Index
from denpexd.core.intake import Intake
from denpexd.core.match import Candidate, candidate
from denpexd.core.rule import Catalog
from denpexd.core.settling import Moment, comes_again, moved_on, ready
from denpexd.core.state import JobState

OUTSIDE = ("oom_killed", "gpu_memory", "told_to_stop")
FACT_OF = {"attempt_failed": "restarted"}
FIELD_FACTS = ("pending", "mismatch", "differs", "behind", "not_in_collective", "fewer_steps")
STATED_FACTS = (
    "stated",
    "stated_odd",
    "stated_differs",
    "stated_same",
    "missing_rank",
    "setting_odd",
    "settings_differ",
    "several_nodes",
)
WAIT_FACTS = (
    *("no_report", "failed_itself", "left_first"),
    "timed_out",
    "reported",
    "worked_on",
    "unreported",
    "named_peer",
    "missing_rank",
    *OUTSIDE,
)
STACK_FACTS = ("frame", "odd_stack", "busy", "mismatch", "differs", "missing_rank")
PHASE_FACTS = ("phase", "phase_alone", "fewer_steps", "ended", "overlong", "complete")
NUMBER_FACTS = ("metric_spread", "metric_odd", "nonfinite")  # of single lines
PACE_FACTS = ("slow", "throughput", "spike", "overlong")  # of many
END_FACTS = (
    "exit",
    "gone",
    "raised",
    "ended",
    "fewer_steps",
    "complete",
    "unreported",
    *OUTSIDE,
    "failed_itself",
    "left_first",
)
BACK_OFF = (5.0, 15.0, 30.0, 60.0, 120.0, 300.0)


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
        self.incidents: dict[str, Incident] = {}  # "stop" or the id of a degradation
        self.fingerprints: dict[str, int] = {}
        self.suspected = 0
        self.held: set[str] | None = None  # ids of signals that held for some rank at some time, where somebody asks
        self.use(catalog)
        self._stops = 0
        self._news_t = float("-inf")
        self._measured = -1  # the newest number that was judged
        self._looks = 0
        self._next_look = float("-inf")
        self._matched_since: dict[str, float] = {}
        self._adopted: dict[str, Mapping[str, object]] = {}
        self._ending = False
        self._ended: Incident | None = None  # the last stop that is over
        self._dismissed: int | None = None  # movements of the job when a stop was closed by hand

    def use(self, catalog: Catalog) -> None:
        """Judge by this catalogue from now on; what was seen stays known, under the ids that still exist."""
        self.catalog = catalog
        self._intake = Intake(catalog, self.job)
        self._below = superseded(catalog.rules)
        self._index = Index(catalog)
        self._live: dict[str, Candidate] = {}
        self._dirty = set(catalog.rules)

    def finish(self, now: float) -> list[Output]:
        """Nothing more will be observed: what is explained but has not settled is said now."""
        self._ending = True
        return self.feed([Tick(now)])

    # --- restart ----------------------------------------------------------------------------------------------------

    def restore(self, journal: Iterable[Event], open_verdicts: Iterable[Mapping[str, object]], now: float) -> None:
        """Go on after a restart: take in what was known, keep the keys of incidents that are still open.

        Nothing is said about the past: what it led to was said (or is in the outbox) already. Silence while nobody
        looked proves nothing.
        """
        self.feed(journal)
        for verdict_ in open_verdicts:
            rule = self.catalog.rules.get(str(verdict_["failure"]))
            stop = self.incidents.get("stop")
            explains = stop is not None and stop.candidate.rule is rule
            self._adopted["stop" if rule is None or rule.stops or explains else rule.id] = verdict_
        for slot, incident in list(self.incidents.items()):
            known = self._adopted.pop(slot, None)
            if known is None:
                del self.incidents[slot]
                continue
            incident.key, incident.revision = str(known["key"]), _revision(known)
            incident.opened_t = float(str(known["opened_t"]))
        self._stops = max(self._stops, 1)
        self.now = max(self.now, now)
        self.feed([Blind(now, now)])

    def _close_orphans(self, out: list[Output]) -> None:
        """Incidents of before the restart whose evidence is no longer known end when training goes on."""
        for slot, known in list(self._adopted.items()):
            since = self.job.blind_until + max(2.0, 2 * (self.job.usual or 0.0))
            if self.job.moved_t is not None and self.job.moved_t > since:
                del self._adopted[slot]
                change = {"state": "closed", "event": "closed", "revision": _revision(known) + 1, "updated_t": self.now}
                out.append(Closed({**known, **change}))

    # --- feeding ----------------------------------------------------------------------------------------------------

    def feed(self, events: Iterable[Event]) -> list[Output]:
        """One batch: everything that was read or answered at once, in order. Returns what follows from it."""
        out: list[Output] = []
        events = list(events)
        loud = {e.rank for e in events if isinstance(e, Hit | Raised | Frames) and self._remarkable(e)}
        for event in events:
            self.job.seq += 1
            self.now = max(self.now, event.t)
            self._take(event, out)
            if isinstance(event, Activity) and event.rank not in loud:
                self._intake.ordinary(event)
        if self._dirty:
            self._judge(self._dirty)
            self._dirty = set()
            self._speak(out, at_tick=False)
        return out

    def _remarkable(self, event: Hit | Raised | Frames) -> bool:
        """Output that may be about a failure; all other output shows that the rank lives."""
        if not isinstance(event, Hit):
            return True
        signal = self.catalog.signals.get(event.signal)
        return signal is None or signal.role not in ("progress", "phase", "config", "handled", "advice", "device")

    def _take(self, event: Event, out: list[Output]) -> None:
        match event:
            case Activity():
                self._intake.activity(event)
            case Hit():
                self._hit(event)
            case Raised():
                self._intake.raised(event)
                self._touch(self._index.facts("raised", "gone", "whole_nodes", "gpu_memory"), news=True)
                self._want(out, "process", (event.rank,), "an exception was printed")
            case Frames():
                self._intake.frames(event)
                self._touch(self._index.facts(*STACK_FACTS), news=event.kind == "traceback")
            case Exit():
                if self._intake.exit(event):
                    self._touch({*self._index.facts(*END_FACTS), *self._live}, news=event.code != 0)
            case Fact():
                self._intake.fact(event)
                self._touch(self._index.facts(FACT_OF.get(event.name, event.name), "disk_sleep"), news=False)
            case Joined():
                self._intake.joined(event)
                self._placed_anew()
            case Attempt():
                self._intake.attempt(event)
                self._live.clear()
                self._matched_since.clear()
                self._looks, self._dismissed = 0, None
            case Blind():
                self.job.blind_until = max(self.job.blind_until, event.t)
            case Tick():
                self._tick(out)
            case _:
                assert_never(event)

    def _hit(self, hit: Hit) -> None:
        moves = self.job.moves
        self._intake.hit(hit)
        signal = self.catalog.signals.get(hit.signal)
        if signal is None:
            return
        if signal.role == "progress":
            if self.job.moves > moves:
                self._touch(self._live, news=False)
            return
        if signal.role == "device":
            self._placed_anew()
        elif signal.role == "kernel":
            self._touch(self._index.kernel, news=True)
        told = signal.role not in ("phase", "config") and "metric" not in hit.fields
        self._touch(self._index.signal(hit.signal), news=told)
        if signal.event:
            self._touch(self._index.facts("told_to_stop", "oom_killed", *END_FACTS), news=True)
        if signal.role == "phase":
            self._touch(self._index.facts(*PHASE_FACTS), news=False)
        elif signal.role == "collateral":
            self._touch({*self._index.facts(*WAIT_FACTS), *self._live}, news=True)
        if hit.fields:
            self._touch(self._index.facts(*STATED_FACTS), news=False)
        if hit.fields and signal.role != "config":
            self._touch(self._index.facts(*FIELD_FACTS, *NUMBER_FACTS), news=False)

    def _placed_anew(self) -> None:
        """More is known about who uses which device: lines of the kernel may be about other ranks than we thought."""
        if self.job.devices.lines:
            self._touch(self._index.kernel, news=False)

    def _touch(self, rules: Iterable[str], *, news: bool) -> None:
        before = len(self._dirty)
        self._dirty |= set(rules)
        if news and (len(self._dirty) > before or self._live):
            self._news_t = self.now

    # --- time -------------------------------------------------------------------------------------------------------

    def _tick(self, out: list[Output]) -> None:
        silence = self.job.silence(self.now)
        if self.job.over or (self.job.ended and not any(s.pid for s in self.job.ranks.values())):
            self._looks = 0
        elif silence >= cadence.suspicion(self.limits, self.job.usual):
            self._look(out)
        else:
            self._looks, self._next_look = 0, float("-inf")
        if self.job.numbers_seq != self._measured:
            self._measured = self.job.numbers_seq
            self._dirty |= self._index.facts(*PACE_FACTS)
        timed = self._index.timed if silence >= self.limits.min_silence else set()
        self._judge(timed | set(self._live) | self._dirty)
        self._dirty = set()
        self._speak(out, at_tick=True)
        if self._adopted:
            self._close_orphans(out)

    def _look(self, out: list[Output]) -> None:
        if self.now < self._next_look:
            return
        if self._looks == 0:
            self.suspected += 1
        self._want(out, "stacks", (), f"no progress for {self.job.silence(self.now):.0f} s")
        self._next_look = self.now + BACK_OFF[min(self._looks, len(BACK_OFF) - 1)]
        self._looks += 1

    def _want(self, out: list[Output], kind: str, ranks: tuple[int, ...], why: str) -> None:
        out.append(Want(self.now, kind, tuple(r for r in ranks if r >= 0), why))

    # --- judging ----------------------------------------------------------------------------------------------------

    def _judge(self, rule_ids: Iterable[str]) -> None:
        self.job.memo = {}  # the state stands still: what one rule has asked, the next need not ask again
        try:
            self._judge_each(rule_ids)
            if self.held is not None:
                self.held |= {key[0] for key, answer in self.job.memo.items() if isinstance(key, tuple) and answer}
        finally:
            self.job.memo = None

    def _judge_each(self, rule_ids: Iterable[str]) -> None:
        for rule_id in rule_ids:
            rule = self.catalog.rules.get(rule_id)
            if rule is None:
                continue
            found = candidate(rule, self.catalog.signals, self.job, self.now, self.limits)
            if found is None:
                self._live.pop(rule_id, None)
                self._matched_since.pop(rule_id, None)
                continue
            if rule_id not in self._live:
                self.fingerprints[rule_id] = self.fingerprints.get(rule_id, 0) + 1
            self._matched_since.setdefault(rule_id, self.now)
            self._live[rule_id] = found

    def _speak(self, out: list[Output], *, at_tick: bool) -> None:
        stops = [c for c in self._live.values() if c.rule.stops]
        # The cause of a degradation can also end the job; then it explains the stop better than what it supersedes.
        ids = {c.rule.id for c in stops}
        said = {(e.source, e.offset) for c in stops for e in c.evidence if e.kind == "log" and e.weight == "fatal"}
        others_too = [c for c in self._live.values() if not c.rule.stops and (c.initiating or _quotes(c, said))]
        stops += [c for c in others_too if ids & self._below[c.rule.id]]
        winner, others = best(stops, self._below)
        self._speak_stop(out, winner, others, at_tick=at_tick)
        if at_tick:
            stop = self.incidents.get("stop")
            explained = self._explained(winner)
            for rule_id in self._degradations():
                if stop is not None and stop.candidate.rule.id == rule_id:
                    continue
                live = rule_id in self._live and rule_id not in explained
                if live or rule_id in self.incidents:
                    self._speak_degradation(out, rule_id, self._live.get(rule_id))

    def _explained(self, winner: Candidate | None) -> set[str]:
        """Degradations that need no incident: what stopped the job, or another degradation, explains them better."""
        told = [i.candidate for slot, i in self.incidents.items() if slot != "stop"]
        by_others = [self._below.get(c.rule.id, ()) for c in (*self._live.values(), *told) if not c.rule.stops]
        return set().union(self._below[winner.rule.id] if winner is not None else (), *by_others)

    def _degradations(self) -> list[str]:
        """Rules of failures that training survives, and those of open incidents that a reload has taken away."""
        known = [rule_id for rule_id, rule in self.catalog.rules.items() if not rule.stops]
        return known + [slot for slot in self.incidents if slot not in ("stop", *known)]

    def _speak_stop(
        self, out: list[Output], winner: Candidate | None, others: list[tuple[str, str]], *, at_tick: bool
    ) -> None:
        incident = self.incidents.get("stop")
        if incident is not None and moved_on(self.job, incident):
            self._close(out, "stop", incident)
            return
        if winner is None:
            return
        if incident is not None and incident.attempt != self.job.attempt:
            if not self._ready(winner):
                return
            self._shut(out, "stop", incident)  # the job was started again, and this failure is of the new attempt
            incident = None
        if incident is None:
            if self._ready(winner):
                self._open(out, "stop", winner, others)
            return
        if essence(winner) == incident.said or not self._may_update(incident, winner, at_tick=at_tick):
            return
        incident.candidate, incident.alternatives = winner, others
        self._update(out, incident)

    def _may_update(self, incident: Incident, winner: Candidate, *, at_tick: bool) -> bool:
        """Late ranks arrive one by one: one update when they have gone quiet, at the latest after CAP."""
        last = max(self._news_t, incident.updated_t)
        return at_tick and (self._ending or self.job.over or due(last - QUIET, self._news_t, self.now))

    def _ready(self, c: Candidate) -> bool:
        """May this candidate open an incident now?"""
        if self._dismissed is not None and self._dismissed == self.job.moves:
            return False
        since = self._matched_since.get(c.rule.id, self.now)
        self.job.memo = {}  # the state stands still
        try:
            return ready(c, self.job, self.limits, Moment(self.now, since, self._news_t, self._ending))
        finally:
            self.job.memo = None

    # --- saying -----------------------------------------------------------------------------------------------------

    def _open(self, out: list[Output], slot: str, c: Candidate, others: list[tuple[str, str]]) -> None:
        known = self._adopted.pop(slot, None) or self._adopted.pop(c.rule.id, None)
        if known is not None:
            self._reopen(out, slot, c, others, known)
            return
        self._stops += 1
        key = make_key(self.job.job, self.job.attempt, self._stops, self.now)
        incident = Incident(key, self.now, c, self.job.attempt, updated_t=self.now, alternatives=others)
        if slot == "stop" and self._ended is not None and comes_again(self._ended, c, self.job, self.now):
            was = self._ended
            incident.key, incident.opened_t, incident.revision = was.key, was.opened_t, was.revision + 1
        incident.found_at_start, incident.said = c.history, essence(c)
        self.incidents[slot] = incident
        out.append(Opened(verdict(incident, self.job, self.now, event="opened", state="open")))

    def _reopen(
        self, out: list[Output], slot: str, c: Candidate, others: list[tuple[str, str]], known: Mapping[str, object]
    ) -> None:
        """The incident was open before a restart: same key, and a message only if there is something new to say."""
        opened = float(str(known["opened_t"]))
        incident = Incident(str(known["key"]), opened, c, self.job.attempt, _revision(known), self.now)
        incident.alternatives = others
        self.incidents[slot] = incident
        said = (
            known["failure"],
            known["certainty"],
            _ranks(known, "initiating_ranks"),
            _ranks(known, "collateral_ranks"),
        )
        incident.said = essence(c)
        if said != incident.said:
            self._update(out, incident)

    def _update(self, out: list[Output], incident: Incident) -> None:
        incident.revision, incident.updated_t = incident.revision + 1, self.now
        incident.said = essence(incident.candidate)
        out.append(Updated(verdict(incident, self.job, self.now, event="updated", state="open")))

    def _shut(self, out: list[Output], slot: str, incident: Incident) -> None:
        incident.revision, incident.updated_t = incident.revision + 1, self.now
        out.append(Closed(verdict(incident, self.job, self.now, event="closed", state="closed")))
        del self.incidents[slot]
        if slot == "stop":
            self._ended = incident

    def _close(self, out: list[Output], slot: str, incident: Incident) -> None:
        self._shut(out, slot, incident)
        if slot == "stop":
            for state in self.job.ranks.values():
                state.forget(self.job.seq)
            self.job.devices.forget(self.job.seq)
            self._live = {k: c for k, c in self._live.items() if not c.rule.stops}
            self._matched_since = {k: t for k, t in self._matched_since.items() if k in self._live}

    def close(self, key: str) -> list[Output]:
        """Close an incident by hand; what stopped training is not told again before training goes on."""
        out: list[Output] = []
        for slot, incident in list(self.incidents.items()):
            if incident.key == key:
                self._close(out, slot, incident)
                self._dismissed = self.job.moves if slot == "stop" else self._dismissed
        return out

    def _speak_degradation(self, out: list[Output], slot: str, c: Candidate | None) -> None:
        incident = self.incidents.get(slot)
        if incident is None:
            if c is None or (c.history and not self.job.recent):
                return
            if self.job.over or self._ending or due(self._matched_since[slot], self._news_t, self.now):
                self._open(out, slot, c, [])
            return
        if c is not None:
            incident.lapsed_since = None
            if essence(c) != incident.said and self.now >= incident.updated_t + QUIET:
                incident.candidate = c
                self._update(out, incident)
            return
        incident.lapsed_since = incident.lapsed_since or self.now
        if self.now - incident.lapsed_since >= DEGRADATION_OVER:
            self._close(out, slot, incident)

    def verdicts(self) -> list[Mapping[str, object]]:
        """The present state of every open incident."""
        return [verdict(i, self.job, self.now, event="updated", state="open") for i in self.incidents.values()]


def _quotes(c: Candidate, said: set[tuple[str, int]]) -> bool:
    """Whether it rests on the very lines that others rest on."""
    return any(e.kind == "log" and (e.source, e.offset) in said for e in c.evidence)


def _revision(verdict_: Mapping[str, object]) -> int:
    return int(str(verdict_.get("revision", 1)))


def _ranks(verdict_: Mapping[str, object], name: str) -> tuple[int, ...]:
    found = verdict_.get(name)
    return tuple(int(r) for r in found) if isinstance(found, list | tuple) else ()
