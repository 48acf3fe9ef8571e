"""Asks a running daemon over its HTTP API: what `status`, `top` and all commands that change something go through.

Where it listens and which token it wants come from the same settings that the daemon reads, or from flags.
"""

from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

import httpx

from denpexd import __version__
from denpexd.errors import DaemonError, SettingsError
from denpexd.settings import Settings
from denpexd.settings_values import check_http_url, read_secret
from denpexd.web.gate import is_loopback

TIMEOUT, _MAKING = 10.0, 90.0
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 - told apart, not bound


class Client:
    """One daemon at `url`. Every call is one request and raises DaemonError with what is wrong and how to mend it.

    `transport`: instead of the network, for tests.
    """

    def __init__(self, url: str, token: str | None = None, *, transport: httpx.BaseTransport | None = None) -> None:
        try:
            self.url = check_http_url(url).rstrip("/")
        except ValueError as error:
            raise SettingsError(f"--url {url}: {error}") from None
        headers = {"User-Agent": f"denpexd/{__version__}"} | ({"Authorization": f"Bearer {token}"} if token else {})
        # A proxy of the environment is for the world outside, not for this machine.
        outside = not is_loopback(urlsplit(self.url).hostname or "")
        self._http = httpx.Client(
            base_url=self.url, headers=headers, timeout=TIMEOUT, trust_env=outside, transport=transport
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Let the connection go."""
        self._http.close()

    def get(self, path: str, **query: str | int) -> Any:
        """The JSON at a path below /api/v1, such as `jobs`."""
        return self._json(self._answer("GET", f"/api/v1/{path}", params=query))

    def every(self, path: str, name: str, **query: str | int) -> list[Any]:
        """All of a list of the API, page by page; `name` is its key in the answer."""
        found, cursor = list[Any](), None
        while True:
            page = self.get(path, **query, **({"cursor": cursor} if cursor is not None else {}))
            found += page[name]
            cursor = page.get("next")
            if cursor is None:
                return found

    def post(self, path: str, body: object = None) -> Any:
        """The JSON that the daemon answers to a change at a path below /api/v1."""
        return self._json(self._answer("POST", f"/api/v1/{path}", json=body))

    def delete(self, path: str) -> Any:
        """The JSON that the daemon answers when something at a path below /api/v1 is taken away."""
        return self._json(self._answer("DELETE", f"/api/v1/{path}"))

    def metrics(self) -> str:
        """The page that Prometheus reads, as text; it needs no token."""
        return self._answer("GET", "/metrics", headers={"Accept": "text/plain"}).text

    def file(self, path: str) -> bytes:
        """What lies at a path below /api/v1, which may take the daemon a minute to make."""
        return self._answer("GET", f"/api/v1/{path}", timeout=_MAKING).content

    def health(self, path: str) -> tuple[bool, str]:
        """What /healthz or /readyz say: whether all is well, and why not."""
        response = self._ask("GET", path)
        return response.is_success, response.text.strip()

    def _answer(self, method: str, path: str, **what: Any) -> httpx.Response:
        response = self._ask(method, path, **what)
        if not response.is_success:
            status = response.status_code
            raise DaemonError(f"{self.url} answers {status}: {_reason(response)}", status=status)
        return response

    def _ask(self, method: str, path: str, **what: Any) -> httpx.Response:
        try:
            return self._http.request(method, path, **what)
        except httpx.TimeoutException:
            seconds = what.get("timeout", TIMEOUT)
            raise DaemonError(f"{self.url} has not answered for {seconds:g} s") from None
        except httpx.ConnectError as error:
            how = "start it (denpexd run), or say where it listens: --url http://HOST:PORT"
            raise DaemonError(f"no daemon answers at {self.url} ({error}); {how}") from None
        except httpx.HTTPError as error:
            raise DaemonError(f"{self.url} cannot be asked: {type(error).__name__}: {error}") from None

    def _json(self, response: httpx.Response) -> Any:
        try:
            return response.json() if response.content else None
        except ValueError:
            raise DaemonError(f"{self.url} answers something that is no JSON; is it denpexd?") from None


def client_of(settings: Settings, url: str | None = None, token_file: Path | None = None) -> Client:
    """The client of the daemon that these settings are of, or of another one at `url`."""
    web = settings.web
    if url is None:
        if not web.port:
            raise SettingsError("web.port is 0, so the daemon listens on a port that only its log tells: give --url")
        host = _ANY.get(web.host.strip("[]"), web.host.strip("[]"))
        url = f"http://[{host}]:{web.port}" if ":" in host else f"http://{host}:{web.port}"
    file = token_file or web.token_file
    return Client(url, read_secret(None, file) if file else None)


def _reason(response: httpx.Response) -> str:
    """The sentence in an error of the API or of the gate before it, or that it is none of denpexd."""
    try:
        said = response.json()["error"]
    except (ValueError, KeyError, TypeError):
        said = response.text[:300] if response.headers.get("content-type", "").startswith("text/plain") else ""
    other = f"{response.reason_phrase}, not as denpexd does: is another program there? --url http://HOST:PORT"
    return " ".join(str(said).split()) or other
