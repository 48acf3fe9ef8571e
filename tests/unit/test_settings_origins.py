"""`denpexd config show --origin`: which place gave each option its value."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from denpexd.cli import main
from denpexd.settings import load
from denpexd.settings_origins import origins

FILE = """\
job: a
paths: /logs
sinks:
  - type: webhook
    url: http://example.org/s3cr3t-path
    headers: {X-Token: abc-s3cr3t}
hang: {budgets: {eval: 30m}}
web:
  port: 9500
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "denpexd.yaml"
    path.write_text(FILE)
    return path


def told(file: Path | None, flags: dict[str, object], environ: dict[str, str]) -> dict[str, tuple[object, str]]:
    rows = origins(load(file, overrides=flags, environ=environ), file, flags, environ)
    return {option: (value, where) for option, value, where in rows}


def test_each_value_has_the_place_that_won(file: Path) -> None:
    rows = told(file, {"job": "b"}, {"DENPEXD_HANG__MIN_SILENCE": "40s", "DENPEXD_WEB__HOST": "::1"})
    assert rows["job"] == ("b", "command line, job")
    assert rows["hang.min_silence"] == ("40s", "environment variable DENPEXD_HANG__MIN_SILENCE")
    assert rows["hang.budgets.eval"] == ("30m", f"{file}:7:18")
    assert rows["hang.budgets.start"] == ("20m", "default")
    assert rows["web.port"] == (9500, f"{file}:9:3")
    assert rows["web.host"] == ("::1", "environment variable DENPEXD_WEB__HOST")
    assert rows["paths"] == (["/logs"], f"{file}:2:1")
    assert rows["state_dir"][1] == "default"


def test_a_list_belongs_as_a_whole_to_the_last_place_that_gave_it(file: Path) -> None:
    rows = told(file, {}, {})
    assert rows["sinks[0].type"] == ("webhook", f"{file}:4:5")
    assert rows["sinks[0].severity"] == (None, "default")
    rows = told(file, {}, {"DENPEXD_SINKS": "[{type: console}]", "HOME": "/home/x"})
    assert rows["sinks[0].type"] == ("console", "environment variable DENPEXD_SINKS")
    assert "sinks[0].url" not in rows


def test_every_option_is_named_and_no_secret_is_shown(file: Path) -> None:
    runner = CliRunner()
    text = runner.invoke(main, ["config", "show", "-c", str(file), "--origin", "--evidence", "off"]).output
    rows = json.loads(runner.invoke(main, ["config", "show", "-c", str(file), "--origin", "--format", "json"]).output)
    assert len(rows) == len(told(file, {}, {}))
    assert "command line, evidence.active" in text
    assert f"{file}:6:15" in text
    assert "s3cr3t" not in text + str(rows)


def test_a_narrow_terminal_gets_a_list_instead_of_a_table(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("denpexd.terminal.whole", lambda: False)
    shown = CliRunner().invoke(main, ["config", "show", "-c", str(file), "--origin"], env={"COLUMNS": "44"}).output
    assert 'hang.budgets.eval\n  value  "30m"\n  from   ' in shown
    assert all(len(line) <= 44 for line in shown.splitlines())
