"""Patterns: linear, readable by both engines, with a literal that every match contains."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denpexd.catalog.document import parse
from denpexd.catalog.patterns import compile_pattern, full_match, group_names, hyperscan_refusals, shape

LEAF = st.sampled_from(["a", "bc", "def", "[ab]", "\\d", "."])
PATTERN = st.recursive(
    LEAF,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2,3}"])).map(lambda pair: f"(?:{pair[0]}){pair[1]}"),
    ),
    max_leaves=8,
)


@pytest.mark.parametrize(
    ("pattern", "literal"),
    [
        ("step", 4),
        ("(?P<a>out) of memory", 13),
        ("one|three", 3),
        ("(?:abcd)?xy", 2),
        ("(?:abcd)+", 4),
        ("(?i)Error", 5),
        (r"^\bloss\b$", 4),
        ("fo[ox]bar", 3),
        ("é━", 5),
        (r"\d+", 0),
        ("prefix (?:yes|no)", 7),
    ],
)
def test_the_required_literal_is_counted_in_bytes(pattern: str, literal: int) -> None:
    assert shape(pattern).literal == literal


@given(PATTERN, st.data())
def test_every_match_is_as_long_as_the_literal(pattern: str, data: st.DataObject) -> None:
    form = shape(pattern)
    assert form.empty == (re.fullmatch(pattern, "") is not None)
    text = data.draw(st.from_regex(pattern, fullmatch=True))
    assert len(text.encode("utf-8", "replace")) >= form.literal


@pytest.mark.parametrize("pattern", ["(?=a)", r"(a)\1", "(", "a{5000}", "[[:nope:]]", ""])
def test_what_re2_refuses_is_a_value_error(pattern: str) -> None:
    with pytest.raises(ValueError, match="pattern"):
        compile_pattern(pattern)


def test_matchers_search_and_name_their_captures() -> None:
    found = compile_pattern(r"step (?P<step>\d+)").search("at step 7")
    assert found is not None
    assert found.groupdict() == {"step": "7"}
    assert group_names(r"(?P<a>x)(?P<b>y)") == {"a", "b"}


def test_a_full_match_takes_alternatives_as_a_whole() -> None:
    matcher = full_match("KeyError|IndexError")
    assert matcher.search("IndexError")
    assert not matcher.search("KeyErrors")


def test_hyperscan_says_what_it_refuses() -> None:
    pytest.importorskip("hyperscan")
    assert hyperscan_refusals(["step", "loss"]) == {}
    assert list(hyperscan_refusals(["step", "(a)\\1", "loss"])) == ["(a)\\1"]


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    document, errors = parse(raw, "x.yaml")
    assert document is not None or errors


@given(st.text(alphabet="ab:-[]{}&*!#|>'\"\n \t1", max_size=60))
def test_any_yaml_is_read_or_refused_at_a_place(text: str) -> None:
    document, errors = parse(text.encode(), "x.yaml")
    assert document is not None or errors
    assert all(error.line >= 1 and error.column >= 1 for error in errors)
