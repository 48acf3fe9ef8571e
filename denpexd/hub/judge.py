"""Judges the jobs of partitions up to a time, tick by tick, as a daemon judges its own."""

import logging
from collections.abc import Awaitable, Callable, Sequence
from math import floor

from denpexd.clock import Clock
from denpexd.core import cadence
from denpexd.core.events import UNKNOWN_RANK, Event, Fact, Tick
from denpexd.core.state import JobState
from denpexd.core.witnesses import NODE_GONE
from denpexd.hub.merge import SETTLE, Node
from denpexd.hub.part import Job, Part
from denpexd.hub.takeover import Takeover
from denpexd.pipeline import Pipeline
from denpexd.watched import Outcome

log = logging.getLogger(__name__)

TURN = 0.05  # seconds of judging after which all else has its turn
MOST_STEPS = 60  # ticks in which any backlog is judged
MISSED = 60.0  # seconds before a node's last word in which others may have begun to miss it
_FAULTS = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)  # what wrong data causes


class Judge:
    """`handle`: makes what follows durable."""

    def __init__(
        self, pipeline: Pipeline, takeover: Takeover, clock: Clock, handle: Callable[[Outcome], Awaitable[None]]
    ) -> None:
        self._pipeline, self._takeover, self._clock, self._handle = pipeline, takeover, clock, handle

    async def judge(self, parts: Sequence[Part]) -> None:
        """All jobs of these partitions, up to SETTLE before their present."""
        began = self._clock.now()
        for part in parts:
            present = part.present
            if not part.live or part.blind or present is None:
                continue
            for job in list(part.jobs.values()):
                try:
                    await self._catch_up(job, present - SETTLE)
                except _FAULTS:  # of one job: the others must not end with it, nor every hub after us
                    log.exception("job %s cannot be judged and begins anew", job.name)
                    self._pipeline.leave(job.name)
                    part.jobs[job.name] = Job(job.name, part)
                if self._clock.now() - began > TURN:
                    await self._clock.sleep(0)
                    began = self._clock.now()
                if not part.ours:
                    break
            part.judged(min((job.ticked for job in part.jobs.values() if job.ticked is not None), default=present))
            self._forget(part)

    def _forget(self, part: Part) -> None:
        for name, job in list(part.jobs.items()):
            if job.ticked is not None and name not in self._pipeline.jobs and not job.merge.waiting:
                del part.jobs[name]  # quiet for a day, and forgotten

    async def _catch_up(self, job: Job, until: float) -> None:
        if job.ticked is None:
            if (first := job.merge.first) is None or first > until:
                return
            job.ticked = floor(first)  # ticks come on a grid of whole seconds
            self._pipeline.job(job.name, first)
        outcome = Outcome()
        step = max(1.0, (until - job.ticked) / MOST_STEPS)
        while job.ticked + step <= until + 1e-6:
            t = job.ticked = job.ticked + step
            watched = self._pipeline.job(job.name, t)
            if job.told:
                outcome.merge(self._takeover.told_alone(job, t))
            for batch in job.merge.due(t):
                watched.heard = t
                outcome.merge(self._pipeline.take(watched, batch))
            outcome.merge(self._pipeline.take(watched, [*_unheard(job, watched.core.job, t), Tick(t)]))
        await self._handle(outcome)


def _unheard(job: Job, state: JobState, t: float) -> list[Event]:
    """What it means for the job that nodes are silent."""
    events: list[Event] = []
    for node, facts in job.merge.fell_silent(t + SETTLE):
        log.info("job %s: node %s %s", job.name, node.name, "has left" if node.left else "is not heard any more")
        events += facts
    for node in job.merge.nodes.values():
        if node.silent and not (node.left or node.gone) and _is_missed(node, state, t):
            node.gone = True
            silence = t + SETTLE - node.heard
            text = f"node {node.name} has sent nothing for {silence:.0f} s: neither its ranks nor its denpexd"
            events.append(Fact(t, UNKNOWN_RANK, NODE_GONE, {"node": node.name}, f"hub {job.part.hub}", text=text))
    return events


def _is_missed(node: Node, state: JobState, t: float) -> bool:
    """Whether the ranks elsewhere miss a silent node, or training stands for long."""
    if not node.ranks:
        return False
    if state.moved_t is not None and state.moved_t > node.heard + max(2.0, 2 * (state.usual or 0.0)):
        return False
    reported = [
        s.reported.t for r, s in state.ranks.items() if s.reported is not None and r >= 0 and r not in node.ranks
    ]
    patience = max(120.0, 10 * state.usual) if state.usual is not None and state.last_phase == "train" else None
    busiest = state.busiest
    if patience is None and busiest is not None:
        patience = cadence.budget(cadence.Limits(), state.last_phase, busiest.rhythm)
    stands = patience is not None and state.silence(t) >= patience
    return stands or any(at >= node.heard - MISSED for at in reported)
