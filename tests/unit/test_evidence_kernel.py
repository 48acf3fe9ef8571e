"""The kernel's messages: from its buffer, the journal or a file, and whose rank they are about."""

import asyncio
import os
import re
from pathlib import Path

import pytest

from denpexd.catalog.load import load, shipped_rules
from denpexd.clock import ManualClock, SystemClock
from denpexd.core.cadence import Limits
from denpexd.core.events import UNKNOWN_RANK, Exit, Fact, Joined
from denpexd.evidence.kernel import Journal, KernelFile, Kmsg, open_kernel
from denpexd.evidence.places import Gpu, Places, gpu_of, gpus
from denpexd.evidence.procs import Processes, RankProcess
from denpexd.evidence.resources import Resources
from denpexd.ingest.discover import Found
from denpexd.ingest.tail import TailRead
from denpexd.node_feed import NodeFeed
from denpexd.pipeline import Pipeline
from denpexd.reload import make_scanner

CATALOG, _ = load([shipped_rules()])
SCANNER = make_scanner(CATALOG)
XID = "NVRM: Xid (PCI:0000:4f:00): 79, pid=17742, name=python, GPU has fallen off the bus."
STAMP = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z n1 kernel: "


@pytest.fixture
def clock():
    return ManualClock(100.0)


# --- sources --------------------------------------------------------------------------------------------------------


@pytest.fixture
def kmsg(tmp_path):
    """A named pipe stands for the kernel's buffer: reads do not wait; it gives several records at once."""
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    return path


async def test_records_of_the_kernel_become_lines_as_syslog_writes_them(kmsg, clock):
    source = Kmsg(kmsg, "n1", clock)
    writer = os.open(kmsg, os.O_WRONLY)
    assert await source.take() == []
    os.write(writer, f"3,1289,5140900,-;{XID}\n SUBSYSTEM=pci\n DEVICE=+pci:0000:4f:00.0\n".encode())
    os.write(writer, b"30,1290,5140901,-;a program wrote NVRM: Xid (PCI:0000:4f:00): 79\n")
    os.write(writer, b"6,1291,5140902,c;mce: [Hardware Error]: CPU 12: bad \\xff; still\n")
    one, two = await source.take()
    assert re.sub(STAMP, "", one) == XID
    assert re.sub(STAMP, "", two) == "mce: [Hardware Error]: CPU 12: bad \\xff; still"
    os.close(writer)
    source.close()
    source.close()
    assert await source.take() == []


@pytest.mark.parametrize(
    "record", [b"", b"\n", b";;;\n", b"x,1,2,-;text\n", b"99999999999999999999,1,2,-;t\n", b"3,1;t\n"]
)
async def test_what_is_no_record_is_left_out(kmsg, clock, record):
    source = Kmsg(kmsg, "n1", clock)
    writer = os.open(kmsg, os.O_WRONLY)
    os.write(writer, record)
    assert await source.take() == []
    os.close(writer)
    source.close()


async def test_this_node_s_own_buffer_starts_with_what_comes(clock):
    try:
        source = Kmsg(Path("/dev/kmsg"), "n1", clock)
    except OSError as error:
        pytest.skip(f"/dev/kmsg: {error.strerror}")
    assert len(await source.take()) < 100  # not what was said since the boot
    source.close()


async def test_a_file_is_read_from_its_end_on_across_rotation_and_truncation(tmp_path):
    path = tmp_path / "kern.log"
    path.write_text("old\n")
    source = KernelFile(path)
    assert await source.take() == []
    with path.open("a") as handle:
        handle.write("one\ntw")
    assert await source.take() == ["one"]
    with path.open("a") as handle:
        handle.write("o\n")
    assert await source.take() == ["two"]
    path.rename(tmp_path / "kern.log.1")
    assert await source.take() == []
    path.write_text("three\n")
    assert await source.take() == ["three"]
    path.write_text("4\n")
    assert await source.take() == ["4"]


