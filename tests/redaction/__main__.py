"""How much of the corpus is hidden, by kind; `make secrets`. With files as arguments: which of their lines are touched.

The files are logs without secrets; what is touched is printed, to be looked at by a person.
"""

import sys
from collections import Counter
from pathlib import Path

from secret_corpus import grammar, mutated, told
from test_secret_corpus import benign, hidden

from denpexd.notify.redact import redact

ROUNDS = 40


def main(files: list[str]) -> None:
    if files:
        lines = {line for name in files for line in Path(name).read_text("utf-8", "replace").splitlines() if line}
        touched = [(line, clean) for line in sorted(lines) if (clean := redact(line)[0]) != line and redact(line)[1]]
        for line, clean in touched:
            print(f"- {line}\n+ {clean}")
        print(f"{len(touched)} of {len(lines)} different lines touched")
        return
    tried: Counter[tuple[str, str]] = Counter()
    good: Counter[tuple[str, str]] = Counter()
    for name, make in (("grammar", grammar), ("mutated", mutated), ("told", told)):
        of, kept, _ = hidden(make(1, ROUNDS))
        tried, good = tried + of, good + kept
        for family in ("format", "name=value"):
            n = sum(count for (f, _), count in of.items() if f == family)
            print(f"{name:<8} {family:<11} {sum(c for (f, _), c in kept.items() if f == family)} of {n} hidden")
    for family, kind in sorted(tried, key=lambda each: (good[each] / tried[each], each)):
        print(f"  {good[family, kind] / tried[family, kind]:.4f}  {kind} ({family}, {tried[family, kind]} tried)")
    for family in ("format", "name=value"):
        n = sum(count for (f, _), count in tried.items() if f == family)
        print(f"{family}: {sum(c for (f, _), c in good.items() if f == family) / n:.5f} of {n} hidden")
    lines = benign()
    print(f"{sum(redact(line)[1] > 0 for line in lines)} of {len(lines)} different benign lines touched")


if __name__ == "__main__":
    main(sys.argv[1:])
