"""Alertmanager, API v2: one alert per incident, sent again while it is open, ended when it closes.

The label set is the identity of an alert there. Labels are short and never hold text of a log; when a better
explanation changes one of them, the alert under the old labels is ended in the same request.
"""

import asyncio
import re
from collections.abc import Sequence

import httpx

from denpexd.clock import Clock, iso
from denpexd.notify.message import TITLE, Links, message, text
from denpexd.notify.policy import Verdict
from denpexd.notify.post import TIMEOUT, post_json
from denpexd.notify.render import who
from denpexd.notify.rows import Row
from denpexd.notify.sinks_webhook import http_headers, http_url
from denpexd.notify.template import Template
from denpexd.notify.text import UNIX_SINCE, cut_chars, one_line, rank_list, ranks, unmentioned
from denpexd.settings_sinks import AlertmanagerSink as AlertmanagerOptions

# An open alert ends by itself if it was not sent again for so many intervals (the daemon is gone).
EXPIRES_AFTER = 4

BODY = 3500
_RANKS = 2000

Labels = dict[str, str]


class AlertmanagerSink:
    """Pushes to `<url>/api/v2/alerts`."""

    max_attempts: int | None = None

    def __init__(
        self,
        name: str,
        options: AlertmanagerOptions,
        client: httpx.AsyncClient,
        clock: Clock,
        links: Links | None = None,
        timeout: float = TIMEOUT,
    ) -> None:
        self.name, self.refresh_every = name, options.interval
        self._options, self._client, self._clock, self._timeout = options, client, clock, timeout
        self._links, self._template = links, Template(options.template)
        self._open: dict[str, tuple[Labels, float]] = {}

    async def send(self, row: Row) -> None:
        """Push one incident; DeliveryError says whether another try makes sense."""
        verdict, key = row.delivery.verdict, row.delivery.key
        over = row.delivery.event == "closed"
        alerts = await asyncio.to_thread(self._alerts, key, verdict, row.created, over=over)
        await self._post(alerts)
        if row.delivery.event == "closed":
            self._open.pop(key, None)
        else:
            self._open[key] = labels(verdict), self._start(key, verdict, row.created)

    def preview(self, row: Row) -> object:
        """The alert."""
        return self._alerts(row.delivery.key, row.delivery.verdict, row.created, over=row.delivery.event == "closed")

    async def refresh(self, verdicts: Sequence[Verdict]) -> None:
        """Push all open incidents again, in one request."""
        now = self._clock.wall()
        alerts = list[dict[str, object]]()
        for verdict in verdicts:
            alerts += await asyncio.to_thread(self._alerts, str(verdict["key"]), verdict, now, over=False)
        await self._post(alerts)

    def _start(self, key: str, verdict: Verdict, otherwise: float) -> float:
        if key in self._open:
            return self._open[key][1]
        opened = verdict.get("opened_t")
        return float(opened) if isinstance(opened, int | float) and opened >= UNIX_SINCE else otherwise

    def _alerts(self, key: str, verdict: Verdict, created: float, *, over: bool) -> list[dict[str, object]]:
        now, start = self._clock.wall(), self._start(key, verdict, created)
        now_labels, end = labels(verdict), now if over else now + EXPIRES_AFTER * self.refresh_every
        alert: dict[str, object] = {
            "labels": now_labels,
            "annotations": self._annotations(verdict, created),
            "startsAt": iso(min(start, now)),
            "endsAt": iso(end),
        }
        former = self._open.get(key, (now_labels, start))[0]
        if former == now_labels:
            return [alert]
        return [{**alert, "labels": former, "endsAt": iso(now)}, alert]

    def _annotations(self, verdict: Verdict, at: float) -> dict[str, str]:
        told = message(verdict, self._links, at)
        title, body = self._template.render(verdict, told) or text(told, BODY)
        found = {
            "summary": cut_chars(title, TITLE),
            "description": cut_chars(body, BODY),
            "remediation": "\n".join(f"{n}. {step.do}" for n, step in enumerate(told.steps, 1)),
            "verification": told.verification,
            "initiating_ranks": cut_chars(rank_list(ranks(verdict, "initiating_ranks")), _RANKS) or who(verdict),
            "collateral_ranks": cut_chars(rank_list(ranks(verdict, "collateral_ranks")), _RANKS),
            "certainty": one_line(verdict.get("certainty")),
        }
        # Templates pass annotations on to chats as they are.
        links = {f"{re.sub(r'[^A-Za-z0-9_]', '_', name)}_url": url for name, url in told.links}
        return {name: unmentioned(said) for name, said in found.items() if said} | links

    async def _post(self, alerts: list[dict[str, object]]) -> None:
        await post_json(
            self._client,
            http_url(self._options).rstrip("/") + "/api/v2/alerts",
            alerts,
            headers=http_headers(self._options),
            wall=self._clock.wall(),
            timeout=self._timeout,
        )


def labels(verdict: Verdict) -> Labels:
    """The identity of the alert of an incident."""
    named = {
        "alertname": "DenpexdIncident",
        "failure": one_line(verdict.get("failure")),
        "category": one_line(verdict.get("category")),
        "severity": one_line(verdict.get("severity")),
        "training_job": one_line(verdict.get("job")),
        "incident": one_line(verdict.get("key")),
    }
    return {name: value for name, value in named.items() if value}
