"""Reading where a read can block: network file systems, on threads of their own, with a time limit.

A hung mount must cost one thread and nothing else: each mount point has its own thread, so a dead server does not
delay a living one, and the threads are daemons, so it cannot hold up the end of the process either.
"""

import asyncio
import queue
import re
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from aiofiles.ospath import wrap  # type: ignore[attr-defined]  # the one place where every version has it

from denpexd.clock import Clock
from denpexd.errors import SourceError
from denpexd.ingest.tail import CHUNK, Tail, TailRead, new_buffer

P = ParamSpec("P")
T = TypeVar("T")

_NETWORK = re.compile(
    r"9p|acfs|afs|beegfs|ceph|cifs|coda|fuse(\..*)?|gfs2|glusterfs|gpfs|lustre|ncpfs|nfs4?|ocfs2|orangefs|panfs|prl_fs"
    r"|pvfs2|smb3|smbfs|vboxsf|virtiofs|vmhgfs|wekafs"
)
_ESCAPES = {"\\040": " ", "\\011": "\t", "\\012": "\n", "\\134": "\\"}


class Mounts:
    """The mount table as it was when this was made (make a new one at each rescan)."""

    def __init__(self, table: str | None = None) -> None:
        self.table = text = Path("/proc/self/mounts").read_text(errors="surrogateescape") if table is None else table
        self._kinds: dict[str, str] = {}
        for line in text.splitlines():
            fields = line.split(" ")
            if len(fields) >= 3:
                self._kinds[_unescape(fields[1])] = fields[2]

    def kind(self, mount: str) -> str:
        """The type of the file system that is mounted there."""
        return self._kinds.get(mount, "")

    def remote(self, path: str | Path) -> str | None:
        """The mount point of a network or user-space file system that the path lies on, or None for a local one.

        Follows links by hand and stops at the first remote directory: a look into a hung mount would hang as well.
        """
        todo = list(Path(path).absolute().parts[:0:-1])
        at, links = Path("/"), 0
        while True:
            kind = self._kinds.get(str(at))
            if kind is not None and _NETWORK.fullmatch(kind):
                return str(at)
            if not todo:
                return None
            part = todo.pop()
            step = at.parent if part == ".." else at / part
            target = None if part == ".." or str(step) in self._kinds else _link(step)
            if target is None or links > 40:
                at = step
                continue
            links += 1
            todo.extend(part for part in reversed(target.parts) if part != "/")
            at = Path("/") if target.is_absolute() else at


class RemoteReader:
    """Runs blocking work on the thread of its mount point; `timeout` in seconds of the clock.

    Give remote tails an OpenFiles of their own, so that a hung mount cannot hold its lock against local files.
    """

    def __init__(self, clock: Clock, *, timeout: float = 10.0) -> None:
        self._clock, self._timeout = clock, timeout
        self._threads: dict[str, _MountThread] = {}
        self._pending: dict[Tail, asyncio.Future[TailRead]] = {}

    async def read_remote(self, tail: Tail, mount: str) -> TailRead:
        """As `Tail.read`; "unreadable" if the mount does not answer in time. A late answer comes with the next call."""
        started = self._pending.get(tail)
        event = "" if started else "unreadable"  # said once for each read that hangs
        if started is None:
            thread = self._thread(mount)
            read = wrap(tail.read)(self._buffer(mount), self._clock.now(), executor=thread)
            started = self._pending[tail] = asyncio.ensure_future(read)
        if await self._in_time(started):
            del self._pending[tail]
            return started.result()
        tail.error = f"{mount} has not answered for {self._timeout:g} s, {tail.path} cannot be read: check the mount"
        return TailRead(b"", 0, event=event)

    async def call(self, mount: str, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Any other blocking work on that mount (a directory scan); SourceError if it does not answer in time."""
        work = asyncio.ensure_future(wrap(function)(*args, executor=self._thread(mount), **kwargs))
        if await self._in_time(work):
            result: T = work.result()
            return result
        work.cancel()
        raise SourceError(f"{mount} has not answered for {self._timeout:g} s: check the mount")

    def close(self) -> None:
        """Let the threads end; one that hangs in a system call is abandoned."""
        for read in self._pending.values():
            read.cancel()
        for thread in self._threads.values():
            thread.shutdown(wait=False)

    async def _in_time(self, work: "asyncio.Future[T]") -> bool:
        limit = asyncio.ensure_future(self._clock.sleep(self._timeout))
        both: set[asyncio.Future[Any]] = {work, limit}
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            limit.cancel()
        return work.done()

    def _thread(self, mount: str) -> "_MountThread":
        if mount not in self._threads:
            self._threads[mount] = _MountThread(mount)
        return self._threads[mount]

    def _buffer(self, mount: str) -> memoryview:
        return self._thread(mount).buffer


class _MountThread(Executor):
    """One daemon thread and its read buffer (ThreadPoolExecutor's threads are joined at exit, even hung ones)."""

    def __init__(self, mount: str) -> None:
        self.buffer = new_buffer(CHUNK)
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name=f"denpexd-read {mount}", daemon=True).start()

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> "Future[T]":
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as problem:
                future.set_exception(problem)
            else:
                future.set_result(result)

        self._work.put(run)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            work()


def _unescape(text: str) -> str:
    for escape, character in _ESCAPES.items():
        text = text.replace(escape, character)
    return text


def _link(path: Path) -> Path | None:
    try:
        return path.readlink()
    except OSError:
        return None
