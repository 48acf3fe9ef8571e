"""Events -> state. One function an event kind; nothing is judged here."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from denpexd.core import devices, stated
from denpexd.core.cadence import LEARN_FROM
from denpexd.core.events import UNKNOWN_RANK, Activity, Attempt, Exit, Fact, Frames, Hit, Joined, Raised
from denpexd.core.numbers import Reader, Reading, is_aside, is_not_finite, normal, value_of
from denpexd.core.rule import Catalog, Signal
from denpexd.core.state import (
    MAX_GROUPS,
    MAX_METRICS,
    MAX_ROUNDS,
    MAX_TOLD,
    Collective,
    Evidence,
    Exited,
    JobState,
    RaisedBy,
    RankState,
    Round,
    Snapshot,
    Told,
)

OLD = 600.0  # seconds after which a word about the job may be forgotten
STEADY = 5.0  # two equal looks at least this far apart (a little less, for timers)
_PID = re.compile(r"\bpid=(\d+)\b")
_FAILED_RANKS = re.compile(r"\bCheckpointException ranks:dict_keys\(\[([\d, ]+)\]\)")  # raised on every rank
_SIGNALS = {"SIGKILL": "9", "SIGTERM": "15", "SIGINT": "2", "SIGHUP": "1"}
MAX_RANKS = 1_000_000  # larger numbers are no ranks, whatever a line says
PREPARES = re.compile(  # labels of bars that no training loop draws
    r"^(?:running )?(?:map(?: ?\(|$)|tokeniz|preprocess|filter|download|extracting|casting|grouping|packing|flattening|"
    r"loading|resolving|generating \w+ (?:split|examples)|saving the dataset|creating|building|indexing|caching)"
)
EVALUATES = re.compile(r"\bval\b|valid|eval|test|predict|infer")
MAX_RANGE = 65_536


class Intake:
    """Holds what is derived from the catalog once: which signals are frames, collateral, and so on."""

    def __init__(self, catalog: Catalog, job: JobState) -> None:
        self.job = job
        self.signals = catalog.signals
        self.reader = Reader(catalog.signals.values())
        self.frame_signals = [s for s in catalog.signals.values() if s.kind == "frame"]
        self.harmless = [
            s for s in catalog.signals.values() if s.kind == "log" and s.role in ("collateral", "teardown", "event")
        ]

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
        state = self.job.rank(event.rank)
        state.printed = True
        state.last_t = max(state.last_t, event.t)
        if signal.role == "device":
            devices.belongs(self.job, event)
            return
        if "actor" in event.fields and event.fields.get("pid", "").isdigit() and state.pid is None:
            state.pid = int(event.fields["pid"])  # Ray's prefix names the process that wrote the line
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
        if signal.event:
            self._told(signal.event, event, evidence)
        self._fields(state, event, evidence)
        for rank in self._about(signal, event):
            self._note(self.job.rank(rank), signal.id, replace(evidence, rank=rank), event.fields)

    def _quoted(self, event: Hit, means: str, kind: str = "log") -> Evidence:
        return Evidence(
            event.rank,
            kind,
            event.source,
            event.offset,
            event.t,
            event.text,
            means,
            teller=event.rank,
            seq=self.job.seq,
            weight="suspect" if event.handled else "fatal",
            history=event.history,
        )

    def _note(self, state: RankState, signal: str, evidence: Evidence, fields: Mapping[str, str]) -> None:
        known = state.seen.get(signal)
        if known is not None and self.job.moved_on(state, known.first.t):
            known.first = evidence  # training survived what was printed before: this is where it began now
        state.note(signal, evidence, fields)

    def _about(self, signal: Signal, event: Hit) -> Iterable[int]:
        if signal.about is None:
            return (event.rank,)
        named = event.fields.get(signal.about, "")
        if signal.about in ("pid", "leader"):
            return (0 if signal.about == "leader" else self._by_pid(named),)
        return [rank for part in named.replace(",", " ").split() for rank in _ranks(part)]

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

    def _fields(self, state: RankState, event: Hit, evidence: Evidence) -> None:
        """Captures with a fixed meaning, whichever signal they come from."""
        fields = event.fields
        if fields.get("op") or "enq" in fields or "done" in fields:
            self._collective(state, fields.get("pg") or "0", fields, evidence)
        if (batches := _number(fields.get("batches"))) is not None:
            state.batches = batches
        stated.keep(state, fields, evidence)
        value = fields.get("value") or fields.get("digest")
        if value and "metric" in fields:
            self._metric(state, event, value, evidence)
        elif value and self.signals[event.signal].quantity == "duration":
            self._duration(state, event, evidence)

    def _collective(self, state: RankState, group: str, fields: Mapping[str, str], evidence: Evidence) -> None:
        if group not in state.collectives and len(state.collectives) >= MAX_GROUPS:
            state.collectives.pop(next(iter(state.collectives)))
        known = state.collectives.setdefault(group, Collective())
        if fields.get("op"):
            known.op, known.evidence = fields["op"], evidence
            known.numel = _number(fields.get("numel_in")) if fields.get("numel_in") else known.numel
        known.shape = fields.get("shape") or known.shape
        for name, field in (("seq", "seq"), ("enqueued", "enq"), ("completed", "done")):
            value = _number(fields.get(field))
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

    # --- movement ---------------------------------------------------------------------------------------------------

    def _progress(self, state: RankState, event: Hit) -> None:
        """A progress line moves the rank only if its counter moved: a bar that is redrawn proves nothing."""
        fields = event.fields
        label = fields.get("label", "").lower()
        step, epoch = _number(fields.get("step")), fields.get("epoch")
        total = _number(fields.get("total"))
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
            self._leave_phase(state, event.t)
            state.step, state.epoch = step if step is not None else state.step, epoch or state.epoch
            state.total = total or state.total
            self.job.trained_t = max(self.job.trained_t, event.t)
            self._measure(state, event)
        self._moved(state, event.t, was, steps, history=event.history)

    def _leave_phase(self, state: RankState, t: float) -> None:
        if state.phase not in ("train", "start") and state.phase_t > float("-inf"):
            state.rhythm.phase_took(state.phase, t - state.phase_t)
        state.phase = "train"

    def _moved(self, state: RankState, t: float, was: str, steps: int, *, history: bool) -> None:
        if state.moves and float("-inf") < state.moved_t < t:
            state.rhythm.moved(t - state.moved_t, was, steps)
            if steps > 0 and was in ("train", "start") and not history:
                self.job.tempo.note(state.rank, t, t - state.moved_t, steps)
        state.moved_t, state.moved_seq, state.moves = t, self.job.seq, state.moves + 1
        if state.reported and t > state.reported.t + 2.0:
            state.reported = None
            state.collectives.clear()
            state.states.pop("timeout", None)
        self._job_moved(t, history)

    def _job_moved(self, t: float, history: bool) -> None:
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

    # --- other witnesses --------------------------------------------------------------------------------------------

    def raised(self, event: Raised) -> None:
        state = self.job.rank(event.rank)
        state.printed, state.last_t = True, max(state.last_t, event.t)
        failed = _failed_ranks(event)
        if event.rank == UNKNOWN_RANK:
            state = self._named_by_pid(event) or (self.job.rank(min(failed)) if len(failed) == 1 else state)
        others_failed = bool(failed) and event.rank >= 0 and event.rank not in failed
        where = event.frames[0].canonical if event.frames else ""
        told = (f"{kind}: {message}" for kind, message in event.chain)
        collateral = others_failed or all(self._is_harmless(text, f"{text}\n{where}") for text in told)
        state.keep(RaisedBy(event, self.job.seq, collateral))
        for rank in failed if others_failed else ():
            self._raised_by(rank, event)

    def _raised_by(self, rank: int, event: Raised) -> None:
        """Another rank tells what this one raised; its own log may say it too, or be nowhere."""
        if rank < (self.job.world_size or MAX_RANKS):
            state = self.job.rank(rank)
            if not any(known.event.chain == event.chain for known in state.raised):
                state.keep(RaisedBy(event, self.job.seq, collateral=False))

    def _named_by_pid(self, event: Raised) -> RankState | None:
        """Ray's driver prints the exceptions of workers; the text names the process."""
        named = {self._by_pid(pid) for _, message in event.chain for pid in _PID.findall(message)} - {UNKNOWN_RANK}
        return self.job.rank(named.pop()) if len(named) == 1 else None

    def _is_harmless(self, text: str, placed: str) -> bool:
        """Whether the exception says nothing about its own rank; `except` also sees the innermost frame."""
        return any(
            s.matcher and s.matcher.search(text) and not (s.exclude and s.exclude.search(placed)) for s in self.harmless
        )

    def frames(self, event: Frames) -> None:
        state = self.job.rank(event.rank)
        state.looked_at = True
        before = state.snapshots.get(event.kind)
        since = event.t
        fresh = before is not None and before.frames.t >= state.moved_t
        if before and fresh and not self.job.moved_on(state, before.frames.t) and _same(before.frames, event):
            since = before.since
        hits = {}
        for signal in self.frame_signals:
            frame = next((f for f in event.frames if _frame_fits(signal, f.canonical, f.qualified)), None)
            if frame is not None:
                hits[signal.id] = frame
        steady = event.t - since >= STEADY - 0.5
        state.snapshots[event.kind] = Snapshot(event, self.job.seq, since, steady, hits)

    def exit(self, event: Exit) -> bool:
        """Whether it tells anything new."""
        state = self.job.rank(event.rank)
        unplaced = self.job.ranks.get(UNKNOWN_RANK)
        announced = state.killing | (unplaced.killing if unplaced else set())
        if event.code is None:
            forced = bool(state.killing)
        else:
            forced = bool({str(-event.code), str(event.code - 128)} & announced)
        if event.code is None and state.exits:
            return False
        if any(e.event.code == event.code and e.event.source == event.source for e in state.exits):
            return False
        state.exits.append(Exited(event, self.job.seq, forced))
        return True

    def fact(self, event: Fact) -> None:
        fields, name = event.fields, event.name
        rank = self._by_pid(fields["pid"]) if event.rank == UNKNOWN_RANK and "pid" in fields else event.rank
        state = self.job.rank(rank)
        if name == "launcher_killing":
            state.killing.add(_SIGNALS.get(fields.get("signal", ""), fields.get("signal", "15")))
            state.killing_t = min(state.killing_t, event.t)
            return
        if name == "attempt_failed":
            self._round(event)
            return
        if name == "oom_killed" and rank == UNKNOWN_RANK:
            return  # somebody else's process
        if name in ("running", "resumed"):
            state.looked_at = True
            state.states.pop("frozen", None)
            state.states.pop("disk_sleep", None)
            return
        if name == "recent":
            self.job.recent = fields.get("recent") != "false"
            return
        means = (
            fields.get("how", "") if name == "evidence_unavailable" else f"a witness reports: {name.replace('_', ' ')}"
        )
        text = event.text or fields.get("why", "") or name.replace("_", " ")
        key = f"unavailable {fields.get('kind', '')}" if name == "evidence_unavailable" else name
        kind = "launcher" if name.startswith("launcher") else "process"
        state.states[key] = Evidence(rank, kind, event.source, event.offset, event.t, text, means, seq=self.job.seq)
        if name == "frozen" and fields.get("state") == "D":
            state.states["disk_sleep"] = state.states[key]
        if name != "evidence_unavailable" and kind == "process":
            state.looked_at = True

    def _round(self, event: Fact) -> None:
        fields, rounds = event.fields, self.job.rounds
        if any(r.pid == fields["pid"] and r.agent == fields["agent"] for r in rounds):
            return
        said = Evidence(event.rank, "launcher", event.source, event.offset, event.t, event.text, "", seq=self.job.seq)
        rounds.append(Round(event.t, event.rank, int(fields["code"]), fields["agent"], fields["pid"], said))
        del rounds[:-MAX_ROUNDS]

    def _by_pid(self, pid: str) -> int:
        """The rank of a process; UNKNOWN_RANK if none is known, or several nodes have that pid."""
        known = [r for r, s in self.job.ranks.items() if r >= 0 and s.pid is not None and str(s.pid) == pid]
        return known[0] if len(known) == 1 else UNKNOWN_RANK

    def joined(self, event: Joined) -> None:
        if event.world_size is not None and event.world_size < MAX_RANKS:
            self.job.world_size = max(self.job.world_size or 0, event.world_size)
        if event.rank >= 0:
            state = self.job.rank(event.rank)
            state.node, state.pid = event.node or state.node, event.pid or state.pid
            state.looked_at = state.looked_at or event.pid is not None

    def attempt(self, event: Attempt) -> None:
        job = self.job
        job.attempt = event.number
        job.devices.forget(job.seq)
        for state in job.ranks.values():
            state.restart(job.seq)
        job.told = {name: told for name, told in job.told.items() if name == "rescaled"}
        job.started_t = event.t
        job.moved_t, job.trained_t = None, float("-inf")


