"""Events -> state: what exceptions, stacks, processes and launchers show of the ranks. Nothing is judged here."""

import re
from dataclasses import replace

from denpexd.core.arrivals import Arrivals
from denpexd.core.events import UNKNOWN_RANK, Attempt, Exit, Fact, Frames, Joined, Raised
from denpexd.core.evidence import Evidence
from denpexd.core.flight import Dump, outline
from denpexd.core.numbers import MAX_RANKS, counter
from denpexd.core.raised import Texts, weighed
from denpexd.core.rank import RankState
from denpexd.core.records import Collective, Dumped, Exited, Launch, Processes, RaisedBy, Round, Snapshot, Told
from denpexd.core.rule import Catalog
from denpexd.core.state import MAX_GROUPS, MAX_ROUNDS, MAX_TOLD, JobState
from denpexd.core.timers import Timers

KINDS = {"ras": "ras", "nvml": "gpu"}  # of witness, by source
NODE_SILENT, NODE_HEARD = "node_silent", "node_heard"  # of a rank: whether anything comes from its node
NODE_GONE = "node_gone"  # of no rank; field `node`
STEADY = 5.0  # two equal looks at least this far apart (a little less, for timers)
_PID = re.compile(r"\bpid=(\d+)\b")
_VERL = re.compile(r"\bname: \w*WorkerDict_0:(\d+)\b")  # node:local rank; those of the first node are the global ones
_PROCESS = re.compile(r"\((pid=\d+, ip=[\w.:]+)")
_FAILED_RANKS = re.compile(r"\bCheckpointException ranks:dict_keys\(\[([\d, ]+)\]\)")  # raised on every rank
_SIGNALS = {"SIGKILL": "9", "SIGTERM": "15", "SIGINT": "2", "SIGHUP": "1"}


