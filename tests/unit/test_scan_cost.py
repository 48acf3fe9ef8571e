"""What ordinary lines cost: a rule must not make every step line of every job slower."""

from collections import Counter
from pathlib import Path

import pytest

from denpexd.catalog.load import load, shipped_rules
from denpexd.scan.scanner import Scanner

HyperscanEngine = pytest.importorskip("denpexd.scan.hyperscan_engine").HyperscanEngine
ORDINARY = (Path(__file__).parents[1] / "data" / "ordinary-lines.txt").read_bytes()
MOST_FALSE = 1  # lines of the sample that a signal may look at in vain


def test_no_shipped_signal_looks_at_ordinary_lines_in_vain() -> None:
    catalog, _ = load([shipped_rules()])
    scanner = Scanner(catalog.signals.values(), HyperscanEngine)
    in_vain: Counter[str] = Counter()
    for start, end, ids in scanner.named(ORDINARY, whole=True):
        line = ORDINARY[start:end].decode()
        for number in ids:
            signal = scanner.signal(number)
            if signal is None or scanner.is_progress(number):
                continue
            assert signal.matcher is not None
            in_vain[signal.id] += signal.matcher.search(line) is None
    busy = {name: count for name, count in in_vain.items() if count > MOST_FALSE}
    assert not busy, "each of these costs a look at ordinary lines: name a rarer word of the message in the pattern"


def test_every_shipped_signal_fits_into_the_fast_engine(caplog: pytest.LogCaptureFixture) -> None:
    catalog, _ = load([shipped_rules()])
    Scanner(catalog.signals.values(), HyperscanEngine)
    assert not caplog.messages, "a pattern that runs beside the database slows every scan down: write it another way"
