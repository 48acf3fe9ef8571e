"""How a process was started, from real processes and real repositories; nothing of it is run or imported."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from denpexd.evidence.fingerprint import Fingerprints
from denpexd.evidence.git_head import commit_of

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def process(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A rank in a repository whose hooks and settings would leave a trace."""
    git(tmp_path, "ref: refs/heads/topic\n").joinpath("refs/heads/topic").write_text(COMMIT + "\n")
    (tmp_path / ".git" / "config").write_text(f"[core]\n  fsmonitor = touch {tmp_path}/trace\n")
    (tmp_path / "train.py").write_text("import sys; print('up', flush=True); sys.stdin.read()\n")
    env = {
        "RANK": "3",
        "NCCL_DEBUG": "INFO",
        "HF_TOKEN": "secret",
        "HOME": "/x",
        "TORCHELASTIC_RUN_ID": "7",
        "OMP_NUM_THREADS": "4",
        "MASTER_PORT": "1",
    }
    command = [sys.executable, "train.py", "--local_rank=3", "--lr", "1"]
    child = subprocess.Popen(command, cwd=tmp_path, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdout is not None
    assert child.stdout.readline()
    yield child
    child.communicate()


def git(folder: Path, head: str) -> Path:
    top = folder / ".git"
    (top / "refs" / "heads").mkdir(parents=True)
    (top / "HEAD").write_text(head)
    return top


def test_a_real_process_tells_how_it_was_started(process: subprocess.Popen[bytes], tmp_path: Path) -> None:
    facts = Fingerprints().of(process.pid)
    assert facts["command"] == f"{sys.executable} train.py --local_rank=* --lr 1"
    assert (facts["program"], facts["cwd"]) == ("train.py", str(tmp_path))
    assert (facts["git.commit"], facts["git.branch"]) == (COMMIT, "topic")
    assert {name: value for name, value in facts.items() if name.startswith("env.")} == {
        "env.NCCL_DEBUG": "INFO",
        "env.HF_TOKEN": "secret",  # hidden by who keeps it
        "env.OMP_NUM_THREADS": "4",
    }
    assert facts["package.pytest"] == pytest.__version__
    assert facts["python"].startswith("3.")
    assert not (tmp_path / "trace").exists()


def test_a_process_that_is_gone_tells_nothing() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    assert Fingerprints().of(child.pid) == {}


def test_versions_are_read_as_text(tmp_path: Path) -> None:
    """A /proc of our own: a driver, a container, a torch whose module would fail if it were imported."""
    proc, root = tmp_path / "proc", tmp_path / "image"
    site = root / "opt/venv/lib/python3.12/site-packages"
    (site / "torch").mkdir(parents=True)
    module = "raise SystemExit\n__version__ = '2.8.0+cu128'\ncuda: Optional[str] = '12.8'\n"
    (site / "torch" / "version.py").write_text(module)
    for name in ("torch-2.8.0", "nvidia_nccl_cu12-2.27.3", "Flash_Attn-2.7.4"):
        (site / f"{name}.dist-info").mkdir()
    (root / "etc").mkdir()
    (root / "etc" / "os-release").write_text('NAME=x\nPRETTY_NAME="Ubuntu 24.04 LTS"\n')
    here = proc / "7"
    here.mkdir(parents=True)
    (here / "root").symlink_to(root)
    (here / "cwd").symlink_to("/work")
    (here / "exe").symlink_to("/opt/venv/bin/python3.12")
    (here / "cmdline").write_bytes(b"/opt/venv/bin/python\0-m\0pkg.train\0")
    (here / "environ").write_bytes(b"NVIDIA_PYTORCH_VERSION=25.04\0NVIDIA_DRIVER_CAPABILITIES=all\0\xff=1\0")
    (here / "maps").write_bytes(b"7f00-7f01 r-xp 0 08:01 1 /usr/lib/libnccl.so.2.27.7\n")
    (here / "cgroup").write_text("0::/kubepods.slice/pod1/cri-1.scope\n")
    (proc / "driver" / "nvidia").mkdir(parents=True)
    line = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 23\nGCC version: gcc 12.2.0\n"
    (proc / "driver" / "nvidia" / "version").write_text(line)
    facts = Fingerprints(proc).of(7)
    wanted = {
        "torch": "2.8.0+cu128",
        "cuda": "12.8",
        "nccl": "2.27.7",
        "python": "3.12",
        "driver": "570.86.15",
        "program": "pkg.train",
        "package.nvidia-nccl-cu12": "2.27.3",
        "package.flash-attn": "2.7.4",
        "image.runtime": "kubernetes",
        "image.os": "Ubuntu 24.04 LTS",
        "image.NVIDIA_PYTORCH_VERSION": "25.04",
    }
    assert {name: facts.get(name) for name in wanted} == wanted
    assert "package.torch" not in facts


def test_commits_are_found_as_git_keeps_them(tmp_path: Path) -> None:
    top = git(tmp_path, COMMIT)
    assert commit_of(str(tmp_path)) == {"git.commit": COMMIT}
    (top / "HEAD").write_text("ref: refs/heads/a/b\n")
    assert commit_of(str(tmp_path)) == {"git.branch": "a/b"}
    packed = f"# pack-refs\n{'f' * 40} refs/heads/other\n{COMMIT} refs/heads/a/b\n^{'e' * 40}\n"
    (top / "packed-refs").write_text(packed)
    assert commit_of(str(tmp_path)) == {"git.commit": COMMIT, "git.branch": "a/b"}
    assert commit_of(str(tmp_path / "refs")) == {}


def test_a_worktree_leads_to_its_repository(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", tmp_path / "a"], check=True)
    run = ["git", "-C", tmp_path / "a", "-c", "user.name=x", "-c", "user.email=x@y"]
    subprocess.run([*run, "commit", "-q", "--allow-empty", "-m", "x"], check=True)
    subprocess.run([*run, "worktree", "add", "-q", tmp_path / "b"], check=True)
    head = subprocess.run([*run, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    assert commit_of(str(tmp_path / "b")) == {"git.commit": head, "git.branch": "b"}


@pytest.mark.parametrize(
    "head",
    ["", "nonsense", "ref: ../../etc/passwd", "ref: refs/heads/../../x", "ref: refs/heads//x", "f" * 39, "\xff\xfe"],
)
def test_a_head_that_is_none_leads_nowhere(tmp_path: Path, head: str) -> None:
    git(tmp_path, head)
    assert commit_of(str(tmp_path)) == {}


def test_links_and_pipes_in_a_repository_are_left_alone(tmp_path: Path) -> None:
    top = git(tmp_path, "")
    (top / "HEAD").unlink()
    os.mkfifo(top / "HEAD")
    assert commit_of(str(tmp_path)) == {}
    (top / "HEAD").unlink()
    (top / "elsewhere").write_text(COMMIT)
    (top / "HEAD").symlink_to(top / "elsewhere")
    assert commit_of(str(tmp_path)) == {}
