"""Bundles: nothing unredacted leaves, what comes from strangers is checked, and a daemon's state is read beside it."""

import json
import tarfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from denpexd.archive import pack, unpack
from denpexd.bundle import Material, file_name, files, from_journal, renewed, safe
from denpexd.bundles import choose, incidents
from denpexd.cli import main
from denpexd.clock import ManualClock
from denpexd.core.cadence import Limits
from denpexd.core.events import Activity, Event, Exit, Fact, Frame, Frames, Hit, Joined, Raised, Tick
from denpexd.core.flight import Dump, Op, Progress
from denpexd.errors import CaseError, StateError
from denpexd.journal import encode, packed, unpacked
from denpexd.keeper import ENDING, FOLDER
from denpexd.notify.outbox import Store
from denpexd.recording import read_case
from denpexd.state import FILE
from denpexd.tape import Cut

SECRET = "hf_" + "abcdefghijklmnopqrstuvwxyzabcdefghij"
EVENTS: list[list[Event]] = [
    [
        Activity(1.0, 0, f"/logs/{SECRET}/rank0.log", 10),
        Hit(1.0, 0, "progress.step", f"/logs/{SECRET}", 0, f"step {SECRET}", {"step": "1", "note": SECRET}),
    ],
    [Raised(2.0, 0, "log", 0, SECRET, (("ValueError", f"password={SECRET}"),), (Frame("main", f"{SECRET}.py", 3),))],
    [Frames(2.5, 0, "py-spy", (Frame("main", f"{SECRET}.py", 3),), others=((SECRET, (Frame("w", "w.py", 1),)),))],
    [Fact(3.0, 0, "frozen", {"wchan": SECRET}, text=SECRET), Joined(3.0, 1, node="n"), Exit(3.0, 0, 1), Tick(3.0)],
    [Dump(4.0, 1, "2.4", (Op("0", 3, f"all_gather {SECRET}", 7, True),), {"0": (0, 1)}, unnamed={1: Progress(2, 1)})],
]
VERDICT: dict[str, Any] = {
    "key": "run-a0-1-abc",
    "job": f"job-{SECRET}",
    "failure": "single-rank-exception",
    "title": f"it failed with {SECRET}",
    "opened_t": 2.0,
    "state": "open",
    "evidence": [{"rank": 0, "source": "log", "offset": 0, "t": 1.0, "text": SECRET, "means": "x"}],
}


def material(**changes: Any) -> Material:
    cut = Cut(f"job-{SECRET}", 0.5, Limits(min_silence=7.0), (Joined(0.5, 0, node="n"),), EVENTS)
    texts = {
        "config": f"url: https://user:{SECRET}@host/",
        "lines": {f"00-{SECRET}": SECRET},
        "more": {"launch.json": SECRET},
    }
    return replace(Material(VERDICT, cut, versions={"x": SECRET}), **{**texts, **changes})


def test_no_secret_is_in_names_or_contents() -> None:
    made = files(material())
    assert set(made) >= {"README.txt", "case.yaml", "journal.jsonl", "verdict.json", "report.txt", "config.yaml"}
    assert {"stacks/rank0.py-spy.txt", "dumps/rank1.json"} <= set(made)
    for name, data in made.items():
        assert SECRET not in name
        assert SECRET.encode() not in data, name
    assert b"REDACTED" in made["journal.jsonl"]


def test_what_was_fed_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "b.zip"
    path.write_bytes(pack(files(material()), "top", form="zip"))
    read = read_case(path)
    assert read.told is not None
    assert [[type(e) for e in batch] for batch in read.told.batches] == [[type(e) for e in batch] for batch in EVENTS]
    assert (read.start, read.observe_until, read.told.limits) == (0.5, 4.0, Limits(min_silence=7.0))
    assert read.told.batches[3][1:] == EVENTS[3][1:]


@pytest.mark.parametrize("event", [event for batch in EVENTS for event in batch])
def test_every_kind_of_event_comes_back_as_it_was(event: Event) -> None:
    assert unpacked(json.loads(json.dumps(packed(event)))) == event