async def test_a_file_that_comes_later_is_all_news_and_its_absence_is_said_once(tmp_path, caplog):
    source = KernelFile(tmp_path / "kern.log")
    assert await source.take() == await source.take() == []
    assert len(caplog.records) == 1
    (tmp_path / "kern.log").write_text("one\n")
    assert await source.take() == ["one"]


async def journal(tmp_path, script, lines):
    path = tmp_path / "journalctl"
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o755)
    clock = SystemClock()
    source, found = Journal(str(path), "n1", clock), []
    for _ in range(3000):
        found += await source.take()
        if len(found) >= lines:
            break
        await clock.sleep(0.02)
    source.close()
    await asyncio.gather(source._task, return_exceptions=True)
    return found


async def test_entries_of_the_journal_keep_their_time(tmp_path):
    script = """
[ "$*" = "-k -f -n 0 -o json --no-pager" ] || exit 3
echo '{"MESSAGE":"NVRM: Xid","__REALTIME_TIMESTAMP":"1700000000123456","PRIORITY":"3"}'
echo 'no json'; echo '[]'; echo '{"MESSAGE":null}'; echo '{"MESSAGE":[300]}'; echo '{}'
echo '{"MESSAGE":[79,79,77,255],"__REALTIME_TIMESTAMP":"1700000001000000"}'
exec sleep 60
"""
    assert await journal(tmp_path, script, 2) == [
        "2023-11-14T22:13:20.123Z n1 kernel: NVRM: Xid",
        "2023-11-14T22:13:21.000Z n1 kernel: OOM\ufffd",
    ]


async def test_a_journalctl_that_may_not_read_is_said_with_what_would_help(tmp_path, caplog):
    assert await journal(tmp_path, "exit 1", 0) == []
    clock = SystemClock()
    source = Journal(str(tmp_path / "journalctl"), "n1", clock)
    await source.take()
    for _ in range(3000):
        if "systemd-journal" in caplog.text:
            break
        await clock.sleep(0.02)
    assert "journalctl ended with code 1" in caplog.text
    source.close()
    await asyncio.gather(source._task, return_exceptions=True)


def test_what_is_chosen(tmp_path, clock, monkeypatch, caplog):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert open_kernel("off", "n1", clock) is None
    assert isinstance(open_kernel(tmp_path / "kern.log", "n1", clock), KernelFile)
    with caplog.at_level("INFO"):
        assert open_kernel("auto", "n1", clock, tmp_path / "none") is None
    assert "CAP_SYSLOG" in caplog.text
    (tmp_path / "journalctl").write_text("#!/bin/sh\n")
    (tmp_path / "journalctl").chmod(0o755)
    assert isinstance(open_kernel("auto", "n1", clock, tmp_path / "none"), Journal)


# --- where ranks run ------------------------------------------------------------------------------------------------

TABLE = [Gpu(0, "0000:0a:00.0", "GPU-aaaa"), Gpu(1, "0000:4f:00.0", "GPU-bbbb"), Gpu(2, "0000:b3:00.0", "GPU-bbcc")]


@pytest.mark.parametrize(
    ("environ", "local", "index"),
    [
        ({}, 1, 1),
        ({}, None, None),
        ({}, 7, None),
        ({"CUDA_VISIBLE_DEVICES": "2"}, 0, 2),
        ({"CUDA_VISIBLE_DEVICES": "2"}, 5, 2),
        ({"CUDA_VISIBLE_DEVICES": "2,0"}, 1, 0),
        ({"CUDA_VISIBLE_DEVICES": "GPU-aa"}, 3, 0),
        ({"CUDA_VISIBLE_DEVICES": "GPU-bb"}, 0, None),
        ({"CUDA_VISIBLE_DEVICES": "MIG-1/2/3"}, 0, None),
        ({"CUDA_VISIBLE_DEVICES": "-1"}, 0, None),
        ({"CUDA_VISIBLE_DEVICES": "9"}, 0, None),
        ({"NVIDIA_VISIBLE_DEVICES": "GPU-bbcc"}, 0, 2),
        ({"NVIDIA_VISIBLE_DEVICES": "all"}, 2, 2),
    ],
)
def test_the_gpu_of_a_rank(environ, local, index):
    found = gpu_of(environ, local, TABLE)
    assert (found.index if found else None) == index


