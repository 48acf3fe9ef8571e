"""One HTTP request with JSON, and what its outcome means for the outbox.

2xx is arrival. 408, 429, 5xx and everything below HTTP (names, connections, TLS, time-outs) may work later. All other
answers will not get better by repeating: redirects too, which are never followed, since a verdict goes only where the
configuration says. Reasons never hold the URL, which may be a secret.
"""

import asyncio
import json
import logging
import re
from collections.abc import Mapping, Sequence
from datetime import UTC
from email.utils import parsedate_to_datetime
from urllib.parse import urlsplit

import httpx

from denpexd import __version__
from denpexd.errors import DeliveryError
from denpexd.notify.redact import redact
from denpexd.notify.text import cut_chars, one_line

TIMEOUT = 10.0
MAX_RETRY_AFTER = 600.0
USER_AGENT = f"denpexd/{__version__}"
_SHORTEST_SECRET = 6  # of a URL or a header
_RETRYABLE = {408, 429}


def new_client() -> httpx.AsyncClient:
    """The HTTP client that all sinks share: certificates checked, no redirects, proxies from the environment."""
    # Both print whole URLs, and with them the secret of a webhook, at their own level of detail.
    for name in ("httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.WARNING)
    limits = httpx.Limits(max_connections=32, max_keepalive_connections=8, keepalive_expiry=30.0)
    return httpx.AsyncClient(follow_redirects=False, timeout=TIMEOUT, limits=limits)


async def post_json(
    client: httpx.AsyncClient,
    url: str,
    payload: object,
    *,
    headers: Mapping[str, str],
    wall: float,
    timeout: float = TIMEOUT,  # noqa: ASYNC109  the limit belongs to the request, and its excess is a DeliveryError
    answer: int = 0,
    secrets: Sequence[str] = (),
) -> bytes:
    """POST, and on 2xx the first `answer` bytes of what was answered; DeliveryError otherwise.

    `payload`: JSON as bytes, or a value; `wall` is Unix seconds, `timeout` the limit of the whole; `secrets`: what of
    the payload no reason may repeat, as nothing of URL and headers.
    """
    content = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return await _exchange(client, "POST", url, headers, content, wall, timeout, answer, secrets)


async def get_json(client: httpx.AsyncClient, url: str, *, headers: Mapping[str, str], wall: float) -> object:
    """GET, and the JSON of the answer; DeliveryError otherwise."""
    found = await _exchange(client, "GET", url, headers, None, wall, TIMEOUT, 4 << 20)
    try:
        return json.loads(found)
    except (ValueError, RecursionError):
        raise DeliveryError("the answer is not JSON", retryable=True) from None


async def touch(client: httpx.AsyncClient, method: str, url: str, *, wall: float, limit: float) -> None:
    """A request without content, whose answer does not matter beyond 2xx; DeliveryError otherwise."""
    await _exchange(client, method, url, {}, None, wall, limit, 0)


async def _exchange(
    client: httpx.AsyncClient,
    method: str,
    url: str,
    headers: Mapping[str, str],
    content: bytes | None,
    wall: float,
    limit: float,
    most: int,
    also: Sequence[str] = (),
) -> bytes:
    secrets = [url, *headers.values(), *also]
    typed = {} if content is None else {"Content-Type": "application/json"}
    sent = {"User-Agent": USER_AGENT, "Accept-Encoding": "identity", **headers, **typed}
    try:
        async with (
            asyncio.timeout(limit),
            client.stream(method, url, content=content, headers=sent) as response,
        ):
            if not response.is_success:
                raise await _refusal(response, wall, secrets)
            return await _beginning(response, most)
    except TimeoutError:
        raise DeliveryError(f"no answer within {limit:g} s", retryable=True) from None
    except (httpx.InvalidURL, httpx.UnsupportedProtocol):
        raise DeliveryError("the configured URL is not valid", retryable=False) from None
    except httpx.HTTPError as error:
        raise DeliveryError(_network_reason(error, secrets[:1]), retryable=True) from None


async def _refusal(response: httpx.Response, wall: float, secrets: Sequence[str]) -> DeliveryError:
    status = response.status_code
    if response.is_redirect:
        target = urlsplit(response.headers.get("Location", ""))
        where = f" to {target.scheme}://{target.hostname}" if target.hostname else ""
        return DeliveryError(f"HTTP {status}: redirected{where}; configure the final address", retryable=False)
    retryable = status in _RETRYABLE or status >= 500
    after = retry_after(response.headers.get("Retry-After"), wall) if retryable else None
    try:
        body = (await _beginning(response, 2000)).decode("utf-8", "replace")
    except httpx.HTTPError:
        body = ""
    reason = _short(f"HTTP {status} {response.reason_phrase}".rstrip() + (f": {body}" if body else ""), secrets)
    return DeliveryError(reason, retryable=retryable, after=after)


async def _beginning(response: httpx.Response, most: int) -> bytes:
    found = b""
    if most:
        async for chunk in response.aiter_raw():
            found += chunk
            if len(found) >= most:
                break
    return found[:most]


def _short(reason: str, secrets: Sequence[str]) -> str:
    """What a stranger gave as the reason, without what we had sent it and some receivers repeat."""
    for secret in secrets:
        parts = {secret, *re.split(r"[/?&=\s]+", secret), urlsplit(secret).path.lstrip("/")}
        for part in sorted((part for part in parts if len(part) >= _SHORTEST_SECRET), key=len, reverse=True):
            reason = reason.replace(part, "***")
    return cut_chars(one_line(redact(reason)[0]), 220)


def retry_after(value: str | None, wall: float) -> float | None:
    """Seconds to wait by a Retry-After header (seconds or HTTP date), 0 to 600; None if absent or malformed."""
    if value is None:
        return None
    try:
        if value.strip().isdecimal():
            seconds = float(value)
        else:
            when = parsedate_to_datetime(value)
            seconds = (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp() - wall
    except (ValueError, TypeError, OverflowError):
        return None
    return min(max(seconds, 0.0), MAX_RETRY_AFTER)


def _network_reason(error: httpx.HTTPError, secrets: Sequence[str]) -> str:
    # The innermost cause says what happened ("certificate has expired"), httpx often only that all attempts failed.
    cause: BaseException = error
    while cause.__cause__ is not None or cause.__context__ is not None:
        cause = cause.__cause__ or cause.__context__ or cause
    text = _short(str(cause), secrets)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
