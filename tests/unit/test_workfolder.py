"""Temporary folders end with their owners, whatever ended those."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from denpexd import workfolder
from denpexd.workfolder import remove_left_behind, work_folder

PREFIX = "denpexd-exec-"
OWNER = """
import subprocess, sys
from denpexd.workfolder import work_folder
with work_folder("denpexd-exec-") as (folder, lock):
    heir = subprocess.Popen(["sleep", "60"], pass_fds=[lock], stdout=subprocess.DEVNULL) if sys.argv[1:] else None
    print(folder, heir.pid if heir else 0, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(workfolder, "_YOUNG", 0.0)
    return tmp_path


def killed(*arguments: str) -> tuple[Path, int]:
    """The folder that a killed owner leaves, and the process that was handed its lock."""
    owner = subprocess.Popen([sys.executable, "-c", OWNER, *arguments], stdin=-1, stdout=-1, text=True)
    assert owner.stdout is not None
    folder, heir = owner.stdout.readline().split()
    owner.kill()
    owner.communicate()
    return Path(folder), int(heir)


def test_a_folder_ends_with_its_use() -> None:
    with work_folder(PREFIX) as (folder, _):
        assert folder.is_dir()
        remove_left_behind()
        assert folder.is_dir(), "it is in use"
    assert not folder.exists()


def test_what_a_killed_owner_leaves_is_removed_at_the_next_start() -> None:
    left, _ = killed()
    (left / "state").mkdir()
    (left / "stdout.log").touch()
    with work_folder(PREFIX):
        assert not left.exists()


def test_a_folder_is_left_alone_while_somebody_uses_it_on(heirs: list[int]) -> None:
    left, heir = killed("with an heir")
    heirs.append(heir)
    remove_left_behind()
    assert left.is_dir()
    os.kill(heir, 9)
    for _ in range(1000):
        remove_left_behind()
        if not left.exists():
            break
    assert not left.exists()


@pytest.fixture
def heirs() -> Iterator[list[int]]:
    """Ended at the end, if the test did not."""
    pids: list[int] = []
    yield pids
    for pid in pids:
        try:
            os.kill(pid, 9)
        except ProcessLookupError:
            pass


def test_folders_without_a_lock_links_and_new_ones_are_left_alone(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "denpexd-exec-other").mkdir()
    elsewhere = place / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "owner.lock").touch()
    (place / "denpexd-exec-link").symlink_to(elsewhere)
    (place / "denpexd-demo-x").mkdir()
    (place / "denpexd-demo-x" / "owner.lock").touch()
    remove_left_behind()
    assert len(list(place.iterdir())) == 4
    left, _ = killed()
    monkeypatch.setattr(workfolder, "_YOUNG", 60.0)
    remove_left_behind()
    assert left.exists()
