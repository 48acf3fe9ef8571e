"""The alert as people see it: the answer first, nothing hostile passes, nothing runs over the edge."""

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denpexd.notify.markdown import markdown
from denpexd.notify.message import Links, message, summary_text
from denpexd.notify.message import text as body_of
from denpexd.notify.render import report
from denpexd.notify.sinks import sample
from denpexd.notify.slack_blocks import blocks
from denpexd.notify.text import cells, cut, excerpt, rank_list, rank_words

VERDICT: dict[str, Any] = {
    "key": "my-run-1-3f9c2a",
    "job": "my-run",
    "attempt": 1,
    "failure": "syncbatchnorm-single-rank-eval-deadlock",
    "title": "SyncBatchNorm deadlock during single-rank evaluation",
    "category": "hang",
    "severity": "critical",
    "certainty": "confirmed",
    "state": "open",
    "opened_t": 1_700_000_000.0,
    "updated_t": 1_700_000_060.0,
    "revision": 1,
    "domain": "code",
    "initiating_ranks": [0],
    "collateral_ranks": [1, 2],
    "unheard_ranks": [3],
    "nodes": {"0": "gpu-a", "1": "gpu-a", "2": "gpu-b"},
    "step": 100,
    "hang": True,
    "quick_answer": "Rank 0 evaluates alone and waits for statistics that nobody sends.",
    "evidence": [
        {
            "rank": 0,
            "source": "/logs/rank0.log",
            "offset": 18,
            "t": 12.5,
            "text": "evaluating",
            "means": "it evaluates",
        },
        {"rank": -1, "source": "launcher.log", "offset": 0, "t": 13, "text": "x" * 300, "means": "it says so"},
    ],
    "against": ["the launcher names rank 2"],
    "missing": [{"fact": "the stack of rank 3", "how": "py-spy dump --pid 3"}],
    "alternatives": [{"failure": "other", "why_not": "no rank stands in it"}],
    "root_cause": "SyncBatchNorm computes its statistics over all ranks in every forward pass. " * 3,
    "remediation": [
        {"do": "Run validation on every rank", "risk": "restart", "command": "grep -n 'rank == 0' train.py"},
        {"do": "Put the model in eval mode", "risk": "config"},
    ],
    "fallback": "Convert the model back.",
    "mitigation": "Send SIGUSR1.",
    "verification": "torchrun --nproc-per-node 2 train.py --max-steps 20",
    "prevention": "Never guard a forward pass by the rank.",
    "references": ["https://example.com/doc"],
    "resume_safe": "yes",
}
HOSTILE = "a\x1b]8;;http://evil\x07b\x1b[2J\x9b31m\u202ec\u2066d\u200be\x00f\u2028g\rh\udc80"


def test_the_first_line_is_the_answer() -> None:
    first = report(VERDICT, color=False, width=100).splitlines()[0]
    assert first == "● HANG  rank 0 of 4  SyncBatchNorm deadlock during single-rank evaluation  (confirmed)"


def test_the_report_says_who_where_why_and_what_to_do() -> None:
    text = report(VERDICT, color=False, width=100)
    for part in (
        "rank 0 on gpu-a",
        "ranks 1-2",
        "rank 3",
        "2023-11-14 22:13:20 UTC",
        "rank 0  /logs/rank0.log, byte 18  12.5 s",
        "│ evaluating",
        "└ it evaluates",
        "launcher  launcher.log",
        "- the launcher names rank 2",
        "What else it could be, and why it is not",
        "- other: no rank stands in it",
        "→ py-spy dump --pid 3",
        "1. Run validation on every rank [restart]",
        "$ grep -n 'rank == 0' train.py",
        "To save this run: Send SIGUSR1.",
        "If that does not help: Convert the model back.",
        "$ torchrun --nproc-per-node 2",
        "denpexd explain syncbatchnorm-single-rank-eval-deadlock",
        "https://example.com/doc",
    ):
        assert part in text, part


@pytest.mark.parametrize("width", [80, 100, 120])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    text = report(VERDICT | {"title": "long " * 60, "job": "j" * 300}, color=False, width=width)
    assert max(cells(line) for line in text.splitlines()) <= width


def test_nothing_of_headline_and_facts_is_cut_for_a_file() -> None:
    title = "long " * 60
    lines = report(VERDICT | {"title": title, "job": "j" * 300}, color=False, width=80, whole=True).splitlines()
    assert lines[0].endswith(f"{title.strip()}  (confirmed)")
    assert any("j" * 300 in line for line in lines)


def test_every_fact_stands_apart_from_its_name() -> None:
    known = {"history": {"text": "3 times in this job"}, "acknowledged": {"by": "anna", "note": ""}}
    text = report(VERDICT | known, color=False, width=40)
    assert "\n  seen before 3 times in this job\n" in text
    assert "\n  taken on   by anna\n" in text


def test_an_offset_is_called_one_everywhere() -> None:
    assert "rank0.log, byte 18" in markdown(VERDICT)
    assert "rank0.log, byte 18" in summary_text(VERDICT, 2000)[1]


def test_colour_is_only_paint() -> None:
    plain, painted = (report(VERDICT, color=color, width=100) for color in (False, True))
    assert "\x1b" not in plain
    assert re.sub(r"\x1b\[[0-9;]*m", "", painted) == plain
    assert "\x1b[1;31m● HANG" in painted


