"""`denpexd status` and `denpexd top`: what a running daemon knows, asked over its HTTP API."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from denpexd.terminal import EXISTING, color, fail, form, say, say_json, settings_of, width

if TYPE_CHECKING:
    from denpexd.client import Client

F = TypeVar("F", bound=Callable[..., object])


def asks_daemon(command: F) -> F:
    """The options that say which daemon is asked; `client` makes a client of them."""
    for option in (
        click.option("--token-file", type=EXISTING, help="File with its token (web.token_file)."),
        click.option("--url", help="Where it listens, if the configuration does not tell: http://HOST:PORT."),
        click.option("-c", "--config", type=EXISTING, help="Configuration file (YAML) of the daemon."),
    ):
        command = option(command)
    return command


def client(config: Path | None, url: str | None, token_file: Path | None) -> "Client":
    """The client for the daemon that these options name."""
    from denpexd.client import client_of

    return client_of(settings_of(config, {}), url, token_file)


@click.command()
@asks_daemon
@form("text", "json")
@click.option("--no-color", is_flag=True, help="Plain text.")
def status(config: Path | None, url: str | None, token_file: Path | None, form: str, no_color: bool) -> None:
    """What the running daemon knows: open incidents, jobs, destinations of alerts, its own health.

    Exit code 0: nothing is open and all is well, 1: an incident is open or something is wrong with the daemon,
    2: no daemon answers.
    """
    from denpexd.clock import SystemClock
    from denpexd.status import as_json, as_text, ask

    with client(config, url, token_file) as daemon:
        standing = ask(daemon, SystemClock().wall())
    if form == "json":
        say_json(as_json(standing))
    else:
        say(as_text(standing, color=color(no_color), width=width()))
    sys.exit(0 if standing.well else 1)


@click.command()
@asks_daemon
@click.option("--every", type=click.FloatRange(0.2, 60), default=2.0, show_default=True, help="Seconds between looks.")
def top(config: Path | None, url: str | None, token_file: Path | None, every: float) -> None:
    """Jobs, their ranks and open incidents of the running daemon, live.

    Arrows and Tab move, Enter explains an incident, Space pauses, r looks at once, q quits. Needs the extra `top`.
    """
    import importlib.util

    if importlib.util.find_spec("textual") is None:
        fail("denpexd top needs textual: pip install 'denpexd[top]'; denpexd status shows the same once")
    from denpexd.clock import SystemClock
    from denpexd.status import Asked
    from denpexd.top import Top

    with client(config, url, token_file) as daemon:
        source = Asked(daemon, SystemClock())
        source.look()  # nobody there: say so before the screen changes
        Top(source, every=every).run()
