"""The installed daemon beside jobs that train, fail, rotate their logs and go: does anything grow, is it ever late?

Run by hand: `make soak` (MINUTES=20), or `python bench/soak.py [MINUTES]`. Writes FILES logs at RATE lines a second,
rotates one a second, lets a job fail and start again every ten seconds, and replaces one by another every thirty.
Every five seconds RSS, descriptors, threads, sizes of the state and its WAL, the lag of the event loop, the time of a
scrape and the slowest answer of twenty a second are taken.

So that every table is full before the measuring begins, the daemon forgets sooner than it usually does: files that are
gone after one minute instead of ten, jobs that fail with their last lines one minute after their files instead of an
hour, recordings after two instead of sixty. Growth an hour is that of a line through the samples after WARM of the
time; exit code 1 if anything grows by more than MOST_GROWTH, if the loop or a scrape was ever later than MOST_LATE, or
if the daemon did not end well.
"""

import json
import multiprocessing
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

FILES, RANKS, RATE = 64, 8, 2_000
SAMPLE, FAIL, ROTATE, REPLACE = 5.0, 10.0, 1.0, 30.0
WARM = 0.4  # of the time, until every table is full
MOST_GROWTH = {"rss_mb": 16.0, "fds": 20.0, "threads": 12.0, "db_mb": 30.0, "wal_mb": 60.0}  # an hour
MOST_LATE = {"lag_s": 0.5, "scrape_s": 0.5, "answer_s": 0.5}
FORGETFUL = """
import sys
import denpexd.pipeline
import denpexd.reader
from denpexd.cli import main
denpexd.reader.GONE = denpexd.pipeline.GONE_QUIET = 60.0
sys.argv = ["denpexd", *sys.argv[1:]]
main()
"""
CRASH = """Traceback (most recent call last):
  File "/ws/train.py", line 57, in <module>
    main()
  File "/ws/train.py", line 31, in main
    loss = step(batch)
ValueError: bad label {number}
"""
VICTIM = (
    "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] "
    "Connection closed by peer [10.0.0.3]:3495.\n"
)
DONE = "INFO training completed\n"
KINDS = (*MOST_GROWTH, *MOST_LATE)