@pytest.mark.parametrize(
    "content",
    [
        None,
        [],
        "x",
        {},
        {"event": "Nothing", "t": 1},
        {"event": "Tick"},
        {"event": "Tick", "t": "1"},
        {"event": "Tick", "t": True},
        {"event": "Tick", "t": float("nan")},
        {"event": "Exit", "t": 1, "rank": 1.5},
        {"event": "Hit", "t": 1, "rank": 0, "signal": "s", "source": "l", "offset": 0, "text": 5},
        {"event": "Hit", "t": 1, "rank": 0, "signal": "s", "source": "l", "offset": 0, "text": "", "fields": {"a": 1}},
        {"event": "Frames", "t": 1, "rank": 0, "kind": "k", "frames": [["f", "p", 1]]},
        {"event": "Frames", "t": 1, "rank": 0, "kind": "k", "frames": [], "others": [["a", [], 3]]},
        {"event": "Frames", "t": 1, "rank": 0, "kind": "k", "frames": "abc"},
    ],
)
def test_what_is_no_event_is_refused(content: object) -> None:
    with pytest.raises(CaseError, match="not an event"):
        unpacked(content)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("journal.jsonl", b"{"),
        ("journal.jsonl", b"[]\n"),
        ("journal.jsonl", b'{"events": [{"event": "Tick", "t": "now"}]}\n'),
        ("journal.jsonl", b'{"events": 7}\n'),
        ("journal.jsonl", b'{"finished": "soon"}\n'),
        ("journal.jsonl", b"[" * 100_000),
        ("journal.jsonl", b"\xff\xfe"),
        ("case.yaml", b"start: soon"),
        ("case.yaml", b"{}"),
        ("case.yaml", b"start: 1\nlimits: {nonsense: 1}"),
        ("case.yaml", b"start: 1\nlimits: {budgets: {train: x}}"),
        ("case.yaml", b"start: 1\nlimits: {budgets: {train: 1}}"),
    ],
)
def test_a_bundle_that_is_none_is_refused_in_one_sentence(tmp_path: Path, name: str, data: bytes) -> None:
    path = tmp_path / "b.tar.xz"
    path.write_bytes(pack({**files(material()), name: data}, "top"))
    with pytest.raises(CaseError, match=r"b\.tar\.xz"):
        read_case(path)


def test_names_of_keys_stay_different_and_safe() -> None:
    assert file_name("run-a0-1-abc") == "run-a0-1-abc"
    assert file_name("../../x") != file_name("../x")
    assert "/" not in file_name("../../x")
    assert safe(f"../{SECRET}") == "REDACTED-huggingface"


def test_the_verdict_of_today_replaces_the_one_that_was_kept() -> None:
    new = renewed(files(material()), {**VERDICT, "state": "closed"})
    assert json.loads(new["verdict.json"])["state"] == "closed"
    assert b"CLOSED" in new["report.txt"]


def test_a_journal_is_a_recording_with_the_seconds_put_back() -> None:
    lines = [encode("a", Exit(5.0, 0, 1)), encode("b", Exit(6.0, 0, 1)), "broken", encode("a", Exit(8.2, 1, 1))]
    cut = from_journal("a", 0.0, Limits(), [line for line in lines if line])
    assert [type(batch[0]) for batch in cut.batches[:4]] == [Exit, Tick, Tick, Tick]
    assert sum(isinstance(e, Exit) for batch in cut.batches for e in batch) == 2


# --- the state of a daemon --------------------------------------------------------------------------------------------


@pytest.fixture
def running(tmp_path: Path) -> Iterator[Path]:
    """The state folder of a daemon that has it open: one incident with a bundle, a newer one without."""
    clock = ManualClock(1000.0)
    with Store(tmp_path / FILE, clock) as store:
        first = {**VERDICT, "job": "job", "state": "closed"}
        journal = [line for batch in EVENTS for event in batch if (line := encode("job", event))]
        store.commit(incidents=[first], journal=journal)
        folder = tmp_path / FOLDER
        folder.mkdir()
        (folder / f"{VERDICT['key']}{ENDING}").write_bytes(pack(files(material()), "kept"))
        clock._now += 10.0
        store.commit(incidents=[{**first, "key": "run-a0-2-abc"}])
        yield tmp_path


