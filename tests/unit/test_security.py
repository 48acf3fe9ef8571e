"""Rows of the fault matrix that belong to no single module: docs/reliability.md, section H."""

import json
import re
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import click
import httpx
import pytest
import yaml
from click.testing import CliRunner
from pydantic import SecretStr

from denpexd.catalog.patterns import compile_pattern
from denpexd.cli import main
from denpexd.clock import ManualClock
from denpexd.errors import DeliveryError
from denpexd.notify.policy import Delivery
from denpexd.notify.post import new_client
from denpexd.notify.rows import Row
from denpexd.notify.sinks_alertmanager import AlertmanagerSink
from denpexd.notify.sinks_apprise import AppriseSink
from denpexd.notify.sinks_webhook import WebhookSink
from denpexd.scan.engine import choose_engine
from denpexd.settings import Settings, show
from denpexd.settings_sinks import AlertmanagerSink as AlertmanagerOptions
from denpexd.settings_sinks import AppriseSink as AppriseOptions
from denpexd.settings_sinks import WebhookSink as WebhookOptions
from denpexd.web.gate import is_loopback

TEXT = '","severity":"info","key":"x"}\n<!channel> <https://evil.example|click>'


def told(url: str) -> dict[str, Any]:
    """A verdict whose every text names an address, and tries to leave its place."""
    text = f"{TEXT} {url}/evil ![x]({url}/evil.png) {url}/evil?q"
    quote = {"rank": 0, "source": f"/logs/{url}/evil", "offset": 0, "t": 1.0, "text": text, "means": text}
    return {
        **{"key": "run-a0-1-1", "job": text, "failure": "some-hang", "title": text, "quick_answer": text},
        **{"severity": "critical", "certainty": "likely", "category": "hang", "opened_t": 1.0, "evidence": [quote]},
        **{"initiating_ranks": [0], "references": [f"{url}/evil"], "remediation": [{"do": text, "command": text}]},
    }


def row(verdict: dict[str, Any]) -> Row:
    return Row(1, Delivery("s", verdict["key"], 1, "opened", "k:1", "first", verdict), "pending", 0, 0.0, 0.0)


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with new_client() as shared:
        yield shared


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of apprise's plugins
async def test_no_address_in_a_text_is_ever_fetched(receiver: Any, client: httpx.AsyncClient) -> None:
    url, clock = receiver.url, ManualClock()
    message = row(told(url))
    await WebhookSink("w", WebhookOptions(type="webhook", url=SecretStr(f"{url}/w")), client, clock).send(message)
    options = AlertmanagerOptions(type="alertmanager", url=SecretStr(f"{url}/a"))
    await AlertmanagerSink("a", options, client, clock).send(message)
    address = url.replace("http://", "json://")
    await AppriseSink("p", AppriseOptions(type="apprise", url=SecretStr(f"{address}/p"))).send(message)
    assert [request.path for request in receiver.requests] == ["/w", "/a/api/v2/alerts", "/p"]


async def test_no_text_leaves_its_place_in_json(receiver: Any, client: httpx.AsyncClient) -> None:
    verdict = told("http://h")
    sink = WebhookSink("w", WebhookOptions(type="webhook", url=SecretStr(receiver.url)), client, ManualClock())
    await sink.send(row(verdict))
    assert receiver.requests[0].json == verdict


async def test_what_a_receiver_repeats_of_our_own_secrets_is_not_passed_on(
    receiver: Any, client: httpx.AsyncClient
) -> None:
    """Neither to the log nor to the state: reasons are kept there."""
    secret, path = "Zq8vWn3kLp5rTx2y", "hook-9fJk2mVb7Qw"
    receiver.script = [(f"500 {secret} /{path}/x", {})]
    options = WebhookOptions(
        type="webhook", url=SecretStr(f"{receiver.url}/{path}"), headers={"X-Key": SecretStr(secret)}
    )
    with pytest.raises(DeliveryError) as caught:
        await WebhookSink("w", options, client, ManualClock()).send(row(told("http://h")))
    assert "HTTP 500" in caught.value.reason
    assert "***" in caught.value.reason
    assert secret not in caught.value.reason
    assert path not in caught.value.reason


@pytest.mark.parametrize("pattern", ["x(a+)+$", "x(a|aa)+$", "x(a|a?)+$", "x(.*a){20}$"])
def test_a_pattern_that_explodes_elsewhere_takes_linear_time(pattern: str) -> None:
    text = "x" + "a" * 100_000 + "b"
    began = time.monotonic()
    compile_pattern(pattern).search(text)
    choose_engine()([pattern]).scan(text.encode())
    assert time.monotonic() - began < 60.0  # and not for ever


def test_the_default_address_is_of_this_machine_only() -> None:
    assert is_loopback(Settings().web.host)


def test_settings_never_show_a_secret() -> None:
    secret = "Zq8vWn3kLp5rTx2y"
    sinks = [
        {"type": "webhook", "url": f"https://h.example/{secret}", "headers": {"X-Token": secret}},
        {"type": "apprise", "url": f"slack://{secret}/{secret}/{secret}"},
    ]
    settings = Settings(sinks=sinks)
    for shown in (show(settings), repr(settings), str(settings), json.dumps(settings.model_dump(mode="json"))):
        assert secret not in shown


def commands(command: click.Command) -> Iterator[click.Command]:
    yield command
    for inner in command.commands.values() if isinstance(command, click.Group) else ():
        yield from commands(inner)


def test_no_option_takes_what_every_user_could_read_on_the_command_line() -> None:
    options = {name for command in commands(main) for option in command.params for name in option.opts}
    assert "--config" in options
    harmless = {"--url", "--token-file"}  # where a daemon listens; a file
    assert not {name for name in options - harmless if re.search("url|token|password|secret|header", name)}


def test_an_error_message_quotes_names_and_lines_as_text_without_secrets(tmp_path: Path) -> None:
    name = "\x1b]0;owned\x07\u202e-token=Zq8vWn3kLp5rTx2y.log"
    (tmp_path / "denpexd.yaml").write_text(yaml.safe_dump({"paths": ["x"], name: 1}), "utf-8")
    for arguments in (["diagnose", str(tmp_path / name)], ["config", "check", "-c", str(tmp_path / "denpexd.yaml")]):
        result = CliRunner().invoke(main, arguments)
        assert result.exit_code == 2
        assert "[REDACTED:assignment]" in result.output
        assert not set(result.output) & set("\x1b\x07\u202e")
        assert "Zq8vWn3kLp5rTx2y" not in result.output
