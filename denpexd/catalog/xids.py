"""What the Xid codes of NVIDIA's driver mean: the table `xid.yaml`, one entry a code."""

import re
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

import yaml

_ASKED = re.compile(r"(?i)\s*s?xid[\s_:-]*(\d{1,3})\s*")
WHO = {
    "program": "the owner of the job",
    "hardware": "the operator, on this GPU",
    "driver": "the operator, on driver or firmware",
    "nobody": "nobody",
}


@dataclass(frozen=True, slots=True)
class Xid:
    """One code. `who`: who acts; `rule`: the failure that is reported for it, if one is."""

    code: int
    name: str
    meaning: str
    who: str
    action: str
    severity: str
    rule: str = ""


@cache
def table() -> dict[int, Xid]:
    """Every code that matters to training."""
    rows = yaml.safe_load((Path(__file__).parent / "xid.yaml").read_text(encoding="utf-8"))
    found: dict[int, Xid] = {}
    for row in rows:
        codes = str(row.pop("codes", row.pop("code", "")))
        for number in _numbers(codes):
            found[number] = Xid(code=number, **row)
    return dict(sorted(found.items()))


def _numbers(text: str) -> list[int]:
    """`39-41, 85` as numbers."""
    numbers: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        numbers.extend(range(int(first), int(last or first) + 1))
    return numbers


def asked_for(text: str) -> int | None:
    """The code that `xid 79`, `Xid79` or `xid-79` asks for; None if the text is no such question."""
    found = _ASKED.fullmatch(text)
    return int(found.group(1)) if found is not None else None


def xid_json(code: int) -> dict[str, object]:
    """The entry of a code as plain values; of an unlisted one only the code."""
    known = table().get(code)
    return asdict(known) if known is not None else {"code": code}


def xid_text(code: int) -> str:
    """What the code means and who does what, in a few lines."""
    known = table().get(code)
    if known is None:
        return f"Xid {code}: unused by drivers of data centre GPUs, or without a meaning for training"
    lines = [f"Xid {code}: {known.name} ({known.severity})", f"  {known.meaning}", f"  who acts: {WHO[known.who]}"]
    lines.append(f"  what to do: {known.action}")
    if known.rule:
        lines.append(f"  reported as: {known.rule} (denpexd explain {known.rule})")
    return "\n".join(lines)
