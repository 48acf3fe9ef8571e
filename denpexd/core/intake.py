"""Events -> state: what ranks print, and how they move. One function an event kind; nothing is judged here."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from denpexd.core import devices, stated
from denpexd.core.cadence import LEARN_FROM
from denpexd.core.events import UNKNOWN_RANK, Activity, Hit
from denpexd.core.evidence import Evidence
from denpexd.core.numbers import Reader, Reading, counter, is_aside, is_not_finite, normal, ranks_in, value_of
from denpexd.core.raised import caught
from denpexd.core.rank import MAX_METRICS, RankState
from denpexd.core.records import Collective, Told, process_of
from denpexd.core.rule import Catalog, Signal
from denpexd.core.state import MAX_GROUPS, MAX_TOLD, JobState
from denpexd.core.twins import MAX_NAMES, Twins
from denpexd.core.witnesses import Witnesses

AVERAGED = ("loss", "gradient_norm")  # numbers that ranks may print after an all-reduce
TIMES = ("timer", "timed", "most")  # captures of timers
CLOSING = 1.0  # seconds after the end of a loop in which its bar may still be drawn for the last time
MACHINE_NAMES = 4  # of one rank
_MOST_SOURCES = 16  # files of one rank
OLD = 600.0  # seconds after which a word about the job may be forgotten
PREPARES = re.compile(  # labels of bars that no training loop draws
    r"^(?:running )?(?:map(?: ?\(|$)|tokeniz|preprocess|filter|download|fetching|extracting|casting|grouping|packing|"
    r"flattening|loading|resolving|generating \w+ (?:split|examples)|saving the dataset|creating|building|indexing|"
    r"caching)"
)
_NAMED = re.compile(r"\brank=(\d+)")
EVALUATES = re.compile(r"\bval\b|valid|eval|test|predict|infer|likelihood|\brequests\b")


class Intake(Witnesses):
    """Takes in all events of one job: lines here, the rest as any witness tells it."""

    def __init__(self, catalog: Catalog, job: JobState) -> None:
        super().__init__(catalog, job)
        self.signals = catalog.signals
        self.reader = Reader(catalog.signals.values())

    # --- lines ------------------------------------------------------------------------------------------------------

    def activity(self, event: Activity) -> None:
        state = self.job.rank(event.rank)
        state.printed = True
        state.last_t = max(state.last_t, event.t)
        if not event.history:
            self.job.recent = True
        if self.job.moves < LEARN_FROM and not event.history:
            self.job.spoke_t = max(self.job.spoke_t, event.t)

    def ordinary(self, event: Activity) -> None:
        """Output without anything remarkable in it: the rank lives on, whatever it printed before."""
        state = self.job.rank(event.rank)
        if not event.history and (not state.ordinary or event.t > state.ordinary[-1] + 0.5):
            state.ordinary.append(event.t)

    def hit(self, event: Hit) -> None:
        signal = self.signals.get(event.signal)
        if signal is None:
            return
        if signal.role == "kernel":
            self.job.devices.note(event, self._quoted(event, signal.means, "kernel"))
            return  # the rank in whose log it stands did not say it
        if "actor" in event.fields and not _names_process(signal) and (process := process_of(event.fields)):
            event = self._of_process(event, process)
        state = self.job.rank(event.rank)
        state.printed = True
        state.last_t = max(state.last_t, event.t)
        if len(state.known_as) < MACHINE_NAMES:
            state.known_as.update(name for key in ("pod", "ip") if (name := event.fields.get(key)))
        if signal.role == "device":
            devices.belongs(self.job, event)
            return
        if signal.role == "progress":
            self._progress(state, event)
            return
        evidence = self._quoted(event, signal.means)
        if signal.role == "phase" and signal.phase:
            self._phase(state, signal.phase, evidence, event.t)
        if signal.role == "collateral":
            self._reported(state, signal, evidence)
        if signal.role in (None, "collateral", "ambiguous"):
            state.remark_t = event.t
        if signal.role == "caught":
            caught(state, evidence)
        if signal.event:
            self._told(signal.event, event, evidence)
        self._fields(state, event, evidence)
        for rank in self._about(signal, event):
            self._note(self.job.rank(rank), signal.id, replace(evidence, rank=rank), event.fields)

    def _of_process(self, event: Hit, process: str) -> Hit:
        """Ray's prefix names the process that wrote the line."""
        if event.rank == UNKNOWN_RANK:
            return replace(event, rank=self._rank_of(process, event.source, event.offset))
        self._told_rank(process, event.rank)
        state = self.job.rank(event.rank)
        state.pid = int(event.fields["pid"]) if state.pid is None else state.pid
        return event

    def _quoted(self, event: Hit, means: str, kind: str = "log") -> Evidence:
        at, weight = (event.rank, kind, event.source, event.offset, event.t), "suspect" if event.handled else "fatal"
        return Evidence(*at, event.text, means, event.rank, self.job.seq, weight, event.history)

    def _note(self, state: RankState, signal: str, evidence: Evidence, fields: Mapping[str, str]) -> None:
        known = state.seen.get(signal)
        if known is not None and self.job.moved_on(state, known.first.t):
            known.first = evidence  # training survived what was printed before: this is where it began now
        state.note(signal, evidence, fields)

    def _about(self, signal: Signal, event: Hit) -> Iterable[int]:
        if signal.about is None:
            return (event.rank,)
        named = event.fields.get(signal.about, "")
        if "rank=" in named:
            named = " ".join(_NAMED.findall(named))
        if signal.about in ("pid", "leader"):
            return (0 if signal.about == "leader" else self._by_pid(named),)
        return [rank for part in named.replace(",", " ").split() for rank in ranks_in(part)]

    def _reported(self, state: RankState, signal: Signal, evidence: Evidence) -> None:
        if state.reported is None:
            state.reported = evidence
        if signal.phase == "timeout" or "timeout" in signal.id or "timed" in signal.id:
            state.states.setdefault("timeout", evidence)

    def _told(self, name: str, event: Hit, evidence: Evidence) -> None:
        """What happened to the job, with how it stood then; the old makes room for the new."""
        job, known = self.job, self.job.told.setdefault(name, [])
        if len(known) >= MAX_TOLD:
            known[:] = [told for told in known if event.t - told.evidence.t < OLD]
        if len(known) < MAX_TOLD:
            job.rank(UNKNOWN_RANK)
            silence, agent = job.silence(event.t), event.fields.get("agent", "")
            node = event.fields.get("node") or agent.rsplit("_", 2)[0]  # a rendezvous calls an agent HOST_PID_NUMBER
            known.append(Told(name, evidence, node, silence, job.last_phase, job.usual))
        if name == "probe" and evidence.rank >= 0:  # as when a launcher says so: its end is no failure of its own
            job.rank(evidence.rank).killing |= {"9", "15"}

    def _fields(self, state: RankState, event: Hit, evidence: Evidence) -> None:
        """Captures with a fixed meaning, whichever signal they come from."""
        fields = event.fields
        if fields.get("op") or "enq" in fields or "done" in fields:
            self._collective(state, fields.get("pg") or "0", fields, evidence)
        if (batches := counter(fields.get("batches"))) is not None:
            state.batches = batches
        stated.keep(state, fields, evidence)
        if not fields.keys().isdisjoint(TIMES):
            self.job.timers.read(self.job, fields, evidence, (state.epoch, state.step))
        value = fields.get("value") or fields.get("digest")
        if value and "metric" in fields:
            self._metric(state, event, value, evidence)
        elif value and self.signals[event.signal].quantity == "duration":
            self._duration(state, event, evidence)

    def _collective(self, state: RankState, group: str, fields: Mapping[str, str], evidence: Evidence) -> None:
        if group not in state.collectives and len(state.collectives) >= MAX_GROUPS:
            state.collectives.pop(next(iter(state.collectives)))
        known = state.collectives.setdefault(group, Collective())
        known.t = evidence.t
        if fields.get("op"):
            known.op, known.evidence = fields["op"], evidence
            known.numel = counter(fields.get("numel_in")) if fields.get("numel_in") else known.numel
        known.shape = fields.get("shape") or known.shape
        for name, field in (("seq", "seq"), ("enqueued", "enq"), ("completed", "done")):
            value = counter(fields.get(field))
            if value is not None:
                setattr(known, name, value)
        if known.evidence is None:
            known.evidence = evidence

    def _duration(self, state: RankState, event: Hit, evidence: Evidence) -> None:
        """How long something took that the rank tells at its end."""
        name, seconds = normal(event.signal.rpartition(".")[2]), value_of(event.fields)
        if seconds is not None:
            place = (state.epoch, state.step)
            state.numbers.read("duration", name, Reading(event.t, place, seconds), evidence)
            self.job.numbers_seq = self.job.seq

    def _metric(self, state: RankState, event: Hit, value: str, evidence: Evidence) -> None:
        fields, name = event.fields, event.fields["metric"]
        own = self.reader.step(event.text)
        if is_not_finite(value):
            if state.phase != "eval" and not is_aside(normal(name)):
                place = fields.get("epoch") or state.epoch, own if own is not None else state.step
                state.numbers.not_finite(normal(name), place, evidence)
            return
        try:
            number: float | str = value if "digest" in fields else float(value)
        except ValueError:
            return
        if len(state.metrics) >= MAX_METRICS:
            state.metrics.pop(next(iter(state.metrics)))
        epoch = fields.get("epoch")
        at = f"epoch {epoch}" if epoch is not None else f"step {state.step if own is None else own}"
        state.metrics[(name, at if epoch is None or own is None else f"{at} step {own}")] = (number, evidence)

    def _measure(self, state: RankState, event: Hit) -> None:
        """The numbers of a progress line, once a line."""
        numbers, line = state.numbers, (event.source, event.offset)
        if numbers.line == line:
            return
        numbers.line = line
        place = (state.epoch, state.step)
        numbers.place(place)
        self.job.numbers_seq = self.job.seq
        found = self.reader.numbers(event.text, numbers.layout)
        if not found:
            return
        evidence = self._quoted(event, "a number of its progress line")
        for quantity, name, value in found:
            numbers.read(quantity, name, Reading(event.t, place, value), evidence)
            if quantity in AVERAGED and place[1] is not None and state.rank >= 0:
                twins = self.job.twins
                if name in twins or len(twins) < MAX_NAMES:
                    twins.setdefault(name, Twins()).note(state.rank, place, value, evidence)

    # --- movement ---------------------------------------------------------------------------------------------------

    def _progress(self, state: RankState, event: Hit) -> None:
        """A progress line moves the rank only if its counter moved: a bar that is redrawn proves nothing."""
        fields = event.fields
        label = fields.get("label", "").lower()
        step, epoch = counter(fields.get("step")), fields.get("epoch")
        total = counter(fields.get("total"))
        # A second, nameless bar of another length while the rank evaluates is the evaluation's.
        other_bar = not label and None not in (total, state.total) and total != state.total
        evaluates = bool(EVALUATES.search(label)) or (state.phase == "eval" and other_bar)
        aside = "eval" if evaluates else ("load" if PREPARES.match(label) else "")
        if aside:
            if state.phase != aside:
                work = "an evaluation" if evaluates else "data preparation"
                self._phase(state, aside, self._quoted(event, f"a progress bar of {work}"), event.t)
            if not step or step == state.aside:
                return
            state.aside = step
            was, steps = aside, 0
        else:
            if "pct" in fields and not step:
                state.total = total or state.total
                return  # a bar that has only been drawn
            loss = fields.get("loss")
            if step in (None, state.step) and epoch in (None, state.epoch) and loss in (None, state.loss):
                return  # drawn or printed again
            state.loss = loss or state.loss
            was, steps = state.phase, (step - state.step) if step is not None and state.step is not None else 0
            at_end = state.phase in ("eval", "checkpoint") and step is not None and step == total
            closing = at_end and "pct" in fields and event.t <= state.phase_t + CLOSING
            if not closing:  # what the rank has said of its next phase still holds
                self._leave_phase(state, event.t)
            state.step, state.epoch = step if step is not None else state.step, epoch or state.epoch
            state.total = total or state.total
            self.job.trained_t = max(self.job.trained_t, event.t)
            self._measure(state, event)
            if state.rank >= 0 and step is not None and was == "train" and not event.history:
                self.job.arrivals.note(self.job, event, (state.epoch, step))
        self._moved(state, event.t, was, steps, history=event.history)
        if event.source in state.moved_in or len(state.moved_in) < _MOST_SOURCES:
            state.moved_in[event.source] = self.job.seq

    def _leave_phase(self, state: RankState, t: float) -> None:
        if state.phase not in ("train", "start") and state.phase_t > float("-inf"):
            state.rhythm.phase_took(state.phase, t - state.phase_t)
        state.phase = "train"

    def _moved(self, state: RankState, t: float, was: str, steps: int, *, history: bool) -> None:
        if state.moves and float("-inf") < state.moved_t < t:
            state.rhythm.moved(t - state.moved_t, was, steps)
            if steps > 0 and was in ("train", "start") and not history:
                self.job.tempo.note(state.rank, t, t - state.moved_t, steps, state.numbers.size)
        state.moved_t, state.moved_seq, state.moves = t, self.job.seq, state.moves + 1
        if state.reported and t > state.reported.t + 2.0:
            state.reported = None
            state.collectives.clear()
            state.states.pop("timeout", None)
        job = self.job
        job.moved_t = t if not history else max(t, job.started_t)
        job.moved_seq, job.moves = job.seq, job.moves + 1

    def _ends_in_time(self, state: RankState) -> bool:
        """That the checkpoint is written ends its own phase only, and not after others gave up waiting."""
        return state.phase == "checkpoint" and not any("timeout" in s.states for s in self.job.ranks.values())

    def _phase(self, state: RankState, phase: str, evidence: Evidence, t: float) -> None:
        if phase == state.phase or (phase == "train" and not self._ends_in_time(state)):
            return
        self._leave_phase(state, t)
        state.phase, state.phase_t, state.phase_evidence = phase, t, evidence
        self.job.spoke_t = max(self.job.spoke_t, t)  # restarts the silence clock, but is no step


def _names_process(signal: Signal) -> bool:
    """Whether the process it captures is one that the line speaks of, not the one that prints it."""
    return "(?P<pid>" in (signal.pattern or "") or "(?P<ip>" in (signal.pattern or "")
