"""When a silent job is looked at, and by which witnesses: cheap ones early and again, costly ones late and rarely."""

from collections.abc import Iterator

from denpexd.core import cadence
from denpexd.core.events import Want
from denpexd.core.state import JobState

BACK_OFF = (5.0, 5.0, 10.0, 15.0, 30.0, 60.0, 120.0, 300.0)  # on a busy node a look may fail or be torn
QUERIES, APART = 2, 12.0  # of RAS in one standstill: what two answers agree on stands still
SLOWER = (1.5, 15.0)  # times as long a step as before, for so many seconds
GPUS_EVERY = 120.0  # seconds between two questions about the state of the GPUs
AWAITED = ("eval", "checkpoint", "compile", "load", "init", "end")  # phases in which ranks wait for each other


class Asking:
    """Of one job. `suspected` counts the times it fell silent beyond its rhythm."""

    def __init__(self) -> None:
        self.suspected = 0
        self._looks, self._next_look = 0, float("-inf")
        self._queries, self._next_query = 0, float("-inf")
        self._next_gpus = float("-inf")
        self._dumped = False

    def anew(self) -> None:
        """Another attempt: the next silence is a new one."""
        self._looks = self._queries = 0
        self._dumped = False

    def at(self, now: float, job: JobState, limits: cadence.Limits, *, slow: bool = False) -> Iterator[Want]:
        """What to ask at this tick. `slow`: a rank is slower than the others."""
        silence = job.silence(now)
        if job.over or (job.ended and not any(s.pid for s in job.ranks.values())):
            self.anew()
        elif silence >= cadence.suspicion(limits, job.usual):
            yield from self._stacks(now, silence)
            yield from self._ras(now, job, silence, limits)
            if silence >= cadence.page(limits, job.usual):
                yield from self._gpus(now, f"no progress for {silence:.0f} s")
            yield from self._dumps(now, silence)
        else:
            self.anew()
            self._next_look = self._next_query = float("-inf")
            if now >= self._next_gpus and (slow or job.tempo.slower(*SLOWER) is not None):
                yield from self._gpus(now, "training has become slow")

    @staticmethod
    def of_raised(now: float, rank: int) -> Want:
        """What to ask when a rank has printed an exception."""
        return Want(now, "process", (rank,) if rank >= 0 else (), "an exception was printed")

    def _stacks(self, now: float, silence: float) -> Iterator[Want]:
        if now < self._next_look:
            return
        if self._looks == 0:
            self.suspected += 1
        yield Want(now, "stacks", (), f"no progress for {silence:.0f} s")
        self._next_look = now + BACK_OFF[min(self._looks, len(BACK_OFF) - 1)]
        self._looks += 1

    def _dumps(self, now: float, silence: float) -> Iterator[Want]:
        """Once in a standstill, when some looks have found it unchanged: a rank that writes its dump works for us."""
        if self._looks > 3 and not self._dumped:
            self._dumped = True
            yield Want(now, "dumps", (), f"no progress for {silence:.0f} s")

    def _gpus(self, now: float, why: str) -> Iterator[Want]:
        if now >= self._next_gpus:
            self._next_gpus = now + GPUS_EVERY
            yield Want(now, "gpu", (), why)

    def _ras(self, now: float, job: JobState, silence: float, limits: cadence.Limits) -> Iterator[Want]:
        """Not before a page could be due, nor while communicators are made, nor early in a phase that is long."""
        if self._queries >= QUERIES or now < self._next_query or job.usual is None:
            return
        phase, busiest = job.last_phase, job.busiest
        due = cadence.page(limits, job.usual)
        if phase in AWAITED and busiest is not None:
            due = max(due, cadence.budget(limits, phase, busiest.rhythm) / 2)
        if silence < due:
            return
        yield Want(now, "ras", (), f"no progress for {silence:.0f} s")
        self._next_query = now + APART
        self._queries += 1