class Witnesses:
    """Takes in what others than lines tell."""

    def __init__(self, catalog: Catalog, job: JobState) -> None:
        self.job = job
        texts = catalog.index.once("texts", lambda: Texts(catalog))
        self._fits, self._hits, self._harmless = texts.fits, texts.hits, texts.harmless
        for state in job.ranks.values():  # these may be other rules than before
            state.raised = [replace(known, fits=self._fits(known.event.chain)) for known in state.raised]

    def raised(self, event: Raised) -> None:
        if event.process:
            event = replace(event, rank=self._rank_of(event.process, event.source, event.offset))
        state = self.job.rank(event.rank)
        state.printed, state.last_t = True, max(state.last_t, event.t)
        failed = _failed_ranks(event)
        if event.rank == UNKNOWN_RANK:
            state = self._named_by_pid(event) or (self.job.rank(min(failed)) if len(failed) == 1 else state)
        if state.rank == UNKNOWN_RANK and not event.process and (named := _named_process(event)):
            self.job.processes.spoke(named, event.source, event.offset)
        others_failed = bool(failed) and event.rank >= 0 and event.rank not in failed
        where = event.frames[0].canonical if event.frames else ""
        told = (f"{kind}: {message}" for kind, message in event.chain)
        collateral = others_failed or all(self._harmless(text, f"{text}\n{where}") for text in told)
        state.keep(RaisedBy(weighed(state, event), self.job.seq, collateral, self._fits(event.chain)))
        for rank in failed if others_failed else ():
            self._raised_by(rank, event)

    def _raised_by(self, rank: int, event: Raised) -> None:
        """Another rank tells what this one raised; its own log may say it too, or be nowhere."""
        if rank < (self.job.world_size or MAX_RANKS):
            state = self.job.rank(rank)
            if not any(known.event.chain == event.chain for known in state.raised):
                state.keep(RaisedBy(event, self.job.seq, False, self._fits(event.chain)))

    def _named_by_pid(self, event: Raised) -> RankState | None:
        """Ray's driver prints the exceptions of workers; the text names the process, verl's the rank."""
        told = [message for _, message in event.chain]
        named = {self._by_pid(pid) for message in told for pid in _PID.findall(message)} - {UNKNOWN_RANK}
        named = named or {int(rank) for message in told for rank in _VERL.findall(message)} & set(self.job.universe)
        return self.job.rank(named.pop()) if len(named) == 1 else None

    def frames(self, event: Frames) -> None:
        state = self.job.rank(event.rank)
        state.looked_at = True
        before = state.snapshots.get(event.kind)
        since = event.t
        fresh = before is not None and before.frames.t >= state.moved_t
        if before and fresh and not self.job.moved_on(state, before.frames.t) and _same(before.frames, event):
            since = before.since
        hits = self._hits(event.frames)
        steady = event.t - since >= STEADY - 0.5
        state.snapshots[event.kind] = Snapshot(event, self.job.seq, since, steady, hits)

    def dumped(self, event: Dump) -> None:
        """A Flight Recorder dump; equal ones say that the rank has not moved in between."""
        state = self.job.rank(event.rank)
        state.looked_at = True
        before, since = state.dump, event.t
        shown = (event.ops, event.progress)
        if before and before.dump.t >= state.moved_t and (before.dump.ops, before.dump.progress) == shown:
            since = min(before.since, event.t)
        state.dump = Dumped(outline(event), self.job.seq, since)

    def exit(self, event: Exit) -> bool:
        """Whether it tells anything new."""
        state = self.job.rank(event.rank)
        unplaced = self.job.ranks.get(UNKNOWN_RANK)
        announced = state.killing | (unplaced.killing if unplaced else set())
        if event.code is None:
            if state.exits:
                return False
            forced = bool(state.killing)
        else:
            forced = bool({str(-event.code), str(event.code - 128)} & announced)
        if any(e.event.code == event.code and e.event.source == event.source for e in state.exits):
            return False
        state.exits.append(Exited(event, self.job.seq, forced))
        return True

    def fact(self, event: Fact) -> None:
        fields, name = event.fields, event.name
        rank = self._by_pid(fields["pid"]) if event.rank == UNKNOWN_RANK and "pid" in fields else event.rank
        if name == "oom_killed" and rank == UNKNOWN_RANK and "cgroup" in fields:
            rank = self._by_cgroup(fields["cgroup"])
        if name == NODE_GONE:
            self._node_gone(event)
            return
        state = self.job.rank(rank)
        if name in (NODE_SILENT, NODE_HEARD):
            state.lost = name == NODE_SILENT and not state.exits and state.phase != "end"
        elif name == "placed":
            state.place, state.cgroup = (fields.get("pci"), fields.get("gpu")), fields.get("cgroup")
        elif name == "launcher_killing":
            state.killing.add(_SIGNALS.get(fields.get("signal", ""), fields.get("signal", "15")))
            state.killing_t = min(state.killing_t, event.t)
        elif name == "attempt_failed":
            self._round(event)
        elif name in ("running", "resumed"):
            state.looked_at = True
            state.states.pop("frozen", None)
            state.states.pop("disk_sleep", None)
        elif name in ("launch", "launch_before"):
            self.job.launch.take(name, fields)
        elif name == "recent":
            self.job.recent = fields.get("recent") != "false"
        elif name == "launched_other":
            said = Evidence(rank, "ras", event.source, 0, event.t, event.text, "", seq=self.job.seq)
            self._stands_in(state, fields.get("group", ""), fields.get("op", ""), said)
        elif name != "oom_killed" or rank != UNKNOWN_RANK:  # else somebody else's process
            self._keep(state, event)

    def _keep(self, state: RankState, event: Fact) -> None:
        """A fact that is evidence by itself: the newest of its kind."""
        fields, name = event.fields, event.name
        words = name.replace("_", " ")
        means, key, text = f"a witness reports: {words}", name, event.text or fields.get("why", "") or words
        if name == "evidence_unavailable":
            means, key = fields.get("how", ""), f"unavailable {fields.get('kind', '')}"
        if name in ("exhausted", "eased"):
            key = f"{name} {fields.get('what', '')}"
            known, eased = state.states.get(key), state.states.get(f"eased {fields.get('what', '')}")
            if name == "exhausted" and known is not None and (eased is None or eased.t < known.t):
                return  # told again: it has been full since then
        kind = "launcher" if name.startswith("launcher") else KINDS.get(event.source, "process")
        kind = "system" if name == "exhausted" else kind
        state.states[key] = Evidence(
            state.rank, kind, event.source, event.offset, event.t, text, means, seq=self.job.seq
        )
        if name == "frozen" and fields.get("state") == "D":
            state.states["disk_sleep"] = state.states[key]
        if name != "evidence_unavailable" and kind == "process":
            state.looked_at = True

    def _node_gone(self, event: Fact) -> None:
        """All of a node has fallen silent, its daemon too, and others miss it: its ranks are known to be gone."""
        job, node = self.job, event.fields["node"]
        said = Evidence(UNKNOWN_RANK, "launcher", event.source, 0, event.t, event.text, "", seq=job.seq)
        known = job.told.setdefault("node_failure", [])
        if len(known) < MAX_TOLD:
            silence, usual = job.silence(event.t), job.usual
            known.append(Told("node_failure", said, node, silence, job.last_phase, usual))
        job.rank(UNKNOWN_RANK)
        for state in job.ranks.values():
            if state.node == node:
                state.lost = False

    @staticmethod
    def _stands_in(state: RankState, group: str, op: str, said: Evidence) -> None:
        """A collective that the rank has launched and others of its group have not."""
        if group in state.collectives or len(state.collectives) < MAX_GROUPS:
            state.collectives[group] = Collective(op=op, evidence=said, t=said.t)

    def _round(self, event: Fact) -> None:
        fields, rounds = event.fields, self.job.rounds
        if any(r.pid == fields["pid"] and r.agent == fields["agent"] for r in rounds):
            return
        said = Evidence(event.rank, "launcher", event.source, event.offset, event.t, event.text, "", seq=self.job.seq)
        rounds.append(Round(event.t, event.rank, int(fields["code"]), fields["agent"], fields["pid"], said))
        del rounds[:-MAX_ROUNDS]

    def _rank_of(self, process: str, source: str, offset: int) -> int:
        """The rank of the process that printed a line; where nothing has told it yet, the process is remembered."""
        known = self.job.processes.ranks.get(process)
        found = _PID.search(process)
        rank = known if known is not None else self._by_pid(found.group(1)) if found else UNKNOWN_RANK
        if rank == UNKNOWN_RANK:
            self.job.processes.spoke(process, source, offset)
        return rank

    def _told_rank(self, process: str, rank: int) -> None:
        """A process tells its rank: what it raised before belongs to that rank."""
        unplaced = self.job.ranks.get(UNKNOWN_RANK)
        if self.job.processes.learn(process, rank) and unplaced is not None:
            mine = [known for known in unplaced.raised if known.event.process == process]
            unplaced.raised = [known for known in unplaced.raised if known.event.process != process]
            for known in mine:
                self.job.rank(rank).keep(replace(known, event=replace(known.event, rank=rank)))

    def _by_pid(self, pid: str) -> int:
        """The rank of a process; UNKNOWN_RANK if none is known, or several nodes have that pid."""
        known = [r for r, s in self.job.ranks.items() if r >= 0 and s.pid is not None and str(s.pid) == pid]
        return known[0] if len(known) == 1 else UNKNOWN_RANK

    def _by_cgroup(self, path: str) -> int:
        """The rank whose control group this is, if no other's is it too."""
        known = [r for r, s in self.job.ranks.items() if r >= 0 and s.cgroup == path]
        return known[0] if len(known) == 1 else UNKNOWN_RANK

    def joined(self, event: Joined) -> None:
        if event.world_size is not None and event.world_size < MAX_RANKS:
            self.job.world_size = max(self.job.world_size or 0, event.world_size)
        if event.rank >= 0:
            state = self.job.rank(event.rank)
            if event.node and (state.node is None or not event.node[:1].isdigit()):
                state.node = event.node  # a name says more than the address that a launcher prints
            state.known_as |= {event.node} if event.node else set()
            state.pid = event.pid or state.pid
            state.looked_at = state.looked_at or event.pid is not None

    def attempt(self, event: Attempt) -> None:
        job = self.job
        job.attempt = event.number
        job.devices.forget(job.seq)
        for state in job.ranks.values():
            state.restart(job.seq)
        job.told = {name: told for name, told in job.told.items() if name == "rescaled"}
        job.twins.clear()
        job.timers, job.arrivals, job.processes = Timers(), Arrivals(), Processes()
        job.started_t = event.t
        job.launch = Launch()
        job.moved_t, job.trained_t = None, float("-inf")


def _named_process(event: Raised) -> str:
    """The process that the driver's report names, if it is one."""
    found = {named for _, message in event.chain for named in _PROCESS.findall(message)}
    return found.pop() if len(found) == 1 else ""


def _failed_ranks(event: Raised) -> set[int]:
    """The ranks that an exception names as those that failed; empty if it names none."""
    named = (found for _, message in event.chain for found in _FAILED_RANKS.findall(message))
    return {rank for text in named for part in text.split(",") if (rank := counter(part.strip())) is not None}


def _same(a: Frames, b: Frames) -> bool:
    return [(f.function, f.path, f.line) for f in a.frames] == [(f.function, f.path, f.line) for f in b.frames]
