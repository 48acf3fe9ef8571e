"""One look at the stacks of several ranks: a few at a time, within a deadline, and at workers that a rank waits for."""

import asyncio
import logging
import shlex
from collections.abc import Awaitable, Sequence
from dataclasses import replace

from denpexd.clock import Clock
from denpexd.core.events import Frames
from denpexd.errors import EvidenceUnavailable
from denpexd.evidence import worker_server
from denpexd.evidence.procs import Processes, RankProcess
from denpexd.evidence.stacks import PySpy, add_worker, command

log = logging.getLogger(__name__)

_AT_ONCE = 8
_WORKERS_PER_RANK = 8
# A rank whose main thread stands in one of these waits for a process below it; further out they only started it.
_INNERMOST = 12
_WAITS_FOR_WORKERS = ("torch/utils/data/", "multiprocessing/", "concurrent/futures/", "queue.py", "subprocess.py")

Answers = dict[int, Frames | EvidenceUnavailable | None]


class Looks:
    """Use from one event loop; calls wait for each other, so that no process is looked at twice at the same time."""

    def __init__(self, processes: Processes, clock: Clock, spy: PySpy, deadline: float) -> None:
        self._processes, self._clock, self._spy, self._deadline = processes, clock, spy, deadline
        self._lock = asyncio.Lock()
        self.longest = 0.0  # seconds that one look at one process has taken

    async def at(self, here: Sequence[RankProcess]) -> Answers:
        """By rank: its stack, why there is none, or None if it is gone; those not done in time are left out."""
        answers: Answers = {}
        async with self._lock:
            gate = asyncio.Semaphore(_AT_ONCE)
            try:
                # A group waits until every look has ended and taken its py-spy with it, also when the time is up.
                async with asyncio.timeout(self._deadline), asyncio.TaskGroup() as looks:
                    for process in here:
                        looks.create_task(self._look(process, gate, answers))
            except TimeoutError:
                log.warning("stacks of %d ranks were not there after %g s", len(here) - len(answers), self._deadline)
        return answers

    async def plan(self, here: Sequence[RankProcess]) -> list[str]:
        """The commands of one look."""
        return [f"{shlex.join(command('py-spy', process.pid))} (rank {process.rank})" for process in here]

    async def _look(self, process: RankProcess, gate: asyncio.Semaphore, answers: Answers) -> None:
        """The stack of one rank, then those of its workers if it waits for one; None in `answers`: it is gone."""
        rank = process.rank
        async with gate:
            before = await asyncio.to_thread(self._processes.again, process)
            if before is None:
                answers[rank] = None
                return
            answer: Frames | EvidenceUnavailable
            try:
                frames = await self._dump(process)
                answer = replace(frames, t=self._clock.now(), ticks=before.ticks, state=before.state)
            except EvidenceUnavailable as error:
                answer = error
            # The same process before and after: only then the stack is this rank's.
            alive = await asyncio.to_thread(self._processes.again, process)
            answers[rank] = answer if alive is not None else None
        if alive is not None and isinstance(answer, Frames) and _waits_for_worker(answer):
            for pid in process.children[:_WORKERS_PER_RANK]:
                async with gate:
                    try:
                        worker = await self._timed(self._spy.dump(pid, rank, self._clock.now()))
                    except EvidenceUnavailable as error:
                        log.debug("no stack of worker %d of rank %d: %s", pid, rank, error)
                        continue
                answers[rank] = answer = add_worker(answer, f"worker {pid}", worker)

    async def _dump(self, process: RankProcess) -> Frames:
        """By py-spy; where it cannot look, by the job's own worker server if it has one."""
        try:
            return await self._timed(self._spy.dump(process.pid, process.rank, self._clock.now()))
        except EvidenceUnavailable:
            name = worker_server.VARIABLE
            path = (await asyncio.to_thread(self._processes.environ, process, (name,))).get(name)
            if not path:
                raise
            return await self._timed(worker_server.stack(path, process.pid, process.rank, self._clock.now()))

    async def _timed(self, look: Awaitable[Frames]) -> Frames:
        began = self._clock.now()
        try:
            return await look
        finally:
            self.longest = max(self.longest, self._clock.now() - began)


def _waits_for_worker(frames: Frames) -> bool:
    return any(frame.path.startswith(_WAITS_FOR_WORKERS) for frame in frames.frames[:_INNERMOST])
