"""Slack against a scripted receiver: one message an incident, changed in place, also by a daemon that comes later."""

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
from denpexd.notify.outbox import Store
from denpexd.notify.policy import Delivery
from denpexd.notify.post import new_client
from denpexd.notify.rows import Row
from denpexd.notify.sinks_slack import SlackSink
from denpexd.settings_sinks import SlackSink as Options

from .conftest import SOME_HANG

START = 1_700_000_000.0
VERDICT: dict[str, Any] = SOME_HANG | {
    "key": "run-1",
    "opened_t": START,
    "updated_t": START,
    "stopped_t": START - 3600,
    "nodes": {"0": "gpu-a"},
    "evidence": [{"rank": 0, "source": "log", "text": "<!channel> @here <@U1>", "means": "bad"}],
}
POSTED = (200, {}, {"ok": True, "channel": "C1", "ts": "1.5"})


def row(event: str = "opened", revision: int = 1, reason: str = "", **changed: Any) -> Row:
    state = {"state": "closed"} if event == "closed" else {}
    verdict = VERDICT | {"event": event, "revision": revision} | state | changed
    told = Delivery("slack", "run-1", revision, event, f"run-1:{revision}", reason or event, verdict)
    return Row(1, told, "pending", 0, START, START)


@pytest.fixture
async def client() -> AsyncIterator[httpx.AsyncClient]:
    async with new_client() as shared:
        yield shared


def sink(client: httpx.AsyncClient, store: Store, **options: Any) -> SlackSink:
    links = Links("https://den.example", "https://runbooks.example/{failure}", {"dashboard": "https://g/d?v={job}"})
    return SlackSink("slack", Options(type="slack", **options), client, ManualClock(wall=START), store, links, 60.0)


@pytest.fixture
def bot(receiver: Any) -> dict[str, Any]:
    return {"bot_token": SecretStr("xoxb-1"), "channel": "#oncall", "api_url": receiver.url + "/api/"}


async def test_a_webhook_gets_the_message_in_blocks(receiver: Any, client: Any, tmp_path: Path) -> None:
    with Store(tmp_path / "s") as store:
        await sink(client, store, webhook_url=receiver.url + "/T/B/x").send(row())
    [got] = receiver.requests
    assert got.path == "/T/B/x"
    header, answer, *_ = got.json["blocks"]
    assert header["text"]["text"] == "🔴 HANG rank 0 of 4 on gpu-a: Some hang (likely)"
    assert answer["text"]["text"] == "It hangs."
    text = json.dumps(got.json, ensure_ascii=False)
    assert "4 GPU-hours (4 ranks x 1 h; one GPU a rank, no rank has worked since)" in text
    assert "<https://den.example/incidents/run-1|console>" in text
    assert "<https://g/d?v=run|dashboard>" in text
    assert "<!channel>" not in text
    assert "<@" not in text


async def test_a_bot_changes_its_message_and_tells_the_thread_what_is_new(
    receiver: Any, client: Any, tmp_path: Path, bot: Any
) -> None:
    receiver.script = [POSTED, *[(200, {}, {"ok": True})] * 4]
    with Store(tmp_path / "s") as store:
        await sink(client, store, **bot).send(row())
    with Store(tmp_path / "s") as store:  # a daemon that was started anew
        again = sink(client, store, **bot)
        await again.send(row("updated", 2, title="Better", certainty="confirmed"))
        await again.send(row("closed", 3, title="Better", certainty="confirmed"))
    calls = [(r.path.rpartition("/")[2], r.json) for r in receiver.requests]
    assert [name for name, _ in calls] == ["chat.postMessage", *2 * ["chat.update", "chat.postMessage"]]
    assert receiver.requests[0].headers["authorization"] == "Bearer xoxb-1"
    assert calls[0][1]["channel"] == "#oncall"
    assert (calls[1][1]["channel"], calls[1][1]["ts"]) == ("C1", "1.5")
    assert calls[2][1]["thread_ts"] == "1.5"
    assert calls[2][1]["text"] == "*verdict*: Better (confirmed) (was Some hang (likely))"
    assert calls[3][1]["blocks"][0]["text"]["text"].startswith("✅ CLOSED rank 0")
    assert calls[4][1]["text"].startswith("✅ Resolved. Closed at 2023-11-14 22:13:20 UTC.")


async def test_a_reminder_shows_in_the_channel(receiver: Any, client: Any, tmp_path: Path, bot: Any) -> None:
    receiver.script = [POSTED, (200, {}, {"ok": True}), (200, {}, {"ok": True})]
    with Store(tmp_path / "s") as store:
        slack = sink(client, store, **bot)
        await slack.send(row())
        await slack.send(row("updated", 2, "reminder"))
    assert receiver.requests[2].json["reply_broadcast"] is True
    assert receiver.requests[2].json["text"].startswith("Still open: 4 GPU-hours")


