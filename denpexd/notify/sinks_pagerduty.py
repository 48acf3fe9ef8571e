"""PagerDuty, Events API v2: the key of the incident is the dedup_key, so from opening to end it is one incident there.

With a token of the REST API the way back is read too: who acknowledged there is told here, which stops reminders.
Formats: https://developer.pagerduty.com/docs/events-api-v2/trigger-events/ and the REST API's GET /incidents.
"""

import asyncio
import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import httpx
from pydantic import SecretStr

from denpexd.clock import Clock, iso
from denpexd.errors import DeliveryError, SettingsError
from denpexd.notify.message import Links, Message, message
from denpexd.notify.policy import Verdict
from denpexd.notify.post import TIMEOUT, get_json, post_json
from denpexd.notify.render import who
from denpexd.notify.rows import Row
from denpexd.notify.text import UNIX_SINCE, cut_chars, one_line, unmentioned
from denpexd.settings_sinks import PagerDutySink as PagerDutyOptions
from denpexd.settings_values import read_secret

log = logging.getLogger(__name__)

SUMMARY, DEDUP_KEY, DETAIL, SHORT, MOST_LINKS = 1024, 255, 4000, 255, 8
LARGEST = 512 * 1024
MOST_READ_BACK = 50  # incidents asked about at once
_SEVERITIES = {"critical": "critical", "high": "error", "medium": "warning", "low": "info"}

Acknowledged = Callable[[str, str], None]
"""Called with the key of an incident and who has acknowledged it."""


class PagerDutySink:
    """Triggers, updates, acknowledges and resolves."""

    max_attempts: int | None = None

    def __init__(
        self,
        name: str,
        options: PagerDutyOptions,
        client: httpx.AsyncClient,
        clock: Clock,
        links: Links | None = None,
        acknowledged: Acknowledged | None = None,
        timeout: float = TIMEOUT,
    ) -> None:
        self.name, self.refresh_every = name, options.interval
        self._options, self._client, self._clock, self._timeout = options, client, clock, timeout
        self._links, self._tell = links, acknowledged
        self._known: set[str] = set()

    async def send(self, row: Row) -> None:
        """POST one event; DeliveryError says whether another try makes sense."""
        key = self._secret("routing key", self._options.routing_key, self._options.routing_key_file)
        await post_json(
            self._client,
            self._options.events_url,
            {"routing_key": key, **await asyncio.to_thread(self.preview, row)},
            headers={},
            wall=self._clock.wall(),
            timeout=self._timeout,
            secrets=[key],
        )

    def preview(self, row: Row) -> dict[str, object]:
        """The event without its routing key."""
        action = action_of(row)
        found: dict[str, object] = {"event_action": action, "dedup_key": dedup_key(row.delivery.key)}
        if action != "trigger":
            return found
        return found | event(row.delivery.verdict, message(row.delivery.verdict, self._links, row.created), row.created)

    async def refresh(self, verdicts: Sequence[Verdict]) -> None:
        """Ask which of the open incidents somebody has acknowledged there; nothing without a token."""
        if self._options.api_token_file is None or self._tell is None:
            return
        open_now = {str(verdict["key"]) for verdict in verdicts}
        self._known &= open_now
        headers = {
            "Authorization": f"Token token={self._secret('API token', None, self._options.api_token_file)}",
            "Accept": "application/json",
        }
        for key in sorted(open_now - self._known)[:MOST_READ_BACK]:
            which = f"incident_key={quote(dedup_key(key), safe='')}&statuses%5B%5D=acknowledged&limit=5"
            asked = f"{self._options.rest_url}/incidents?{which}"
            by = acknowledged_by(await get_json(self._client, asked, headers=headers, wall=self._clock.wall()))
            if by is not None:
                self._known.add(key)
                self._tell(key, by)

    def _secret(self, what: str, value: SecretStr | None, file: Path | None) -> str:
        try:
            return read_secret(value, file)
        except SettingsError as error:
            raise DeliveryError(f"no usable {what}: {error}", retryable=True) from error


def action_of(row: Row) -> str:
    """trigger (also an update), acknowledge or resolve."""
    if row.delivery.event == "closed":
        return "resolve"
    return "acknowledge" if row.delivery.reason == "acknowledged" else "trigger"


def dedup_key(key: str) -> str:
    """The key of the incident; of one that is too long the end becomes a hash."""
    if len(key) <= DEDUP_KEY:
        return key
    return key[: DEDUP_KEY - 17] + "-" + hashlib.sha256(key.encode("utf-8", "replace")).hexdigest()[:16]


def event(verdict: Verdict, told: Message, created: float) -> dict[str, object]:
    """Payload, links and client of a trigger."""
    opened = verdict.get("opened_t")
    began = float(opened) if isinstance(opened, int | float) and opened >= UNIX_SINCE else created
    source = dict(told.facts).get("started by", "") if verdict.get("initiating_ranks") else ""
    payload = {
        "summary": cut_chars(unmentioned(told.title), SUMMARY),
        "source": cut_chars(one_line(source or told.job or "denpexd"), SHORT),
        "severity": _SEVERITIES.get(told.severity, "error"),
        "timestamp": iso(began),
        "component": cut_chars(who(verdict), SHORT),
        "group": cut_chars(told.job, SHORT),
        "class": cut_chars(told.failure, SHORT),
        "custom_details": {name: cut_chars(text, DETAIL) for name, text in details(told).items() if text},
    }
    links = [{"href": url, "text": cut_chars(name, SHORT)} for name, url in told.links[:MOST_LINKS]]
    found: dict[str, object] = {"payload": payload, "client": "denpexd", "links": links}
    console = next((url for name, url in told.links if name == "console"), None)
    return found | ({"client_url": console} if console else {})


def details(told: Message) -> dict[str, str]:
    """What somebody who was paged reads, in order."""
    steps = [f"{n}. {s.do}" + (f"\n   $ {s.command}" if s.command else "") for n, s in enumerate(told.steps, 1)]
    return {
        "answer": told.answer,
        **dict(told.facts),
        "why": told.cause,
        "what to do": "\n".join(steps),
        "how to check": told.verification,
        "resume from the last checkpoint": told.resume_safe,
        "evidence": "\n".join(f"{q.origin}\n> {q.text}\n{q.means}" for q in told.evidence),
        "what changed": "\n".join(told.changed),
        "missing": "\n".join(told.missing),
        "failure": told.failure,
        "incident": told.key,
    }


def acknowledged_by(answer: object) -> str | None:
    """Who acknowledged, of the answer to GET /incidents; None if nobody has."""
    found = answer.get("incidents") if isinstance(answer, Mapping) else None
    for incident in found if isinstance(found, list) else []:
        if isinstance(incident, Mapping) and incident.get("status") == "acknowledged":
            given = incident.get("acknowledgements")
            for one in given if isinstance(given, list) else []:
                person = one.get("acknowledger") if isinstance(one, Mapping) else None
                if isinstance(person, Mapping) and person.get("summary"):
                    return cut_chars(one_line(person["summary"]), 100)
            return "somebody in PagerDuty"
    return None