def test_incidents_are_listed_beside_a_running_daemon_newest_first(running: Path) -> None:
    assert [(one.key, one.archive is not None) for one in incidents(running)] == [
        ("run-a0-2-abc", False),
        ("run-a0-1-abc", True),
    ]
    assert choose(running, None).key == "run-a0-2-abc"
    assert choose(running, "run-a0-1").key == "run-a0-1-abc"
    with pytest.raises(StateError, match="several incidents begin"):
        choose(running, "run-a0")
    with pytest.raises(StateError, match="no incident with 'nope'"):
        choose(running, "nope")
    with pytest.raises(StateError, match="no incident is known"):
        choose(running / "elsewhere", None)


def test_incidents_of_daemons_below_and_archives_alone_are_found_too(tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER / f"old{ENDING}").write_bytes(pack(files(material()), "kept"))
    with Store(tmp_path / "exec" / FILE, ManualClock(1.0)) as store:
        store.commit(incidents=[VERDICT])
    assert {one.key for one in incidents(tmp_path)} == {"old", VERDICT["key"]}


@pytest.mark.parametrize("ending", ["tar.xz", "zip"])
def test_the_command_writes_an_archive_that_is_replayed(running: Path, tmp_path: Path, ending: str) -> None:
    out = tmp_path / f"out.{ending}"
    run = CliRunner().invoke(main, ["bundle", "run-a0-1", "--state-dir", str(running), "-o", str(out)])
    assert run.exit_code == 0, run.output
    assert out.stat().st_mode & 0o77 == 0
    content = unpack(out)
    assert json.loads(content["verdict.json"])["state"] == "closed"
    assert yaml.safe_load(content["case.yaml"])["bundle"] == 1
    assert CliRunner().invoke(main, ["replay", str(out), "--format", "jsonl"]).exit_code == 0


def test_without_a_kept_bundle_the_journal_is_used_and_said(running: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.tar.xz"
    run = CliRunner().invoke(main, ["bundle", "--state-dir", str(running), "-o", str(out)])
    assert "nothing else was kept" in run.output
    content = unpack(out)
    assert b"only similar" in content["README.txt"]
    assert SECRET.encode() not in b"".join(content.values())
    assert b'"Raised"' in content["journal.jsonl"]
    with tarfile.open(out) as made:
        assert {name.partition("/")[0] for name in made.getnames()} == {"denpexd-run-a0-2-abc"}


def test_a_damaged_bundle_is_left_out_as_long_as_the_verdict_is_known(running: Path, tmp_path: Path) -> None:
    (running / FOLDER / f"{VERDICT['key']}{ENDING}").write_bytes(b"\xfd7zXZ\0 damaged")
    out = tmp_path / "out.tar.xz"
    run = CliRunner().invoke(main, ["bundle", "run-a0-1", "--state-dir", str(running), "-o", str(out)])
    assert run.exit_code == 0, run.output
    assert read_case(out).told is not None


def test_mistakes_are_said_in_one_line(tmp_path: Path) -> None:
    for arguments, words in (
        (["--state-dir", str(tmp_path)], "no incident is known"),
        (["--list", "--state-dir", str(tmp_path)], "no incident is known"),
    ):
        assert words in CliRunner().invoke(main, ["bundle", *arguments]).output
    (tmp_path / FILE).write_bytes(b"no database at all")
    run = CliRunner().invoke(main, ["bundle", "--state-dir", str(tmp_path)])
    assert run.exit_code == 2
    assert "cannot be read" in run.output


def test_the_name_of_the_output_says_its_form(running: Path) -> None:
    run = CliRunner().invoke(main, ["bundle", "--state-dir", str(running), "-o", "x.rar"])
    assert "ends with .tar.xz or .zip" in run.output
