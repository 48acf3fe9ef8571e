"""The daemon's process: its tasks are kept going, signals end it in order, systemd hears how it is.

A fault in a task is said, counted and the task begun again, not for ever. A crash of the process would be worse: it
would come back to the same line, and crash again.
"""

import asyncio
import contextlib
import ctypes
import faulthandler
import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from denpexd.clock import Clock

log = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_WAIT = 1.0
MOST, WITHIN = 5, 600.0  # so many failures of one task within so many seconds are too many
STUCK = 20.0  # seconds without a turn of the event loop; systemd's watchdog comes later
DEADLINE = 15.0  # seconds from SIGTERM to the end whatever hangs; systemd waits for 20
_MMAP_THRESHOLD = -3  # M_MMAP_THRESHOLD of glibc's malloc.h; setting it also keeps it from moving


class Supervisor:
    """`restarts`: how often a task was begun again, by its name."""

    def __init__(self, clock: Clock) -> None:
        self.restarts: Counter[str] = Counter()
        self._clock = clock

    async def keep(self, name: str, work: Callable[[], Coroutine[object, object, None]]) -> None:
        """Do the work until it is done; after a failure again, with growing waits; raises the one that is too many."""
        failures: list[float] = []
        while True:
            try:
                await work()
                return
            except Exception as error:
                now = self._clock.now()
                failures = [*(t for t in failures if now - t < WITHIN), now]
                if len(failures) > MOST:
                    minutes = WITHIN / 60
                    log.critical("%s failed %d times in %.0f minutes: the daemon ends", name, len(failures), minutes)
                    raise
                wait = FIRST_WAIT * 2.0 ** (len(failures) - 1)
                log.exception("%s failed (%s) and begins again in %.0f s", name, type(error).__name__, wait)
                self.restarts[name] += 1
            await self._clock.sleep(wait)


class Loop(asyncio.SelectorEventLoop):
    """An event loop in which a name server that does not answer holds up who asks for that name, and nobody else.

    The threads that all share would be used up by it, and nothing read or stored; and the end waits for those threads.
    """

    def __init__(self) -> None:
        super().__init__()
        self._asked: dict[tuple[object, ...], Future[Any]] = {}

    async def getaddrinfo(
        self, host: Any, port: Any, *, family: int = 0, type: int = 0, proto: int = 0, flags: int = 0
    ) -> Any:
        """As socket.getaddrinfo, in a thread of its own; whoever asks the same meanwhile gets the same answer."""
        what = (host, port, family, type, proto, flags)
        answer = self._asked.get(what)
        if answer is None or answer.done():
            answer = self._asked[what] = Future()
            answer.set_running_or_notify_cancel()
            threading.Thread(target=_look_up, args=(what, answer), name="denpexd-name", daemon=True).start()
        return await asyncio.wrap_future(answer)


def _look_up(what: tuple[Any, ...], answer: "Future[Any]") -> None:
    try:
        answer.set_result(socket.getaddrinfo(*what))
    except BaseException as error:
        answer.set_exception(error)


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run the daemon to its end."""
    with asyncio.Runner(loop_factory=Loop) as runner:
        return runner.run(main)


async def tell_where_it_is_stuck(clock: Clock, after: float = STUCK) -> None:
    """Where the event loop stands still for that many seconds, all stacks go to standard error; until cancelled."""
    if sys.__stderr__ is None:  # closed: its number may be that of any other file by now
        await asyncio.Event().wait()
    try:
        while True:
            faulthandler.dump_traceback_later(after, file=2)
            await clock.sleep(after / 4)
    finally:
        faulthandler.cancel_dump_traceback_later()


def settle_in() -> None:
    """Set the interpreter and the allocator up for one event loop, a few threads and weeks of running.

    Whoever reads files lets others run at every system call, and waits for the interpreter's lock after each: with
    the usual interval (5 ms) a round over 64 files took seconds while a thread wrote a bundle. Rules and modules are
    100,000 objects that never become garbage. glibc gives large buffers back to the system only below a threshold that
    it raises by itself: threads that pack bundles then keep 35 MB.
    """
    sys.setswitchinterval(0.0005)
    gc.freeze()
    gc.enable()
    with contextlib.suppress(OSError):
        if (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
            mallopt(_MMAP_THRESHOLD, 256 << 10)


def sd_notify(state: str, address: str | None) -> bool:
    """Tell systemd how the daemon is; never blocks or raises.

    `state`: "READY=1", "WATCHDOG=1", "STOPPING=1", "STATUS=...", joined by newlines. `address`: the value of
    $NOTIFY_SOCKET, a path, or a name that begins with "@" (abstract). Returns whether systemd was there to take it.
    """
    if not address or address[0] not in "/@":
        return False
    name = "\0" + address[1:] if address.startswith("@") else address
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
            sock.setblocking(False)
            sock.connect(name)
            sock.send(state.encode())
    except OSError as error:
        log.warning("systemd at %s did not take %r: %s", address, state, error)
        return False
    return True


def tell_systemd(state: str) -> None:
    """The same to the systemd that has started us, if it has."""
    sd_notify(state, os.environ.get("NOTIFY_SOCKET"))


def _give_up() -> None:
    log.critical("not ended within %.0f s: ending now; what was not sent yet is sent after the next start", DEADLINE)
    logging.shutdown()
    os._exit(1)


def on_signals(stopping: asyncio.Event, reload: Callable[[], Coroutine[object, object, object]]) -> None:
    """SIGTERM and SIGINT stop in order, a second one at once; SIGHUP takes new rules."""
    loop = asyncio.get_running_loop()
    reloads: set[asyncio.Task[object]] = set()

    def stop() -> None:
        if stopping.is_set():
            os._exit(130)
        stopping.set()
        # A hung mount can hold a thread, and Python waits for threads. What is committed is safe.
        deadline = threading.Timer(DEADLINE, _give_up)
        deadline.daemon = True
        deadline.start()

    def begin_reload() -> None:
        if len(reloads) > 1:  # the one that waits for its turn will read what is in the files now
            return
        task = loop.create_task(reload())
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        loop.add_signal_handler(signal.SIGHUP, begin_reload)
    except (RuntimeError, ValueError):
        log.debug("not in the main thread: signals are not handled here")
