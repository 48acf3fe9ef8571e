"""The table of Xid codes, and that rules and table agree."""

import pytest

from denpexd.catalog.load import load, shipped_rules
from denpexd.catalog.xids import WHO, asked_for, table, xid_json, xid_text


def test_every_code_that_a_rule_looks_for_is_in_the_table_under_that_rule() -> None:
    catalog, _ = load([shipped_rules()])
    used: dict[int, set[str]] = {}
    for rule in catalog.rules.values():
        for signal in rule.signals.values():
            if signal.fact == "xid":
                for code in str(signal.params["code"]).split(","):
                    used.setdefault(int(code), set()).add(rule.id)
    listed = {code: xid.rule for code, xid in table().items() if xid.rule}
    assert {code: rule for code, rule in listed.items() if rule not in used.get(code, set())} == {}
    assert {code for code in used if code not in listed} == set()


def test_every_entry_says_who_acts_and_how_bad_it_is() -> None:
    for xid in table().values():
        assert xid.who in WHO
        assert xid.severity in ("low", "medium", "high", "critical")
        assert xid.meaning
        assert xid.action


@pytest.mark.parametrize(
    ("text", "code"), [("xid 79", 79), ("Xid-79", 79), ("XID79", 79), ("gpu-lost", None), ("79", None)]
)
def test_what_is_asked_for(text: str, code: int | None) -> None:
    assert asked_for(text) == code


def test_the_answer_names_the_failure() -> None:
    assert "gpu-fallen-off-bus" in xid_text(79)
    assert "power-cycle" in xid_text(79)
    assert "copy engine" in xid_text(127)
    assert "without a meaning" in xid_text(3)
    assert xid_json(79)["rule"] == "gpu-fallen-off-bus"
    assert xid_json(3) == {"code": 3}
