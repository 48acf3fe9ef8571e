"""What mpirun (Open MPI), mpiexec (Hydra of MPICH and Intel MPI; PALS of Cray), jsrun and horovodrun say of exits.

All of them end the other ranks once one has failed, and then report those too.
"""

from dataclasses import dataclass, replace

from denpexd.core.events import UNKNOWN_RANK, Event, Exit, Fact

PATTERNS = {
    "mpi_signal": r"(?:mpirun|prterun|mpiexec|orterun) noticed that process rank (?P<rank>\d+) with PID \d+ on node"
    r" \S+ exited on(?: signal (?P<signal>\d+))?",
    "mpi_wrapped": r"^\s*signal (?P<signal>\d+) \(\w",
    "mpi_name": r"Process name: (?:\[\[[^\]]*\],\s*|\[prterun-[^\]]*,)(?P<rank>\d+)\]",
    "mpi_code": r"^\s*Exit code:\s+(?P<code>\d+)",
    "hydra_process": r"^=\s+(?:RANK (?P<rank>\d+) )?PID (?P<pid>\d+) RUNNING AT ",
    "hydra_exit": r"^=\s+(?:KILLED BY SIGNAL: (?P<signal>\d+)|EXIT (?:CODE|STATUS): (?P<code>\d+))",
    "jsrun_exit": r"first noticed rank (?P<rank>\d+)\) terminated with signal (?P<signal>\d+)",
    "pals_exit": r"^(?:[\w.-]+: )?rank (?P<rank>\d+)"
    r" (?:died from signal (?P<signal>\d+)|exited with code (?P<code>\d+))",
    "horovod_exit": r"^Process (?P<rank>\d+) exit with status code (?P<code>\d+)\.",
}
_TERMINATES = "SIGTERM", (-15, 143)
_KILLS_WITH = {"hydra_exit": ("SIGKILL", (-9, 137)), "pals_exit": _TERMINATES, "horovod_exit": _TERMINATES}
_RAW_SIGNALS = (6, 7, 8, 9, 11, 15)  # MPICH prints the signal as if it were an exit code


@dataclass(slots=True)
class MpiLauncher:
    """What the launcher of one stream has told so far of the process that its next line is about."""

    _rank: int | None = None

    def read(self, name: str, groups: dict[str, str], killing: Fact, ranks: dict[int, int]) -> list[Event]:
        """The events of a line that matched PATTERNS[name].

        `killing`: says of the line that all others are killed, if they are. `ranks`: pid -> rank, as far as known.
        """
        if groups.get("rank"):
            self._rank = int(groups["rank"])
        elif groups.get("pid"):
            self._rank = ranks.get(int(groups["pid"]), UNKNOWN_RANK)
        if self._rank is None or not (groups.get("signal") or groups.get("code")):
            return []
        code = -int(groups["signal"]) if groups.get("signal") else int(groups["code"])
        if name == "hydra_exit" and code in _RAW_SIGNALS:
            code = -code
        rank, self._rank = self._rank, None
        if name == "hydra_exit" and code == -9:
            rank = UNKNOWN_RANK  # it kills all others in the same way and tells of each: which was first is not known
        events: list[Event] = [Exit(killing.t, rank, code, "launcher")]
        signal, of_the_others = _KILLS_WITH.get(name, ("", ()))
        if signal and code and code not in of_the_others:
            events.append(replace(killing, fields={"signal": signal}))
        return events
