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

from denpexd.recording import Printed, Recording, read_case

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
    r"(?i)((?<![a-z])(?:ranks?|task)[\"']?(?: is)?\s*[:=#]?\s*\[?|\[default|^\s*\[)(\d+(?:(?:, ?| and )\d+)*)(?![\d.])"
)


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
        states=later(case.states),
        exits=later(case.exits),
    )


def renamed(case: Recording, truth: Truth, seed: str) -> tuple[Recording, Truth]:
    """The same job with its ranks renumbered at random, also where lines name them ("[rank3]", "Rank 3", "rank=3")."""
    numbers = list(range(truth.world_size))
    random.Random(seed).shuffle(numbers)

    def new(rank: int) -> int:
        return numbers[rank] if 0 <= rank < len(numbers) else rank

    def line(printed: Printed) -> Printed:
        text = _NAMED.sub(lambda m: m[1] + re.sub(r"\d+", lambda n: str(new(int(n[0]))), m[2]), printed.text)
        return replace(printed, rank=new(printed.rank), text=text)

    def ranks(events: list[Any]) -> list[Any]:
        return [replace(event, rank=new(event.rank)) for event in events]

    changed = replace(
        case,
        lines=[line(printed) for printed in case.lines],
        looks=ranks(case.looks),
        states=ranks(case.states),
        exits=ranks(case.exits),
    )
    return changed, replace(
        truth,
        initiating=tuple(sorted(map(new, truth.initiating))),
        collateral=tuple(sorted(map(new, truth.collateral))),
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
