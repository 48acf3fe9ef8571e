"""Where the marks of a picture stand: an incident over time and ranks, and how fast a job went. SVG user units.

Only numbers are worked out here; the templates draw them, so that texts of strangers pass their escaping.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from denpexd.web.view import Pace, Told, Verdict

MOST_LANES = 10
LEFT, WIDE, LANE, TOP, BOTTOM = 150, 800, 34, 30, 44
RADIUS, APART = 10, 23
TICKS = 6


class Mark(NamedTuple):
    """One piece of evidence, `number` as in the list of them (from 1)."""

    x: float
    number: int
    t: float


@dataclass(frozen=True, slots=True)
class Lane:
    """The line of one rank. `role`: initiating, collateral or other; from `stuck_x` on it stands or waits."""

    label: str
    role: str
    y: float
    marks: Sequence[Mark]
    stuck_x: float | None


class Moment(NamedTuple):
    """Something that happened to the incident, over all lanes; `row` keeps texts apart."""

    x: float
    text: str
    row: int


class Tick(NamedTuple):
    """A time on the axis."""

    x: float
    text: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """An incident as a picture; `began`: Unix seconds (or those of the recording) at its left edge."""

    wide: float
    high: float
    left: float
    lanes: Sequence[Lane]
    moments: Sequence[Moment]
    ticks: Sequence[Tick]
    axis_y: float
    began: float
    more: int


def timeline(verdict: Verdict, told: Iterable[Told] = ()) -> Timeline | None:
    """The evidence that has a time, by rank; None where there is nothing to compare."""
    quotes: Any = verdict.get("evidence") or []
    timed = [(number, q) for number, q in enumerate(quotes, 1) if q.get("t") is not None]
    if not timed:
        return None
    happened = _moments(verdict, told, min(float(q["t"]) for _, q in timed))
    times = [float(q["t"]) for _, q in timed] + [t for t, _ in happened]
    began, ended = min(times), max(times)
    scale = (WIDE - LEFT - 40) / max(ended - began, 1.0)

    def place(t: float) -> float:
        return round(LEFT + 12 + (t - began) * scale, 1)

    lanes, more = _lanes(verdict, timed, place)
    axis_y = TOP + 18 * _rows(happened, place) + LANE * len(lanes)
    shift = axis_y - LANE * len(lanes) - TOP
    moved = [Lane(one.label, one.role, one.y + shift, one.marks, one.stuck_x) for one in lanes]
    ticks = [Tick(place(began + s), _after(s)) for s in _nice(ended - began)]
    return Timeline(WIDE, axis_y + BOTTOM, LEFT, moved, _placed(happened, place), ticks, axis_y, began, more)


def _moments(verdict: Verdict, told: Iterable[Told], first: float) -> list[tuple[float, str]]:
    found = []
    stopped = verdict.get("stopped_t")
    if isinstance(stopped, int | float) and stopped >= first - 600.0:
        found.append((float(stopped), "last progress"))
    found.append((float(str(verdict["opened_t"])), "opened"))
    messages = sorted(told)
    for event, word in (("opened", "told"), ("closed", "told to be over")):
        sinks = [m for m in messages if m.event == event and m.state == "sent"]
        if sinks and abs(sinks[0].t - first) < 86400.0:
            found.append((sinks[0].t, f"{word}: {', '.join(dict.fromkeys(m.sink for m in sinks))}"))
    if verdict["state"] == "closed":
        found.append((float(str(verdict["updated_t"])), "closed"))
    return sorted(found)


def _placed(happened: Sequence[tuple[float, str]], place: Any) -> list[Moment]:
    """Each on the first row where its text runs over no other."""
    ends: list[float] = []
    found = []
    for t, text in happened:
        x, wide = place(t), 7.2 * len(text) + 14
        start = min(x, WIDE - wide)
        row = next((n for n, end in enumerate(ends) if start >= end), len(ends))
        ends[row : row + 1] = [start + wide]
        found.append(Moment(x, text, row))
    return found


def _rows(happened: Sequence[tuple[float, str]], place: Any) -> int:
    return 1 + max((moment.row for moment in _placed(happened, place)), default=0)


def _lanes(verdict: Verdict, timed: Sequence[tuple[int, Mapping[str, Any]]], place: Any) -> tuple[list[Lane], int]:
    guilty, victims = set(_numbers(verdict, "initiating_ranks")), set(_numbers(verdict, "collateral_ranks"))
    by_rank: dict[int, list[tuple[float, int]]] = {}
    for number, q in timed:
        rank = q.get("rank")
        by_rank.setdefault(-1 if rank is None else int(rank), []).append((float(q["t"]), number))
    nodes: Any = verdict.get("nodes") or {}

    def role(rank: int) -> str:
        return "initiating" if rank in guilty else "collateral" if rank in victims else "other"

    order = ("initiating", "collateral", "other")
    ranks = sorted(by_rank, key=lambda r: (order.index(role(r)), min(by_rank[r])))
    lanes = []
    for at, rank in enumerate(ranks[:MOST_LANES]):
        marks = _apart([(place(t), number, t) for t, number in sorted(by_rank[rank])])
        node = nodes.get(str(rank)) or nodes.get(rank)
        label = ("launcher" if rank < 0 else f"rank {rank}") + (f" · {node}" if node else "")
        stuck = marks[0].x if role(rank) == "initiating" else marks[-1].x if role(rank) == "collateral" else None
        lanes.append(Lane(label, role(rank), TOP + LANE * (at + 0.5), marks, stuck))
    return lanes, max(0, len(ranks) - MOST_LANES)


def _apart(marks: Sequence[tuple[float, int, float]]) -> list[Mark]:
    """Marks of one lane side by side, in order; at the right edge they give way to the left."""
    xs: list[float] = []
    for x, _, _ in marks:
        xs.append(max(x, xs[-1] + APART) if xs else x)
    limit = float(WIDE - RADIUS - 4)
    for at in range(len(xs) - 1, -1, -1):
        xs[at] = min(xs[at], limit)
        limit = xs[at] - APART
    return [Mark(max(x, float(LEFT)), number, t) for x, (_, number, t) in zip(xs, marks, strict=True)]


def _numbers(verdict: Verdict, name: str) -> list[int]:
    found: Any = verdict.get(name) or []
    return [int(rank) for rank in found]


def _nice(span: float) -> list[float]:
    """Seconds after the beginning at round numbers, at most TICKS of them beside 0."""
    steps = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 21600, 43200, 86400]
    step = next((s for s in steps if span / s <= TICKS), max(steps[-1], span / TICKS))
    return [round(n * step, 1) for n in range(int(span / step) + 1)]


def _after(seconds: float) -> str:
    if seconds < 60:
        return f"+{seconds:g} s"
    if seconds < 3600:
        return f"+{int(seconds // 60)} min" + (f" {int(seconds % 60)} s" if seconds % 60 else "")
    return f"+{int(seconds // 3600)} h" + (f" {int(seconds % 3600 // 60)} min" if seconds % 3600 else "")


@dataclass(frozen=True, slots=True)
class Plot:
    """A line over time. `paths`: unbroken pieces; `dots`: points that stand alone; `last`: the newest value."""

    wide: int
    high: int
    paths: Sequence[str]
    dots: Sequence[tuple[float, float]]
    top: float
    last: float | None
    minutes: float


def plots(points: Sequence[Pace]) -> tuple[Plot | None, Plot | None]:
    """Seconds a step and lines a second; None where fewer than two values are known."""
    steps = [(p.t, p.step_seconds) for p in points if p.step_seconds is not None]
    return _plot(points, steps, gap=math.inf), _plot(points, [(p.t, p.lines) for p in points], gap=60.0)


def _plot(points: Sequence[Pace], values: Sequence[tuple[float, float]], *, gap: float) -> Plot | None:
    wide, high = 480, 110
    if len(values) < 2:
        return None
    began, ended = points[0].t, points[-1].t
    top = max(value for _, value in values) or 1.0
    pieces: list[list[tuple[float, float]]] = []
    last_t = -math.inf
    for t, value in values:
        spot = (round((t - began) / max(ended - began, 1.0) * wide, 1), round(high - value / top * (high - 6), 1))
        if t - last_t > gap or not pieces:
            pieces.append([])
        pieces[-1].append(spot)
        last_t = t
    paths = ["M" + "L".join(f"{x} {y}" for x, y in piece) for piece in pieces if len(piece) > 1]
    dots = [piece[0] for piece in pieces if len(piece) == 1]
    return Plot(wide, high, paths, dots, top, values[-1][1], round((ended - began) / 60, 1))
