"""The SQLite file under the outbox: opened by one daemon only, checked, set aside when damaged, written in batches.

Nothing here knows what is stored. WAL with synchronous=FULL, so what a returned `write` wrote survives kill -9 and
power loss; on network file systems, where WAL is unsafe, the rollback journal.
"""

import contextlib
import errno
import fcntl
import logging
import os
import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TextIO

from denpexd.errors import StateError

log = logging.getLogger(__name__)

Statement = tuple[str, tuple[Any, ...]]

BUSY_SECONDS = 5.0
WAL_LIMIT = 64 << 20  # bytes that the write-ahead log keeps on disk once nobody reads old rows
APPLICATION_ID = 0x64707864  # "dpxd": another program's database is refused, never written into
NETWORK_FILESYSTEMS = ("nfs", "cifs", "smb", "lustre", "gpfs", "9p", "fuse", "ceph", "beegfs", "glusterfs", "afs")
_NO_ROOM = {sqlite3.SQLITE_IOERR_SHMOPEN, sqlite3.SQLITE_IOERR_SHMSIZE, sqlite3.SQLITE_IOERR_SHMMAP}
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


class Database:
    """One file, one process; not safe for concurrent calls, the caller serialises them."""

    def __init__(self, path: Path, schemas: Sequence[Sequence[str]]) -> None:
        self.path, self._schemas = path, schemas
        self._lock: TextIO | None = None
        self._connection: sqlite3.Connection | None = None
        self._inode = 0

    def open(self) -> str | None:
        """Take the lock, open or make the file; returns what was set aside when it was damaged, else None.

        StateError if another daemon has it, if it cannot be used, or if it is of a newer schema.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._take_lock()
            recovered = self._connect_or_set_aside()
            self._inode = self.path.stat().st_ino
        except OSError as error:
            self.close()
            full = error.errno in (errno.ENOSPC, errno.EDQUOT)
            mend = "make room there" if full else "give that user the folder"
            raise StateError(
                f"state {self.path} cannot be used by user id {os.getuid()}: {error.strerror}; "
                f"{mend} or choose another state_dir"
            ) from error
        except sqlite3.Error as error:
            self.close()
            raise StateError(f"state {self.path} cannot be opened: {error}") from error
        except StateError:
            self.close()
            raise
        return recovered

    def _take_lock(self) -> None:
        name = self.path.with_name(self.path.name + ".lock")
        descriptor = os.open(name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        lock = os.fdopen(descriptor, "r+", encoding="ascii", errors="replace")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = lock.read(20).strip() or "unknown"
            lock.close()
            raise StateError(
                f"state {self.path} is in use by process {holder}; stop that daemon or choose another state_dir"
            ) from None
        except OSError:
            lock.close()
            raise
        # The kernel frees the lock when the process dies; the file stays, removing it would be a race.
        self._lock = lock
        with contextlib.suppress(OSError):  # on a full disk nobody is told by whom it is locked, and it is
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)

    def _connect_or_set_aside(self) -> str | None:
        try:
            self._connect()
        except sqlite3.DatabaseError as error:
            if error.sqlite_errorcode & 0xFF not in _DAMAGED:
                raise
            self._disconnect()
            aside = self._set_aside()
            self._connect()
            return f"{self.path} was damaged ({error}); it was kept as {aside} and a new state was started"
        return None

    def _connect(self) -> None:
        os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        try:
            self._attach("NORMAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode not in _NO_ROOM:
                raise
            # A full disk has no room for the index of the log that processes share: do without, and without sharing.
            self._disconnect()
            self._attach("EXCLUSIVE")

    def _attach(self, locking: str) -> None:
        connection = self._connection = sqlite3.connect(
            self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        connection.execute(f"PRAGMA locking_mode={locking}")
        state = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
        if state != "ok":
            damaged = sqlite3.DatabaseError(state)
            damaged.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            raise damaged
        self._check_version(connection)
        mode = "DELETE" if on_network(self.path, _mounts()) else "WAL"
        connection.execute(f"PRAGMA journal_mode={mode}")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute(f"PRAGMA journal_size_limit={WAL_LIMIT}")

    def _check_version(self, connection: sqlite3.Connection) -> None:
        found = connection.execute("PRAGMA user_version").fetchone()[0]
        owner = connection.execute("PRAGMA application_id").fetchone()[0]
        empty = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0] == 0
        if not empty and owner != APPLICATION_ID:
            raise StateError(f"{self.path} is a database of another program; choose another state_dir")
        newest = len(self._schemas)
        if found > newest:
            raise StateError(
                f"state {self.path} has schema {found}, this denpexd knows {newest}: "
                "run the newer denpexd, or move the file away to start afresh"
            )
        if empty:
            self._bring_up(connection, 0)
        elif found < newest:
            self._migrate(connection, found)
        for older in range(1, newest):  # of a migration that worked, but for its last step
            self._copy(older).unlink(missing_ok=True)

    def _copy(self, schema: int) -> Path:
        return self.path.with_name(f"{self.path.name}.schema-{schema}")

    def _migrate(self, connection: sqlite3.Connection, found: int) -> None:
        """From an older schema to ours, all or nothing; a copy of the old file is kept until that has worked."""
        copy = self._copy(found)
        try:
            copy.unlink(missing_ok=True)
            os.close(os.open(copy, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
            with contextlib.closing(sqlite3.connect(copy)) as target:
                connection.backup(target)
            self._bring_up(connection, found)
        except (sqlite3.Error, OSError) as error:
            raise StateError(
                f"state {self.path} cannot be brought from schema {found} to {len(self._schemas)}: {error}; "
                f"it is as it was, and the denpexd before this one can use it (a copy may be in {copy})"
            ) from error
        log.info("state %s was brought from schema %d to %d", self.path, found, len(self._schemas))

    def _bring_up(self, connection: sqlite3.Connection, found: int) -> None:
        connection.execute("BEGIN IMMEDIATE")
        try:
            for statements in self._schemas[found:]:
                for sql in statements:
                    connection.execute(sql)
            connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version={len(self._schemas)}")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _set_aside(self) -> Path:
        number = 1
        while (aside := self.path.with_name(f"{self.path.name}.corrupt-{number}")).exists():
            number += 1
        self.path.rename(aside)
        for suffix in ("-wal", "-shm", "-journal"):
            part = self.path.with_name(self.path.name + suffix)
            if part.exists():
                part.rename(aside.with_name(aside.name + suffix))
        return aside

    def write(self, statements: Iterable[Statement]) -> None:
        """All statements in one transaction, on disk when this returns; StateError and nothing written otherwise."""
        connection = self._require()
        try:
            if self.path.stat().st_ino != self._inode:
                raise StateError(f"state {self.path} was replaced while in use; restart the daemon")
            connection.execute("BEGIN IMMEDIATE")
            for sql, values in statements:
                connection.execute(sql, _storable(values))
            connection.execute("COMMIT")
        except (sqlite3.Error, OSError) as error:
            if connection.in_transaction:
                try:
                    connection.execute("ROLLBACK")
                except sqlite3.Error:
                    log.debug("rollback failed, SQLite has ended the transaction itself", exc_info=True)
            raise StateError(f"state {self.path} cannot be written: {error}") from error

    def rows(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """The rows of a query; StateError if the file cannot be read."""
        try:
            return self._require().execute(sql, _storable(values)).fetchall()
        except sqlite3.Error as error:
            raise StateError(f"state {self.path} cannot be read: {error}") from error

    def _require(self) -> sqlite3.Connection:
        if self._connection is None:
            raise StateError(f"state {self.path} is not open")
        return self._connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def close(self) -> None:
        """Close the file and free the lock; harmless when not open."""
        self._disconnect()
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def read_rows(path: Path, sql: str) -> list[tuple[Any, ...]]:
    """The rows of a query on a file that a daemon may have open; nothing is locked, made or changed."""
    try:
        connection = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True, timeout=BUSY_SECONDS)
        try:
            return connection.execute(sql).fetchall()
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise StateError(f"state {path} cannot be read by user id {os.getuid()}: {error}") from error


def _storable(values: Sequence[object]) -> list[object]:
    """Text from bytes that were not UTF-8 cannot be stored as it is; one such value must not block all others."""
    return [v.encode("utf-8", "backslashreplace").decode("utf-8") if isinstance(v, str) else v for v in values]


def on_network(path: Path, mounts: str) -> bool:
    """Whether a path lies on a network or user-space file system, from the text of /proc/self/mounts."""
    real, best, kind = path.resolve(), "", ""
    for line in mounts.splitlines():
        _, point, type_, *_ = [*line.split(" "), "", ""]
        point = point.replace("\\040", " ")
        if len(point) >= max(1, len(best)) and real.is_relative_to(point):
            best, kind = point, type_
    return kind.startswith(NETWORK_FILESYSTEMS)


def _mounts() -> str:
    try:
        return Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
