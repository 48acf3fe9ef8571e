"""Encyclopedia entries for people and for programs."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from denpexd.catalog.load import load, shipped_rules
from denpexd.core.rule import Rule
from denpexd.encyclopedia import entry_json, entry_text

SHIPPED, _ = load([shipped_rules()])
TINY, _ = load([Path(__file__).parents[1] / "data" / "tiny"], strict=False)


@pytest.fixture
def rule() -> Rule:
    return TINY.rules["bad-file"]


def test_the_answer_comes_first_then_what_to_do(rule: Rule) -> None:
    entry = replace(rule.entry, root_cause="The reason.", prevention="Check it.")
    text = entry_text(replace(rule, entry=entry), 100)
    heads = [
        text.index(head) for head in ("A file is broken", "Rank R read", "What to do", "Why it happens", "Prevention")
    ]
    assert heads == sorted(heads)
    assert "bad-file · data · high · code · stable" in text


def test_ranks_that_are_not_known_become_words(rule: Rule) -> None:
    text = entry_text(rule, 200)
    assert "Rank R read a broken file; rank the others waits, rank unheard ranks is unknown." in text
    assert "1. [read-only] check the file of rank R" in text
    assert "2. [restart] restart" in text


def test_roles_become_words() -> None:
    assert "Rank R evaluates, rank the others waits." in entry_text(TINY.rules["lonely-eval"], 200)


def test_what_an_entry_does_not_have_is_not_there(rule: Rule) -> None:
    text = entry_text(rule, 100)
    for head in ("If that does not help", "Right now", "How to check", "Related", "References", "Code:"):
        assert head not in text


@pytest.mark.parametrize("failure", sorted(SHIPPED.rules))
def test_every_shipped_entry_reads_well(failure: str) -> None:
    rule = SHIPPED.rules[failure]
    text = entry_text(rule, 90)
    roles = rule.correlation.roles if rule.correlation else ()
    places = {"initiating", "collateral", "unheard", *(role.name for role in roles)}
    prose = text.split("\nCode:")[0]
    assert not [place for place in re.findall(r"\{(\w+)\}", prose) if place in places]
    assert rule.entry.title in " ".join(text.split())
    assert all(reference in text for reference in rule.entry.references)
    words = [line for line in prose.splitlines() if " " in line.strip() and "://" not in line]
    assert max(len(line) for line in words if not line.strip().startswith("$ ")) <= 90


def test_a_command_stays_on_one_line_to_be_copied(rule: Rule) -> None:
    command = "torchrun --nproc-per-node 2 check.py " + "--flag some-value " * 9
    step = replace(rule.entry.remediation[0], command=command.strip())
    text = entry_text(replace(rule, entry=replace(rule.entry, remediation=(step,))), 80)
    assert any(line.endswith(f"$ {command.strip()}") for line in text.splitlines())


@pytest.mark.parametrize("failure", sorted(SHIPPED.rules))
def test_an_entry_for_programs_is_json_with_every_part(failure: str) -> None:
    rule = SHIPPED.rules[failure]
    entry = json.loads(json.dumps(entry_json(rule)))
    assert (entry["id"], entry["title"], entry["precision"]) == (failure, rule.entry.title, rule.precision)
    assert entry["signals"] == {name: signal.means for name, signal in rule.signals.items()}
    assert [s.keys() for s in entry["symptoms"]] == [{"see", "because"}] * len(rule.entry.symptoms)
    assert [s.keys() for s in entry["missing"]] == [{"fact", "how"}] * len(rule.entry.missing)
    assert [s.keys() for s in entry["remediation"]] == [{"do", "risk", "command"}] * len(rule.entry.remediation)
    assert [s.keys() for s in entry["code"]] == [{"stack", "snippet"}] * len(rule.entry.code)
    assert entry["supersedes"] == list(rule.supersedes)
