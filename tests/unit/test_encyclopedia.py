"""The encyclopedia as pages, and the tools for those who write rules."""

import json
import re
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner, Result

from denpexd.catalog.document import read
from denpexd.catalog.load import load, shipped_rules
from denpexd.catalog.schema import json_schema, schema_file
from denpexd.cli import main
from denpexd.encyclopedia import INDEX, MARK, SYMPTOMS, difference, entry_markdown, md, pages, write
from denpexd.notify.message import runbook_url
from denpexd.settings import ENCYCLOPEDIA

SHIPPED, _ = load([shipped_rules()])
PAGES = pages(SHIPPED)


def call(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


# --- pages ------------------------------------------------------------------------------------------------------------


def test_every_failure_has_a_page_and_stands_in_both_indexes() -> None:
    assert set(PAGES) == {INDEX, SYMPTOMS, *(f"{rule}.md" for rule in SHIPPED.rules)}
    for rule in SHIPPED.rules.values():
        assert f"]({rule.id}.md)" in PAGES[INDEX]
        assert f"]({rule.id}.md)" in PAGES[SYMPTOMS]
        assert all(md(see) in PAGES[SYMPTOMS] for see, _ in rule.entry.symptoms)


def test_every_link_between_pages_leads_somewhere() -> None:
    for name, text in PAGES.items():
        prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
        assert set(re.findall(r"\]\(([^):]+)\)", prose)) <= set(PAGES), name


@pytest.mark.parametrize("failure", sorted(SHIPPED.rules))
def test_a_page_has_every_part_of_the_entry(failure: str) -> None:
    rule, text = SHIPPED.rules[failure], PAGES[f"{failure}.md"]
    assert text.startswith(MARK)
    assert f"# {md(rule.entry.title)}\n" in text
    assert all(f"<{url}>" in text for url in rule.entry.references)
    for _, snippet in rule.entry.code:
        assert all(line.rstrip() in text for line in snippet.rstrip().splitlines())
    fences = re.findall(r"^ *(`{3,})", text, re.MULTILINE)
    assert len(fences) % 2 == 0
    assert "\n\n\n" not in re.sub(r"```.*?```", "code", text, flags=re.DOTALL)


def test_markdown_shows_what_stands_in_the_text() -> None:
    assert md("a_b * <x> `y` [z](u) | #") == r"a\_b \* \<x\> \`y\` \[z\](u) \| \#"
    rule = SHIPPED.rules["rank-oom-killed"]
    fenced = replace(rule, entry=replace(rule.entry, code=(("PyTorch", "a = '```'\nb"),)))
    assert "````python\na = '```'\nb\n````" in entry_markdown(fenced)


def test_only_what_changed_is_written_and_only_own_pages_are_deleted(tmp_path: Path) -> None:
    write(tmp_path, difference(SHIPPED, tmp_path))
    assert difference(SHIPPED, tmp_path) == {}
    (tmp_path / "mine.md").write_text("# written by hand\n")
    (tmp_path / "former-failure.md").write_text(f"{MARK}\n# a failure that is gone\n")
    (tmp_path / INDEX).write_text("changed")
    changes = difference(SHIPPED, tmp_path)
    assert changes == {INDEX: PAGES[INDEX], "former-failure.md": None}
    assert call("rules", "docs", str(tmp_path), "--check").exit_code == 1
    result = call("rules", "docs", str(tmp_path))
    assert (result.exit_code, f"{len(SHIPPED.rules)} failures, 2 pages changed" in result.output) == (0, True)
    assert (tmp_path / "mine.md").exists()
    assert not (tmp_path / "former-failure.md").exists()
    assert call("rules", "docs", str(tmp_path), "--check").exit_code == 0


def test_alerts_link_to_the_page_of_their_failure() -> None:
    assert runbook_url(ENCYCLOPEDIA, "rank-oom-killed").endswith("/docs/encyclopedia/rank-oom-killed.md")
    assert runbook_url("https://wiki/x/", "disk-full") == "https://wiki/x/disk-full"


@pytest.mark.parametrize("form", ["markdown", "text"])
def test_explain_speaks_several_forms(form: str) -> None:
    result = call("explain", "rank-oom-killed", "--format", form)
    assert result.exit_code == 0
    head = "## What to do" if form == "markdown" else "\nWhat to do\n"
    assert head in result.output


# --- for those who write rules ----------------------------------------------------------------------------------------


def test_a_new_rule_passes_every_check_and_the_schema(tmp_path: Path) -> None:
    assert call("rules", "new", "my-disk", "--category", "storage", "--into", str(tmp_path)).exit_code == 0
    path = tmp_path / "storage" / "my-disk.yaml"
    assert path.read_text().startswith(f"# yaml-language-server: $schema={schema_file()}\n")
    result = call("rules", "test", str(path), "--format", "json")
    said = json.loads(result.output)
    assert (result.exit_code, said["ok"], said["errors"]) == (0, True, [])
    document, _ = read(path)
    assert document is not None
    jsonschema.Draft202012Validator(json_schema()).validate(document.data)


def test_a_clause_that_no_example_needs_is_a_mistake_unless_only_told(tmp_path: Path) -> None:
    call("rules", "new", "my-disk", "--category", "storage", "--into", str(tmp_path))
    path = tmp_path / "storage" / "my-disk.yaml"
    more = "signals:\n  never:\n    log: 'words that nothing prints'\n    means: x\n"
    path.write_text(path.read_text().replace("signals:\n", more, 1))
    result = call("rules", "test", str(path))
    assert result.exit_code == 1
    assert "no example needs this clause: signal never" in result.output
    assert call("rules", "test", str(path), "--clauses", "report").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["rank-oom-killed"], "exists already"),
        (["My_Disk"], "is no id"),
        (["../x"], "is no id"),
        (["my-disk", "--category", "disks"], "there is no category 'disks'"),
    ],
)
def test_what_cannot_be_a_new_rule_is_refused(tmp_path: Path, arguments: list[str], why: str) -> None:
    result = call("rules", "new", *arguments, "--into", str(tmp_path))
    assert result.exit_code == 2
    assert why in result.stderr
    assert not list(tmp_path.iterdir())


def test_rules_are_listed_by_what_is_asked_for() -> None:
    rows = json.loads(call("rules", "list", "--format", "json").output)
    for name in ("category", "severity", "status", "domain"):
        value = rows[0][name]
        chosen = json.loads(call("rules", "list", f"--{name}", value, "--format", "json").output)
        assert chosen == [row for row in rows if row[name] == value]
    tagged = json.loads(call("rules", "list", "--tag", "sigkill", "--tag", "cgroup", "--format", "json").output)
    assert "rank-oom-killed" in [row["id"] for row in tagged]
    assert call("rules", "list", "--tag", "no-such-tag").exit_code == 1
    assert "memory" in call("rules", "list", "--category", "memory").output


def test_rules_are_tested_by_id_or_file() -> None:
    result = call("rules", "test", "rank-oom-killed", "--clauses", "skip")
    assert result.exit_code == 0
    assert "1 rules" in result.output
    assert call("rules", "test", "no-such-rule").exit_code == 2


def test_the_installed_schema_is_that_of_the_code() -> None:
    shown = json.loads(schema_file().read_text("utf-8"))
    assert shown == json_schema(), "run: make docs"
    assert call("rules", "schema", "--path").output.strip() == str(schema_file())
