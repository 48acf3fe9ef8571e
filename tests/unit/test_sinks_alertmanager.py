"""Alertmanager over real sockets: one alert per incident, sent again while open, ended when it closes."""

from collections.abc import AsyncIterator
from typing import Any

import pytest

from denpexd.clock import ManualClock
from denpexd.errors import DeliveryError
from denpexd.notify.message import Links
from denpexd.notify.policy import Delivery
from denpexd.notify.post import new_client
from denpexd.notify.rows import Row
from denpexd.notify.sinks_alertmanager import AlertmanagerSink
from denpexd.settings_sinks import AlertmanagerSink as Options

from .conftest import SOME_HANG

START = 1_700_000_000.0
VERDICT: dict[str, Any] = SOME_HANG | {
    "key": "k1",
    "remediation": [{"do": "Restart it", "risk": "restart"}],
    "evidence": [{"rank": 0, "source": "log", "text": "line 4711", "means": "bad"}],
}


def row(event: str = "opened", verdict: dict[str, Any] = VERDICT) -> Row:
    return Row(1, Delivery("am", "k1", 1, event, "k1:1", "first", verdict), "pending", 0, START, START)


@pytest.fixture
async def sink(receiver: Any) -> AsyncIterator[AlertmanagerSink]:
    options = Options(type="alertmanager", url=receiver.url + "/prefix/")
    async with new_client() as client:
        yield AlertmanagerSink("am", options, client, clock(), Links(runbooks="https://runbooks.example/"))


def clock() -> ManualClock:
    return ManualClock(wall=START)


async def test_an_open_incident_is_one_alert_that_expires_unless_repeated(receiver: Any, sink: Any) -> None:
    await sink.send(row())
    [got] = receiver.requests
    assert got.path == "/prefix/api/v2/alerts"
    [alert] = got.json
    assert alert["labels"] == {
        "alertname": "DenpexdIncident",
        "failure": "some-hang",
        "category": "hang",
        "severity": "critical",
        "training_job": "run",
        "incident": "k1",
    }
    assert alert["startsAt"] == "2023-11-14T22:12:20.000Z"
    assert alert["endsAt"] == "2023-11-14T22:17:20.000Z"
    notes = alert["annotations"]
    assert "Some hang" in notes["summary"]
    assert "line 4711" in notes["description"]
    assert notes["remediation"] == "1. Restart it"
    assert notes["runbook_url"] == "https://runbooks.example/some-hang"
    assert notes["collateral_ranks"] == "1-3"
    assert all(isinstance(value, str) and value for value in notes.values())


async def test_a_closed_incident_ends_now(receiver: Any, sink: Any) -> None:
    await sink.send(row())
    await sink.send(row("closed"))
    [alert] = receiver.requests[1].json
    assert alert["labels"] == receiver.requests[0].json[0]["labels"]
    assert alert["endsAt"] == "2023-11-14T22:13:20.000Z"


async def test_a_better_explanation_ends_the_alert_under_the_former_labels(receiver: Any, sink: Any) -> None:
    await sink.send(row())
    await sink.send(row("updated", VERDICT | {"failure": "better"}))
    former, current = receiver.requests[1].json
    assert (former["labels"]["failure"], former["endsAt"]) == ("some-hang", "2023-11-14T22:13:20.000Z")
    assert (current["labels"]["failure"], current["endsAt"]) == ("better", "2023-11-14T22:17:20.000Z")


async def test_open_incidents_are_sent_again_in_one_request(receiver: Any, sink: Any) -> None:
    await sink.refresh([VERDICT, VERDICT | {"key": "k2"}])
    [got] = receiver.requests
    assert [alert["labels"]["incident"] for alert in got.json] == ["k1", "k2"]


async def test_a_recording_without_wall_time_starts_when_it_was_told(receiver: Any, sink: Any) -> None:
    await sink.send(row(verdict=VERDICT | {"opened_t": 27.5}))
    assert receiver.requests[0].json[0]["startsAt"] == "2023-11-14T22:13:20.000Z"


async def test_a_refusal_is_final(receiver: Any, sink: Any) -> None:
    receiver.script = [400]
    with pytest.raises(DeliveryError, match="HTTP 400") as caught:
        await sink.send(row())
    assert not caught.value.retryable
