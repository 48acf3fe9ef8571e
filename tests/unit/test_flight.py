"""`denpexd flight` on dumps that real torch ranks wrote (tests/data/flight/record.py), and on damaged ones."""

import json
import os
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from denpexd.cli import main
from denpexd.evidence.flight_read import rank_of, read_files, read_folder

DATA = Path(__file__).parents[1] / "data" / "flight"
TRUTH = {  # finding, certainty, who
    "kinds2": ("op", "likely", [1]),  # by the order that both had kept
    "kinds3": ("op", "confirmed", [2]),
    "groups2": ("circle", "likely", [1]),
    "absent3": ("absent", "likely", [2]),
    "late2": ("absent", "likely", [1]),
    "alone3": ("alone", "undetermined", []),
}


def flight(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, ["flight", *map(str, arguments)])


def told(folder: Path) -> dict[str, Any]:
    result = flight(folder, "--format", "json")
    assert result.exit_code in (0, 1), result.output
    said: dict[str, Any] = json.loads(result.output)
    return said


@pytest.mark.parametrize("job", TRUTH)
def test_the_rank_that_keeps_the_others_waiting(job: str) -> None:
    said = told(DATA / job)
    assert (said["finding"], said["certainty"], said["initiating_ranks"]) == TRUTH[job]


@pytest.mark.parametrize("job", TRUTH)
def test_with_a_dump_lost_or_cut_the_answer_is_right_or_open(job: str, tmp_path: Path) -> None:
    for lost in (DATA / job).iterdir():
        data = lost.read_bytes()
        for cut in (None, 0, 1, 40, len(data) // 2, len(data) - 1):
            folder = tmp_path / f"{lost.name}-{cut}"
            shutil.copytree(DATA / job, folder)
            if cut is None:
                (folder / lost.name).unlink()
            else:
                (folder / lost.name).write_bytes(data[:cut])
            said = told(folder)
            assert said["initiating_ranks"] in ([], TRUTH[job][2])
            assert said["initiating_ranks"] or said["certainty"] == "undetermined"
            assert cut is None or [d["wrong"] is None for d in said["dumps"]].count(False) == 1


def test_the_text_names_group_call_place_and_what_to_do() -> None:
    result = flight(DATA / "kinds3")
    assert result.exit_code == 1
    assert "Rank 2 keeps the others waiting (confirmed)." in result.output
    assert "ranks 0-1 in all_reduce of 100, rank 2 in broadcast of 10" in result.output
    assert "record.py:" in result.output
    assert "denpexd explain collective-order-mismatch" in result.output


def test_the_json_tells_groups_and_files() -> None:
    said = told(DATA / "absent3")
    (group,) = said["groups"]
    assert (group["name"], group["ranks"], group["ranks_certain"]) == ("0", [0, 1, 2], True)
    assert [(p["rank"], p["enqueued"], p["completed"]) for p in group["places"]] == [(0, 9, 8), (1, 9, 8), (2, 8, 8)]
    assert {d["file"]: d["version"] for d in said["dumps"]}["trace_rank_1"] == "2.10"
    assert said["collateral_ranks"] == [0, 1]


def test_what_cannot_be_used_is_told_and_does_not_disturb(tmp_path: Path) -> None:
    shutil.copytree(DATA / "kinds3", tmp_path, dirs_exist_ok=True)
    (tmp_path / "fault_injection.log").write_text("Rank 0\n")
    (tmp_path / "core.4711").write_bytes(b"\x7fELF")
    (tmp_path / "notes.txt").write_text("x")
    os.mkfifo(tmp_path / "trace_rank_5.pipe")
    said = told(tmp_path)
    assert said["initiating_ranks"] == [2]
    assert [(d["file"], d["wrong"]) for d in said["dumps"] if d["wrong"]] == [
        ("core.4711", "neither a pickle nor JSON")
    ]


def test_an_empty_recorder_says_so(tmp_path: Path) -> None:
    shutil.copytree(DATA / "kinds3", tmp_path, dirs_exist_ok=True)
    (tmp_path / "trace_rank_1").write_bytes(
        b'{"version": "2.10", "pg_config": {}, "pg_status": {}, "comm_lib_version": ""}  '
    )
    said = told(tmp_path)
    wrong = next(d["wrong"] for d in said["dumps"] if d["rank"] == 1)
    assert wrong.startswith("holds no entries")
    assert (said["initiating_ranks"], said["certainty"]) == ([], "undetermined")


def test_of_two_dumps_of_a_rank_the_newer_counts(tmp_path: Path) -> None:
    shutil.copytree(DATA / "kinds3", tmp_path, dirs_exist_ok=True)
    shutil.copy(DATA / "absent3" / "trace_rank_1", tmp_path / "old_trace_rank_1")
    os.utime(tmp_path / "old_trace_rank_1", (1, 1))
    said = told(tmp_path)
    assert said["initiating_ranks"] == [2]
    assert {d["file"]: d["wrong"] for d in said["dumps"]}["old_trace_rank_1"] == "older than another dump of rank 1"


def test_nothing_readable_is_unusable_input(tmp_path: Path) -> None:
    assert flight(tmp_path).exit_code == 2
    assert flight(tmp_path / "none").exit_code == 2
    (tmp_path / "trace_rank_0").write_bytes(b"\x80\x02}")
    result = flight(tmp_path)
    assert result.exit_code == 2
    assert "truncated: it ends after 3 bytes" in result.output


def test_links_pipes_sockets_and_huge_files_are_not_opened(tmp_path: Path) -> None:
    (tmp_path / "link_0").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "pipe_1")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "sock_2"))
        with (tmp_path / "huge_3").open("wb") as file:
            file.truncate(65 << 20)
        found = read_files([tmp_path / n for n in ("link_0", "pipe_1", "sock_2", "huge_3", "gone_4")])
    assert [one.dump for one in found] == [None] * 5
    assert [one.wrong for one in found][1] == "no regular file"
    assert found[3].wrong == "larger than 64 MiB"


def test_many_files_are_read_in_parts(tmp_path: Path) -> None:
    for rank in range(70):
        shutil.copy(DATA / "kinds3" / "trace_rank_1", tmp_path / f"trace_rank_{rank}")
    assert [one.rank for one in read_folder(tmp_path) if one.dump is not None] == list(range(70))


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("nccl_trace_rank_3", 3),
        ("_dump_12", 12),
        ("rank0.json", 0),
        ("nccl_trace_rank_node7_3", 3),
        ("comm_lib_trace_rank_15.pkl", 15),
        ("fault_injection.log", None),
        ("rank", None),
        ("trace_12345678", None),
    ],
)
def test_the_rank_is_in_the_name(name: str, rank: int | None) -> None:
    assert rank_of(name) == rank