class Jobs:
    """The logs of jobs that come and go below `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._number, self.lines, self.failed = folder, 0, 0, 0
        self._jobs = [self._new() for _ in range(FILES // RANKS)]
        self._turn = 0

    def _new(self) -> tuple[str, list[Path], int]:
        name = f"run{self._number:05d}"
        self._number += 1
        (self._folder / name).mkdir()
        return name, [self._folder / name / f"rank{r}.log" for r in range(RANKS)], 0

    def train(self, lines: int) -> None:
        """That many lines, each file in turn."""
        each = max(1, lines // FILES)
        for at, (name, paths, step) in enumerate(self._jobs):
            for rank, path in enumerate(paths):
                text = "".join(
                    f"INFO epoch 1 step {step + n} loss {2.5 - (step + n) % 97 / 100:.3f} rank {rank}\n"
                    for n in range(each)
                )
                with path.open("a") as file:
                    file.write(text)
            self._jobs[at] = name, paths, step + each
        self.lines += each * FILES

    def rotate(self) -> None:
        """The next file is renamed, and the one that was renamed before it goes."""
        paths = [path for _, each, _ in self._jobs for path in each]
        path = paths[self._turn % len(paths)]
        self._turn += 1
        if path.exists():
            path.rename(path.with_suffix(".log.1"))

    def fail(self) -> None:
        """One job dies and is started again: it goes on from a little before, in the same files."""
        at = self.failed % len(self._jobs)
        name, paths, step = self._jobs[at]
        with paths[0].open("a") as file:
            file.write(CRASH.format(number=self.failed))
        for path in paths[1:]:
            with path.open("a") as file:
                file.write(VICTIM)
        self.failed += 1
        self._jobs[at] = name, paths, max(0, step - 20)

    def replace(self) -> None:
        """The oldest job is done, and another takes its place; the logs of one done some time ago are removed."""
        name, paths, _ = self._jobs.pop(0)
        for path in paths:
            with path.open("a") as file:
                file.write(DONE)
        self._jobs.append(self._new())
        shutil.rmtree(self._folder / f"run{int(name[3:]) - 2:05d}", ignore_errors=True)


def ask(port: int, worst: "Synchronized[float]") -> None:
    """Twenty times a second /healthz, from another process; `worst` becomes the seconds of the slowest answer."""
    while True:
        began = time.perf_counter()
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=30).close()
        except OSError:
            time.sleep(0.5)  # not there yet, or at its end
            continue
        with worst.get_lock():
            worst.value = max(worst.value, time.perf_counter() - began)
        time.sleep(0.05)


def sample(pid: int, port: int, state: Path, worst: "Synchronized[float]") -> dict[str, float]:
    """How big the daemon is now, and how late it was."""
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    began = time.perf_counter()
    page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30).read().decode()
    scrape = time.perf_counter() - began
    lag = next(line.split()[1] for line in page.splitlines() if line.startswith("denpexd_loop_lag_seconds "))
    with worst.get_lock():
        answer, worst.value = worst.value, 0.0
    sizes = {name: (state / name).stat().st_size if (state / name).exists() else 0 for name in _STATE}
    return {
        "rss_mb": int(status["VmRSS"].split()[0]) / 1024,
        "fds": sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()),
        "threads": int(status["Threads"]),
        "db_mb": sizes[_STATE[0]] / 2**20,
        "wal_mb": sizes[_STATE[1]] / 2**20,
        "lag_s": float(lag),
        "scrape_s": scrape,
        "answer_s": answer,
    }


def start(root: Path, port: int, name: str = "logs", **more: object) -> tuple[subprocess.Popen[bytes], float]:
    """A daemon on every job below `root/name`, and the seconds until it was ready; `more` of its configuration.

    SystemExit with what it printed if it does not get ready in two minutes. It forgets sooner than it usually does.
    """
    config = {
        "paths": [f"{root}/{name}/{{job}}/rank{{rank}}.log"],
        "state_dir": f"{root}/{name}.state",
        "sinks": [{"type": "console"}],
        "web": {"port": port},
        "evidence": {"stacks": "off"},
        "log_level": "error",
    }
    (root / f"{name}.yaml").write_text(json.dumps({**config, **more}))
    began = time.monotonic()
    with (root / "out").open("wb") as out:
        command = [sys.executable, "-c", FORGETFUL, "run", "-c", str(root / f"{name}.yaml")]
        daemon = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
    while time.monotonic() < began + 120 and daemon.poll() is None:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5).close()
        except OSError:
            time.sleep(0.02)
        else:
            return daemon, time.monotonic() - began
    daemon.kill()
    raise SystemExit(f"the daemon does not get ready: {(root / 'out').read_text()[-2000:]}")


def end(daemon: subprocess.Popen[bytes], how: signal.Signals = signal.SIGTERM) -> None:
    """Stop it by that signal."""
    daemon.send_signal(how)
    daemon.wait(60)


_STATE = ("denpexd.sqlite", "denpexd.sqlite-wal")


def slope(points: list[tuple[float, float]]) -> float:
    """Growth an hour of a line through the points (seconds, value), by least squares."""
    n = len(points)
    mean_t, mean_v = sum(t for t, _ in points) / n, sum(v for _, v in points) / n
    spread = sum((t - mean_t) ** 2 for t, _ in points)
    return 3600 * sum((t - mean_t) * (v - mean_v) for t, v in points) / spread if spread else 0.0


def soak(minutes: float, root: Path) -> int:
    """Run it and print the figures; the exit code."""
    logs, state, port = root / "logs", root / "logs.state", 9199
    logs.mkdir()
    worst = multiprocessing.Value("d", 0.0)
    asking = multiprocessing.Process(target=ask, args=(port, worst), daemon=True)
    jobs, taken = Jobs(logs), list[tuple[float, dict[str, float]]]()
    daemon, _ = start(root, port, keep={"before": "120s"})
    try:
        asking.start()
        began = time.monotonic()
        due = dict.fromkeys(("train", "rotate", "fail", "replace", "sample"), began)
        while (now := time.monotonic()) < began + 60 * minutes and daemon.poll() is None:
            for name, every, act in (
                ("train", 0.5, lambda: jobs.train(RATE // 2)),
                ("rotate", ROTATE, jobs.rotate),
                ("fail", FAIL, jobs.fail),
                ("replace", REPLACE, jobs.replace),
                ("sample", SAMPLE, lambda: taken.append((now - began, sample(daemon.pid, port, state, worst)))),
            ):
                if now >= due[name]:
                    due[name] += every
                    act()
            time.sleep(max(0.0, min(due.values()) - time.monotonic()))
        page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30).read().decode()
    finally:
        if asking.pid is not None:
            asking.terminate()
        end(daemon)
    return report(jobs, taken, page, daemon.returncode)


def report(jobs: Jobs, taken: list[tuple[float, dict[str, float]]], page: str, code: int) -> int:
    """Print what was seen."""
    seconds = taken[-1][0]
    print(f"{seconds:.0f} s, {jobs.lines} lines ({jobs.lines / seconds:.0f}/s), {jobs.failed} jobs failed, exit {code}")
    told = ("denpexd_lines_total", "denpexd_kept", "denpexd_forgotten_total", "denpexd_rotations_total")
    print("\n".join(line for line in page.splitlines() if line.startswith(told)))
    rest = [(t, each) for t, each in taken if t >= seconds * WARM]
    print(f"{'':>9} {'first':>9} {'warm':>9} {'last':>9} {'worst':>9} {'growth/h':>9} {'limit':>9}")
    bad = [] if code == 0 else [f"exit code {code}"]
    for kind in KINDS:
        values = [each[kind] for _, each in taken]
        growth, worst = slope([(t, each[kind]) for t, each in rest]), max(values)
        late = kind in MOST_LATE
        limit = MOST_LATE[kind] if late else MOST_GROWTH[kind]
        row = (values[0], rest[0][1][kind], values[-1], worst, growth, limit)
        print(f"{kind:>9} " + " ".join(f"{value:9.3f}" for value in row))
        if (worst if late else growth) > limit:
            bad.append(f"{kind} is late" if late else f"{kind} grows")
    print(", ".join(bad) or "flat and never late")
    return int(bool(bad))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as where:
        sys.exit(soak(float(sys.argv[1]) if len(sys.argv) > 1 else 20.0, Path(where)))
