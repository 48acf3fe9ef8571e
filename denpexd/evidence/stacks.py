"""Stacks of live processes through py-spy: fixed arguments, never pausing the target, its answer never trusted.

py-spy runs as a child with a time limit and an output limit. `--nonblocking` is what keeps the job undisturbed and
what works on a stopped process; a look at a running process may therefore be torn, and is repeated once.
"""

import asyncio
import json
import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from denpexd.core.events import Frame, Frames
from denpexd.errors import EvidenceUnavailable
from denpexd.scan.frames import canonical_path

log = logging.getLogger(__name__)

_OUTPUT_LIMIT = 4 << 20
_ERROR_LIMIT = 16 << 10
_TEXT_LIMIT = 300
_FRAME_LIMIT = 200
_THREAD_LIMIT = 64
_ATTEMPTS = 2
_ENTRY = "<shim>"  # of the interpreter, below the outermost frame of Python 3.12 in some releases of py-spy
_REAP_SECONDS = 2.0
_NO_RIGHTS = ("permission denied", "operation not permitted", "os error 13", "os error 1)")


class PySpy:
    """Asks py-spy for the stack of one process at a time; `path` is found once, on PATH or beside our own Python."""

    def __init__(self, path: str | None = None, *, time_limit: float = 5.0) -> None:
        self._path = path or find_py_spy()
        self._time_limit = time_limit

    async def dump(self, pid: int, rank: int, t: float) -> Frames:
        """The stack of a process now. EvidenceUnavailable: why there is none, and how to mend it."""
        if self._path is None:
            raise EvidenceUnavailable("py-spy is not installed", "pip install 'denpexd[stacks]'")
        error = ""
        for _ in range(_ATTEMPTS):
            code, output, error = await self._run(self._path, pid)
            if code == 0:
                frames = await asyncio.to_thread(_parse, output, rank, t)
                if frames is not None:
                    return replace(frames, source=f"pid {pid}")
                error = "its answer holds no Python stack"
            elif any(sign in error.lower() for sign in _NO_RIGHTS):
                raise EvidenceUnavailable("py-spy may not read the job's processes", rights_remedy(os.environ))
        raise EvidenceUnavailable(
            f"py-spy gave no stack of pid {pid}: {_reason(error)}",
            f"try by hand: py-spy dump --nonblocking --pid {pid}",
        )

    async def _run(self, path: str, pid: int) -> tuple[int, bytes, str]:
        """Exit code, output, error text. The child has its own process group, so that nothing of it is left."""
        try:
            child = await asyncio.create_subprocess_exec(
                *command(path, pid),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                # A clean environment: ours may carry RANK, and a child that carries RANK looks like a rank.
                env={"PATH": os.defpath, "LC_ALL": "C.UTF-8", "RUST_BACKTRACE": "0"},
                start_new_session=True,
            )
        except OSError as error:
            raise EvidenceUnavailable(f"{path} does not start: {error.strerror}", "reinstall py-spy") from error
        try:
            async with asyncio.timeout(self._time_limit):
                # A group, not gather: when the time is up nobody may still be reading when the rest is thrown away.
                async with asyncio.TaskGroup() as group:
                    reading = group.create_task(_read(child.stdout, _OUTPUT_LIMIT, lambda: _kill(child)))
                    listening = group.create_task(_read(child.stderr, _ERROR_LIMIT))
                    code = await child.wait()
        except TimeoutError:
            raise EvidenceUnavailable(
                f"py-spy did not answer within {self._time_limit:g} s", "the node may be overloaded; it is asked again"
            ) from None
        finally:
            await _end(child)
        output, complaint = reading.result(), listening.result()
        if len(output) > _OUTPUT_LIMIT:
            raise EvidenceUnavailable(
                f"py-spy wrote more than {_OUTPUT_LIMIT >> 20} MiB", "check what it is: py-spy --version"
            )
        return code, output, complaint[:_ERROR_LIMIT].decode("utf-8", "replace")


def command(path: str, pid: int) -> tuple[str, ...]:
    """How py-spy is called: the process is not stopped, and nothing of the call comes from outside."""
    return (path, "dump", "--nonblocking", "--json", "--pid", str(pid))


def find_py_spy() -> str | None:
    """The absolute path of py-spy, None where it is not installed."""
    beside = str(Path(sys.executable).parent)
    found = shutil.which("py-spy") or shutil.which("py-spy", path=beside)
    return str(Path(found).absolute()) if found else None


def rights_remedy(environ: Mapping[str, str], root: Path = Path("/")) -> str:
    """How to grant the right to read other processes, for the kind of place we run in."""
    if "KUBERNETES_SERVICE_HOST" in environ:
        return (
            "add securityContext.capabilities.add: [SYS_PTRACE] to denpexd's container "
            "and shareProcessNamespace: true to the pod"
        )
    if (root / ".dockerenv").exists() or (root / "run/.containerenv").exists():
        return "start denpexd's container with --cap-add SYS_PTRACE and the job's process namespace (--pid)"
    if "INVOCATION_ID" in environ:
        return "add AmbientCapabilities=CAP_SYS_PTRACE (and CapabilityBoundingSet=CAP_SYS_PTRACE) to denpexd's unit"
    return (
        "run denpexd as the user of the job with kernel.yama.ptrace_scope=0, "
        "or grant the right to py-spy alone: sudo setcap cap_sys_ptrace=ep $(readlink -f $(which py-spy))"
    )


