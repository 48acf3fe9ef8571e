"""What the machine gives a daemon: notifications, descriptors, disk, clock, and the right to look at processes."""

import asyncio
import ctypes
import importlib.util
import os
import resource
import shutil
import sys
import tempfile
from collections.abc import Collection, Sequence
from pathlib import Path

from denpexd.clock import Clock
from denpexd.errors import EvidenceUnavailable
from denpexd.evidence.kernel import RIGHTS, open_kernel
from denpexd.evidence.procs import Processes
from denpexd.evidence.stacks import PySpy, find_py_spy, rights_remedy
from denpexd.findings import Finding, bad, ok, warn
from denpexd.ingest.remote import Mounts
from denpexd.ingest.wake import Waker
from denpexd.settings import Settings
from denpexd.state import FILE
from denpexd.web.page import byte_size, duration

_INOTIFY = Path("/proc/sys/fs/inotify")
_YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
_SPARE = 200  # descriptors beside those of the logs
_OPEN_LOGS = 1024  # at most that many logs are open at once
_LOW_DISK = 64 << 20
_SKEW = 2.0  # seconds by which a file server's clock may differ
_SYS_PTRACE = 19
_TIME_ERROR = 5
_SCOPES = {
    "0": "processes of the same user may be looked at",
    "1": "only children may be looked at (kernel.yama.ptrace_scope=1)",
    "2": "only with CAP_SYS_PTRACE (kernel.yama.ptrace_scope=2)",
    "3": "nobody may look at processes (kernel.yama.ptrace_scope=3)",
}


async def limit_checks(directories: Collection[str], files: int, clock: Clock) -> list[Finding]:
    """Whether the kernel's notifications can be had for these folders, and descriptors for these files."""
    waker = Waker(clock)
    try:
        await asyncio.to_thread(waker.watch, directories)
        polling = waker.polling
    finally:
        await asyncio.to_thread(waker.close)
    limits = ", ".join(f"{_number(_INOTIFY / name)} {what}" for name, what in _INOTIFY_LIMITS)
    if polling:
        found = [warn("inotify", f"{polling} (limits: {limits})", "sysctl; until then files are polled each sweep")]
    else:
        found = [ok("inotify", f"{len(directories)} folders watched; limits: {limits}")]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(files, _OPEN_LOGS) + _SPARE
    if soft != resource.RLIM_INFINITY and soft < wanted:
        mend = f"ulimit -n {wanted} (hard limit {hard}), or LimitNOFILE={wanted} in the unit"
        return [*found, bad("descriptors", f"{soft} may be open, about {wanted} are needed", mend)]
    return [*found, ok("descriptors", f"{soft} may be open, about {wanted} are needed")]


_INOTIFY_LIMITS = (
    ("max_user_watches", "folders"),
    ("max_user_instances", "instances"),
    ("max_queued_events", "events"),
)


def _number(file: Path) -> str:
    try:
        return file.read_text("ascii").strip()
    except OSError:
        return "?"


def state_checks(folder: Path, keep: int, clock: Clock) -> list[Finding]:
    """Whether the state can be kept there: rights, room, kind of file system, and the clock of its server."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    mend = "choose another state_dir (--state-dir)"
    if not there.is_dir():
        return [bad("state folder", f"{there} is no folder", mend)]
    try:
        with tempfile.NamedTemporaryFile(dir=there, prefix=".denpexd-doctor-") as file:
            skew = os.fstat(file.fileno()).st_mtime - clock.wall()
    except OSError as error:
        who = f"user id {os.geteuid()}"
        return [bad("state folder", f"{there}: {error.strerror} for {who}", f"chown it to {who}, or {mend}")]
    kept = " (a daemon has kept its state there)" if (folder / FILE).exists() else ""
    mounts = Mounts()
    if remote := mounts.remote(there):
        said = (
            f"{folder} is on a network file system ({mounts.kind(remote)} at {remote}): SQLite's slower journal is used"
        )
        found = [warn("state folder", said, "a local disk is safer and faster: state_dir")]
    else:
        found = [ok("state folder", f"{folder}, local{kept}")]
    free = shutil.disk_usage(there).free
    if free < _LOW_DISK:
        found.append(bad("disk", f"{byte_size(free)} are free at {there}", f"make room, or {mend}"))
    elif free < 2 * keep:
        said = f"{byte_size(free)} are free at {there}, bundles may take {byte_size(keep)}"
        found.append(warn("disk", said, "make room, or lower keep.size"))
    else:
        found.append(ok("disk", f"{byte_size(free)} are free"))
    if abs(skew) > _SKEW:
        said = f"files made in {there} are dated {duration(abs(skew))} {'ahead' if skew > 0 else 'back'}"
        found.append(warn("clock", said, "the file server's clock differs: synchronise both (chrony)"))
    return found


async def rights_checks(settings: Settings, clock: Clock) -> list[Finding]:
    """Whether stacks can be taken, the processes of ranks seen, the kernel heard and the GPUs asked."""
    if settings.evidence.active == "off":
        return [ok("processes", "are not looked at: evidence.active is off")]
    processes = Processes()
    ranks = await asyncio.to_thread(processes.refresh)
    found = [ok("processes", f"{len(ranks)} ranks run on this node now")]
    if (hidden := processes.unavailable()) is not None:
        found = [warn("processes", hidden.why, hidden.how)]
    if settings.evidence.stacks == "off":
        found.append(ok("stacks", "are not taken: evidence.stacks is off"))
    else:
        found.append(await _stacks(clock))
    return [*found, _kernel(settings.evidence.kernel, clock), *_gpus(settings.evidence.gpu)]


def _kernel(setting: str | Path, clock: Clock) -> Finding:
    """Whether the kernel's messages can be had: a lost GPU, a killed process."""
    if setting == "off":
        return ok("kernel", "is not listened to: evidence.kernel is off")
    if setting != "auto" and not os.access(setting, os.R_OK):
        return warn("kernel", f"{setting} cannot be read (evidence.kernel)", RIGHTS)
    source = open_kernel(setting, os.uname().nodename, clock)
    if source is None:
        return warn("kernel", "its messages cannot be read: a lost GPU or a killed process is not told", RIGHTS)
    source.close()
    return ok("kernel", f"its messages come from {source.name}")


