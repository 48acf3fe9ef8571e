"""The state of the ranks' GPUs as NVIDIA's library tells it: utilisation, clocks, why they are low, memory errors.

Asked at an incident only, in a child that is given up after a few seconds: a call about a GPU that has fallen off its
bus may never return. No GPU, no driver or no library is a gap that is told, never an error.
"""

import asyncio
import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from denpexd.clock import Clock
from denpexd.core.events import Event, Fact
from denpexd.errors import EvidenceUnavailable
from denpexd.evidence.places import VISIBLE, Gpu, gpu_of
from denpexd.evidence.procs import Processes, RankProcess

log = logging.getLogger(__name__)

BY_HAND = "look by hand: nvidia-smi -q -d PERFORMANCE,CLOCK,ECC,UTILIZATION"
_CHILD = Path(__file__).with_name("nvml_child.py")
IDLE, BUSY = 5, 90  # percent of use
_SECONDS, _REAP_SECONDS, _LIMIT = 10.0, 2.0, 1 << 20
_WHY_SLOW = {
    0x08: "hardware slowdown",
    0x20: "too hot (software)",
    0x40: "too hot (hardware)",
    0x80: "power brake",
}


class Nvml:
    """`library`: a folder to look for the library in, beside where our Python does."""

    def __init__(self, processes: Processes, clock: Clock, *, library: str = "", seconds: float = _SECONDS) -> None:
        self._processes, self._clock, self._library, self._seconds = processes, clock, library, seconds

    async def plan(self, here: Sequence[RankProcess]) -> list[str]:
        """One question about all GPUs."""
        return [f"NVIDIA's library about the GPUs of {len(here)} ranks"] if here else []

    async def collect(self, here: Sequence[RankProcess]) -> list[Event]:
        """Facts about these ranks' GPUs; EvidenceUnavailable: why there are none."""
        if not here:
            return []
        answer = await self._ask()
        if answer.get("error") == "library":
            raise EvidenceUnavailable(
                "the state of the GPUs is not known: nvidia-ml-py is not installed",
                f"pip install 'denpexd[gpu]', or {BY_HAND}",
            )
        if "gpus" not in answer:
            raise EvidenceUnavailable(
                f"the state of the GPUs is not known: no NVIDIA driver answers ({answer.get('text', '')})",
                f"give denpexd's container the utility capability of the driver, or {BY_HAND}",
            )
        gpus = [one for one in answer["gpus"] if isinstance(one, dict)]
        owners = await asyncio.to_thread(self._owners, here, gpus)
        now = self._clock.now()
        return [fact for rank, about in sorted(owners.items()) for fact in _facts(now, rank, about)]

    async def _ask(self) -> dict[str, Any]:
        env = {"PATH": os.defpath, "LC_ALL": "C.UTF-8"} | ({"PYTHONPATH": self._library} if self._library else {})
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, str(_CHILD)),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=env,
            cwd="/",
            start_new_session=True,
            limit=_LIMIT,
        )
        try:
            async with asyncio.timeout(self._seconds):
                assert child.stdout is not None
                answer = json.loads(await child.stdout.readline())
        except TimeoutError:
            raise EvidenceUnavailable(
                f"the driver did not tell the state of the GPUs within {self._seconds:g} s",
                f"a GPU may be lost; {BY_HAND}",
            ) from None
        except ValueError:
            answer = {"error": "driver", "text": "the library ended without an answer"}
        finally:
            await _end(child)
        return answer if isinstance(answer, dict) else {}

    def _owners(self, here: Sequence[RankProcess], gpus: Sequence[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
        """The GPU of each rank: the one on which NVML sees its process, else what its environment says."""
        found: dict[int, Mapping[str, Any]] = {}
        table = [Gpu(int(one["index"]), str(one.get("pci", "")), str(one.get("uuid", ""))) for one in gpus]
        for process in here:
            seen = [one for one in gpus if process.pid in one.get("pids", ())]
            if len(seen) == 1:
                found[process.rank] = seen[0]
                continue
            chosen = gpu_of(self._processes.environ(process, VISIBLE), process.local_rank, table)
            if chosen is not None:
                found[process.rank] = next(one for one in gpus if one["index"] == chosen.index)
        return found


async def _end(child: asyncio.subprocess.Process) -> None:
    """Kill it; one that hangs in the driver cannot be, and is not waited for."""
    if child.returncode is None:
        child.kill()
    try:
        async with asyncio.timeout(_REAP_SECONDS):
            await child.wait()
    except TimeoutError:
        log.warning("the child that asks NVML (pid %d) hangs in the driver", child.pid)


def _facts(t: float, rank: int, gpu: Mapping[str, Any]) -> list[Fact]:
    """What of its state a rule may want to know."""
    name = f"GPU {gpu.get('index')} ({gpu.get('pci', 'address not told')})"
    if gpu.get("lost"):
        return [Fact(t, rank, "gpu_lost", source="nvml", text=f"{name} is lost (NVML)")]
    found = []
    reasons = int(gpu.get("reasons", 0))
    why = ", ".join(word for bit, word in _WHY_SLOW.items() if reasons & bit)
    clocks = f"{gpu.get('clock', '?')} of {gpu.get('most', '?')} MHz, {gpu.get('celsius', '?')} C"
    if why:
        found.append(Fact(t, rank, "gpu_throttled", source="nvml", text=f"{name} runs at {clocks}: {why} (NVML)"))
    if gpu.get("ecc"):
        text = f"{name} counts {gpu['ecc']} uncorrected memory errors since its driver was loaded (NVML)"
        found.append(Fact(t, rank, "gpu_ecc", source="nvml", text=text))
    used = gpu.get("used")
    if used is not None and (used <= IDLE or used >= BUSY):
        text = f"{name} is {used} % used at {clocks} (NVML)"
        found.append(Fact(t, rank, "gpu_idle" if used <= IDLE else "gpu_busy", source="nvml", text=text))
    return found
