"""The examples of a rule: the timeline notation, and how a timeline must end.

A line is `seconds  ranks  kind  text` (docs/rule-format.md). Who plays them is told in catalog.trials.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from denpexd.core.events import UNKNOWN_RANK, Frame
from denpexd.core.flight import Op
from denpexd.core.rule import Example, Rule
from denpexd.errors import CaseError

FACTS: Mapping[str, tuple[str, ...]] = {
    "exit": ("code", "signal", "by"),
    "gone": (),
    "frozen": ("state",),
    "oom_killed": (),
    "exhausted": ("what",),
    "gpu_throttled": (),
    "gpu_ecc": (),
    "gpu_lost": (),
    "gpu_idle": (),
    "gpu_busy": (),
    "cpu_idle": (),
    "cpu_busy": (),
    "unreachable": ("dead",),
    "launched_less": ("launched", "most"),
    "launched_other": ("group", "op"),
    "launched_same": ("group",),
}
"""What `!` may state, with its fields. An exit signal becomes the code a parent sees (signal=9: code=-9)."""

RAS_FACTS = frozenset({"unreachable", "launched_less", "launched_other", "launched_same"})
"""Those that NCCL's RAS tells."""

_LINE = re.compile(r"\s*(?P<t>\d+(?:\.\d+)?)\s+(?P<ranks>\S+)\s+(?P<kind>[|>!@])(?: (?P<text>.*))?")
_RANKS = re.compile(r"\d+(-\d+)?(,\d+(-\d+)?)*")
_OP = re.compile(r"(?P<group>\w+):(?P<seq>\d+) (?P<name>\w+)(?: (?P<numel>\d+))?(?P<done> done)?")
_FRAME = re.compile(r"(?P<function>\S+)\s+(?P<path>.+?)(?::(?P<line>\d+))?")


@dataclass(frozen=True, slots=True)
class LineAt:
    """A rank prints a line (without its newline)."""

    t: float
    rank: int
    text: str


@dataclass(frozen=True, slots=True)
class StackAt:
    """From `t` on, every look at the rank shows these frames, innermost first, until the next StackAt."""

    t: float
    rank: int
    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class FactAt:
    """A witness states `name` (a key of FACTS) about the rank."""

    t: float
    rank: int
    name: str
    fields: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class DumpAt:
    """From `t` on, the Flight Recorder of the rank holds these operations, oldest first, until the next DumpAt."""

    t: float
    rank: int
    ops: tuple[Op, ...]


TimelineEvent = LineAt | StackAt | FactAt | DumpAt


@dataclass(frozen=True, slots=True)
class ExampleResult:
    """How one example ended. `why` is empty where it ended as the rule file says; `verdicts`: ids of all failures."""

    rule: str
    example: str
    fires: bool
    why: str = ""
    opened_t: float | None = None
    verdicts: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the outcome was the expected one."""
        return not self.why


def timeline(example: Example) -> list[TimelineEvent]:
    """The example's events in order of time (file order where times are equal). CaseError names the bad lines."""
    events, mistakes = read_timeline(example.timeline, example.world_size, example.observe_until)
    if mistakes:
        said = "; ".join(f"line {number + 1}: {why}" for number, why in mistakes)
        raise CaseError(f"example '{example.name}': {said}")
    return events


def read_timeline(
    text: str, world_size: int, observe_until: float
) -> tuple[list[TimelineEvent], list[tuple[int, str]]]:
    """The events, and each mistake as (line from 0, why). Empty lines and lines that begin with `#` are comments."""
    events: list[TimelineEvent] = []
    mistakes: list[tuple[int, str]] = []
    for number, line in enumerate(text.split("\n")):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        try:
            events.extend(_events(line, world_size, observe_until))
        except ValueError as error:
            mistakes.append((number, str(error)))
    if not events and not mistakes:
        mistakes.append((0, "the timeline is empty"))
    return sorted(events, key=lambda event: event.t), mistakes


def _events(line: str, world_size: int, observe_until: float) -> Iterator[TimelineEvent]:
    parts = _LINE.fullmatch(line)
    if not parts:
        raise ValueError("expected `seconds  ranks  kind  text`, with kind one of | > ! @")
    t, text = float(parts["t"]), parts["text"] or ""
    if t > observe_until:
        raise ValueError(f"{t:g} s is after observe_until ({observe_until:g} s)")
    for rank in _ranks(parts["ranks"], world_size, launcher=parts["kind"] == "|"):
        if parts["kind"] == "|":
            yield LineAt(t, rank, text)
        elif parts["kind"] == ">":
            yield StackAt(t, rank, _frames(text))
        elif parts["kind"] == "@":
            yield DumpAt(t, rank, _ops(text))
        else:
            yield FactAt(t, rank, *_fact(text))


