"""Facts about numbers: metrics that are not finite, jump or differ between ranks, and the pace of ranks and job."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from statistics import median

from denpexd.core.cadence import Limits
from denpexd.core.evidence import Evidence
from denpexd.core.numbers import NotFinite, order
from denpexd.core.pace import MATERIAL, seconds_of_step
from denpexd.core.rank import RankState
from denpexd.core.rule import Signal
from denpexd.core.state import Answer, JobState, observed

Value = float | str


def _wanted(signal: Signal, key: str, name: str) -> bool:
    """Whether the signal asks for a metric of that name."""
    wanted = signal.param_matchers.get(key)
    return wanted is None or wanted.search(name) is not None


def nonfinite(job: JobState, rank: RankState, signal: Signal, now: float, limits: Limits) -> Answer:
    """A number has been nan or inf for so many readings in a row; `first`: at an earlier step than on other ranks."""
    times = int(signal.params.get("times", 2))
    found: list[Evidence] = []
    for name, run in rank.numbers.bad.items():
        if run.count < times or not _wanted(signal, "metric", name) or _total_is_finite(rank, name, run):
            continue
        if signal.params.get("first") and not _is_first(job, rank, name, run):
            continue
        found += _both(run.first, run.last, signal.means)
    return found


def _both(first: Evidence, last: Evidence, means: str) -> list[Evidence]:
    return [e.saying(means) for e in ([first] if first is last else [first, last])]


def _total_is_finite(rank: RankState, name: str, run: NotFinite) -> bool:
    """One term of a loss may be undefined (no positive sample, say) while the loss itself is fine."""
    losses = (s for (quantity, other), s in rank.numbers.series.items() if quantity == "loss" and other != name)
    return "loss" in name and any(s.newest[-1].t >= run.last.t for s in losses)


def _is_first(job: JobState, rank: RankState, name: str, run: NotFinite) -> bool:
    """The same for all ranks on which it began at that step, if each has no other number that would be compared."""
    if sum(_alike(n, name) for n in rank.numbers.bad) > 1:
        return _before_others(job, rank, name, run)
    at = ("first not finite", name, run.place, run.first.t)
    return job.once(at, lambda: _before_others(job, rank, name, run))


def _before_others(job: JobState, rank: RankState, name: str, run: NotFinite) -> bool:
    """Others printed the same number as finite at that step or later; alone it is first anyway."""
    if len(job.universe) == 1:
        return True
    later = False
    for number, other in job.ranks.items():
        if number < 0 or number == rank.rank:
            continue
        known = next((r for n, r in other.numbers.bad.items() if _alike(n, name)), None)
        if known is not None:
            came = order(known.place, known.first.t, run.place, run.first.t)
            if came < 0:
                return False
            later |= came > 0
        else:
            same = (s.newest[-1] for (_, n), s in other.numbers.series.items() if _alike(n, name))
            later |= any(order(r.place, r.t, run.place, run.first.t) >= 0 for r in same)
    return later


def _alike(one: str, two: str) -> bool:
    """The same number, also where ranks name their loss differently."""
    return one == two or ("loss" in one and "loss" in two)


def spike(job: JobState, rank: RankState, signal: Signal, now: float, limits: Limits) -> Answer:
    """A number lies `factor` times above its usual level, for `times` readings and `steps` steps, and stays there."""
    factor = float(signal.params.get("factor", 2.0))
    times, steps = int(signal.params.get("times", 10)), int(signal.params.get("steps", 50))
    found = []
    for (_, name), series in rank.numbers.series.items():
        above = series.above
        if above is None or above.count < times or not _wanted(signal, "metric", name) or series.evidence is None:
            continue
        first, last = above.place[1], series.newest[-1].place[1]
        if (last - first if first is not None and last is not None and last >= first else 2 * above.count) < steps:
            continue
        if min(above.newest) >= factor * above.level:
            text = f"{series.evidence.text} (usual level before: {above.level:.4g})"
            found += [above.since.saying(signal.means), _quoting(series.evidence, text, signal.means)]
    return found


def _quoting(e: Evidence, text: str, means: str) -> Evidence:
    return Evidence(e.rank, e.kind, e.source, e.offset, e.t, text, means, e.teller, e.seq, history=e.history)


def slow(job: JobState, rank: RankState, signal: Signal, now: float, limits: Limits) -> Answer:
    """It needs `factor` times as long as the others for its own part of a step, in each of its last reports.

    `for`: since so many seconds, or until the end of training and for half as long as it had kept up before.
    """
    factor, lasting = float(signal.params.get("factor", 1.5)), float(signal.params.get("for", 0.0))
    known = job.slow.ask(job, now).get(rank.rank)
    if known is None or known[0] < factor:
        return []
    _, text, series = known
    since = job.slow.since.get(rank.rank, now)
    if series is not None and (rank.phase == "end" or rank.exits):
        lasting = min(lasting, (since - series.since) / 2)
    if max(rank.moved_t, series.newest[-1].t if series else rank.moved_t) - since < lasting:
        return []
    if series is None or series.evidence is None:
        return [observed(rank, now, text, signal.means, kind="log")]
    return [_quoting(series.evidence, f"{text}: {series.evidence.text}", signal.means)]


def late(job: JobState, rank: RankState, signal: Signal, now: float, limits: Limits) -> Answer:
    """It has come to every step later than the others, by a large part of a step, for so long."""
    known = job.arrivals.ranks.get(rank.rank)
    lasting = float(signal.params.get("for", 0.0))
    if known is None or known.last is None or not known.told or known.last.t - known.since < lasting:
        return []
    text = f"{min(known.delays):.3g} s or more after the others at each of {known.count} steps: {known.last.text}"
    e = observed(rank, known.last.t, text, signal.means, kind="log")
    return [replace(e, source=known.last.source, offset=known.last.offset, history=known.last.history)]


def uneven(job: JobState, rank: RankState, signal: Signal, now: float, limits: Limits) -> Answer:
    """The longest time of a timer is `factor` times as far above the shortest as usual, for so long; whose is not said.

    Holds for the rank that prints the report, while no rank is known to be the slow one.
    """
    factor, lasting = float(signal.params.get("factor", 1.5)), float(signal.params.get("for", 0.0))
    for name, known in job.timers.extremes.items():
        series = known.series
        if known.rank is not None or known.teller != rank.rank or not known.wide(factor) or known.wide_since is None:
            continue
        if series.evidence is None or series.newest[-1].t - known.wide_since < lasting or job.slow.ask(job, now):
            continue
        if known.excess >= MATERIAL * (seconds_of_step(job) or series.newest[-1].value):
            text = f"{name}: {series.evidence.text.strip()} (usual ratio before: {median(known.usual):.2f})"
            return [_quoting(series.evidence, text, signal.means)]
    return []


def throughput(job: JobState, rank: RankState, signal: Signal, now: float, limits: Limits) -> Answer:
    """Steps have taken `factor` times as long as before for `for` seconds: true of all ranks or of none.

    `rate`: a printed rate (samples or tokens a second), where there is one, has fallen too.
    """
    factor, lasting = float(signal.params.get("factor", 1.5)), float(signal.params.get("for", 60.0))
    found = job.once(("slower", factor, lasting), lambda: job.tempo.slower(factor, lasting))
    if found is None or (signal.params.get("rate") and job.once(("rate", factor), lambda: _rate_is_kept(job, factor))):
        return []
    usual, slower = found
    text = f"a step takes {slower:.3g} s, {slower / usual:.1f} times as long as before ({usual:.3g} s)"
    return [observed(rank, now, text, signal.means, kind="log")]


def _rate_is_kept(job: JobState, factor: float) -> bool:
    """Longer steps that do more work each are no loss."""
    rates = [
        (s.newest[-1].value, s.start)
        for state in job.ranks.values()
        for (quantity, _), s in state.numbers.series.items()
        if quantity == "rate" and s.start > 0
    ]
    return bool(rates) and all(now > start / (1 + (factor - 1) / 2) for now, start in rates)


def overlong(job: JobState, rank: RankState, signal: Signal, now: float, limits: Limits) -> Answer:
    """A phase took the last time `factor` times as long as it used to, and at least `least` seconds.

    By its lines (from the one that begins it to the next step) or by what the rank says about it afterwards. While it
    lasts nothing is said: it may as well be stuck.
    """
    name, factor = str(signal.params.get("name", "checkpoint")), float(signal.params.get("factor", 3.0))
    least = float(signal.params.get("least", 60.0))
    took = list(rank.rhythm.phases.get(name, ()))
    if (before := _longer(took, factor, least)) is not None:
        text = f"{name}: {took[-1]:.0f} s, before {before:.0f} s"
        return [observed(rank, now, text, signal.means, kind="log")]
    for (quantity, said), series in rank.numbers.series.items():
        if quantity == "duration" and name in said and series.evidence is not None:
            before = _longer([r.value for r in series.newest], factor, least)
            if before is not None:
                text = f"{series.evidence.text} (before: {before:.0f} s)"
                return [_quoting(series.evidence, text, signal.means)]
    return []


def _longer(took: list[float], factor: float, least: float) -> float | None:
    """What it took before, if the last time is longer by the factor; two former times make a rule."""
    if len(took) < 3 or took[-1] < least:
        return None
    before = sorted(took[:-1])[(len(took) - 1) // 2]
    return before if took[-1] >= factor * before else None


# --- the same metric on several ranks -------------------------------------------------------------------------------


def metric_spread(job: JobState, rank: RankState, signal: Signal, now: float, limits: Limits) -> Answer:
    """Holds for every rank that printed the metric at a step at which the values differ.

    `after_equal`: at an earlier step they were equal, so that they are meant to be.
    """
    relative = float(signal.params.get("relative", 0.05))
    found = []
    for key, (_, evidence) in rank.metrics.items():
        if not _wanted(signal, "name", key[0]):
            continue
        if not _are_equal(job, key, relative) and not (
            signal.params.get("after_equal") and not _were_equal(job, rank, key[0], relative, evidence.t)
        ):
            found.append(evidence.saying(signal.means))
    return found


def metric_odd(job: JobState, rank: RankState, signal: Signal, now: float, limits: Limits) -> Answer:
    """At some step its value differs from that of a strict majority of the ranks, which agree among themselves."""
    relative = float(signal.params.get("relative", 1e-4))
    found = []
    for key, (mine, evidence) in rank.metrics.items():
        if not _wanted(signal, "name", key[0]):
            continue
        values = _values(job, key)
        common = job.once(("common", key, relative), partial(_most_common, values, relative))
        if len(values) > 2 and common[1] * 2 > len(values) and _rounded(mine, relative) != common[0]:
            agree = next(v for v in values.values() if _rounded(v, relative) == common[0])
            if not _equal({0: mine, 1: agree}, relative):
                found.append(evidence.saying(signal.means))
    return found


def parted(job: JobState, rank: RankState, signal: Signal, now: float, limits: Limits) -> Answer:
    """A number that was always the same on it and on other ranks has differed for so many steps in a row.

    `odd`: without it a strict majority of these ranks would agree.
    """
    steps, found = int(signal.params.get("steps", 4)), []
    for name, twins in job.twins.items():
        group = twins.groups.get(rank.rank) if _wanted(signal, "name", name) else None
        if group is None or group.parted < steps:
            continue
        if signal.params.get("odd") and rank.rank not in job.once(("odd", id(group), steps), partial(group.odd, steps)):
            continue
        if said := [values[rank.rank][1] for values in group.rounds if rank.rank in values]:
            found += _both(said[0], said[-1], signal.means)
    return found


def _values(job: JobState, key: tuple[str, str]) -> dict[int, Value]:
    def values() -> dict[int, Value]:
        return {r: s.metrics[key][0] for r, s in job.ranks.items() if r >= 0 and key in s.metrics}

    return job.once(("values", key), values)


def _are_equal(job: JobState, key: tuple[str, str], relative: float) -> bool:
    return job.once(("equal", key, relative), lambda: _equal(_values(job, key), relative))


def _most_common(values: Mapping[int, Value], relative: float) -> tuple[Value, int]:
    return Counter(_rounded(v, relative) for v in values.values()).most_common(1)[0]


def _were_equal(job: JobState, rank: RankState, name: str, relative: float, before: float) -> bool:
    keys = [key for key, (_, e) in rank.metrics.items() if key[0] == name and e.t < before]
    return any(len(_values(job, key)) > 1 and _are_equal(job, key, relative) for key in keys)


def _equal(values: Mapping[int, Value], relative: float) -> bool:
    """Numbers within `relative` of each other, or the same text; one alone is equal to itself."""
    numbers = [v for v in values.values() if isinstance(v, float)]
    if len(numbers) < len(values):
        return len(set(values.values())) == 1
    spread = max(numbers) - min(numbers)
    return not spread > relative * max(1e-9, *(abs(v) for v in numbers))


def _rounded(value: Value, relative: float) -> Value:
    """Numbers that differ only in what `relative` leaves free mostly become the same."""
    if isinstance(value, str) or value == 0:
        return value
    digits = max(2, round(1 / relative).bit_length() * 3 // 10 + 1)
    return float(f"{value:.{digits}g}")
