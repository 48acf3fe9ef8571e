"""Facts about what ranks say of themselves and of each other: versions, counts, devices, settings.

A log signal states a value by a capture `<name>` (of the rank that prints it), or by `<name>_a` and `<name>_b` of the
ranks in the captures `rank_a` and `rank_b`. Same shape as the facts of facts.py.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from denpexd.core import cadence
from denpexd.core.evidence import Evidence
from denpexd.core.rank import RankState
from denpexd.core.rule import Signal
from denpexd.core.state import Answer, JobState

Said = tuple[str, Evidence]
MAX_SETTINGS = 128  # a rank may tell of


def keep(rank: RankState, fields: Mapping[str, str], evidence: Evidence) -> None:
    """Remember a variable of the environment (captures `setting` and `setting_value`) that the rank tells of."""
    name = fields.get("setting")
    if name and (name in rank.settings or len(rank.settings) < MAX_SETTINGS):
        rank.settings[name] = (fields.get("setting_value", ""), evidence)


def stated(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """What is said of it fits `value`; holds as long as the attempt lasts."""
    said, value = _said(job, signal).get(rank.rank), signal.param_matchers.get("value")
    return [] if said is None or (value and not value.search(said[0])) else [_about(said[1], rank, signal)]


def stated_odd(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """What is said of it differs from what is said of a strict majority, which agrees."""
    said = _said(job, signal)
    if rank.rank not in said or len(said) < 3:
        return []
    common, count = _counted(job, signal).most_common(1)[0]
    value, evidence = said[rank.rank]
    return [_about(evidence, rank, signal)] if count * 2 > len(said) and value != common else []


def stated_differs(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """Something is said of it, and something else of another rank; names no side."""
    said = _said(job, signal)
    if rank.rank not in said or len(_counted(job, signal)) < 2:
        return []
    return [_about(said[rank.rank][1], rank, signal)]


def stated_same(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """The same is said of it and of another rank of its node (or of any, where no node is known)."""
    said = _said(job, signal)
    if rank.rank not in said:
        return []

    def places() -> Counter[tuple[str, str | None]]:
        return Counter((value, s.node if (s := job.ranks.get(r)) else None) for r, (value, _) in said.items())

    value, evidence = said[rank.rank]
    alike = job.once(("places", signal.params["name"]), places)[(value, rank.node)]
    return [_about(evidence, rank, signal)] if alike > 1 else []


def setting_odd(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """A setting (capture `setting` with `setting_value`) is another one for it than for most ranks that tell theirs."""
    return [rank.settings[name][1].saying(signal.means) for name in _differing(job, rank) if _odd(job, rank, name)]


def settings_differ(job: JobState, rank: RankState, signal: Signal, now: float, limits: cadence.Limits) -> Answer:
    """It tells of a setting that another rank, which tells of its own, has not or has otherwise; names no side."""
    return [rank.settings[name][1].saying(signal.means) for name in _differing(job, rank)]


def _telling(job: JobState) -> list[RankState]:
    """Ranks whose library tells of its set-up."""

    def tells(rank: RankState) -> bool:
        return rank.rank >= 0 and bool(rank.settings or rank.seen.keys() & {"nccl.interface", "nccl.device"})

    return job.once("telling", lambda: [s for s in job.ranks.values() if tells(s)])


def _differing(job: JobState, rank: RankState) -> list[str]:
    def other(name: str) -> bool:
        return bool(_settings(job, name).keys() - {rank.settings[name][0]})

    return [name for name in rank.settings if other(name)]


def _settings(job: JobState, name: str) -> Counter[str]:
    """How many of the ranks that tell theirs have which value."""
    return job.once(("settings", name), lambda: Counter(s.settings.get(name, ("",))[0] for s in _telling(job)))


def _odd(job: JobState, rank: RankState, name: str) -> bool:
    values = _settings(job, name)
    common, count = values.most_common(1)[0]
    return count * 2 > values.total() > 2 and rank.settings[name][0] != common


def _about(evidence: Evidence, rank: RankState, signal: Signal) -> Evidence:
    return replace(evidence, rank=rank.rank, means=signal.means)


def _counted(job: JobState, signal: Signal) -> Counter[str]:
    said = _said(job, signal)
    return job.once(("counted", signal.params["name"]), lambda: Counter(value for value, _ in said.values()))


def _said(job: JobState, signal: Signal) -> Mapping[int, Said]:
    name = str(signal.params.get("name", ""))
    return job.once(("said", name), lambda: _collect(job, name))


def _collect(job: JobState, name: str) -> dict[int, Said]:
    """Rank -> the newest value; what a rank says itself goes before what others say of it."""
    own: dict[int, Said] = {}
    others: dict[int, Said] = {}
    for number, state in job.ranks.items():
        for seen in state.seen.values():
            fields = seen.fields
            if number >= 0 and fields.get(name):
                own[number] = (fields[name], seen.last)
            for side in ("a", "b"):
                of, value = fields.get(f"rank_{side}", ""), fields.get(f"{name}_{side}")
                if value and of.isdecimal():
                    table = own if int(of) == number else others
                    table.setdefault(int(of), (value, seen.last))
    return {**others, **own}