def parse_json(data: bytes | str, rank: int, t: float) -> Frames | None:
    """py-spy's `dump --json`; None where it is no such thing. `others` holds the further threads."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, list):
        return None
    threads: list[_Thread] = []
    main = None
    for entry in reversed(document):  # JSON lists the main thread last, text first
        if not isinstance(entry, dict) or not isinstance(entry.get("frames"), list):
            return None
        number, name = entry.get("os_thread_id"), entry.get("thread_name")
        told = (_json_frame(frame) for frame in entry["frames"] if isinstance(frame, dict))
        frames = tuple(frame for frame in told if frame.path != _ENTRY)
        threads.append((_clean(name) if isinstance(name, str) else f"thread {_clean(str(number))}", _fit(frames)))
        if name == "MainThread" or (isinstance(number, int) and number == entry.get("pid")):
            main = len(threads) - 1
    return _frames(threads, main or 0, rank, t)


def parse_text(text: str, rank: int, t: float) -> Frames | None:
    """py-spy's `dump` as people read it; None where it holds no stack (an error message)."""
    threads: list[tuple[str, list[Frame]]] = []
    main, process = None, ""
    for line in text.splitlines():
        if line.startswith("Process ") and not threads:
            process = line.removeprefix("Process ").partition(" ")[0].rstrip(":")
        elif line.startswith("Thread "):
            number, _, name = line.removeprefix("Thread ").partition(" ")
            label = name.partition(': "')[2].removesuffix('"')
            threads.append((_clean(label) or f"thread {_clean(number)}", []))
            if label == "MainThread" or number == process:
                main = len(threads) - 1
        elif threads and line.startswith("    ") and (frame := _text_frame(line)) is not None and frame.path != _ENTRY:
            threads[-1][1].append(frame)
    return _frames([(label, _fit(tuple(frames))) for label, frames in threads], main or 0, rank, t)


def add_worker(frames: Frames, label: str, worker: Frames) -> Frames:
    """The same look with the main thread of a worker process among the `others`."""
    return replace(frames, others=(*frames.others, (label, worker.frames)))


_Thread = tuple[str, tuple[Frame, ...]]


def _parse(output: bytes, rank: int, t: float) -> Frames | None:
    text = output.decode("utf-8", "replace")
    return parse_json(text, rank, t) or parse_text(text, rank, t)


def _frames(threads: list[_Thread], main: int, rank: int, t: float) -> Frames | None:
    if not threads or not threads[main][1]:
        return None
    others = [thread for number, thread in enumerate(threads) if number != main]
    return Frames(t, rank, "py-spy", threads[main][1], others=tuple(others[:_THREAD_LIMIT]))


def _json_frame(frame: Mapping[str, object]) -> Frame:
    """Installed code by its full name, own code by py-spy's short one: the same as py-spy's text says."""
    full, short = str(frame.get("filename") or ""), frame.get("short_filename")
    path = canonical_path(full)
    if isinstance(short, str) and "/" not in path:
        path = canonical_path(short)
    line = frame.get("line")
    number = line if isinstance(line, int) and 0 <= line < 1 << 31 else 0
    return Frame(_clean(str(frame.get("name") or "")), _clean(path), number)


def _text_frame(line: str) -> Frame | None:
    """`    function (path:line)`; native frames have no line."""
    function, bracket, place = line.strip().rpartition(" (")
    if not bracket or not place.endswith(")"):
        return None
    path, colon, number = place[:-1].rpartition(":")
    if not colon or not (number.isascii() and number.isdigit() and len(number) < 10):
        path, number = place[:-1], "0"
    return Frame(_clean(function), _clean(canonical_path(path)), int(number))


def _fit(frames: tuple[Frame, ...]) -> tuple[Frame, ...]:
    """Endless recursion must not fill our memory: both ends of a deep stack say what there is to say."""
    if len(frames) <= _FRAME_LIMIT:
        return frames
    half = _FRAME_LIMIT // 2
    return frames[:half] + frames[-half:]


def _clean(text: str) -> str:
    return "".join(char if char.isprintable() else "?" for char in text[:_TEXT_LIMIT])


def _reason(error: str) -> str:
    """The line of py-spy's complaint that says what is wrong."""
    lines = [line.strip() for line in error.splitlines() if line.strip()]
    best = next((line for line in lines if line.startswith("Error: ")), lines[0] if lines else "no reason given")
    return _clean(best.removeprefix("Error: "))


async def _read(stream: asyncio.StreamReader | None, limit: int, excess: Callable[[], None] | None = None) -> bytes:
    """All of a stream up to a little more than `limit`; the rest is thrown away, after a call of `excess`."""
    data = b""
    while stream is not None and (piece := await stream.read(1 << 16)):
        if len(data) <= limit:
            data += piece
            if len(data) > limit and excess is not None:
                excess()
    return data


def _kill(child: asyncio.subprocess.Process) -> None:
    if child.returncode is None:
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass


async def _end(child: asyncio.subprocess.Process) -> None:
    """Nothing of the child stays behind: no process, no zombie, no open pipe."""
    _kill(child)
    try:
        async with asyncio.timeout(_REAP_SECONDS):
            await asyncio.gather(_read(child.stdout, 0), _read(child.stderr, 0), child.wait())
    except TimeoutError:
        log.warning("py-spy (pid %d) left something behind that keeps its output open", child.pid)
