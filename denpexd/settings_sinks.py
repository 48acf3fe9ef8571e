"""The options of every destination of alerts."""

import re
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, SecretStr, model_validator

from denpexd.settings_alerts import Match, Quiet, Severity, many
from denpexd.settings_values import Duration, SecretUrl, Section, Size, as_list, check_http_url

_OWN_HEADERS = {
    "idempotency-key",
    "content-type",
    "content-length",
    "host",
    "user-agent",
    "x-denpexd-timestamp",
    "x-denpexd-signature",
}


_Remind = Annotated[Duration, Field(ge=0, le=8 * 3600)]


class _Named(Section):
    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,39}$")] | None = Field(
        default=None, description="name in metrics and in the state database; needed where a type is used twice"
    )


class SinkOptions(_Named):
    """What every destination of alerts has."""

    severity: Annotated[list[Severity], BeforeValidator(as_list), Field(min_length=1)] | None = Field(
        default=None, description="send only incidents of these severities"
    )
    match: Match | None = Field(default=None, description="send only incidents that fit all of this")
    unless: Match | None = Field(default=None, description="and none that fits all of this")
    remind: _Remind = Field(
        default=1800.0, description="time until an open incident is said again, then twice as long, up to 8h; 0s: never"
    )
    quiet: Annotated[list[Quiet], BeforeValidator(many), Field(max_length=20)] = Field(
        default_factory=list, description="hours in which incidents of some severities wait"
    )


class ConsoleSink(SinkOptions):
    """Prints the report to standard output."""

    type: Literal["console"] = "console"
    remind: _Remind = 0.0


class FileSink(SinkOptions):
    """Appends the verdict of every message to a file, a line of JSON each."""

    type: Literal["file"]
    remind: _Remind = 0.0
    path: Path = Field(description="file to append to; made with mode 0600, its folder must exist")
    size: Annotated[Size, Field(ge=4096)] = Field(
        default=64 * 1024**2, description="a file that would grow beyond this is moved to PATH.1 first"
    )
    keep: Annotated[int, Field(ge=0, le=100)] = Field(default=3, description="how many moved files are kept")


class _Url(Section):
    url: SecretUrl | None = Field(default=None, description="where to send to")
    url_file: Path | None = Field(default=None, description="file that holds the URL, read at every use")

    @model_validator(mode="after")
    def _one_url(self) -> "_Url":
        _only_one(("url", self.url), ("url_file", self.url_file))
        return self


class _UrlSink(SinkOptions, _Url):
    """A destination that a URL names."""


class _HttpSink(_UrlSink):
    headers: dict[str, SecretStr] = Field(default_factory=dict, description="further request headers")

    @model_validator(mode="after")
    def _http(self) -> "_HttpSink":
        _http(self.url)
        for name, value in self.headers.items():
            if not re.fullmatch(r"[A-Za-z0-9-]+", name) or name.lower() in _OWN_HEADERS:
                raise ValueError(f"header {name!r} cannot be set")
            if not value.get_secret_value().isascii() or not value.get_secret_value().isprintable():
                raise ValueError(f"the value of header {name!r} must be printable ASCII on one line")
        return self


class WebhookSink(_HttpSink):
    """POSTs the verdict as JSON."""

    type: Literal["webhook"]
    secret_file: Path | None = Field(
        default=None, description="file with the key of the signature (HMAC-SHA256), read at every use"
    )


class AlertmanagerSink(_HttpSink):
    """Pushes alerts to an Alertmanager (API v2)."""

    type: Literal["alertmanager"]
    remind: _Remind = 0.0  # it reminds by itself (repeat_interval)
    interval: Annotated[Duration, Field(ge=5, le=3600)] = Field(
        default=60.0, description="how often open alerts are sent again; keep it below resolve_timeout (5m)"
    )
    template: Path | None = Field(
        default=None, description="file with a jinja2 template: title in its first line, then the body"
    )


class AppriseSink(_UrlSink):
    """Any service that apprise knows: mail, Teams, Telegram, and about 170 more."""

    type: Literal["apprise"]
    attempts: Annotated[int, Field(ge=1, le=100)] = Field(default=8, description="tries before a message is given up")
    template: Path | None = Field(
        default=None, description="file with a jinja2 template: title in its first line, then the body"
    )


