"""What every receiver gets, byte for byte, and that it never breaks a receiver's limits, whatever a job says.

After a wanted change of a text: UPDATE_GOLDEN=1 pytest tests/unit/test_alert_payloads.py, then read the difference.
"""

import io
import json
import os
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denpexd.notify.sinks import previews, sinks_to_look_at
from denpexd.settings import Settings

# apprise loads all its plugins, and some use what their own dependencies call deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

DATA = Path(__file__).parents[1] / "data" / "alerts"
DOC = (Path(__file__).parents[2] / "docs" / "alerts.md").read_text("utf-8")
SINKS: list[dict[str, Any]] = [
    {"type": "slack", "bot_token": "xoxb-1", "channel": "#oncall"},
    {"type": "pagerduty", "routing_key": "r0uting"},
    {"type": "alertmanager", "url": "http://h"},
    {"type": "apprise", "url": "json://h"},
]
SETTINGS = Settings.model_validate(
    {
        "sinks": SINKS,
        "web": {"public_url": "https://denpexd.example"},
        "runbook_base_url": "https://runbooks.example/{failure}",
        "links": {"dashboard": "https://grafana.example/d/x?var-training_job={job}"},
    }
)
LOOKED_AT = sinks_to_look_at(SETTINGS, None, io.StringIO(), 100)
NAMES = ("hang", "crash", "undetermined", "nasty")
LIMITS = {"slack": 40_000, "pagerduty": 512 * 1024, "apprise": 16_000, "alertmanager": 64 * 1024}
TRAP = "<!channel> <@U1> @here [x](https://evil) ```*b*``` \u202e\x1b[2J & </b> "


def nasty() -> dict[str, Any]:
    """A verdict in which everything that can hold text holds too much of the wrong one."""
    text = TRAP * 200
    hang = json.loads((DATA / "hang.json").read_text("utf-8"))
    step = {"do": text, "risk": text, "command": text + "\n" + text}
    quote = {"rank": 0, "source": text, "offset": 1, "t": 1.0, "text": text, "means": text}
    texts = ("job", "title", "quick_answer", "summary", "root_cause", "verification", "resume_safe", "fallback")
    return {
        **hang,
        **dict.fromkeys(texts, text),
        "key": "k" * 400,
        "nodes": {str(rank): f"{text}{rank}" for rank in range(8)},
        "initiating_ranks": list(range(0, 8, 2)),
        "evidence": [quote] * 12,
        "remediation": [step] * 20,
        "missing": [{"fact": text, "how": text}] * 9,
        "changed": {"since": None, "differences": [{"text": text}] * 40, "unequal": [{"text": text}] * 40},
    }


def large() -> dict[str, Any]:
    """Ten thousand ranks, every other one of which started it."""
    hang = json.loads((DATA / "hang.json").read_text("utf-8"))
    ranks = {"initiating_ranks": list(range(0, 10_000, 2)), "collateral_ranks": list(range(1, 10_000, 2))}
    return {**hang, **ranks, "nodes": {str(rank): f"gpu-{rank // 8:05}" for rank in range(10_000)}}


def verdict(name: str) -> dict[str, Any]:
    if name in ("nasty", "large"):
        return nasty() if name == "nasty" else large()
    found: dict[str, Any] = json.loads((DATA / f"{name}.json").read_text("utf-8"))
    return found


@cache
def payloads(name: str, event: str = "opened") -> dict[str, Any]:
    """What each sink gets, as JSON has it."""
    found: dict[str, Any] = json.loads(json.dumps(dict(previews(LOOKED_AT, verdict(name), event))))
    for alert in found["alertmanager"]:
        del alert["endsAt"]  # the time of the machine
    return found


@pytest.mark.parametrize("name", NAMES)
def test_payloads_are_as_they_were(name: str) -> None:
    found = {event: payloads(name, event) for event in ("opened", "closed")}
    golden = DATA / f"{name}.golden.json"
    if os.environ.get("UPDATE_GOLDEN"):
        golden.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    assert found == json.loads(golden.read_text("utf-8"))


