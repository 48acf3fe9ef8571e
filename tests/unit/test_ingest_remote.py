"""A mount that hangs costs one thread and no more, and what it answers late is not lost."""

import asyncio
import os
import threading
from pathlib import Path

import pytest

from denpexd.clock import ManualClock
from denpexd.errors import SourceError
from denpexd.ingest.open_files import OpenFiles
from denpexd.ingest.remote import Mounts, RemoteReader
from denpexd.ingest.tail import Tail

TABLE = """\
/dev/vda / ext4 rw 0 0
server:/x /mnt/nfs nfs4 rw 0 0
l /mnt/lustre lustre rw 0 0
sshfs /mnt/with\\040space fuse.sshfs rw 0 0
tmpfs /mnt/nfs/local tmpfs rw 0 0
/dev/vdb /data xfs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "mount"),
    [
        ("/var/log/x.log", None),
        ("/mnt/nfs/job/r0.log", "/mnt/nfs"),
        ("/mnt/nfs2/job/r0.log", None),
        ("/mnt/lustre", "/mnt/lustre"),
        ("/mnt/with space/r0.log", "/mnt/with space"),
        ("/data/../mnt/lustre/r0.log", "/mnt/lustre"),
        ("/data/r0.log", None),
    ],
)
def test_network_file_systems_are_known_by_their_mount(path: str, mount: str | None) -> None:
    assert Mounts(TABLE).remote(path) == mount


def test_a_link_into_a_network_mount_is_remote(tmp_path: Path) -> None:
    (tmp_path / "logs").symlink_to("/mnt/nfs/job")
    (tmp_path / "again").symlink_to("logs")
    (tmp_path / "loop").symlink_to("loop")
    mounts = Mounts(TABLE)
    assert mounts.remote(tmp_path / "again" / "r0.log") == "/mnt/nfs"
    assert mounts.remote(tmp_path / "loop" / "r0.log") is None


def test_this_machines_own_disk_is_local(tmp_path: Path) -> None:
    assert Mounts().remote(tmp_path) is None


class SlowTail(Tail):
    """A tail whose file system answers when the test lets it."""

    def __init__(self, path: Path, files: OpenFiles) -> None:
        super().__init__(path, None, files=files, history=False)
        self.gate = threading.Event()

    def _look(self) -> tuple[os.stat_result | None, str]:
        self.gate.wait(20)
        return super()._look()


async def test_a_remote_file_reads_as_a_local_one(tmp_path: Path) -> None:
    log = tmp_path / "r0.log"
    log.write_bytes(b"one\n")
    reader = RemoteReader(ManualClock())
    tail = Tail(log, None, files=OpenFiles(), history=False)
    assert (await reader.read_remote(tail, "/mnt/a")).data == b"one\n"
    assert (await reader.read_remote(tail, "/mnt/a")).data == b""
    reader.close()


async def test_a_hung_mount_times_out_and_its_late_answer_is_kept(tmp_path: Path) -> None:
    clock, files = ManualClock(), OpenFiles()
    for name in ("hung.log", "fine.log"):
        (tmp_path / name).write_bytes(name.encode())
    reader = RemoteReader(clock, timeout=5.0)
    hung, fine = SlowTail(tmp_path / "hung.log", files), Tail(tmp_path / "fine.log", None, files=files, history=False)

    events = []
    for _ in range(2):
        waiting = asyncio.ensure_future(reader.read_remote(hung, "/mnt/hung"))
        await clock.advance(0.0)  # let it begin
        await clock.advance(5.0)
        events.append((await waiting).event)
    assert events == ["unreadable", ""]
    assert "/mnt/hung has not answered for 5 s" in str(hung.error)
    assert (await reader.read_remote(fine, "/mnt/fine")).data == b"fine.log"

    hung.gate.set()
    assert (await reader.read_remote(hung, "/mnt/hung")).data == b"hung.log"
    assert hung.error is None
    reader.close()


async def test_other_work_on_a_hung_mount_raises_with_words() -> None:
    clock, gate = ManualClock(), threading.Event()
    reader = RemoteReader(clock, timeout=5.0)
    assert await reader.call("/mnt/a", sorted, [2, 1]) == [1, 2]
    with pytest.raises(ZeroDivisionError):
        await reader.call("/mnt/a", divmod, 1, 0)
    waiting = asyncio.ensure_future(reader.call("/mnt/hung", gate.wait, 20))
    await clock.advance(0.0)
    await clock.advance(5.0)
    with pytest.raises(SourceError, match="check the mount"):
        await waiting
    gate.set()
    reader.close()
