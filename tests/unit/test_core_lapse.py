"""What no longer counts: failures of the past, of other attempts, of history, and pauses that are over.

Each test is a job that was judged wrongly once.
"""

from dataclasses import replace

import pytest

from denpexd.core.events import (
    UNKNOWN_RANK,
    Activity,
    Attempt,
    Exit,
    Fact,
    Opened,
)
from denpexd.core.rule import Catalog

from .jobs import TINY, Run, line, mean, raised, stack

LONELY = (stack(0, "exchange layer.py", "evaluate train.py"), stack(1, "barrier d.py"))


# --- pauses -----------------------------------------------------------------------------------------------------------


def test_one_long_pause_does_not_become_the_rhythm() -> None:
    run = Run().trains(1, 64).trains(65, 65, start=134)
    assert run.core.job.usual == 1.0


def test_a_restart_is_no_step() -> None:
    run = Run().trains(1, 30).at(31, Attempt(0.0, 1)).trains(0, 3, start=300)
    assert run.core.job.usual == 1.0


def test_a_hang_closes_when_training_goes_on_and_the_next_one_is_another() -> None:
    run = Run().trains(1, 60)
    for t in range(70, 200, 10):
        run.at(t, *LONELY)
    run.trains(100, 159, start=200)
    assert [v["state"] for v in run.final] == ["closed"]
    for t in range(270, 400, 10):
        run.at(t, *LONELY)
    assert [v["state"] for v in run.final] == ["closed", "open"]


def test_a_hold_counts_anew_after_an_incident_was_closed() -> None:
    run = Run().trains(1, 60)
    for t in range(65, 180, 5):
        run.at(t, stack(0, "barrier d.py"), stack(1, "barrier d.py"))
    run.trains(61, 100, start=181)
    for t in range(225, 400, 5):
        run.at(t, stack(0, "barrier d.py"), stack(1, "barrier d.py"))
    first, second = run.final
    assert (first["state"], second["opened_t"]) == ("closed", 230.0 + 60.0)


def test_a_redrawn_bar_after_a_phase_line_closes_no_hang() -> None:
    run = Run().trains(1, 60).at(70, *LONELY).at(76, *LONELY).until(95)
    run.at(95, line(0, "evaluating")).at(96, line(0, "step", {"step": "60"})).until(100)
    assert run.core.job.ranks[0].moved_t == 60.0
    assert [v["state"] for v in run.final] == ["open"]


def test_a_job_whose_logging_rank_is_done_is_not_hung() -> None:
    run = Run(4).at(0, *(Activity(0.0, rank, f"rank{rank}", 10) for rank in range(4)))
    run.trains(1, 60, 0).at(70, line(0, "finished")).until(1200)
    assert run.final == []


# --- history ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reads", [1, 2])
def test_a_failure_in_history_after_which_training_went_on_pages_nobody(reads: int) -> None:
    failure = [line(0, "lost", history=True), line(1, "bad-file.printed", history=True)]
    steps = [line(rank, "step", {"step": str(n)}, history=True) for n in range(50) for rank in (0, 1)]
    run = Run()
    for batch in [failure + steps] if reads == 1 else [failure, steps]:
        run.at(0, *batch)
    assert run.trains(51, 80, start=1).final == []


def test_of_two_files_of_a_rank_the_one_that_is_read_last_does_not_outlive_the_other() -> None:
    """Its stderr, with what ended it, is read before its stdout, with its steps."""
    said = replace(line(1, "bad-file.printed", history=True), source="1/stderr.log")
    steps = [replace(line(1, "step", {"step": str(n)}, history=True), source="1/stdout.log") for n in range(5)]
    run = Run().at(0, Fact(0.0, UNKNOWN_RANK, "recent", {"recent": "true"}), said, *steps).until(900)
    assert [(v["failure"], v["initiating_ranks"]) for v in run.final] == [("bad-file", [1])]


def test_the_logs_of_a_job_that_is_long_dead_page_nobody() -> None:
    old = [line(rank, "step", {"step": str(n)}, history=True) for n in range(5) for rank in (0, 1)]
    run = Run().at(0, Fact(0.0, UNKNOWN_RANK, "recent", {"recent": "false"}), *old).until(1500)
    assert run.final == []


# --- what came before -------------------------------------------------------------------------------------------------


def test_a_fatal_exception_after_many_handled_ones_is_seen() -> None:
    run = Run()
    for n in range(12):
        run.at(10 * n + 1, raised(1, uncaught=False)).trains(n + 1, n + 1, start=10 * n + 5)
    run.at(130, raised(1, "FormatError")).at(131, Exit(0.0, 1, 1)).until(200)
    assert [(v["failure"], v["initiating_ranks"]) for v in run.final] == [("bad-file", [1])]