def node(tmp_path, *, namespace="pid:[4026532999]", cgroup="0::/kubepods.slice/pod1/c1"):
    proc = tmp_path / "proc"
    for number, bus in enumerate(["0000:4F:00.0", "0000:0a:00.0"]):
        folder = proc / "driver/nvidia/gpus" / bus
        folder.mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t NVIDIA H100\nGPU UUID: \t GPU-{number}\n")
    (proc / "self/ns").mkdir(parents=True)
    (proc / "self/ns/pid").symlink_to(namespace)
    (proc / "17742").mkdir()
    (proc / "17742/environ").write_text("LOCAL_RANK=1")
    (proc / "17742/cgroup").write_text(cgroup + "\n")
    return proc


def rank(number=1, pid=17742, local=1):
    return RankProcess(number, pid, 1, "n1", local, 2, None, "S", 5, None, 3, (), "job")


def test_the_driver_lists_the_gpus_by_address(tmp_path):
    assert gpus(node(tmp_path)) == [Gpu(0, "0000:0a:00.0", "GPU-1"), Gpu(1, "0000:4f:00.0", "GPU-0")]


def test_nvidia_smi_lists_them_where_the_driver_s_files_are_hidden(tmp_path, monkeypatch):
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho '0, 00000000:0A:00.0, GPU-1'; echo 'no devices'\n")
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus(tmp_path) == [Gpu(0, "00000000:0a:00.0", "GPU-1")]
    smi.write_text("#!/bin/sh\nexit 9\n")
    assert gpus(tmp_path) == []
    smi.unlink()
    assert gpus(tmp_path) == []


def test_a_rank_s_place_is_told_once(tmp_path):
    places = Places(Processes(node(tmp_path)), node(tmp_path / "other"))
    (told,) = places.news({1: rank()}, 5.0)
    assert told.fields == {"cgroup": "/kubepods.slice/pod1/c1", "pci": "0000:4f:00.0", "gpu": "1"}
    assert places.news({1: rank()}, 6.0) == []


@pytest.mark.parametrize(
    "how",
    [{"namespace": "pid:[4026531836]"}, {"cgroup": "0::/"}, {"cgroup": "0::/../c1"}, {"cgroup": "odd"}],
)
def test_a_control_group_counts_only_where_it_tells_more_than_the_process_number(tmp_path, how):
    proc = node(tmp_path, **how)
    (told,) = Places(Processes(proc), proc).news({1: rank()}, 5.0)
    assert "cgroup" not in told.fields


# --- to the job -----------------------------------------------------------------------------------------------------


class Lines:
    name = "/dev/kmsg"

    def __init__(self):
        self.lines = []

    async def take(self):
        found, self.lines = self.lines, []
        return found

    def close(self):
        pass


class Daemon:
    """As far as the feed needs it; jobs are real."""

    def __init__(self, clock):
        self.clock, self.job = clock, "run"
        self.pipeline = Pipeline(CATALOG, SCANNER, start_t=clock.now() - 20, limits=Limits())
        self.changes, self.wants = [], []

    def evidence_job(self):
        return self.job

    async def handle(self, outcome):
        self.changes += [change.verdict for change in outcome.changes]
        self.wants += outcome.wants


