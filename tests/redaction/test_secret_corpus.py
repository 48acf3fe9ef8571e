"""How much of a corpus of fake secrets is hidden, and how many lines of real training logs are touched. Fixed bars."""

import json
import random
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from secret_corpus import Sample, grammar, mutated, outsiders, told

from denpexd.notify.redact import redact

ROOT = Path(__file__).parents[2]
ROUNDS = 2
BARS = {"format": 0.995, "name=value": 0.95}
WORST_KIND = 0.9
MOST_LEAKS_OF_OUTSIDERS = 0.035


def hidden(samples: Iterable[Sample]) -> tuple[Counter[tuple[str, str]], Counter[tuple[str, str]], list[str]]:
    """Samples tried and hidden by family and kind, and the lines that leak."""
    tried: Counter[tuple[str, str]] = Counter()
    good: Counter[tuple[str, str]] = Counter()
    leaks = []
    for sample in samples:
        shown, _ = redact(sample.text)
        tried[sample.family, sample.kind] += 1
        if sample.leaked_by(shown):
            leaks.append(f"{sample.kind}, {sample.how}: {sample.text!r} -> {shown!r}")
        else:
            good[sample.family, sample.kind] += 1
    return tried, good, leaks


def texts(value: Any) -> Iterator[str]:
    """Every string in a value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from texts(item)


def benign() -> set[str]:
    """Lines of recorded training jobs, what looks like a secret and is none, and the messages that rules quote."""
    found = list[str]()
    for path in (ROOT / "tests" / "data" / "ordinary-lines.txt", Path(__file__).with_name("harmless.txt")):
        found += path.read_text("utf-8").splitlines()
    for path in sorted((ROOT / "tests" / "cases").glob("*/timeline.jsonl")):
        found += [str(json.loads(line).get("line", "")) for line in path.read_text("utf-8").splitlines()]
    for path in [ROOT / "tests" / "data" / "messages.yaml", *sorted((ROOT / "rules").rglob("*.yaml"))]:
        for text in texts(yaml.load(path.read_text("utf-8"), Loader=yaml.CSafeLoader)):
            found += text.splitlines()
    return {line for line in found if line.strip()}


@pytest.mark.parametrize("generator", [grammar, mutated, told])
def test_secrets_of_every_kind_are_hidden(generator: Any) -> None:
    tried, good, leaks = hidden(generator(20_26, ROUNDS))
    for family, bar in BARS.items():
        of_all = sum(n for (f, _), n in tried.items() if f == family)
        share = sum(n for (f, _), n in good.items() if f == family) / of_all
        assert share >= bar, (family, share, leaks[:10])
    for kind, n in tried.items():
        assert good[kind] / n >= WORST_KIND, (kind, leaks[:10])


def test_secrets_that_the_authors_of_the_patterns_did_not_think_of_are_hidden() -> None:
    tried, good, leaks = hidden(outsiders(20_26, 1))
    assert tried.total() > 700
    assert tried.total() - good.total() <= MOST_LEAKS_OF_OUTSIDERS * tried.total(), leaks


def test_no_line_of_real_logs_is_touched() -> None:
    lines = benign()
    touched = [(line, redact(line)[0]) for line in lines if redact(line)[1]]
    assert len(lines) > 10_000
    assert not touched, touched[:10]


def test_what_looks_like_a_secret_and_is_none_is_not_touched_in_whatever_holds_it() -> None:
    rng = random.Random(7)
    lines = Path(__file__).with_name("harmless.txt").read_text("utf-8").splitlines()
    for line in lines:
        held = [json.dumps({"log": json.dumps({"message": line})}), repr(f"HTTP\n{line}\nx"), f"│ {line} │"]
        for text in [*held, f"[rank3]: {line}\n[rank3]: {rng.choice(lines)}", f"{line}\n{rng.choice(lines)}"]:
            assert redact(text)[1] == 0, redact(text)


def test_the_corpus_notices_a_leak() -> None:
    """What is measured can fail: of texts that nobody redacted all leak."""
    assert all(
        sample.leaked_by(sample.text) for sample in [*grammar(1, 1), *mutated(1, 1), *told(1, 1), *outsiders(1, 1)]
    )


def test_what_is_hidden_twice_stays_as_it_is() -> None:
    for sample in [*mutated(5, 1), *outsiders(5, 1)]:
        clean, _ = redact(sample.text)
        assert redact(clean) == (clean, 0), sample
