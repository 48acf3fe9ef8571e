"""What ranks run out of: real files and limits, and a real file system where this user may mount one."""

import os
import resource
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest

from denpexd.core.cadence import Limits
from denpexd.core.events import Exit, Fact, Raised
from denpexd.core.facts import holds
from denpexd.core.intake import Intake
from denpexd.core.rule import Catalog, Signal
from denpexd.core.state import JobState
from denpexd.evidence import resources
from denpexd.evidence.procs import RankProcess
from denpexd.evidence.resources import Resources

MOUNTS = """21 1 8:1 / / rw - ext4 /dev/sda1 rw
22 21 0:30 / /data rw,relatime shared:5 - nfs4 server:/x rw
23 21 8:2 / /data/local rw - xfs /dev/sdb1 rw
24 21 0:31 / /with\\040blank rw - fuse.sshfs host:/ rw
odd line
"""


class Node:
    """One rank, pid 100, as the two file systems of the kernel show it."""

    def __init__(self, folder):
        self.proc, self.cgroups = folder / "proc", folder / "cgroup"
        self.home = self.proc / "100"
        (self.home / "root/dev/shm").mkdir(parents=True)
        (self.home / "fd").mkdir()
        (self.home / "cgroup").write_text("0::/job\n")
        (self.home / "limits").write_text(
            "Limit    Soft Limit  Hard Limit  Units\nMax open files    10    4096    files\n"
        )
        (self.home / "mountinfo").write_text(MOUNTS)
        self.stands("/home/me")
        (self.cgroups / "job").mkdir(parents=True)
        self.kills(0)
        self.used = {}
        self.resources = Resources(self.proc, self.cgroups)

    def stands(self, place):
        (self.home / "cwd").unlink(missing_ok=True)
        (self.home / "cwd").symlink_to(place)

    def kills(self, number):
        (self.cgroups / "job/memory.events").write_text(f"low 0\nhigh 3\nmax 9\noom {number}\noom_kill {number}\n")

    def opens(self, number):
        for descriptor in range(number):
            (self.home / f"fd/{descriptor}").touch()

    def statvfs(self, place):
        used = self.used.get("disk" if str(place).endswith("cwd") else "shm", 0)
        return SimpleNamespace(f_blocks=1000, f_bavail=1000 - used, f_files=0, f_favail=0)

    def look(self, t, ranks=(3,)):
        return self.resources.news(
            {rank: RankProcess(rank, 100, 1, "n1", 0, 4, None, "S", 5, None, 3, (), "job") for rank in ranks}, t
        )


@pytest.fixture
def node(tmp_path, monkeypatch):
    node = Node(tmp_path)
    monkeypatch.setattr(resources.os, "statvfs", node.statvfs)
    return node


def told(facts):
    return [(fact.name, fact.rank, fact.fields["what"]) for fact in facts]


def test_full_is_told_when_it_begins_and_when_it_ends(node):
    assert node.look(1.0) == []
    node.used = {"shm": 970, "disk": 300}
    (full,) = node.look(2.0)
    assert (told([full]), full.text) == ([("exhausted", 3, "shm")], "/dev/shm was 97% used")
    assert node.look(3.0) == []
    node.used = {"shm": 960, "disk": 999}
    assert told(node.look(4.0)) == [("exhausted", 3, "disk")]
    node.used = {"shm": 940, "disk": 999}
    assert told(node.look(5.0)) == [("eased", 3, "shm")]


@pytest.mark.parametrize(
    ("place", "asked"),
    [
        ("/home/me", True),
        ("/data/run", False),
        ("/data/local/run", True),
        ("/with blank/x", False),
        ("/database", True),
    ],
)
def test_file_systems_of_other_machines_are_left_alone(node, place, asked):
    node.stands(place)
    node.used = {"disk": 999}
    assert told(node.look(1.0)) == ([("exhausted", 3, "disk")] if asked else [])


def test_a_working_directory_of_an_unknown_file_system_is_left_alone(node):
    (node.home / "mountinfo").write_text("")
    node.used = {"disk": 999}
    assert node.look(1.0) == []


def test_open_files_are_counted_now_and_then(node):
    node.opens(10)
    assert told(node.look(1.0)) == [("exhausted", 3, "files")]
    for path in (node.home / "fd").iterdir():
        path.unlink()
    assert [told(node.look(float(t))) for t in range(2, 12)][-1] == [("eased", 3, "files")]


def test_who_goes_as_its_group_counts_an_oom_kill_was_killed_for_its_memory(node):
    node.look(1.0)
    node.kills(1)
    node.look(2.0)
    (fact,) = node.look(3.0, ranks=())
    assert (fact.name, fact.rank) == ("oom_killed", 3)
    assert fact.text.startswith("Memory cgroup")


def several(node, *scores):
    """More ranks in the control group of rank 3."""
    found = []
    for rank, score in enumerate(scores):
        home = node.proc / str(200 + rank)
        home.mkdir()
        (home / "cgroup").write_text("0::/job\n")
        (home / "oom_score").write_text(f"{score}\n")
        found.append(RankProcess(rank, 200 + rank, 7, "n", rank, 4, None, "S", 5, None, 1, ()))
    return tuple(found)


def look(node, t, ranks=()):
    return node.resources.news({process.rank: process for process in ranks}, t)


