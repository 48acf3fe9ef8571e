"""Which ranks are stopped or stuck in the kernel: the same state without a CPU tick, look after look."""

from denpexd.core.events import Event, Fact
from denpexd.evidence.procs import RankProcess

# Looks in a row, about one a second, until a state counts: disk sleep is everyday, a debugger's stop may be short.
_LOOKS_UNTIL_FROZEN = {"T": 1, "t": 2, "D": 5}


class FrozenRanks:
    """What earlier looks at the processes of this node's ranks have shown; at most one entry a rank."""

    def __init__(self) -> None:
        self._still: dict[int, tuple[RankProcess, int]] = {}
        self._frozen: dict[int, RankProcess] = {}

    def __contains__(self, rank: int) -> bool:
        return rank in self._frozen

    def look(self, t: float, process: RankProcess) -> list[Event]:
        """Whether a rank stopped or went on: the same state, without a CPU tick, for as many looks as it needs."""
        rank = process.rank
        before, looks = self._still.get(rank, (process, 0))
        same = process.is_same(before) and (process.state, process.ticks) == (before.state, before.ticks)
        looks = looks + 1 if same else 1
        self._still[rank] = (process, looks)
        needed = 1 if process.in_freezer else _LOOKS_UNTIL_FROZEN.get(process.state)
        if needed is not None and looks >= needed:
            is_news = rank not in self._frozen
            self._frozen[rank] = process
            return [frozen(t, process)] if is_news else []
        if needed is None and self._frozen.pop(rank, None) is not None:
            return [Fact(t, rank, "resumed", {"state": process.state}, source="process")]
        return []

    def began(self, t: float, process: RankProcess) -> list[Event]:
        """A rank has a new process."""
        self._frozen.pop(process.rank, None)
        return self.look(t, process)

    def forget(self, rank: int) -> None:
        self._still.pop(rank, None)
        self._frozen.pop(rank, None)


def frozen(t: float, process: RankProcess) -> Fact:
    """A stopped or stuck process, with what the kernel says about it."""
    where = f" in {process.wchan}" if process.wchan else ""
    fields = {"state": process.state, "pid": str(process.pid), "wchan": process.wchan or ""}
    text = f"process {process.pid} of rank {process.rank} is in state {process.state}{where}"
    return Fact(t, process.rank, "frozen", fields, source="process", text=text)
