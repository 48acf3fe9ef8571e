"""Whether the port is free and the destinations of alerts answer, up to TLS: nothing is sent."""

import asyncio
import errno
import importlib.util
import os
import socket
import ssl
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from denpexd.client import client_of
from denpexd.errors import DenpexdError, SettingsError
from denpexd.findings import Finding, bad, ok, warn
from denpexd.notify.sinks import send_test
from denpexd.settings import Settings, Web
from denpexd.settings_hub import Hub
from denpexd.settings_sinks import FileSink, Sink
from denpexd.settings_values import masked_url, read_secret
from denpexd.web.gate import is_loopback
from denpexd.web.server import bind

_SECONDS = 5.0
_NATS = 4222
_BROKER = "start it with JetStream (nats-server -js), or mend hub.url; until then each node judges alone"
_PORTS = {"http": 80, "https": 443}


async def port_checks(web: Web, *, chosen: bool) -> list[Finding]:
    """Whether the daemon can listen, and is not open to everybody."""
    try:
        (await asyncio.to_thread(bind, web.host, web.port)).close()
        found = [ok("port", f"{web.port or 'any'} on {web.host} is free")]
    except SettingsError as error:
        used = isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.EADDRINUSE
        if used and await asyncio.to_thread(_is_ours, web):
            found = [ok("port", f"{web.port} on {web.host}: a denpexd listens there")]
        elif used and not chosen:
            found = [warn("port", f"{web.port} on {web.host} is in use; run takes a free one", "set web.port")]
        else:
            found = [bad("port", str(error), "set web.host and web.port")]
    if web.token_file is not None:
        try:
            read_secret(None, web.token_file)
        except SettingsError as error:
            found.append(bad("token", str(error), "openssl rand -hex 32 > FILE; chmod 600 FILE"))
    elif not is_loopback(web.host):
        said = f"{web.host} can be reached from outside and there is no token: console and API answer nobody there"
        found.append(warn("token", said, "set web.token_file, or web.host to 127.0.0.1"))
    return found


def _is_ours(web: Web) -> bool:
    try:
        with client_of(Settings(web=web.model_copy(update={"token_file": None}))) as client:
            return "denpexd_build_info" in client.metrics()
    except DenpexdError:
        return False


async def sink_checks(settings: Settings) -> list[Finding]:
    """One finding for each destination of alerts."""
    named = settings.named_sinks()
    return list(await asyncio.gather(*(_sink(name, sink) for name, sink in named)))


async def sent_checks(settings: Settings) -> list[Finding]:
    """The same with a test message through each."""
    return [
        bad(f"sink {name}", wrong, f"denpexd notify test {name}")
        if wrong
        else ok(f"sink {name}", "took a test message")
        for name, wrong in await send_test(settings, None)
    ]


async def broker_checks(hub: Hub) -> list[Finding]:
    """Whether the NATS servers of jobs that span nodes answer; nothing is found where none is configured."""
    if hub.url and importlib.util.find_spec("nats") is None:
        return [bad("broker", "nats-py is not installed", "pip install 'denpexd[hub]'")]
    return list(await asyncio.gather(*(_broker(url) for url in hub.url)))