class Watched:
    def __init__(self, proc, clock):
        self.source, self.daemon, self.clock = Lines(), Daemon(clock), clock
        self.ranks = {}
        self.feed = NodeFeed(
            self.source, Places(Processes(proc), proc), Resources(proc, proc), self.daemon, lambda: self.ranks
        )
        joined = [Joined(clock.now(), n, "n1", 500 + n, 2) for n in range(2)]
        self.tell(*joined)
        self.train(90, 100)

    def train(self, first, last):
        """A step a second, until now."""
        for t in range(first, last):
            for n in range(2):
                text = f"step {t} loss 2.31\n".encode()
                found = Found(Path(f"/logs/rank{n}.log"), "run", n, None, "stdout", False, "")
                self.daemon.pipeline.feed(found, TailRead(text, (t - first) * len(text)), float(t))
            self.daemon.pipeline.tick(float(t))

    def tell(self, *events):
        outcome = self.daemon.pipeline.evidence("run", list(events))
        self.daemon.changes += [change.verdict for change in outcome.changes]

    async def prints(self, *texts):
        self.source.lines += [f"2026-01-02T03:04:05.000Z n1 kernel: {text}" for text in texts]
        await self.feed.look()

    async def until(self, t):
        while self.clock.now() < t:
            await self.clock.advance(1.0)
            await self.daemon.handle(self.daemon.pipeline.tick(self.clock.now()))

    @property
    def verdicts(self):
        return {(v["failure"], tuple(v["initiating_ranks"])) for v in self.daemon.changes}


@pytest.fixture
def watched(tmp_path, clock):
    return Watched(node(tmp_path), clock)


async def test_an_xid_is_about_the_rank_whose_gpu_it_names(watched):
    watched.ranks = {1: rank()}
    await watched.prints("NVRM: Xid (PCI:0000:4f:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.")
    watched.tell(Exit(watched.clock.now(), 1, None))
    await watched.until(160.0)
    assert {ranks for _, ranks in watched.verdicts} == {(1,)}
    assert any("xid-79" in failure or "fallen" in failure or "bus" in failure for failure, _ in watched.verdicts)


async def test_an_oom_kill_is_about_the_rank_whose_process_it_names(watched):
    await watched.prints("Out of memory: Killed process 501 (python) total-vm:1kB, anon-rss:9kB, oom_score_adj:0")
    watched.tell(Exit(watched.clock.now(), 1, None))
    await watched.until(160.0)
    assert {ranks for _, ranks in watched.verdicts} == {(1,)}


async def test_an_oom_kill_in_a_container_is_found_by_its_control_group(watched):
    watched.ranks = {1: rank()}
    await watched.prints(
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=c1,mems_allowed=0,oom_memcg=/kubepods.slice/pod1,"
        "task_memcg=/kubepods.slice/pod1/c1,task=python,pid=90210,uid=0"
    )
    watched.tell(Exit(watched.clock.now(), 1, None))
    await watched.until(160.0)
    assert {ranks for _, ranks in watched.verdicts} == {(1,)}


async def test_another_process_that_is_killed_is_no_matter_of_the_job(watched):
    await watched.prints("Out of memory: Killed process 777 (chrome) total-vm:1kB, anon-rss:9kB, oom_score_adj:0")
    await watched.until(160.0)
    assert watched.verdicts == set()


async def test_what_the_kernel_chats_is_no_sign_of_life_and_no_progress(watched):
    await watched.prints("usb 1-1: new device", "step 100 loss 2.3", "Traceback (most recent call last):", "epoch 3")
    job = watched.daemon.pipeline.jobs["run"].core.job
    assert UNKNOWN_RANK not in job.ranks or not job.rank(UNKNOWN_RANK).printed
    assert job.moved_t == 99.0


async def test_lines_wait_until_it_is_known_whose_node_this_is(watched):
    watched.daemon.job = None
    await watched.prints(XID.replace("17742", "501"))
    assert watched.verdicts == set()
    watched.daemon.job = "run"
    await watched.prints()
    watched.tell(Exit(watched.clock.now(), 1, None))
    await watched.until(160.0)
    assert {ranks for _, ranks in watched.verdicts} == {(1,)}


def test_where_a_rank_runs_can_be_told_before_it_is_heard_of(watched):
    watched.tell(Fact(1.0, 0, "placed", {"pci": "0000:0a:00.0", "gpu": "x"}, source="process"))
    assert watched.daemon.pipeline.jobs["run"].core.job.rank(0).place == ("0000:0a:00.0", "x")
