"""What the documentation says is shown by a test is shown by a test; an exception from a check says why."""

import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MATRIX = (ROOT / "docs" / "reliability.md").read_text("utf-8")
FILES = {file.name: file for file in (ROOT / "tests").rglob("test_*.py")}
NAMED = re.compile(r"(?:tests/(?P<folder>\w+)/)?(?P<file>test_\w+\.py)(?:: (?P<name>\w+))?")


def rows() -> dict[str, list[str]]:
    """Row of the fault matrix to everything in code quotes in its last column."""
    found = defaultdict(list)
    for line in MATRIX.splitlines():
        if re.match(r"\| (?:[A-H]\d\d|-) \|", line):
            number, _, shown = line.strip("| ").split(" | ", 2)
            found[number] += re.findall(r"`([^`]+)`", shown)
    return found


@pytest.mark.parametrize("number", sorted(rows()))
def test_every_test_that_the_fault_matrix_names_exists(number: str) -> None:
    last = ""
    for quoted in rows()[number]:
        if match := NAMED.fullmatch(quoted):
            assert match["file"] in FILES, quoted
            file = FILES[match["file"]]
            assert match["folder"] in (None, file.parent.name), quoted
            last = file.read_text("utf-8")
            name = match["name"]
        elif re.fullmatch(r"test_\w+", quoted):
            name = quoted
        else:
            continue
        assert name is None or re.search(rf"\b(?:def|class) {name}\b", last), quoted


def test_no_row_of_the_fault_matrix_is_missing() -> None:
    wanted = {"A": 24, "B": 17, "C": 22, "D": 8, "E": 16, "F": 26, "G": 13, "H": 24}
    assert {f"{section}{n:02}" for section, last in wanted.items() for n in range(1, last + 1)} <= set(rows())


def test_an_exception_from_a_check_says_why_on_its_line() -> None:
    silent = re.compile(r"# (?:noqa|type: ignore|pragma: no cover)\b(?::[A-Z0-9, ]+|\[[\w, -]+\])?[ #-]*\w*$", re.M)
    for folder in ("denpexd", "tests", "bench", "docs", "deploy"):
        for file in (ROOT / folder).rglob("*.py"):
            assert not silent.search(file.read_text("utf-8")), file
