"""apprise: Slack, PagerDuty, mail and about 170 further services behind one URL.

apprise says only whether it worked, so a failure is tried again a few times and then given up. It is imported on
first use, in the thread that also sends: the import takes 0.1 s, the services block.
"""

import asyncio
import logging
import threading
from concurrent.futures import Future
from typing import Any
from urllib.parse import quote

from denpexd.errors import DeliveryError, SettingsError
from denpexd.notify.message import TITLE, Links, message, text
from denpexd.notify.rows import Row
from denpexd.notify.template import Template
from denpexd.notify.text import cut_chars
from denpexd.settings_sinks import AppriseSink as AppriseOptions
from denpexd.settings_values import read_secret

BODY_LIMIT = 3500
LIMIT = 30.0  # seconds for a message: apprise limits each read only, and a receiver can answer a byte at a time
_TYPES = {"critical": "failure", "high": "failure", "medium": "warning", "low": "info"}


class AppriseSink:
    """Sends title and plain text to one apprise URL; `{key}` in the URL becomes the key of the incident."""

    def __init__(self, name: str, options: AppriseOptions, links: Links | None = None, *, limit: float = LIMIT) -> None:
        self.name, self._limit = name, limit
        self.max_attempts: int | None = options.attempts
        self._sending: Future[None] | None = None
        self._options, self._links, self._template = options, links, Template(options.template)

    async def send(self, row: Row) -> None:
        """Send; DeliveryError without details, apprise keeps them to itself."""
        url = self._url(row)
        if self._sending is not None and not self._sending.done():
            raise DeliveryError("the service still holds the message before this one", retryable=True)
        sending = self._sending = Future[None]()
        sending.set_running_or_notify_cancel()
        # Not one of the threads that all share: whoever hangs here would keep the state from being written. And a
        # daemon, so that it does not hold up the end either.
        work = (sending, url, row)
        threading.Thread(target=self._work, args=work, name=f"denpexd-sink-{self.name}", daemon=True).start()
        try:
            async with asyncio.timeout(self._limit):
                await asyncio.wrap_future(sending)
        except TimeoutError:
            raise DeliveryError(f"no end within {self._limit:g} s", retryable=True) from None

    def _work(self, sending: Future[None], url: str, row: Row) -> None:
        try:
            self._notify(url, row)
        except BaseException as error:
            sending.set_exception(error)
        else:
            sending.set_result(None)

    def preview(self, row: Row) -> object:
        """Title and body, as long as the service takes them."""
        title, body = self._text(row, _service(self._url(row)))
        return {"title": title, "body": body, "type": _kind(row)}

    def _url(self, row: Row) -> str:
        try:
            url = read_secret(self._options.url, self._options.url_file)
        except SettingsError as error:
            raise DeliveryError(str(error), retryable=True) from error
        return url.replace("{key}", quote(row.delivery.key, safe=""))

    def _notify(self, url: str, row: Row) -> None:
        service = _service(url)
        title, body = self._text(row, service)
        import apprise

        sender = apprise.Apprise(asset=service.asset)
        sender.add(service)
        if not sender.notify(body=body, title=title, notify_type=_kind(row), body_format=apprise.NotifyFormat.TEXT):
            what = url.partition("://")[0]
            raise DeliveryError(f"{what}: apprise reports a failure without a reason", retryable=True)

    def _text(self, row: Row, service: Any) -> tuple[str, str]:
        limit = min(BODY_LIMIT, int(service.body_maxlen))
        told = message(row.delivery.verdict, self._links, row.created)
        own = self._template.render(row.delivery.verdict, told)
        title = cut_chars(own[0], TITLE) if own else text(told, limit)[0]
        if service.title_maxlen <= 0:  # the title becomes the first line of the body there
            limit = max(100, limit - len(title) - 4)
        return title, cut_chars(own[1], limit) if own else text(told, limit)[1]


def _kind(row: Row) -> str:
    return (
        "success"
        if row.delivery.event == "closed"
        else _TYPES.get(str(row.delivery.verdict.get("severity")), "warning")
    )


def _service(url: str) -> Any:
    import apprise

    # At lower levels apprise and requests print URLs, routing keys and headers.
    for name in ("apprise", "requests", "urllib3"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    asset = apprise.AppriseAsset(app_id="denpexd", app_desc="training failure alerts", http_redirects=False)
    asset.image_url_mask = asset.image_url_logo = ""  # icons would be fetched from the public internet
    try:
        service = apprise.Apprise.instantiate(url, asset=asset, suppress_exceptions=False)
    except Exception as error:
        raise DeliveryError(f"apprise refuses the URL: {type(error).__name__}", retryable=False) from None
    if service is None:
        raise DeliveryError("apprise does not know this kind of URL", retryable=False)
    return service
