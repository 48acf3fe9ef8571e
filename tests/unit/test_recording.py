"""Recorded jobs from case folders and from the timelines of rules."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from denpexd.catalog.examples import read_timeline
from denpexd.core.events import Exit, Fact
from denpexd.errors import CaseError
from denpexd.recording import Recording, from_timeline, read_case

STACK = (
    'Thread 7 (active): "MainThread"\n    all_gather (torch/distributed/distributed_c10d.py:3)\n    main (train.py:9)\n'
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A case of two ranks: rank 1 is stopped at 9 s, looks are answered from 8 s on."""
    printed = [
        {"t": 2.0, "rank": 1, "stream": "stderr", "line": "later"},
        {"t": 1.0, "rank": 0, "line": "step 1"},
    ]
    (tmp_path / "timeline.jsonl").write_text("\n".join(map(json.dumps, printed)) + "\n\n")
    about = {"id": "my-case", "world_size": 2, "observe_until": 60, "evidence_t": 8, "exits": {1: {"t": 9, "code": -9}}}
    (tmp_path / "case.yaml").write_text(yaml.safe_dump(about))
    (tmp_path / "stacks").mkdir()
    (tmp_path / "stacks" / "rank1.txt").write_text(STACK)
    (tmp_path / "stacks" / "rank1.child0.txt").write_text(STACK)
    (tmp_path / "snapshot.json").write_text(json.dumps({"proc": {"0": {"state": "T (stopped)"}, "1": {"state": "S"}}}))
    return tmp_path


def about(folder: Path, **changes: Any) -> None:
    known = yaml.safe_load((folder / "case.yaml").read_text())
    (folder / "case.yaml").write_text(yaml.safe_dump({**known, **changes}))


def test_a_case_is_read_in_order_of_time(folder: Path) -> None:
    case = read_case(folder)
    assert (case.name, case.world_size, case.observe_until) == ("my-case", 2, 60.0)
    assert [(p.t, p.rank, p.stream, p.text) for p in case.lines] == [
        (1.0, 0, "stdout", "step 1"),
        (2.0, 1, "stderr", "later"),
    ]
    assert case.exits == [Exit(9.0, 1, -9)]
    assert [(f.t, f.rank, f.name) for f in case.states] == [(8.0, 0, "frozen")]


def test_a_look_is_answered_from_the_evidence_on_until_the_rank_has_exited(folder: Path) -> None:
    case = read_case(folder)
    assert case.answer(1, 7.9) == []
    (frames,) = case.answer(1, 8.0)
    assert frames.frames[0].canonical == "all_gather torch/distributed/distributed_c10d.py"
    assert case.answer(1, 9.0) == []
    assert case.answer(0, 8.5) == []
    assert [case.exited(1, t) for t in (8.9, 9.0)] == [False, True]


def test_stacks_of_workers_come_with_the_look_at_their_rank(folder: Path) -> None:
    worker = 'Thread 9 (idle): "MainThread"\n    _worker_loop (torch/utils/data/_utils/worker.py:334)\n'
    (folder / "stacks" / "rank1.child1.txt").write_text(worker)
    (folder / "stacks" / "rank0.child0.txt").write_text(worker)  # of a rank without a look
    (look,) = read_case(folder).looks
    assert look.frames[0].function == "all_gather"
    assert [(label, frames[0].function) for label, frames in look.others] == [
        ("worker 0", "all_gather"),
        ("worker 1", "_worker_loop"),
    ]


def test_the_flight_recorder_is_answered_like_a_stack(folder: Path) -> None:
    (folder / "fr").mkdir()
    entry = {"profiling_name": "gloo:barrier", "collective_seq_id": 3, "process_group": ["0", ""], "retired": False}
    (folder / "fr" / "rank1.json").write_text(json.dumps({"version": "2.10", "entries": [entry]}))
    (folder / "fr" / "rank0.json").write_text("{")
    case = read_case(folder)
    assert case.dumped(1, 7.9) == []
    (dump,) = case.dumped(1, 8.0)
    assert [op.call for op in dump.pending] == ["barrier"]
    assert (case.dumped(1, 9.0), case.dumped(0, 8.0)) == ([], [])  # it has exited; it cannot be read
    assert case.asked() == [0, 1]


