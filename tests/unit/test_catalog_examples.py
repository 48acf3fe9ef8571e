"""The timeline notation, and what makes an example pass."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from denpexd.catalog.examples import ExampleResult, FactAt, LineAt, StackAt, TimelineEvent, read_timeline, timeline
from denpexd.catalog.load import load
from denpexd.catalog.report import as_json, check, table
from denpexd.catalog.trials import Prover, Stage
from denpexd.core.events import UNKNOWN_RANK, Frame
from denpexd.core.rule import Catalog, Example
from denpexd.errors import CaseError

GOOD = Path(__file__).parents[1] / "data" / "rules" / "good"
VERDICT = {"failure": "good", "initiating_ranks": [0], "collateral_ranks": [3, 1, 2], "opened_t": 230.0}


def example(text: str, world_size: int = 4) -> Example:
    return Example(name="x", world_size=world_size, observe_until=300, timeline=text, fires=False)


class Answers:
    """Stands where the replay stands: the given verdicts for every timeline in which a process exits."""

    matched = held = frozenset[str]()
    batches = ()

    def __init__(self, *verdicts: Mapping[str, object], quiet: Sequence[Mapping[str, object]] = ()) -> None:
        self._verdicts, self._quiet = verdicts, quiet
        self.verdicts: Sequence[Mapping[str, object]] = ()

    def play(self, example: Example, changed: object = None) -> Sequence[TimelineEvent]:
        return timeline(example)

    def judge(self, heard: Sequence[TimelineEvent], catalog: object = None) -> "Answers":
        self.verdicts = self._verdicts if any(isinstance(event, FactAt) for event in heard) else self._quiet
        return self


def results(catalog: Catalog, stage: Stage) -> list[ExampleResult]:
    trials = Prover(catalog, stage, clauses=False).all(list(catalog.rules))
    return [result for trial in trials for result in trial.results]


def test_lines_keep_their_indentation_and_ranks_expand() -> None:
    events = timeline(example('5 0,2-3 |   File "train.py", line 3\n1.5 ? | launcher\n2 1 |'))
    assert events == [
        LineAt(1.5, UNKNOWN_RANK, "launcher"),
        LineAt(2.0, 1, ""),
        *(LineAt(5.0, rank, '  File "train.py", line 3') for rank in (0, 2, 3)),
    ]


def test_stacks_are_innermost_first_with_lines_where_given() -> None:
    (event,) = timeline(example("5 1 > SyncBatchNorm.forward torch/nn/x.py:7; main my train.py"))
    assert event == StackAt(5.0, 1, (Frame("SyncBatchNorm.forward", "torch/nn/x.py", 7), Frame("main", "my train.py")))


def test_facts_have_their_fields() -> None:
    events = timeline(example("5 * ! exit signal=9 by=launcher\n6 0 ! frozen", world_size=2))
    assert events == [
        FactAt(5.0, 0, "exit", {"by": "launcher", "code": "-9"}),
        FactAt(5.0, 1, "exit", {"by": "launcher", "code": "-9"}),
        FactAt(6.0, 0, "frozen", {}),
    ]


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("x 0 | a", "expected `seconds"),
        ("1 a | a", "ranks 'a'"),
        ("1 ? ! gone", "ranks '?'"),
        ("1 3-1 | a", "do not exist"),
        ("1 0-99999999999 | a", "do not exist"),
        ("1 0 > forward", "frame 'forward'"),
        ("1 0 ! exit core=1", "'core=1' after exit"),
        ("1 0 ! exit code=x", "expected a number"),
        ("1 0 ! exit by=me", "expected process or launcher"),
        ("1 0 ! gone code=1", "expected nothing"),
        ("1 0 !", "'' cannot be stated"),
        ("# only a comment", "the timeline is empty"),
    ],
)
def test_unreadable_lines_are_named(line: str, why: str) -> None:
    _, mistakes = read_timeline(line, 4, 300)
    assert len(mistakes) == 1
    assert why in mistakes[0][1]
    with pytest.raises(CaseError, match="example 'x': line 1"):
        timeline(example(line))


def test_events_of_equal_time_keep_their_order() -> None:
    events = timeline(example("2 0 | c\n1 0 | a\n1 0 | b"))
    assert [event.text for event in events if isinstance(event, LineAt)] == ["a", "b", "c"]


def test_examples_pass_when_the_verdict_is_as_written() -> None:
    catalog, _ = load([GOOD])
    found = results(catalog, Answers(VERDICT))
    assert [(one.fires, one.ok, one.opened_t) for one in found] == [(True, True, 230.0), (False, True, None)]


@pytest.mark.parametrize(
    ("verdicts", "why"),
    [
        ([], "did not fire"),
        ([VERDICT | {"failure": "other"}], "did not fire; instead: other"),
        ([VERDICT | {"initiating_ranks": [1]}], "initiating_ranks are [1], expected [0]"),
        ([VERDICT | {"collateral_ranks": []}], "collateral_ranks are [], expected [1, 2, 3]"),
        ([VERDICT | {"opened_t": 240}], "opened at 240 s, expected by 235 s"),
        ([VERDICT, VERDICT], "fired 2 times"),
    ],
)
def test_a_firing_example_fails_with_its_reason(verdicts: list[dict[str, object]], why: str) -> None:
    catalog, _ = load([GOOD])
    assert results(catalog, Answers(*verdicts))[0].why == why


def test_a_near_miss_that_fires_fails() -> None:
    catalog, _ = load([GOOD])
    found = results(catalog, Answers(VERDICT, quiet=[VERDICT]))
    assert [one.why for one in found] == ["", "must not fire, but did, initiated by [0]"]


def test_collateral_ranks_are_compared_only_where_written() -> None:
    catalog, _ = load([GOOD])
    rule = catalog.rules["good"]
    loose = replace(rule, examples=(replace(rule.examples[0], collateral=None),))
    catalog = replace(catalog, rules={"good": loose})
    assert results(catalog, Answers(VERDICT | {"collateral_ranks": []}))[0].ok


def test_an_example_that_cannot_be_replayed_stops_nothing() -> None:
    class Refuses(Answers):
        def judge(self, heard: Sequence[TimelineEvent], catalog: object = None) -> Answers:
            raise CaseError("too long")

    catalog, _ = load([GOOD])
    assert [one.why for one in results(catalog, Refuses())] == ["cannot be replayed: too long"] * 2


def test_the_report_is_a_table_and_a_json_object() -> None:
    answers = Answers(VERDICT, quiet=[VERDICT])
    report = check([GOOD], lambda loaded, ids: Prover(loaded.catalog, answers, clauses=False).all(ids))
    lines = table(report).splitlines()
    assert lines[0] == "good: example 'all ranks evaluate': must not fire, but did, initiated by [0]"
    assert lines[2].split() == ["rule", "schema", "lint", "fired", "silent", "clauses", "overlaps", "result"]
    assert lines[3].split() == ["good", "ok", "ok", "1/1", "0/1", "-", "ok", "FAILED"]
    assert lines[-1] == "1 rules, 3 shared signals: 0 rules ok, FAILED"
    said = as_json(report)
    assert (said["ok"], said["rules"][0]["silent"], said["errors"]) == (False, {"as_expected": 0, "all": 1}, [])


def test_the_report_without_a_stage_leaves_examples_open(tmp_path: Path) -> None:
    (tmp_path / "hang").mkdir()
    (tmp_path / "hang" / "broken.yaml").write_text("schema: 1\nid: broken\n")
    report = check([GOOD, tmp_path])
    rows = {row.rule: row for row in report.rows}
    assert rows["good"].ok
    assert not rows["broken"].ok
    assert not report.ok
    assert f"{tmp_path}/hang/broken.yaml:1:1: 'title' is missing" in table(report)
    assert as_json(report)["errors"][0]["kind"] == "schema"