def _failed_ranks(event: Raised) -> set[int]:
    """The ranks that an exception names as those that failed; empty if it names none."""
    named = (found for _, message in event.chain for found in _FAILED_RANKS.findall(message))
    return {rank for text in named for part in text.split(",") if (rank := _number(part.strip())) is not None}


def _number(text: str | None) -> int | None:
    """'12,345' -> 12345; anything else, and what no counter can be, -> None."""
    if not text:
        return None
    digits = text.replace(",", "").replace("_", "")
    return int(digits) if len(digits) < 19 and digits.removeprefix("-").isdecimal() else None


def _ranks(text: str) -> list[int]:
    """`3` or `0-3` as ranks; what can be none is left out."""
    first, _, last = text.partition("-")
    low, high = _number(first), _number(last or first)
    if low is None or high is None or not 0 <= low <= high < min(MAX_RANKS, low + MAX_RANGE):
        return []
    return list(range(low, high + 1))


def _same(a: Frames, b: Frames) -> bool:
    return [(f.function, f.path, f.line) for f in a.frames] == [(f.function, f.path, f.line) for f in b.frames]


def _frame_fits(signal: Signal, canonical: str, qualified: str) -> bool:
    if signal.matcher is None or not (signal.matcher.search(canonical) or signal.matcher.search(qualified)):
        return False
    return not (signal.exclude and (signal.exclude.search(canonical) or signal.exclude.search(qualified)))
