"""Evidence is kept while the daemon runs: when an incident opens or changes, once more later, within its limits."""

import os
from pathlib import Path
from typing import Any

import pytest

from denpexd.archive import unpack
from denpexd.catalog.load import load
from denpexd.clock import ManualClock
from denpexd.core.cadence import Limits
from denpexd.core.events import Closed, Hit, Opened, Tick, Updated
from denpexd.keeper import Keeper, around
from denpexd.pipeline import Pipeline
from denpexd.recording import read_case
from denpexd.scan.engine import choose_engine
from denpexd.scan.scanner import Scanner
from denpexd.shelf import Shelf

TINY, _ = load([Path(__file__).parents[1] / "data" / "tiny"], strict=False)
HF = "hf_" + "abcdefghijklmnopqrstuvwxyzabcdefghij"


class Parts:
    """A keeper, its pipeline, and a log whose fourth line is quoted."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock(1000.0)
        scanner = Scanner([s for s in TINY.signals.values() if s.kind == "log"], choose_engine())
        self.pipeline = Pipeline(TINY, scanner, start_t=1000.0, limits=Limits(), record=(1 << 20, 3600.0))
        self.shelf = Shelf(folder / "incidents", 1 << 20, 1e9)
        self.log = folder / "rank0.log"
        self.log.write_text("".join(f"line {n} token={HF}\n" for n in range(50)))
        self.keeper = Keeper(
            self.shelf, self.pipeline, self.clock, lambda: ("a: 1\n", {"denpexd": "x"}), lambda: [self.log]
        )

    def verdict(self, **more: Any) -> dict[str, Any]:
        text = f"line 30 token={HF}"
        quote = {"rank": 0, "source": str(self.log), "offset": self.log.read_text().index("line 30"), "text": text}
        other = {**quote, "source": "/etc/passwd", "offset": 0}
        return {"key": "k", "job": "run", "opened_t": 1000.5, "title": "t", "evidence": [quote, other], **more}

    def feed(self, t: float) -> None:
        self.pipeline.take(self.pipeline.job("run"), [Tick(t)])

    @property
    def content(self) -> dict[str, bytes]:
        (kept,) = self.shelf.files()
        return unpack(kept.path)


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    made = Parts(tmp_path)
    made.feed(1000.0)
    return made


async def test_an_incident_is_kept_with_its_quotes_and_nothing_secret(parts: Parts) -> None:
    parts.keeper.note([Opened(parts.verdict())])
    await parts.keeper.finish()
    quoted = parts.content["lines/00-rank0.txt"].decode()
    assert "> line 30" in quoted
    assert "  line 10" in quoted
    assert "  line 50" not in quoted
    assert HF.encode() not in b"".join(parts.content.values())
    assert [name for name in parts.content if name.startswith("lines/")] == ["lines/00-rank0.txt"]
    assert parts.keeper.counts["written"] >= 1
    assert parts.shelf.bytes == parts.shelf.files()[0].size


async def test_it_is_kept_once_more_a_minute_after_the_last_change(parts: Parts) -> None:
    parts.keeper.note([Opened(parts.verdict()), Updated(parts.verdict(revision=2))])
    await parts.keeper._work
    before = parts.content["journal.jsonl"].count(b"\n")
    parts.feed(1050.0)
    parts.keeper.tick(1050.0)
    assert parts.keeper._work.done()
    parts.keeper.tick(1061.0)
    await parts.keeper._work
    assert parts.content["journal.jsonl"].count(b"\n") == before + 1
    parts.keeper.note([Closed(parts.verdict(state="closed"))])
    await parts.keeper.finish()
    assert parts.keeper.counts["written"] == 2


async def test_what_came_until_the_end_of_an_incident_belongs_to_it(parts: Parts) -> None:
    parts.keeper.note([Opened(parts.verdict())])
    parts.feed(1005.0)
    parts.keeper.note([Closed(parts.verdict(state="closed"))])
    await parts.keeper.finish()
    assert b"1005" in parts.content["journal.jsonl"]


async def test_a_recording_that_has_forgotten_the_beginning_does_not_replace_the_bundle(parts: Parts) -> None:
    parts.keeper.note([Opened(parts.verdict(opened_t=900.0)), Opened(parts.verdict(job="unknown"))])
    await parts.keeper.finish()
    assert parts.shelf.files() == []


async def test_of_a_job_without_an_incident_what_was_seen_is_packed_and_replayed(parts: Parts, tmp_path: Path) -> None:
    parts.pipeline.take(parts.pipeline.job("run"), [Hit(1001.0, 0, "x", "/l", 0, f"token={HF}", {})])
    archive = tmp_path / "r.tar.xz"
    archive.write_bytes(await parts.keeper.recorded("run") or b"")
    content = unpack(archive)
    assert not {"verdict.json", "report.txt"} & set(content)
    assert HF.encode() not in b"".join(content.values())
    told = read_case(archive).told
    assert told is not None
    assert [[type(event) for event in batch] for batch in told.batches] == [[Tick], [Hit]]
    assert await parts.keeper.recorded("another") is None
    parts.pipeline.job("run").tape = None
    assert await parts.keeper.recorded("run") is None


async def test_a_folder_that_cannot_be_written_is_counted_and_said_once(
    parts: Parts, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "incidents").write_text("a file")
    for number in (1, 2):
        parts.keeper.note([Opened(parts.verdict(key=f"k{number}"))])
        await parts.keeper._work
    await parts.keeper.finish()
    assert parts.keeper.counts["failed"] >= 2
    assert [record.message for record in caplog.records].count(caplog.records[0].message) == 1


def test_a_log_that_was_written_anew_is_said_to_be(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("other\n" * 10)
    assert "no longer stands there" in around(log, 6, "RuntimeError: boom")
    assert "no longer stands there" not in around(log, 6, "other")
    assert around(log, 10_000, "other").count("\n") >= 1
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, tmp_path / "none"):
        with pytest.raises(OSError):  # noqa: PT011 - each has another
            around(path, 0, "")


def test_a_shelf_removes_the_old_and_makes_room_but_keeps_the_newest(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path / "s", 250, 100.0)
    for number in range(4):
        path = shelf.put(f"f{number}", b"x" * 100, 1000.0)
        os.utime(path, (1000.0 + number, 1000.0 + number))
        shelf.tidy(1000.0)
    assert [kept.path.name for kept in shelf.files()] == ["f3", "f2"]
    assert shelf.counts == {"written": 4, "evicted": 2}
    assert shelf.bytes == 200
    shelf.tidy(5000.0)
    assert [kept.path.name for kept in shelf.files()] == ["f3"]
    assert shelf.counts["aged"] == 1
    assert shelf.put("big", b"x" * 1000, 5000.0).exists()


def test_a_half_written_file_is_never_seen_and_removed_some_day(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path, 250, 1e12)
    left = tmp_path / ".old.7.new"
    left.write_bytes(b"half")
    os.utime(left, (10.0, 10.0))
    assert shelf.files() == []
    shelf.put("a", b"", 20.0)
    assert left.exists()
    shelf.tidy(10_000.0)
    assert not left.exists()
