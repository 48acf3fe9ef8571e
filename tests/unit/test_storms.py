"""Many failures at once: one message of many ranks, and messages that stay small."""

import json
from pathlib import Path

import pytest

from denpexd.clock import ManualClock
from denpexd.core.events import Opened
from denpexd.notify import outbox
from denpexd.notify.outbox import Store
from denpexd.notify.render import report, summary_text
from denpexd.scan.engine import choose_engine
from denpexd.scan.scanner import Scanner

from .test_outbox import message
from .test_pipeline import CRASH, TINY, Files

RANKS = 1000


def test_the_same_error_of_a_thousand_ranks_is_one_message_of_a_few_kilobytes() -> None:
    files = Files(Scanner([s for s in TINY.signals.values() if s.kind == "log"], choose_engine()))
    files.train(1, 2, RANKS)
    for rank in range(RANKS):
        files.add(5 + rank / RANKS, rank, CRASH)
    files.wait(6, 20)
    (opened,) = files.done.changes
    assert isinstance(opened, Opened)
    assert opened.verdict["initiating_ranks"] == list(range(RANKS))
    assert len(json.dumps(opened.verdict)) < 10_000
    assert len(report(opened.verdict, color=False, width=100, whole=True)) < 5_000
    title, body = summary_text(opened.verdict, 500)
    assert len(title) <= 250
    assert len(body) <= 500
    assert "ranks 0-999" in title + body


def test_an_incident_that_quotes_a_megabyte_of_four_byte_characters_still_fits(tmp_path: Path) -> None:
    told = {"evidence": [{"text": "\U0001f525" * 250_000, "rank": 0, "source": "x", "offset": 0}]}
    title, body = summary_text({"key": "k", "job": "j", "title": "t", "failure": "f", **told}, 1024)
    assert len(body) <= 1024
    assert len(title.encode()) <= 1024


def test_messages_to_a_dead_receiver_stay_bounded_and_what_goes_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "MAX_PENDING", 100)  # 10,000, and as many waves as there are here
    with Store(tmp_path / "x.db", ManualClock()) as store:
        for wave in range(20):
            store.commit(deliveries=[message(key=f"k{wave}-{i}") for i in range(50)])
            assert store.pending() <= 100
        assert store.counters["outbox_dropped"] == 900
        assert len(store.dead_letters()) == 900
        assert [row.delivery.key for row in store.due(1e12)][-1] == "k19-49"
