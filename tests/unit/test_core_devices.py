"""Whom lines of the kernel are about."""

from dataclasses import replace
from pathlib import Path

import pytest

from denpexd.catalog.load import load
from denpexd.core.cadence import Limits
from denpexd.core.devices import address, belongs, place
from denpexd.core.events import UNKNOWN_RANK, Exit, Hit, Joined, Raised
from denpexd.core.evidence import Evidence
from denpexd.core.intake import Intake
from denpexd.core.machine import xid
from denpexd.core.match import candidate
from denpexd.core.rule import Catalog, Signal
from denpexd.core.state import JobState

TINY, _ = load([Path(__file__).parents[1] / "data" / "tiny"], strict=False)
XID = Signal("kernel.nvidia_xid", "log", "said", role="kernel")
USES = Signal("kernel.nccl_device", "log", "said", role="device")


@pytest.fixture
def job() -> JobState:
    job = JobState("j", 0.0, world_size=4)
    intake = Intake(Catalog({}, {}), job)
    for rank in range(4):
        intake.joined(Joined(0.0, rank, f"node-{rank // 2}", 100 + rank, 4))
    return job


def told(job: JobState, text: str = "NVRM: Xid", rank: int = UNKNOWN_RANK, t: float = 5.0, **fields: str) -> None:
    intake = Intake(Catalog({}, {XID.id: XID, USES.id: USES}), job)
    job.seq += 1
    intake.hit(Hit(t, rank, XID.id, "kern.log", 0, text, fields))


def placed(job: JobState, of: str = "device") -> tuple[int, ...]:
    (line,) = job.devices.lines.values()
    return place(job, line, of)


@pytest.mark.parametrize("text", ["0000:4f:00", "0000:4f:00.0", "00000000:4F:00.0", "4f:00.0", "4f000"])
def test_an_address_has_one_spelling(text: str) -> None:
    assert address(text) == "0000:4f:00"


def test_an_address_in_another_domain() -> None:
    assert address("0008:01:00") == address("801000") == "0008:01:00"
    assert address("gpu0") == "gpu0"


def test_a_process_is_found_by_its_pid(job: JobState) -> None:
    told(job, pid="102", pci="0000:4f:00")
    assert placed(job) == placed(job, "process") == (2,)


def test_a_device_goes_before_the_process_that_happened_to_use_it(job: JobState) -> None:
    job.ranks[3].pci = "0000:4f:00"
    told(job, pid="102", pci="4f:00.0")
    assert placed(job, "device") == (3,)
    assert placed(job, "process") == (2,)


def test_equal_addresses_of_two_nodes_are_told_apart_by_the_host_of_the_line(job: JobState) -> None:
    job.ranks[1].pci = job.ranks[3].pci = "0000:4f:00"
    told(job, "Oct 14 03:00:11 node-1.cluster kernel: [12.3] NVRM: Xid", pci="0000:4f:00")
    assert placed(job) == (3,)


def test_equal_addresses_of_two_nodes_name_nobody_without_a_host(job: JobState) -> None:
    job.ranks[1].pci = job.ranks[3].pci = "0000:4f:00"
    told(job, pci="0000:4f:00")
    assert placed(job) == (UNKNOWN_RANK,)


def test_somebody_elses_process_is_no_matter_of_the_job_but_its_device_may_be(job: JobState) -> None:
    job.ranks[1].pci = "0000:4f:00"
    told(job, pid="990812", name="chrome", pci="0000:4f:00")
    assert placed(job, "process") == ()
    assert placed(job, "device") == (1,)


def test_the_only_rank_that_did_not_complain(job: JobState) -> None:
    told(job, rank=0, pid="27136", name="python", pci="0000:4f:00")
    assert placed(job) == (UNKNOWN_RANK,)
    job.ranks[0].reported = Evidence(0, "log", "f", 0, 9.0, "timed out", "")
    assert placed(job) == (1,)


def test_without_a_process_the_log_in_which_it_stands(job: JobState) -> None:
    told(job, rank=2, pci="0000:4f:00")
    assert placed(job) == (2,)


