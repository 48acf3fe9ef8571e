"""Waiting in real time for what no notification tells."""

import socket
import time
import urllib.request
from collections.abc import Callable


def until(holds: Callable[[], object], seconds: float, what: str = "") -> None:
    """Poll; fails with what was waited for."""
    end = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > end:
            raise TimeoutError(f"not within {seconds:.0f} s: {what}")
        time.sleep(0.1)


def answer(url: str) -> bytes | None:
    """The body, None if nobody answers."""
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return bytes(response.read())
    except OSError:
        return None


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
