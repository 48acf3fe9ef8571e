"""Real files that grow under the reader: what is found, read, and remembered."""

import asyncio
import os
from collections.abc import AsyncIterator, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

from denpexd import reader as module
from denpexd.clock import ManualClock
from denpexd.ingest.discover import Discovery
from denpexd.ingest.wake import Waker
from denpexd.reader import AMID, GONE, LEFT_FOR, Reader

Text = tuple[str, int, str, bool]  # name, rank, text, history


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for rank in range(2):
        (tmp_path / f"rank{rank}.log").write_text(f"old {rank}\n")
    return tmp_path


class Readers:
    """Readers of one folder, closed at the end."""

    def __init__(self, folder: Path, clock: ManualClock) -> None:
        self._folder, self._clock, self._open = folder, clock, list[Reader]()

    def new(self, saved: Mapping[str, str] | None = None) -> Reader:
        waker = Waker(self._clock, enabled=False)
        reader = Reader(Discovery([str(self._folder)], "run"), self._clock, waker, saved or {}, 2.0)
        self._open.append(reader)
        return reader

    def close(self) -> None:
        for reader in self._open:
            reader.close()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1000.0)


@pytest.fixture
async def readers(folder: Path, clock: ManualClock) -> AsyncIterator[Readers]:
    made = Readers(folder, clock)
    yield made
    made.close()


async def news(reader: Reader, touched: Iterable[str] | None = None) -> list[Text]:
    return [(f.path.name, f.rank, r.data.decode(), r.history) async for f, r in reader.round(touched)]