def test_a_node_is_its_ranks_that_did_not_complain(job: JobState) -> None:
    told(job, "Oct 14 03:00:11 node-1 kernel: watchdog: BUG: soft lockup")
    assert placed(job, "node") == (2, 3)
    job.ranks[3].reported = Evidence(3, "log", "f", 0, 9.0, "timed out", "")
    assert placed(job, "node") == (2,)


def test_an_unknown_node_is_nobody(job: JobState) -> None:
    told(job, "watchdog: BUG: soft lockup")
    assert placed(job, "node") == (UNKNOWN_RANK,)


def test_the_index_of_a_gpu_on_a_known_node(job: JobState) -> None:
    told(job, "Oct 14 03:00:11 node-1 kernel: NVRM: Xid", gpu="1")
    assert placed(job) == (3,)


def test_one_rocm_agent_named_by_every_process_is_one_gpu(job: JobState) -> None:
    for rank in range(4):
        told(job, rank=rank, hsa="5")
    assert {place(job, line, "device") for line in job.devices.lines.values()} == {(3,)}


def test_a_rocm_agent_named_by_one_process_is_that_process(job: JobState) -> None:
    told(job, rank=1, hsa="5")
    assert placed(job) == (1,)


def test_what_another_signal_found_in_the_same_line_counts_too(job: JobState) -> None:
    intake = Intake(Catalog({}, {XID.id: XID, USES.id: replace(USES, role="kernel")}), job)
    intake.hit(Hit(5.0, UNKNOWN_RANK, USES.id, "kern.log", 7, "... from GPU1 GSP", {"gpu": "1"}))
    intake.hit(Hit(5.0, UNKNOWN_RANK, XID.id, "kern.log", 7, "... from GPU1 GSP", {"pid": "102", "pci": "0000:4f:00"}))
    assert {place(job, line, "device") for line in job.devices.lines.values()} == {(2,)}


def test_the_device_is_named_in_the_line_above(job: JobState) -> None:
    job.ranks[1].pci = "0000:b3:00"
    told(job, head="The NVIDIA GPU", pci="0000:b3:00.0")
    told(job, "NVRM: fallen off the bus")
    assert {place(job, line, "device") for line in job.devices.lines.values()} == {(1,)}


def test_who_uses_which_device(job: JobState) -> None:
    belongs(job, Hit(1.0, UNKNOWN_RANK, USES.id, "f", 0, "", {"pid": "103", "rank": "1", "pci": "4f000", "gpu": "1"}))
    belongs(job, Hit(1.0, 1, USES.id, "f", 0, "", {"pci": "5f000"}))
    assert (job.ranks[3].pci, job.ranks[3].gpu) == ("0000:4f:00", 1)
    assert job.ranks[1].pci == "0000:5f:00"
    belongs(job, Hit(1.0, 1, USES.id, "f", 0, "", {"pci": "6f000"}))
    assert job.ranks[1].pci == "0000:5f:00", "the first communicator tells; later ones are of other groups"


def codes(code: str, of: str = "device", unless: str = "") -> Signal:
    return Signal("r.x", "fact", "said", fact="xid", params={"code": code, "of": of, "unless": unless})


def test_codes_and_exceptions_from_them(job: JobState) -> None:
    told(job, xid="94", pid="101")
    told(job, xid="48", pid="101", t=5.1)
    rank = job.ranks[1]
    assert xid(job, rank, codes("94, 95"), 9.0, Limits())
    assert not xid(job, rank, codes("95"), 9.0, Limits())
    assert not xid(job, rank, codes("94", unless="48"), 9.0, Limits())
    assert not xid(job, job.ranks[0], codes("94"), 9.0, Limits())


def test_the_end_of_a_process_is_not_its_fault(job: JobState) -> None:
    told(job, xid="43", pid="101", name="python")
    assert xid(job, job.ranks[1], codes("43", of="process"), 9.0, Limits())
    job.ranks[1].reported = Evidence(1, "log", "f", 0, 4.0, "timed out", "")
    assert not xid(job, job.ranks[1], codes("43", of="process"), 9.0, Limits())


