"""Documents of every version of PyTorch's Flight Recorder, as they are read."""

import pickle
from typing import Any

import pytest

from denpexd.core.flight import Dump, Progress
from denpexd.core.flight_verdict import analyse
from denpexd.evidence.flight_child import Lean, decode
from denpexd.evidence.flight_format import to_dump

OLD = {"pg_id": 0, "seq_id": 7, "profiling_name": "nccl:all_reduce", "input_sizes": [[4, 3]], "output_sizes": [[4, 3]]}
NEW = {
    **{"record_id": 41, "pg_id": 3, "process_group": ("35", "TENSOR"), "collective_seq_id": 9, "p2p_seq_id": 0},
    **{"op_id": 9, "profiling_name": "nccl:_all_gather_base", "input_sizes": [[2, 5], [3]], "input_dtypes": ["Float"]},
    **{"output_sizes": [[4, 5]], "state": "scheduled", "retired": False, "is_p2p": False},
}


def read(document: Any, rank: int = 0) -> Dump:
    return to_dump(Lean(256).document(decode(pickle.dumps(document, protocol=2))), rank)


def test_the_bare_list_of_torch_2_2() -> None:
    dump = read([{**OLD, "state": "completed"}, {**OLD, "seq_id": 8, "state": "started"}])
    assert [(op.group, op.seq, op.name, op.numel, op.pending) for op in dump.ops] == [
        ("0", 7, "all_reduce", 12, False),
        ("0", 8, "all_reduce", 12, True),
    ]


def test_groups_that_are_only_numbered_are_never_compared_across_ranks() -> None:
    dumps = {
        rank: read({"version": "1.5", "entries": [{**OLD, "pg_id": 2, "seq_id": seq, "state": "scheduled"}]}, rank)
        for rank, seq in enumerate((7, 900, 900))
    }
    assert analyse(dumps).verdict.initiating == ()


def test_an_entry_of_two() -> None:
    (op,) = read({"version": "2.9", "entries": [NEW]}).ops
    assert (op.group, op.seq, op.record, op.sizes, op.given) == ("35", 9, 41, (10, 3), (20,))
    assert (op.dtypes, op.pending, op.timed_out, op.call) == (("Float",), True, False, "_all_gather_base of 13")


@pytest.mark.parametrize(
    ("backend", "state", "retired", "pending", "timed_out"),
    [
        ("nccl", "scheduled", False, True, False),
        ("nccl", "started", False, True, False),
        ("nccl", "completed", False, False, False),
        ("nccl", "completed", True, False, False),
        ("nccl", "scheduled", True, True, True),  # given up by the watchdog
        ("gloo", "scheduled", True, False, False),  # gloo never says completed
        ("gloo", "scheduled", False, True, False),
    ],
)
def test_what_is_open(backend: str, state: str, retired: bool, pending: bool, timed_out: bool) -> None:
    entry = {**NEW, "profiling_name": f"{backend}:all_reduce", "state": state, "retired": retired}
    (op,) = read({"version": "2.9", "entries": [entry]}).ops
    assert (op.pending, op.timed_out) == (pending, timed_out)


def test_point_to_point_has_its_own_numbers_and_its_sides() -> None:
    entry = {**NEW, "profiling_name": "nccl:recv 2<-3", "p2p_seq_id": 77, "is_p2p": True}
    sent = {**entry, "profiling_name": "nccl:send 2->1"}
    recv, send = read({"version": "2.4", "entries": [entry, sent]}).ops
    assert (recv.seq, recv.peer, recv.sends) == (77, 3, False)
    assert (send.peer, send.sends) == (1, True)


def test_a_batch_of_sends_is_known_by_its_parts() -> None:
    batch = {**NEW, "profiling_name": "nccl:coalesced", "is_p2p": True}
    assert read({"version": "2.9", "entries": [batch]}).ops == ()


def test_json_has_texts_where_the_pickle_has_numbers() -> None:
    status = {"0": {"last_enqueued_collective": "64", "last_completed_collective": "62"}}
    config = {"": {"desc": "", "name": "", "ranks": "[0, 1, 2]"}}
    entry = {**NEW, "pg_id": 0, "process_group": ["0", "default_pg"], "profiling_name": "gloo:all_gather"}
    dump = to_dump({"version": "2.10", "pg_config": config, "pg_status": status, "entries": [entry]}, 1)
    assert dump.members == {"0": (0, 1, 2)}
    assert dump.progress == {"0": Progress(64, 62)}


