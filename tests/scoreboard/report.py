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
as what must not get worse; what to expect of a job nobody has seen stands below.
"""

UNSEEN = """\
## Jobs that nobody had seen

Again and again somebody who knew only the titles of the rules wrote jobs from what programs print, with failures,
versions, frameworks and layouts that the other sets lack, and healthy jobs meant to mislead. These are the figures of
the first contact, before anything was mended; then the missing kinds were added, and the set measures no more.

| failed / healthy | strict | fair | ranks | healthy jobs reported | victims blamed | about |
|---|---|---|---|---|---|---|
| 91 / 21 | 0.846 | 0.923 | 0.901 | 1 | 2 | everything |
| 38 / 10 | 0.895 | 0.974 | 0.842 | 0 | 1 | everything |
| 40 / 8 | 0.625 | 0.800 | 0.750 | 2 | 1 | JSON, Ray, pods, XPU, Horovod |
| 26 / 10 | 0.808 | 0.885 | 0.846 | 1 | 2 | everything |
| 19 / 7 | 0.684 | 0.789 | 0.789 | 0 | 0 | JAX, Ray, Kubernetes, storage |
| 19 / 7 | 0.737 | 0.947 | 0.789 | 1 | 1 | hangs across ranks |
| 14 / 16 | 0.429 | 0.714 | 0.643 | 1 | 1 | hangs, and healthy jobs |
| 30 / 6 | 0.700 | 0.867 | 0.967 | 3 | 0 | crashes |
| 20 / 15 | 0.450 | 0.650 | 0.850 | 4 | 0 | hangs, and healthy jobs |
| 32 / 11 | 0.719 | 0.906 | 0.781 | 2 | 2 | crashes, infrastructure |
| 16 / 4 | 0.688 | 0.812 | 0.938 | 0 | 0 | the same, written after mending |

So of a failure in a form that nobody has met expect the exact name in two of three cases, and a true one and the right
ranks in five of six; of healthy jobs that were written to mislead, one in six was reported (the last eight sets).
After mending, and with some ten truths of the cases corrected, the same eight give 0.71 to 0.95 strict, 0.93 to 1.00
fair, and none of their healthy jobs is reported.
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
    parts.append(UNSEEN)
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
