"""Which folder below `state_dir` a daemon keeps its state in, when it is not alone on its node."""

import errno
import fcntl
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from denpexd.clock import Clock
from denpexd.errors import StateError
from denpexd.notify.database import read_rows
from denpexd.notify.outbox import Store
from denpexd.notify.rows import DEAD, Row, delivery_row

log = logging.getLogger(__name__)

FILE = "denpexd.sqlite"
_MOST = 100  # daemons at the same time


def of_daemon(folder: Path, clock: Clock, otherwise: str | None = None) -> Store:
    """The open state of a daemon that goes on where the one before it stopped.

    `otherwise`: where another daemon has the folder, use the one of this name below it; None: that is a StateError.
    """
    try:
        return _open(folder, clock)
    except StateError:
        if otherwise is None or not _in_use(folder):
            raise
    store, chosen = _first_free(folder, otherwise, clock)
    log.warning("another daemon keeps its state in %s: this one uses %s", folder, chosen)
    return store


def of_command(folder: Path, clock: Clock) -> Store:
    """The open state of a daemon beside one command, which takes over nothing but the unsent alerts of earlier ones.

    Commands at the same time have folders of their own below `folder`; one with unsent alerts is preferred.
    """
    for slot in _slots(folder, "exec"):
        if not os.path.exists(slot / FILE):
            break
        try:
            store = _open(slot, clock)
        except StateError:
            continue  # in use; what else may be wrong with it is said if it is needed
        if store.pending():
            return _without_the_past(store)
        store.close()
    store, _ = _first_free(folder, "exec", clock)
    return _without_the_past(store)


def dead_letters(folder: Path) -> list[Row]:
    """What was given up by the daemons that keep their state in this folder or below it, also while they run.

    StateError if there is none, or if it cannot be read.
    """
    files = [*folder.glob(FILE), *folder.glob(f"*/{FILE}")]
    if not files:
        raise StateError(f"no daemon has kept its state in {folder}; give its state_dir (--state-dir, -c)")
    found = [delivery_row(values) for file in files for values in read_rows(file, DEAD)]
    return sorted(found, key=lambda row: row.created)


def _without_the_past(store: Store) -> Store:
    """The commands that those incidents were about have ended."""
    store.commit(incidents=[{**verdict, "state": "closed"} for verdict in store.incidents("open")])
    return store


def _first_free(folder: Path, name: str, clock: Clock) -> tuple[Store, Path]:
    failed = StateError(f"{_MOST} daemons keep their state in {folder}; choose another state_dir")
    for slot in _slots(folder, name):
        try:
            return _open(slot, clock), slot
        except StateError as error:
            if not _in_use(slot):
                raise
            failed = error
    raise failed


def _slots(folder: Path, name: str) -> Iterator[Path]:
    return (folder / (name if number == 1 else f"{name}-{number}") for number in range(1, _MOST + 1))


def _open(folder: Path, clock: Clock) -> Store:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        why = _why(folder, error)
        raise StateError(f"state_dir {folder} cannot be made: {why}; choose another one (--state-dir)") from error
    return Store(folder / FILE, clock).open()


def _why(folder: Path, error: OSError) -> str:
    """What stands in the way of a folder, named where the system only hints at it."""
    for above in (folder, *folder.parents):
        if os.path.lexists(above) and not os.path.isdir(above):
            return f"{above} is not a folder"
    if error.errno == errno.ENOENT:  # it was about to make all that was missing
        return f"nothing can be made in {Path(error.filename).parent}"
    return f"{error.strerror} for user id {os.getuid()}"


def _in_use(folder: Path) -> bool:
    """Whether a living daemon holds the lock of the state there."""
    try:
        with (folder / f"{FILE}.lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
