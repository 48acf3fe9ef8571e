"""Text of a job cannot act upon what shows it: terminal, browser, chat, Markdown, Prometheus, a log of our own."""

import io
import json
import logging
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from unicodedata import bidirectional, category

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from prometheus_client.parser import text_string_to_metric_families

import denpexd.web.page
from denpexd.notify.markdown import markdown
from denpexd.notify.message import Links, message, summary_text
from denpexd.notify.postmortem import postmortem
from denpexd.notify.render import report
from denpexd.notify.slack_blocks import blocks
from denpexd.notify.text import json_text, printable, unmentioned
from denpexd.watch import SafeFormatter
from denpexd.web.exposition import Writer
from denpexd.web.metrics import Snapshot
from denpexd.web.page import Console
from denpexd.web.picture import timeline
from denpexd.web.view import JobView, RankView, Stats

# What each destination would act upon, whole and in pieces, beside any other text.
TRAPS = [
    *("\x1b[2J", "\x1b]0;owned\x07", "\x1b]52;c;aGk=\x07", "\x9b31m", "\x08\x08", "\r", "\x00", "\x7f", "\x85"),
    *("\u202e", "\u2066", "\u200b", "\ufeff", "\u2028", "\ud800", "\U000e0041"),
    *("<img src=x onerror=alert(1)>", "<script>", "</code></pre>", "'\"><svg/onload=x>", "javascript:alert(1)", "&lt;"),
    *(
        "<!channel>",
        "<@U123>",
        "<#C1>",
        "<https://evil.example|click>",
        "@everyone",
        "@here",
        "@all",
        "<@&1>",
        "<users/all>",
    ),
    *(
        "[click](https://evil.example)",
        "![x](https://evil.example/p.png)",
        "```",
        "`",
        "**",
        "# ",
        "| a |",
        "---",
        "> ",
    ),
    *('"} 1\nforged_metric 1', "\\", '","severity":"info', "\n2026-03-05 04:16:40,123 INFO denpexd: all good", "=1+1"),
]
ACTING = {"Cc", "Cs", "Zl", "Zp"}
HIDDEN = {"\u200b", "\ufeff", *map(chr, range(0xE0000, 0xE0080))}
TURNING = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
hostile = st.lists(st.one_of(st.sampled_from(TRAPS), st.text(max_size=12)), min_size=1, max_size=6).map("".join)


def verdict_of(text: str) -> dict[str, Any]:
    """A verdict with the text in every place that a job, a node, a file or a third party's rule can fill."""
    step = {"do": text, "risk": "config", "command": text}
    return {
        **dict.fromkeys(("job", "title", "quick_answer", "root_cause", "summary", "fallback", "mitigation"), text),
        **dict.fromkeys(("prevention", "verification", "resume_safe", "step"), text),
        **{"key": "run-a0-1-1", "failure": "some-hang", "category": "hang", "severity": "high", "domain": "code"},
        **{"certainty": "likely", "state": "open", "attempt": 0, "revision": 1, "opened_t": 1.0, "updated_t": 2.0},
        **{"initiating_ranks": [0], "collateral_ranks": [1], "unheard_ranks": [], "nodes": {"0": text}, "hang": True},
        "evidence": [{"rank": 0, "source": f"/logs/{text}", "offset": 3, "t": 1.0, "text": text, "means": text}],
        "against": [{"text": text, "means": text}],
        "missing": [{"fact": text, "how": text}],
        "alternatives": [{"failure": text, "why_not": text}],
        "stacks": [{"ranks": [0], "at": text, "under": text, "state": text}],
        "remediation": [step],
        "references": [f"https://example.org/{text}", text],
    }


def acts_on_a_terminal(page: str) -> list[str]:
    """Characters of a page that are more than text: controls, but line ends and our own colours, and directions."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", page)
    return [c for c in plain if c != "\n" and (category(c) in ACTING or bidirectional(c) in TURNING or c in HIDDEN)]


@given(hostile, st.booleans())
def test_a_report_only_shows_text(text: str, color: bool) -> None:
    page = report(verdict_of(text), color=color, width=100)
    assert not acts_on_a_terminal(printable(page))
    assert color or "\x1b" not in page


@given(hostile)
def test_json_on_a_terminal_means_the_same_and_only_shows_text(text: str) -> None:
    shown = json_text(verdict_of(text), 2)
    assert not acts_on_a_terminal(shown)
    assert json.loads(shown) == verdict_of(text)


class Page(HTMLParser):
    """Tags with their attributes, and the text, as a browser reads a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


CONSOLE = Console(Path(denpexd.web.page.__file__).parent / "console")


