"""The state of GPUs: a scripted module stands for NVIDIA's library, for no machine of ours has a GPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from denpexd.clock import ManualClock
from denpexd.core.cadence import Limits
from denpexd.core.events import Fact
from denpexd.core.facts import holds
from denpexd.core.intake import Intake
from denpexd.core.rule import Catalog, Signal
from denpexd.core.state import JobState
from denpexd.errors import EvidenceUnavailable
from denpexd.evidence import nvml_child
from denpexd.evidence.nvml import Nvml
from denpexd.evidence.procs import Processes, RankProcess

LIBRARY = '''
"""Speaks as nvidia-ml-py does: functions, constants, and errors with a value."""
import json, os, time
from types import SimpleNamespace

NVML_CLOCK_SM = 1
NVML_TEMPERATURE_GPU = 0
NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
NVML_VOLATILE_ECC = 0
NVML_ERROR_NOT_SUPPORTED = 3
NVML_ERROR_DRIVER_NOT_LOADED = 9
NVML_ERROR_GPU_IS_LOST = 15
GPUS = json.load(open(os.path.join(os.path.dirname(__file__), "gpus.json")))

class NVMLError(Exception):
    def __init__(self, value):
        super().__init__(f"error {value}")
        self.value = value

def nvmlInit():
    if GPUS == "hangs":
        time.sleep(60)
    if GPUS is None:
        raise NVMLError(NVML_ERROR_DRIVER_NOT_LOADED)

def nvmlShutdown(): pass
def nvmlDeviceGetCount(): return len(GPUS)
def nvmlDeviceGetHandleByIndex(index): return GPUS[index]

def of(gpu, name):
    if gpu.get("lost"):
        raise NVMLError(NVML_ERROR_GPU_IS_LOST)
    if name not in gpu:
        raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
    return gpu[name]

def nvmlDeviceGetPciInfo(gpu): return SimpleNamespace(busId=of(gpu, "pci").encode())
def nvmlDeviceGetUUID(gpu): return of(gpu, "uuid")
def nvmlDeviceGetUtilizationRates(gpu): return SimpleNamespace(gpu=of(gpu, "used"), memory=1)
def nvmlDeviceGetClockInfo(gpu, kind): return of(gpu, "clock")
def nvmlDeviceGetMaxClockInfo(gpu, kind): return of(gpu, "most")
def nvmlDeviceGetTemperature(gpu, sensor): return of(gpu, "celsius")
def nvmlDeviceGetCurrentClocksThrottleReasons(gpu): return of(gpu, "reasons")
def nvmlDeviceGetTotalEccErrors(gpu, kind, counter): return of(gpu, "ecc")
def nvmlDeviceGetComputeRunningProcesses(gpu): return [SimpleNamespace(pid=pid) for pid in of(gpu, "pids")]
'''
WELL = {"pci": "00000000:4F:00.0", "uuid": "GPU-aa", "used": 100, "clock": 1980, "most": 1980, "celsius": 61}
WELL |= {"reasons": 0x4, "ecc": 0, "pids": [100]}  # a power cap is everyday


class Machine:
    def __init__(self, folder: Path) -> None:
        self.folder, self.proc = folder, folder / "proc"
        (folder / "pynvml.py").write_text(LIBRARY)
        for rank in range(2):
            (self.proc / str(100 + rank)).mkdir(parents=True)
            (self.proc / str(100 + rank) / "environ").write_text(f"LOCAL_RANK={rank}")

    def has(self, gpus):
        (self.folder / "gpus.json").write_text(json.dumps(gpus))

    async def says(self, ranks=2, **how):
        nvml = Nvml(Processes(self.proc), ManualClock(50.0), library=str(self.folder), **how)
        here = [RankProcess(r, 100 + r, 1, "n1", r, 2, None, "S", 5, None, 3, (), "job") for r in range(ranks)]
        return await nvml.collect(here)


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def told(events):
    return [(event.name, event.rank) for event in events]


async def test_gpus_that_are_well_are_busy_or_say_nothing(machine):
    machine.has([WELL, {**WELL, "pids": [101], "used": 50}])
    assert told(await machine.says()) == [("gpu_busy", 0)]


async def test_low_clocks_are_told_with_their_reason(machine):
    machine.has([WELL, {**WELL, "pids": [101], "reasons": 0x48, "clock": 345, "celsius": 93, "used": 70}])
    *_, slow = await machine.says()
    assert (slow.name, slow.rank) == ("gpu_throttled", 1)
    assert "345 of 1980 MHz, 93 C: hardware slowdown, too hot (hardware)" in slow.text


async def test_uncorrected_errors_idle_and_lost_gpus(machine):
    machine.has([{**WELL, "ecc": 2, "used": 0}, {"lost": True}])
    assert told(await machine.says()) == [("gpu_ecc", 0), ("gpu_idle", 0), ("gpu_lost", 1)]


async def test_a_rank_s_gpu_is_where_the_library_sees_its_process_else_what_its_environment_says(machine):
    machine.has([{**WELL, "pids": [101]}, {**WELL, "used": 0, "pids": [100]}])
    assert told(await machine.says()) == [("gpu_idle", 0), ("gpu_busy", 1)]
    machine.has([{**WELL, "pids": []}, {**WELL, "used": 0, "pids": []}])
    assert told(await machine.says()) == [("gpu_busy", 0), ("gpu_idle", 1)]


async def test_what_a_gpu_does_not_support_is_left_out(machine):
    machine.has([{"pci": "00000000:4F:00.0", "pids": [100], "used": 0}, {}])
    assert told(await machine.says()) == [("gpu_idle", 0)]


async def test_no_driver_is_a_gap_that_is_told(machine):
    machine.has(None)
    with pytest.raises(EvidenceUnavailable, match="no NVIDIA driver answers") as gap:
        await machine.says()
    assert "nvidia-smi -q" in gap.value.how


async def test_no_library_is_a_gap_that_is_told(machine):
    (machine.folder / "pynvml.py").write_text("raise ImportError")
    with pytest.raises(EvidenceUnavailable, match="nvidia-ml-py is not installed") as gap:
        await machine.says()
    assert "denpexd[gpu]" in gap.value.how
    assert "nvidia-smi -q" in gap.value.how


async def test_a_driver_that_does_not_answer_is_given_up(machine):
    machine.has("hangs")
    with pytest.raises(EvidenceUnavailable, match="a GPU may be lost"):
        await machine.says(seconds=0.5)


async def test_a_library_that_crashes_is_a_gap(machine):
    (machine.folder / "pynvml.py").write_text("import os; os.abort()")
    with pytest.raises(EvidenceUnavailable, match="ended without an answer"):
        await machine.says()


async def test_without_ranks_nobody_is_asked(machine):
    assert await machine.says(ranks=0) == []


def test_this_machine_s_own_library_if_it_has_one():
    done = subprocess.run(
        [sys.executable, nvml_child.__file__], capture_output=True, text=True, timeout=250, check=True
    )
    assert {"error", "gpus"} & json.loads(done.stdout).keys()


# --- the facts ------------------------------------------------------------------------------------------------------


def who(job, fact, now=100.0):
    signal = Signal("own.x", "fact", "because", fact=fact)
    return [r for r, s in sorted(job.ranks.items()) if holds(job, s, signal, now, 3600.0, Limits())]


def world(*names):
    job = JobState("job", 0.0, world_size=len(names))
    intake = Intake(Catalog({}, {}), job)
    for rank, name in enumerate(names):
        intake.fact(Fact(50.0, rank, name, source="nvml", text=name))
    return job, intake


def test_an_idle_gpu_is_odd_only_among_busy_ones():
    assert who(world("gpu_idle", "gpu_busy", "gpu_busy")[0], "gpu_idle") == [0]
    assert who(world("gpu_idle", "gpu_idle", "gpu_busy")[0], "gpu_idle") == []
    assert who(world("gpu_idle", "gpu_busy")[0], "gpu_idle") == []


def test_the_later_of_two_looks_counts_and_an_old_one_does_not():
    job, intake = world("gpu_idle", "gpu_busy", "gpu_busy")
    assert who(job, "gpu_idle", now=400.0) == []
    intake.fact(Fact(60.0, 0, "gpu_busy", source="nvml", text="busy"))
    assert who(job, "gpu_idle") == []


def test_low_clocks_count_also_while_training_goes_on_a_lost_gpu_does_not():
    job, _ = world("gpu_throttled", "gpu_lost")
    assert (who(job, "gpu_throttled"), who(job, "gpu_lost")) == ([0], [1])
    for state in job.ranks.values():
        state.moved_t = 90.0
    assert (who(job, "gpu_throttled"), who(job, "gpu_lost")) == ([0], [])
    assert who(job, "gpu_throttled", now=500.0) == []