class SlackSink(SinkOptions):
    """Slack: one thread an incident with a bot token, else one message after the other by an incoming webhook."""

    type: Literal["slack"]
    webhook_url: SecretUrl | None = Field(default=None, description="address of an incoming webhook")
    webhook_url_file: Path | None = Field(default=None, description="file that holds it, read at every use")
    bot_token: SecretStr | None = Field(default=None, description="token of a bot (xoxb-...) with chat:write")
    bot_token_file: Path | None = Field(default=None, description="file that holds it, read at every use")
    channel: str | None = Field(
        default=None, min_length=1, description="id or name of the channel; with a bot token only"
    )
    api_url: str = Field(default="https://slack.com/api", description="address of Slack's Web API, for bot tokens")
    template: Path | None = Field(
        default=None, description="file with a jinja2 template: title in its first line, then the body"
    )

    @model_validator(mode="after")
    def _one_way(self) -> "SlackSink":
        _only_one(
            ("webhook_url", self.webhook_url),
            ("webhook_url_file", self.webhook_url_file),
            ("bot_token", self.bot_token),
            ("bot_token_file", self.bot_token_file),
        )
        if self.by_bot and self.channel is None:
            raise ValueError("a bot token needs a channel")
        if not self.by_bot and self.channel is not None:
            raise ValueError("the channel belongs to a webhook and cannot be chosen; use a bot token for that")
        _http(self.webhook_url)
        check_http_url(self.api_url)
        return self

    @property
    def by_bot(self) -> bool:
        """Whether messages can be changed later."""
        return self.bot_token is not None or self.bot_token_file is not None


class PagerDutySink(SinkOptions):
    """PagerDuty: one incident each, triggered, updated and resolved by Events API v2."""

    type: Literal["pagerduty"]
    remind: _Remind = 0.0  # it escalates by itself
    routing_key: SecretStr | None = Field(default=None, description="integration key of the service (Events API v2)")
    routing_key_file: Path | None = Field(default=None, description="file that holds it, read at every use")
    region: Literal["us", "eu"] = Field(default="us", description="where the account is")
    url: str | None = Field(default=None, description="address of the Events API, in place of that of the region")
    api_token_file: Path | None = Field(
        default=None, description="file with a token of the REST API: who acknowledged is read back"
    )
    api_url: str | None = Field(default=None, description="address of the REST API, in place of that of the region")
    interval: Annotated[Duration, Field(ge=10, le=3600)] = Field(
        default=60.0, description="how often acknowledgements are read back"
    )

    @model_validator(mode="after")
    def _one_key(self) -> "PagerDutySink":
        _only_one(("routing_key", self.routing_key), ("routing_key_file", self.routing_key_file))
        for url in (self.url, self.api_url):
            if url is not None:
                check_http_url(url)
        return self

    @property
    def events_url(self) -> str:
        """Where events go."""
        return self.url or f"https://events{'.eu' * (self.region == 'eu')}.pagerduty.com/v2/enqueue"

    @property
    def rest_url(self) -> str:
        """Where incidents are asked about."""
        return (self.api_url or f"https://api{'.eu' * (self.region == 'eu')}.pagerduty.com").rstrip("/")


class HeartbeatSink(_Named, _Url):
    """Asks a URL again and again while the daemon works, for a service that alarms when nobody asks."""

    type: Literal["heartbeat"]
    every: Annotated[Duration, Field(ge=5, le=86400)] = Field(default=60.0, description="time between two requests")
    method: Literal["GET", "POST", "HEAD"] = Field(default="GET", description="of the request")

    @model_validator(mode="after")
    def _web(self) -> "HeartbeatSink":
        _http(self.url)
        return self


Sink = Annotated[
    ConsoleSink | FileSink | WebhookSink | SlackSink | PagerDutySink | AlertmanagerSink | AppriseSink | HeartbeatSink,
    Field(discriminator="type"),
]


def _only_one(*options: tuple[str, object]) -> None:
    if sum(value is not None for _, value in options) != 1:
        *first, last = (name for name, _ in options)
        raise ValueError(f"exactly one of {', '.join(first)} and {last} is needed")


def _http(url: SecretStr | None) -> None:
    if url is not None:
        check_http_url(url.get_secret_value())
