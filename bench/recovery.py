"""kill -9 and start again: how long until the daemon is ready, with many files and a full journal.

Run by hand: `python bench/recovery.py [FILES]` (1,000). Lets a daemon read FILES logs, fills its journal to the limit,
kills it, starts another on the same state and measures from its start until /readyz says yes. Of that the time for
loading rules and engine is measured apart, by a start on an empty state without a file. Prints all three.
"""

import signal
import sqlite3
import sys
import tempfile
from pathlib import Path

from soak import end, start

from denpexd.core.events import Fact, Hit
from denpexd.journal import encode
from denpexd.notify.rows import MAX_JOURNAL

PORT, RANKS, LINES = 9198, 8, 200


def fill_journal(state: Path, jobs: list[str]) -> int:
    """As many lines as the journal may have, of all jobs; how many there are."""
    lines = []
    for n in range(MAX_JOURNAL):
        job, rank = jobs[n % len(jobs)], n // len(jobs) % RANKS
        step = {"step": str(n), "loss": "2.5"}
        hit = Hit(float(n % 5000), rank, "steps.key-value", f"/l/{rank}.log", n, f"step {n} loss 2.5", step)
        line = encode(job, hit if n % 10 else Fact(float(n % 5000), rank, "memory", {"used": str(n)}))
        lines.append((line,))
    with sqlite3.connect(state) as database:
        database.executemany("INSERT INTO journal (line) VALUES (?)", lines)
        return int(database.execute("SELECT count(*) FROM journal").fetchone()[0])


def measure(files: int, root: Path) -> None:
    """Print how long each start takes."""
    (root / "none").mkdir()
    daemon, rules = start(root, PORT, "none")
    end(daemon, signal.SIGTERM)
    jobs = [f"run{n:04d}" for n in range(max(1, files // RANKS))]
    for job in jobs:
        (root / "some" / job).mkdir(parents=True)
        for rank in range(RANKS):
            text = "".join(f"INFO step {n} loss 2.5 rank {rank}\n" for n in range(LINES))
            (root / "some" / job / f"rank{rank}.log").write_text(text)
    daemon, first = start(root, PORT, "some")
    end(daemon, signal.SIGKILL)
    daemon, again = start(root, PORT, "some")
    end(daemon, signal.SIGKILL)
    lines = fill_journal(root / "some.state" / "denpexd.sqlite", jobs)
    daemon, full = start(root, PORT, "some")
    end(daemon, signal.SIGTERM)
    print(f"without a file {rules:.2f} s; first start with {len(jobs) * RANKS} files {first:.2f} s")
    print(f"after kill -9 {again:.2f} s ({again - rules:.2f} s more than without a file)")
    print(f"after kill -9 with {lines} lines of journal {full:.2f} s ({full - rules:.2f} s more)")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as where:
        measure(int(sys.argv[1]) if len(sys.argv) > 1 else 1000, Path(where))
