"""Links below a watched folder: whose are followed, and where to. Run as root, with files of other users."""

import os
import socket
from pathlib import Path

import pytest

from denpexd.ingest.discover import Discovery
from denpexd.ingest.links import LinkRefused, Links
from denpexd.ingest.open_files import OpenFiles
from denpexd.ingest.tail import Tail, new_buffer

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to other users")
JOB_USER, VICTIM = 10_001, 10_002


@pytest.fixture
def watched(tmp_path: Path) -> Path:
    folder = tmp_path / "watched"
    folder.mkdir()
    return folder


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file of somebody else that the job's user may not read, and the daemon may."""
    (tmp_path / "home").mkdir()
    file = tmp_path / "home" / "keys.log"
    file.write_text("private\n")
    return file


def link(at: Path, to: Path | str, uid: int) -> Path:
    at.symlink_to(to)
    os.chown(at, uid, uid, follow_symlinks=False)
    return at


def content(links: Links, path: Path) -> str:
    fd, info = links.open(path)
    with os.fdopen(fd) as file:
        assert os.fstat(fd).st_ino == info.st_ino
        return file.read()


@needs_root
class TestWhose:
    def test_a_link_to_the_file_of_somebody_else_is_refused_and_says_how_to_allow_it(
        self, watched: Path, secret: Path
    ) -> None:
        os.chown(secret, VICTIM, VICTIM)
        path = link(watched / "rank0.log", secret, JOB_USER)
        with pytest.raises(LinkRefused, match=rf"link of uid {JOB_USER} to a file of uid {VICTIM}.*ingest\.links"):
            Links([str(watched)]).open(path)

    def test_so_is_one_to_a_file_of_root(self, watched: Path) -> None:
        path = link(watched / "rank0.log", "/etc/shadow", JOB_USER)
        with pytest.raises(LinkRefused):
            Links([str(watched)]).open(path)

    def test_and_a_folder_behind_a_link(self, watched: Path, secret: Path) -> None:
        os.chown(secret, VICTIM, VICTIM)
        link(watched / "run", secret.parent, JOB_USER)
        with pytest.raises(LinkRefused):
            Links([str(watched)]).open(watched / "run" / "keys.log")

    def test_and_a_chain_that_begins_with_a_link_of_the_owner(self, watched: Path, secret: Path) -> None:
        os.chown(secret, VICTIM, VICTIM)
        middle = link(watched / "middle", secret, VICTIM)
        with pytest.raises(LinkRefused):
            Links([str(watched)]).open(link(watched / "rank0.log", middle, JOB_USER))

    def test_the_owner_of_the_file_may_link_to_it(self, watched: Path, secret: Path) -> None:
        os.chown(secret, JOB_USER, JOB_USER)
        assert content(Links([str(watched)]), link(watched / "rank0.log", secret, JOB_USER)) == "private\n"

    def test_root_may_link_anywhere_as_kubelet_does(self, watched: Path, secret: Path) -> None:
        os.chown(secret, VICTIM, VICTIM)
        assert content(Links([str(watched)]), link(watched / "pod.log", secret, 0)) == "private\n"

    def test_anybody_may_link_into_watched_and_allowed_folders(self, watched: Path, secret: Path) -> None:
        os.chown(secret, VICTIM, VICTIM)
        path = link(watched / "rank0.log", secret, JOB_USER)
        assert content(Links([str(watched)], [secret.parent]), path) == "private\n"
        assert content(Links([str(watched), str(secret.parent)]), path) == "private\n"

    def test_nothing_is_looked_for_behind_the_link_of_a_stranger(self, watched: Path, secret: Path) -> None:
        (watched / "rank0.log").write_text("step 1\n")
        os.chown(secret.parent, VICTIM, VICTIM)
        link(watched / "theirs", secret.parent, JOB_USER)
        link(watched / "all", "/", JOB_USER)
        for paths in ([str(watched)], [f"{watched}/**/*.log"], [f"{watched}/*/keys.log", str(watched)]):
            assert [found.path.name for found in Discovery(paths, None).scan()] == ["rank0.log"]
        strange = Discovery([str(watched)], None)
        strange.scan()
        assert sorted(error.partition(":")[0] for error in strange.errors) == [f"{watched}/all", f"{watched}/theirs"]
        assert "name the folder in ingest.links" in strange.errors[0]
        allowed = Discovery([str(watched)], None, links=[secret.parent]).scan()
        assert {found.path.name for found in allowed} == {"rank0.log", "keys.log"}

    def test_equal_owners_that_the_namespace_does_not_know_are_not_the_same_user(
        self, watched: Path, secret: Path
    ) -> None:
        unknown = int(Path("/proc/sys/fs/overflowuid").read_text())
        os.chown(secret, unknown, unknown)
        with pytest.raises(LinkRefused):
            Links([str(watched)]).open(link(watched / "rank0.log", secret, unknown))

    def test_a_tail_says_it_once_and_reads_on_when_the_link_is_gone(self, watched: Path, secret: Path) -> None:
        os.chown(secret, VICTIM, VICTIM)
        path = link(watched / "rank0.log", secret, JOB_USER)
        tail, buffer = Tail(path, None, files=OpenFiles(links=Links([str(watched)])), history=False), new_buffer()
        first, second = tail.read(buffer, 0.0), tail.read(buffer, 2.0)
        assert (first.event, second.event) == ("unreadable", "")
        assert "not followed" in (tail.error or "")
        assert not first.data + second.data
        path.unlink()
        path.write_text("step 1\n")
        assert tail.read(buffer, 4.0).data == b"step 1\n"


def test_what_the_operator_wrote_may_be_links(tmp_path: Path, watched: Path) -> None:
    (watched / "rank0.log").write_text("step 1\n")
    (tmp_path / "logs").symlink_to(watched)
    for given in (f"{tmp_path}/logs", f"{tmp_path}/logs/rank{{rank}}.log", f"{tmp_path}/logs/*.log"):
        assert content(Links([given]), tmp_path / "logs" / "rank0.log") == "step 1\n"


def test_links_that_lead_up_down_and_nowhere(watched: Path) -> None:
    (watched / "a" / "b").mkdir(parents=True)
    (watched / "rank0.log").write_text("step 1\n")
    (watched / "a" / "b" / "up.log").symlink_to("../../rank0.log")
    (watched / "loop").symlink_to("loop")
    (watched / "nowhere").symlink_to("gone.log")
    (watched / "folder.log").symlink_to("a")
    links = Links([str(watched)])
    assert content(links, watched / "a" / "b" / "up.log") == "step 1\n"
    for name in ("loop", "nowhere", "folder.log", "none.log"):
        with pytest.raises(OSError, match=r"Too many|No such|[Ii]s a directory|not a regular"):
            links.open(watched / name)


def test_what_is_no_regular_file_is_refused_at_once(watched: Path) -> None:
    os.mkfifo(watched / "fifo.log")
    (watched / "zero.log").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(watched / "socket.log"))
        for name in ("fifo.log", "zero.log", "socket.log", "."):
            with pytest.raises(OSError, match=r"not a regular|[Ii]s a directory"):
                Links([str(watched)]).open(watched / name)


def test_no_descriptor_is_left_open(watched: Path) -> None:
    (watched / "rank0.log").write_text("x")
    (watched / "l").symlink_to("rank0.log")
    links = Links([str(watched)])
    before = len(list(Path("/proc/self/fd").iterdir()))
    for name in ("rank0.log", "l", "none", "."):
        try:
            os.close(links.open(watched / name)[0])
        except OSError:
            pass
    assert len(list(Path("/proc/self/fd").iterdir())) == before
