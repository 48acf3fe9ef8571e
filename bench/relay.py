"""What the relay costs a job: throughput against `cat`, added latency of a line, start-up, memory.

    python bench/relay.py [--bytes 1073741824] [--lines 2000] [--repeats 3]

Throughput is wall time of `head -c N /dev/zero | X > /dev/null`; the relay also writes its copy (to a temporary folder,
64 MiB at a time). Latency is from just before write(2) into the pipe to the moment read(2) on the other side returns.
"""

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RELAY = str(Path(__file__).resolve().parents[1] / "denpexd" / "relay.py")


def relay(spool: Path) -> list[str]:
    return [sys.executable, "-I", "-S", RELAY, "--spool", str(spool), "--max-bytes", str(64 << 20)]


def throughput(command: list[str], count: int) -> tuple[float, float]:
    """(wall seconds, CPU seconds of the command) for `count` bytes."""
    with subprocess.Popen(["head", "-c", str(count), "/dev/zero"], stdout=subprocess.PIPE) as source:
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(command, stdin=source.stdout, stdout=subprocess.DEVNULL, check=True)
        wall = time.perf_counter() - start
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def latencies(command: list[str], lines: int) -> list[float]:
    """Microseconds from write to read, one line every 2 ms."""
    taken = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdin
        assert process.stdout
        source, sink = process.stdin.fileno(), process.stdout.fileno()
        line = b"step 1200 loss 2.3112 lr 1.00e-04 tok/s 10000 mem 61.2GiB\n"
        for number in range(lines + 20):
            start = time.perf_counter()
            os.write(source, line)
            os.read(sink, 4096)
            if number >= 20:
                taken.append((time.perf_counter() - start) * 1e6)
            time.sleep(0.002)
        process.stdin.close()
    return taken


def startup(command: list[str], repeats: int) -> float:
    """Milliseconds from starting the program to its end with empty input, median."""
    taken = []
    for _ in range(repeats):
        start = time.perf_counter()
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=True)
        taken.append((time.perf_counter() - start) * 1e3)
    return statistics.median(taken)


def memory(command: list[str]) -> int:
    """Resident KiB after one line."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write(b"x\n")
        process.stdout.read(2)
        status = Path(f"/proc/{process.pid}/status").read_text()
        process.stdin.close()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bytes", type=int, default=1 << 30)
    parser.add_argument("--lines", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        commands = {"cat": ["cat"], "tee": ["tee", f"{folder}/tee"], "relay": relay(Path(folder) / "spool")}
        for name, command in commands.items():
            runs = [throughput(command, options.bytes) for _ in range(options.repeats)]
            wall, cpu = (statistics.median(column) for column in zip(*runs, strict=True))
            print(f"{name:6} {options.bytes / wall / 1e6:7.0f} MB/s wall  {cpu * 1e9 / options.bytes:6.3f} s CPU a GB")
        for name, command in commands.items():
            taken = sorted(latencies(command, options.lines))
            print(
                f"{name:6} latency p50 {taken[len(taken) // 2]:6.1f} us  p99 {taken[len(taken) * 99 // 100]:6.1f} us"
                f"  start and end {startup(command, 20):5.1f} ms  memory {memory(command)} KiB"
            )


if __name__ == "__main__":
    main()
