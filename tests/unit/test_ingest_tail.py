"""A tail hands out every byte once, whatever happens to the file; on the disk file system, where inodes are reused."""

import errno
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from denpexd.ingest.open_files import OpenFiles
from denpexd.ingest.positions import SPAN, Position
from denpexd.ingest.tail import Tail, TailRead, new_buffer

BUFFER = new_buffer(4096)


@pytest.fixture
def files() -> OpenFiles:
    return OpenFiles()


class Follower:
    """Reads a tail to its end and keeps what it got."""

    def __init__(
        self, path: Path, files: OpenFiles, position: Position | None = None, *, history: bool = False
    ) -> None:
        self.tail = Tail(path, position, files=files, history=history)
        self.now = 0.0
        self.events: list[str] = []
        self.reads: list[TailRead] = []

    def new(self, *, after: float = 2.0, buffer: memoryview = BUFFER) -> bytes:
        """Everything that came since the last call."""
        self.now += after
        data = b""
        for _ in range(10_000):
            read = self.tail.read(buffer, self.now)
            self.reads.append(read)
            if read.event:
                self.events.append(read.event)
            data += read.data
            if not read.more:
                return data
        raise AssertionError("a tail that never ends")


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "r0.log"
    path.write_bytes(b"")
    return path


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def test_growth_is_followed_with_the_right_offsets(log: Path, files: OpenFiles) -> None:
    follower = Follower(log, files)
    assert follower.new() == b""
    append(log, b"one\n")
    assert follower.new() == b"one\n"
    append(log, b"two\nthr")
    assert follower.new() == b"two\nthr"
    append(log, b"ee\n")
    assert follower.new() == b"ee\n"
    got = [(read.offset, read.data) for read in follower.reads if read.data]
    assert got == [(0, b"one\n"), (4, b"two\nthr"), (11, b"ee\n")]
    assert follower.events == []
    assert follower.tail.lag == 0


@pytest.mark.parametrize("size", [4095, 4096, 4097, 8192, 100_000])
def test_more_than_a_chunk_comes_in_chunks(log: Path, files: OpenFiles, size: int) -> None:
    data = os.urandom(size).replace(b"\0", b"x")
    append(log, data)
    follower = Follower(log, files)
    first = follower.tail.read(BUFFER, 0.0)
    assert len(first.data) == min(size, 4096)
    assert follower.tail.lag == max(0, size - 4096)
    assert first.data + follower.new() == data


def test_what_stood_there_before_is_history_and_the_rest_is_live(log: Path, files: OpenFiles) -> None:
    append(log, b"old\n" * 2000)
    follower = Follower(log, files, history=True)
    first = follower.tail.read(BUFFER, 0.0)
    append(log, b"new\n")
    follower.new()
    follower.reads.insert(0, first)
    assert b"".join(read.data for read in follower.reads if read.history) == b"old\n" * 2000
    assert b"".join(read.data for read in follower.reads if not read.history) == b"new\n"


def test_a_file_that_came_later_or_has_a_position_is_live(log: Path, files: OpenFiles) -> None:
    append(log, b"a\nb\n")
    follower = Follower(log, files)
    assert follower.new() == b"a\nb\n"
    append(log, b"c\n")
    position = follower.tail.position
    again = Follower(log, OpenFiles(), position, history=True)
    assert again.new() == b"c\n"
    assert not any(read.history for read in [*follower.reads, *again.reads])


def test_rename_rotation_finishes_the_old_file_first(log: Path, files: OpenFiles) -> None:
    append(log, b"one\n")
    follower = Follower(log, files)
    follower.new()
    append(log, b"two\n")
    log.rename(log.with_suffix(".log.1"))
    append(log, b"three\n")
    assert follower.new() == b"two\nthree\n"
    assert follower.events == ["rotated"]
    assert [(r.data, r.event, r.offset) for r in follower.reads if r.data][-1] == (b"three\n", "rotated", 0)


