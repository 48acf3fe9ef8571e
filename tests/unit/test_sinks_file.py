"""The file sink on a real file: whole lines, its rights, its size, and what logrotate or a crash did to it."""

import errno
import fcntl
import json
import os
from pathlib import Path
from typing import Any

import pytest

from denpexd.errors import DeliveryError
from denpexd.notify.policy import Delivery
from denpexd.notify.rows import Row
from denpexd.notify.sinks_file import FileSink
from denpexd.settings_sinks import FileSink as Options


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "alerts.jsonl"


def row(number: int = 1, text: str = "") -> Row:
    verdict = {"key": "k", "revision": number, "event": "opened", "quick_answer": text}
    return Row(1, Delivery("file", "k", number, "opened", f"k:{number}", "first", verdict), "pending", 0, 0.0, 0.0)


def sink(path: Path, **options: Any) -> FileSink:
    return FileSink("file", Options(type="file", path=path, **options))


def revisions(path: Path) -> list[int]:
    return [json.loads(line)["revision"] for line in path.read_text("utf-8").splitlines()]


async def test_every_message_is_a_line_that_only_we_can_read(path: Path) -> None:
    file = sink(path)
    await file.send(row(1, "a\nb\u2028c\udc80"))
    await file.send(row(2))
    assert revisions(path) == [1, 2]
    assert path.stat().st_mode & 0o777 == 0o600


async def test_a_file_that_was_moved_away_is_made_anew(path: Path) -> None:
    file = sink(path)
    await file.send(row(1))
    path.rename(path.with_name("moved"))
    await file.send(row(2))
    assert (revisions(path.with_name("moved")), revisions(path)) == ([1], [2])


@pytest.mark.parametrize(("keep", "left"), [(2, {"": [5], ".1": [4], ".2": [3]}), (0, {"": [5]})])
async def test_a_full_file_is_moved_and_the_oldest_goes(path: Path, keep: int, left: dict[str, list[int]]) -> None:
    file = sink(path, size="4KiB", keep=keep)
    for number in range(1, 6):
        await file.send(row(number, "x" * 3000))
    found = {each.name.removeprefix(path.name): revisions(each) for each in path.parent.iterdir()}
    assert found == left


async def test_a_line_that_is_larger_than_the_file_may_be_is_written_all_the_same(path: Path) -> None:
    await sink(path, size="4KiB").send(row(1, "x" * 9000))
    assert revisions(path) == [1]


async def test_half_a_line_of_before_is_ended_first(path: Path) -> None:
    path.write_text('{"key": "half')
    await sink(path).send(row(2))
    assert path.read_text().splitlines()[0] == '{"key": "half'
    assert json.loads(path.read_text().splitlines()[1])["revision"] == 2


async def test_on_a_full_disk_no_half_line_stays(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = os.write
    file = sink(path)
    await file.send(row(1))
    with monkeypatch.context() as full:
        full.setattr(os, "write", lambda fd, data: write(fd, data[:5]))
        with pytest.raises(DeliveryError, match=os.strerror(errno.ENOSPC)) as caught:
            await file.send(row(2))
    assert caught.value.retryable
    await file.send(row(2))
    assert revisions(path) == [1, 2]


async def test_a_file_that_is_moved_between_opening_and_locking_gets_nothing_more(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock, moved = fcntl.flock, path.with_name("moved")

    def late(file: int, how: int) -> None:
        if not moved.exists():
            path.rename(moved)
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", late)
    await sink(path).send(row())
    assert (revisions(moved), revisions(path)) == ([], [1])


async def test_a_file_that_another_daemon_writes_is_tried_again(path: Path) -> None:
    with path.open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(DeliveryError) as caught:
            await sink(path).send(row())
    assert caught.value.retryable


@pytest.mark.parametrize("kind", ["link", "absent folder"])
async def test_what_is_no_file_of_ours_is_said(path: Path, kind: str) -> None:
    if kind == "link":
        path.symlink_to(path.with_name("elsewhere"))
    with pytest.raises(DeliveryError, match="cannot be written"):
        await sink(path if kind == "link" else path.parent / "absent" / "file").send(row())
    assert not path.with_name("elsewhere").exists()
