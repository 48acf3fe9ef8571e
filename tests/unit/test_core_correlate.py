"""When the correlator looks, speaks, corrects itself and is done: events of simulated jobs in, outputs out."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import pytest

from denpexd.core.asking import BACK_OFF
from denpexd.core.cadence import Limits
from denpexd.core.events import (
    UNKNOWN_RANK,
    Activity,
    Attempt,
    Blind,
    Closed,
    Event,
    Exit,
    Fact,
    Frames,
    Hit,
    Joined,
    Opened,
    Tick,
    Updated,
    Want,
)
from denpexd.core.rule import used_signals

from .jobs import TINY, Run, line, mean, raised, stack, step


def lonely(ranks: Iterable[int] = (1,)) -> list[Frames]:
    """Rank 0 stands in the exchange of statistics, the others in a barrier."""
    return [stack(0, "exchange layer.py", "evaluate train.py"), *(stack(r, "barrier d.py") for r in ranks)]


@pytest.fixture
def run() -> Run:
    return Run()


# --- looking ----------------------------------------------------------------------------------------------------------


def test_a_suspicion_asks_for_stacks_and_pages_nobody(run: Run) -> None:
    run.trains(1, 10).until(17)
    assert run.said == []
    run.until(200)
    assert run.changes() == []
    assert run.core.suspected == 1
    assert run.wants[0] == Want(18.0, "stacks", (), "no progress for 8 s")


def test_looks_back_off_while_the_silence_lasts(run: Run) -> None:
    run.trains(1, 10).until(800)
    times = [want.t for want in run.wants if want.kind == "stacks"]
    assert [b - a for a, b in pairwise(times)][: len(BACK_OFF)] == list(BACK_OFF)


def test_dumps_are_wished_for_once_a_standstill_and_not_at_the_first_look(run: Run) -> None:
    run.trains(1, 10).until(500)
    assert [want.t for want in run.wants if want.kind == "dumps"] == [38.0]  # with the third look
    run.trains(11, 20, start=501).until(1000)
    assert len([want for want in run.wants if want.kind == "dumps"]) == 2


def test_a_suspicion_that_was_wrong_is_forgotten_and_the_next_counts_anew(run: Run) -> None:
    run.trains(1, 10).trains(11, 20, start=21).until(60)
    assert run.core.suspected == 2
    times = [want.t for want in run.wants if want.kind == "stacks"]
    assert times[0] == 18.0
    assert 38.0 in times


def test_a_job_that_prints_nothing_yet_is_looked_at_after_half_a_minute(run: Run) -> None:
    run.until(29)
    assert run.wants == []
    run.until(30)
    assert [want.t for want in run.wants if want.kind == "stacks"] == [30.0]


def test_an_exception_asks_for_the_state_of_its_process(run: Run) -> None:
    run.at(5, raised(1))
    assert run.wants == [Want(5.0, "process", (1,), "an exception was printed")]


# --- hangs ------------------------------------------------------------------------------------------------------------


def test_a_single_look_convicts_nobody(run: Run) -> None:
    run.trains(1, 10).at(20, *lonely()).until(300)
    assert run.changes() == []


def test_two_equal_looks_five_seconds_apart_convict_when_the_silence_is_worth_a_page(run: Run) -> None:
    run.trains(1, 10).at(20, *lonely()).at(25, *lonely()).until(39)
    assert run.changes() == []
    run.until(60)
    assert run.only["failure"] == "lonely-eval"
    assert (run.only["initiating_ranks"], run.only["collateral_ranks"]) == ([0], [1])
    assert (run.only["opened_t"], run.only["hang"]) == (40.0, True)


def test_frames_lapse_when_the_rank_moves(run: Run) -> None:
    run.trains(1, 10).at(20, *lonely()).at(25, *lonely()).at(26, step(0, 11), step(1, 11)).until(300)
    assert run.changes() == []


def test_a_redrawn_progress_bar_does_not_hide_a_hang(run: Run) -> None:
    run.trains(1, 10)
    for t in range(11, 60):
        run.at(t, step(0, 10), step(1, 10), *(lonely() if t in (20, 26) else ()))
    assert run.only["failure"] == "lonely-eval"


def test_the_same_stack_while_steps_go_on_is_healthy(run: Run) -> None:
    for n in range(1, 200):
        run.at(n, step(0, n), step(1, n), *lonely())
    assert run.changes() == []


def test_silence_alone_pages_only_beyond_the_budget_of_its_phase(run: Run) -> None:
    run.trains(1, 10).until(909)
    assert run.changes() == []
    run.until(910)
    assert (run.only["failure"], run.only["certainty"]) == ("stuck", "undetermined")


def test_a_learned_evaluation_shortens_the_budget() -> None:
    run = Run().trains(1, 10).at(11, line(0, "evaluating")).trains(12, 20, start=31).at(40, line(0, "evaluating"))
    assert run.until(239).changes() == []
    assert run.until(240).only["failure"] == "stuck"


def test_a_page_never_comes_before_the_configured_silence() -> None:
    run = Run(limits=Limits(min_silence=100.0))
    run.trains(1, 10).at(20, *lonely()).at(26, *lonely())
    assert run.until(109).changes() == []
    assert run.until(111).only["failure"] == "lonely-eval"


def test_silence_never_counts_while_blind(run: Run) -> None:
    run.trains(1, 10).at(20, *lonely()).at(26, *lonely()).at(39, Blind(0.0, 10.0)).until(68)
    assert run.changes() == []
    run.until(69)
    assert run.only["failure"] == "lonely-eval"


def test_finished_jobs_are_not_hung(run: Run) -> None:
    run.trains(1, 10).at(11, line(0, "finished"), line(1, "finished")).until(3000)
    assert run.said == []


def test_a_job_whose_launcher_is_gone_is_not_hung(run: Run) -> None:
    run.trains(1, 10).at(11, Exit(0.0, UNKNOWN_RANK, 0)).until(3000)
    assert run.changes() == []


def test_one_line_about_an_evaluation_decides_nothing_before_the_budget() -> None:
    run = Run().at(0, line(0, "sync_layers")).trains(1, 10).at(11, line(0, "evaluating")).until(910)
    assert run.changes() == []
    run.until(911)
    assert (run.only["failure"], run.only["initiating_ranks"], run.only["certainty"]) == ("lonely-eval", [0], "likely")


def test_a_condition_must_hold_as_long_as_its_rule_says(run: Run) -> None:
    run.trains(1, 10)
    for t in range(20, 100, 5):
        run.at(t, stack(0, "barrier d.py"), stack(1, "barrier d.py"))
    assert run.only["failure"] == "parked"
    assert run.only["opened_t"] == 40.0 + 60.0 - 15.0  # judged first when two looks had agreed


def test_a_verdict_says_which_facts_would_make_it_certain() -> None:
    run = Run(4).trains(1, 10).at(20, *lonely((1, 2))).at(26, *lonely((1, 2))).until(60)
    assert run.only["certainty"] == "likely"
    assert {"fact": "the stack of rank 0", "how": "look at rank 0"} in run.only["missing"]


# --- crashes ----------------------------------------------------------------------------------------------------------


def test_a_confirmed_crash_is_posted_at_once(run: Run) -> None:
    run.trains(1, 10).at(10.5, raised(1)).at(10.75, Exit(0.0, 1, 1))
    assert [(v["failure"], v["certainty"]) for v in run.changes(Opened)] == [("any-error", "confirmed")]
    assert run.only["opened_t"] == 10.75


def test_a_crash_without_other_witnesses_waits(run: Run) -> None:
    run.trains(1, 10).at(10.5, raised(1)).until(20)
    assert run.changes() == []
    run.until(30)
    assert (run.only["opened_t"], run.only["certainty"]) == (21.0, "likely")


def test_a_handled_error_opens_nothing(run: Run) -> None:
    for n in range(1, 100):
        run.at(n, step(0, n), step(1, n))
        if n % 10 == 0:
            run.at(n, raised(1, uncaught=False), line(0, "bad-file.printed", handled=True))
    assert run.core.finish(100.0) == []
    assert run.changes() == []


def test_an_uncaught_error_that_stops_nothing_opens_nothing() -> None:
    run = Run().trains(1, 10).at(10.5, raised(1)).trains(11, 100)
    run.said += run.core.finish(101.0)
    assert run.changes() == []


def test_victims_that_raise_after_they_reported_a_lost_peer_are_not_initiating() -> None:
    run = Run(4).trains(1, 10).at(10.5, raised(2, "FormatError"))
    run.at(11, line(0, "lost"), line(1, "lost"), line(3, "lost")).at(11.2, raised(0), raised(1), raised(3))
    run.at(12, *(Exit(0.0, r, 1) for r in range(4))).until(60)
    assert (run.only["failure"], run.only["initiating_ranks"]) == ("bad-file", [2])
    assert run.only["collateral_ranks"] == [0, 1, 3]


def test_victims_alone_are_a_symptom_until_the_cause_is_known() -> None:
    run = Run(4).trains(1, 10).at(40, *(line(r, "lost") for r in (0, 1, 2))).until(60)
    assert (run.only["failure"], run.only["initiating_ranks"]) == ("timed-out", [3])
    run.at(61, raised(3, "FormatError")).until(80)
    assert (run.only["failure"], run.only["revision"], run.only["event"]) == ("bad-file", 2, "updated")


def test_forced_kills_by_the_launcher_are_no_failure_of_their_own() -> None:
    run = Run(4).trains(1, 10).at(10.5, raised(2)).at(11, Exit(0.0, 2, 1))
    run.at(12, Fact(0.0, UNKNOWN_RANK, "launcher_killing", {"signal": "9"}))
    run.at(13, *(Exit(0.0, r, -9) for r in (0, 1, 3))).until(60)
    assert (run.only["failure"], run.only["initiating_ranks"]) == ("any-error", [2])


def test_a_kill_that_nobody_announced_is_one() -> None:
    run = Run(4).trains(1, 10).at(11, Exit(0.0, 2, -9)).at(12, line(0, "lost")).until(60)
    assert (run.only["failure"], run.only["initiating_ranks"]) == ("killed", [2])


def test_late_ranks_make_one_update_and_the_key_stays() -> None:
    run = Run(4).trains(1, 10).at(10.5, raised(2)).at(11, Exit(0.0, 2, 1))
    run.at(12.2, raised(3)).at(12.4, raised(0)).at(13, line(1, "lost")).until(80)
    assert [v["revision"] for v in run.changes()] == [1, 2]
    assert [v["initiating_ranks"] for v in run.changes()] == [[2], [0, 2, 3]]
    assert len({v["key"] for v in run.changes()}) == 1


def test_nothing_new_is_never_told_twice(run: Run) -> None:
    run.trains(1, 10).at(10.5, raised(1)).at(11, Exit(0.0, 1, 1))
    for t in range(12, 60):
        run.at(t, line(0, "lost"))
    assert [v["revision"] for v in run.changes()] == [1]


def test_the_other_explanations_are_told_with_the_reason() -> None:
    run = Run().trains(1, 10).at(10.5, raised(1, "FormatError")).at(11, line(0, "lost"), Exit(0.0, 1, 1)).until(40)
    assert {a["failure"]: a["why_not"] for a in run.core.verdicts()[0]["alternatives"]} == {
        "any-error": "explained by a more specific failure",
        "timed-out": "only describes the symptom",
    }


def test_fingerprints_count_each_time_a_rule_begins_to_hold() -> None:
    run = Run().trains(1, 10).at(10.5, raised(1)).trains(11, 30).at(30.5, raised(1)).until(32)
    assert run.core.fingerprints["any-error"] == 2


# --- the end of an incident -------------------------------------------------------------------------------------------


def hung() -> Run:
    """A hang that has been told."""
    run = Run().trains(1, 60).at(70, *lonely()).at(76, *lonely()).until(95)
    assert [v["failure"] for v in run.changes()] == ["lonely-eval"]
    return run


def test_a_hang_closes_when_training_goes_on() -> None:
    run = hung().at(95.5, step(0, 60))  # a bar that is drawn again
    assert run.only["state"] == "open"
    run.trains(61, 64, start=96)
    assert (run.only["state"], run.only["event"], run.only["revision"]) == ("closed", "closed", 2)
    assert run.core.verdicts() == []


def test_a_step_that_was_in_flight_does_not_close_a_crash(run: Run) -> None:
    run.trains(1, 10).at(10.5, raised(1)).at(10.75, Exit(0.0, 1, 1)).at(11.5, step(0, 11)).until(300)
    assert run.only["state"] == "open"


def test_a_crash_closes_when_a_later_attempt_trains_and_not_before(run: Run) -> None:
    run.trains(1, 10).at(10.5, raised(1)).at(11, Exit(0.0, 1, 1)).at(12, Attempt(0.0, 1)).until(13)
    assert run.only["state"] == "open"
    run.trains(1, 10, start=14)
    assert run.only["state"] == "closed"
    assert run.only["attempt"] == 0


def test_a_failure_that_the_launcher_answers_at_once_is_told_by_its_cause(run: Run) -> None:
    run.trains(1, 10).at(10.5, raised(1)).at(12, Exit(0.0, 1, 1), Attempt(0.0, 1)).trains(1, 10, start=20)
    assert [(v["failure"], v["attempt"]) for v in run.changes(Opened)] == [("any-error", 0)]
    assert run.only["state"] == "closed"


def test_workers_that_are_started_anew_without_a_failure_tell_nothing(run: Run) -> None:
    run.trains(1, 10).at(10.5, raised(1)).at(12, Attempt(0.0, 1)).trains(1, 10, start=20)
    assert run.changes() == []


def test_a_second_failure_after_a_recovery_has_a_key_of_its_own(run: Run) -> None:
    run.trains(1, 10).at(10.5, raised(1)).at(11, Exit(0.0, 1, 1)).at(12, Attempt(0.0, 1)).trains(1, 20, start=13)
    run.at(50, raised(0, "FormatError")).at(50.5, Exit(0.0, 0, 1)).until(90)
    assert [(v["failure"], v["attempt"]) for v in run.changes(Opened)] == [("any-error", 0), ("bad-file", 1)]
    assert len({v["key"] for v in run.changes(Opened)}) == 2
    assert [v["key"] for v in run.changes(Closed)] == [run.changes(Opened)[0]["key"]]


def test_an_incident_can_be_closed_by_hand(run: Run) -> None:
    run.trains(1, 10).at(10.5, raised(1)).at(11, Exit(0.0, 1, 1))
    assert run.core.close("another key") == []
    (closed,) = run.core.close(run.only["key"])
    assert isinstance(closed, Closed)
    assert closed.verdict["revision"] == 2
    assert run.until(200).changes(Opened) == [run.only]


# --- degradations -----------------------------------------------------------------------------------------------------


def test_a_degradation_is_told_after_it_settled_and_training_goes_on() -> None:
    run = Run().trains(1, 10).at(10, mean(0, "1.0"), mean(1, "2.0"))
    run.trains(11, 19)
    assert run.changes() == []
    run.trains(20, 60)
    assert (run.only["failure"], run.only["state"], run.only["collateral_ranks"]) == ("drift", "open", [])


def test_a_degradation_opens_beside_a_stop() -> None:
    run = Run().trains(1, 10).at(10, mean(0, "1.0"), mean(1, "2.0")).trains(11, 30)
    run.at(30.5, raised(1)).at(31, Exit(0.0, 1, 1)).until(60)
    assert [(v["failure"], v["state"]) for v in run.changes(Opened)] == [("drift", "open"), ("any-error", "open")]
    assert len(run.core.verdicts()) == 2


def test_a_degradation_closes_ten_minutes_after_its_fact_ended() -> None:
    run = Run().trains(1, 10).at(10, mean(0, "1.0"), mean(1, "2.0")).trains(11, 30)
    run.at(31, mean(1, "1.0")).trains(31, 630, start=32)
    assert run.only["state"] == "open"
    run.trains(700, 710, start=700)
    assert run.only["state"] == "closed"


def test_a_degradation_that_another_one_explains_is_not_told_beside_it() -> None:
    run = Run()
    wider = replace(TINY.rules["drift"], id="wider", supersedes=("drift",))
    run.core.use(replace(TINY, rules={**TINY.rules, "wider": wider}))
    run.trains(1, 10).at(10, mean(0, "1.0"), mean(1, "2.0")).trains(11, 60)
    assert [v["failure"] for v in run.changes(Opened)] == ["wider"]


# --- history, restart, end --------------------------------------------------------------------------------------------


def old(*events: Hit) -> list[Hit]:
    return [replace(event, history=True) for event in events]


def recent(yes: bool) -> Fact:
    return Fact(0.0, UNKNOWN_RANK, "recent", {"recent": str(yes).lower()})


def test_history_alone_pages_nobody() -> None:
    run = Run().at(0, recent(False), *old(step(0, 1), line(1, "bad-file.printed"), line(0, "lost"))).until(600)
    assert run.changes() == []


def test_recent_history_whose_failure_is_not_over_is_told_once_as_found_at_the_start() -> None:
    run = Run().at(0, recent(True), *old(step(0, 1), line(1, "bad-file.printed"), line(0, "lost"))).until(600)
    assert (run.only["failure"], run.only["revision"]) == ("bad-file", 1)
    assert run.only["summary"].endswith("Found in the logs when denpexd started.")


def test_a_handled_error_in_history_is_none() -> None:
    run = Run().at(0, recent(True), *old(line(1, "bad-file.printed", handled=True))).trains(1, 60)
    assert run.changes() == []


def test_what_is_new_after_old_history_is_told() -> None:
    run = Run().at(0, recent(False), *old(step(0, 1))).at(5, line(1, "bad-file.printed"), line(0, "lost"))
    assert run.until(60).only["failure"] == "bad-file"


def journaled(run: Run) -> list[Event]:
    return [event for event in run.fed if not isinstance(event, Activity | Tick)]


def test_a_restart_keeps_the_key_of_an_open_crash_and_repeats_nothing(run: Run) -> None:
    run.trains(1, 10).at(10.5, raised(1)).at(11, line(0, "lost"), Exit(0.0, 1, 1)).until(60)
    again = Run()
    again.core.restore(journaled(run), run.core.verdicts(), 100.0)
    again.t = 100
    again.until(400)
    assert again.changes() == []
    (now,) = again.core.verdicts()
    assert {k: now[k] for k in ("key", "opened_t", "revision")} == {
        k: run.only[k] for k in ("key", "opened_t", "revision")
    }


def test_a_restart_finds_an_open_hang_again_under_its_key() -> None:
    run = hung()
    again = Run()
    again.core.restore(journaled(run), run.core.verdicts(), 100.0)
    again.t = 100
    again.at(110, *lonely()).at(116, *lonely()).until(200)
    assert again.changes() == []
    assert [v["key"] for v in again.core.verdicts()] == [run.only["key"]]


def test_when_training_stopped_is_told_from_opening_to_end_also_after_a_restart() -> None:
    run = hung()
    stopped = run.only["stopped_t"]
    assert stopped is not None
    assert stopped < run.only["opened_t"]
    again = Run()
    again.core.restore(journaled(run), run.core.verdicts(), 100.0)
    again.t = 100
    again.at(110, *lonely()).at(116, *lonely()).until(200)
    assert [v["stopped_t"] for v in again.core.verdicts()] == [stopped]
    run.trains(61, 64, start=96)
    assert (run.only["state"], run.only["stopped_t"]) == ("closed", stopped)


def test_a_hang_that_is_over_after_a_restart_is_closed() -> None:
    run = hung()
    again = Run()
    again.core.restore(journaled(run), run.core.verdicts(), 100.0)
    again.t = 100
    again.trains(61, 70, start=101)
    (closed,) = again.changes()
    assert (closed["key"], closed["state"], closed["revision"]) == (run.only["key"], "closed", 2)


def test_what_comes_after_a_restart_is_told_with_the_next_revision(run: Run) -> None:
    run.trains(1, 10).at(10.5, raised(1)).at(11, line(0, "lost"), Exit(0.0, 1, 1)).until(60)
    again = Run()
    again.core.restore(journaled(run), run.core.verdicts(), 100.0)
    again.t = 100
    again.at(101, raised(1, "FormatError")).until(160)
    assert [(v["key"], v["failure"], v["revision"]) for v in again.changes()] == [(run.only["key"], "bad-file", 2)]


def test_nothing_is_said_after_a_restart_about_what_was_over(run: Run) -> None:
    run.trains(1, 10).at(10.5, raised(1)).trains(11, 40)
    again = Run()
    again.core.restore(journaled(run), [], 100.0)
    again.t = 100
    assert again.until(400).changes() == []


def test_silence_while_the_daemon_was_away_proves_nothing() -> None:
    again = Run()
    again.core.restore([replace(step(0, n), t=float(n)) for n in range(1, 11)], [], 5000.0)
    again.t = 5000
    assert again.until(5899).changes() == []
    assert again.until(5901).only["failure"] == "stuck"


def test_finish_says_what_had_not_settled(run: Run) -> None:
    run.trains(1, 10).at(10.5, Exit(0.0, 1, 3))
    assert run.changes() == []
    (opened,) = run.core.finish(10.75)
    assert isinstance(opened, Opened)
    assert (opened.verdict["failure"], opened.verdict["certainty"]) == ("any-error", "likely")


def test_finish_updates_what_late_ranks_changed() -> None:
    run = Run(4).trains(1, 10).at(10.5, raised(2)).at(10.6, Exit(0.0, 2, 1)).at(11, raised(3))
    assert len(run.changes()) == 1
    (updated,) = run.core.finish(11.5)
    assert isinstance(updated, Updated)
    assert updated.verdict["initiating_ranks"] == [2, 3]


def test_finish_accuses_nobody_of_a_pause() -> None:
    run = Run().trains(1, 10).until(35)
    assert [o for o in run.core.finish(36.0) if not isinstance(o, Want)] == []


# --- bookkeeping ------------------------------------------------------------------------------------------------------


def test_the_world_may_become_known_later() -> None:
    run = Run(None).at(1, Joined(0.0, UNKNOWN_RANK, world_size=3)).at(2, raised(1)).at(3, Exit(0.0, 1, 1)).until(20)
    assert run.only["collateral_ranks"] == [0, 2]
    assert run.only["unheard_ranks"] == [0, 2]


def test_every_signal_a_rule_looks_at_is_known() -> None:
    assert used_signals(TINY.rules["lonely-eval"]) == {
        "line.exchanging",
        "line.sync_layers",
        "line.in_eval",
        "lonely-eval.alone",
        "lonely-eval.stuck",
    }
    assert used_signals(TINY.rules["bad-file"]) == {"bad-file.broken", "bad-file.printed"}


def test_the_same_events_give_the_same_outputs() -> None:
    first, second = (hung().trains(61, 70, start=96) for _ in range(2))
    assert first.said == second.said


def test_ras_is_asked_twice_in_a_standstill_and_not_before_a_page_is_due(run: Run) -> None:
    run.trains(1, 10).until(400)
    assert [want.t for want in run.wants if want.kind == "ras"] == [40.0, 52.0]
    run.trains(11, 20, start=401).until(500)
    assert [want.t for want in run.wants if want.kind == "ras"] == [40.0, 52.0, 440.0, 452.0]


def test_ras_is_not_asked_before_the_first_steps(run: Run) -> None:
    run.until(1000)
    assert [want for want in run.wants if want.kind == "ras"] == []


def test_gpus_are_asked_about_when_a_page_is_due_and_when_steps_become_slow(run: Run) -> None:
    run.trains(1, 60)
    for n in range(20):
        run.at(63 + 3 * n, *(step(rank, 61 + n) for rank in range(2)))
    slow = [want.t for want in run.wants if want.kind == "gpu"]
    assert len(slow) == 1
    assert 70 <= slow[0] <= 120
    run.until(400)
    assert [want.why for want in run.wants if want.kind == "gpu"][1].startswith("no progress for")
