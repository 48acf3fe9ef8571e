"""Real ranks that stand still, and ranks that only seem to."""

import importlib.util
import time
from dataclasses import dataclass
from typing import Any

import pytest

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.torch,
    pytest.mark.timeout(900),
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed (group e2e)"),
]

# Seconds from the last line to the alert. 30 where the daemon has learned the job's rhythm; on a loaded machine the job
# may stand before a daemon is there, so that no rhythm is known, and the page comes after 45.
LIMIT = 100.0


@dataclass
class Deadlock:
    """What three daemons told about one hung job, one of them left alone, one killed after its alert, one before."""

    last_line: float
    still_hanging: bool
    steady: list[Any]
    killed_after: list[Any]
    killed_at: float
    killed_before: list[Any]
    restarted_at: float


def deadlock(place: Any) -> Deadlock:
    job = place.torchrun("forgotten_eval.py")
    steady, after, before = place.sink(503), place.sink(), place.sink()
    place.watch(job.logs, steady, "steady")
    dies_after = place.watch(job.logs, after, "after")
    dies_before = place.watch(job.logs, before, "before")
    job.wait_for_line("running validation")

    time.sleep(10.0)  # it has read everything and has looked at the stacks
    dies_before.kill()
    assert not before.alerts, "this daemon was to be killed before its alert"
    restarted_at = time.time()
    dies_before.start()

    assert after.wait(150.0)
    time.sleep(3.0)  # the answer to the alert has reached the daemon's state
    dies_after.kill()
    killed_at = time.time()
    dies_after.start()

    steady.wait(150.0)
    before.wait(150.0)
    last_line, still_hanging = job.last_line_at(), job.launcher.poll() is None
    time.sleep(max(0.0, killed_at + 50.0 - time.time()))  # more than the restarted one needs to see a hang again
    job.launcher.terminate()
    job.launcher.wait(60)
    time.sleep(15.0)  # the person on call has ended the job: nothing new
    return Deadlock(last_line, still_hanging, steady.alerts, after.alerts, killed_at, before.alerts, restarted_at)


def slow_validation(place: Any) -> tuple[int, list[Any]]:
    job, sink = place.torchrun("slow_validation.py"), place.sink()
    place.watch(job.logs, sink)
    job.wait_for_line("running validation")
    code = job.launcher.wait(180)
    time.sleep(15.0)
    return code, sink.alerts


def crossed_groups(place: Any) -> tuple[float, list[Any], list[str]]:
    dumps = f"{place.folder}/fr_"
    names = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE")
    job, sink = place.torchrun("crossed_groups.py", ranks=3, env=dict.fromkeys(names, dumps)), place.sink()
    place.watch(job.logs, sink)
    job.wait_for_line("step 11 ")
    while "watching" not in (place.folder / "denpexd.log").read_text():
        time.sleep(0.5)
    time.sleep(10.0)  # it knows the rhythm now
    (place.folder / "fr_go").touch()
    sink.wait(200.0)
    time.sleep(40.0)  # the standstill lasts: nobody is asked again
    asked = (place.folder / "fr_asked.log").read_text().splitlines()
    return job.last_line_at(), sink.alerts, asked


STORIES = {
    "deadlock": (120, deadlock),
    "slow validation": (90, slow_validation),
    "crossed groups": (170, crossed_groups),
}


def test_dumps_that_the_ranks_were_asked_for_once_tell_who_left_the_order_of_the_groups(stories: Any) -> None:
    last_line, alerts, asked = stories["crossed groups"]
    assert sorted(asked) == ["0 1", "1 1", "2 1"]
    (first, *_) = alerts
    assert first.verdict["failure"] == "collective-order-mismatch"
    assert first.verdict["initiating_ranks"] == [2]
    assert "Flight Recorder" in str(first.verdict["evidence"])
    assert first.at - last_line <= 115.0  # the third look comes 20 s after the first


def test_a_hang_is_explained_while_the_job_still_hangs(stories: Any) -> None:
    told = stories["deadlock"]

    assert told.still_hanging
    first = told.steady[0]
    print(f"\nseconds from the last line to the alert: {first.at - told.last_line:.1f}")
    assert first.at - told.last_line < LIMIT
    verdict = first.verdict
    assert verdict["failure"] == "syncbatchnorm-single-rank-eval-deadlock"
    assert (verdict["event"], verdict["hang"], verdict["certainty"]) == ("opened", True, "confirmed")
    assert (verdict["initiating_ranks"], verdict["collateral_ranks"]) == ([0], [1])


def test_a_refused_alert_comes_again_with_the_same_idempotency_key(stories: Any) -> None:
    refused, again, *_ = stories["deadlock"].steady

    assert refused.repeat_key == again.repeat_key == f"{refused.verdict['key']}:1"
    assert refused.verdict == again.verdict


def test_one_hang_is_one_incident_also_when_somebody_ends_the_job(stories: Any) -> None:
    told = stories["deadlock"]

    assert len({alert.verdict["key"] for alert in told.steady}) == 1
    assert {alert.verdict["failure"] for alert in told.steady} == {"syncbatchnorm-single-rank-eval-deadlock"}


def test_a_daemon_killed_after_its_alert_does_not_say_it_again(stories: Any) -> None:
    told = stories["deadlock"]

    assert [alert.verdict["event"] for alert in told.killed_after].count("opened") == 1
    assert len({alert.verdict["key"] for alert in told.killed_after}) == 1
    assert told.killed_after[0].at < told.killed_at


def test_a_daemon_killed_before_its_alert_sends_it_after_its_restart(stories: Any) -> None:
    told = stories["deadlock"]

    first = told.killed_before[0]
    print(f"\nseconds from the restart to the alert: {first.at - told.restarted_at:.1f}")
    assert first.at > told.restarted_at
    assert first.verdict["failure"] == "syncbatchnorm-single-rank-eval-deadlock"
    assert first.verdict["initiating_ranks"] == [0]
    assert len({alert.verdict["key"] for alert in told.killed_before}) == 1


def test_forty_seconds_of_validation_on_one_rank_alert_nobody(stories: Any) -> None:
    code, alerts = stories["slow validation"]

    assert code == 0
    assert alerts == []
