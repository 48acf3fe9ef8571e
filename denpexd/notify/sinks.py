"""From settings to sinks and to what the policy knows of them."""

from typing import TextIO

import httpx

from denpexd.clock import Clock
from denpexd.notify.deliver import Sink
from denpexd.notify.policy import SinkFilter
from denpexd.notify.sinks_alertmanager import AlertmanagerSink
from denpexd.notify.sinks_apprise import AppriseSink
from denpexd.notify.sinks_console import ConsoleSink
from denpexd.notify.sinks_webhook import WebhookSink
from denpexd.settings import AlertmanagerSink as AlertmanagerOptions
from denpexd.settings import AppriseSink as AppriseOptions
from denpexd.settings import Settings
from denpexd.settings import WebhookSink as WebhookOptions


def make_sinks(
    settings: Settings, client: httpx.AsyncClient, clock: Clock, stream: TextIO, *, color: bool, width: int
) -> list[Sink]:
    """The configured sinks; console output goes to `stream` with `width` columns."""
    sinks: list[Sink] = []
    for name, options in settings.named_sinks():
        if isinstance(options, WebhookOptions):
            sinks.append(WebhookSink(name, options, client, clock))
        elif isinstance(options, AlertmanagerOptions):
            sinks.append(AlertmanagerSink(name, options, client, clock, settings.runbook_base_url))
        elif isinstance(options, AppriseOptions):
            sinks.append(AppriseSink(name, options))
        else:
            sinks.append(ConsoleSink(name, stream, color=color, width=width))
    return sinks


def filters(settings: Settings) -> list[SinkFilter]:
    """The sinks as `policy.plan` wants them."""
    return [
        SinkFilter(name, None if options.severity is None else frozenset(options.severity))
        for name, options in settings.named_sinks()
    ]
