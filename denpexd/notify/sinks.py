"""From settings to sinks, among them the console, and to what the policy knows of them; a test message for each."""

import asyncio
import math
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

import httpx

from denpexd.clock import Clock, SystemClock
from denpexd.errors import DeliveryError, SettingsError
from denpexd.notify.deliver import Deliverer
from denpexd.notify.message import Links, idle, summary_text
from denpexd.notify.outbox import Store
from denpexd.notify.policy import Delivery, Verdict, revision_of
from denpexd.notify.post import new_client
from denpexd.notify.render import report
from denpexd.notify.rows import Row
from denpexd.notify.sink import Sink
from denpexd.notify.sinks_alertmanager import AlertmanagerSink
from denpexd.notify.sinks_apprise import AppriseSink
from denpexd.notify.sinks_file import FileSink
from denpexd.notify.sinks_heartbeat import HeartbeatSink
from denpexd.notify.sinks_pagerduty import Acknowledged, PagerDutySink
from denpexd.notify.sinks_slack import Receipts, SlackSink
from denpexd.notify.sinks_webhook import WebhookSink
from denpexd.notify.storm import notice
from denpexd.notify.text import one_line
from denpexd.settings import Settings
from denpexd.settings_sinks import AlertmanagerSink as AlertmanagerOptions
from denpexd.settings_sinks import AppriseSink as AppriseOptions
from denpexd.settings_sinks import FileSink as FileOptions
from denpexd.settings_sinks import HeartbeatSink as HeartbeatOptions
from denpexd.settings_sinks import PagerDutySink as PagerDutyOptions
from denpexd.settings_sinks import SlackSink as SlackOptions
from denpexd.settings_sinks import WebhookSink as WebhookOptions

_TEST_SECONDS = 30.0


class ConsoleSink:
    """Prints the report of an incident to a stream; its end in one line."""

    max_attempts: int | None = 1

    def __init__(self, name: str, stream: TextIO, links: Links, *, color: bool, width: int) -> None:
        self.name, self._links = name, links
        self._stream, self._color, self._width = stream, color, width
        self._whole = stream.closed or not stream.isatty()  # a file has room for whole headlines

    async def send(self, row: Row) -> None:
        """Print; DeliveryError if the stream is closed."""
        # A pipe nobody reads from blocks: not in the event loop.
        await asyncio.to_thread(self._print, self.preview(row) + "\n")

    def preview(self, row: Row) -> str:
        """What is printed."""
        verdict = row.delivery.verdict
        if row.delivery.event == "closed":
            return "✔ " + summary_text(verdict, 500)[0]
        also = [("idle", idle(verdict, row.created))]
        # The runbook is what `denpexd explain` prints.
        also += [(one_line(name)[:10], url) for name, url in self._links.of(verdict) if name != "runbook"]
        return report(verdict, color=self._color, width=self._width, whole=self._whole, also=also) + "\n"

    def _print(self, text: str) -> None:
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        try:
            self._stream.write(text.encode(encoding, "replace").decode(encoding))
            self._stream.flush()
        except (OSError, ValueError) as error:
            raise DeliveryError(f"cannot print: {error}", retryable=False) from error


async def send_test(settings: Settings, only: str | None) -> list[tuple[str, str]]:
    """(sink, "" or what went wrong) for each sink, or for the one named `only`; SettingsError if there is none such.

    The message goes the way of every alert: redacted, through an outbox (an own one) and the sender of its sink.
    """
    clock = SystemClock()
    async with new_client() as client:
        verdict = sample(clock.wall())
        key = str(verdict["key"])
        with (
            tempfile.TemporaryDirectory(prefix="denpexd-test-") as folder,
            Store(Path(folder) / "test.sqlite", clock) as store,
        ):
            sinks = make_sinks(settings, client, clock, sys.stdout, store, color=False, width=100)
            chosen = _chosen(sinks, only)
            store.commit(deliveries=[Delivery(s.name, key, 1, "opened", f"{key}:1", "first", verdict) for s in chosen])
            deliverer = Deliverer(store, chosen, clock, random.Random())  # noqa: S311 - jitter, not a secret
            await deliverer.once(_TEST_SECONDS)
            left = [*store.due(math.inf, limit=len(chosen)), *store.dead_letters()]
        wrong = {row.delivery.sink: row.error or f"no answer within {_TEST_SECONDS:g} s" for row in left}
        return [(sink.name, wrong.get(sink.name, "")) for sink in chosen]


