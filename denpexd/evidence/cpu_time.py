"""Which ranks use no CPU time: they wait. Who waits inside NCCL spins; who waits for data or in gloo does not."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from denpexd.core.events import Fact
from denpexd.evidence.procs import RankProcess

IDLE = 1.5  # percent of one CPU: threads that look after others wake up now and then
BUSY = 50.0
LEAST = 30.0  # seconds to look back


@dataclass(frozen=True, slots=True)
class _Since:
    process: RankProcess
    t: float


class CpuTime:
    """CPU time of ranks and of all that they have started, over the last half minute or more; from one event loop.

    `hertz`: ticks a second of /proc, always 100 on Linux as seen by programs.
    """

    def __init__(self, hertz: float = 100.0) -> None:
        self._hertz = hertz
        self._looks: dict[int, list[_Since]] = {}

    def note(self, t: float, found: Iterable[RankProcess]) -> None:
        """One more look at the process table."""
        for process in found:
            looks = self._looks.setdefault(process.rank, [])
            if looks and (not process.is_same(looks[-1].process) or process.work < looks[-1].process.work):
                looks.clear()  # another process, or one of those below it is gone and took its time along
            looks.append(_Since(process, t))
            while len(looks) > 2 and looks[1].t <= t - LEAST:
                del looks[0]

    def facts(self, ranks: Iterable[int]) -> Iterator[Fact]:
        """`cpu_idle` or `cpu_busy` of those that have been looked at for long enough; nothing of what lies between."""
        for rank in ranks:
            looks = self._looks.get(rank, [])
            if not looks or (seconds := looks[-1].t - looks[0].t) < LEAST:
                continue
            used = (looks[-1].process.work - looks[0].process.work) / self._hertz
            share = 100 * used / seconds
            if share <= IDLE or share >= BUSY:
                name = "cpu_idle" if share <= IDLE else "cpu_busy"
                pid = looks[-1].process.pid
                text = f"process {pid} and those below it have used {used:.2g} s of CPU time in {seconds:.0f} s"
                yield Fact(looks[-1].t, rank, name, {"pid": str(pid)}, source="process", text=text)