def test_the_members_of_a_large_group_are_all_known() -> None:
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(5000)))}}
    dump = read({"version": "2.9", "pg_config": config, "entries": [NEW]})
    assert dump.members == {"0": tuple(range(5000))}


def test_groups_without_entries_are_named_by_their_order() -> None:
    status = {n: {"last_enqueued_collective": n, "last_completed_collective": n} for n in (0, 4, 6)}
    config = {name: {"name": name, "desc": "", "ranks": "[0, 1]"} for name in ("0", "33", "112")}
    dump = read({"version": "2.9", "pg_config": config, "pg_status": status, "entries": []})
    assert {name: said.enqueued for name, said in dump.progress.items()} == {"0": 0, "33": 4, "112": 6}


def test_a_number_that_other_members_can_name() -> None:
    entry = {
        **NEW,
        "pg_id": 3,
        "process_group": ("35", ""),
        "collective_seq_id": 9,
        "profiling_name": "nccl:all_reduce",
    }
    config = {"35": {"name": "35", "desc": "", "ranks": "[0, 1, 2]"}}
    status = {n: {"last_enqueued_collective": 8, "last_completed_collective": 8} for n in (3, 5)}
    dumps = {r: read({"version": "2.9", "pg_config": config, "entries": [entry]}, r) for r in (0, 1)}
    dumps[2] = read({"version": "2.9", "pg_config": config, "pg_status": status, "entries": []}, 2)
    verdict = analyse(dumps).verdict
    assert (verdict.finding, verdict.initiating, verdict.certainty) == ("absent", (2,), "likely")


def test_where_it_was_called_is_the_programs_own_code() -> None:
    frames = [
        {"name": "all_reduce", "filename": "/v/lib/python3.11/site-packages/torch/distributed/c10d.py", "line": 9},
        {"name": "wrapper", "filename": "/usr/lib/python3.11/contextlib.py", "line": 81},
        {"name": "validate", "filename": "/job/train.py", "line": 214},
    ]
    (op,) = read({"version": "2.9", "entries": [{**NEW, "frames": frames}]}).ops
    assert op.place == "train.py:214 in validate"


@pytest.mark.parametrize(
    "damage",
    [
        {"entries": 5},
        {"entries": [5, None, {}, {"profiling_name": 3}, {"profiling_name": "x"}, []]},
        {"entries": [{**NEW, "input_sizes": "no", "process_group": 5, "state": 7, "input_dtypes": [[1]]}]},
        {"entries": [{**NEW, "input_sizes": [["x", None, 1 << 62, 1 << 62]], "record_id": None}]},
        {"pg_config": [1], "pg_status": [2]},
        {"pg_config": {"0": 1, "1": {"ranks": {}}}, "pg_status": {"x": {}, "0": 3, "1": {}}},
        {"pg_config": {"0": {"ranks": "[99999999999, -1, 2]"}}},
    ],
)
def test_a_damaged_field_costs_that_field_only(damage: dict[str, Any]) -> None:
    dump = read({"version": "2.9", "entries": [], **damage})
    analyse({0: dump, 1: read({"version": "2.9", "entries": [NEW]}, 1)})
    assert dump.version == "2.9"


def test_half_a_character_in_a_path_harms_nobody() -> None:
    frames = [{"name": "f", "filename": "/ws/a\ud800.py", "line": 3}]
    assert (
        read({"version": "2.9", "entries": [{**NEW, "frames": frames, "state": "started"}]})
        .ops[0]
        .place.endswith("in f")
    )


def test_texts_cannot_steer_a_terminal() -> None:
    entry = {**NEW, "process_group": ("\x1b[31m35", "a\nb"), "profiling_name": "nccl:all\x07"}
    dump = read({"version": "2.9\x1b]0;x\x07", "entries": [entry]})
    assert all(text.isprintable() for text in (dump.version, dump.ops[0].group, dump.ops[0].name))
    assert all(text.isprintable() for text in dump.descriptions.values())
