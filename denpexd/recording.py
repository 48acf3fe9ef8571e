"""A recorded job: what it printed, what its processes would have answered, how they ended.

Read from a case folder (timeline.jsonl, case.yaml, stacks/, fr/, snapshot.json), from a bundle (journal.jsonl instead
of the lines: what the core was fed), or made from a rule's example. The truth that a case may hold is never read here.
"""

import json
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from denpexd.archive import unpack
from denpexd.catalog.document import parse
from denpexd.catalog.examples import RAS_FACTS, DumpAt, FactAt, LineAt, StackAt, TimelineEvent
from denpexd.core.cadence import BUDGETS, Limits
from denpexd.core.events import Event, Exit, Fact, Frames
from denpexd.core.flight import Dump
from denpexd.errors import CaseError
from denpexd.evidence.cpu_time import IDLE
from denpexd.evidence.flight_read import MOST_OPS, read_folder
from denpexd.evidence.stacks import add_worker, parse_text
from denpexd.journal import unpacked

EVIDENCE = ("stacks", "fr", "exits")
"""What may be left out of a case."""


@dataclass(frozen=True, slots=True)
class Printed:
    """One line as a rank (or -1: the launcher, an unsplit stream) printed it, `t` seconds after the start."""

    t: float
    rank: int
    stream: str
    text: str


@dataclass(frozen=True, slots=True)
class Told:
    """What the core was fed, batch by batch, after what it knew `before`; `finished`: it was told that all was over."""

    before: Sequence[Event]
    batches: Sequence[Sequence[Event]]
    limits: Limits
    finished: bool = False


@dataclass(slots=True)
class Recording:
    """Everything a replay needs. `looks` answer requests from their time on, until the rank has exited.

    `start`: when watching begins. `told`: events instead of lines and looks.
    """

    name: str
    world_size: int | None
    observe_until: float
    lines: list[Printed] = field(default_factory=list)
    looks: list[Frames] = field(default_factory=list)
    states: list[Fact] = field(default_factory=list)
    exits: list[Exit] = field(default_factory=list)
    start: float = 0.0
    told: Told | None = None
    dumps: list[Dump] = field(default_factory=list)

    def answer(self, rank: int, t: float) -> list[Frames]:
        """The stack that a look at `rank` at time `t` would have shown, if it was recorded."""
        known = [look for look in self.looks if look.rank == rank and look.t <= t]
        return [known[-1]] if known and not self.exited(rank, t) else []

    def dumped(self, rank: int, t: float) -> list[Dump]:
        """The Flight Recorder dump that `rank` would have written at time `t`, if it was recorded."""
        known = [dump for dump in self.dumps if dump.rank == rank and dump.t <= t]
        return [known[-1]] if known and not self.exited(rank, t) else []

    def asked(self) -> list[int]:
        """Ranks of which anything is known that a look at their processes shows."""
        return sorted({one.rank for known in (self.looks, self.states, self.dumps) for one in known})

    def exited(self, rank: int, t: float) -> bool:
        return any(e.rank == rank and e.t <= t for e in self.exits)


def read_case(folder: Path, without: Collection[str] = ()) -> Recording:
    """Read a case folder or a bundle; CaseError says which file is missing or broken, and where.

    `without`: of EVIDENCE, what to leave out of a case folder.
    """
    if folder.is_file():
        return _read_archive(folder)
    about = _yaml(folder / "case.yaml")
    if (folder / "journal.jsonl").exists():
        return _read_told(folder, about)
    lines = list(_timeline(folder / "timeline.jsonl"))
    last = lines[-1].t if lines else 0.0
    try:
        world = about.get("world_size")
        until = float(about.get("observe_until", last + 60.0))
        evidence_t = float(about.get("evidence_t", last))
        ended = {} if "exits" in without else about.get("exits") or {}
        exits = sorted((Exit(float(e["t"]), int(r), int(e["code"])) for r, e in ended.items()), key=lambda e: e.t)
    except (TypeError, ValueError, KeyError) as wrong:
        raise CaseError(
            f"{folder / 'case.yaml'}: {wrong!r}; expected world_size, observe_until, exits as numbers"
        ) from None
    recording = Recording(str(about.get("id") or folder.name), world, until, lines, exits=exits)
    states = _snapshot(folder / "snapshot.json")
    recording.looks = [] if "stacks" in without else _looks(folder / "stacks", evidence_t)
    if "fr" not in without and (folder / "fr").is_dir():
        found = read_folder(folder / "fr", evidence_t)
        recording.dumps = [one.dump.shortened(MOST_OPS) for one in found if one.dump is not None and one.rank >= 0]
    recording.states = [fact for rank, proc in states.items() for fact in _of_process(rank, proc, evidence_t)]
    return recording


