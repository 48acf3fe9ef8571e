"""Tells systemd how the daemon is: a datagram to the socket that systemd names in $NOTIFY_SOCKET."""

import logging
import socket

log = logging.getLogger(__name__)


def sd_notify(state: str, address: str | None) -> bool:
    """Send `state` ("READY=1", "WATCHDOG=1", "STOPPING=1", "STATUS=...", joined by newlines); never blocks or raises.

    `address` is the value of $NOTIFY_SOCKET: a path, or a name that begins with "@" (abstract). Returns whether systemd
    was there to take it.
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
