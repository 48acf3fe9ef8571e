"""Which ranks come to a step later than the others, step after step.

Ranks that average gradients begin a step together. One that always prints a step well after the others was busy with
something of its own since, and they already wait for it. By when lines arrive that could also be another clock or a
slow mount: so it counts only against ranks of the same node, or where the rank used to keep up.
"""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from denpexd.core.events import Hit
from denpexd.core.numbers import Place
from denpexd.core.pace import seconds_of_step

if TYPE_CHECKING:
    from denpexd.core.state import JobState

SHARE = 0.3  # of a step: so much later is late
STEPS = 10  # in a row
KEPT_UP = 5  # steps at which it was not late before
OPEN = 8  # steps that some ranks have come to and others not yet
BURST = 0.5  # of the usual gap: lines that come in bursts tell no times


@dataclass(slots=True)
class Late:
    """How one rank came to its steps."""

    kept_up: int = 0
    count: int = 0  # steps in a row at which it was late
    since: float = 0.0
    delays: deque[float] = field(default_factory=lambda: deque(maxlen=64))
    last: Hit | None = None
    with_node: bool = False  # another rank of its node was in time

    def note(self, delay: float, hit: Hit, *, with_node: bool) -> None:
        if not self.count:
            self.since, self.with_node = hit.t, True
            self.delays.clear()
        self.count += 1
        self.delays.append(delay)
        self.last = hit
        self.with_node &= with_node

    @property
    def told(self) -> bool:
        """Late at each of many steps by about as much, and nothing but the rank explains it."""
        steady = self.count >= STEPS and max(self.delays) <= 2 * min(self.delays)
        return steady and (self.with_node or self.kept_up >= KEPT_UP)


@dataclass(slots=True)
class Arrivals:
    """When ranks came to the steps of the job."""

    open: dict[Place, dict[int, Hit]] = field(default_factory=dict)
    ranks: dict[int, Late] = field(default_factory=dict)
    before: Mapping[int, Hit] = field(default_factory=dict)  # the step before

    def note(self, job: "JobState", hit: Hit, place: Place) -> None:
        """A rank came to a step."""
        at = self.open.setdefault(place, {})
        at.setdefault(hit.rank, hit)
        self.ranks.setdefault(hit.rank, Late())
        complete = len(at) == len(self.ranks) > 1
        while (complete and place in self.open) or len(self.open) > OPEN:
            hits = self.open.pop(next(iter(self.open)))
            if len(hits) == len(self.ranks) and (step := seconds_of_step(job)):
                self._settle(hits, step, {r: s.node for r, s in job.ranks.items()})

    def _settle(self, hits: Mapping[int, Hit], step: float, nodes: Mapping[int, str | None]) -> None:
        """Compare those who came to one step; `step` seconds is what one takes."""
        usual = sorted(hit.t for hit in hits.values())[(len(hits) - 1) // 2]
        delays = {rank: hit.t - usual for rank, hit in hits.items()}
        late = {rank: delay for rank, delay in delays.items() if delay >= SHARE * step}
        rest = [abs(delay) for rank, delay in delays.items() if rank not in late]
        clear = 2 * len(late) <= len(hits) and (not late or 3 * max(rest) <= min(late.values()))
        gaps = {r: hit.t - self.before[r].t for r, hit in hits.items() if r in self.before}
        gap = sorted(gaps.values())[len(gaps) // 2] if gaps else 0.0
        alike = len({hit.signal for hit in hits.values()}) == 1
        in_time = {nodes[rank] for rank in hits if rank not in late and nodes.get(rank)}
        for rank, known in self.ranks.items():
            if rank in late and clear and alike and late[rank] < step and gaps.get(rank, gap) >= BURST * gap:
                known.note(late[rank], hits[rank], with_node=nodes.get(rank) in in_time)
            elif rank in late:
                known.count = 0
            else:
                known.kept_up += delays[rank] < SHARE / 3 * step
                known.count = 0
        self.before = hits
