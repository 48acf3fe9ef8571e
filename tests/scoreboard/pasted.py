"""What `diagnose -` makes of the log of one rank alone, as somebody pastes it into a terminal or a chat."""

import io
import random
from collections import Counter
from concurrent.futures import Executor
from functools import cache

from cases import Truth

from denpexd.catalog.load import load, shipped_rules
from denpexd.diagnose import Diagnosis
from denpexd.recording import Recording

WIDTH = 110


@cache
def _diagnosis() -> Diagnosis:
    return Diagnosis(load([shipped_rules()])[0])


def logs(recording: Recording) -> dict[int, str]:
    """The lines of each rank, as text."""
    found: dict[int, list[str]] = {}
    for printed in recording.lines:
        found.setdefault(printed.rank, []).append(printed.text)
    return {rank: "\n".join(lines) + "\n" for rank, lines in found.items()}


def mangled(text: str, seed: str) -> str:
    """The text as it comes out of a ticket: quoted, numbered, or wrapped in the middle of tokens."""
    lines = text.splitlines()
    how = random.Random(seed).choice(("quoted", "numbered", "wrapped"))
    if how == "quoted":
        return "".join(f"> {line}\n" for line in lines)
    if how == "numbered":
        return "".join(f"{number:5d}\t{line}\n" for number, line in enumerate(lines, 1))
    return "".join(line[at : at + WIDTH] + "\n" for line in lines for at in range(0, max(len(line), 1), WIDTH))


def judge(asked: tuple[str, int, str, Truth]) -> tuple[str, str]:
    """(whose log, what came of it) for one paste."""
    _, rank, text, truth = asked
    verdicts = _diagnosis().paths(["-"], io.BytesIO(text.encode(errors="replace")))
    whose = "initiating rank" if rank in truth.initiating else "launcher, mixed" if rank < 0 else "other rank"
    if truth.failure is None:
        said = {v["failure"] for v in verdicts} - set(truth.acceptable)
        return "healthy", "false alarm" if said else "silent"
    if not verdicts:
        return whose, "nothing found, what is missing is said"
    first = verdicts[0]
    if truth.failure == first["failure"] or truth.failure in (first.get("aliases") or ()):
        return whose, "right"
    if first["failure"] in truth.acceptable:
        return whose, "right, less exact"
    return whose, "undetermined, what is missing is said" if first["certainty"] == "undetermined" else "wrong"


def shares(pool: Executor, known: list[tuple[str, Recording, Truth]]) -> dict[str, dict[str, Counter[str]]]:
    """How often each outcome came, by whose log it was; as it is and mangled."""
    plain = [(name, r, text, truth) for name, recording, truth in known for r, text in logs(recording).items()]
    ruined = [(name, r, mangled(text, f"{name}{r}"), truth) for name, r, text, truth in plain]
    found: dict[str, dict[str, Counter[str]]] = {}
    for how, asked in (("as printed", plain), ("quoted, numbered or wrapped", ruined)):
        rows = found.setdefault(how, {})
        for whose, outcome in pool.map(judge, asked, chunksize=16):
            rows.setdefault(whose, Counter())[outcome] += 1
    return found