def test_of_ranks_in_one_group_that_go_together_only_as_many_were_killed_as_it_counts(node):
    ranks = several(node, 700, 950, 800)
    look(node, 1.0, ranks)
    node.kills(1)
    (node.cgroups / "job/memory.max").write_text(f"{64 << 30}\n")
    (node.cgroups / "job/memory.peak").write_text(f"{64 << 30}\n")
    (fact,) = look(node, 2.0)  # the launcher has ended the others in the same second
    assert (fact.name, fact.rank) == ("oom_killed", 1)
    assert fact.text.endswith("oom_score 950; limit 64.0 GiB, most used 64.0 GiB)")


def test_who_goes_later_because_of_a_killed_rank_was_not_killed(node):
    ranks = several(node, 700, 950)
    look(node, 1.0, ranks)
    node.kills(1)
    assert [fact.rank for fact in look(node, 2.0, ranks[:1])] == [1]
    assert look(node, 3.0) == []


def test_a_group_that_is_killed_as_a_whole_takes_all_its_ranks(node):
    ranks = several(node, 700, 950)
    look(node, 1.0, ranks)
    (node.cgroups / "job/memory.events").write_text("oom 1\noom_kill 1\noom_group_kill 1\n")
    assert sorted(fact.rank for fact in look(node, 2.0)) == [0, 1]


def test_the_kill_may_be_seen_in_the_same_look_as_the_end(node):
    node.look(1.0)
    node.kills(1)
    assert [fact.name for fact in node.look(2.0, ranks=())] == ["oom_killed"]


def test_old_kills_and_ends_without_one_say_nothing(node):
    node.kills(5)
    node.look(1.0)
    assert node.look(2.0, ranks=()) == []
    node.look(3.0)
    node.kills(6)
    node.look(4.0)
    assert node.look(60.0, ranks=()) == []


def test_version_1_counts_in_another_file(node):
    (node.home / "cgroup").write_text("5:cpu:/x\n4:memory:/slurm/job_1\n0::/\n")
    folder = node.cgroups / "memory/slurm/job_1"
    folder.mkdir(parents=True)
    (folder / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    node.look(1.0)
    (folder / "memory.oom_control").write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")
    assert [fact.name for fact in node.look(2.0, ranks=())] == ["oom_killed"]


@pytest.mark.parametrize("gone", ["cgroup", "limits", "mountinfo", "cwd"])
def test_what_may_not_be_read_is_left_out(node, gone):
    (node.home / gone).unlink()
    node.look(1.0)
    assert node.look(2.0, ranks=()) == []


def test_a_full_file_system_is_seen(tmp_path):
    node = Node(tmp_path)
    shm = node.home / "root/dev/shm"
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(shm)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this user may not mount")
    try:
        assert ("exhausted", 3, "shm") not in told(node.look(1.0))
        with (shm / "block").open("wb") as handle:
            handle.write(b"x" * (1020 << 10))
        assert ("exhausted", 3, "shm") in told(node.look(2.0))
        (shm / "block").unlink()
        assert ("eased", 3, "shm") in told(node.look(3.0))
    finally:
        subprocess.run(["umount", str(shm)], check=True)


def test_the_limit_of_a_real_process():
    share = Resources()._files(str(os.getpid()))
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert share == pytest.approx(len(list(Path("/proc/self/fd").iterdir())) / soft, rel=0.2)


# --- the fact -------------------------------------------------------------------------------------------------------


class World:
    def __init__(self):
        self.job = JobState("job", 0.0, world_size=2)
        self.intake = Intake(Catalog({}, {}), self.job)

    def full(self, t, what="shm"):
        self.intake.fact(Fact(t, 1, "exhausted", {"what": what}, source="process", text="full"))

    def eased(self, t, what="shm"):
        self.intake.fact(Fact(t, 1, "eased", {"what": what}, source="process"))

    def fails(self, t):
        self.intake.raised(Raised(t, 1, "log", 0, "ValueError: x", (("ValueError", "x"),), (), uncaught=True))

    def holds(self, what="shm"):
        signal = Signal("own.x", "fact", "because", fact="exhausted", params={"what": what})
        return bool(holds(self.job, self.job.rank(1), signal, 100.0, 3600.0, Limits()))


def test_full_alone_is_no_reason_and_only_what_was_full_is_one():
    world = World()
    world.full(10.0)
    assert not world.holds()
    world.fails(20.0)
    assert world.holds()
    assert not world.holds("disk")


def test_what_was_full_long_before_is_no_reason_what_a_dying_process_frees_is():
    early, just = World(), World()
    for world, eased in ((early, 12.0), (just, 21.0)):
        world.full(10.0)
        world.fails(30.0)
        world.eased(eased)
    assert not early.holds()
    assert just.holds()


def test_it_may_be_noticed_a_little_after_the_end():
    world = World()
    world.intake.exit(Exit(20.0, 1, -7))
    world.full(22.0)
    assert world.holds()


def test_what_is_told_again_has_been_full_since_it_was_told_first():
    world = World()
    world.full(10.0)
    world.fails(20.0)
    world.full(50.0)
    assert world.holds()
    world.eased(60.0)
    world.full(90.0)
    assert not world.holds()
