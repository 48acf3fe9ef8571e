"""Verdicts against the truth: shares, confusions, precision of each certainty, and what is worse than recorded."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from cases import Truth

HIGHER = ("strict", "fair", "ranks", "hang strict", "hang fair", "confirmed right", "world > 2 fair")
LOWER = ("false alarms", "victims blamed", "extra incidents")
HANGS = ("strict", "fair", "ranks", "undetermined", "silent", "victims confirmed", "false alarms")


@dataclass(frozen=True, slots=True)
class Answer:
    """What was said about one case; None where no incident opened. `extra`: further incidents."""

    case: str
    truth: Truth
    failure: str | None = None
    aliases: tuple[str, ...] = ()
    certainty: str = ""
    initiating: tuple[int, ...] = ()
    opened_t: float = 0.0
    extra: tuple[str, ...] = ()

    @classmethod
    def of(cls, case: str, truth: Truth, verdicts: Sequence[Mapping[str, Any]]) -> "Answer":
        """The first verdict counts."""
        if not verdicts:
            return cls(case, truth)
        first = verdicts[0]
        return cls(
            case,
            truth,
            first["failure"],
            tuple(first.get("aliases") or ()),
            first["certainty"],
            tuple(sorted(first["initiating_ranks"])),
            first["opened_t"],
            tuple(v["failure"] for v in verdicts[1:]),
        )

    @property
    def strict(self) -> bool:
        return self.truth.failure in {self.failure, *self.aliases}

    @property
    def fair(self) -> bool:
        return self.strict or self.failure in self.truth.acceptable

    @property
    def ranks(self) -> bool:
        return self.failure is not None and self.initiating == self.truth.initiating

    @property
    def false_alarm(self) -> bool:
        said = {self.failure, *self.extra} - {None}
        return self.truth.failure is None and not said <= set(self.truth.acceptable)


def figures(answers: Sequence[Answer]) -> dict[str, float]:
    """Every figure by name; shares from 0 to 1, seconds, or counts."""
    failures = [a for a in answers if a.truth.failure is not None]
    told = [a for a in failures if a.failure is not None]
    found: dict[str, float] = {"cases": len(answers), "failures": len(failures)}
    found |= _shares("", failures)
    found |= _shares("hang ", [a for a in failures if a.truth.hang])
    found |= _shares("no hang ", [a for a in failures if not a.truth.hang])
    found |= _shares("world > 2 ", [a for a in failures if a.truth.world_size > 2])
    found |= _shares("recorded ", [a for a in failures if a.truth.recorded])
    found |= _shares("reconstructed ", [a for a in failures if not a.truth.recorded])
    for certainty in ("confirmed", "likely", "undetermined"):
        found[f"{certainty} right"] = _share([a.fair for a in told if a.certainty == certainty])
    found["victims blamed"] = sum(bool(set(a.initiating) & set(a.truth.collateral)) for a in told)
    found["extra incidents"] = sum(len(a.extra) for a in failures)
    found["false alarms"] = sum(a.false_alarm for a in answers)
    waits = sorted(a.opened_t - a.truth.first_evidence_t for a in told if a.fair) or [0.0]
    found["seconds to verdict, median"] = median(waits)
    found["seconds to verdict, p90"] = waits[int(0.9 * (len(waits) - 1))]
    return {name: round(value, 3) for name, value in found.items()}


def hangs(prefix: str, answers: Sequence[Answer]) -> dict[str, float]:
    """HANGS by name, for hangs of which evidence is withheld: `undetermined` and `silent` are those that are not fair,
    because the verdict says that the cause is not known, or because nothing was said in the time of the recording."""
    told = [a for a in answers if a.truth.hang]
    rest = [a for a in told if not a.fair]
    blamed = [set(a.initiating) & set(a.truth.collateral) for a in told if a.certainty == "confirmed"]
    found = _shares("", told) | {
        "undetermined": sum(a.certainty == "undetermined" for a in rest) / max(len(told), 1),
        "silent": sum(a.failure is None for a in rest) / max(len(told), 1),
        "victims confirmed": sum(map(bool, blamed)),
        "false alarms": sum(a.false_alarm for a in answers),
    }
    return {f"{prefix}: {name}": round(value, 3) for name, value in found.items()}


def _shares(prefix: str, answers: Sequence[Answer]) -> dict[str, float]:
    return {
        f"{prefix}strict": _share([a.strict for a in answers]),
        f"{prefix}fair": _share([a.fair for a in answers]),
        f"{prefix}ranks": _share([a.ranks for a in answers]),
    }


def _share(right: Sequence[bool]) -> float:
    return sum(right) / len(right) if right else 1.0


def worse(now: Mapping[str, float], recorded: Mapping[str, float]) -> list[str]:
    """The figures that fell below the recorded ones."""
    higher = [k for k in now if k in HIGHER or k.endswith((": strict", ": fair", ": ranks"))]
    lower = [k for k in now if k in LOWER or k.endswith((": victims confirmed", ": false alarms"))]
    found = [f"{k}: {now[k]} < {recorded[k]}" for k in higher if now[k] < recorded.get(k, 0.0)]
    return found + [f"{k}: {now[k]:g} > {recorded[k]:g}" for k in lower if now[k] > recorded.get(k, 1e9)]


def by_failure(answers: Iterable[Answer]) -> list[tuple[str, int, int, int, int]]:
    """A row a failure: id, cases, strict, fair, ranks; a healthy job is right when it stays silent."""
    rows: dict[str, Counter[str]] = {}
    for a in answers:
        row = rows.setdefault(a.truth.failure or "(healthy)", Counter())
        healthy = a.truth.failure is None
        right = (
            {"strict": a.strict, "fair": a.fair, "ranks": a.ranks}
            if not healthy
            else dict.fromkeys(("strict", "fair", "ranks"), not a.false_alarm)
        )
        row.update(cases=1, **{k: int(v) for k, v in right.items()})
    return [(k, r["cases"], r["strict"], r["fair"], r["ranks"]) for k, r in sorted(rows.items())]


def wrong(answers: Iterable[Answer]) -> list[str]:
    """A line for each case whose failure or ranks are not right."""
    return [
        f"{a.case}: {a.truth.failure or 'healthy'} {list(a.truth.initiating)}, said {a.failure or 'nothing'} "
        f"{list(a.initiating)} {a.certainty}{' and ' + ', '.join(a.extra) if a.extra else ''}"
        for a in answers
        if (a.false_alarm if a.truth.failure is None else not (a.fair and a.ranks) or a.extra)
    ]
