"""The JSON Schema for editors agrees with what the loader accepts."""

from pathlib import Path
from typing import Any

import jsonschema
import pytest

from denpexd.catalog.document import read
from denpexd.catalog.schema import json_schema

DATA = Path(__file__).parents[1] / "data" / "rules"


def errors(path: Path, **changes: Any) -> list[str]:
    document, _ = read(path)
    assert document is not None
    validator = jsonschema.Draft202012Validator(json_schema())
    return [error.message for error in validator.iter_errors(document.data | changes)]


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft202012Validator.check_schema(json_schema())


def test_a_good_rule_is_valid() -> None:
    assert errors(DATA / "good" / "hang" / "good.yaml") == []


@pytest.mark.parametrize(
    "changes",
    [
        {"titel": "x"},
        {"category": "other"},
        {"signals": {"s": {"log": "a", "frame": "b", "means": "c"}}},
        {"signals": {"s": {"fact": "exit", "cod": 1, "means": "c"}}},
        {"signals": {"s": {"log": "abcd", "role": "progress", "means": "c"}}},
        {"remediation": []},
        {"correlation": {"roles": {"a": {"ranks": "some"}}, "initiating": "a"}},
    ],
)
def test_mistakes_are_invalid(changes: dict[str, Any]) -> None:
    assert len(errors(DATA / "good" / "hang" / "good.yaml", **changes)) == 1


def test_required_texts_are_required() -> None:
    document, _ = read(DATA / "good" / "hang" / "good.yaml")
    assert document is not None
    del document.data["fallback"]
    found = list(jsonschema.Draft202012Validator(json_schema()).iter_errors(document.data))
    assert [error.message for error in found] == ["'fallback' is a required property"]
