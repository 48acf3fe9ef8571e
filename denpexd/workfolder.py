"""Temporary folders of our own, and removing those that a killed process has left behind.

The owner holds a lock in its folder, and hands it down to whoever goes on using the folder after it; the kernel frees
the lock with the last of them, whatever ended them.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from denpexd.clock import SystemClock

PREFIXES = ("denpexd-exec-", "denpexd-stdin-")
_LOCK = "owner.lock"
_YOUNG = 60.0  # seconds in which its owner may not have locked it yet


@contextlib.contextmanager
def work_folder(prefix: str) -> Iterator[tuple[Path, int]]:
    """A folder for this process and the descriptor of its lock, to be handed down; both are gone afterwards."""
    remove_left_behind()
    folder = Path(tempfile.mkdtemp(prefix=prefix))
    lock = -1
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield folder, lock
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        if lock >= 0:
            os.close(lock)


def remove_left_behind() -> None:
    """Remove our folders whose owners have all ended. Those of other users, and any without a lock, stay."""
    with contextlib.suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for entry in [entry for entry in entries if entry.name.startswith(PREFIXES)]:
            with contextlib.suppress(OSError):
                _remove_if_left(entry)


def _remove_if_left(entry: "os.DirEntry[str]") -> None:
    info = entry.stat(follow_symlinks=False)
    young = SystemClock().wall() - info.st_ctime < _YOUNG
    if young or info.st_uid != os.geteuid() or not entry.is_dir(follow_symlinks=False):
        return
    lock = os.open(Path(entry.path, _LOCK), os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(entry.path, ignore_errors=True)
    finally:
        os.close(lock)