async def test_a_repeat_of_a_told_revision_adds_no_second_reply(
    receiver: Any, client: Any, tmp_path: Path, bot: Any
) -> None:
    receiver.script = [POSTED, (200, {}, {"ok": True})]
    with Store(tmp_path / "s") as store:
        slack = sink(client, store, **bot)
        await slack.send(row())
        await slack.send(row())
    assert [r.path for r in receiver.requests] == ["/api/chat.postMessage", "/api/chat.update"]


@pytest.mark.parametrize("code", ["message_not_found", "edit_window_closed"])
async def test_a_message_that_is_gone_is_posted_anew(
    receiver: Any, client: Any, tmp_path: Path, bot: Any, code: str
) -> None:
    gone, anew = {"ok": False, "error": code}, {"ok": True, "channel": "C1", "ts": "2"}
    receiver.script = [POSTED, (200, {}, gone), (200, {}, anew)]
    with Store(tmp_path / "s") as store:
        slack = sink(client, store, **bot)
        await slack.send(row())
        await slack.send(row("updated", 2))
        assert json.loads(store.receipt("slack", "run-1") or "")["ts"] == "2"
    assert receiver.requests[2].path == "/api/chat.postMessage"
    assert "thread_ts" not in receiver.requests[2].json


@pytest.mark.parametrize(
    ("answer", "retryable", "after", "reason"),
    [
        ((429, {"Retry-After": "30"}), True, 30.0, "HTTP 429"),
        ((503, {}), True, None, "HTTP 503"),
        ((302, {"Location": "https://elsewhere.example/"}), False, None, "redirected"),
        ((200, {}, {"ok": False, "error": "ratelimited"}), True, None, "ratelimited"),
        ((200, {}, {"ok": False, "error": "invalid_auth"}), False, None, "invalid_auth"),
        ((200, {}, {"ok": False, "error": "channel_not_found"}), False, None, "channel_not_found"),
        ((200, {}, {"ok": False, "error": "no xoxb-1 <b>"}), False, None, "an error without a code"),
        (200, True, None, "not Slack's"),
        ("silent", True, None, "no answer"),
        ("drip", True, None, "no answer"),
    ],
)
async def test_errors_by_class(
    receiver: Any, client: Any, tmp_path: Path, bot: Any, answer: Any, retryable: bool, after: Any, reason: str
) -> None:
    receiver.script = [answer]
    with Store(tmp_path / "s") as store:
        slack = sink(client, store, **bot)
        slack._timeout = 0.3 if isinstance(answer, str) else 60.0
        with pytest.raises(DeliveryError, match=reason) as caught:
            await slack.send(row())
        assert (caught.value.retryable, caught.value.after) == (retryable, after)
        assert store.receipt("slack", "run-1") is None


@pytest.mark.parametrize("way", ["webhook", "bot"])
async def test_where_slack_refuses_the_layout_the_text_alone_is_sent(
    receiver: Any, client: Any, tmp_path: Path, bot: Any, way: str
) -> None:
    refused = (400, {}, "invalid_blocks") if way == "webhook" else (200, {}, {"ok": False, "error": "invalid_blocks"})
    receiver.script = [refused, POSTED]
    with Store(tmp_path / "s") as store:
        options = bot if way == "bot" else {"webhook_url": receiver.url}
        await sink(client, store, **options).send(row())
    assert receiver.requests[1].json["blocks"] == []
    assert "HANG run rank 0 of 4 on gpu-a: Some hang (likely)" in receiver.requests[1].json["text"]
    assert "started by: rank 0 on gpu-a" in receiver.requests[1].json["text"]


async def test_who_took_it_on_and_that_it_came_back_is_said_in_the_thread(
    receiver: Any, client: Any, tmp_path: Path, bot: Any
) -> None:
    receiver.script = [POSTED, *[(200, {}, {"ok": True})] * 4]
    taken = {"acknowledged": {"t": 1.0, "by": "anna <!here>", "note": "cable", "closed": False}}
    with Store(tmp_path / "s") as store:
        slack = sink(client, store, **bot)
        await slack.send(row())
        await slack.send(row("updated", 2, "acknowledged", **taken))
        await slack.send(row("updated", 3, "reopened", **taken))
    *_, took, _, back = (r.json for r in receiver.requests)
    assert took["text"] == "👀 Acknowledged by anna &lt; !here&gt;: cable"
    assert "reply_broadcast" not in took
    assert back["text"].startswith("🔁 It is back.")
    assert back["reply_broadcast"] is True
    fields = [field["text"] for field in receiver.requests[1].json["blocks"][2]["fields"]]
    assert "*acknowledged*\nby anna &lt; !here&gt;: cable" in fields


async def test_a_missing_token_is_tried_again(client: Any, tmp_path: Path) -> None:
    with Store(tmp_path / "s") as store:
        slack = sink(client, store, bot_token_file=tmp_path / "absent", channel="C1")
        with pytest.raises(DeliveryError, match="absent") as caught:
            await slack.send(row())
    assert caught.value.retryable
