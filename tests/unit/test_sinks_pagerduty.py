"""PagerDuty against a scripted receiver: one incident there from opening to end, and who took it on read back."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from denpexd.clock import ManualClock
from denpexd.errors import DeliveryError
from denpexd.notify.message import Links
from denpexd.notify.policy import Delivery
from denpexd.notify.post import new_client
from denpexd.notify.rows import Row
from denpexd.notify.sinks_pagerduty import PagerDutySink, dedup_key
from denpexd.settings_sinks import PagerDutySink as Options

from .conftest import SOME_HANG

START = 1_700_000_000.0
VERDICT: dict[str, Any] = SOME_HANG | {
    "key": "run/1 a",
    "severity": "high",
    "nodes": {"0": "gpu-a"},
    "remediation": [{"do": "Restart it", "risk": "restart", "command": "kill 1"}],
    "evidence": [{"rank": 0, "source": "log", "text": "line 4711", "means": "bad"}],
}


def row(event: str = "opened", reason: str = "first") -> Row:
    return Row(1, Delivery("pd", "run/1 a", 1, event, "k:1", reason, VERDICT), "pending", 0, START, START)


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with new_client() as shared:
        yield shared


def sink(client: httpx.AsyncClient, url: str, tell: Any = None, **options: Any) -> PagerDutySink:
    made = Options(type="pagerduty", routing_key=SecretStr("r0uting"), url=f"{url}/v2/enqueue", api_url=url, **options)
    return PagerDutySink("pd", made, client, ManualClock(wall=START), Links("https://den"), tell, 60.0)


async def test_an_incident_is_triggered_with_all_that_somebody_needs(receiver: Any, client: Any) -> None:
    receiver.script = [(202, {}, {"status": "success"})]
    await sink(client, receiver.url).send(row())
    [got] = receiver.requests
    assert got.path == "/v2/enqueue"
    event = got.json
    assert (event["routing_key"], event["event_action"], event["dedup_key"]) == ("r0uting", "trigger", "run/1 a")
    payload = event["payload"]
    assert payload["summary"] == "HANG run rank 0 of 4 on gpu-a: Some hang (likely)"
    assert (payload["severity"], payload["source"]) == ("error", "rank 0 on gpu-a")
    assert (payload["component"], payload["group"], payload["class"]) == ("rank 0 of 4", "run", "some-hang")
    assert payload["timestamp"] == "2023-11-14T22:12:20.000Z"
    assert payload["custom_details"]["what to do"] == "1. Restart it\n   $ kill 1"
    assert "line 4711" in payload["custom_details"]["evidence"]
    assert event["links"] == [{"href": "https://den/incidents/run/1%20a", "text": "console"}]
    assert event["client_url"] == "https://den/incidents/run/1%20a"


@pytest.mark.parametrize(
    ("event", "reason", "action"),
    [("updated", "updated", "trigger"), ("updated", "acknowledged", "acknowledge"), ("closed", "closed", "resolve")],
)
async def test_what_follows_is_the_same_incident(
    receiver: Any, client: Any, event: str, reason: str, action: str
) -> None:
    await sink(client, receiver.url).send(row(event, reason))
    got = receiver.requests[0].json
    assert (got["event_action"], got["dedup_key"]) == (action, "run/1 a")
    assert ("payload" in got) == (action == "trigger")


def test_keys_that_are_too_long_stay_different() -> None:
    long = [dedup_key("k" * 300 + str(n)) for n in range(2)]
    assert [len(key) for key in long] == [255, 255]
    assert long[0] != long[1]


@pytest.mark.parametrize(
    ("answer", "retryable", "after", "reason"),
    [
        ((400, {}, {"status": "invalid event", "errors": ["no summary"], "of": "r0uting"}), False, None, "no summary"),
        ((429, {"Retry-After": "5"}), True, 5.0, "HTTP 429"),
        ((500, {}), True, None, "HTTP 500"),
        ((307, {"Location": "https://elsewhere.example/"}), False, None, "redirected"),
        ("silent", True, None, "no answer"),
        ("garbage", True, None, "Error"),
    ],
)
async def test_errors_by_class(
    receiver: Any, client: Any, answer: Any, retryable: bool, after: Any, reason: str
) -> None:
    receiver.script = [answer]
    pager = sink(client, receiver.url)
    pager._timeout = 0.3 if answer == "silent" else 60.0
    with pytest.raises(DeliveryError, match=reason) as caught:
        await pager.send(row())
    assert (caught.value.retryable, caught.value.after) == (retryable, after)
    assert "r0uting" not in caught.value.reason


async def test_who_acknowledged_is_read_back_once(receiver: Any, client: Any, tmp_path: Path) -> None:
    token, told = tmp_path / "token", list[tuple[str, str]]()
    token.write_text("t0ken\n")
    ada = {"acknowledger": {"summary": "Ada Lovelace"}}
    receiver.script = [
        (200, {}, {"incidents": []}),
        (200, {}, {"incidents": [{"status": "acknowledged", "acknowledgements": [ada]}]}),
    ]
    pager = sink(client, receiver.url, lambda key, by: told.append((key, by)), api_token_file=token)
    for _ in range(3):
        await pager.refresh([VERDICT])
    assert told == [("run/1 a", "Ada Lovelace")]
    assert len(receiver.requests) == 2
    assert receiver.requests[0].path.startswith("/incidents?incident_key=run%2F1%20a&")
    assert receiver.requests[0].headers["authorization"] == "Token token=t0ken"
    receiver.script = [(200, {}, {"incidents": []})]
    await pager.refresh([])  # it ended; another one of this key is asked about anew
    await pager.refresh([VERDICT])
    assert len(receiver.requests) == 3


async def test_nothing_is_read_back_without_a_token(receiver: Any, client: Any) -> None:
    await sink(client, receiver.url, lambda *_: None).refresh([VERDICT])
    assert receiver.requests == []


async def test_an_answer_that_is_no_json_is_said(receiver: Any, client: Any, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t0ken")
    pager = sink(client, receiver.url, lambda *_: None, api_token_file=tmp_path / "token")
    with pytest.raises(DeliveryError, match="not JSON"):
        await pager.refresh([VERDICT])


def test_the_preview_holds_no_routing_key(client: Any) -> None:
    assert "r0uting" not in json.dumps(sink(client, "http://h").preview(row()))
