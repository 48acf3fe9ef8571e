"""Slack. With a bot token one message an incident, changed in place, and a thread of what changed; else a webhook.

Where the message stands (channel and ts) is kept with the incident, so a restarted daemon changes the same one. An
incoming webhook gives no ts back: there every revision is a message of its own.
"""

import asyncio
import json
import re
from collections.abc import Mapping
from typing import Any, Protocol

import httpx

from denpexd.clock import Clock
from denpexd.errors import DeliveryError, SettingsError
from denpexd.notify.message import Links, Message, message, text
from denpexd.notify.post import TIMEOUT, post_json
from denpexd.notify.rows import Row
from denpexd.notify.slack_blocks import SECTION, blocks, custom, fallback, head, mrkdwn, reply
from denpexd.notify.template import Template
from denpexd.settings_sinks import SlackSink as SlackOptions
from denpexd.settings_values import check_http_url, read_secret

# Of `"ok": false` these may pass; everything else stays wrong until somebody mends it.
_PASSING = frozenset({"ratelimited", "rate_limited", "internal_error", "fatal_error", "service_unavailable"})
_PASSING |= {"request_timeout", "message_limit_exceeded"}
# The message is not there any more, or not ours: a new one takes its place.
_LOST = frozenset({"message_not_found", "cant_update_message", "edit_window_closed", "thread_not_found"})
# The layout is refused, by limits that Slack has and does not tell: the text alone is sent.
_LAYOUT = ("invalid_blocks", "msg_blocks_too_long", "msg_too_long")
_PLAIN = 3000
_CODE = re.compile(r"[a-z0-9_]{1,80}")
_LONGEST_ANSWER = 256 * 1024


# Nothing is made of what stands in a text; `chat.update` would, unless it is told.
_AS_IT_IS = {"parse": "none", "link_names": False, "unfurl_links": False, "unfurl_media": False}


class Receipts(Protocol):
    """What a receiver gave back for an incident, kept as long as the incident; both calls may block (disk)."""

    def receipt(self, sink: str, key: str) -> str | None: ...
    def keep_receipt(self, sink: str, key: str, value: str) -> None: ...


class SlackSink:
    """Posts to an incoming webhook, or to a channel as a bot."""

    max_attempts: int | None = None

    def __init__(
        self,
        name: str,
        options: SlackOptions,
        client: httpx.AsyncClient,
        clock: Clock,
        receipts: Receipts,
        links: Links | None = None,
        timeout: float = TIMEOUT,
    ) -> None:
        self.name = name
        self._options, self._client, self._clock, self._timeout = options, client, clock, timeout
        self._receipts, self._links, self._template = receipts, links, Template(options.template)

    async def send(self, row: Row) -> None:
        """Post or change the message; DeliveryError says whether another try makes sense."""
        # With ten thousand ranks this takes some time: not in the event loop.
        told = await asyncio.to_thread(message, row.delivery.verdict, self._links, row.created)
        content = await asyncio.to_thread(self._content, row, told)
        try:
            await self._send(row, told, content)
        except DeliveryError as error:
            if not any(code in error.reason for code in _LAYOUT):
                raise
            plain = {"text": mrkdwn("\n".join(text(told, _PLAIN)), SECTION), "blocks": []}
            await self._send(row, told, {**content, **plain})

    async def _send(self, row: Row, told: Message, content: Mapping[str, object]) -> None:
        if not self._options.by_bot:
            await self._post(self._secret("webhook"), content)
            return
        known = await self._known(row.delivery.key)
        if known is None or not await self._changed(row, told, known, content):
            await self._first(row, content)

    def preview(self, row: Row) -> dict[str, object]:
        """What a first message would hold."""
        where = {"channel": self._options.channel} if self._options.by_bot else {}
        return {**where, **self._content(row, message(row.delivery.verdict, self._links, row.created))}

    def _content(self, row: Row, told: Message) -> dict[str, object]:
        own = self._template.render(row.delivery.verdict, told, lambda text: mrkdwn(text, SECTION))
        shown = blocks(told) if own is None else custom(told, *own)
        return {"text": fallback(told), "blocks": shown, **_AS_IT_IS}

    async def _first(self, row: Row, content: Mapping[str, object]) -> None:
        answer = await self._call("chat.postMessage", {"channel": self._options.channel, **content})
        await self._keep(row, str(answer.get("channel") or self._options.channel), str(answer.get("ts") or ""))

    async def _changed(self, row: Row, told: Message, known: Mapping[str, Any], content: Mapping[str, object]) -> bool:
        """Whether the message could be changed; the thread then tells what is new."""
        channel, ts = str(known["channel"]), str(known["ts"])
        now, reason = head(row.delivery.verdict), row.delivery.reason
        try:
            await self._call("chat.update", {"channel": channel, "ts": ts, **content})
            if known.get("revision") != row.delivery.revision:
                said = reply(known.get("head") or {}, told, now, reason)
                aloud = {"reply_broadcast": True} if reason in ("reminder", "reopened") else {}
                await self._call(
                    "chat.postMessage", {"channel": channel, "thread_ts": ts, "text": said, **aloud, **_AS_IT_IS}
                )
        except DeliveryError as error:
            if error.reason.rpartition(": ")[2] not in _LOST:
                raise
            return False
        await self._keep(row, channel, ts)
        return True

    async def _known(self, key: str) -> Mapping[str, Any] | None:
        kept = await asyncio.to_thread(self._receipts.receipt, self.name, key)
        known = json.loads(kept) if kept else None
        return known if isinstance(known, dict) and known.get("ts") and known.get("channel") else None

    async def _keep(self, row: Row, channel: str, ts: str) -> None:
        told = {"channel": channel, "ts": ts, "revision": row.delivery.revision, "head": head(row.delivery.verdict)}
        await asyncio.to_thread(self._receipts.keep_receipt, self.name, row.delivery.key, json.dumps(told))

    async def _call(self, method: str, content: Mapping[str, object]) -> Mapping[str, Any]:
        """A method of the Web API; `DeliveryError.reason` ends in Slack's error code where it gave one."""
        headers = {"Authorization": f"Bearer {self._secret('bot')}"}
        answer = await self._post(f"{self._options.api_url.rstrip('/')}/{method}", content, headers)
        try:
            said = json.loads(answer)
        except (ValueError, RecursionError):
            said = None
        if not isinstance(said, dict):
            raise DeliveryError(f"{method}: the answer is not Slack's; check api_url", retryable=True)
        if said.get("ok") is not True:
            code = str(said.get("error"))
            code = code if _CODE.fullmatch(code) else "an error without a code"
            raise DeliveryError(f"{method}: {code}", retryable=code in _PASSING)
        return said

    async def _post(self, url: str, content: Mapping[str, object], headers: Mapping[str, str] | None = None) -> bytes:
        return await post_json(
            self._client,
            url,
            content,
            headers=headers or {},
            wall=self._clock.wall(),
            timeout=self._timeout,
            answer=_LONGEST_ANSWER if headers else 0,
        )

    def _secret(self, which: str) -> str:
        options = self._options
        try:
            if which == "webhook":
                return check_http_url(read_secret(options.webhook_url, options.webhook_url_file))
            return read_secret(options.bot_token, options.bot_token_file)
        except (SettingsError, ValueError) as error:
            raise DeliveryError(f"no usable {which}: {error}", retryable=True) from error
