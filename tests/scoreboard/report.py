"""The scoreboard as text for a terminal, and as docs/accuracy.md."""

from collections import Counter
from collections.abc import Mapping, Sequence

from figures import HANGS, Answer, by_failure, wrong

Figures = Mapping[str, float]
Pasted = Mapping[str, Mapping[str, Counter[str]]]
SHOWN = ("strict", "fair", "ranks", "victims blamed", "extra incidents", "false alarms")
PARTS = ("", "hang ", "no hang ", "world > 2 ", "recorded ", "reconstructed ")

INTRODUCTION = """\
# How often denpexd is right

`make score` plays {cases:g} cases with the shipped rules in simulated time and fails if a figure falls below the
recorded one. {recorded} cases are **recorded**: real torch jobs (2.13, gloo, CPU) with an injected fault.
{reconstructed} are **reconstructed** from the message formats of the programs and from public reports: nobody ran those
jobs on the hardware they speak of.
{healthy} are healthy jobs with frightening words, which must stay silent.

*Strict*: the exact failure. *Fair*: that, or a true but less exact answer (which the case lists). *Ranks*: the ranks
that began it, all of them and no other. The rules were written by people who had seen these cases, so read the figures
as what must not get worse, not as what to expect of a job nobody has seen: on two sets of jobs written by somebody who
had not seen the rules, the first contact gave 0.75 and 0.69 strict (0.85 and 0.78 fair) with the first 18 rules. With
174 rules, somebody who knew only their titles wrote 48 jobs (40 fail, 8 are healthy) from what programs print, with
failures, versions and layouts that the other sets lack: the first contact gave 0.63 strict, 0.80 fair, 0.75 ranks, one
victim blamed, and 2 of the 8 healthy jobs were reported. Then what was missing was added. Of 22 further jobs (16 fail),
written after that and so with some knowledge of the rules, 0.94 strict, 1.00 fair, 0.88 ranks, no false alarm.
Later somebody who knew only the titles wrote 36 jobs more (26 fail, 10 are healthy): 0.81 strict, 0.88 fair, 0.85 ranks
at first contact, two victims blamed, one healthy job reported. After mending, 32 others (21 fail, 11 are healthy, among
them the mended kinds in other clothes) gave 0.95 strict, fair and ranks, one victim blamed, no false alarm.
"""

CHANGED = """\
## The same cases, changed

Numbers of ranks, clocks and chatter must not matter. Ranks are renumbered at random, in what they print and in who
prints it, except where the number is a physical fact: rank 0 hosts the store, so it stays rank 0 in the cases that it
began and in which others cannot reach the store; the ranks of a node keep consecutive numbers where several launchers
speak; and what a launcher prints stays in the stream of the first rank of its node.
"""


WITHHELD = """\
## Hangs with less evidence

What stacks and Flight Recorder dumps show is withheld: the logs, the ends of processes and their CPU time are left (and
the dumps in the second row, where there are any). *Undetermined*: not fair, but the verdict says that the cause is not
known, who stands out, and what would tell. *Silent*: nothing was said in the two and a half minutes of silence that
most recordings have. No victim may be blamed as `confirmed`.
"""


def text(answers: Sequence[Answer], now: Figures, changed: Mapping[str, Figures], pasted: Pasted) -> str:
    """Everything, for a person at a terminal."""
    lines = [f"{'failure':46} cases strict fair ranks"]
    lines += [f"{row[0]:46} {row[1]:5} {row[2]:6} {row[3]:4} {row[4]:5}" for row in by_failure(answers)]
    lines += ["", *(f"wrong: {line}" for line in wrong(answers)), ""]
    lines += [f"{name:28} {value:g}" for name, value in now.items()]
    for what, figures in changed.items():
        lines.append(f"{what}: " + ", ".join(f"{name} {figures[name]:g}" for name in SHOWN))
    for how, rows in pasted.items():
        for whose, outcomes in rows.items():
            lines.append(f"pasted, {how}, {whose}: {_outcomes(outcomes)}")
    return "\n".join(lines)


def _outcomes(outcomes: Counter[str]) -> str:
    total = sum(outcomes.values())
    return f"{total} logs; " + ", ".join(f"{name} {count / total:.3f}" for name, count in outcomes.most_common())


def page(answers: Sequence[Answer], now: Figures, changed: Mapping[str, Figures], pasted: Pasted) -> str:
    """docs/accuracy.md."""
    counts = {
        "recorded": sum(a.truth.recorded for a in answers),
        "reconstructed": sum(not a.truth.recorded for a in answers),
        "healthy": sum(a.truth.failure is None for a in answers),
    }
    parts = [INTRODUCTION.format(cases=now["cases"], **counts), "## Figures\n"]
    parts.append(_table(("", "strict", "fair", "ranks"), [_shares(part, now) for part in PARTS]))
    rest = {k: v for k, v in now.items() if not k.endswith(("strict", "fair", "ranks")) and ": " not in k}
    shares = {k.replace(" right", " verdicts that are right"): f"{rest.pop(k):.3f}" for k in [*rest] if "right" in k}
    parts.append(_table(("", ""), [*((k, f"{v:g}") for k, v in rest.items()), *shares.items()]))
    parts.append(WITHHELD)
    less = dict.fromkeys(k.partition(": ")[0] for k in now if ": " in k)
    parts.append(_table(("", *HANGS), [(w, *(f"{now[f'{w}: {name}']:g}" for name in HANGS)) for w in less]))
    parts.append(CHANGED)
    rows = [(what, *(f"{f[name]:g}" for name in SHOWN)) for what, f in {"as they are": now, **changed}.items()]
    parts.append(_table(("", *SHOWN), rows))
    parts.append("## One log alone\n\nThe lines of one rank, pasted into `denpexd diagnose -`.\n")
    rows = [(how, whose, _outcomes(o)) for how, each in pasted.items() for whose, o in each.items()]
    parts.append(_table(("how", "whose log", "outcome"), rows))
    parts.append("## By failure\n")
    parts.append(_table(("failure", "cases", "strict", "fair", "ranks"), by_failure(answers)))
    parts.append("## Wrong\n")
    parts.append("\n".join(f"- {line}" for line in wrong(answers)) or "Nothing.")
    return "\n".join(parts) + "\n"


def _shares(part: str, now: Figures) -> tuple[str, ...]:
    return (part.strip() or "all failures", *(f"{now[part + name]:.3f}" for name in ("strict", "fair", "ranks")))


def _table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows)]) + "\n"