def grow(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


async def test_what_stands_in_the_files_at_the_start_is_history_and_the_rest_is_not(
    readers: Readers, folder: Path
) -> None:
    reader = readers.new()
    assert {(f.path.name, f.job, f.rank) for f in await reader.look_around()} == {
        ("rank0.log", "run", 0),
        ("rank1.log", "run", 1),
    }
    assert await news(reader) == [("rank0.log", 0, "old 0\n", True), ("rank1.log", 1, "old 1\n", True)]
    grow(folder / "rank1.log", "new\n")
    assert await news(reader) == [("rank1.log", 1, "new\n", False)]
    assert await news(reader) == []


async def test_a_file_that_appears_later_is_no_history(readers: Readers, folder: Path) -> None:
    reader = readers.new()
    await reader.look_around()
    await news(reader)
    (folder / "rank2.log").write_text("first\n")
    assert [f.rank for f in await reader.look_around()] == [2]
    assert await news(reader) == [("rank2.log", 2, "first\n", False)]


async def test_only_files_that_were_touched_are_read(readers: Readers, folder: Path) -> None:
    reader = readers.new()
    await reader.look_around()
    await news(reader)
    for rank in range(2):
        grow(folder / f"rank{rank}.log", f"new {rank}\n")
    assert await news(reader, {str(folder / "rank1.log"), "/no/such"}) == [("rank1.log", 1, "new 1\n", False)]
    assert await news(reader) == [("rank0.log", 0, "new 0\n", False)]


async def test_a_reader_goes_on_where_the_one_before_it_stopped(readers: Readers, folder: Path) -> None:
    first = readers.new()
    await first.look_around()
    await news(first)
    saved = first.positions()
    assert set(saved) == {str(folder / f"rank{rank}.log") for rank in range(2)}
    grow(folder / "rank0.log", "while away\n")
    second = readers.new(saved)
    await second.look_around()
    assert await news(second) == [("rank0.log", 0, "while away\n", False)]


async def test_damaged_positions_are_left_out(readers: Readers, caplog: pytest.LogCaptureFixture) -> None:
    reader = readers.new({"x": "nonsense", "y": "[1, 2]", "z": "null"})
    await reader.look_around()
    assert len(await news(reader)) == 2
    assert caplog.text.count("a saved position is damaged") == 3


async def test_files_that_cannot_be_read_are_counted_and_do_not_stop_the_others(
    readers: Readers, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "rank0.log").unlink()
    (folder / "rank0.log").symlink_to(folder / "loop.log")
    reader = readers.new()
    await reader.look_around()
    assert ("rank1.log", 1, "old 1\n", True) in await news(reader)
    assert sum(reader.states.values()) == len(reader.found)


async def test_a_large_file_delays_no_other_and_is_read_in_turns(readers: Readers, folder: Path) -> None:
    (folder / "rank0.log").write_text("x" * 99 + "\n" * 1 + ("y" * 99 + "\n") * 9999)
    reader = readers.new()
    await reader.look_around()
    first = await news(reader)
    assert [name for name, *_ in first] == ["rank0.log", "rank1.log"]
    assert reader.behind()
    assert reader.lag == 1_000_000 - len(first[0][2])
    size = len(first[0][2])
    while reader.behind():
        size += sum(len(text) for _, _, text, _ in await news(reader))
    assert (size, reader.lag) == (1_000_000, 0)


async def test_the_rank_that_a_process_shows_goes_before_the_name_of_its_file(readers: Readers, folder: Path) -> None:
    reader = readers.new()
    await reader.look_around()
    reader.ranks = {folder / "rank0.log": 5}
    assert [(name, rank) for name, rank, *_ in await news(reader)] == [("rank0.log", 5), ("rank1.log", 1)]


async def test_a_truncated_file_is_read_from_its_beginning_and_counted(readers: Readers, folder: Path) -> None:
    reader = readers.new()
    await reader.look_around()
    await news(reader)
    (folder / "rank0.log").write_text("a\n")
    assert [text for _, _, text, _ in await news(reader)] == ["a\n"]
    assert reader.events["truncated"] + reader.events["replaced"] == 1


async def test_a_job_is_recent_if_any_of_its_files_was_written_lately(readers: Readers, folder: Path) -> None:
    reader = readers.new()
    await reader.look_around()
    wall = ManualClock(1000.0).wall()
    for rank, age in enumerate((5000.0, 700.0)):
        os.utime(folder / f"rank{rank}.log", (wall - age, wall - age))
    assert await reader.recent(["run", "other"]) == {"run": False, "other": False}
    os.utime(folder / "rank1.log", (wall - 500, wall - 500))
    assert await reader.recent(["run"]) == {"run": True}


async def test_a_file_rotated_before_a_restart_is_not_read_again_under_its_new_name(
    readers: Readers, folder: Path
) -> None:
    first = readers.new()
    await first.look_around()
    await news(first)
    saved = first.positions()
    (folder / "rank0.log").rename(folder / "rank0.old.log")
    (folder / "rank0.log").write_text("after the rotation\n")
    assert [text for _, _, text, _ in await news(first)] == ["after the rotation\n"]
    saved |= first.positions()
    second = readers.new(saved)
    await second.look_around()
    assert (folder / "rank0.old.log") in second.found
    assert await news(second) == []


@pytest.mark.parametrize("content", [bytes(range(255, -1, -1)) * 16, "step 1\n".encode("utf-16") * 50])
async def test_what_is_no_text_is_said_once(
    readers: Readers, folder: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    (folder / "rank2.log").write_bytes(content)
    reader = readers.new()
    await reader.look_around()
    _ = [read async for read in reader.round(None)]
    grow(folder / "rank2.log", "more\n")
    _ = [read async for read in reader.round(None)]
    assert caplog.text.count("does not look like text") == 1
    assert reader.errors["no text"] == 1


async def test_bytes_that_were_gone_before_they_were_read_are_counted(
    readers: Readers, folder: Path, clock: ManualClock
) -> None:
    with (folder / "rank0.log").open("a") as file:
        file.write("x" * 999 + "\n")
        file.write("y\n" * 400_000)
    reader = readers.new()
    await reader.look_around()
    await news(reader)
    os.truncate(folder / "rank0.log", 0)
    await news(reader)
    assert (lost := reader.lost) > 400_000
    (folder / "rank0.log").unlink()
    for _ in range(3):
        await news(reader)
        await reader.look_around()
        await clock.advance(GONE)
    assert reader.forgotten["file"] == 1
    assert reader.lost == lost


async def test_a_file_that_has_not_been_there_for_long_is_forgotten_with_its_position(
    readers: Readers, folder: Path, clock: ManualClock
) -> None:
    reader = readers.new()
    await reader.look_around()
    await news(reader)
    assert set(reader.positions()) == {str(path) for path in folder.iterdir()}
    (folder / "rank0.log").unlink()
    for _ in range(3):  # it is kept open for late writes, but not for long
        await clock.advance(GONE)
        await news(reader)
        await reader.look_around()
    rows = reader.positions()
    assert rows[str(folder / "rank0.log")] is None
    assert reader.kept == {"file": 1, "descriptor": 1, "position": 1}
    assert reader.forgotten["file"] == 1
    await clock.advance(LEFT_FOR)
    await reader.look_around()
    assert reader.positions() == dict.fromkeys(key for key in rows if key.endswith("(rotated)"))
    assert reader.kept["position"] == 0
    grow(folder / "rank0.log", "anew\n")
    await reader.look_around()
    assert await news(reader) == [("rank0.log", 0, "anew\n", False)]


async def test_a_file_that_comes_back_after_it_was_forgotten_is_read_on_where_it_stopped(
    readers: Readers, folder: Path, clock: ManualClock, tmp_path_factory: pytest.TempPathFactory
) -> None:
    reader = readers.new()
    await reader.look_around()
    await news(reader)
    away = folder.with_name("away")
    folder.rename(away)  # as if its mount were lost
    for _ in range(3):
        await clock.advance(GONE)
        await news(reader)
        await reader.look_around()
    assert reader.kept["file"] == 0
    away.rename(folder)
    grow(folder / "rank1.log", "after\n")
    await reader.look_around()
    assert await news(reader) == [("rank1.log", 1, "after\n", False)]


async def test_of_too_many_files_that_are_gone_the_oldest_are_forgotten_at_once(
    readers: Readers, folder: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_GONE", 4)
    monkeypatch.setattr(module, "_MOST_LEFT", 6)
    reader = readers.new()
    for number in range(20):
        path = folder / f"{number}.log"
        path.write_text(f"line {number}\n")
        await reader.look_around()
        await news(reader)
        path.unlink()
        await clock.advance(12.0)  # longer than a deleted file is kept open
        await news(reader)
        await clock.advance(12.0)
        await news(reader)
        reader.positions()
    await reader.look_around()
    assert reader.kept["file"] <= 2 + 4 + 1
    assert reader.kept["position"] <= 6
    assert reader.forgotten["position"] > 0


async def test_a_file_that_is_amid_something_keeps_its_former_position_but_not_for_long(
    readers: Readers, folder: Path, clock: ManualClock
) -> None:
    reader = readers.new()
    await reader.look_around()
    await news(reader)
    reader.positions()
    for rank in range(2):
        grow(folder / f"rank{rank}.log", "Traceback\n")
    await news(reader)
    assert set(reader.positions(lambda found: found.rank == 1)) == {str(folder / "rank0.log")}
    await clock.advance(AMID - 1)
    assert reader.positions(lambda found: True) == {}
    await clock.advance(1)
    assert set(reader.positions(lambda found: True)) == {str(folder / "rank1.log")}
    assert reader.positions() == {}


async def test_a_deleted_file_is_not_forgotten_while_there_is_something_to_read_in_it(
    readers: Readers, folder: Path, clock: ManualClock
) -> None:
    reader = readers.new()
    await reader.look_around()
    await news(reader)
    grow(folder / "rank0.log", "x" * 300_000 + "\nlast\n")
    await news(reader)
    (folder / "rank0.log").unlink()
    for _ in range(3):
        await reader.look_around()
        await clock.advance(GONE)
    assert "".join([text for _, _, text, _ in await news(reader)]).endswith("last\n")


class Looks:
    """How often the state of a log file was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.of: dict[str, int] = {}
        self._stat = os.stat
        monkeypatch.setattr(os, "stat", self.stat)

    def stat(self, path: Any, **how: Any) -> os.stat_result:
        if not isinstance(path, int) and os.fspath(path).endswith(".log"):
            self.of[os.fspath(path)] = self.of.get(os.fspath(path), 0) + 1
        return self._stat(path, **how)


async def wait(reader: Reader, clock: ManualClock, seconds: float = 1.0) -> set[str] | None:
    """What the reader says after a second at most."""
    waiting = asyncio.ensure_future(reader.wait(1.0))
    await clock.advance(0.0)  # it begins to wait
    await clock.advance(seconds)
    return await waiting


async def calm(reader: Reader, clock: ManualClock) -> Reader:
    """All is read, and seen to stay as it is."""
    for _ in range(3):
        await reader.look_around()
        await news(reader)
        await wait(reader, clock, 2.0)
    return reader


async def test_in_an_idle_minute_each_file_is_looked_at_once_a_sweep(
    readers: Readers, folder: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rank in range(2, 40):
        grow(folder / f"rank{rank}.log", "old\n")
    reader, looks = await calm(readers.new(), clock), Looks(monkeypatch)
    for second in range(60):
        assert await news(reader, await wait(reader, clock)) == []
        if second % 2:
            assert await reader.look_around() is None
    sweeps, full = 30, 2  # one look around in sixteen is at the files too
    assert len(looks.of) == 40
    assert all(sweeps <= times <= sweeps + full + 1 for times in looks.of.values())


async def test_a_write_that_nobody_tells_of_is_read_within_a_sweep(
    readers: Readers, folder: Path, clock: ManualClock
) -> None:
    reader = await calm(readers.new(), clock)
    for number in range(5):
        grow(folder / "rank1.log", f"line {number}\n")
        found = [text for _ in range(2) for _, _, text, _ in await news(reader, await wait(reader, clock))]
        assert found == [f"line {number}\n"]


async def test_a_new_file_is_read_as_soon_as_it_is_found(readers: Readers, folder: Path, clock: ManualClock) -> None:
    reader = await calm(readers.new(), clock)
    grow(folder / "rank2.log", "first\n")
    await reader.look_around()
    assert [text for _, _, text, _ in await news(reader, await wait(reader, clock, 0.0))] == ["first\n"]


async def test_while_one_file_catches_up_the_others_are_left_alone(
    readers: Readers, folder: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = await calm(readers.new(), clock)
    grow(folder / "rank0.log", ("y" * 99 + "\n") * 20_000)
    await news(reader)
    looks, turns = Looks(monkeypatch), 0
    while reader.behind():
        turns += bool(await news(reader, await wait(reader, clock, 0.0)))
    assert looks.of[str(folder / "rank0.log")] == turns >= 5
    assert looks.of.get(str(folder / "rank1.log"), 0) <= 1  # a sweep