def sample(now: float) -> dict[str, object]:
    """A verdict that says that it is a test."""
    return notice(
        t=now,
        key=f"denpexd-test-{round(now):x}",
        job="denpexd-test",
        failure="denpexd-test",
        title="Test message of denpexd",
        severity="low",
        initiating_ranks=[0],
        collateral_ranks=[1],
        quick_answer="Nothing is wrong: somebody tries whether alerts arrive here.",
        summary="Test message of denpexd: nothing is wrong.",
        root_cause="denpexd notify test was run.",
        remediation=[{"do": "Nothing.", "risk": "read-only"}],
    )


def make_sinks(
    settings: Settings,
    client: httpx.AsyncClient,
    clock: Clock,
    stream: TextIO,
    receipts: Receipts,
    *,
    color: bool,
    width: int,
    acknowledged: Acknowledged | None = None,
) -> list[Sink]:
    """The configured sinks; console output goes to `stream` with `width` columns.

    `acknowledged`: who wants to know that somebody has acknowledged an incident at a receiver.
    """
    sinks: list[Sink] = []
    links = Links(settings.web.public_url, settings.runbook_base_url, settings.links)
    for name, options in settings.named_sinks():
        if isinstance(options, WebhookOptions):
            sinks.append(WebhookSink(name, options, client, clock))
        elif isinstance(options, FileOptions):
            sinks.append(FileSink(name, options))
        elif isinstance(options, PagerDutyOptions):
            sinks.append(PagerDutySink(name, options, client, clock, links, acknowledged))
        elif isinstance(options, SlackOptions):
            sinks.append(SlackSink(name, options, client, clock, receipts, links))
        elif isinstance(options, AlertmanagerOptions):
            sinks.append(AlertmanagerSink(name, options, client, clock, links))
        elif isinstance(options, AppriseOptions):
            sinks.append(AppriseSink(name, options, links))
        elif isinstance(options, HeartbeatOptions):
            sinks.append(HeartbeatSink(name, options, client, clock))
        else:
            sinks.append(ConsoleSink(name, stream, links, color=color, width=width))
    return sinks


def sinks_to_look_at(settings: Settings, only: str | None, stream: TextIO, width: int) -> list[Sink]:
    """The configured sinks, or the one named `only`, for previews: nothing is opened and nothing can be sent."""
    made = make_sinks(settings, new_client(), SystemClock(), stream, _NoReceipts(), color=False, width=width)
    return _chosen(made, only)


def previews(sinks: Sequence[Sink], verdict: Verdict, event: str) -> list[tuple[str, object]]:
    """(sink, what it would get) of a message about an incident; an opening, a change, or an end.

    What cannot be told, such as a secret file that is missing, is said in its place.
    """
    return [(sink.name, _preview(sink, verdict, event)) for sink in sinks]


def _preview(sink: Sink, verdict: Verdict, event: str) -> object:
    key, revision, at = str(verdict["key"]), revision_of(verdict), verdict.get("updated_t")
    reason = {"opened": "first"}.get(event, event)
    state = {"state": "closed"} if event == "closed" else {}
    told = Delivery(sink.name, key, revision, event, f"{key}:{revision}", reason, {**verdict, **state, "event": event})
    created = float(at) if isinstance(at, int | float) else 0.0
    try:
        return sink.preview(Row(1, told, "pending", 0, created, created))
    except DeliveryError as error:
        return f"nothing can be sent: {error}"


class _NoReceipts:
    """Of a message that nobody has got yet."""

    def receipt(self, sink: str, key: str) -> str | None:
        return None

    def keep_receipt(self, sink: str, key: str, value: str) -> None:
        return None


def _chosen(sinks: Sequence[Sink], only: str | None) -> list[Sink]:
    chosen = [sink for sink in sinks if only in (None, sink.name)]
    if not chosen:
        raise SettingsError(f"no sink is named {only!r}; configured: {', '.join(s.name for s in sinks)}")
    return chosen
