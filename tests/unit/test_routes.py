"""Routes in the configuration: mistakes are said with their place, `config check --route` says who is told and why."""

import asyncio
import io
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from denpexd.cli import main
from denpexd.clock import ManualClock
from denpexd.errors import SettingsError
from denpexd.notify.deliver import Deliverer
from denpexd.notify.in_force import OnlyPrints, alerting, reached
from denpexd.notify.message import Links
from denpexd.notify.outbox import Store
from denpexd.notify.policy import Delivery
from denpexd.notify.sinks import ConsoleSink
from denpexd.settings import load

from .test_policy import BROKEN

MONDAY = 1_796_083_200.0  # 2026-12-01 00:00 UTC
FILE = """
tags: {team: nlp}
sinks:
  - {type: console}
  - {type: webhook, name: ops, url: "http://h/", match: {domain: [hardware, infrastructure], tags: {team: [nlp, cv]}}}
  - {type: webhook, name: pager, url: "http://h/", severity: critical, match: {job: "prod-*"}}
  - {type: webhook, name: chat, url: "http://h/", unless: {category: memory},
     quiet: {hours: "22:00-08:00", severity: high}}
  - {type: heartbeat, url: "http://h/"}
alerts: {flap: 5m}
"""


def settings(text: str, tmp_path: Path) -> Any:
    file = tmp_path / "denpexd.yaml"
    file.write_text(text)
    return load(file, overrides={}, environ={"HOME": "/h"})


def test_each_sink_says_why_it_is_told_or_not(tmp_path: Path) -> None:
    known = settings(FILE, tmp_path)
    verdict = BROKEN | {"state": "open", "job": "llama"}
    assert reached(known, verdict, MONDAY) == [
        ("console", "is told", "it fits"),
        ("ops", "is told", "it fits"),
        ("pager", "is not told", "severity is high"),
        ("chat", "is told later", "quiet hours"),
    ]
    assert reached(known, verdict | {"severity": "critical", "domain": "data"}, MONDAY)[1:] == [
        ("ops", "is not told", "domain is data"),
        ("pager", "is not told", "job is llama"),
        ("chat", "is told", "it fits"),
    ]
    assert reached(known, verdict | {"category": "memory"}, MONDAY)[3] == (
        "chat",
        "is not told",
        "unless category=memory",
    )
    assert alerting(known).flap == 300
    assert [route.remind for route in alerting(known).routes] == [0.0, 1800.0, 1800.0, 1800.0]


@pytest.mark.parametrize(
    ("option", "why"),
    [
        ("sinks: [{type: console, match: {}}]", "it names nothing; give at least one of key, job, failure"),
        ("sinks: [{type: console, match: {jobs: x}}]", "unknown option sinks[0].match.jobs; did you mean job?"),
        ("sinks: [{type: console, match: {rank: 7-3}}]", "'7-3' is no rank"),
        ("sinks: [{type: console, remind: 9h}]", "sinks[0].remind"),
        ("sinks: [{type: console, quiet: {hours: 22-8}}]", "write them as 22:00-08:00"),
        ("sinks: [{type: console, quiet: {days: mo}}]", "'mo' is no day"),
        ("sinks: [{type: console, quiet: {timezone: Mars/Base}}]", "no time zone is named 'Mars/Base'"),
        ("sinks: [{type: heartbeat, url: 'ftp://h'}]", "a URL starts with http"),
        ("sinks: [{type: heartbeat, url: 'http://h', severity: high}]", "unknown option sinks[0].severity"),
        ("alerts: {maintenance: [{name: x}]}", "it has no time"),
        ("alerts: {maintenance: [{from: '2026-12-01T10:00'}]}", "`from` and `to` belong together"),
        ("alerts: {maintenance: [{from: soon, to: later}]}", "is no time: write it as 2026-12-01T22:00"),
        ("alerts: {maintenance: [{from: '2026-12-02', to: '2026-12-01'}]}", "`to` is not after `from`"),
        ("alerts: {maintenance: [{from: '2026-12-01', to: '2026-12-02', days: mon}]}", "either `from` and `to`, once"),
        ("tags: {'a b': x}", "tags"),
    ],
)
def test_a_mistake_is_said_with_its_place(tmp_path: Path, option: str, why: str) -> None:
    with pytest.raises(SettingsError) as caught:
        settings(option + "\n", tmp_path)
    assert why in str(caught.value)
    assert "denpexd.yaml:1:" in str(caught.value)


def check(tmp_path: Path, text: str, *words: str) -> tuple[int, str]:
    file = tmp_path / "denpexd.yaml"
    file.write_text(text)
    result = CliRunner().invoke(main, ["config", "check", "-c", str(file), *words])
    return result.exit_code, result.output


def test_config_check_shows_which_sinks_a_failure_reaches(tmp_path: Path) -> None:
    text = FILE
    code, said = check(tmp_path, text, "--route", "rank-oom-killed", "--job", "prod-1")
    assert code == 0
    assert [" ".join(line.split()[:3]) for line in said.splitlines()] == [
        "sink why",
        "console is told",
        "ops is told",
        "pager is told",
        "chat is not",
    ]
    assert check(tmp_path, text, "--route", "nonsense")[0] == 2


def test_config_check_finds_what_no_rule_has(tmp_path: Path) -> None:
    text = FILE.replace("category: memory", "category: memorry")
    code, said = check(tmp_path, text)
    assert (code, "sink chat, unless: no rule has category memorry; did you mean memory?" in said) == (2, True)


async def test_a_dry_run_prints_what_would_be_sent_to_whom_and_why(tmp_path: Path) -> None:
    stream, clock = io.StringIO(), ManualClock()
    sink = OnlyPrints(ConsoleSink("pager", io.StringIO(), Links(), color=False, width=80), stream)
    verdict = BROKEN | {"title": "A cable is loose", "state": "open"}
    with Store(tmp_path / "x.sqlite", clock) as store:
        store.commit(deliveries=[Delivery("pager", "k1", 1, "opened", "k1:1", "first", verdict)])
        await Deliverer(store, [sink], clock, random.Random(1)).once(1.0)
        assert store.pending() == 0
    assert stream.getvalue().startswith("--- would be sent to pager: opened, first\n")
    assert "A cable is loose" in stream.getvalue()


def test_run_takes_no_message_of_a_daemon_at_work_when_it_only_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Any] = {}

    async def run(settings: Any, mode: Any) -> int:
        asked.update(mode=mode, state_dir=settings.state_dir, there=settings.state_dir.exists())
        return 0

    monkeypatch.setattr("denpexd.app.run", run)
    monkeypatch.setattr("denpexd.watch.log_to_stderr", lambda _: None)
    result = CliRunner().invoke(main, ["run", str(tmp_path), "--dry-run"], env={"DENPEXD_STATE_DIR": str(tmp_path)})
    assert result.exit_code == 0, result.output
    assert (asked["mode"].dry_run, asked["mode"].any_port, asked["there"]) == (True, True, True)
    assert asked["state_dir"] != tmp_path
    assert not asked["state_dir"].exists()
    asyncio.set_event_loop(None)
