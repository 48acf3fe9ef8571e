"""Shorten the wait for the next look at the files. Polling is the truth; what the kernel tells only makes it faster.

watchdog loses events silently, dies of handler errors, is blind on network mounts and behind links. So a full look is
due every `sweep` seconds whatever it says, and any sign that it is not well makes `wait` answer "look at everything".
"""

import asyncio
import logging
import os
import threading
from collections.abc import Iterable
from pathlib import Path

from watchdog.events import (
    DirCreatedEvent,
    FileCreatedEvent,
    FileDeletedEvent,
    FileModifiedEvent,
    FileMovedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers import Observer
from watchdog.observers.api import BaseObserver, ObservedWatch

from denpexd.clock import Clock

log = logging.getLogger(__name__)

_EVENTS: list[type[FileSystemEvent]] = [
    DirCreatedEvent,
    FileCreatedEvent,
    FileDeletedEvent,
    FileModifiedEvent,
    FileMovedEvent,
]


class Waker:
    """Wakes the loop it is made in. `enabled=False`: polling only. `keep` touched paths at most, `directories` watched.

    Counters: `overflows` (events lost), `dead` (watches or the observer died). `polling` says why there is no
    or not everywhere a watch ("" if all is well).
    """

    def __init__(self, clock: Clock, *, enabled: bool = True, keep: int = 4096, directories: int = 512) -> None:
        self._clock, self._keep, self._most = clock, keep, directories
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()
        self._swept = clock.now()
        self._watches: dict[str, ObservedWatch] = {}
        self._refused: set[str] = set()
        self._names: dict[str, str] = {}  # real directory -> the name discovery gave it
        self._ears = _Ears(self)
        self._lock = threading.Lock()
        self._touched: set[str] = set()
        self._everything = False
        self.overflows = self.dead = 0
        self.polling = "" if enabled else "switched off"
        self._observer = self._start() if enabled else None

    def watch(self, directories: Iterable[str | Path]) -> None:
        """Watch exactly these local directories (not their subdirectories); call again when they change.

        Starts and joins threads: may run in a thread, one call at a time.
        """
        if self._observer is None:
            return
        wanted = {os.path.realpath(name): str(name) for name in directories}
        for real in set(self._watches) - wanted.keys():
            self._forget(real)
        self._names = wanted
        for real in sorted(wanted.keys() - self._watches.keys() - self._refused):
            if len(self._watches) >= self._most:
                self._degrade(f"more than {self._most} directories: the others are polled")
                break
            self._add(real)
        self._refused &= wanted.keys()

    async def wait(self, sweep: float, longest: float = float("inf")) -> set[str] | None:
        """The paths touched since the last call, as soon as there are any; None: look at everything.

        None comes at least every `sweep` seconds of the clock, counted from the last None; after `longest` seconds
        without news the set is empty.
        """
        self._check()
        left = min(longest, self._swept + sweep - self._clock.now())
        if left > 0 and not self._woken.is_set():
            await self._sleep(left)
        else:
            await self._clock.sleep(0)
        with self._lock:
            touched, everything = self._touched, self._everything
            self._touched, self._everything = set(), False
            self._woken.clear()
        now = self._clock.now()
        if everything or now >= self._swept + sweep:
            self._swept = now
            return None
        return touched

    def close(self) -> None:
        """Stop watching; the threads end."""
        logging.getLogger("watchdog").removeHandler(self._ears)
        if self._observer is not None:
            self._observer.stop()
            if self._observer.is_alive():
                self._observer.join()
            self._observer = None
        self._watches.clear()

    async def _sleep(self, seconds: float) -> None:
        tasks = {asyncio.ensure_future(self._woken.wait()), asyncio.ensure_future(self._clock.sleep(seconds))}
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()

    # Called from watchdog's threads

    def touch(self, paths: Iterable[str]) -> None:
        """Something happened to these paths (any thread)."""
        with self._lock:
            quiet = not self._touched and not self._everything
            if len(self._touched) >= self._keep:
                self._everything = True
            else:
                self._touched.update(paths)
        if quiet:
            self._wake()

    def lost(self, *, overflow: bool = False) -> None:
        """Events were lost, or directories appeared: everything has to be looked at (any thread)."""
        with self._lock:
            self._everything = True
            self.overflows += overflow
        self._wake()

    def _wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._woken.set)
        except RuntimeError:
            pass  # the loop is closed; an exception here would only kill the observer noisily

    def given_name(self, path: str) -> str:
        """The path under the name of its directory that discovery knows."""
        directory, _, name = path.rpartition("/")
        return f"{self._names.get(directory, directory)}/{name}"

    # The observer's health

    def _start(self) -> BaseObserver | None:
        try:
            observer = Observer()
            observer.start()
        except (OSError, RuntimeError) as problem:  # no instance, no descriptor, or no thread to be had
            self._degrade(
                f"{getattr(problem, 'strerror', None) or problem}: raise fs.inotify.max_user_instances (sysctl)"
            )
            return None
        logging.getLogger("watchdog").addHandler(self._ears)
        return observer

    def _add(self, real: str) -> None:
        observer = self._observer
        if observer is None:
            return  # it was found dead meanwhile
        try:
            self._watches[real] = observer.schedule(_Hand(self), real, recursive=False, event_filter=_EVENTS)
        except OSError as problem:
            if os.path.isdir(real):
                self._refused.add(real)
                self._degrade(f"{real}: {problem.strerror or problem}: raise fs.inotify.max_user_watches (sysctl)")
        except RuntimeError as problem:  # no more threads
            self._refused.add(real)
            self._degrade(f"{real}: {problem}")

    def _forget(self, real: str) -> None:
        watch = self._watches.pop(real, None)
        if self._observer is None or watch is None:
            return
        try:
            self._observer.unschedule(watch)
        except (KeyError, OSError, RuntimeError):
            log.debug("watch of %s was gone already", real)

    def _check(self) -> None:
        """Find out whether all threads that should listen still do."""
        if self._observer is None:
            return
        # watchdog has no public way to ask whether its reader lives; where there is none, the other signs must do.
        reader = getattr(self._observer, "_inotify_fd", None)
        if not self._observer.is_alive() or (isinstance(reader, threading.Thread) and not reader.is_alive()):
            self.dead += 1
            self.close()
            self._degrade("the watching thread died")
            self.lost()
            return
        alive = {emitter.watch for emitter in self._observer.emitters.copy() if emitter.is_alive()}
        for real in [real for real, watch in list(self._watches.items()) if watch not in alive]:
            # Its directory was deleted, or the emitter died; `watch` tries again if discovery still wants it.
            self._forget(real)
            self.dead += 1
            self.lost()

    def _degrade(self, why: str) -> None:
        if self.polling != why:
            log.warning("Not watching for changes (%s); the files are polled instead", why)
        self.polling = why


class _Hand(FileSystemEventHandler):
    """Hands events over; must not raise, that would kill the observer."""

    def __init__(self, waker: Waker) -> None:
        self._waker = waker

    def dispatch(self, event: FileSystemEvent) -> None:
        if event.is_directory:
            self._waker.lost()
            return
        paths = [os.fsdecode(path) for path in (event.src_path, event.dest_path) if path]
        self._waker.touch([self._waker.given_name(path) for path in paths])


class _Ears(logging.Handler):
    """watchdog tells of an overflow in its log only."""

    def __init__(self, waker: Waker) -> None:
        super().__init__(logging.WARNING)
        self._waker = waker

    def emit(self, record: logging.LogRecord) -> None:
        if "overflow" in record.getMessage().lower():
            self._waker.lost(overflow=True)
