"""Where rules come from: folders and installed distributions, each unable to harm the others."""

import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from denpexd.catalog.load import load, shipped_rules
from denpexd.catalog.packs import SHIPPED, PackState, load_packs

SHIPPED_RULES = load([shipped_rules()])[0].rules
RULE = (shipped_rules() / "memory" / "rank-oom-killed.yaml").read_text("utf-8")
PROJECT = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""


def write(folder: Path, rule_id: str, text: str = RULE) -> Path:
    path = folder / "memory" / f"{rule_id}.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.replace("id: rank-oom-killed", f"id: {rule_id}"))
    return path


def states(folders: list[Path], **options: object) -> dict[str, PackState]:
    return {state.pack.name: state for state in load_packs(folders, **options).states}


def test_a_bad_file_harms_neither_its_pack_nor_another(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write(tmp_path / name, f"good-{name}")
    bad = write(tmp_path / "one", "bad", "schema: 1\nid: bad\n")
    packs = load_packs([tmp_path / "one", tmp_path / "two", tmp_path / "none"], installed=lambda: [])
    found = {state.pack.name: state for state in packs.states}
    assert {*SHIPPED_RULES, "good-one", "good-two"} == set(packs.catalog.rules)
    assert [(found[name].rules, bool(found[name].errors)) for name in (SHIPPED, "one", "two", "none")] == [
        (len(SHIPPED_RULES), False),
        (1, True),
        (1, False),
        (0, True),
    ]
    assert {error.path for error in found["one"].errors} == {str(bad)}
    assert "there is no such folder" in str(found["none"].errors[0])


def test_an_id_belongs_to_the_pack_that_came_first(tmp_path: Path) -> None:
    write(tmp_path / "mine", "rank-oom-killed")
    packs = load_packs([tmp_path / "mine"], installed=lambda: [])
    (clash,) = packs.errors
    assert "rule 'rank-oom-killed' exists already" in str(clash)
    assert str(shipped_rules()) in clash.hint
    assert [state.rules for state in packs.states] == [len(SHIPPED_RULES), 0]


def test_the_same_folder_twice_is_one_pack(tmp_path: Path) -> None:
    write(tmp_path / "mine", "mine")
    packs = load_packs([tmp_path / "mine", tmp_path / "x" / ".." / "mine", shipped_rules()], installed=lambda: [])
    assert packs.errors == ()
    assert [state.pack.kind for state in packs.states] == ["shipped", "folder"]


def test_packs_of_the_same_last_name_are_told_apart(tmp_path: Path) -> None:
    for site in ("a", "b"):
        write(tmp_path / site / "rules", f"rule-{site}")
    names = [s.pack.name for s in load_packs([tmp_path / "a/rules", tmp_path / "b/rules"], installed=lambda: []).states]
    assert names == [SHIPPED, str(tmp_path / "a/rules"), str(tmp_path / "b/rules")]


@pytest.mark.parametrize("value", ["no_such_package", "json:rules", "os.path", ":rules", "..:x", "json.decoder"])
def test_an_entry_point_that_leads_nowhere_is_said(value: str) -> None:
    points = [EntryPoint(name="theirs", value=value, group="denpexd.rules")]
    state = states([], installed=lambda: points)["theirs"]
    assert state.rules == 0
    assert "entry point theirs" in str(state.errors[0])
    assert len(load_packs([], installed=lambda: points).catalog.rules) == len(SHIPPED_RULES)


def distribution(folder: Path) -> Path:
    """A project as somebody else would publish it, with a build backend that needs no network."""
    write(folder / "acme_rules" / "failures", "acme-disk")
    write(folder / "acme_rules" / "failures", "acme-broken", "schema: 1\nid: acme-broken\n")
    (folder / "acme_rules" / "__init__.py").write_text("raise RuntimeError('rules are data: nobody may import this')\n")
    (folder / "pyproject.toml").write_text(PROJECT)
    (folder / "backend.py").write_text(
        "import pathlib, zipfile\n"
        "def build_wheel(target, settings=None, metadata=None):\n"
        "    name = 'acme_rules-1.2-py3-none-any.whl'\n"
        "    info = 'acme_rules-1.2.dist-info'\n"
        "    with zipfile.ZipFile(pathlib.Path(target, name), 'w') as wheel:\n"
        "        for path in sorted(pathlib.Path('acme_rules').rglob('*.*')):\n"
        "            wheel.write(path, str(path))\n"
        "        wheel.writestr(info + '/METADATA', 'Metadata-Version: 2.1\\nName: acme-rules\\nVersion: 1.2\\n')\n"
        "        wheel.writestr(info + '/WHEEL', 'Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n')\n"
        "        wheel.writestr(info + '/entry_points.txt', '[denpexd.rules]\\nacme = acme_rules:failures\\n')\n"
        "        wheel.writestr(info + '/RECORD', '')\n"
        "    return name\n"
    )
    return folder


def test_an_installed_distribution_brings_its_rules_and_none_of_its_code_runs(tmp_path: Path) -> None:
    project = distribution(tmp_path / "project")
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--no-build-isolation"]
    subprocess.run([*pip, "--target", str(site), str(project)], check=True, timeout=250)
    env = {"PYTHONPATH": f"{site}:{Path(__file__).parents[2]}", "PATH": ""}
    done = subprocess.run(
        [sys.executable, "-m", "denpexd", "rules", "packs"], env=env, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 1, done.stderr
    row = next(line for line in done.stdout.splitlines() if line.startswith("acme "))
    assert row.split()[1:4] == ["installed", "1", "0"]
    assert "acme-rules 1.2" in row
    assert "acme-broken.yaml:1:1:" in done.stdout
    shown = subprocess.run(
        [sys.executable, "-m", "denpexd", "explain", "acme-disk"], env=env, capture_output=True, text=True, timeout=250
    )
    assert "acme-disk" in shown.stdout
    assert "rule left out" in shown.stderr
    assert "nobody may import this" not in done.stderr + shown.stderr
