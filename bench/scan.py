"""How fast logs are scanned: CPU megabytes a second of the hot path with each engine, and of ripgrep on the same file.

Run by hand on a quiet machine: `python bench/scan.py [MEBIBYTES]`. Writes a log of 256 MiB to a temporary folder: one
rank's mix of steps, NCCL output, JSON and DataLoader lines, one failure line in about nine thousand. The hot path is
what the daemon does: read 256 KiB, Stream.feed, with all signals of the shipped rules. ripgrep gets the same patterns
except progress, which the daemon looks for at the end of each read only.
"""

import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from denpexd.catalog.load import load, shipped_rules
from denpexd.core.events import Hit
from denpexd.core.rule import Signal
from denpexd.scan.engine import EngineFactory, choose_engine
from denpexd.scan.re2_engine import Re2Engine
from denpexd.scan.scanner import Scanner
from denpexd.scan.stream import Stream

CHUNK = 256 << 10
BLOCK_LINES = 45_000
FAILURES = (
    "[rank0]:[E1206 18:44:12.715298746 ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout:"
    " WorkNCCL(SeqNum=4711, OpType=ALLREDUCE, NumelIn=6553600, NumelOut=6553600, Timeout(ms)=600000) ran for 600029"
    " milliseconds before timing out.",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 3 has a total capacity of 79.10 GiB",
    "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed. ",
    "slurmstepd: error: Detected 1 oom_kill event in StepId=4711.0. Some of the step tasks have been OOM Killed.",
    "OSError: [Errno 28] No space left on device",
)


def lines() -> Iterator[str]:
    """A block of log lines, always the same."""
    for n in range(BLOCK_LINES):
        step, wobble = n // 10, (n * 2654435761) % 9973
        clock = f"2026-03-{n % 28 + 1:02d} {n % 24:02d}:{n % 60:02d}:{wobble % 60:02d}"
        kind = n % 20
        if n % 9001 == 9000:
            yield FAILURES[n // 9001 % len(FAILURES)]
        elif kind < 4:
            yield f"{clock},{wobble % 1000:03d} INFO trainer: step {step}/500000 loss {wobble / 4000:.4f} lr 3.0e-04"
        elif kind < 11:
            link = f"Channel {n % 16:02d}/{n % 2} : {n % 512}[{n % 8}] -> {(n + 1) % 512}[{(n + 1) % 8}]"
            yield f"node-{n % 64:04d}:{wobble}:{wobble + 7} [{n % 8}] NCCL INFO {link} via P2P/CUMEM/read"
        elif kind < 15:
            yield f'{{"ts": {1772000000 + n}, "level": "info", "event": "data_wait", "duration_ms": {wobble}.5}}'
        elif kind < 19:
            yield f"{clock} DEBUG dataloader worker {n % 16}: fetched {n % 512} samples in 0.{wobble}s, queue={n % 64}"
        else:
            yield f"GPU {n % 8}: util 97% mem {60000 + wobble}/81559MiB power {400 + n % 300}W temp {50 + n % 25}C"


def write_log(path: Path, size: int) -> None:
    """`size` bytes of log."""
    block = "".join(f"{line}\n" for line in lines()).encode()
    with path.open("wb") as file:
        for _ in range(size // len(block) + 1):
            file.write(block)
    os.truncate(path, size)


def our_seconds(path: Path, signals: list[Signal], engine: EngineFactory) -> tuple[float, int]:
    """CPU seconds for reading and scanning the whole file, and how many lines hit."""
    stream = Stream(Scanner(signals, engine), str(path), 0)
    hits: set[int] = set()
    with path.open("rb", buffering=0) as file:
        before, offset = _cpu(resource.RUSAGE_SELF), 0
        while data := file.read(CHUNK):
            events = stream.feed(time.monotonic(), offset, data)
            hits.update(event.offset for event in events if isinstance(event, Hit))
            offset += len(data)
        return _cpu(resource.RUSAGE_SELF) - before, len(hits)


def ripgrep_seconds(path: Path, signals: list[Signal]) -> tuple[float, int] | None:
    """CPU seconds of ripgrep counting matching lines; None where it is not installed or takes no such pattern."""
    program = shutil.which("rg")
    if program is None:
        return None
    patterns = path.with_suffix(".patterns")
    wanted = [
        signal.pattern or ""
        for signal in signals
        if signal.role != "progress" and signal.quantity in (None, "duration")
    ]
    patterns.write_text(
        "".join(re.sub(r"\(\?P?<\w+>", "(?:", pattern) + "\n" for pattern in wanted)
    )  # names may repeat
    command = [program, "-a", "-j1", "-c", "--no-unicode", "-f", str(patterns), str(path)]
    before = _cpu(resource.RUSAGE_CHILDREN)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode > 1:
        sys.stderr.write(done.stderr)
        return None
    return _cpu(resource.RUSAGE_CHILDREN) - before, int(done.stdout or 0)


def _cpu(who: int) -> float:
    used = resource.getrusage(who)
    return used.ru_utime + used.ru_stime


def main() -> None:
    size = int(sys.argv[1] if len(sys.argv) > 1 else 256) << 20
    catalog, errors = load([shipped_rules()], strict=False)
    for error in errors:
        sys.stderr.write(f"left out: {error}\n")
    signals = [signal for signal in catalog.signals.values() if signal.kind == "log"]
    sys.stdout.write(f"{size >> 20} MiB, {len(signals)} log signals, CPU time of one run each\n")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rank0.log"
        write_log(path, size)
        path.read_bytes()  # into the page cache
        chosen = choose_engine()
        engines: dict[str, EngineFactory] = {"re2": Re2Engine}
        if chosen is not Re2Engine:
            engines = {"hyperscan": chosen} | engines
        figures = {name: our_seconds(path, signals, engine) for name, engine in engines.items()}
        if (ripgrep := ripgrep_seconds(path, signals)) is not None:
            figures["ripgrep"] = ripgrep
    for name, (seconds, hits) in figures.items():
        ratio = f"  {figures['ripgrep'][0] / seconds:5.2f} x ripgrep" if "ripgrep" in figures else ""
        sys.stdout.write(f"{name:10} {size / seconds / 1e6:7.0f} MB/s  {hits:8} hit lines{ratio}\n")


if __name__ == "__main__":
    main()