async def _broker(url: str) -> Finding:
    """A NATS server speaks first, before any TLS: INFO and what it can."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or _NATS
    if parts.scheme in ("ws", "wss"):  # there the client speaks first
        wrong = await _connect(host, port, tls=parts.scheme == "wss")
        return bad("broker", wrong, _BROKER) if wrong else ok("broker", f"{host}:{port} answers")
    try:
        async with asyncio.timeout(_SECONDS):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                greeting = await reader.read(5)
            finally:
                writer.close()
    except TimeoutError:
        return bad("broker", f"{host}:{port} does not answer within {_SECONDS:g} s", _BROKER)
    except (OSError, UnicodeError) as error:
        return bad("broker", f"no connection to {host}:{port}: {_why(error)}", _BROKER)
    if greeting != b"INFO ":
        return bad("broker", f"what listens at {host}:{port} is no NATS server", _BROKER)
    return ok("broker", f"{host}:{port} is a NATS server")


async def _sink(name: str, sink: Sink) -> Finding:
    what = f"sink {name}"
    try:
        _read_secrets(sink)
        url = _url(sink)
    except SettingsError as error:
        return bad(what, str(error))
    if isinstance(sink, FileSink):
        return _file(what, sink.path)
    if url is None:
        return ok(what, "this terminal" if sink.type == "console" else sink.type)
    parts = urlsplit(url)
    if parts.scheme not in _PORTS or not parts.hostname:
        return await asyncio.to_thread(_by_apprise, what, url)
    proxy = urlsplit("" if proxy_bypass(parts.netloc) else getproxies().get(parts.scheme, ""))
    if proxy.hostname:
        wrong = await _connect(proxy.hostname, proxy.port or 80, tls=False)
        wrong = f"by the proxy of {parts.scheme.upper()}_PROXY: {wrong}" if wrong else ""
    else:
        wrong = await _connect(parts.hostname, parts.port or _PORTS[parts.scheme], tls=parts.scheme == "https")
    if wrong:
        mend = "network policy, firewall, proxy or name; when it answers: denpexd notify test " + name
        return bad(what, f"{masked_url(url)}: {wrong}", mend)
    there = "is behind a proxy that answers" if proxy.hostname else "answers"
    return ok(what, f"{masked_url(url)} {there}; whether it takes messages: denpexd notify test {name}")


def _file(what: str, path: Path) -> Finding:
    there = path if path.exists() else path.parent
    if there.exists() and os.access(there, os.W_OK) and not path.is_symlink() and not path.is_dir():
        return ok(what, f"{path} can be written")
    mend = f"make the folder {path.parent} and let the user of denpexd write into it; no link may stand at {path}"
    return bad(what, f"{path} cannot be written", mend)


def _read_secrets(sink: Sink) -> None:
    """SettingsError if one of the files that hold its secrets cannot be used."""
    for field in ("bot_token_file", "routing_key_file", "api_token_file", "secret_file"):
        if (file := getattr(sink, field, None)) is not None:
            read_secret(None, file)


def _url(sink: Sink) -> str | None:
    """The address of a destination, read from its file where it is kept in one; None: it has none."""
    for field in ("url", "webhook_url", "events_url", "api_url"):
        value, file = getattr(sink, field, None), getattr(sink, f"{field}_file", None)
        if value is not None or file is not None:
            return value if isinstance(value, str) else read_secret(value, file)
    return None


def _by_apprise(what: str, url: str) -> Finding:
    """A URL of apprise hides where it leads; it can be understood or not."""
    from apprise import Apprise

    if Apprise.instantiate(url, suppress_exceptions=True) is None:
        return bad(what, f"{masked_url(url)} is no URL that apprise understands", "https://appriseit.com/services/")
    return ok(what, f"{masked_url(url)} is understood; whether messages arrive: denpexd notify test")


async def _connect(host: str, port: int, *, tls: bool) -> str:
    """Why there is no connection, or ""."""
    context = ssl.create_default_context() if tls else None
    try:
        async with asyncio.timeout(_SECONDS):
            _, writer = await asyncio.open_connection(host, port, ssl=context, server_hostname=host if tls else None)
    except TimeoutError:
        return f"no connection to {host}:{port} within {_SECONDS:g} s"
    except ssl.SSLCertVerificationError as error:
        return f"its certificate is not accepted: {error.verify_message}"
    except (OSError, UnicodeError) as error:
        return f"no connection to {host}:{port}: {_why(error)}"
    writer.close()
    return ""


def _why(error: Exception) -> str:
    """asyncio's own text for a refused connection names the address once more."""
    number = (
        error.errno if isinstance(error, OSError) and not isinstance(error, ssl.SSLError | socket.gaierror) else None
    )
    return os.strerror(number) if number else str(getattr(error, "strerror", None) or error)
