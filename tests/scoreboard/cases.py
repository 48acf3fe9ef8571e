"""The cases and their truth, and how a case is changed without changing its truth.

A case is a folder: what the ranks printed, what their processes would have answered, how they ended, and in case.yaml
the truth. The truth is read here only; what is played is a Recording, which knows nothing of it.
"""

import random
import re
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from denpexd.core.flight import Dump
from denpexd.recording import Printed, Recording, read_case
from denpexd.scan.launcher import is_launcher_line

ARCHIVE = Path(__file__).parent / "cases.tar.xz"
BENIGN = (
    "INFO data: shard 17 opened in 0.31 s",
    "DEBUG prefetch: queue holds 4 batches, 0 errors, 0 timeouts",
    "2025-10-14 03:00:10,000 [INFO] monitor: gpu 71 C, 402 W, memory 61.3/80.0 GiB, no failed checks",
    "I1014 03:00:10.000000 4332 metrics.cc:88] flushed 12 points, dropped 0",
    "watchdog thread alive, nothing pending",
    "retry policy: up to 5 retries, timeout 30 s",
    "/opt/conda/lib/python3.11/site-packages/x/y.py:41: UserWarning: this setting is ignored",
    '{"event": "heartbeat", "ok": true, "error": null}',
    "lr 3.0e-04 wd 0.1 beta2 0.95",
    "cache hit rate 0.993, evicted 0",
)
_NAMED = re.compile(
    r"(?i)((?<![a-z])(?:ranks?|task)[\"']?(?: is)?\s*[:=#]?\s*\[?|\[default|^[\s-]*\[)"
    r"(\d+(?:(?:, ?| and )\d+)*)(?![\d.])"
)
_STORE = re.compile(r"TCPStore|\[c10d\]|coordination (?:service|agent)")
_AGENT = re.compile(r"(HW Exception by GPU node-)(\d+)")  # ROCm counts the two sockets of the host first


@dataclass(frozen=True, slots=True)
class Truth:
    """What is right about a case. `failure` None: nothing is wrong and no incident may open."""

    failure: str | None
    acceptable: tuple[str, ...]
    initiating: tuple[int, ...]
    collateral: tuple[int, ...]
    hang: bool
    first_evidence_t: float
    recorded: bool
    world_size: int


