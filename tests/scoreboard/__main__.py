"""How good the verdicts are: every recorded and reconstructed case, played with the shipped rules.

make score                          the table; fails if a figure fell below tests/scoreboard/recorded.json
python tests/scoreboard --record    writes that file and docs/accuracy.md anew
python tests/scoreboard --changed   also with renamed ranks, shifted clocks and ten benign lines for each line
python tests/scoreboard --pasted    also what `diagnose -` says of the lines of one rank alone
python tests/scoreboard --without stacks,exits      withholds evidence: stacks, fr, states, exits
"""

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path

import pasted
import report
from cases import Truth, cases, noisy, renamed, shifted
from figures import Answer, figures, hangs, worse, wrong

from denpexd.catalog.load import load, shipped_rules
from denpexd.recording import Recording
from denpexd.replay import Replayer
from denpexd.scan.engine import choose_engine

Case = tuple[str, Recording, Truth]
HERE = Path(__file__).parent
RECORDED = HERE / "recorded.json"
ACCURACY = HERE.parents[1] / "docs" / "accuracy.md"
CHANGES: dict[str, Callable[[Case], Case]] = {
    "ranks renamed": lambda c: (c[0], *renamed(c[1], c[2], c[0])),
    "clock shifted by 7 h": lambda c: (c[0], shifted(c[1], 25_200.0), _later(c[2], 25_200.0)),
    "10 benign lines a line": lambda c: (c[0], noisy(c[1], 10), c[2]),
}


WITHHELD = {"without stacks and dumps": ("stacks", "fr"), "with dumps, without stacks": ("stacks",)}


def _later(truth: Truth, seconds: float) -> Truth:
    return replace(truth, first_evidence_t=truth.first_evidence_t + seconds)


@cache
def _replayer() -> Replayer:
    catalog, errors = load([shipped_rules()])
    for error in errors:
        print(f"left out: {error}", file=sys.stderr)
    return Replayer(catalog, choose_engine())


def judge(case: Case) -> Answer:
    """What the core says of one case."""
    name, recording, truth = case
    return Answer.of(name, truth, _replayer().run(recording).verdicts)


def withhold(recording: Recording, kinds: Sequence[str]) -> Recording:
    """The case without some kinds of evidence."""
    gone = {"stacks": {"looks": []}, "states": {"states": []}, "exits": {"exits": []}, "fr": {"dumps": []}}
    return replace(recording, **{k: v for kind in kinds for k, v in gone[kind].items()})


def withheld(pool: Executor, known: Sequence[Case]) -> tuple[dict[str, float], dict[str, list[Answer]]]:
    """How hangs are told where evidence is missing, and that healthy jobs stay silent then; every answer too."""
    found: dict[str, float] = {}
    said: dict[str, list[Answer]] = {}
    for what, kinds in WITHHELD.items():
        chosen = [
            case for case in known if (case[2].hang or case[2].failure is None) and ("fr" in kinds or case[1].dumps)
        ]
        said[what] = list(pool.map(judge, [(n, withhold(r, kinds), t) for n, r, t in chosen], chunksize=4))
        found |= hangs(what, said[what])
    return found, said


def main() -> int:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--record", action="store_true")
    asked.add_argument("--changed", action="store_true")
    asked.add_argument("--pasted", action="store_true")
    asked.add_argument("--without", default="", metavar="KINDS")
    options = asked.parse_args()
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(os.cpu_count()) as pool:
        known = list(cases(Path(folder)))
        without = [kind for kind in options.without.split(",") if kind]
        known = [(name, withhold(recording, without), truth) for name, recording, truth in known]
        answers = list(pool.map(judge, known, chunksize=8))
        others = {}
        if options.changed or options.record:
            for what, change in CHANGES.items():
                others[what] = list(pool.map(judge, map(change, known), chunksize=8))
        alone = pasted.shares(pool, known) if options.pasted or options.record else {}
        less, said = withheld(pool, known) if not without else ({}, {})
    now = figures(answers) | less
    print(report.text(answers, now, {what: figures(said) for what, said in others.items()}, alone))
    for what, differently in others.items():
        plain = {a.case: (a.strict, a.fair, a.ranks, a.false_alarm) for a in answers}
        differing = [a for a in differently if (a.strict, a.fair, a.ranks, a.false_alarm) != plain[a.case]]
        print(*(f"{what}: {line}" for line in wrong(differing)), sep="\n")
    for what, some in said.items():
        print(*(f"{what}: {line}" for line in wrong(some)), sep="\n")
    if options.record:
        RECORDED.write_text(json.dumps(now, indent=1) + "\n")
        changed = {what: figures(said) for what, said in others.items()}
        ACCURACY.write_text(report.page(answers, now, changed, alone))
        return 0
    fallen = worse(now, json.loads(RECORDED.read_text())) if RECORDED.exists() and not without else []
    print(*(f"worse than recorded: {line}" for line in fallen), sep="\n")
    return 1 if fallen else 0


if __name__ == "__main__":
    sys.exit(main())
