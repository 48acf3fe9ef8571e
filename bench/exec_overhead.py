"""What `denpexd exec` costs a chatty job: its wall time alone and under exec, and the ratio.

Run by hand on a quiet machine: `python bench/exec_overhead.py [LINES] [ROUNDS]`. Two kinds of job: one that only prints
(the worst case: two million lines as fast as a pipe takes them) and one that prints 400 lines a second and computes in
between, as a loud training job does. The job times itself, from its first line to its last, so that the start-up of
the daemon beside it counts only for the processor time it takes away; the command's own wall time is shown as well.
Other load only ever adds, so the best round counts.
"""

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

DENPEXD = str(Path(sys.executable).parent / "denpexd")
JOB = r"""
import os, sys, time
lines, burst, path = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
text = "[rank0]: epoch 3 step %d/100000 loss 2.3141 lr 0.0001 grad_norm 1.27 tokens/s 48211 mem 61.2 GiB\n"
began = time.monotonic()
done = 0
while done < lines:
    os.write(1, "".join(text % n for n in range(done, done + 40)).encode())
    done += 40
    if burst and done % burst == 0:
        until = time.process_time() + 0.1
        while time.process_time() < until:
            sum(range(2000))
open(path, "w").write(str(time.monotonic() - began))
"""


def run(command: list[str], folder: Path) -> tuple[float, float]:
    """Seconds of the job by its own clock, and of the whole command."""
    began = time.monotonic()
    path = str(folder / "seconds")
    with subprocess.Popen([*command, path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as job:
        assert job.stdout is not None
        while os.read(job.stdout.fileno(), 1 << 20):
            pass
    if job.returncode:
        raise SystemExit(f"{command[0]} ended with {job.returncode}")
    return float((folder / "seconds").read_text()), time.monotonic() - began


def compare(name: str, lines: int, burst: int, rounds: int) -> None:
    """Measure alone and under exec in turns, so that both see the same machine; print the best of each."""
    alone, beside = [], []
    job = [sys.executable, "-c", JOB, str(lines), str(burst)]
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            alone.append(run(job, Path(folder)))
            beside.append(run([DENPEXD, "exec", "--port", "0", "--", *job], Path(folder)))
    (job_alone, all_alone), (job_beside, all_beside) = (
        (min(run[0] for run in runs), min(run[1] for run in runs)) for runs in (alone, beside)
    )
    print(
        f"{name:<16} {lines:>8} lines   job {job_alone:6.2f} s alone, {job_beside:6.2f} s under exec,"
        f" ratio {job_beside / job_alone:.2f}   command {all_alone:6.2f} s, {all_beside:6.2f} s"
    )


def main() -> None:
    lines = int(sys.argv[1]) if len(sys.argv) > 1 else 2_000_000
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    compare("only prints", lines, 0, rounds)
    compare("loud training", lines // 500, 40, rounds)


if __name__ == "__main__":
    main()
