"""Texts of one's own: escaped for their destination, in a sandbox, and never in the way of an alert."""

import logging
import re
from pathlib import Path
from typing import Any

import pytest

from denpexd.clock import ManualClock
from denpexd.notify.message import message
from denpexd.notify.policy import Delivery
from denpexd.notify.post import new_client
from denpexd.notify.rows import Row
from denpexd.notify.sinks_slack import SlackSink
from denpexd.notify.slack_blocks import mrkdwn
from denpexd.notify.template import LARGEST, Template, rendered
from denpexd.settings_sinks import SlackSink as Options

VERDICT: dict[str, Any] = {
    "key": "run-1",
    "job": "run <!channel>",
    "failure": "some-hang",
    "severity": "critical",
    "certainty": "likely",
    "title": "Some hang",
    "hang": True,
    "initiating_ranks": [0, 1, 2, 7],
    "quick_answer": "It hangs.",
    "opened_t": 1_700_000_000.0,
    "remediation": [{"do": "Restart & wait", "risk": "restart"}],
}
TOLD = message(VERDICT)


def render(source: str) -> tuple[str, str]:
    return rendered(source, VERDICT, TOLD, lambda text: mrkdwn(text, 1000))


def test_the_first_line_is_the_title_and_the_rest_the_body() -> None:
    source = "{{ headline }}\n\n{% for s in steps %}\n- {{ s.do }}\n{% endfor %}\n"
    source += "ranks {{ verdict.initiating_ranks|ranks }}"
    assert render(source) == ("HANG ranks 0-2,7: Some hang (likely)", "- Restart &amp; wait\nranks 0-2,7")


def test_what_is_put_in_is_escaped_and_what_stands_there_is_not() -> None:
    assert render("<!subteam^S1> {{ job }}") == ("<!subteam^S1> run &lt; !channel&gt;", "")


def test_times_and_facts_by_name() -> None:
    at = "2023-11-14 22:13:20 UTC"
    assert render("{{ verdict.opened_t|moment }} {{ facts['since'] }} {{ none }}x")[0] == f"{at} {at} x"


def test_the_example_of_the_documentation_works_also_where_little_is_known() -> None:
    page = (Path(__file__).parents[2] / "docs" / "alerts.md").read_text("utf-8")
    [source] = re.findall(r"```jinja\n(.*?)```", page, re.DOTALL)
    title, body = render(source)
    assert title == "CRITICAL run &lt; !channel&gt;: HANG ranks 0-2,7: Some hang (likely)"
    assert "Ranks 0-2,7 since 2023-11-14 22:13:20 UTC; GPUs at work." in body
    assert "1. Restart &amp; wait" in body


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{{ headline", "line 1"),
        ("{{ nothing.there }}", "'nothing' is undefined"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ verdict.update({}) }}", "is unsafe"),
        ("{% include '/etc/passwd' %}", "no loader"),
        ("{{ 1 // 0 }}", "zero"),
        ("  \n ", "no text"),
        ("x" * (LARGEST + 1), "larger than 64 KiB"),
        (b"\xff\xfe", "utf-8"),
        (None, "No such file"),
    ],
)
def test_a_mistake_is_said_once_and_the_built_in_text_is_sent(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, source: str | bytes | None, said: str
) -> None:
    file = tmp_path / "slack.j2"
    if source is not None:
        file.write_bytes(source if isinstance(source, bytes) else source.encode())
    template = Template(file)
    with caplog.at_level(logging.ERROR):
        assert [template.render(VERDICT, TOLD) for _ in range(3)] == [None] * 3
    [record] = caplog.records
    assert said in record.getMessage()
    assert str(file) in record.getMessage()


async def test_slack_shows_it_within_its_limits(tmp_path: Path) -> None:
    file = tmp_path / "slack.j2"
    file.write_text("{{ title }}\n\n{% for n in range(900) %}a & b {{ job }}\n{% endfor %}")
    options = Options.model_validate({"type": "slack", "webhook_url": "http://h", "template": str(file)})
    row = Row(1, Delivery("slack", "run-1", 1, "opened", "k:1", "first", VERDICT), "pending", 0, 0.0, 0.0)
    async with new_client() as client:
        shown: Any = SlackSink("slack", options, client, ManualClock(), _Nothing()).preview(row)
    header, *sections, foot = shown["blocks"]
    assert header["text"]["text"] == "HANG run < !channel> ranks 0-2,7: Some hang (likely)"
    assert [block["type"] for block in sections] == ["section"] * 3
    for block in sections:
        assert 2400 < len(block["text"]["text"]) <= 3000
        assert block["text"]["text"].endswith("&gt;")
    assert "denpexd explain some-hang" in foot["elements"][0]["text"]


class _Nothing:
    def receipt(self, sink: str, key: str) -> None:
        return None

    def keep_receipt(self, sink: str, key: str, value: str) -> None:
        return None


@pytest.mark.parametrize("inner", ["{{ 'x' * 1000 }}", "{{ none }}"])
def test_loops_that_hardly_end_are_ended(inner: str) -> None:
    loops = "{% for i in range(100000) %}{% for j in range(1000) %}" + inner + "{% endfor %}{% endfor %}"
    with pytest.raises(ValueError, match="more than"):
        render(loops)
