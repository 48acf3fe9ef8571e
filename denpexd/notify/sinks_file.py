"""The file: the verdict of every message as a line of JSON, for whatever collects files.

It is opened for each line, so a file that logrotate moved away is simply made anew; a lock keeps two daemons apart. A
line is written whole: what a crash or a full disk left behind is ended before the next one begins.
"""

import asyncio
import errno
import fcntl
import os
from pathlib import Path

from denpexd.errors import DeliveryError
from denpexd.notify.rows import Row
from denpexd.notify.text import json_text
from denpexd.settings_sinks import FileSink as FileOptions


class FileSink:
    """Appends; moves the file to PATH.1, PATH.2, ... when it would grow beyond its size."""

    max_attempts: int | None = None

    def __init__(self, name: str, options: FileOptions) -> None:
        self.name = name
        self._path, self._size, self._keep = options.path, options.size, options.keep

    async def send(self, row: Row) -> None:
        """Append one line and wait until it is on disk; DeliveryError if that is not possible now."""
        await asyncio.to_thread(self._append, self.preview(row).encode("utf-8", "backslashreplace"))

    def preview(self, row: Row) -> str:
        """The line."""
        return json_text(dict(row.delivery.verdict)) + "\n"

    def _append(self, line: bytes) -> None:
        try:
            if self._full(len(line)):
                self._move()
            file = self._open()
            try:
                size = os.fstat(file).st_size
                begin = b"\n" if size and os.pread(file, 1, size - 1) != b"\n" else b""
                if os.write(file, begin + line) != len(begin + line):
                    os.ftruncate(file, size)  # half a line is none
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fsync(file)
            finally:
                os.close(file)
        except OSError as error:
            raise DeliveryError(f"{self._path} cannot be written: {error.strerror}", retryable=True) from error

    def _full(self, more: int) -> bool:
        try:
            size = self._path.lstat().st_size
        except FileNotFoundError:
            return False
        return size > 0 and size + more > self._size

    def _open(self) -> int:
        """The file that has this name now, locked."""
        while True:
            file = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _same(file, self._path):
                    return file
            except OSError:
                os.close(file)
                raise
            os.close(file)  # it was moved between the two: take the new one

    def _move(self) -> None:
        """PATH to PATH.1, PATH.1 to PATH.2, and so on; the last one goes."""
        os.close(self._open())  # not while another daemon writes
        for number in range(self._keep, 0, -1):
            older = self._path if number == 1 else self._numbered(number - 1)
            if os.path.lexists(older):
                older.replace(self._numbered(number))
        if self._keep == 0:
            self._path.unlink()

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")


def _same(file: int, path: Path) -> bool:
    try:
        there = path.lstat()
    except FileNotFoundError:
        return False
    here = os.fstat(file)
    return (here.st_dev, here.st_ino) == (there.st_dev, there.st_ino)