def _looks(folder: Path, t: float) -> list[Frames]:
    """`rank3.txt`: the stack of a rank; `rank3.child0.txt`, ...: those of its worker processes, as a live look adds."""
    found: dict[str, Frames] = {}
    for path in sorted(folder.glob("rank*.txt"), key=lambda path: (path.stem.count("."), path.name)):
        number, _, child = path.stem.removeprefix("rank").partition(".child")
        look = parse_text(path.read_text(errors="replace"), int(number), t) if number.isdecimal() else None
        if look is not None and not child:
            found[number] = look
        elif look is not None and number in found:
            found[number] = add_worker(found[number], f"worker {child}", look)
    return list(found.values())


def _read_archive(path: Path) -> Recording:
    with tempfile.TemporaryDirectory(prefix="denpexd-case-") as made:
        for name, data in unpack(path).items():
            place = Path(made, name)
            try:
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(data)
            except OSError as wrong:
                raise CaseError(f"{path}: {name!r} cannot be taken out: {wrong.strerror}") from None
        try:
            return read_case(Path(made))
        except CaseError as wrong:
            raise CaseError(str(wrong).replace(made, str(path))) from None


def _read_told(folder: Path, about: dict[str, Any]) -> Recording:
    """A bundle: events instead of lines."""
    path, before, batches = folder / "journal.jsonl", list[Event](), list[list[Event]]()
    finished: float | None = None
    try:
        limits = Limits(**{name: _number(value) for name, value in (about.get("limits") or {}).items()})
        limits.budgets = {phase: float(limits.budgets[phase]) for phase in BUDGETS}
        start = float(about["start"])
        with path.open(encoding="utf-8") as lines:
            for line in lines:
                entry = json.loads(line)
                finished = float(entry["finished"]) if "finished" in entry else finished
                before += map(unpacked, entry.get("before", ()))
                batches.append([unpacked(event) for event in entry.get("events", ())])
    except (CaseError, OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as wrong:
        raise CaseError(f"{path}: {wrong}; a bundle is made with denpexd bundle") from None
    batches = [batch for batch in batches if batch]
    until = max([start, *(batch[-1].t for batch in batches)]) if finished is None else finished
    told = Told(before, batches, limits, finished is not None)
    name = str(about.get("job") or about.get("id") or folder.name)
    return Recording(name, None, until, start=start, told=told)


def _number(value: object) -> Any:
    return {str(k): float(str(v)) for k, v in value.items()} if isinstance(value, dict) else float(str(value))


def _yaml(path: Path) -> dict[str, Any]:
    """The file as strictly as a rule: bundles come from strangers."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as wrong:
        raise CaseError(f"{path}: cannot be read: {wrong.strerror}") from None
    document, errors = parse(raw, str(path))
    if document is None or errors:
        raise CaseError(f"{errors[0]}; a case is a mapping with world_size and observe_until")
    return document.data


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
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as wrong:
            raise CaseError(f'{path}:{number}: {wrong!r}; each line is {{"t", "rank", "stream", "line"}}') from None
    return sorted(found, key=lambda p: p.t)


def _of_process(rank: int, proc: Mapping[str, Any], t: float) -> Iterator[Fact]:
    state, used = str(proc.get("state", "")), proc.get("cpu_ticks_per_s")
    if state.startswith(("T", "t")):
        yield Fact(t, rank, "frozen", text=f"process state {state}", source="/proc")
    if isinstance(used, int | float):
        name = "cpu_idle" if used <= IDLE else "cpu_busy"
        yield Fact(t, rank, name, text=f"process has used {used} % of a CPU", source="/proc")


def _snapshot(path: Path) -> dict[int, dict[str, Any]]:
    try:
        seen = json.loads(path.read_text())
        return {int(rank): dict(proc) for rank, proc in seen.get("proc", {}).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as wrong:
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
            case DumpAt(t, rank, ops):
                recording.dumps.append(Dump(t, rank, ops=ops, source=f"dump of rank {rank}"))
            case FactAt(t, rank, "exit", fields):
                recording.exits.append(Exit(t, rank, int(fields["code"]), fields.get("by", "process")))
            case FactAt(t, rank, "gone"):
                recording.exits.append(Exit(t, rank, None))
            case FactAt(t, rank, fact, fields):
                recording.states.append(Fact(t, rank, fact, fields, "ras" if fact in RAS_FACTS else ""))
    return recording
