"""Who can be asked about the processes of a node."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from denpexd.core.events import Event, Want
from denpexd.evidence.procs import RankProcess


class Witness(Protocol):
    """A witness that is asked about all ranks of this node at once."""

    async def collect(self, here: Sequence[RankProcess]) -> list[Event]:
        """What it says; EvidenceUnavailable: why it says nothing."""
        ...

    async def plan(self, here: Sequence[RankProcess]) -> list[str]:
        """What `collect` would ask, without asking it."""
        ...


class CollectorLike(Protocol):
    """Who answers wishes for evidence: evidence.collect.Collector on a node, a recording in the demo."""

    @property
    def counts(self) -> Mapping[tuple[str, str], int]:
        """Looks so far, by kind and outcome."""

    @property
    def seconds(self) -> Mapping[str, float]:
        """Time spent looking, by kind."""

    @property
    def pause(self) -> float:
        """Seconds of the longest look at one process."""

    async def attach(self, paths: Iterable[Path]) -> dict[Path, int]:
        """Which rank writes which of the files, as far as processes tell; UNKNOWN_RANK: more than one."""

    async def watch(self) -> list[Event]:
        """What became of the processes since the last call."""

    async def collect(self, want: Want) -> list[Event]:
        """The answer to one wish."""