def check_slack(message: dict[str, Any]) -> None:
    """Slack's limits, and that nothing but our own links is more than text."""
    blocks = message["blocks"]
    assert len(blocks) <= 50
    assert blocks[0]["type"] == "header"
    for block in blocks:
        if block["type"] == "header":
            assert 0 < len(block["text"]["text"]) <= 150
            continue
        assert len(block.get("fields", [])) <= 10
        assert all(0 < len(field["text"]) <= 2000 for field in block.get("fields", []))
        assert len(block.get("text", {}).get("text", "x")) <= 3000
        assert all(len(element["text"]) <= 3000 for element in block.get("elements", []))
    texts = [message["text"], *_mrkdwn(blocks)]
    for text in texts:
        assert not re.search(r"<(?!https://[^<>|]+\|[^<>|]*>)", text), text
        assert not re.search(r"&(?!amp;|lt;|gt;)", text), text
        assert text.count("```") % 2 == 0, text
    assert len(json.dumps(blocks, ensure_ascii=False)) <= 10_500


def _mrkdwn(blocks: list[dict[str, Any]]) -> list[str]:
    found = []
    for block in blocks:
        parts = [block["text"]] if "text" in block else []
        found += [*parts, *block.get("fields", []), *block.get("elements", [])]
    return [part["text"] for part in found if part["type"] == "mrkdwn"]


def check_pagerduty(event: dict[str, Any]) -> None:
    """The limits of Events API v2."""
    assert 0 < len(event["dedup_key"]) <= 255
    if event["event_action"] == "trigger":
        payload = event["payload"]
        assert 0 < len(payload["summary"]) <= 1024
        assert payload["severity"] in ("critical", "error", "warning", "info")
        assert payload["source"]
        assert all(isinstance(value, str) for value in payload["custom_details"].values())


@pytest.mark.parametrize("event", ["opened", "closed"])
@pytest.mark.parametrize("name", [*NAMES, "large"])
def test_no_payload_breaks_a_limit(name: str, event: str) -> None:
    found = payloads(name, event)
    check_slack(found["slack"])
    check_pagerduty(found["pagerduty"])
    for sink, limit in LIMITS.items():
        assert len(json.dumps(found[sink]).encode()) <= limit, sink
    assert len(found["apprise"]["title"]) <= 250
    assert len(found["apprise"]["body"]) <= 3500
    for text in found["alertmanager"][0]["annotations"].values():
        assert len(text) <= 8000


def test_the_documentation_lists_the_largest_payloads() -> None:
    largest = dict.fromkeys(LIMITS, 0)
    for name in (*NAMES, "large"):
        for sink, shown in payloads(name).items():
            if sink in largest:
                largest[sink] = max(largest[sink], len(json.dumps(shown, ensure_ascii=False).encode()))
    for sink, size in largest.items():
        [listed] = re.findall(rf"^\| `{sink}` \| ([\d.]+) KiB \|", DOC, re.MULTILINE)
        assert size / 1024 <= float(listed) <= size / 1024 * 1.2 + 0.1, (sink, size)


anything: st.SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-5, 99999), st.floats(allow_nan=False), st.text(max_size=40)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=8), inner, max_size=3)),
    max_leaves=6,
)


@given(st.data())
def test_no_verdict_is_too_strange_to_be_told(data: st.DataObject) -> None:
    told = verdict("hang")
    for name in data.draw(st.lists(st.sampled_from(sorted(set(told) - {"key"})), min_size=1, max_size=6)):
        told[name] = data.draw(st.one_of(anything, st.text(min_size=100, max_size=4000).map(lambda text: TRAP + text)))
    slack, pagerduty = (shown for _, shown in previews(LOOKED_AT[:2], told, "opened"))
    check_slack(slack)
    check_pagerduty(pagerduty)


def test_ten_thousand_ranks_are_told_in_a_line() -> None:
    found = payloads("large")
    assert found["slack"]["blocks"][0]["text"]["text"].startswith("🔴 HANG ranks 0,2,4,6")
    assert "(5,000 ranks)" in json.dumps(found["slack"])
    assert "10,000 ranks x 0.5" in json.dumps(found["slack"])
