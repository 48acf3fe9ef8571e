"""What each rank has shown so far, bounded: the memory of the correlator.

Events only update this state; judging happens elsewhere. Everything kept is an Evidence: enough to quote it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import TypeVar, cast

from denpexd.core.arrivals import Arrivals
from denpexd.core.devices import Devices
from denpexd.core.events import UNKNOWN_RANK
from denpexd.core.evidence import Evidence
from denpexd.core.flight_verdict import Analysis
from denpexd.core.pace import SlowRanks, Tempo
from denpexd.core.rank import RankState
from denpexd.core.records import Collective, Launch, Processes, Round, Told
from denpexd.core.timers import Timers
from denpexd.core.twins import Twins

T = TypeVar("T")

MAX_GROUPS = 256  # process groups a rank may name
MAX_TOLD = 64  # of one event
MAX_ROUNDS = 64
MAX_MET = 20_000  # ranks; what further ones say is not remembered


@dataclass(frozen=True, slots=True)
class Shown:
    """What any rank has shown: ids of signals seen, that fit frames of stacks and exceptions, names of states and
    phases; whether there is an exception, an exit, ...
    """

    seen: frozenset[str]
    frames: frozenset[str]
    fits: frozenset[str]
    states: frozenset[str]
    phases: frozenset[str]
    raised: bool
    exits: bool
    reported: bool
    dumps: bool
    collectives: bool
    metrics: bool
    nonfinite: bool
    settings: bool


@dataclass(slots=True)
class JobState:
    """All ranks of one attempt of one job, and what is known about the job as a whole."""

    job: str
    started_t: float
    attempt: int = 0
    world_size: int | None = None
    ranks: dict[int, RankState] = field(default_factory=dict)
    moved_t: float | None = None
    moved_seq: int = -1
    moves: int = 0
    trained_t: float = float("-inf")  # a training step of any rank
    spoke_t: float = float("-inf")  # a phase line, or any line of a job whose progress lines are not known
    blind_until: float = float("-inf")
    devices: Devices = field(default_factory=Devices)
    recent: bool = True
    seq: int = 0
    # Answers already given while the state stands still, as in one round of judging; None: keep none.
    memo: dict[object, object] | None = None
    # The same, of answers that no passing of time changes: kept until the next event. None while one is taken in.
    kept: dict[object, object] | None = None
    asks_all: bool = False  # somebody wants to know all that holds, not only what decides
    tempo: Tempo = field(default_factory=Tempo)
    numbers_seq: int = -1  # of the newest number that was read
    slow: SlowRanks = field(default_factory=SlowRanks)
    twins: dict[str, Twins] = field(default_factory=dict)  # by number
    timers: Timers = field(default_factory=Timers)
    arrivals: Arrivals = field(default_factory=Arrivals)
    processes: Processes = field(default_factory=Processes)
    told: dict[str, list[Told]] = field(default_factory=dict)  # by event
    flight_known: tuple[object, Analysis, Mapping[int, Mapping[str, Collective]]] | None = None
    rounds: list[Round] = field(default_factory=list)
    launch: Launch = field(default_factory=Launch)
    unmet: int = 0  # times that a rank beyond MAX_MET was spoken of
    _usual: tuple[int, float | None] = (-1, None)  # as it was after so many movements

    def rank(self, number: int) -> RankState:
        """The state of a rank, remembered from now on, unless too many ranks were met already."""
        state = self.ranks.get(number)
        if state is None:
            if len(self.ranks) > MAX_MET and number >= 0:
                self.unmet += 1
                return RankState(number)
            state = self.ranks[number] = RankState(number)
        return state

    def forget(self) -> None:
        """What was shown until now belongs to a stop that is over."""
        for state in self.ranks.values():
            state.forget(self.seq)
        self.devices.forget(self.seq)
        if self.kept is not None:
            self.kept = {}

    @property
    def universe(self) -> list[int]:
        """The global ranks of the job: 0..world_size-1 where that is known, else those met so far."""
        return self.lasting("universe", self._universe)

    def _universe(self) -> list[int]:
        met = {r for r in self.ranks if r >= 0}
        if self.world_size is not None:
            met |= set(range(self.world_size))
        return sorted(met)

    @property
    def voices(self) -> list[int]:
        """The ranks of which something is known, or the stream of no rank where only that tells of training."""
        return self.lasting("voices", self._voices)

    def _voices(self) -> list[int]:
        unplaced = self.ranks.get(UNKNOWN_RANK)
        alone = unplaced is not None and unplaced.moved_t > float("-inf")
        return [UNKNOWN_RANK] if alone and not any(s.heard for r, s in self.ranks.items() if r >= 0) else self.universe

    @property
    def usual(self) -> float | None:
        """Usual seconds between two movements of the rank that moves most often; it changes with a movement only."""
        if self._usual[0] != self.moves:
            known = [usual for s in self.ranks.values() if (usual := s.rhythm.usual) is not None]
            self._usual = self.moves, min(known) if known else None
        return self._usual[1]

    @property
    def shown(self) -> Shown:
        """What any rank has shown so far."""
        return self.lasting("shown", self._shown)

    def _shown(self) -> Shown:
        ranks = self.ranks.values()
        stacks = [s.snapshots for s in ranks if s.snapshots]
        dumps = any(s.dump for s in ranks)
        return Shown(
            seen=frozenset().union(*(s.seen for s in ranks)),
            frames=frozenset(("",) if stacks else ()).union(*(one.hits for each in stacks for one in each.values())),
            fits=frozenset().union(*{known.fits for s in ranks for known in s.raised}),
            states=frozenset().union(*(s.states for s in ranks)),
            phases=frozenset(s.phase for s in ranks),
            raised=any(s.raised for s in ranks),
            exits=any(s.exits for s in ranks),
            reported=any(s.reported for s in ranks),
            dumps=dumps,
            collectives=dumps or any(s.collectives for s in ranks),
            metrics=any(s.metrics for s in ranks),
            nonfinite=any(s.numbers.bad for s in ranks),
            settings=any(s.settings for s in ranks),
        )

    def once(self, key: object, answer: Callable[[], T]) -> T:
        """The answer; while a round of judging lasts, that of the first time."""
        if self.memo is None:
            return answer()
        if key not in self.memo:
            self.memo[key] = answer()
        return cast(T, self.memo[key])

    def lasting(self, key: object, answer: Callable[[], T]) -> T:
        """The answer, which only an event can change: ten thousand silent ranks are not asked again every second."""
        if self.kept is None:
            return self.once(key, answer)
        if key not in self.kept:
            self.kept[key] = answer()
        return cast(T, self.kept[key])

    @property
    def pace(self) -> float | None:
        """Usual seconds between two movements or, where progress lines are not known, between any two outputs."""
        return self.usual if self.usual is not None else self.lasting("pace", self._pace)

    def _pace(self) -> float | None:
        gaps = [b - a for s in self.ranks.values() for a, b in zip(s.ordinary, list(s.ordinary)[1:], strict=False)]
        return median(gaps) if len(gaps) > 3 else None

    @property
    def proof(self) -> float:
        """Seconds in which a job that survived something shows it: by steps or, where they are not known, by output."""
        return 5.0 + 5 * (self.pace or 0.0)

    def lively(self, t: float) -> bool:
        """Whether some rank went on printing as if nothing had happened, well after `t`."""
        return self.lasting("lively", self._lively) > t + max(5.0, 2 * (self.pace or 0.0))

    def _lively(self) -> float:
        """Since when some rank that has reported nothing printed at least three times."""
        alive = (s for r, s in self.ranks.items() if r >= 0 and not s.reported and len(s.ordinary) > 2)
        return max((s.ordinary[-3] for s in alive), default=float("-inf"))

    def moved_on(self, rank: RankState, t: float) -> bool:
        """Whether the rank moved after `t`, or the job made a training step, which needs all ranks.

        Steps already in flight still appear after a failure, hence the grace of two usual gaps.
        """
        moved = max(rank.moved_t, self.trained_t)
        return moved > t + 2.0 and moved > t + 2 * (self.usual or 0.0)

    def lapsed(self, rank: RankState, t: float) -> bool:
        """Training moved on after `t` (or, where its steps are not known, its output did): that did not stop it."""
        return self.moved_on(rank, t) or (self.usual is None and self.lively(t))

    def quiet(self, now: float) -> float:
        """Seconds without any unremarkable output, of any rank."""
        return min(self.silence(now), now - self.lasting("ordinary", self._ordinary))

    def _ordinary(self) -> float:
        return max((s.ordinary[-1] for s in self.ranks.values() if s.ordinary), default=float("-inf"))

    @property
    def over(self) -> bool:
        """Every rank that was heard from, or the launcher, has ended: nobody will say anything more."""
        return self.lasting("over", self._over)

    def _over(self) -> bool:
        launcher = self.ranks.get(-1)
        if launcher is not None and launcher.exits:
            return True
        heard = [s for r, s in self.ranks.items() if r >= 0 and s.heard]
        return bool(heard) and all(s.gone for s in heard)

    @property
    def clean(self) -> bool:
        """Every rank that was heard from ended with exit code 0."""
        return self.lasting("clean", self._clean)

    def _clean(self) -> bool:
        heard = [s for r, s in self.ranks.items() if r >= 0 and s.heard]
        return bool(heard) and all(s.gone and {e.event.code for e in s.exits} - {None} == {0} for s in heard)

    @property
    def ended(self) -> bool:
        """Every rank that tells its steps (or, if none does, anything) said that training is over, or is gone."""
        return self.lasting("ended", self._ended)

    def _ended(self) -> bool:
        heard = [s for r, s in self.ranks.items() if r >= 0 and s.heard]
        tell = [s for s in heard if s.moves] or heard
        return self.over or (bool(tell) and all(s.phase == "end" or s.gone for s in tell))

    @property
    def busiest(self) -> RankState | None:
        """The rank that tells most about progress."""
        return self.lasting("busiest", self._busiest)

    def _busiest(self) -> RankState | None:
        moving = [s for s in self.ranks.values() if s.moves]
        return max(moving, key=lambda s: (s.moves, -s.rank)) if moving else None

    def trains(self, now: float) -> bool:
        """Whether it has moved lately: within ten of its usual gaps, or two minutes."""
        return self.moved_t is not None and now - self.moved_t <= max(120.0, 10 * (self.usual or 0.0))

    def silence(self, now: float) -> float:
        """Seconds since anything moved (or since we started to look, or could look again)."""
        last = self.moved_t if self.moved_t is not None else self.started_t
        return now - max(last, self.spoke_t, self.blind_until, self.started_t)

    @property
    def last_phase(self) -> str:
        """The phase the job was in when it fell silent: the newest phase line of any rank."""
        return self.lasting("last_phase", self._last_phase)

    def _last_phase(self) -> str:
        known = [s for s in self.ranks.values() if s.phase != "start"]
        return max(known, key=lambda s: s.phase_t).phase if known else "start"


Answer = list[Evidence]  # what a fact gives: empty when it does not hold


def observed(rank: RankState, now: float, text: str, means: str, *, kind: str = "core") -> Evidence:
    """What the correlator itself saw about a rank."""
    return Evidence(rank.rank, kind, "denpexd", 0, now, text, means, seq=rank.moved_seq)
