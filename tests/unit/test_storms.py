"""Many failures at once: one message of many ranks, and messages that stay small."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from denpexd.clock import ManualClock
from denpexd.core.events import Opened
from denpexd.ledger import Ledger
from denpexd.notify import outbox
from denpexd.notify.desk import Alerting
from denpexd.notify.message import summary_text
from denpexd.notify.outbox import Store
from denpexd.notify.policy import Route
from denpexd.notify.render import report
from denpexd.notify.storm import ALL, EVERY, GATHER, SAME, Storm, digest
from denpexd.scan.engine import choose_engine
from denpexd.scan.scanner import Scanner

from .test_outbox import message
from .test_pipeline import CRASH, TINY, Files

RANKS = 1000
SCHEMA = Path(__file__).parents[2] / "docs" / "verdict.schema.json"


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


def incident(n: int, **more: Any) -> dict[str, Any]:
    return {"key": f"k{n}", "job": f"job{n}", "failure": "f", "severity": "high", "state": "open"} | more


def test_five_hundred_jobs_that_fail_at_once_are_sixty_messages_and_one_that_counts_the_rest() -> None:
    storm = Storm()
    paged = [n for n in range(500) if not storm.holds(incident(n), n / 100)]
    assert len(paged) == ALL
    assert storm.take(GATHER - 1) == []
    told: Any = digest("storm", "hook", storm.take(5 + GATHER), 5 + GATHER)
    assert {f"k{n}" for n in paged} | set(told["incidents"]) == {f"k{n}" for n in range(500)}
    assert told["title"] == "440 further incidents"
    assert "f 440 times in 440 jobs" in str(told["quick_answer"])
    jsonschema.validate(told, json.loads(SCHEMA.read_text("utf-8")))
    assert storm.take(1e9) == []


def test_a_job_that_flaps_gets_three_messages_an_hour_and_the_rest_in_few_digests() -> None:
    storm, paged, digests = Storm(), 0, list[Any]()
    for n in range(360):  # an error, and its recovery, every ten seconds for an hour
        verdict = incident(n, job="run")
        paged += not storm.holds(verdict, n * 10.0)
        digests += [digest("storm", "hook", held, n * 10.0) for held in (storm.take(n * 10.0),) if held]
    digests += [digest("storm", "hook", storm.take(3600.0, last=True), 3600.0)]
    assert paged == SAME
    assert len(digests) <= 3600 / EVERY + 1
    assert sum(len(told["incidents"]) for told in digests) == 360 - SAME
    assert "times in run" in digests[0]["quick_answer"]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 3), st.floats(0, 400)), max_size=60))
def test_every_incident_is_told_alone_or_in_a_digest(script: list[tuple[int, int, float]]) -> None:
    storm, now, alone, together = Storm(), 0.0, set[str](), set[str]()
    for n, kind, wait in script:
        now += wait
        if not storm.holds(incident(n, job="run", failure=str(kind)), now):
            alone.add(f"k{n}")
        together |= {str(verdict["key"]) for verdict in storm.take(now)}
    together |= {str(verdict["key"]) for verdict in storm.take(now, last=True)}
    assert alone | together == {f"k{n}" for n, _, _ in script}


async def test_what_waits_for_a_digest_is_told_after_a_kill(tmp_path: Path) -> None:
    clock, sinks = ManualClock(1000.0), Alerting([Route("hook")])
    changes = [Opened(incident(n, job="run", revision=1)) for n in range(5)]
    with Store(tmp_path / "x.db", clock) as store:
        ledger = Ledger(dict, store, Woken(), sinks, clock)
        ledger.add(changes, [])
        await ledger.commit()
        assert [row.delivery.key for row in store.due(1e12)] == ["k0", "k1", "k2"]
    with Store(tmp_path / "x.db", clock) as store:
        ledger = Ledger(dict, store, Woken(), sinks, clock)
        await ledger.commit()
        assert store.pending() == 3
        await clock.advance(GATHER + 1)
        await ledger.commit()
        digest = [row.delivery.verdict for row in store.due(1e12) if "incidents" in row.delivery.verdict]
        assert [sorted(told["incidents"]) for told in digest] == [["k3", "k4"]]


class Woken:
    def wake(self) -> None:
        pass

    def well(self, name: str) -> bool:
        return True


def test_a_clock_that_is_set_back_holds_up_no_digest_and_no_first_message() -> None:
    storm, year, told = Storm(), 365 * 86400.0, 0

    def opens(n: int, now: float) -> bool:
        return not storm.holds({"key": f"{now}-{n}", "job": "j", "failure": "f"}, now)

    for now in (2 * year, year):
        assert [opens(n, now) for n in range(SAME + 1)] == [True] * SAME + [False]
        told += len(storm.take(now, last=now > year))
        assert not storm.take(now)
        told += len(storm.take(now + GATHER + EVERY))
    assert told == 2