def test_a_late_writer_of_the_renamed_file_is_heard_while_the_new_one_is_empty(log: Path, files: OpenFiles) -> None:
    append(log, b"one\n")
    follower = Follower(log, files)
    follower.new()
    with log.open("ab") as stale:
        log.rename(log.with_suffix(".log.1"))
        log.write_bytes(b"")
        assert follower.new() == b""
        stale.write(b"late\n")
        stale.flush()
        assert follower.new(after=5.0) == b"late\n"
    append(log, b"new\n")
    assert follower.new() == b"new\n"
    assert follower.events == ["rotated"]


def test_a_late_writer_is_heard_through_the_rotated_name_if_that_is_watched(log: Path, files: OpenFiles) -> None:
    append(log, b"one\n")
    follower = Follower(log, files)
    follower.new()
    rotated = log.with_suffix(".log.1")
    with log.open("ab") as stale:
        log.rename(rotated)
        append(log, b"new\n")
        other = Follower(rotated, files)
        assert other.new() == b""
        assert other.events == ["alias"]
        assert "second name" in str(other.tail.error)
        assert follower.new() == b"new\n"
        stale.write(b"late\n")
        stale.flush()
        assert other.new() == b"late\n"
    assert other.tail.error is None


def test_several_rotations_between_two_looks_lose_nothing_that_is_still_named(log: Path, files: OpenFiles) -> None:
    append(log, b"0\n")
    followers = [Follower(log, files)]
    assert followers[0].new() == b"0\n"
    for number in range(1, 6):
        for old in range(number, 0, -1):
            older = log.with_suffix(f".log.{old}")
            (log if old == 1 else log.with_suffix(f".log.{old - 1}")).rename(older)
        append(log, b"%d\n" % number)
    followers += [Follower(log.with_suffix(f".log.{n}"), files) for n in range(1, 6)]
    for _ in range(3):
        got = [follower.new() for follower in followers]
        if not _:
            total = sorted(b"".join(got).split())
    assert total == [b"1", b"2", b"3", b"4", b"5"]
    assert got == [b""] * 6


@pytest.mark.parametrize("again", [b"", b"x\n", b"new line\n", b"y" * 99 + b"\n", b"longer than before\n" * 100])
def test_truncation_is_noticed_whatever_the_new_size(log: Path, files: OpenFiles, again: bytes) -> None:
    append(log, b"a line that will go\n" * 5)
    follower = Follower(log, files)
    follower.new()
    os.truncate(log, 0)
    append(log, again)
    assert follower.new() == again
    assert follower.events == ["truncated"]
    append(log, b"after\n")
    assert follower.new() == b"after\n"