def test_kinds_of_evidence_may_be_left_out(folder: Path) -> None:
    (folder / "fr").mkdir()
    (folder / "fr" / "rank0.json").write_text('{"version": "2.10", "entries": []}')
    case = read_case(folder, without={"stacks", "fr", "exits"})
    assert (case.looks, case.dumps, case.exits) == ([], [], [])
    assert len(case.lines) == 2


def test_without_a_description_observation_goes_on_for_a_minute(folder: Path) -> None:
    (folder / "case.yaml").unlink()
    case = read_case(folder)
    assert (case.name, case.world_size, case.observe_until, case.exits) == (folder.name, None, 62.0, [])
    assert case.answer(1, 2.0)


def test_the_truth_beside_a_case_is_not_looked_at(folder: Path) -> None:
    before = read_case(folder)
    about(folder, expect={"failure": "anything", "initiating_ranks": [1]})
    assert read_case(folder) == before


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("timeline.jsonl", '{"t": 1, "rank": 0, "line": "x"}\n{"t": 1}', r"timeline\.jsonl:2: .*each line is"),
        ("timeline.jsonl", "nonsense", r"timeline\.jsonl:1: "),
        ("timeline.jsonl", "[" * 100_000, r"timeline\.jsonl:1: RecursionError"),
        ("timeline.jsonl", '{"t": 1, "rank": 1e999, "line": "x"}', r"timeline\.jsonl:1: OverflowError"),
        ("snapshot.json", "[" * 100_000, r"snapshot\.json: cannot be read"),
        ("timeline.jsonl", '{"t": "soon", "rank": 0, "line": "x"}', r"timeline\.jsonl:1: "),
        ("case.yaml", "[1, 2]", "must be a mapping"),
        ("case.yaml", "a: [", r"case\.yaml:2:1: did not find"),
        ("case.yaml", "a: &a [x]\nid: *a\n", r"case\.yaml:1:4: anchor"),
        ("case.yaml", "id: !!python/name:os.system\n", "tag"),
        ("case.yaml", "observe_until: soon", "expected world_size, observe_until, exits as numbers"),
        ("case.yaml", "exits: {1: {t: 3}}", "expected world_size"),
        ("snapshot.json", "{", r"snapshot\.json: cannot be read"),
        ("snapshot.json", "[]", r"snapshot\.json: cannot be read"),
    ],
)
def test_a_broken_case_is_refused_with_file_and_place(folder: Path, file: str, text: str, said: str) -> None:
    (folder / file).write_text(text)
    with pytest.raises(CaseError, match=said):
        read_case(folder)


def test_a_folder_without_a_timeline_is_no_case(tmp_path: Path) -> None:
    with pytest.raises(CaseError, match=r"timeline\.jsonl: cannot be read: No such file.*a case folder holds"):
        read_case(tmp_path)


def test_an_empty_timeline_is_a_job_that_printed_nothing(folder: Path) -> None:
    (folder / "timeline.jsonl").write_text("")
    assert read_case(folder).lines == []


def example(text: str) -> Recording:
    events, mistakes = read_timeline(text, 3, 100.0)
    assert mistakes == []
    return from_timeline(events, "example", 3, 100.0)


def test_a_rules_timeline_becomes_a_recording() -> None:
    case = example(
        "1 * | step 1\n2 ? | launcher\n5 0 > f a.py\n7 0 > g b.py\n"
        "8 1 ! exit signal=9 by=launcher\n9 2 ! gone\n9 0 ! frozen"
    )
    assert [(p.t, p.rank) for p in case.lines] == [(1.0, 0), (1.0, 1), (1.0, 2), (2.0, -1)]
    assert case.exits == [Exit(8.0, 1, -9, "launcher"), Exit(9.0, 2, None)]
    assert case.states == [Fact(9.0, 0, "frozen")]
    assert [case.answer(0, t)[0].frames[0].function for t in (5.0, 6.9, 7.0)] == ["f", "f", "g"]