def cases(folder: Path) -> Iterator[tuple[str, Recording, Truth]]:
    """Every case of the archive by name, unpacked below `folder`."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(folder, filter="data")
    for path in sorted(folder.glob("*/case.yaml")):
        yield path.parent.name, read_case(path.parent), _truth(yaml.safe_load(path.read_text()))


def _truth(about: Mapping[str, Any]) -> Truth:
    said = about["expect"]
    return Truth(
        said["failure"],
        tuple(said.get("acceptable") or ()),
        tuple(sorted(said.get("initiating_ranks") or ())),
        tuple(said.get("collateral_ranks") or ()),
        bool(said.get("hang")),
        float(said.get("first_evidence_t") or 0.0),
        about.get("origin") == "recorded",
        int(about["world_size"]),
    )


# --- changes that leave the truth as it is ----------------------------------------------------------------------------


def shifted(case: Recording, seconds: float) -> Recording:
    """The same job, `seconds` later on the clock of the recording."""

    def later(events: list[Any]) -> list[Any]:
        return [replace(event, t=event.t + seconds) for event in events]

    return replace(
        case,
        start=case.start + seconds,
        observe_until=case.observe_until + seconds,
        lines=later(case.lines),
        looks=later(case.looks),
        dumps=later(case.dumps),
        states=later(case.states),
        exits=later(case.exits),
    )


@dataclass(frozen=True, slots=True)
class Numbers:
    """New numbers for ranks: nodes change places, and the ranks of each node among themselves."""

    nodes: list[int]
    local: list[int]

    @classmethod
    def drawn(cls, case: Recording, truth: Truth, seed: str) -> "Numbers":
        """Two things stay as they are, because they would no longer be true: the ranks of a node have consecutive
        numbers (where several launchers speak, each in the stream of the first rank of its node); and rank 0 hosts the
        store, so it remains rank 0 where it began the failure and the others say that they cannot reach the store."""
        heads = sorted({0} | {p.rank for p in case.lines if is_launcher_line(p.text) and p.rank > 0})
        size = heads[1] if len(heads) > 1 else truth.world_size
        even = size * len(heads) == truth.world_size and heads == list(range(0, truth.world_size, size))
        numbers = cls(list(range(len(heads) if even else 1)), list(range(size if even else truth.world_size)))
        chance = random.Random(seed)
        for some in (numbers.local, numbers.nodes):
            chance.shuffle(some)
            if 0 in truth.initiating and any(_STORE.search(p.text) for p in case.lines):
                was = some.index(0)
                some[0], some[was] = 0, some[0]
        return numbers

    def of_rank(self, rank: int) -> int:
        node, local = divmod(rank, len(self.local))
        return self.nodes[node] * len(self.local) + self.local[local] if 0 <= node < len(self.nodes) else rank

    def of_launcher(self, rank: int) -> int:
        """The stream in which a launcher speaks: that of the first rank of its node."""
        return self.of_rank(rank) // len(self.local) * len(self.local) + rank % len(self.local)

    def in_text(self, text: str) -> str:
        """Where lines name ranks: "[rank3]", "Rank 3", "rank=3"; and ROCm's agents, which tell whose the GPU is."""

        def new(found: re.Match[str]) -> str:
            local = text.endswith(("local_", "local "), 0, found.start())
            count = len(self.local)
            return found[1] + re.sub(
                r"\d+",
                lambda n: str(self.local[int(n[0])] if local and int(n[0]) < count else self.of_rank(int(n[0]))),
                found[2],
            )

        text = _NAMED.sub(new, text)
        return _AGENT.sub(lambda m: m[1] + str(2 + self.of_rank(int(m[2]) - 2)), text)


def renamed(case: Recording, truth: Truth, seed: str) -> tuple[Recording, Truth]:
    """The same job with its ranks renumbered at random. What a launcher prints, often several lines, stays its own."""
    numbers = Numbers.drawn(case, truth, seed)
    launched: dict[int, float] = {}

    def line(printed: Printed) -> Printed:
        if is_launcher_line(printed.text):
            launched[printed.rank] = printed.t
        goes_on = printed.t <= launched.get(printed.rank, -1.0) + 0.2 and not printed.text.startswith("[rank")
        rank = numbers.of_launcher(printed.rank) if goes_on else numbers.of_rank(printed.rank)
        return replace(printed, rank=rank, text=numbers.in_text(printed.text))

    def ranks(events: list[Any]) -> list[Any]:
        return [replace(event, rank=numbers.of_rank(event.rank)) for event in events]

    def members(dump: Dump) -> Dump:
        others = {name: tuple(sorted(map(numbers.of_rank, group))) for name, group in dump.members.items()}
        return replace(dump, rank=numbers.of_rank(dump.rank), members=others)

    changed = replace(
        case,
        lines=[line(printed) for printed in case.lines],
        looks=ranks(case.looks),
        dumps=[members(dump) for dump in case.dumps],
        states=ranks(case.states),
        exits=ranks(case.exits),
    )
    return changed, replace(
        truth,
        initiating=tuple(sorted(map(numbers.of_rank, truth.initiating))),
        collateral=tuple(sorted(map(numbers.of_rank, truth.collateral))),
    )


def noisy(case: Recording, times: int) -> Recording:
    """`times` benign lines for each line of each rank, printed together with its steps, never inside a traceback."""
    lines: list[Printed] = []
    owed: dict[int, int] = {}
    for printed in case.lines:
        owed[printed.rank] = owed.get(printed.rank, 0) + times
        if re.search(r"(?i)\b(?:step|iter\w*|loss|epoch)\W{1,4}\d", printed.text):
            count = owed.pop(printed.rank)
            lines += [replace(printed, text=BENIGN[n % len(BENIGN)]) for n in range(count)]
        lines.append(printed)
    return replace(case, lines=lines)