@pytest.mark.parametrize(
    "field", ["job", "title", "quick_answer", "summary", "root_cause", "resume_safe", "verification"]
)
def test_control_and_direction_characters_are_made_visible(field: str) -> None:
    quote = {"rank": 0, "source": HOSTILE, "offset": 1, "t": 0, "text": HOSTILE, "means": HOSTILE}
    verdict = VERDICT | {field: HOSTILE, "evidence": [quote], "nodes": {"0": HOSTILE}, "against": [HOSTILE]}
    title, body = summary_text(verdict, 3500)
    page = report(verdict, color=False, width=100)
    assert "\\x1b]8;;http://evil\\x07b" in page
    for text in (page, title, body, markdown(verdict)):
        assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b\u2028\u202a-\u202e\u2066-\u2069\ud800-\udfff]", text)


def test_an_undetermined_culprit_is_called_so() -> None:
    verdict = VERDICT | {"initiating_ranks": [], "certainty": "undetermined", "hang": False, "category": "crash"}
    assert report(verdict, color=False, width=100).startswith("● CRASH  rank not determined  ")


def test_a_closed_incident_is_marked() -> None:
    verdict = VERDICT | {"state": "closed"}
    assert report(verdict, color=False, width=100).startswith("✔ CLOSED  rank 0 of 4  ")
    assert summary_text(verdict, 500)[1].startswith("Closed at 2023-11-14 22:14:20 UTC.")


def test_a_bare_verdict_is_survived() -> None:
    bare = {"key": "k", "failure": "f"}
    assert "denpexd explain f" in report(bare, color=True, width=10)
    assert summary_text(bare, 100)[0]
    assert markdown(bare)


@given(st.integers(1, 4000), st.text(max_size=3000))
def test_chat_messages_keep_to_their_limits(limit: int, text: str) -> None:
    title, body = summary_text(VERDICT | {"quick_answer": text, "title": text}, limit)
    assert len(title) <= 250
    assert len(body) <= limit


def test_a_cut_chat_message_still_names_the_incident() -> None:
    body = summary_text(VERDICT | {"quick_answer": "long " * 1000}, 500)[1]
    assert len(body) <= 500
    assert "…" in body
    assert body.endswith("incident my-run-1-3f9c2a")


def test_markdown_quotes_cannot_break_out() -> None:
    quote = {"rank": 0, "source": "s", "offset": 1, "t": 0, "text": "```\n# not a head\n````", "means": "<b>|x|"}
    text = markdown(VERDICT | {"evidence": [quote], "job": "a|b<img src=x>"})
    assert "`````text\n```\n# not a head\n````\n`````" in text
    assert "\\<b\\>\\|x\\|" in text
    assert "a\\|b\\<img src=x\\>" in text


def test_a_long_traceback_keeps_begin_and_end() -> None:
    lines = excerpt("\n".join(f"line {i}" for i in range(50)))
    assert len(lines) == 8
    assert (lines[0], lines[2], lines[-1]) == ("line 0", "… 43 lines …", "line 49")


def test_rank_lists() -> None:
    assert rank_list([7, 0, 1, 2, 3]) == "0-3,7"
    assert rank_list([-1, 0]) == "launcher,0"
    assert rank_words([5]) == "rank 5"
    assert rank_words([-1]) == "launcher"


@given(st.text(max_size=60), st.integers(2, 40))
def test_a_cut_fits(text: str, width: int) -> None:
    assert cells(cut(text, width)) <= width


def test_the_size_of_the_world_is_told_where_all_its_ranks_are_known() -> None:
    some = {**VERDICT, "initiating_ranks": [5], "collateral_ranks": [1, 3], "unheard_ranks": [], "nodes": {}}
    assert report(some, color=False, width=100).splitlines()[0].startswith("● HANG  rank 5  ")


def test_where_the_ranks_stand_is_told_by_groups_in_the_report_and_in_markdown() -> None:
    stacks = [
        {
            "ranks": [0],
            "at": "forward (_functions.py:78)",
            "under": "validate (train.py:214)",
            "state": "",
        },
        {"ranks": [1, 2, 3], "at": "barrier (c10d.py:4)", "under": "", "state": "stopped"},
    ]
    said = report({"stacks": stacks}, color=False, width=100)
    assert "Where the ranks stand\n  rank 0     forward (_functions.py:78) under validate (train.py:214)\n" in said
    assert "  ranks 1-3  barrier (c10d.py:4), stopped" in said
    assert "| ranks 1-3 | barrier (c10d.py:4), stopped |" in markdown({"stacks": stacks}).replace("\\", "")
    assert "stand" not in report({"stacks": []}, color=False, width=100)


@pytest.mark.parametrize("failure", ["denpexd-test", "denpexd-storm"])
def test_what_denpexd_tells_of_itself_names_no_command_that_would_know_nothing(failure: str) -> None:
    verdict = sample(1_760_000_000.0) | {"failure": failure}
    told = message(verdict, Links(runbooks="https://runbooks.example/{failure}"))
    shown = [
        body_of(told, 5000)[1],
        report(verdict, color=False, width=80),
        json.dumps(blocks(told), ensure_ascii=False),
    ]
    for one in shown:
        assert "denpexd explain" not in one
        assert "runbooks.example" not in one
        assert str(verdict["key"]) in one
