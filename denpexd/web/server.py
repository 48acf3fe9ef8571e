"""The HTTP server inside the daemon's event loop: uvicorn, without its hold on the signals."""

import asyncio
import contextlib
import errno
import logging
import socket
from collections.abc import Callable, Iterator

import uvicorn
from starlette.types import ASGIApp

from denpexd.errors import SettingsError

log = logging.getLogger(__name__)

GRACE_SECONDS = 2
BACKLOG = 128


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals belong to the daemon, which stops its parts in order; uvicorn would take and re-raise them."""
        yield


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 lets the system choose. Raises SettingsError that says how to mend it."""
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
        return f"port {port} on {host} is in use; set web.port or DENPEXD_WEB__PORT"
    if error.errno == errno.EACCES:
        return f"port {port} on {host} needs rights that denpexd does not have; set web.port to one above 1023"
    return f"cannot listen on {host}, port {port} ({error.strerror}); set web.host to an address of this machine"


async def serve(app: ASGIApp, sock: socket.socket, *, listening: Callable[[str], None] | None = None) -> None:
    """Serve on a socket from bind() until cancelled, then let running answers finish for GRACE_SECONDS.

    `listening` is called with the address, once it answers. The socket is closed at the end.
    """
    config = uvicorn.Config(
        app,
        http="h11",
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="warning",
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