def test_rewriting_with_the_same_size_within_one_time_stamp_is_noticed(log: Path, files: OpenFiles) -> None:
    append(log, b"aaaa\n")
    follower = Follower(log, files)
    follower.new(after=0.0)
    stamp = log.stat()
    log.write_bytes(b"bbbb\n")
    os.utime(log, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    assert follower.new(after=0.1) == b"bbbb\n"
    assert follower.events == ["truncated"]


def test_truncation_with_an_equal_end_is_noticed_by_the_beginning(log: Path, files: OpenFiles) -> None:
    append(log, b"first\n" + b"tick\n" * 200)
    follower = Follower(log, files)
    follower.new()
    log.write_bytes(b"other\n" + b"tick\n" * 200)
    assert follower.new() == b"other\n" + b"tick\n" * 200
    assert follower.events == ["truncated"]


def test_truncation_with_an_equal_beginning_is_noticed_by_the_end(log: Path, files: OpenFiles) -> None:
    banner = b"the same banner at each start\n" * 10
    append(log, banner + b"one\n")
    follower = Follower(log, files)
    follower.new()
    log.write_bytes(banner + b"two\n")
    assert follower.new() == banner + b"two\n"
    assert follower.events == ["truncated"]


def test_truncation_during_a_backlog(log: Path, files: OpenFiles) -> None:
    append(log, b"old line\n" * 10_000)
    follower = Follower(log, files, history=True)
    follower.tail.read(BUFFER, 0.0)
    os.truncate(log, 0)
    append(log, b"ERR\n")
    assert follower.new() == b"ERR\n"
    assert follower.tail.lag == 0
    assert follower.tail.lost == 90_000 - 4096
    assert not follower.reads[-1].history


def test_copytruncate_under_a_writer_that_keeps_its_offset(log: Path, files: OpenFiles) -> None:
    with log.open("wb") as writer:
        writer.write(b"before\n" * 5000)
        writer.flush()
        follower = Follower(log, files)
        follower.new()
        os.truncate(log, 0)
        assert follower.new() == b""
        writer.write(b"after\n")
        writer.flush()
        assert follower.new() == b"after\n"
        assert [r.offset for r in follower.reads if r.data][-1] == 35_000


def test_a_hole_of_five_gigabytes_costs_a_handful_of_reads(log: Path, files: OpenFiles) -> None:
    follower = Follower(log, files)
    os.truncate(log, 5 << 30)
    assert follower.new() == b""
    assert follower.tail.lag == 0
    append(log, b"ERR\n")
    assert follower.new() == b"ERR\n"
    assert len(follower.reads) < 10
    read = next(read for read in follower.reads if read.data)
    assert read.offset == 5 << 30
    again = Follower(log, OpenFiles(), follower.tail.position)
    assert again.new() == b""
    assert again.events == []


def test_nuls_inside_a_line_stay_and_nuls_at_the_end_wait(log: Path, files: OpenFiles) -> None:
    append(log, b"ERR\0\0 more\n\0\0\0")
    follower = Follower(log, files)
    assert follower.new() == b"ERR\0\0 more\n"
    assert follower.tail.lag == 0
    with log.open("r+b") as file:
        file.seek(11)
        file.write(b"abc\n")
    assert follower.new() == b"abc\n"
    assert follower.events == []


def test_delete_and_recreate_is_read_from_the_beginning(log: Path, files: OpenFiles) -> None:
    append(log, b"one\n")
    follower = Follower(log, files)
    follower.new()
    append(log, b"two\n")
    log.unlink()
    assert follower.new() == b"two\n"
    assert follower.new() == b""
    assert follower.events == ["vanished"]
    assert "does not exist" in str(follower.tail.error)
    append(log, b"ERR\n")
    assert follower.new() == b"ERR\n"
    assert follower.events == ["vanished", "rotated"]
    assert follower.tail.error is None


def test_a_deleted_file_is_closed_after_a_while_and_keeps_its_position(log: Path, files: OpenFiles) -> None:
    append(log, b"one\n")
    follower = Follower(log, files)
    follower.new()
    position = follower.tail.position
    log.unlink()
    follower.new()
    assert follower.tail.is_open
    follower.new(after=20.0)
    assert not follower.tail.is_open
    assert not descriptors_into(log.parent)
    assert follower.tail.position == position


def test_a_reused_inode_is_not_taken_for_the_old_file(log: Path, files: OpenFiles) -> None:
    append(log, b"one\n")
    follower = Follower(log, files)
    follower.new()
    inode = log.stat().st_ino
    log.unlink()
    follower.new()
    follower.new(after=20.0)
    for number in range(50):
        log.write_bytes(b"two, and longer than before\n")
        if log.stat().st_ino == inode:
            break
        log.rename(log.with_name(f"spare{number}"))
    else:
        pytest.skip("somebody else was given the inode")
    assert follower.new() == b"two, and longer than before\n"


def test_a_neighbour_with_the_reused_inode_is_not_read_in_its_place(log: Path, files: OpenFiles) -> None:
    append(log, b"one\n")
    follower = Follower(log, files)
    follower.new()
    inode = log.stat().st_ino
    os.close(follower.tail.take_descriptor())
    log.unlink()
    for number in range(50):
        neighbour = log.with_name(f"r{number + 1}.log")
        append(neighbour, b"not one, but the neighbour\n")
        if neighbour.stat().st_ino == inode:
            break
    append(log, b"two\n")
    assert follower.new() == b"two\n"
    assert follower.events == ["replaced"]


def test_a_moved_folder_is_followed_through_the_descriptor(tmp_path: Path, files: OpenFiles) -> None:
    (tmp_path / "job").mkdir()
    log = tmp_path / "job" / "r0.log"
    append(log, b"one\n")
    follower = Follower(log, files)
    follower.new()
    log.parent.rename(tmp_path / "job.done")
    for _ in range(3):
        follower.new(after=100.0)
    append(tmp_path / "job.done" / "r0.log", b"two\n")
    assert follower.new(after=100.0) == b"two\n"


def test_atomic_replacement_reads_the_new_file_whole(log: Path, files: OpenFiles) -> None:
    append(log, b"old\n")
    follower = Follower(log, files)
    follower.new()
    other = log.with_name("t")
    shutil.copy(log, other)
    append(other, b"ERR\n")
    other.rename(log)
    assert follower.new() == b"old\nERR\n"
    assert follower.events == ["rotated"]


def test_a_switched_link_drains_the_old_target_first(tmp_path: Path, files: OpenFiles) -> None:
    for version in ("v1", "v2"):
        (tmp_path / version).mkdir()
    append(tmp_path / "v1/r0.log", b"one\n")
    link = tmp_path / "cur.log"
    link.symlink_to("v1/r0.log")
    follower = Follower(link, files)
    follower.new()
    append(tmp_path / "v1/r0.log", b"two\n")
    append(tmp_path / "v2/r0.log", b"ERR\n")
    link.unlink()
    link.symlink_to("v2/r0.log")
    assert follower.new() == b"two\nERR\n"


def test_a_link_switched_while_stopped_leaves_nothing_unread_in_the_file_beside_its_target(tmp_path: Path) -> None:
    (tmp_path / "days").mkdir()
    append(tmp_path / "days/monday.log", b"one\n")
    link = tmp_path / "r0.log"
    link.symlink_to("days/monday.log")
    first = Follower(link, OpenFiles())
    first.new()
    append(tmp_path / "days/monday.log", b"two\n")
    append(tmp_path / "days/tuesday.log", b"three\n")
    link.unlink()
    link.symlink_to("days/tuesday.log")
    assert Follower(link, OpenFiles(), first.tail.position, history=True).new() == b"two\nthree\n"


@pytest.mark.parametrize("rotated", [False, True])
def test_a_file_system_that_was_mounted_again_with_another_device_number_begins_nothing_anew(
    log: Path, rotated: bool
) -> None:
    append(log, b"one\n")
    first = Follower(log, OpenFiles())
    first.new()
    assert first.tail.position is not None
    position = replace(first.tail.position, device=first.tail.position.device + 1)
    append(log, b"two\n")
    if rotated:
        log.rename(log.with_suffix(".log.1"))
        append(log, b"three\n")
    again = Follower(log, OpenFiles([position]), position, history=True)
    assert again.new() == (b"two\nthree\n" if rotated else b"two\n")
    assert again.tail.position is not None
    assert again.tail.position.device == log.stat().st_dev


@pytest.mark.parametrize("kind", ["directory", "fifo", "device"])
def test_anything_but_a_regular_file_is_refused_with_words(tmp_path: Path, files: OpenFiles, kind: str) -> None:
    path = tmp_path / "r0.log"
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
    follower = Follower(path, files)
    assert follower.new() == b""
    assert follower.new() == b""
    assert follower.events == ["unreadable"]
    assert "only regular files are read" in str(follower.tail.error)
    path.rmdir() if kind == "directory" else path.unlink()
    append(path, b"ERR\n")
    assert follower.new() == b"ERR\n"
    assert follower.tail.error is None


def test_a_file_that_does_not_exist_yet_is_waited_for(tmp_path: Path, files: OpenFiles) -> None:
    follower = Follower(tmp_path / "late/r0.log", files)
    assert follower.new() == b""
    assert follower.tail.position is None
    (tmp_path / "late").mkdir()
    append(tmp_path / "late/r0.log", b"ERR\n")
    assert follower.new() == b"ERR\n"
    assert follower.events == ["vanished"]


PERMISSIONS = """
import os, sys
from pathlib import Path
from denpexd.ingest.open_files import OpenFiles
from denpexd.ingest.tail import Tail, new_buffer
path, files, buffer = Path(sys.argv[1]), OpenFiles(), new_buffer()
tail = Tail(path, None, files=files, history=False)
def look(mode):
    os.seteuid(0); os.chmod(path, mode); os.seteuid(65534)
    read = tail.read(buffer, 0.0)
    print(read.data, read.event, tail.error)
look(0); look(0); look(0o644)
os.close(tail.take_descriptor())
os.seteuid(0); path.open("ab").write(b"two\\n"); os.seteuid(65534)
look(0); look(0o644)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_permission_lost_and_given_back_loses_nothing() -> None:
    path = Path("/tmp") / f"denpexd-test-{os.getpid()}.log"
    path.write_bytes(b"one\n")
    try:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", PERMISSIONS, str(path)], capture_output=True, text=True
        )
    finally:
        path.unlink()
    lines = done.stdout.splitlines()
    assert lines[0].startswith("b'' unreadable ")
    assert "uid 65534" in lines[0]
    assert lines[1].startswith("b''  ")
    assert lines[2] == "b'one\\n'  None"
    assert lines[3].startswith("b'' unreadable ")
    assert lines[4] == "b'two\\n'  None"


def test_hard_links_are_read_once(log: Path, files: OpenFiles) -> None:
    other = log.with_name("r0b.log")
    os.link(log, other)
    append(log, b"ERR\n")
    first, second = Follower(log, files), Follower(other, files)
    assert first.new() + second.new() == b"ERR\n"
    append(other, b"more\n")
    assert first.new() + second.new() == b"more\n"
    assert second.events == ["alias"]
    first.tail.close()
    append(other, b"on\n")
    assert second.new() == b"on\n"


# Positions


def test_the_position_is_the_beginning_of_the_unfinished_line(log: Path, files: OpenFiles) -> None:
    append(log, b"one\ntw")
    follower = Follower(log, files)
    follower.new()
    position = follower.tail.position
    assert position is not None
    assert position.offset == 4
    append(log, b"o\n")
    assert Follower(log, OpenFiles(), position).new() == b"two\n"


@pytest.mark.parametrize("size", [0, 1, 40, SPAN - 1, SPAN, SPAN + 1, 5000])
def test_identity_grows_across_restarts(log: Path, size: int) -> None:
    line = b"x" * max(0, size - 1) + b"\n"
    append(log, line if size else b"")
    first = Follower(log, OpenFiles())
    assert first.new() == (line if size else b"")
    append(log, b"second\n" * 1000)
    second = Follower(log, OpenFiles(), first.tail.position)
    assert second.new() == b"second\n" * 1000
    append(log, b"ERR\n")
    third = Follower(log, OpenFiles(), second.tail.position)
    assert third.new() == b"ERR\n"
    assert third.events == []


def test_replaced_while_stopped_is_read_from_the_beginning(log: Path) -> None:
    append(log, b"one\n")
    first = Follower(log, OpenFiles())
    first.new()
    log.unlink()
    append(log, b"new and longer\n")
    second = Follower(log, OpenFiles(), first.tail.position, history=True)
    assert second.new() == b"new and longer\n"
    assert second.events == ["replaced"]
    assert not any(read.history for read in second.reads)


@pytest.mark.parametrize("watched", [True, False])
@pytest.mark.parametrize("order", [0, 1])
def test_rotated_while_stopped_is_finished_under_its_new_name(log: Path, watched: bool, order: int) -> None:
    append(log, b"one\n")
    first = Follower(log, OpenFiles())
    first.new()
    position = first.tail.position
    assert position is not None
    append(log, b"two\n")
    rotated = log.with_suffix(".log.1")
    log.rename(rotated)
    append(log, b"three\n")
    files = OpenFiles([position])
    followers = [Follower(log, files, position, history=True)]
    if watched:
        followers.insert(order, Follower(rotated, files, history=True))
    got = b"".join(follower.new() for _ in range(2) for follower in followers)
    assert sorted(got.split()) == [b"three", b"two"]
    assert not any(read.history for follower in followers for read in follower.reads if read.data)


def test_positions_left_by_rotation_can_be_stored(log: Path, files: OpenFiles) -> None:
    append(log, b"one\n")
    follower = Follower(log, files)
    follower.new()
    before = follower.tail.position
    log.rename(log.with_suffix(".log.1"))
    append(log, b"two\n")
    follower.new()
    assert files.take_left() == [before]
    assert files.take_left() == []


def test_a_position_survives_its_row(log: Path, files: OpenFiles) -> None:
    append(log, b"one\n")
    follower = Follower(log, files)
    follower.new()
    position = follower.tail.position
    assert position is not None
    assert Position.from_row(position.to_row()) == position
    huge = Position(str(log), 2**64 - 1, 2**64 - 1, 5, position.head, position.tail_hash)
    assert Position.from_row(huge.to_row()) == huge
    path, identity, offset, head, tail_hash = position.to_row()
    with pytest.raises(ValueError, match="damaged"):
        Position.from_row((path, identity, offset, head[:3], tail_hash))


# Descriptors


def descriptors_into(folder: Path) -> list[Path]:
    """The files below a folder that this process holds open."""
    open_ = (link.readlink() for link in Path("/proc/self/fd").iterdir() if link.is_symlink())
    return [target for target in open_ if folder in target.parents]


def test_few_descriptors_serve_many_files(tmp_path: Path) -> None:
    files = OpenFiles(limit=8)
    logs = [tmp_path / f"r{n}.log" for n in range(100)]
    followers = [Follower(log, files) for log in logs]
    for round_ in range(3):
        for log in logs:
            append(log, b"%d\n" % round_)
        assert [follower.new() for follower in followers] == [b"%d\n" % round_] * 100
        assert 0 < len(descriptors_into(tmp_path)) <= 8
    assert all(not follower.events for follower in followers)


def test_rotation_and_truncation_are_seen_without_a_descriptor(tmp_path: Path) -> None:
    files = OpenFiles(limit=1)
    a, b, other = tmp_path / "a.log", tmp_path / "b.log", tmp_path / "other.log"
    followers = [Follower(path, files) for path in (a, b, other)]
    for path in (a, b, other):
        append(path, b"one line\n")
    for follower in followers:
        follower.new()
    assert not followers[0].tail.is_open
    append(a, b"end of a\n")
    a.rename(tmp_path / "a.log.1")
    append(a, b"new a\n")
    b.write_bytes(b"new b\n")
    assert followers[0].new() == b"end of a\nnew a\n"
    assert followers[1].new() == b"new b\n"
    assert followers[0].events == ["rotated"]
    assert followers[1].events == ["truncated"]


def test_too_few_descriptors_in_the_process_is_survived(tmp_path: Path) -> None:
    program = """
import os, resource, sys
from pathlib import Path
from denpexd.ingest.open_files import OpenFiles
from denpexd.ingest.tail import Tail, new_buffer
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
files, buffer = OpenFiles(limit=1000), new_buffer()
tails = [Tail(Path(sys.argv[1]) / f"{n}", None, files=files, history=False) for n in range(200)]
print(sum(len(tail.read(buffer, 0.0).data) for tail in tails), [t.error for t in tails if t.error])
"""
    for number in range(200):
        append(tmp_path / str(number), b"x\n")
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True)
    assert done.stdout == "400 []\n", done.stderr


def test_an_idle_file_is_not_opened_again(log: Path) -> None:
    append(log, b"one\n")
    files = OpenFiles()
    follower = Follower(log, files)
    for _ in range(4):
        follower.new()
    os.close(follower.tail.take_descriptor())
    follower.new()
    assert not follower.tail.is_open


LAGGING_STAT = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
int stat64(const char *path, struct stat64 *info) {
    int (*real)(const char *, struct stat64 *) = dlsym(RTLD_NEXT, "stat64");
    int failed = real(path, info);
    if (!failed && strstr(path, "r0.log") && getenv("LAG")) info->st_size -= 3;
    return failed;
}
"""


def test_stat_that_lags_behind_starts_nothing_over(log: Path, files: OpenFiles, tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for the shim")
    shim = tmp_path / "lag.c"
    shim.write_text(LAGGING_STAT)
    library = tmp_path / "lag.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(shim), "-ldl"], check=True)
    program = """
import os, sys
from pathlib import Path
from denpexd.ingest.open_files import OpenFiles
from denpexd.ingest.tail import Tail, new_buffer
path = Path(sys.argv[1])
tail, buffer = Tail(path, None, files=OpenFiles(), history=False), new_buffer()
os.environ["LAG"] = "1"
print(path.stat().st_size)
for n in range(3):
    if n: path.open("ab", buffering=0).write(b"line\\n")
    read = tail.read(buffer, float(n))
    print(read.data, read.event, tail.lag)
"""
    append(log, b"line\n")
    done = subprocess.run(
        [sys.executable, "-c", program, str(log)], capture_output=True, text=True, env={"LD_PRELOAD": str(library)}
    )
    assert done.stdout.splitlines() == ["2", *["b'line\\n'  0"] * 3], done.stderr


def test_a_renamed_file_is_let_go_of_when_it_stays_quiet_although_its_successor_is_empty(
    log: Path, files: OpenFiles
) -> None:
    append(log, b"one\n")
    follower = Follower(log, files)
    follower.new()
    log.rename(log.with_suffix(".log.1"))
    log.touch()
    for _ in range(3):
        follower.new(after=20.0)
    assert follower.tail.position is not None
    assert follower.tail.position.inode == log.stat().st_ino


def test_a_descriptor_that_the_server_has_forgotten_is_opened_again(
    log: Path, files: OpenFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    append(log, b"one\n")
    follower = Follower(log, files)
    follower.new()
    stale, read, begin = True, os.preadv, os.open

    def reading(fd: int, *rest: Any) -> int:
        if stale:
            raise OSError(errno.ESTALE, "Stale file handle")
        return read(fd, *rest)

    def opening(*what: Any, **more: Any) -> int:
        nonlocal stale
        stale = False
        return begin(*what, **more)

    monkeypatch.setattr(os, "preadv", reading)
    monkeypatch.setattr(os, "open", opening)
    append(log, b"two\n")
    assert follower.new() + follower.new() == b"two\n"


def test_a_second_content_of_the_same_size_and_time_is_read(log: Path, files: OpenFiles) -> None:
    append(log, b"one\n")
    follower = Follower(log, files)
    follower.new()
    follower.new(after=0.1)
    times = log.stat().st_atime_ns, log.stat().st_mtime_ns
    log.write_bytes(b"two\n")
    os.utime(log, ns=times)
    assert follower.new(after=0.1) == b"two\n"


def test_of_an_empty_file_there_is_nothing_to_go_on_from(log: Path, files: OpenFiles) -> None:
    follower = Follower(log, files)
    follower.new()
    position = follower.tail.position
    assert position is not None
    follower.tail.close()
    assert files.take_left() == []
    append(log, b"old\n")  # another file may have its number by now
    other = log.rename(log.with_name("r1.log"))
    again = Follower(other, OpenFiles([position]), history=True)
    assert again.new() == b"old\n"
    assert all(read.history for read in again.reads if read.data)


def test_where_the_whole_system_has_no_descriptor_left_one_of_ours_is_closed(
    tmp_path: Path, files: OpenFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (Follower(tmp_path / name, files) for name in ("r0.log", "r1.log"))
    for follower in (first, second):
        append(follower.tail.path, b"one\n")
    first.new()
    begin = os.open

    def opening(*what: Any, **more: Any) -> int:
        if first.tail.is_open:
            raise OSError(errno.ENFILE, "Too many open files in system")
        return begin(*what, **more)

    monkeypatch.setattr(os, "open", opening)
    assert second.new() == b"one\n"
    assert not first.tail.is_open


def test_a_file_that_a_thread_is_reading_belongs_to_it(log: Path, files: OpenFiles) -> None:
    append(log, b"one\n")
    owner, other = Follower(log, files), Follower(log.with_name("r1.log"), files)
    owner.new()
    info = log.stat()
    os.close(owner.tail.take_descriptor())
    log.rename(other.tail.path)
    files.enter(owner.tail)
    assert not files.claim((info.st_dev, info.st_ino), other.tail)
    files.leave(owner.tail)
    assert files.claim((info.st_dev, info.st_ino), other.tail)
