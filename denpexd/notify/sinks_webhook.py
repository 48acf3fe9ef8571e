"""The generic webhook: the verdict as JSON, see docs/alerts.md."""

from urllib.parse import quote

import httpx

from denpexd.clock import Clock
from denpexd.errors import DeliveryError, SettingsError
from denpexd.notify.post import TIMEOUT, post_json
from denpexd.notify.rows import Row
from denpexd.settings_sinks import AlertmanagerSink as AlertmanagerOptions
from denpexd.settings_sinks import WebhookSink as WebhookOptions
from denpexd.settings_sources import read_secret
from denpexd.settings_values import check_http_url

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
        await post_json(
            self._client,
            http_url(self._options),
            row.delivery.verdict,
            headers=http_headers(self._options)
            | {"Idempotency-Key": quote(row.delivery.idempotency_key, safe=_IN_HEADERS)},
            wall=self._clock.wall(),
            timeout=self._timeout,
        )


def http_url(options: WebhookOptions | AlertmanagerOptions) -> str:
    """The URL, read now; a file may be filled or mended later, so a missing one is tried again."""
    try:
        return check_http_url(read_secret(options.url, options.url_file))
    except (SettingsError, ValueError) as error:
        raise DeliveryError(f"no usable URL: {error}", retryable=True) from error


def http_headers(options: WebhookOptions | AlertmanagerOptions) -> dict[str, str]:
    """The configured headers in clear."""
    return {name: value.get_secret_value() for name, value in options.headers.items()}
