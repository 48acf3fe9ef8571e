"""A recorded job: what it printed, what its processes would have answered, how they ended.

Read from a case folder (timeline.jsonl, case.yaml, stacks/, snapshot.json) or made from a rule's example. The truth
that a case may hold beside it is never read here.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from denpexd.catalog.examples import RAS_FACTS, FactAt, LineAt, StackAt, TimelineEvent
from denpexd.core.events import Exit, Fact, Frames
from denpexd.errors import CaseError
from denpexd.evidence.stacks import parse_text


@dataclass(frozen=True, slots=True)
class Printed:
    """One line as a rank (or -1: the launcher, an unsplit stream) printed it, `t` seconds after the start."""

    t: float
    rank: int
    stream: str
    text: str


@dataclass(slots=True)
class Recording:
    """Everything a replay needs. `looks` answer requests from their time on, until the rank has exited.

    `start`: when watching begins.
    """

    name: str
    world_size: int | None
    observe_until: float
    lines: list[Printed] = field(default_factory=list)
    looks: list[Frames] = field(default_factory=list)
    states: list[Fact] = field(default_factory=list)
    exits: list[Exit] = field(default_factory=list)
    start: float = 0.0

    def answer(self, rank: int, t: float) -> list[Frames]:
        """The stack that a look at `rank` at time `t` would have shown, if it was recorded."""
        known = [look for look in self.looks if look.rank == rank and look.t <= t]
        return [known[-1]] if known and not self.exited(rank, t) else []

    def exited(self, rank: int, t: float) -> bool:
        return any(e.rank == rank and e.t <= t for e in self.exits)


def read_case(folder: Path) -> Recording:
    """Read a case folder; CaseError says which file is missing or broken, and where."""
    about = _yaml(folder / "case.yaml")
    lines = list(_timeline(folder / "timeline.jsonl"))
    last = lines[-1].t if lines else 0.0
    try:
        world = about.get("world_size")
        until = float(about.get("observe_until", last + 60.0))
        evidence_t = float(about.get("evidence_t", last))
        exits = [Exit(float(e["t"]), int(rank), int(e["code"])) for rank, e in (about.get("exits") or {}).items()]
    except (TypeError, ValueError, KeyError) as wrong:
        raise CaseError(
            f"{folder / 'case.yaml'}: {wrong!r}; expected world_size, observe_until, exits as numbers"
        ) from None
    recording = Recording(
        str(about.get("id") or folder.name), world, until, lines, exits=sorted(exits, key=lambda e: e.t)
    )
    states = _snapshot(folder / "snapshot.json")
    for path in sorted((folder / "stacks").glob("rank*.txt")):
        number = path.stem.removeprefix("rank")
        if number.isdigit():
            look = parse_text(path.read_text(errors="replace"), int(number), evidence_t)
            if look is not None:
                recording.looks.append(look)
    recording.states = [
        Fact(evidence_t, rank, "frozen", text=f"process state {state}", source="/proc")
        for rank, state in states.items()
        if state.startswith(("T", "t"))
    ]
    return recording


def _yaml(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as wrong:
        raise CaseError(f"{path}: cannot be read: {wrong}") from None
    if not isinstance(content, dict):
        raise CaseError(f"{path}: must be a mapping with world_size and observe_until")
    return content


def _timeline(path: Path) -> Iterable[Printed]:
    try:
        text = path.read_text(errors="replace")
    except OSError as wrong:
        raise CaseError(f"{path}: cannot be read: {wrong.strerror}; a case folder holds timeline.jsonl") from None
    found = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
            found.append(
                Printed(float(entry["t"]), int(entry["rank"]), str(entry.get("stream", "stdout")), str(entry["line"]))
            )
        except (ValueError, KeyError, TypeError) as wrong:
            raise CaseError(f'{path}:{number}: {wrong!r}; each line is {{"t", "rank", "stream", "line"}}') from None
    return sorted(found, key=lambda p: p.t)


def _snapshot(path: Path) -> dict[int, str]:
    try:
        seen = json.loads(path.read_text())
        return {int(rank): str(proc.get("state", "")) for rank, proc in seen.get("proc", {}).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, AttributeError) as wrong:
        raise CaseError(f"{path}: cannot be read: {wrong}") from None


def from_timeline(
    events: Iterable[TimelineEvent], name: str, world_size: int | None, observe_until: float
) -> Recording:
    """A rule's example as a recording."""
    recording = Recording(name, world_size, observe_until)
    for event in events:
        match event:
            case LineAt(t, rank, text):
                recording.lines.append(Printed(t, rank, "stdout", text))
            case StackAt(t, rank, frames):
                recording.looks.append(Frames(t, rank, "py-spy", frames))
            case FactAt(t, rank, "exit", fields):
                recording.exits.append(Exit(t, rank, int(fields["code"]), fields.get("by", "process")))
            case FactAt(t, rank, "gone"):
                recording.exits.append(Exit(t, rank, None))
            case FactAt(t, rank, fact, fields):
                recording.states.append(Fact(t, rank, fact, fields, "ras" if fact in RAS_FACTS else ""))
    return recording
