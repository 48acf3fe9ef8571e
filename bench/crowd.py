"""Many files and one loud file: what they cost, and how late the quiet ones are heard.

Run by hand: `python bench/crowd.py [FILES]` (10,000). Three things, one after the other: CPU share of a daemon beside
FILES files that nobody writes; seconds until FILES / 2 files that appear at once have been read, and the slowest scrape
meanwhile; with one file that grows by LOUD bytes a second, the delay from a line of a quiet file to /metrics.
"""

import os
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from soak import end, start

PORT, LOUD, SECONDS = 9197, 50 << 20, 20.0
LINE = "INFO epoch 1 step {step} loss 2.5 rank {rank}\n"


def fill(folder: Path, files: int, lines: int) -> None:
    """That many files of one job, with so many lines each."""
    folder.mkdir(parents=True)
    for rank in range(files):
        (folder / f"rank{rank}.log").write_text("".join(LINE.format(step=n, rank=rank) for n in range(lines)))


def metric(name: str) -> tuple[float, float]:
    """Its value (0 if it is not there) and the seconds of the scrape."""
    began = time.perf_counter()
    page = urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=60).read().decode()
    took = time.perf_counter() - began
    found = [line.split()[-1] for line in page.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
    return sum(map(float, found)), took


def cpu(pid: int) -> float:
    """Seconds of CPU that the process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def idle(root: Path, files: int) -> None:
    """The first thing."""
    fill(root / "logs" / "idle", files, 2)
    daemon, _ = start(root, PORT)
    try:
        time.sleep(5.0)
        before, began = cpu(daemon.pid), time.monotonic()
        time.sleep(SECONDS)
        share = (cpu(daemon.pid) - before) / (time.monotonic() - began)
        print(f"{files} idle files: {100 * share:.1f} % of a core")
    finally:
        end(daemon)


def at_once(root: Path, files: int) -> None:
    """The second thing."""
    fill(root / "logs" / "first", 8, 2)
    daemon, _ = start(root, PORT)
    try:
        fill(root / "new", files, 1)
        before, used = metric("denpexd_lines_total")[0], cpu(daemon.pid)
        began, slowest = time.monotonic(), 0.0
        (root / "new").rename(root / "logs" / "new")
        while time.monotonic() < began + 120 and metric("denpexd_lines_total")[0] < before + files:
            slowest = max(slowest, metric("denpexd_lines_total")[1])
            time.sleep(0.1)
        took, used = time.monotonic() - began, cpu(daemon.pid) - used
        print(f"{files} files at once: read after {took:.1f} s ({used:.1f} s of CPU), slowest scrape {slowest:.2f} s")
    finally:
        end(daemon)


def loud(root: Path) -> None:
    """The third thing."""
    fill(root / "logs" / "loud", 1, 2)
    fill(root / "logs" / "quiet", 63, 4)
    daemon, _ = start(root, PORT)
    text = "".join(f"DEBUG worker {n} fetched batch {n * 7} in {n % 90} ms\n" for n in range(2000)).encode()
    delays, written, step = list[float](), 0, 4
    try:
        began = time.monotonic()
        with (root / "logs" / "loud" / "rank0.log").open("ab") as file:
            while (now := time.monotonic()) < began + SECONDS:
                while written < LOUD * (now - began):
                    written += file.write(text)
                    file.flush()
                step += 1
                with (root / "logs" / "quiet" / "rank7.log").open("a") as quiet:
                    quiet.write(LINE.format(step=step, rank=7))
                asked = time.monotonic()
                while metric('denpexd_step{training_job="quiet"}')[0] < step and time.monotonic() < asked + 30:
                    time.sleep(0.05)
                delays.append(time.monotonic() - asked)
        rate = written / 1e6 / (time.monotonic() - began)
        print(f"beside {rate:.0f} MB/s: slowest line of a quiet file {max(delays):.2f} s")
    finally:
        end(daemon)


if __name__ == "__main__":
    most = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    print(f"load of this machine: {os.getloadavg()[0]:.1f}", flush=True)
    for measure in (lambda root: idle(root, most), lambda root: at_once(root, most // 2), loud):
        with tempfile.TemporaryDirectory() as where:
            measure(Path(where))
