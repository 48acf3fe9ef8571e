"""Where the ranks of this node run: GPU and control group, which lines of the kernel name instead of a rank.

A GPU is derived from CUDA_VISIBLE_DEVICES and the local rank, as launchers and programs do by convention; what the
job itself prints about its devices goes before it. Reads files of /proc: keep it off the event loop.
"""

import logging
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from denpexd.core.events import Fact
from denpexd.evidence.procs import Processes, RankProcess

log = logging.getLogger(__name__)

_INIT_NAMESPACE = "pid:[4026531836]"  # fixed in the kernel: process numbers are those that the kernel prints
VISIBLE = ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES")
_MOST_GPUS = 64
_SMI_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of this node: `index` as nvidia-smi counts (by PCI address), `pci` as `0000:4f:00.0`."""

    index: int
    pci: str
    uuid: str


class Places:
    """Tells of each process once where it runs."""

    def __init__(self, processes: Processes, proc: Path = Path("/proc")) -> None:
        self._processes, self._proc = processes, proc
        self._told: set[tuple[int, int]] = set()
        self._gpus: list[Gpu] | None = None

    def news(self, ranks: Mapping[int, RankProcess], t: float) -> list[Fact]:
        """Facts `placed` about ranks that are new since the last call."""
        new = [p for _, p in sorted(ranks.items()) if (p.pid, p.start) not in self._told]
        self._told = {(p.pid, p.start) for p in ranks.values()}
        found = []
        for process in new:
            fields = self._fields(process)
            if fields:
                text = ", ".join(f"{name} {value}" for name, value in fields.items())
                found.append(Fact(t, process.rank, "placed", fields, source="process", text=text))
        return found

    def _fields(self, process: RankProcess) -> dict[str, str]:
        if self._gpus is None:
            self._gpus = gpus(self._proc)
        fields = {}
        if (cgroup := self._cgroup(process.pid)) is not None:
            fields["cgroup"] = cgroup
        gpu = gpu_of(self._processes.environ(process, VISIBLE), process.local_rank, self._gpus)
        if gpu is not None:
            fields |= {"pci": gpu.pci, "gpu": str(gpu.index)}
        return fields

    def _cgroup(self, pid: int) -> str | None:
        """Told only where our process numbers are not the kernel's, and the path is."""
        try:
            if str((self._proc / "self/ns/pid").readlink()) == _INIT_NAMESPACE:
                return None
        except OSError:
            return None
        path = memory_cgroup(self._proc, pid)
        return path if path is not None and path != "/" and not path.startswith("/..") else None


def memory_cgroup(proc: Path, pid: int) -> str | None:
    """The control group that accounts the memory of a process: version 2, or the memory controller of version 1."""
    try:
        lines = (proc / str(pid) / "cgroup").read_text("utf-8", "replace").splitlines()
    except OSError:
        return None
    parts = [line.split(":", 2) for line in lines if line.count(":") >= 2]
    return next((p[2] for p in parts if "memory" in p[1].split(",")), next((p[2] for p in parts if p[0] == "0"), None))


def gpus(proc: Path = Path("/proc")) -> list[Gpu]:
    """NVIDIA GPUs of this node as the driver lists them, else as nvidia-smi does; none where neither is there."""
    found = []
    try:
        folders = sorted((proc / "driver/nvidia/gpus").iterdir(), key=lambda folder: folder.name.lower())
    except OSError:
        return _by_smi(shutil.which("nvidia-smi"))
    for index, folder in enumerate(folders[:_MOST_GPUS]):
        try:
            about = (folder / "information").read_text("utf-8", "replace")
        except OSError:
            about = ""
        uuid = next((line.split(":", 1)[1].strip() for line in about.splitlines() if line.startswith("GPU UUID")), "")
        found.append(Gpu(index, folder.name.lower(), uuid))
    return found


def _by_smi(path: str | None) -> list[Gpu]:
    if path is None:
        return []
    command = [path, "--query-gpu=index,pci.bus_id,uuid", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SMI_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        log.info("nvidia-smi does not tell the GPUs of this node: %s", error)
        return []
    rows = [[word.strip() for word in line.split(",")] for line in done.stdout.splitlines()[:_MOST_GPUS]]
    return [Gpu(int(row[0]), row[1].lower(), row[2]) for row in rows if len(row) == 3 and row[0].isdigit()]


def gpu_of(environ: Mapping[str, str], local_rank: int | None, known: Iterable[Gpu]) -> Gpu | None:
    """The GPU of a rank: the only one that it may see, else the one at the place of its local rank; None: not told."""
    table = list(known)
    visible = next((environ[name] for name in VISIBLE if environ.get(name, "all") not in ("", "all", "void")), None)
    chosen: list[Gpu | None] = list(table)
    if visible is not None:
        chosen = [_named(word.strip(), table) for word in visible.split(",")]
    if len(chosen) == 1:
        return chosen[0]
    return chosen[local_rank] if local_rank is not None and local_rank < len(chosen) else None


def _named(word: str, table: list[Gpu]) -> Gpu | None:
    """`3`, or the beginning of a UUID; a slice of a GPU (MIG) has another name."""
    if word.isascii() and word.isdigit() and len(word) < 4:
        return next((gpu for gpu in table if gpu.index == int(word)), None)
    matching = [gpu for gpu in table if word.startswith("GPU-") and gpu.uuid.startswith(word)]
    return matching[0] if len(matching) == 1 else None