def shown(text: str) -> Page:
    """The page of an incident of which a job has said this."""
    verdict = verdict_of(text)
    return Page(CONSOLE.render("incident.html.j2", v=verdict, picture=timeline(verdict), told=()).decode())


HARMLESS = shown("x")


@given(hostile)
def test_the_console_has_the_same_elements_whatever_a_job_says(text: str) -> None:
    page = shown("x" + text)
    assert [tag for tag, _ in page.tags if tag != "code"] == [tag for tag, _ in HARMLESS.tags if tag != "code"]
    for _, attributes in page.tags:
        assert not any(name.startswith("on") for name in attributes)
        assert not (attributes.get("href") or "/").lower().startswith(("javascript:", "data:"))
    assert not set(page.text) & set("\x1b\x9b\u202e\u2066\x00")


@given(hostile)
def test_markdown_shows_the_text_and_nothing_else(text: str) -> None:
    page = MarkdownIt("gfm-like", {"linkify": False, "html": True}).render(markdown(verdict_of(text)))
    read = Page(page)
    allowed = {
        "h1",
        "h2",
        "p",
        "strong",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "pre",
        "code",
        "ul",
        "ol",
        "li",
        "a",
    }
    assert {tag for tag, _ in read.tags} <= allowed
    for tag, attributes in read.tags:
        if tag == "a":  # the references at the end, which show where they lead
            assert (attributes["href"] or "").startswith("https://example.org/")
    prose = re.sub(r"(?s)<pre>.*?</pre>", "", page)
    assert not re.search(r"(?<!\w)@\w", prose)


@given(hostile)
def test_nothing_in_a_chat_calls_anybody_or_hides_an_address(text: str) -> None:
    title, body = summary_text(verdict_of(text), 3500)
    for said in (unmentioned(title), unmentioned(body)):
        assert not re.search(r"<(?:[@#!]|users/|https?:)|(?<![\w@])@\w|@(?:everyone|here|channel)|\]\(", said)
        assert not acts_on_a_terminal(said)


@given(hostile)
def test_slack_shows_the_text_and_nothing_else(text: str) -> None:
    told = message(
        verdict_of(text), Links("https://d.example", "https://r.example/{failure}", {"x": "https://g/{job}"})
    )
    shown = blocks(told)
    for part in (each for block in shown for each in (block, *_parts(block)) if each.get("type") == "mrkdwn"):
        assert not re.search(r"<(?!https://[^<>|]+\|[^<>|]*>)|@(?:everyone|here|channel)", part["text"])
        assert part["text"].count("```") % 2 == 0
        assert part["verbatim"] is True
    assert not acts_on_a_terminal(json.dumps(shown, ensure_ascii=False).replace("\\n", ""))


def _parts(block: dict[str, Any]) -> list[dict[str, Any]]:
    return [*([block["text"]] if "text" in block else []), *block.get("fields", []), *block.get("elements", [])]


@given(hostile)
def test_a_post_mortem_shows_the_text_and_nothing_else(text: str) -> None:
    page = MarkdownIt("gfm-like", {"linkify": False, "html": True}).render(postmortem(verdict_of(text)))
    assert not {tag for tag, _ in Page(page).tags} & {"img", "script", "svg", "a", "iframe"}


@given(hostile)
def test_labels_of_metrics_can_be_read_back(text: str) -> None:
    job = JobView(job=text, attempt=0, step=3, ranks=[RankView(0, "running", 3)])
    stats = Stats(incidents_open={(text, "some-hang", "hang", "high"): 1}, fingerprint_hits={(text, "f"): 2})
    page = Writer().page(Snapshot(stats, [job]), frozenset([text]))
    labels = {s.labels.get("training_job") for f in text_string_to_metric_families(page) for s in f.samples}
    assert len(labels - {None}) == 1
    assert not re.search(r"^forged", page, re.MULTILINE)
    assert not acts_on_a_terminal(page)


@given(hostile)
def test_no_text_forges_an_entry_of_our_own_log(text: str) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(SafeFormatter("ENTRY %(levelname)s %(message)s"))
    handler.emit(logging.LogRecord("x", logging.WARNING, "f.py", 1, "%s: cannot be read", (text,), None))
    entry = stream.getvalue()
    assert not acts_on_a_terminal(entry)
    first, *others = entry.rstrip("\n").split("\n")
    assert first.startswith("ENTRY WARNING ")
    assert all(line.startswith("    ") or not line for line in others)


@pytest.mark.parametrize("trap", TRAPS)
def test_the_traps_would_act_if_nobody_escaped_them(trap: str) -> None:
    """What is checked above can fail: of the traps as they are, each is noticed by one of the checks."""
    acting = re.search(r"[<@\]#`*|\\>\"=&]|---|javascript:|\n", trap) is not None
    assert acting or acts_on_a_terminal(trap)