def test_an_earlier_occurrence_that_lapsed_does_not_hide_who_started_it() -> None:
    run = Run().trains(1, 10).at(11, line(1, "bad-file.printed")).trains(12, 60)
    run.at(70, line(1, "bad-file.printed")).at(71, line(0, "lost")).at(71.5, line(1, "lost"))
    run.at(72, line(1, "bad-file.printed")).at(73, Exit(0.0, 1, 1), Exit(0.0, 0, 1)).until(120)
    assert [(v["failure"], v["initiating_ranks"]) for v in run.final] == [("bad-file", [1])]


def test_a_dump_of_a_rank_that_never_logs_lapses_when_the_job_trains_on() -> None:
    run = Run(4).trains(1, 10, 0).at(10, stack(3, "exchange layer.py", kind="faulthandler")).trains(11, 100, 0)
    assert run.until(200).final == []


def test_an_equal_look_from_before_the_last_step_is_no_second_look() -> None:
    run = Run(4).trains(1, 10, 0).at(10, stack(3, "exchange layer.py")).trains(11, 100, 0)
    assert run.at(150, stack(3, "exchange layer.py")).until(200).final == []


def test_metrics_of_two_attempts_are_not_compared() -> None:
    run = Run().at(5, mean(0, "0.5"), mean(1, "0.5")).at(10, Attempt(0.0, 1)).at(20, mean(0, "0.9")).until(60)
    assert run.final == []


def test_a_failure_of_the_next_attempt_has_an_incident_of_its_own() -> None:
    run = Run().trains(1, 1).at(5, raised(1), line(0, "lost")).at(6, Exit(0.0, 1, 1))
    run.at(50, Attempt(0.0, 1)).at(60, raised(0), line(1, "lost")).at(61, Exit(0.0, 0, 1)).until(100)
    assert [(v["attempt"], v["initiating_ranks"]) for v in run.final] == [(0, [1]), (1, [0])]


# --- other witnesses --------------------------------------------------------------------------------------------------


def test_a_forced_kill_that_is_seen_as_137_is_forced() -> None:
    run = Run().trains(1, 5).at(10, Fact(0.0, UNKNOWN_RANK, "launcher_killing", {"signal": "9"}))
    assert run.at(11, Exit(0.0, 1, 137)).until(60).final == []


def test_a_disappearance_alone_proves_nothing() -> None:
    run = Run().trains(1, 5).at(10, Exit(0.0, 1, None)).until(60)
    assert [v["certainty"] for v in run.final] == ["undetermined"]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_which_of_two_failures_at_one_moment_is_told_does_not_depend_on_who_was_read_first(
    order: tuple[int, int],
) -> None:
    run = Run(4).trains(1, 5, 0, 1, 2, 3)
    failures = (line(1, "bad-file.printed"), line(2, "full-disk.printed"))
    run.at(10, *(failures[n] for n in order)).at(11, line(0, "lost"), line(3, "lost")).at(12, Exit(0.0, 0, 1)).until(60)
    assert [(v["failure"], v["initiating_ranks"]) for v in run.final] == [("bad-file", [1])]


def test_a_hang_that_was_closed_by_hand_stays_closed() -> None:
    run = Run().trains(1, 10).until(1300)
    run.said += run.core.close(run.final[0]["key"])
    assert [v["state"] for v in run.until(1400).final] == ["closed"]


def test_a_restart_keeps_the_key_where_the_rule_of_a_degradation_explains_the_stop() -> None:
    both = replace(TINY.rules["bad-file"], id="both", stops=False, signals={"s": TINY.signals["bad-file.broken"]})
    rules = {**{name: rule for name, rule in TINY.rules.items() if name != "bad-file"}, "both": both}
    catalog = Catalog(rules, TINY.signals)
    run = Run(catalog=catalog).trains(1, 5).at(10, raised(1, "FormatError")).at(11, Exit(0.0, 1, 1)).until(40)
    assert [v["failure"] for v in run.final] == ["both"]
    again = Run(catalog=catalog)
    again.core.restore([e for e in run.fed if not isinstance(e, Activity)], run.core.verdicts(), 50.0)
    again.t = 50
    assert [o for o in again.until(100).said if isinstance(o, Opened)] == []
    assert [v["key"] for v in again.core.verdicts()] == [run.final[0]["key"]]


def test_the_number_of_process_groups_is_bounded() -> None:
    run = Run()
    for n in range(3000):
        run.at(1, line(0, "timeout", {"op": "ALLREDUCE", "pg": f"g{n}"}))
    assert len(run.core.job.ranks[0].collectives) <= 1024


def test_a_degradation_stays_open_over_a_reload_of_the_rules() -> None:
    run = Run().trains(1, 10).at(10, mean(0, "0.5"), mean(1, "0.9")).trains(11, 40)
    run.core.use(TINY)
    assert [v["state"] for v in run.trains(41, 800).final] == ["open"]


def test_a_degradation_whose_rule_is_gone_after_a_reload_ends_by_itself() -> None:
    run = Run().trains(1, 10).at(10, mean(0, "0.5"), mean(1, "0.9")).trains(11, 40)
    run.core.use(replace(TINY, rules={k: r for k, r in TINY.rules.items() if k != "drift"}))
    assert [v["state"] for v in run.trains(41, 800).final] == ["closed"]