def _gpus(setting: str, devices: Path = Path("/dev")) -> list[Finding]:
    """Whether the GPUs can be asked; nothing where there are none."""
    if setting == "off" or not any(devices.glob("nvidia[0-9]*")):
        return []
    if importlib.util.find_spec("pynvml") is None:
        return [warn("GPUs", "their state is not asked: nvidia-ml-py is not installed", "pip install 'denpexd[gpu]'")]
    return [ok("GPUs", "their state is asked at an incident (NVML)")]


async def _stacks(clock: Clock) -> Finding:
    path = find_py_spy()
    if path is None:
        return warn("stacks", "py-spy is not installed", "pip install 'denpexd[stacks]'")
    # A child may always be looked at, unless the container forbids the system calls altogether.
    child = await asyncio.create_subprocess_exec(sys.executable, "-I", "-S", "-c", "print(flush=True); input()",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)  # fmt: skip
    try:
        assert child.stdout is not None
        await child.stdout.readline()
        await PySpy(path).dump(child.pid, 0, clock.now())
    except EvidenceUnavailable as error:
        return warn("stacks", error.why, error.how)
    finally:
        child.kill()
        await child.communicate()
    scope = _number(_YAMA)
    if _may_trace() or _is_privileged(path):
        return ok("stacks", "py-spy works, and may look at processes of every user")
    said = f"py-spy works; {_SCOPES.get(scope, _SCOPES['0'])}"
    if scope in ("1", "2", "3"):
        return warn("stacks", said, f"denpexd exec starts the job as a child; else {rights_remedy(os.environ)}")
    return ok("stacks", f"{said} (user id {os.geteuid()})")


def _may_trace(status: Path = Path("/proc/self/status")) -> bool:
    """Whether we have CAP_SYS_PTRACE."""
    line = next((one for one in status.read_text("ascii", "replace").splitlines() if one.startswith("CapEff:")), "")
    return bool(int(line.partition(":")[2].strip() or "0", 16) >> _SYS_PTRACE & 1)


def _is_privileged(program: str) -> bool:
    """Whether the program has capabilities of its own (setcap)."""
    try:
        return "security.capability" in os.listxattr(os.path.realpath(program))
    except OSError:
        return False


def clock_checks(logs: Sequence[Path], clock: Clock) -> list[Finding]:
    """Whether the clock is synchronised, and no file is dated ahead of it."""
    found = []
    wall = clock.wall()
    written = max((_written(path) for path in logs), default=0.0)
    if written > wall + _SKEW:
        said = f"a log is dated {duration(written - wall)} ahead of this machine's clock"
        found.append(warn("clock", said, "synchronise this machine and the file server (chrony)"))
    if wall < Path(__file__).stat().st_mtime - 86400:
        found.append(bad("clock", "stands before denpexd was installed", "set the clock: timedatectl set-ntp true"))
    elif _synchronised() is False:
        said = "the kernel says that it is not synchronised: the order of events between nodes is not known"
        found.append(warn("clock", said, "run chrony or systemd-timesyncd on the node"))
    return found or [ok("clock", "synchronised" if _synchronised() else "plausible")]


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _synchronised() -> bool | None:
    """What adjtimex(2) says; None where it may not be asked. Containers share the node's clock."""
    try:
        state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.create_string_buffer(512))
    except (OSError, AttributeError):
        return None
    return None if state < 0 else bool(state != _TIME_ERROR)
