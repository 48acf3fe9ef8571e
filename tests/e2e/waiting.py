"""Waiting in real time for what no notification tells."""

import random
import socket
import sys
import time
import urllib.request
from collections.abc import Callable

# A daemon that may take a minute to end in order: `denpexd` gives up after 15 s, which a slow machine may need.
PATIENT = "from denpexd import cli, supervise; supervise.DEADLINE = 60.0; cli.main()"
DENPEXD = [sys.executable, "-c", PATIENT]


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
        with urllib.request.urlopen(url, timeout=30) as response:
            return bytes(response.read())
    except OSError:
        return None


def free_port() -> int:
    """Of those that Linux gives to nobody by itself: nobody can be given it before it is used."""
    while True:
        with socket.socket() as free:
            port = random.SystemRandom().randrange(10_000, 32_000)
            try:
                free.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
