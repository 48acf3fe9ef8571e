"""Each file of tests/data/rules has one mistake; its first lines say where it is and what is said about it."""

import re
import shutil
from pathlib import Path

import pytest

from denpexd.catalog.lint import lint
from denpexd.catalog.load import read_folders
from denpexd.errors import RuleError

DATA = Path(__file__).parents[1] / "data" / "rules"
EXPECTED = re.compile(r"# (\d+):(\d+): (.*)")


def expectations(path: Path) -> list[tuple[int, int, str]]:
    found = [EXPECTED.fullmatch(line) for line in path.read_text().splitlines()]
    return [(int(one[1]), int(one[2]), one[3]) for one in found if one]


def mistakes(path: Path, tmp_path: Path) -> list[RuleError]:
    shutil.copytree(DATA / "good", tmp_path / "rules")
    target = tmp_path / "rules" / "hang" / path.name
    shutil.copy(path, target)
    loaded = read_folders([tmp_path / "rules"], strict=False)
    return [error for error in (*loaded.errors, *lint(loaded)) if error.path == str(target)]


@pytest.mark.parametrize("path", sorted(DATA.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_mistake_is_reported_at_its_place(path: Path, tmp_path: Path) -> None:
    found = mistakes(path, tmp_path)
    for line, column, why in expectations(path):
        assert any((error.line, error.column) == (line, column) and why in str(error) for error in found), found
    assert len(found) == len(expectations(path)), [str(error) for error in found]


def test_every_bad_file_says_what_is_wrong() -> None:
    paths = sorted(DATA.glob("*.yaml"))
    assert len(paths) > 50
    assert all(expectations(path) for path in paths)
