"""The generic webhook: the verdict as JSON, see docs/alerts.md."""

import hashlib
import hmac
import json
from pathlib import Path
from urllib.parse import quote

import httpx

from denpexd.clock import Clock
from denpexd.errors import DeliveryError, SettingsError
from denpexd.notify.post import TIMEOUT, post_json
from denpexd.notify.rows import Row
from denpexd.settings_sinks import AlertmanagerSink as AlertmanagerOptions
from denpexd.settings_sinks import HeartbeatSink as HeartbeatOptions
from denpexd.settings_sinks import WebhookSink as WebhookOptions
from denpexd.settings_values import check_http_url, read_secret

# What a header may hold as it is; the rest of a key (a job may be named in any script) is percent-encoded.
_IN_HEADERS = "!#$&'()*+,/:;=?@[]^`{|}~"


class WebhookSink:
    """POSTs every message with the header `Idempotency-Key: <key>:<revision>`."""

    max_attempts: int | None = None

    def __init__(
        self, name: str, options: WebhookOptions, client: httpx.AsyncClient, clock: Clock, timeout: float = TIMEOUT
    ) -> None:
        self.name = name
        self._options, self._client, self._clock, self._timeout = options, client, clock, timeout

    async def send(self, row: Row) -> None:
        """POST; DeliveryError says whether another try makes sense."""
        wall, body = self._clock.wall(), json.dumps(row.delivery.verdict).encode()
        own = {"Idempotency-Key": quote(row.delivery.idempotency_key, safe=_IN_HEADERS)}
        if self._options.secret_file is not None:
            own |= signature(self._secret(self._options.secret_file), wall, body)
        await post_json(
            self._client,
            http_url(self._options),
            body,
            headers=http_headers(self._options) | own,
            wall=wall,
            timeout=self._timeout,
        )

    def preview(self, row: Row) -> object:
        """The body."""
        return row.delivery.verdict

    def _secret(self, file: Path) -> str:
        try:
            return read_secret(None, file)
        except SettingsError as error:
            raise DeliveryError(f"no usable secret: {error}", retryable=True) from error


def signature(secret: str, wall: float, body: bytes) -> dict[str, str]:
    """The headers that prove who sent a body and when: HMAC-SHA256 of `<Unix seconds>.<body>`, in hexadecimal."""
    at = f"{wall:.0f}"
    digest = hmac.new(secret.encode(), at.encode() + b"." + body, hashlib.sha256).hexdigest()
    return {"X-Denpexd-Timestamp": at, "X-Denpexd-Signature": f"sha256={digest}"}


def http_url(options: WebhookOptions | AlertmanagerOptions | HeartbeatOptions) -> str:
    """The URL, read now; a file may be filled or mended later, so a missing one is tried again."""
    try:
        return check_http_url(read_secret(options.url, options.url_file))
    except (SettingsError, ValueError) as error:
        raise DeliveryError(f"no usable URL: {error}", retryable=True) from error


def http_headers(options: WebhookOptions | AlertmanagerOptions) -> dict[str, str]:
    """The configured headers in clear."""
    return {name: value.get_secret_value() for name, value in options.headers.items()}
