"""Which candidate explains a stop best, when late ranks have had their say, and what a key looks like."""

from dataclasses import replace
from itertools import permutations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denpexd.catalog.load import load
from denpexd.core.candidate import Candidate
from denpexd.core.evidence import Evidence
from denpexd.core.incident import CAP, QUIET, SETTLE, beats, best, due, essence, make_key
from denpexd.core.numbers import ranks_text
from denpexd.core.rule import superseded

TINY, _ = load([Path(__file__).parents[1] / "data" / "tiny"], strict=False)
BELOW = superseded(TINY.rules)


def found(rule: str, cause_t: float = 10.0, *, certainty: str = "likely", fatal: bool = True) -> Candidate:
    evidence = (Evidence(1, "log", "rank1", 0, cause_t, "text", "means"),)
    return Candidate(TINY.rules[rule], (1,), (0, 2), evidence, {}, certainty, cause_t, 5, fatal)


def winner(*candidates: Candidate) -> str | None:
    chosen, _ = best(candidates, BELOW)
    return chosen.rule.id if chosen else None


def test_what_a_rule_explains_better_is_transitive() -> None:
    assert BELOW["lonely-eval"] == {"timed-out", "stuck", "parked"}
    assert BELOW["timed-out"] == {"stuck"}
    assert BELOW["stuck"] == frozenset()


def test_rules_that_supersede_each_other_in_a_circle_do_no_harm() -> None:
    a, b = (replace(TINY.rules["stuck"], id=x, supersedes=(y, "gone")) for x, y in (("a", "b"), ("b", "a")))
    below = superseded({"a": a, "b": b})
    assert "b" in below["a"]
    assert "a" in below["b"]


def test_the_more_specific_failure_explains_the_general_one_whenever_it_came() -> None:
    assert winner(found("any-error", 10.0), found("bad-file", 12.0)) == "bad-file"
    assert winner(found("any-error", 10.0, certainty="confirmed"), found("bad-file", 10.0)) == "bad-file"


def test_a_cause_beats_a_symptom_even_if_the_symptom_came_first() -> None:
    assert winner(found("timed-out", 5.0), found("any-error", 10.0)) == "any-error"


def test_the_failure_that_came_first_made_the_later_one() -> None:
    assert winner(found("bad-file", 12.0, certainty="confirmed"), found("full-disk", 10.0)) == "full-disk"
    assert beats(found("full-disk", 10.0), found("bad-file", 12.0), BELOW) == "came later, as a consequence"


def test_within_a_second_precision_and_certainty_decide() -> None:
    assert winner(found("full-disk", 10.0), found("bad-file", 10.5, certainty="confirmed")) == "bad-file"
    assert winner(found("any-error", 10.0, certainty="confirmed"), found("full-disk", 10.5)) == "full-disk"


def test_a_fatal_error_beats_a_handled_one() -> None:
    assert winner(found("bad-file", 10.0, fatal=False), found("full-disk", 10.2)) == "full-disk"


def test_every_other_candidate_is_told_with_the_reason() -> None:
    chosen, others = best([found("stuck"), found("any-error"), found("bad-file")], BELOW)
    assert chosen is not None
    assert chosen.rule.id == "bad-file"
    assert dict(others) == {"any-error": "explained by a more specific failure", "stuck": "only describes the symptom"}


def test_nothing_is_best_of_nothing() -> None:
    assert best([], BELOW) == (None, [])


def test_the_best_does_not_depend_on_the_order_of_the_candidates() -> None:
    pool = [found("stuck", 1.0), found("any-error", 9.0), found("bad-file", 10.0), found("full-disk", 10.4)]
    assert len({(winner(*order), str(best(order, BELOW)[1])) for order in permutations(pool)}) == 1


def test_an_update_is_worth_a_message_when_failure_certainty_or_ranks_change() -> None:
    first = found("bad-file")
    assert essence(first) == essence(replace(first, evidence=(), cause_t=11.0))
    for other in (
        found("full-disk"),
        replace(first, certainty="confirmed"),
        replace(first, initiating=(2,)),
        replace(first, collateral=()),
    ):
        assert essence(other) != essence(first)


def test_late_ranks_have_their_say() -> None:
    assert not due(100.0, 100.0, 100.0 + SETTLE - 1)
    assert due(100.0, 100.0, 100.0 + SETTLE)
    assert not due(100.0, 108.0, 108.0 + QUIET - 1)
    assert due(100.0, 108.0, 108.0 + QUIET)


def test_a_chatty_job_is_not_waited_for_longer_than_the_cap() -> None:
    assert not due(100.0, 139.0, 100.0 + CAP - 1)
    assert due(100.0, 140.0, 100.0 + CAP)


@pytest.mark.parametrize(
    ("job", "key"),
    [
        ("Run 7/b", "run-7-b-a2-3-2710"),
        ("", "job-a2-3-2710"),
        ("///", "job-a2-3-2710"),
        ("x" * 99, "x" * 40 + "-a2-3-2710"),
    ],
)
def test_a_key_is_readable_and_stable(job: str, key: str) -> None:
    assert make_key(job, 2, 3, 10.0) == key


def test_keys_of_different_attempts_stops_and_times_differ() -> None:
    keys = {make_key("job", a, s, t) for a in (0, 1) for s in (1, 2) for t in (1.0, 1.001)}
    assert len(keys) == 8


@pytest.mark.parametrize(
    ("ranks", "text"), [((), ""), ((3,), "3"), ((0, 1, 2, 5), "0-2,5"), ((7, 1, 2, 9, 8), "1-2,7-9")]
)
def test_ranks_are_written_as_runs(ranks: tuple[int, ...], text: str) -> None:
    assert ranks_text(ranks) == text


@given(st.sets(st.integers(0, 50)))
def test_written_ranks_can_be_read_back(ranks: set[int]) -> None:
    read: set[int] = set()
    for part in filter(None, ranks_text(tuple(ranks)).split(",")):
        first, _, last = part.partition("-")
        read |= set(range(int(first), int(last or first) + 1))
    assert read == ranks
