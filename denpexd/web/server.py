"""The HTTP server inside the daemon's event loop: uvicorn, without its hold on the signals."""

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Callable, Iterator

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from denpexd.errors import SettingsError

log = logging.getLogger(__name__)

GRACE_SECONDS = 2
BACKLOG = 128
MOST_CONNECTIONS = 128
ASKING = 10.0  # seconds for a whole head
ANSWERING = 60.0  # seconds from the head to the end of the answer


class Patient(H11Protocol):
    """A connection that is closed if its question or its answer takes too long; of too many the oldest one goes.

    Every connection holds a descriptor that a log file may need.
    """

    _limit: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """A connection has `ASKING` seconds to send a whole head."""
        super().connection_made(transport)
        others = [one for one in self.connections if isinstance(one, Patient) and one._limit is not None]
        self._within(ASKING)
        if len(others) >= MOST_CONNECTIONS:
            min(others, key=lambda one: one._limit.when() if one._limit else 0.0)._give_up()

    def data_received(self, data: bytes) -> None:
        """The head is there, or a part of the next one."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._within(ANSWERING)
        elif self._limit is None:
            self._within(ASKING)

    def on_response_complete(self) -> None:
        """From here on the usual limit of idle connections holds."""
        self._within(None)
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Nothing is waited for any more."""
        self._within(None)
        super().connection_lost(exc)

    def _within(self, seconds: float | None) -> None:
        if self._limit is not None:
            self._limit.cancel()
        self._limit = None if seconds is None else self.loop.call_later(seconds, self._give_up)

    def _give_up(self) -> None:
        self._within(None)
        self.transport.abort()


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals belong to the daemon, which stops its parts in order; uvicorn would take and re-raise them."""
        yield


def bind(host: str, port: int, *, any_port: bool = False) -> socket.socket:
    """A listening socket; port 0 lets the system choose. Raises SettingsError that says how to mend it.

    With `any_port` a port in use is no error: a job must not go unwatched for it.
    """
    try:
        return _bound(host, port)
    except SettingsError as error:
        if not (any_port and isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EADDRINUSE):
            raise
    sock = _bound(host, 0)
    taken = sock.getsockname()[1]
    log.warning("port %d on %s is in use (another denpexd?): metrics and console are on port %d", port, host, taken)
    return sock


def _bound(host: str, port: int) -> socket.socket:
    sock: socket.socket | None = None
    try:
        family, kind, proto, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, proto)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(BACKLOG)
        sock.setblocking(False)
    except OSError as error:
        if sock is not None:
            sock.close()
        raise SettingsError(_why(host, port, error)) from error
    return sock


def _why(host: str, port: int, error: OSError) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use; choose another (--port, web.port, DENPEXD_WEB__PORT; 0: any)"
    if error.errno == errno.EACCES:
        return f"port {port} on {host} needs rights that denpexd does not have; set web.port to one above 1023"
    return f"cannot listen on {host}, port {port} ({error.strerror}); set web.host to an address of this machine"


async def serve(app: ASGIApp, sock: socket.socket, *, listening: Callable[[str], None] | None = None) -> None:
    """Serve on a socket from bind() until cancelled, then let running answers finish for GRACE_SECONDS.

    `listening` is called with the address, once it answers. The socket is closed at the end.
    """
    config = uvicorn.Config(
        app,
        http=Patient,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="error",  # its warnings are about what strangers send; they would fill our log
        access_log=False,
        server_header=False,
        backlog=BACKLOG,
        timeout_keep_alive=15,
        timeout_graceful_shutdown=GRACE_SECONDS,
    )
    server = _Server(config)
    url = _url(sock)
    try:
        serving = asyncio.create_task(server.serve(sockets=[sock]), name="web")
        log.info("console and metrics on %s", url)
        if listening is not None:
            listening(url)
        try:
            await asyncio.shield(serving)
        except asyncio.CancelledError:
            server.should_exit = True
            await serving
            raise
    finally:
        sock.close()


def _url(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
