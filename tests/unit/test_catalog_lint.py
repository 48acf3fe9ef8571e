"""Lint of shared signals and of relations between files (single mistakes: test_catalog_mistakes)."""

import shutil
from pathlib import Path

import pytest

from denpexd.catalog.lint import lint
from denpexd.catalog.load import read_folders

GOOD = Path(__file__).parents[1] / "data" / "rules" / "good"


def findings(tmp_path: Path, old: str, new: str, file: str = "signals/torch.yaml") -> list[str]:
    folder = shutil.copytree(GOOD, tmp_path / "rules")
    path = folder / file
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    return [f"{error.line}: {error.why}" for error in lint(read_folders([folder]))]


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ('samples: ["step 100 loss 2.31"]', 'samples: ["step a"]', "7: the sample does not match"),
        ('    samples: ["step 100 loss 2.31"]\n', "", "3: a shared log signal needs samples"),
        ('look_alikes: ["stepping 100"]', 'look_alikes: ["step 1 loss 2"]', "8: the look-alike matches"),
        ("    except: 'not running'\n", "", "15: the look-alike matches"),
        ("(?P<step>\\d+) loss (?P<loss>[\\d.]+)", "\\d+ loss", "3: a progress signal captures nothing"),
        ("exchange:\n", "exchange2:\n", ""),
    ],
)
def test_shared_signals_prove_themselves(tmp_path: Path, old: str, new: str, found: str) -> None:
    assert findings(tmp_path, old, new) == ([found] if found else [])


def test_an_unused_shared_signal_is_a_mistake(tmp_path: Path) -> None:
    spare = "  spare:\n    frame: '^forward'\n    means: nothing\n  exchange:\n"
    assert findings(tmp_path, "  exchange:\n", spare) == ["17: no rule uses 'torch.spare'"]


def test_a_rule_that_cannot_be_loaded_may_be_related(tmp_path: Path) -> None:
    folder = shutil.copytree(GOOD, tmp_path / "rules")
    (folder / "hang" / "broken.yaml").write_text("schema: 1\n")
    path = folder / "hang" / "good.yaml"
    path.write_text(path.read_text().replace("related: [good-former]", "related: [broken]"))
    assert lint(read_folders([folder])) == []


def test_an_alias_belongs_to_one_rule(tmp_path: Path) -> None:
    folder = shutil.copytree(GOOD, tmp_path / "rules")
    text = (folder / "hang" / "good.yaml").read_text().replace("id: good\n", "id: twin\n")
    (folder / "hang" / "twin.yaml").write_text(text)
    assert [error.why for error in lint(read_folders([folder]))] == ["alias 'good-former' belongs to 'good' already"]