def _ranks(text: str, world_size: int, *, launcher: bool) -> list[int]:
    if text == "*":
        return list(range(world_size))
    if text == "?" and launcher:
        return [UNKNOWN_RANK]
    if not _RANKS.fullmatch(text):
        raise ValueError(f"ranks '{text}': expected 0, 1-3, 0,2 or * (and ? for a line of the launcher)")
    ranks: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        ranks.extend(range(int(first), min(int(last or first), world_size) + 1))
    if not ranks or max(ranks) >= world_size:
        raise ValueError(f"ranks '{text}' do not exist in a world of {world_size}")
    return sorted(set(ranks))


def _frames(text: str) -> tuple[Frame, ...]:
    frames = []
    for part in text.split(";"):
        parsed = _FRAME.fullmatch(part.strip())
        if not parsed:
            raise ValueError(f"frame '{part.strip()}': expected `function path`, innermost first, separated by ;")
        frames.append(Frame(parsed["function"], parsed["path"], int(parsed["line"] or 0)))
    return tuple(frames)


def _ops(text: str) -> tuple[Op, ...]:
    ops = []
    for record, part in enumerate(text.split(";")):
        parsed = _OP.fullmatch(part.strip())
        if not parsed:
            raise ValueError(
                f"operation '{part.strip()}': expected `GROUP:NUMBER name [elements] [done]`, oldest first"
            )
        sizes = (int(parsed["numel"]),) if parsed["numel"] else ()
        pending = parsed["done"] is None
        ops.append(Op(parsed["group"], int(parsed["seq"]), parsed["name"], record, pending, sizes=sizes, given=sizes))
    return tuple(ops)


def _fact(text: str) -> tuple[str, dict[str, str]]:
    name, *given = text.split() or [""]
    if name not in FACTS:
        raise ValueError(f"'{name}' cannot be stated in a timeline, only {', '.join(FACTS)}")
    fields = {}
    for part in given:
        key, equals, value = part.partition("=")
        if key not in FACTS[name] or not equals:
            allowed = ", ".join(f"{key}=..." for key in FACTS[name]) or "nothing"
            raise ValueError(f"'{part}' after {name}: expected {allowed}")
        if key not in ("by", "state", "what", "group", "op") and not re.fullmatch(r"-?\d+", value):
            raise ValueError(f"'{part}': expected a number")
        if key == "by" and value not in ("process", "launcher"):
            raise ValueError(f"'{part}': expected process or launcher")
        fields[key] = value
    if "signal" in fields:
        fields["code"] = f"-{fields.pop('signal')}"
    return name, fields


def result_of(rule: Rule, example: Example, verdicts: Sequence[Mapping[str, object]]) -> ExampleResult:
    """How it ended. It fires if a verdict names the rule, with these ranks and opened in time; near misses must not.

    Other incidents in the same timeline are no business of the example, except where the rule itself stayed silent.
    """
    named = tuple(str(verdict.get("failure")) for verdict in verdicts)
    mine = [verdict for verdict in verdicts if verdict.get("failure") == rule.id]
    opened = _seconds(mine[0].get("opened_t")) if mine else None
    return ExampleResult(rule.id, example.name, example.fires, difference(example, mine, named), opened, named)


def difference(example: Example, mine: Sequence[Mapping[str, object]], named: Sequence[str]) -> str:
    """Why the outcome is not the expected one; empty if it is."""
    if not example.fires:
        return f"must not fire, but did, initiated by {_said(mine[0], 'initiating_ranks')}" if mine else ""
    if not mine:
        return f"did not fire; instead: {', '.join(named)}" if named else "did not fire"
    if len(mine) > 1:
        return f"fired {len(mine)} times"
    wrong = []
    for key, wanted in (("initiating_ranks", example.initiating), ("collateral_ranks", example.collateral)):
        if wanted is not None and _ranks_of(mine[0], key) != sorted(wanted):
            wrong.append(f"{key} are {_said(mine[0], key)}, expected {sorted(wanted)}")
    opened = _seconds(mine[0].get("opened_t"))
    if example.by is not None and (opened is None or opened > example.by):
        wrong.append(f"opened at {opened:g} s, expected by {example.by:g} s" if opened is not None else "no opened_t")
    return "; ".join(wrong)


def _ranks_of(verdict: Mapping[str, object], key: str) -> list[int]:
    ranks = verdict.get(key)
    return sorted(ranks) if isinstance(ranks, list | tuple) else []


def _said(verdict: Mapping[str, object], key: str) -> str:
    return str(_ranks_of(verdict, key))


def _seconds(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) else None
