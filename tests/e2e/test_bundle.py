"""A run that works, then one that fails: the incident says what changed, and its bundle is judged as it was."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

DENPEXD = str(Path(sys.executable).parent / "denpexd")
SECRET = "hf_" + "abcdefghijklmnopqrstuvwxyzabcdefghij"
RANKS = """
import os, subprocess, sys
def start(rank):
    env = {**os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    return subprocess.Popen([sys.executable, *sys.argv[1:]], env=env)
sys.exit(max([rank.wait() for rank in [start(0), start(1)]]))
"""
# It goes on until the daemon has kept how it was started.
TRAIN = """
import os, pathlib, sys, time
kept, rank, mine = pathlib.Path(os.environ["KEPT"]), os.environ["RANK"], "train.py " + " ".join(sys.argv[1:]) + '"'
known = False
for step in range(1, 401):
    print(f"[rank{rank}] step {step}/400 loss={3 - step * 0.005:.2f} " + os.environ["HF_TOKEN"], flush=True)
    time.sleep(0.7)
    known = known or any(mine in file.read_text() for file in kept.glob("*.json"))
    if known and step >= 28 and "--fail" in sys.argv and rank == "1":
        raise FileNotFoundError(2, "No such file or directory", "/data/shard-7.tar")
    if known and step >= 30:
        break
"""


@pytest.fixture
def run(place: Any, tmp_path: Path) -> Any:
    """Runs the job under `exec` with some arguments and variables; returns what the sink was told."""
    for name, text in (("ranks.py", RANKS), ("train.py", TRAIN)):
        (tmp_path / name).write_text(text)

    def started(*arguments: str, **variables: str) -> list[dict[str, Any]]:
        sink = place.sink()
        config = place.config("exec", [{"type": "webhook", "url": sink.url}])
        job = [sys.executable, "ranks.py", "train.py", *arguments]
        env = {**os.environ, "HF_TOKEN": SECRET, "KEPT": str(place.folder / "exec.state" / "launches"), **variables}
        subprocess.run([DENPEXD, "exec", "-c", str(config), "--", *job], cwd=tmp_path, env=env, check=False)
        return [alert.verdict for alert in sink.alerts]

    return started


def test_what_changed_is_told_and_the_bundle_gives_the_same_verdict(run: Any, place: Any, tmp_path: Path) -> None:
    assert run("--lr", "1") == []
    told = run("--lr", "2", "--fail", NCCL_DEBUG="WARN")[-1]

    texts = [one["text"] for one in told["changed"]["differences"]]
    assert texts == ["command: --lr 1 -> 2, new --fail", "NCCL_DEBUG new: WARN"]

    state, out = str(place.folder / "exec.state"), tmp_path / "bundle.tar.xz"
    made = subprocess.run([DENPEXD, "bundle", "--state-dir", state, "-o", str(out)], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    again = subprocess.run(
        [DENPEXD, "replay", str(out), "--format", "jsonl"], capture_output=True, text=True, check=True
    )
    verdicts = json.loads(again.stdout)["verdicts"]
    names = ("failure", "initiating_ranks", "collateral_ranks", "certainty", "changed")
    assert [told[name] for name in names] in [[one[name] for name in names] for one in verdicts]

    subprocess.run(["tar", "xf", out, "-C", tmp_path], check=True)
    kept = [path for path in Path(state).rglob("*") if path.is_file()]
    unpacked = [path for path in tmp_path.glob("denpexd-*/**/*") if path.is_file()]
    assert unpacked
    for path in (*kept, *unpacked):
        assert SECRET.encode() not in path.read_bytes(), path
