"""What launchers, schedulers and start-up lines say about ranks: who exited how, who is told to stop, who exists."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import re2

from denpexd.core.events import UNKNOWN_RANK, Attempt, Event, Exit, Fact, Joined
from denpexd.scan import deepspeed_launcher, mpi_launcher
from denpexd.scan.blocks import Opening
from denpexd.scan.deepspeed_launcher import DeepSpeedLauncher
from denpexd.scan.mpi_launcher import MpiLauncher
from denpexd.scan.prefixes import Line

# Name -> pattern; the names are the methods of LauncherReader.
PATTERNS = {
    "torchrun_exit": r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<local>\d+) \(pid: (?P<pid>\d+)\) of ",
    "srun_exit": r"srun: error: [\w.-]+: tasks? (?P<tasks>[\d,-]+): (?P<why>Killed|Aborted|Segmentation fault|Bus error"
    r"|Illegal instruction|Floating point exception|Terminated|Out Of Memory|Exited with exit code (?P<code>\d+))",
    "lightning_exit": r"(?:\[rank: (?P<rank>\d+)\] )?Child process with PID (?P<pid>\d+) terminated with code"
    r" (?P<code>-?\d+)",
    "killing": r"(?:Sending process|Closing process|Killing subprocess) (?P<pid>\d+)(?: (?:closing signal|via signal)"
    r" (?:Signals\.)?(?P<signal>\w+))?",
    "forcing": r"Unable to shutdown process (?P<pid>\d+) via \S+ forcefully exiting via (?:Signals\.)?(?P<signal>\w+)",
    "oom_kill": r"[Oo]ut of memory: Killed process (?P<pid>\d+)"
    r"|oom-kill:(?:.*\btask_memcg=(?P<cgroup>[^,\s]+))?.*\bpid=(?P<pid_kernel>\d+)"
    r"|earlyoom(?:\[\d+\])?: sending SIG(?:TERM|KILL) to process (?P<pid_early>\d+)"
    r"|pid=(?P<pid_ray>\d+), memory used=[\d.]+[KMGT]i?B\) was running",
    "spawn_exit": r"\bprocess (?P<rank>\d+) terminated with (?:signal SIG(?P<name>\w+)|exit code (?P<code>\d+))",
    "composer_exit": r"Global rank (?P<rank>\d+) \(PID (?P<pid>\d+)\) exited with code (?P<code>-?\d+)",
    "ray_rank": r"ip=(?P<ip>[0-9a-fA-F.:]+), pid=(?P<pid>\d+)\) world_rank=(?P<rank>\d+)",
    "restart": r"Worker group \w+\. (?P<left>\d+)/(?P<most>\d+) attempts left; will restart worker group",
    "new_nodes": r"Detected \d+ new nodes from group_rank=\d+; will restart worker group",
    "restart_count": r"restart_count=(?P<count>\d+)",
    "world": r"(?i)\bworld[_ ]size\"?\s*[=:]\s*(?P<world>\d+)",
    "member": r"GLOBAL_RANK: (?P<rank>\d+), MEMBER: \d+/(?P<world>\d+)",
    "nccl": r"\brank (?P<rank>\d+) nranks (?P<world>\d+) .*Init COMPLETE",
    **deepspeed_launcher.PATTERNS,
    **mpi_launcher.PATTERNS,
}
SUMMARY = r"^(?:Failures:|Root Cause \(first observed failure\):)\s*$"

OWN_LINE = re2.compile(
    r"^(?:[IWEF]\d{3,4} [\d:.]+ \d+ |\[[\d: ,-]+\] |(?:INFO|WARNING|ERROR):)"
    r"torch[./]distributed[./](?:elastic|run|launch)"
    r"|^(?:srun|slurmstepd[\w.-]*|mpirun|prterun|mpiexec|orterun): |^(?:mpirun|prterun) (?:noticed|detected)"
    r"|\[launch\.py:\d+:|^torch\.distributed\.elastic\.multiprocessing\.errors\.ChildFailedError"
)
_ENTRY = re2.compile(r"^\s*(time|host|rank|exitcode|traceback)\s+: (.*?)\s*$")
_RANK = re2.compile(r"^(\d{1,9}) \(local_rank: \d+\)")
_EXIT_CODE = re2.compile(r"^(-?\d{1,9}) \(pid: (\d{1,9})\)(?:\s+\((SIG[A-Z]+)\))?")
_AGENT = re2.compile(r"^[IWEF]\d{3,4} [\d:.]+ (\d+) ")
_SECOND_HAND = re2.compile(r"(?i)checkpoint|ckpt|saved|expect|mismatch|\bgot\b|\bbut\b|resum|error|must|should")
_NCCL_WRITER = re2.compile(r"^([\w.-]+):(\d+):\d+ \[\d+\] NCCL INFO ")
_OWN_RANK = re2.compile(r'(?:^|[^\w])"?(?:global_)?rank"?\s*[=:]\s*(\d{1,9})')
_OWN_PID = re2.compile(r'(?:^|[^\w])"?pid"?\s*[=:]\s*(\d{1,9})')
_SIGNALS = {
    "Killed": -9,
    "Out Of Memory": -9,
    "Terminated": -15,
    "Aborted": -6,
    "Segmentation fault": -11,
    "Bus error": -7,
    "Illegal instruction": -4,
    "Floating point exception": -8,
}
_SIGNAL_NAMES = {"9": "SIGKILL", "15": "SIGTERM", "2": "SIGINT", "1": "SIGHUP"}
_NUMBERS = {"KILL": 9, "TERM": 15, "ABRT": 6, "SEGV": 11, "BUS": 7, "INT": 2, "FPE": 8, "ILL": 4}
_HUGE = re2.compile(r"\d{19}")  # no rank, pid or code: Python would refuse to read the longest, SQLite to keep them
_MOST_TASKS = 65536
_MOST_REMEMBERED = 10_000
_HOLD = 1.0
_MOST_SUMMARY_LINES = 100_000  # ten thousand ranks may have an entry each


def is_launcher_line(text: str) -> bool:
    """Whether a launcher or scheduler printed the line, not the rank in whose stream it stands."""
    return OWN_LINE.search(text) is not None


@dataclass(frozen=True, slots=True)
class _Held:
    t: float
    local: int
    code: int
    failed: Fact

    def told(self, rank: int) -> list[Event]:
        return [replace(self.failed, rank=rank), Exit(self.t, rank, self.code, "launcher")]


@dataclass(slots=True)
class LauncherReader:
    """What one stream has told about processes so far. `rank`: the rank of the file, if known."""

    rank: int
    source: str
    ranks: dict[int, int] = field(default_factory=dict)  # pid -> rank
    _held: dict[int, _Held] = field(default_factory=dict)  # pid -> exit whose global rank the summary will tell
    _joined: set[tuple[int, int | None, int | None]] = field(default_factory=set)
    _first_communicator: set[int] = field(default_factory=set)
    _attempt: int = 0
    _mpi: MpiLauncher = field(default_factory=MpiLauncher)
    _deepspeed: DeepSpeedLauncher = field(default_factory=DeepSpeedLauncher)

    def read(self, name: str, line: Line, groups: dict[str, str], t: float, offset: int, history: bool) -> list[Event]:
        """The events of a line that matched PATTERNS[name] with these groups."""
        if any(value and _HUGE.search(value) for value in groups.values()):
            return []
        all_others = Fact(t, UNKNOWN_RANK, "launcher_killing", {}, self.source, offset, line.text, history)
        match name:
            case "torchrun_exit":
                return self._torchrun_exit(groups, line, t, offset, history)
            case "srun_exit":
                code = int(groups["code"]) if groups.get("code") else _SIGNALS[groups["why"]]
                return [Exit(t, rank, code, "launcher") for rank in _tasks(groups["tasks"])]
            case "lightning_exit":
                rank = int(groups["rank"]) if groups.get("rank") else self.ranks.get(int(groups["pid"]), UNKNOWN_RANK)
                killing = replace(all_others, fields={"signal": "SIGKILL"})  # whose pids it does not tell
                return [Exit(t, rank, int(groups["code"]), "launcher"), killing]
            case "killing" | "forcing":
                return [self._killing(groups, line, t, offset, history)]
            case "spawn_exit" | "composer_exit":
                code = int(groups["code"]) if groups.get("code") else -_NUMBERS.get(groups["name"], 9)
                return [Exit(t, int(groups["rank"]), code, "launcher")]
            case "ray_rank":
                return [Joined(t, int(groups["rank"]), groups["ip"], int(groups["pid"]))]
            case "oom_kill":
                pid = next(groups[g] for g in ("pid", "pid_kernel", "pid_early", "pid_ray") if groups.get(g))
                rank = self.ranks.get(int(pid), UNKNOWN_RANK)
                fields = {"pid": pid} | ({"cgroup": groups["cgroup"]} if groups.get("cgroup") else {})
                return [Fact(t, rank, "oom_killed", fields, self.source, offset, line.text, history)]
            case "restart" | "new_nodes" | "restart_count":
                return self._restart(name, groups, t)
            case "world" | "member" | "nccl":
                return self._exists(name, line, groups, t)
            case _ if name in mpi_launcher.PATTERNS:
                return self._mpi.read(name, groups, all_others, self.ranks)
            case _ if name in deepspeed_launcher.PATTERNS:
                events = self._deepspeed.read(name, line, groups, t, self.ranks)
                self._learn(event for event in events if isinstance(event, Joined))
                return events
        return []

    def _learn(self, joined: Iterable[Joined]) -> None:
        for each in joined:
            if each.pid is not None and each.rank != UNKNOWN_RANK and len(self.ranks) < _MOST_REMEMBERED:
                self.ranks[each.pid] = each.rank

    def _torchrun_exit(self, groups: dict[str, str], line: Line, t: float, offset: int, history: bool) -> list[Event]:
        """torchrun says this once for each attempt, about the process that failed first."""
        pid, local, agent = int(groups["pid"]), int(groups["local"]), _AGENT.search(line.text)
        fields = {"pid": groups["pid"], "code": groups["code"], "agent": agent.group(1) if agent else self.source}
        failed = Fact(t, UNKNOWN_RANK, "attempt_failed", fields, self.source, offset, line.text, history)
        held = _Held(t, local, int(groups["code"]), failed)
        if pid in self.ranks:
            return held.told(self.ranks[pid])
        self._held[pid] = held
        return []

    def _killing(self, groups: dict[str, str], line: Line, t: float, offset: int, history: bool) -> Fact:
        signal = groups.get("signal") or "SIGTERM"
        fields = {"pid": groups["pid"], "signal": _SIGNAL_NAMES.get(signal, signal)}
        rank = self.ranks.get(int(groups["pid"]), UNKNOWN_RANK)
        return Fact(t, rank, "launcher_killing", fields, self.source, offset, line.text, history)

    def _restart(self, name: str, groups: dict[str, str], t: float) -> list[Event]:
        number = self._attempt + 1
        if name == "restart":
            number = int(groups["most"]) - int(groups["left"]) + 1
        elif name == "restart_count":
            number = int(groups["count"])
        if number == self._attempt:
            return []
        self._attempt = number
        return [*self.idle(t, end=True), Attempt(t, number)]

    def _exists(self, name: str, line: Line, groups: dict[str, str], t: float) -> list[Event]:
        rank, world, node, pid = line.rank, int(groups["world"]), None, None
        if name == "world":
            if _SECOND_HAND.search(line.text) is not None:
                return []
            said, process = _OWN_RANK.search(line.text), _OWN_PID.search(line.text)
            rank = rank if line.certain or said is None else int(said.group(1))
            pid = int(process.group(1)) if process is not None else None
        elif name == "member":
            rank = int(groups["rank"])
        else:  # a process's first communicator spans the world; later ones are groups with ranks of their own
            writer = _NCCL_WRITER.search(line.text)
            if writer is None:
                return []
            node, pid = writer.group(1), int(writer.group(2))
            if pid in self._first_communicator or len(self._first_communicator) > _MOST_REMEMBERED:
                return []
            self._first_communicator.add(pid)
            rank = rank if line.certain else int(groups["rank"])
        return self._join(t, rank, node, pid, world)

    def _join(self, t: float, rank: int, node: str | None, pid: int | None, world: int) -> list[Event]:
        joined = Joined(t, rank, node, pid, world)
        self._learn([joined])
        if (rank, pid, world) in self._joined or len(self._joined) > _MOST_REMEMBERED:
            return []
        self._joined.add((rank, pid, world))
        return [joined]

    def settled(self, pid: int, rank: int) -> list[Event]:
        """The summary named the global rank of a process and tells its exit itself."""
        self.ranks[pid] = rank
        held = self._held.pop(pid, None)
        return [replace(held.failed, rank=rank)] if held is not None else []

    @property
    def waits(self) -> bool:
        """Whether something is held back until it is known whose it is."""
        return bool(self._held)

    def idle(self, t: float, *, end: bool = False) -> list[Event]:
        """Exits whose global rank nobody told: on the only node the local rank is the global one."""
        due = {pid: held for pid, held in self._held.items() if end or t - held.t >= _HOLD}
        for pid in due:
            del self._held[pid]
        alone = self.rank in (UNKNOWN_RANK, 0)
        return [event for held in due.values() for event in held.told(held.local if alone else UNKNOWN_RANK)]


def _tasks(text: str) -> list[int]:
    """`0-3,6` as numbers."""
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if first.isdigit() and (last.isdigit() or not last):
            numbers.extend(range(int(first), min(int(last or first), int(first) + _MOST_TASKS) + 1))
    return numbers[:_MOST_TASKS]


class Summary:
    """torchrun's summary of failures: an Exit for each entry, and who it takes for the root. A block (see blocks)."""

    def __init__(self, launcher: LauncherReader, opening: Opening) -> None:
        self.lines = 0
        self.rank = UNKNOWN_RANK  # of the entry at hand: its traceback belongs to that rank
        self._launcher, self._opening = launcher, opening
        self._root = opening.text.startswith("Root")
        self._entry: dict[str, str] = {}
        self._events: list[Event] = []

    def feed(self, text: str) -> bool:
        self.lines += 1
        if text.startswith("Root Cause"):
            self._root = True
        elif text.startswith("====") and self.lines > 1:
            return False
        elif text.startswith("[") and text.rstrip().endswith("]:"):
            self._entry, self.rank = {}, UNKNOWN_RANK
        elif (found := _ENTRY.search(text)) is not None:
            self._entry[found.group(1)] = found.group(2)
            if found.group(1) == "rank" and (rank := _RANK.search(found.group(2))) is not None:
                self.rank = int(rank.group(1))
            elif found.group(1) == "exitcode":
                self._exit(found.group(2))
        return self.lines <= _MOST_SUMMARY_LINES

    def _exit(self, text: str) -> None:
        found = _EXIT_CODE.search(text)
        if found is None or self.rank == UNKNOWN_RANK:
            return
        code, pid = int(found.group(1)), int(found.group(2))
        self._events += self._launcher.settled(pid, self.rank)
        o = self._opening
        self._events.append(Exit(o.t, self.rank, code, "launcher"))
        if self._root:
            fields = {"exitcode": str(code), "pid": str(pid)}
            fields |= {key: self._entry[key] for key in ("host", "time") if key in self._entry}
            fields |= {"signal": found.group(3)} if found.group(3) else {}
            text = f"torchrun takes rank {self.rank} for the root cause (exit code {code})"
            self._events.append(Fact(o.t, self.rank, "launcher_root", fields, o.source, o.offset, text, o.history))

    def quotes_code(self, text: str) -> bool:
        return False

    def finish(self) -> list[Event]:
        events, self._events = self._events, []
        return events
