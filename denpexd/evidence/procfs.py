"""Reading /proc: small capped reads, one process at a time, never a signal and never a write."""

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from denpexd.evidence.ranks import WANTED_KEYS, Identity, Row, identify

_ENVIRON_LIMIT = 2 << 20
_SMALL_LIMIT = 8192
_KERNEL_THREAD = 0x00200000
_WRITES = os.O_WRONLY | os.O_RDWR
_PYTHON_NAMES = ("python", "pypy", "pt_")
_LAUNCHERS = frozenset(
    {
        *("torchrun", "accelerate", "deepspeed", "horovodrun", "conda", "denpexd", "denpexd.cli"),
        *("mpirun", "mpiexec", "orterun", "prterun", "srun"),
        *("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch"),
        *("deepspeed.launcher.launch", "deepspeed.launcher.runner"),
    }
)
_HELPERS = ("multiprocessing.resource_tracker", "multiprocessing.semaphore_tracker", "multiprocessing.forkserver")


@dataclass(frozen=True, slots=True)
class About:
    """What a process is; it changes only when the process executes another program. `denied`: we may not know."""

    identity: Identity | None = None
    python: bool = False
    launcher: bool = False
    helper: bool = False
    denied: bool = False


class ProcFs:
    """A process file system at `root`; every method raises OSError where the process or the right is missing."""

    def __init__(self, root: Path) -> None:
        self._root = str(root)  # text, because joining Path objects costs more than reading the file

    def pids(self) -> list[int]:
        """Every process there is."""
        with os.scandir(self._root) as entries:
            return [int(entry.name) for entry in entries if entry.name.isdigit()]

    def stat(self, pid: int) -> tuple[Row, str] | None:
        """State and command name of a process; None for kernel threads and for text that is no stat line."""
        head, _, tail = _read(f"{self._root}/{pid}/stat", _SMALL_LIMIT).rpartition(b") ")
        _, _, comm = head.partition(b" (")  # the name may itself hold blanks and brackets
        words = tail.split()
        try:
            if int(words[6]) & _KERNEL_THREAD:
                return None
            row = Row(
                pid=pid,
                parent=int(words[1]),
                start=int(words[19]),
                state=words[0].decode("ascii"),
                ticks=int(words[11]) + int(words[12]),
                threads=int(words[17]),
            )
        except (ValueError, IndexError):
            return None
        return row, comm.decode("utf-8", "replace")

    def about(self, pid: int, comm: str) -> About:
        """What the process is, as far as we may look."""
        folder = f"{self._root}/{pid}"
        python = _is_python(Path(folder, "exe"), comm)
        try:
            environ = _read(f"{folder}/environ", _ENVIRON_LIMIT)
        except PermissionError:
            return About(python=python, denied=True)
        command = _read(f"{folder}/cmdline", _SMALL_LIMIT).decode("utf-8", "replace").split("\0")
        return About(
            identity=identify(_chosen(environ, WANTED_KEYS)),
            python=python,
            launcher=_program(command) in _LAUNCHERS,
            helper=any(helper in word for word in command[:8] for helper in _HELPERS),
        )

    def environ(self, pid: int, names: Collection[str]) -> dict[str, str]:
        """Those of the variables that the process was started with."""
        return _chosen(_read(f"{self._root}/{pid}/environ", _ENVIRON_LIMIT), names)

    def wchan(self, pid: int) -> str | None:
        """The kernel function the main thread waits in, None when it runs or we may not know."""
        try:
            text = _read(f"{self._root}/{pid}/wchan", 128).decode("ascii", "replace").strip()
        except OSError:
            return None
        return text if text not in ("", "0") else None

    def written(self, pid: int, names: Collection[str]) -> set[tuple[int, int]]:
        """Device and inode of the files with one of these names that the process has open for writing."""
        found: set[tuple[int, int]] = set()
        folder = Path(self._root, str(pid))
        with os.scandir(folder / "fd") as entries:
            numbers = [entry.name for entry in entries]
        for number in numbers:
            link = folder / "fd" / number
            try:
                # The name first: asking for the state of a file on a dead mount would block.
                if link.readlink().name not in names:
                    continue
                if _open_flags(_read(f"{folder}/fdinfo/{number}", 1024)) & _WRITES:
                    found.add(file_id(link))
            except OSError:
                continue  # closed between listing and looking
        return found

    def links(self, pid: int, *numbers: int) -> list[str]:
        """Where these descriptors of a process lead, as the kernel writes it: a path, `pipe:[5]`, `socket:[6]`."""
        found = []
        for number in numbers:
            try:
                found.append(os.readlink(f"{self._root}/{pid}/fd/{number}"))  # noqa: PTH115 - not a path
            except OSError:
                continue  # closed, or not ours to see
        return found


def file_id(path: Path) -> tuple[int, int]:
    """Device and inode: equal for one file in every mount namespace, where paths are not."""
    status = path.stat()
    return status.st_dev, status.st_ino


def _read(path: str, limit: int) -> bytes:
    """At most `limit` bytes; /proc files have no size, and long ones come in pieces."""
    handle = os.open(path, os.O_RDONLY)
    try:
        data = piece = os.read(handle, limit)
        while piece and len(data) < limit:
            piece = os.read(handle, limit - len(data))
            data += piece
        return data
    finally:
        os.close(handle)


def _is_python(exe: Path, comm: str) -> bool:
    """By the program, or by the name where the link may not be read; torch renames its processes to pt_..."""
    try:
        name = exe.readlink().name
    except OSError:
        name = comm
    return name.startswith(_PYTHON_NAMES)


def _program(command: list[str]) -> str:
    """What a command line runs: its own name, or the script or module it gives to Python."""
    name = command[0].rsplit("/", 1)[-1]
    if not name.startswith(_PYTHON_NAMES):
        return name
    words = iter(command[1:])
    for word in words:
        if word == "-m":
            return next(words, "")
        if word in ("-X", "-W"):
            next(words, "")
        elif not word.startswith("-"):
            return word.rsplit("/", 1)[-1]
    return ""


def _chosen(environ: bytes, names: Collection[str]) -> dict[str, str]:
    result: dict[str, str] = {}
    for entry in environ.split(b"\0"):
        key, _, value = entry.partition(b"=")
        name = key.decode("utf-8", "replace")
        if name in names:
            result[name] = value.decode("utf-8", "replace")
    return result


def _open_flags(fdinfo: bytes) -> int:
    for line in fdinfo.splitlines():
        if line.startswith(b"flags:"):
            return int(line.split()[1], 8)
    return 0