def test_an_index_tells_the_rank_where_only_one_node_can_be_that_large() -> None:
    job = JobState("j", 0.0, world_size=8)
    told(job, gpu="5")
    assert placed(job) == (5,)


def test_an_index_tells_nothing_where_several_nodes_may_have_it() -> None:
    job = JobState("j", 0.0, world_size=8)
    told(job, gpu="3")
    assert placed(job) == (UNKNOWN_RANK,)


def test_a_few_ranks_of_which_no_node_is_known_are_one_node() -> None:
    job = JobState("j", 0.0, world_size=4)
    told(job, "watchdog: BUG: soft lockup", rank=2)
    assert placed(job, "node") == (0, 1, 2, 3)
    job = JobState("j", 0.0, world_size=16)
    told(job, "watchdog: BUG: soft lockup", rank=2)
    assert placed(job, "node") == (UNKNOWN_RANK,)


def test_what_came_after_the_failure_of_another_rank_is_no_cause(job: JobState) -> None:
    told(job, xid="74", pid="101", t=20.0)
    assert xid(job, job.ranks[1], codes("74"), 30.0, Limits())
    Intake(Catalog({}, {}), job).raised(Raised(5.0, 3, "f", 0, "", (("ValueError", "bad sample"),), (), uncaught=True))
    assert not xid(job, job.ranks[1], codes("74"), 30.0, Limits())


def test_a_cuda_error_before_the_line_may_be_its_consequence(job: JobState) -> None:
    told(job, xid="79", pid="101", t=20.0)
    error = ("RuntimeError", "CUDA error: unspecified launch failure")
    Intake(Catalog({}, {}), job).raised(Raised(5.0, 1, "f", 0, "", (error,), (), uncaught=True))
    assert xid(job, job.ranks[1], codes("79"), 30.0, Limits())


def test_a_line_that_names_no_process_is_not_about_its_teller_when_several_ranks_failed(job: JobState) -> None:
    told(job, xid="74", pci="0000:b4:00", rank=0)
    assert placed(job) == (0,)
    error = ("RuntimeError", "CUDA error: uncorrectable NVLink error detected during the execution")
    for rank in range(4):
        Intake(Catalog({}, {}), job).raised(Raised(6.0, rank, "f", 0, "", (error,), (), uncaught=True))
    assert placed(job) == (UNKNOWN_RANK,)


def test_who_was_sent_sigterm_later_did_not_fail_by_itself() -> None:
    job = JobState("j", 0.0, world_size=16)  # of no rank the node or the process is known
    intake = Intake(Catalog({}, {}), job)
    told(job, pid="4711", rank=0)
    intake.exit(Exit(6.0, 5, 1))
    for rank in range(16):
        if rank != 5:
            intake.exit(Exit(9.0, rank, -15))
    assert placed(job) == (5,)


def test_the_rank_that_the_kernel_names_goes_before_those_that_say_the_same() -> None:
    own, told_ = Signal("r.own", "log", "said"), Signal("r.x", "fact", "said", fact="xid", params={"code": "79"})
    job = JobState("j", 0.0, world_size=3)
    intake = Intake(Catalog({}, {own.id: own, XID.id: XID}), job)
    job.rank(2).pid = 102
    for rank in range(3):
        intake.hit(Hit(6.0, rank, own.id, f"{rank}.log", 0, "GPU is lost", {}))
    assert local_ranks(job, own, told_) == (0, 1, 2)
    intake.hit(Hit(5.0, 0, XID.id, "0.log", 0, "NVRM: Xid", {"xid": "79", "pid": "102"}))
    assert local_ranks(job, own, told_) == (2,)


def local_ranks(job: JobState, *signals: Signal) -> tuple[int, ...]:
    rule = replace(TINY.rules["any-error"], signals={s.id: s for s in signals}, correlation=None)
    found = candidate(rule, {s.id: s for s in signals}, job, 9.0, Limits())
    assert found is not None
    return found.initiating
