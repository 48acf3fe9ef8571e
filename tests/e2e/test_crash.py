"""Real ranks that are killed, and jobs that somebody ends on purpose."""

import importlib.util
import signal
import time
from typing import Any

import pytest

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.torch,
    pytest.mark.timeout(900),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed (group e2e)"),
]

LIMIT = 100.0  # seconds from the killed rank's last line to the alert: a minute, and what a slow machine adds
AFTERWARDS = 30.0  # seconds in which a second opinion could come


def killed(place: Any, launcher_log: str, wait: float = 150.0, **more: Any) -> tuple[float, list[Any]]:
    job, sink = place.torchrun("steady.py", ranks=3, launcher_log=launcher_log), place.sink()
    place.watch(job.logs, sink, **more)
    job.wait_for_line("step 12 ", rank=1)
    job.kill(1)
    job.launcher.wait(60)
    last_line = job.last_line_at(rank=1)
    sink.wait(wait)
    time.sleep(AFTERWARDS)
    return last_line, sink.alerts


def ended(place: Any, number: int, launcher_log: str) -> list[Any]:
    job, sink = place.torchrun("steady.py", launcher_log=launcher_log), place.sink()
    place.watch(job.logs, sink, job="e2e")
    job.wait_for_line("step 12 ")
    job.launcher.send_signal(number)
    job.launcher.wait(60)
    sink.wait(15.0)
    time.sleep(AFTERWARDS)
    return sink.alerts


STORIES = {
    "killed": (70, lambda place: killed(place, "logs/launcher.log", job="e2e")),
    "killed without a name": (70, lambda place: killed(place, "logs/launcher.log")),
    "killed unseen": (110, lambda place: killed(place, "launcher.log", wait=60.0, job="e2e")),  # it may tell nothing
    "terminated": (75, lambda place: ended(place, signal.SIGTERM, "logs/launcher.log")),
    "terminated unseen": (75, lambda place: ended(place, signal.SIGTERM, "launcher.log")),
    "interrupted": (75, lambda place: ended(place, signal.SIGINT, "logs/launcher.log")),
}


def test_a_killed_rank_is_named_within_a_minute(stories: Any) -> None:
    last_line, alerts = stories["killed"]

    print(f"\nseconds from the killed rank's last line to the alert: {alerts[0].at - last_line:.1f}")
    assert alerts[0].at - last_line < LIMIT
    verdict = alerts[-1].verdict
    assert verdict["failure"] == "rank-oom-killed"
    assert (verdict["initiating_ranks"], verdict["collateral_ranks"]) == ([1], [0, 2])
    assert len({alert.verdict["key"] for alert in alerts}) == 1


def test_the_launchers_log_and_the_ranks_are_one_job_also_where_nobody_named_it(stories: Any) -> None:
    _, alerts = stories["killed without a name"]

    assert {(alert.verdict["failure"], *alert.verdict["initiating_ranks"]) for alert in alerts} == {
        ("rank-oom-killed", 1)
    }
    assert len({alert.verdict["key"] for alert in alerts}) == 1


def test_no_survivor_is_blamed_where_the_launcher_is_not_heard(stories: Any) -> None:
    _, alerts = stories["killed unseen"]

    assert [alert.verdict["initiating_ranks"] for alert in alerts if alert.verdict["initiating_ranks"] != [1]] == []
    assert len({alert.verdict["key"] for alert in alerts}) <= 1


@pytest.mark.parametrize("story", ["terminated unseen", "interrupted"])
def test_a_job_that_somebody_ends_is_no_failure(stories: Any, story: str) -> None:
    assert [alert.verdict["failure"] for alert in stories[story]] == []


def test_a_job_that_is_told_to_stop_is_a_note_of_low_severity_and_nobodys_failure(stories: Any) -> None:
    told = [(a.verdict["failure"], a.verdict["severity"], a.verdict["initiating_ranks"]) for a in stories["terminated"]]
    assert told == [("preempted-sigterm", "low", [])]
