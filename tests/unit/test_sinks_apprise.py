"""apprise with its real plugins: towards a loopback receiver, and what Slack and PagerDuty would be sent."""

import asyncio
import json
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from denpexd.errors import DeliveryError
from denpexd.notify.policy import Delivery
from denpexd.notify.rows import Row
from denpexd.notify.sinks_apprise import AppriseSink
from denpexd.settings_sinks import AppriseSink as Options

# apprise loads all its plugins, and some use what their own dependencies call deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

VERDICT: dict[str, Any] = {
    "key": "run/1/a b",
    "job": "run",
    "failure": "some-hang",
    "severity": "critical",
    "certainty": "likely",
    "title": "Some hang",
    "hang": True,
    "initiating_ranks": [0],
    "quick_answer": "It hangs. " * 700,
    "evidence": [{"rank": 0, "source": "log", "text": "<!channel> @everyone <@U1>", "means": "bad"}],
}
SHORT = VERDICT | {"quick_answer": "It hangs."}


def sink(url: str) -> AppriseSink:
    return AppriseSink("apprise", Options(type="apprise", url=SecretStr(url)))


def row(event: str = "opened", verdict: dict[str, Any] = VERDICT) -> Row:
    return Row(1, Delivery("apprise", verdict["key"], 1, event, "x:1", "first", verdict), "pending", 0, 0.0, 0.0)


async def test_title_and_text_reach_the_service(receiver: Any) -> None:
    await sink(receiver.url.replace("http://", "json://") + "/path").send(row())
    got = receiver.requests[0].json
    assert got["title"].startswith("[critical] HANG run rank 0: Some hang (likely)")
    assert len(got["title"]) <= 250
    assert 3000 < len(got["message"]) <= 3500
    assert got["type"] == "failure"


@pytest.mark.parametrize(
    ("event", "severity", "kind"),
    [("closed", "critical", "success"), ("updated", "medium", "warning"), ("opened", "low", "info")],
)
async def test_the_type_tells_severity_and_end(receiver: Any, event: str, severity: str, kind: str) -> None:
    url = receiver.url.replace("http://", "json://")
    await sink(url).send(row(event, SHORT | {"severity": severity}))
    assert receiver.requests[0].json["type"] == kind


async def test_the_key_of_the_incident_fills_its_place_in_the_url(receiver: Any) -> None:
    await sink(receiver.url.replace("http://", "json://") + "/{key}").send(row(verdict=SHORT))
    assert receiver.requests[0].path == "/run%2F1%2Fa%20b"


async def test_mentions_in_a_log_line_ping_nobody(receiver: Any) -> None:
    await sink(receiver.url.replace("http://", "json://")).send(row(verdict=SHORT))
    text = receiver.requests[0].json["message"]
    for live in ("<!", "<@", "@everyone"):
        assert live not in text
    assert "channel" in text


@pytest.mark.parametrize("status", [404, 429, 500])
async def test_a_failure_is_tried_again_a_bounded_number_of_times(receiver: Any, status: int) -> None:
    receiver.script = [status]
    tried = sink(receiver.url.replace("http://", "json://"))
    with pytest.raises(DeliveryError) as caught:
        await tried.send(row(verdict=SHORT))
    assert caught.value.retryable
    assert tried.max_attempts == 8


async def test_a_service_that_drips_is_given_up_in_time_and_takes_no_thread_of_others(receiver: Any) -> None:
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    receiver.script = ["drip"]
    options = Options(type="apprise", url=SecretStr(receiver.url.replace("http://", "json://")))
    slow = AppriseSink("apprise", options, limit=1.0)
    slow.preview(row())  # imports apprise
    sending = asyncio.create_task(slow.send(row()))
    while not receiver.requests:
        await asyncio.sleep(0.01)
    assert await asyncio.wait_for(asyncio.to_thread(int), 30) == 0
    for why in ("no end within 1 s", "still holds the message before"):
        with pytest.raises(DeliveryError, match=why) as caught:
            await sending
        assert caught.value.retryable
        sending = asyncio.create_task(slow.send(row()))
    sending.cancel()
    assert len(receiver.requests) == 1


async def test_redirects_are_not_followed(receiver: Any) -> None:
    receiver.script = [(307, {"Location": receiver.url + "/elsewhere"})]
    with pytest.raises(DeliveryError):
        await sink(receiver.url.replace("http://", "json://")).send(row(verdict=SHORT))
    assert len(receiver.requests) == 1


@pytest.mark.parametrize("url", ["nosuchservice://secret-token", "slack://secret-token", "secret-token"])
async def test_a_wrong_url_is_final_and_never_shown(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with pytest.raises(DeliveryError) as caught:
        await sink(url).send(row(verdict=SHORT))
    assert not caught.value.retryable
    assert "secret-token" not in caught.value.reason + caplog.text


async def test_a_missing_file_is_tried_again(tmp_path: Path) -> None:
    with pytest.raises(DeliveryError, match="cannot read") as caught:
        await AppriseSink("a", Options(type="apprise", url_file=tmp_path / "none")).send(row(verdict=SHORT))
    assert caught.value.retryable


async def posted(monkeypatch: pytest.MonkeyPatch, url: str, told: Row) -> dict[str, Any]:
    """What the plugin would send to its service on the internet: only requests itself is replaced."""
    import requests

    sent: list[dict[str, Any]] = []

    def post(address: str, data: Any = None, **rest: Any) -> requests.Response:
        sent.append({"address": address, **json.loads(data)})
        answer = requests.Response()
        answer.status_code, answer._content = 202 if "pagerduty" in address else 200, b"ok"
        return answer

    monkeypatch.setattr(requests, "post", post)
    monkeypatch.setattr(requests, "request", lambda method, address, **rest: post(address, **rest))
    await sink(url).send(told)
    assert len(sent) == 1
    return sent[0]


async def test_pagerduty_opens_and_resolves_under_the_key_of_the_incident(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "pagerduty://" + "r" * 32 + "@" + "a" * 20 + "?action=map&dedup={key}"
    opened = await posted(monkeypatch, url, row())
    assert (opened["event_action"], opened["dedup_key"]) == ("trigger", "run/1/a b")
    assert opened["payload"]["severity"] == "critical"
    assert len(opened["payload"]["summary"]) <= 1024
    closed = await posted(monkeypatch, url, row("closed"))
    assert (closed["event_action"], closed["dedup_key"]) == ("resolve", "run/1/a b")


async def test_slack_gets_escaped_text(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "slack://" + "T" * 9 + "/" + "B" * 9 + "/" + "c" * 24
    sent = await posted(monkeypatch, url, row(verdict=SHORT))
    text = json.dumps(sent)
    assert "hooks.slack.com" in sent["address"]
    assert "Some hang" in text
    assert "<!" not in text
    assert "<@" not in text
