"""Who may ask: the Host allow-list, the token, and the headers every answer carries.

On loopback the danger is a web page in a browser of the same machine (DNS rebinding), so the Host must be ours. On a
wider address it is everybody else, so all but what a scraper needs asks for the token.
"""

import base64
import hmac
import ipaddress
import re
from collections.abc import Collection, Mapping

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

OPEN_PATHS = frozenset({"/metrics", "/healthz", "/readyz"})
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})

SECURITY_HEADERS: Mapping[str, str] = {
    "content-security-policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "same-origin",  # with none at all, a browser hides from us that our own form was sent
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}

HOW_TO_SET_ONE = (
    "denpexd listens beyond this machine and has no token, so only /metrics, /healthz and /readyz answer here. "
    "Mend: put a secret into a file (openssl rand -hex 32 > web.token; chmod 600 web.token) and set web.token_file or "
    "DENPEXD_WEB__TOKEN_FILE to it; or set web.host to 127.0.0.1 and come through an SSH tunnel."
)
HOW_TO_SEND_ONE = (
    "a token is needed: send 'Authorization: Bearer <token>', or in a browser any user name with the token as "
    "password. It is the content of the file named by web.token_file."
)


class Gate:
    """ASGI middleware in front of every route. An empty token is no token."""

    def __init__(self, app: ASGIApp, *, host: str, token: str | None, allowed_hosts: Collection[str]) -> None:
        self._app = app
        self._token = token.encode() if token else None
        self._loopback = is_loopback(host)
        names = {name.lower().strip("[]") for name in allowed_hosts}
        self._hosts = names | LOOPBACK_NAMES | {host.lower().strip("[]")} if self._loopback else names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_hardened(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in SECURITY_HEADERS.items():
                    headers[name] = value
                headers.setdefault("cache-control", "no-store")
            await send(message)

        headers = Headers(scope=scope)
        refusal = _ambiguous(scope, headers) or self._refusal(scope["path"], headers) or _foreign(scope, headers)
        await (refusal or self._app)(scope, receive, send_hardened)

    def _refusal(self, path: str, headers: Headers) -> Response | None:
        name = host_name(headers.get("host", ""))
        open_path = path in OPEN_PATHS
        if self._hosts and name not in self._hosts and (self._loopback or not open_path):
            return answer_error(path, 421, f"denpexd does not answer for host {name!r}; ask for 127.0.0.1 or localhost")
        if open_path or (self._loopback and self._token is None):
            return None
        if self._token is None:
            return answer_error(path, 403, HOW_TO_SET_ONE)
        if not hmac.compare_digest(_credential(headers.get("authorization", "")), self._token):
            refusal = answer_error(path, 401, HOW_TO_SEND_ONE)
            refusal.headers.append("www-authenticate", 'Bearer realm="denpexd"')
            refusal.headers.append("www-authenticate", 'Basic realm="denpexd", charset="UTF-8"')
            return refusal
        return None


def _ambiguous(scope: Scope, headers: Headers) -> Response | None:
    """A body of two lengths: a proxy in front may take the other one, and a part of the body for a request."""
    if "content-length" in headers and "transfer-encoding" in headers:
        text = "Content-Length and Transfer-Encoding in one request; send one of them"
        return answer_error(scope["path"], 400, text, {"connection": "close"})
    return None


def _foreign(scope: Scope, headers: Headers) -> Response | None:
    """A page of another site can make a browser ask, also this machine: it may link to a page and do no more.

    What it embeds it cannot read, but every answer costs the daemon something.
    """
    if headers.get("sec-fetch-site") in ("cross-site", "same-site") and headers.get("sec-fetch-mode") != "navigate":
        return answer_error(scope["path"], 403, "a page of another site asks; it may link here and do no more")
    origin = headers.get("origin")
    ours = origin is None or origin.partition("://")[2].lower() == headers.get("host", "").lower()
    same = headers.get("sec-fetch-site", "same-origin") in ("same-origin", "none")
    if scope["method"] in ("GET", "HEAD") or (ours and same):
        return None
    return answer_error(scope["path"], 403, "a page of another site asks for a change; use curl or the console")


def answer_error(path: str, status: int, text: str, headers: Mapping[str, str] | None = None) -> Response:
    """An error in the language of the path: JSON below /api, else one line of text."""
    if path.startswith("/api/"):
        return JSONResponse({"error": text}, status, headers)
    return PlainTextResponse(text + "\n", status, headers)


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server bound to `host`."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def host_name(header: str) -> str:
    """The name of a Host header, without port and brackets; what is not formed like one as it is."""
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^:\[\]]*))(?::[0-9]*)?", header)
    return ((found[1] or found[2]) if found else header).lower()


def _credential(header: str) -> bytes:
    """The token of a Bearer header, or the password of a Basic one, which is what a browser can send by itself."""
    scheme, _, value = header.partition(" ")
    if scheme.lower() == "bearer":
        return value.strip().encode()
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(value.strip(), validate=True).partition(b":")[2]
        except ValueError:  # also for letters beyond ASCII
            return b""
    return b""
