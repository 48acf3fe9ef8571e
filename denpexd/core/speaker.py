"""What is said of a job: which matches become incidents, how those change, and when they are over."""

from collections.abc import Iterable, Mapping

from denpexd.core import cadence
from denpexd.core.candidate import Candidate, Matches
from denpexd.core.events import UNKNOWN_RANK, Closed, Fact, Opened, Output, Updated
from denpexd.core.explain import verdict
from denpexd.core.incident import (
    DEGRADATION_OVER,
    QUIET,
    Incident,
    Moment,
    best,
    comes_again,
    due,
    essence,
    make_key,
    moved_on,
    ready,
    told_essence,
    told_over,
    told_revision,
    told_stopped,
)
from denpexd.core.rule import Catalog, Rule
from denpexd.core.state import JobState

STOP_OVER = "stop_over"  # name of the fact that an earlier daemon has closed a stop


class Speaker:
    """The incidents of one job. What matches is for the correlator to find; here is decided what of it is said."""

    def __init__(self, job: JobState, limits: cadence.Limits, matches: Matches) -> None:
        self._job = job
        self._limits = limits
        self._matches = matches
        self.ending = False  # nothing more will be observed
        self.dismissed: int | None = None  # movements of the job when a stop was closed by hand
        self._now = job.started_t
        self._incidents: dict[str, Incident] = {}  # "stop" or the id of a degradation
        self._stops = 0
        self._adopted: dict[str, Mapping[str, object]] = {}
        self._ended: Incident | None = None  # the last stop that is over

    @property
    def is_open(self) -> bool:
        """Whether an incident is open."""
        return bool(self._incidents)

    def use(self, catalog: Catalog) -> None:
        """Speak of these rules from now on; incidents that are open stay so."""
        self._rules = catalog.rules
        self._below = catalog.below

    # --- restart ----------------------------------------------------------------------------------------------------

    def adopt(self, open_verdicts: Iterable[Mapping[str, object]]) -> None:
        """Keep the keys of incidents that were open before a restart, and drop those that were not."""
        for verdict_ in open_verdicts:
            rule = self._rules.get(str(verdict_["failure"]))
            stop = self._incidents.get("stop")
            explains = stop is not None and stop.candidate.rule is rule
            self._adopted["stop" if rule is None or rule.stops or explains else rule.id] = verdict_
        for slot, incident in list(self._incidents.items()):
            known = self._adopted.pop(slot, None)
            if known is None:
                del self._incidents[slot]
                continue
            incident.key, incident.revision = str(known["key"]), told_revision(known)
            incident.opened_t, incident.stopped_t = float(str(known["opened_t"])), told_stopped(known)
        self._stops = max(self._stops, 1)

    def same_as(self, told: Mapping[str, object], now: float) -> tuple[str, list[Output]] | None:
        """See `Correlator.same_as`."""
        self._now = now
        incident, key = self._incidents.get(self._slot(told)), str(told["key"])
        if incident is None:
            return None
        was, incident.key = incident.key, key
        incident.revision = max(incident.revision, told_revision(told))
        out: list[Output] = []
        if was != key:
            incident.opened_t = float(str(told["opened_t"]))
            if told_essence(told) != essence(incident.candidate):
                self._update(out, incident)
        return was, out

    def expect(self, told: Mapping[str, object]) -> None:
        """See `Correlator.expect`."""
        self._adopted[self._slot(told)] = told

    def _slot(self, told: Mapping[str, object]) -> str:
        rule = self._rules.get(str(told["failure"]))
        return "stop" if rule is None or rule.stops else rule.id

    def _close_orphans(self, out: list[Output]) -> None:
        """Incidents of before the restart whose evidence is no longer known end when training goes on."""
        for slot, known in list(self._adopted.items()):
            began = max(self._job.blind_until, float(str(known["opened_t"])))
            since = began + max(2.0, 2 * (self._job.usual or 0.0))
            if self._job.moved_t is not None and self._job.moved_t > since:
                del self._adopted[slot]
                out.append(Closed(told_over(known, self._now)))

    # --- what to say ------------------------------------------------------------------------------------------------

    def speak(self, out: list[Output], now: float, *, at_tick: bool) -> None:
        """Say what follows from the present matches; degradations and what a restart left behind only at a tick."""
        self._now = now
        stops = [c for c in self._matches.live.values() if c.rule.stops]
        # The cause of a degradation can also end the job; then it explains the stop better than what it supersedes.
        ids = {c.rule.id for c in stops}
        said = {(e.source, e.offset) for c in stops for e in c.evidence if e.kind == "log" and e.weight == "fatal"}
        others_too = [c for c in self._matches.live.values() if not c.rule.stops and (c.initiating or _quotes(c, said))]
        stops += [c for c in others_too if ids & self._below[c.rule.id]]
        winner, others = best(stops, self._below)
        self._speak_stop(out, winner, others, at_tick=at_tick)
        if at_tick:
            stop = self._incidents.get("stop")
            explained = self._explained(winner)
            for rule_id in self._degradations():
                if stop is not None and stop.candidate.rule.id == rule_id:
                    continue
                live = rule_id in self._matches.live and rule_id not in explained
                if live or rule_id in self._incidents:
                    self._speak_degradation(out, rule_id, self._matches.live.get(rule_id))
            self._close_orphans(out)

    def _explained(self, winner: Candidate | None) -> set[str]:
        """Degradations that need no incident: what stopped the job, or another degradation, explains them better."""
        told = [i.candidate for slot, i in self._incidents.items() if slot != "stop"]
        by_others = [self._below.get(c.rule.id, ()) for c in (*self._matches.live.values(), *told) if not c.rule.stops]
        return set().union(self._below[winner.rule.id] if winner is not None else (), *by_others)

    def _degradations(self) -> list[str]:
        """Rules of failures that training survives, and those of open incidents that a reload has taken away."""
        known = [rule_id for rule_id, rule in self._rules.items() if not rule.stops]
        return known + [slot for slot in self._incidents if slot not in ("stop", *known)]

    def _speak_stop(
        self, out: list[Output], winner: Candidate | None, others: list[tuple[str, str]], *, at_tick: bool
    ) -> None:
        incident = self._incidents.get("stop")
        if incident is not None and moved_on(self._job, incident):
            self._close(out, "stop", incident)
            return
        if winner is None:
            return
        if incident is not None and incident.attempt != self._job.attempt:
            if not self._ready(winner) or _only_cannot_meet(winner, self._job):
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
        last = max(self._matches.news_t, incident.updated_t)
        return at_tick and (self.ending or self._job.over or due(last - QUIET, self._matches.news_t, self._now))

    def _ready(self, c: Candidate) -> bool:
        """May this candidate open an incident now?"""
        if self.dismissed is not None and self.dismissed == self._job.moves:
            return False
        since = self._matches.since.get(c.rule.id, self._now)
        self._job.memo = {}  # the state stands still
        try:
            return ready(c, self._job, self._limits, Moment(self._now, since, self._matches.news_t, self.ending))
        finally:
            self._job.memo = None

    # --- saying -----------------------------------------------------------------------------------------------------

    def _open(self, out: list[Output], slot: str, c: Candidate, others: list[tuple[str, str]]) -> None:
        told = self._incidents.pop(c.rule.id, None) if slot == "stop" else None
        if told is not None:  # told as something that training survives; now it has ended it
            told.candidate, told.alternatives = c, others
            self._incidents[slot] = told
            if essence(c) != told.said:
                self._update(out, told)
            return
        known = self._adopted.pop(slot, None) or self._adopted.pop(c.rule.id, None)
        if known is not None:
            self._reopen(out, slot, c, others, known)
            return
        self._stops += 1
        key = make_key(self._job.job, self._job.attempt, self._stops, self._now)
        incident = Incident(key, self._now, c, self._job.attempt, updated_t=self._now, alternatives=others)
        incident.stopped_t = self._job.moved_t if c.rule.stops else None
        if slot == "stop" and self._ended is not None and comes_again(self._ended, c, self._job, self._now):
            was = self._ended
            incident.key, incident.opened_t, incident.revision = was.key, was.opened_t, was.revision + 1
            incident.stopped_t = was.stopped_t
        incident.found_at_start, incident.said = c.history, essence(c)
        self._incidents[slot] = incident
        out.append(Opened(verdict(incident, self._job, self._now, event="opened", state="open")))

    def _reopen(
        self, out: list[Output], slot: str, c: Candidate, others: list[tuple[str, str]], known: Mapping[str, object]
    ) -> None:
        """The incident was open before a restart: same key, and a message only if there is something new to say."""
        opened = float(str(known["opened_t"]))
        incident = Incident(str(known["key"]), opened, c, self._job.attempt, told_revision(known), self._now)
        incident.alternatives, incident.stopped_t = others, told_stopped(known)
        self._incidents[slot] = incident
        incident.said = essence(c)
        if told_essence(known) != incident.said:
            self._update(out, incident)

    def _update(self, out: list[Output], incident: Incident) -> None:
        incident.revision, incident.updated_t = incident.revision + 1, self._now
        incident.said = essence(incident.candidate)
        out.append(Updated(verdict(incident, self._job, self._now, event="updated", state="open")))

    def _shut(self, out: list[Output], slot: str, incident: Incident, over: Fact | None = None) -> None:
        incident.revision, incident.updated_t = incident.revision + 1, self._now
        out.append(Closed(verdict(incident, self._job, self._now, event="closed", state="closed"), over))
        del self._incidents[slot]
        if slot == "stop":
            self._ended = incident

    def _close(self, out: list[Output], slot: str, incident: Incident, by: str = "training") -> None:
        over = Fact(self._now, UNKNOWN_RANK, STOP_OVER, {"by": by}) if slot == "stop" else None
        self._shut(out, slot, incident, over)
        if over is not None:
            self.stop_over(over)

    def stop_over(self, over: Fact) -> None:
        """A stop is over, as was just found or as is known from before a restart; it is not told again."""
        self._incidents.pop("stop", None)
        self._job.forget()
        self._matches.forget_stops()
        if over.fields["by"] == "hand":
            self.dismissed = self._job.moves

    def close(self, key: str, now: float) -> list[Output]:
        """Close an incident by hand; what stopped training is not told again before training goes on."""
        self._now = now
        out: list[Output] = []
        for slot, incident in list(self._incidents.items()):
            if incident.key == key:
                self._close(out, slot, incident, by="hand")
        for slot, known in list(self._adopted.items()):
            if known["key"] == key:
                del self._adopted[slot]
                out.append(Closed(told_over(known, now)))
        return out

    def _speak_degradation(self, out: list[Output], slot: str, c: Candidate | None) -> None:
        incident = self._incidents.get(slot)
        if incident is None:
            if c is None or (c.history and not self._job.recent):
                return
            if self._job.over or self.ending or due(self._matches.since[slot], self._matches.news_t, self._now):
                self._open(out, slot, c, [])
            return
        if c is not None:
            incident.lapsed_since = None
            if essence(c) != incident.said and self._now >= incident.updated_t + QUIET:
                incident.candidate = c
                self._update(out, incident)
            return
        incident.lapsed_since = incident.lapsed_since or self._now
        if self._now - incident.lapsed_since >= DEGRADATION_OVER:
            self._close(out, slot, incident)

    def open_rules(self) -> list[Rule]:
        """The rules that the open incidents are told by now: cheaper than their verdicts."""
        return [incident.candidate.rule for incident in self._incidents.values()]

    def verdicts(self, now: float) -> list[Mapping[str, object]]:
        """The present state of every open incident."""
        return [verdict(i, self._job, now, event="updated", state="open") for i in self._incidents.values()]


def _only_cannot_meet(c: Candidate, job: JobState) -> bool:
    """After a failure the launchers start the others again, who cannot meet: that failure is still what is wrong."""
    return c.rule.entry.category == "startup" and not c.initiating and job.moved_t is None


def _quotes(c: Candidate, said: set[tuple[str, int]]) -> bool:
    """Whether it rests on the very lines that others rest on."""
    return any(e.kind == "log" and (e.source, e.offset) in said for e in c.evidence)
