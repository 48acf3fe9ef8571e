"""apprise: Slack, PagerDuty, mail and about 170 further services behind one URL.

apprise says only whether it worked, so a failure is tried again a few times and then given up. It is imported on
first use, in the worker thread that also sends: the import takes 0.1 s, the services block.
"""

import asyncio
import logging
from typing import Any
from urllib.parse import quote

from denpexd.errors import DeliveryError, SettingsError
from denpexd.notify.message import Links, summary_text
from denpexd.notify.policy import Verdict
from denpexd.notify.rows import Row
from denpexd.notify.text import unmentioned
from denpexd.settings_sinks import AppriseSink as AppriseOptions
from denpexd.settings_sources import read_secret

BODY_LIMIT = 3500
_TYPES = {"critical": "failure", "high": "failure", "medium": "warning", "low": "info"}


class AppriseSink:
    """Sends title and plain text to one apprise URL; `{key}` in the URL becomes the key of the incident."""

    def __init__(self, name: str, options: AppriseOptions, links: Links | None = None) -> None:
        self.name = name
        self.max_attempts: int | None = options.attempts
        self._options, self._links = options, links

    async def send(self, row: Row) -> None:
        """Send; DeliveryError without details, apprise keeps them to itself."""
        try:
            url = read_secret(self._options.url, self._options.url_file)
        except SettingsError as error:
            raise DeliveryError(str(error), retryable=True) from error
        url = url.replace("{key}", quote(row.delivery.key, safe=""))
        await asyncio.to_thread(_notify, url, row.delivery.verdict, row.delivery.event == "closed", self._links)


def _notify(url: str, verdict: Verdict, closed: bool, links: Links | None) -> None:
    service = _service(url)
    limit = min(BODY_LIMIT, int(service.body_maxlen))
    title, body = (unmentioned(text) for text in summary_text(verdict, limit, links))
    if service.title_maxlen <= 0:  # the title becomes the first line of the body there
        body = unmentioned(summary_text(verdict, max(100, limit - len(title) - 4), links)[1])
    kind = "success" if closed else _TYPES.get(str(verdict.get("severity")), "warning")
    import apprise

    sender = apprise.Apprise(asset=service.asset)
    sender.add(service)
    if not sender.notify(body=body, title=title, notify_type=kind, body_format=apprise.NotifyFormat.TEXT):
        raise DeliveryError(f"{url.partition('://')[0]}: apprise reports a failure without a reason", retryable=True)


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
