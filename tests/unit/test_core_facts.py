"""Each fact of docs/rule-format.md: for which rank it holds, and when it stops to hold."""

from dataclasses import replace
from pathlib import Path

import pytest

from denpexd.catalog.patterns import compile_pattern
from denpexd.core.events import UNKNOWN_RANK, Activity, Exit, Fact, Frame, Hit, Raised
from denpexd.core.facts import FACTS
from denpexd.core.rule import Signal

from .jobs import TINY, World, fact, line, stack


def raised(rank: int, *chain: tuple[str, str], frames: tuple[Frame, ...] = (), uncaught: bool = True) -> Raised:
    return Raised(0.0, rank, f"rank{rank}", 7, "text", chain, frames, uncaught)


@pytest.fixture
def world() -> World:
    return World()


# --- exceptions and exits ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "there"),
    [
        ({}, True),
        ({"type": "FormatError"}, True),
        ({"type": "Format"}, False),
        ({"type": "ValueError"}, True),
        ({"message": "magic"}, True),
        ({"type": "FormatError", "message": "magic"}, True),
        ({"type": "ValueError", "message": "magic"}, False),
        ({"in": r"^load reader\.py"}, True),
        ({"in": r"^Reader\.load reader\.py"}, True),
        ({"in": "other"}, False),
    ],
)
def test_an_exception_matches_by_its_chain_and_its_frames(world: World, params: dict[str, str], there: bool) -> None:
    chain = (("ValueError", "cannot go on"), ("lib.errors.FormatError", "bad magic"))
    world.at(5.0, raised(1, *chain, frames=(Frame("Reader.load", "reader.py", 3),)))
    assert world.who(fact("raised", **params)) == ([1] if there else [])


def test_an_exception_that_several_ranks_raised_is_not_alone(world: World) -> None:
    world.at(5.0, raised(1, ("ValueError", "bad")))
    assert world.who(fact("raised", type="ValueError", alone=True)) == [1]
    world.at(6.0, raised(2, ("ValueError", "bad")))
    assert world.who(fact("raised", type="ValueError", alone=True)) == []
    assert world.who(fact("raised", type="ValueError")) == [1, 2]


def test_an_exception_that_a_pattern_excludes_does_not_count(world: World) -> None:
    world.at(5.0, raised(1, ("ValueError", "bad magic")))
    signal = replace(fact("raised"), exclude=compile_pattern("ValueError: bad"))
    assert world.who(signal) == []


def test_a_line_of_a_degradation_does_not_lapse_when_the_job_trains_on(world: World) -> None:
    world.steps(0, 1).at(10.5, line(1, "bad-file.printed"))
    world.at(20.0, line(0, "step", {"step": "12"}), line(1, "step", {"step": "12"}))
    signal = Signal("bad-file.printed", "log", "because")
    assert world.who(signal) == []
    assert world.who(replace(signal, lasting=True)) == [1]


def test_an_exception_about_a_lost_peer_is_nobodys_own(world: World) -> None:
    world.at(5.0, raised(1, ("RuntimeError", "peer was lost")))
    assert world.who(fact("raised")) == []


def test_an_exception_lapses_when_the_job_trains_on(world: World) -> None:
    world.steps(0, 1).at(10.5, raised(1, ("ValueError", "bad")))
    assert world.who(fact("raised")) == [1]
    world.at(11.0, line(0, "step", {"step": "11"}))  # was in flight
    assert world.who(fact("raised")) == [1]
    world.at(14.0, line(0, "step", {"step": "12"}))
    assert world.who(fact("raised")) == []


def test_an_exception_that_was_logged_weighs_less_than_an_uncaught_one(world: World) -> None:
    world.at(5.0, raised(0, ("ValueError", "x"), uncaught=False), raised(1, ("ValueError", "x")))
    assert [world.evidence(r, fact("raised"))[0].weight for r in (0, 1)] == ["suspect", "fatal"]


@pytest.mark.parametrize(
    ("code", "source", "params", "there"),
    [
        (1, "process", {"failed": True}, True),
        (0, "process", {"failed": True}, False),
        (-9, "process", {"failed": True}, False),
        (137, "process", {"failed": True}, False),
        (-9, "process", {"signal": 9}, True),
        (137, "process", {"signal": 9}, True),
        (143, "process", {"signal": 15}, True),
        (-11, "process", {"signal": 9}, False),
        (9, "process", {"signal": 9}, False),
        (3, "process", {"code": 3}, True),
        (3, "process", {"code": 4}, False),
        (3, "launcher", {"by": "launcher"}, True),
        (3, "launcher", {"by": "process"}, False),
        (None, "process", {}, False),
    ],
)
def test_an_exit_matches_by_code_signal_and_teller(
    world: World, code: int | None, source: str, params: dict[str, str | int | float | bool], there: bool
) -> None:
    world.at(5.0, Exit(0.0, 2, code, source))
    assert world.who(fact("exit", **params)) == ([2] if there else [])


def test_a_launcher_hands_on_the_code_of_a_rank_that_has_explained_itself(world: World) -> None:
    world.at(5.0, Exit(0.0, UNKNOWN_RANK, 134))
    assert world.who(fact("exit", signal=6, unexplained=True)) == [UNKNOWN_RANK]
    world.at(5.0, line(2, "lost"))
    assert world.who(fact("exit", signal=6, unexplained=True)) == []
    assert world.who(fact("exit", signal=6)) == [UNKNOWN_RANK]


def test_a_forced_exit_is_no_failure_and_no_disappearance(world: World) -> None:
    world.at(4.0, Fact(0.0, UNKNOWN_RANK, "launcher_killing", {"signal": "9"})).at(5.0, Exit(0.0, 2, -9))
    assert world.who(fact("exit", signal=9)) == []
    assert world.who(fact("gone")) == []


def test_a_process_without_last_words_has_vanished(world: World) -> None:
    world.at(1.0, line(1, "finished"), line(2, "lost"), raised(3, ("ValueError", "bad")))
    world.at(5.0, Exit(0.0, 0, None)).at(8.0, *(Exit(0.0, rank, None) for rank in range(1, 4)))
    assert world.who(fact("gone")) == [0]


def test_ranks_that_vanish_together_were_ended_or_done(world: World) -> None:
    world.at(5.0, Exit(0.0, 0, None), Exit(0.0, 1, None)).at(6.5, Exit(0.0, 2, None), Exit(0.0, 3, None))
    assert world.who(fact("gone")) == []


def test_a_known_exit_code_says_more_than_a_disappearance(world: World) -> None:
    world.at(5.0, Exit(0.0, 0, None)).at(9.0, Exit(0.0, 1, None)).at(9.5, Exit(0.0, 1, 3))
    assert world.who(fact("gone")) == [0]


# --- processes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["frozen", "oom_killed"])
def test_what_a_witness_states_holds_until_the_rank_moves(world: World, name: str) -> None:
    world.at(5.0, Fact(0.0, 1, name, source="kernel"))
    assert world.who(fact(name)) == [1]
    assert world.evidence(1, fact(name))[0].means == "because"
    world.at(6.0, line(1, "step", {"step": "9"}))
    assert world.who(fact(name)) == []


# --- silence ----------------------------------------------------------------------------------------------------------


def test_a_job_is_stalled_beyond_what_a_page_needs(world: World) -> None:
    world.steps(0)
    assert world.who(fact("stalled"), now=39.0) == []
    assert world.who(fact("stalled"), now=40.0) == [0]
    assert "usual: every 1 s" in world.evidence(0, fact("stalled"), now=50.0)[0].text


def test_a_stall_beyond_the_budget_depends_on_the_phase(world: World) -> None:
    world.steps(0).at(10.0, line(0, "evaluating"))
    assert world.who(fact("stalled", budget=True), now=909.0) == []
    assert world.who(fact("stalled", budget=True), now=910.0) == [0]


def test_a_job_that_has_ended_is_not_stalled_beyond_its_budget(world: World) -> None:
    world.steps(0).at(11.0, line(0, "finished"))
    assert world.who(fact("stalled", budget=True), now=5000.0) == []


def test_a_job_that_is_over_is_not_stalled_at_all(world: World) -> None:
    world.steps(0).at(11.0, Exit(0.0, 0, 1))
    assert world.who(fact("stalled"), now=5000.0) == []


def test_blindness_is_no_stall_and_no_silence(world: World) -> None:
    world.steps(0)
    world.job.blind_until = 90.0
    assert world.who(fact("stalled")) == []
    assert world.who(fact("silent")) == []
    assert world.who(fact("silent", **{"for": 5}), now=96.0) == [0]


def test_only_a_living_rank_that_has_printed_before_can_be_silent(world: World) -> None:
    world.at(1.0, Activity(0.0, 0, "x", 1), Activity(0.0, 1, "x", 1), Fact(0.0, 2, "running")).at(2.0, Exit(0.0, 1, 0))
    assert world.who(fact("silent", **{"for": 60}), now=60.0) == []
    assert world.who(fact("silent", **{"for": 60}), now=61.0) == [0]


# --- phases -----------------------------------------------------------------------------------------------------------


def test_a_rank_is_in_the_phase_that_it_named_last(world: World) -> None:
    world.steps(0, 1).at(11.0, line(0, "evaluating"), line(1, "evaluating")).at(12.0, line(1, "saving"))
    assert world.who(fact("phase", name="eval")) == [0]
    assert world.who(fact("phase", name="checkpoint")) == [1]
    assert world.who(fact("phase", name="train")) == []


def test_a_phase_is_over_when_other_ranks_train_on(world: World) -> None:
    world.steps(0, 1).at(11.0, line(1, "saving"))
    assert world.who(fact("phase", name="checkpoint")) == [1]
    world.at(60.0, line(0, "step", {"step": "12"}))
    assert world.who(fact("phase", name="checkpoint")) == []


def test_a_rank_that_moves_is_in_training(world: World) -> None:
    world.steps(0).at(1.0, Activity(0.0, 1, "x", 1))
    assert world.who(fact("phase", name="train")) == [0]


def test_a_rank_is_alone_in_a_phase_while_no_other_names_it(world: World) -> None:
    world.steps(0, 1).at(11.0, line(0, "evaluating"))
    assert world.who(fact("phase_alone", name="eval")) == [0]
    world.at(12.0, line(1, "evaluating"))
    assert world.who(fact("phase_alone", name="eval")) == []


def test_whoever_says_that_it_is_done_or_leaves_with_zero_has_ended(world: World) -> None:
    world.at(1.0, line(0, "finished"), Exit(0.0, 1, 0), Exit(0.0, 2, 1), Activity(0.0, 3, "x", 1))
    assert world.who(fact("ended")) == [0, 1]


# --- collectives ------------------------------------------------------------------------------------------------------


def waits(rank: int, op: str, **fields: str) -> Hit:
    return line(rank, "timeout", {"op": op, **fields})


@pytest.mark.parametrize(
    ("numel", "want", "fits"),
    [
        ("129", "odd", True),
        ("128", "odd", False),
        ("1", "odd", False),
        ("1", "1", True),
        ("2", "1", False),
        ("11", ">10", True),
        ("10", ">10", False),
        ("", "1", False),
    ],
)
def test_a_pending_collective_has_a_size(world: World, numel: str, want: str, fits: bool) -> None:
    world.at(1.0, waits(0, "ALLGATHER", numel_in=numel))
    assert world.who(fact("pending", numel=want)) == ([0] if fits else [])


def test_a_pending_collective_has_a_kind(world: World) -> None:
    world.at(1.0, waits(0, "ALLGATHER"), waits(1, "ALLREDUCE"), line(2, "counters", {"enq": "1", "done": "1"}))
    assert world.who(fact("pending", op="^ALLG")) == [0]
    assert world.who(fact("pending")) == [0, 1]


def test_who_differs_from_the_majority_of_its_group_mismatches(world: World) -> None:
    world.at(1.0, waits(0, "ALLREDUCE"), waits(1, "ALLREDUCE"), waits(2, "ALLGATHER"))
    assert world.who(fact("mismatch", what="op")) == [2]


def test_two_ranks_that_differ_name_no_side(world: World) -> None:
    world.at(1.0, waits(0, "ALLREDUCE"), waits(2, "ALLGATHER"))
    assert world.who(fact("mismatch", what="op")) == []


def test_halves_that_differ_name_no_side(world: World) -> None:
    world.at(1.0, *(waits(r, "ALLREDUCE") for r in (0, 1)), *(waits(r, "ALLGATHER") for r in (2, 3)))
    assert world.who(fact("mismatch", what="op")) == []


def test_ranks_of_different_groups_are_not_compared(world: World) -> None:
    world.at(1.0, waits(0, "ALLREDUCE"), waits(1, "ALLREDUCE"), waits(2, "ALLGATHER", pg="tp"))
    assert world.who(fact("mismatch", what="op")) == []


def test_sequence_numbers_and_sizes_are_compared_too(world: World) -> None:
    world.at(1.0, *(waits(r, "ALLREDUCE", seq="7", numel_in="4") for r in (0, 1)), waits(2, "ALLREDUCE", seq="6"))
    assert world.who(fact("mismatch", what="seq")) == [2]
    assert world.who(fact("mismatch", what="numel")) == []


def test_who_has_enqueued_less_than_everybody_else_is_behind(world: World) -> None:
    world.at(1.0, *(line(r, "counters", {"enq": n, "done": "5"}) for r, n in enumerate(("7", "6", "7"))))
    assert world.who(fact("behind")) == [1]
    world.at(2.0, line(0, "counters", {"enq": "6"}))
    assert world.who(fact("behind")) == []


def test_an_idle_rank_is_not_in_the_collective_that_others_wait_in(world: World) -> None:
    world.at(1.0, line(0, "counters", {"enq": "5", "done": "5"}), line(1, "counters", {"enq": "6", "done": "5"}))
    assert world.who(fact("not_in_collective")) == []
    world.at(2.0, waits(1, "ALLREDUCE"))
    assert world.who(fact("not_in_collective")) == [0]


def test_who_reports_nothing_while_the_others_time_out_stands_out(world: World) -> None:
    world.steps(0, 1, 2, 3).at(50.0, line(0, "lost"))
    assert world.who(fact("no_report")) == []
    world.at(50.5, line(1, "lost"), line(2, "lost"))
    assert world.who(fact("no_report")) == [3]


def test_a_rank_that_was_never_heard_cannot_fail_to_report(world: World) -> None:
    world.at(50.0, *(line(r, "lost") for r in (0, 1, 2)))
    assert world.who(fact("no_report")) == []


def test_a_rank_that_moved_after_the_report_is_alive(world: World) -> None:
    world.steps(0, 1, 2, 3).at(50.0, *(line(r, "lost") for r in (0, 1, 2))).at(51.0, line(3, "step", {"step": "99"}))
    assert world.who(fact("no_report")) == []


# --- comparisons ------------------------------------------------------------------------------------------------------


def test_who_leaves_its_loop_earlier_than_another_has_fewer_steps(world: World) -> None:
    world.steps(0, until=12).steps(1, until=10).at(13.0, line(1, "epoch_done"))
    assert world.who(fact("fewer_steps")) == [1]
    world.at(14.0, line(0, "epoch_done"))
    assert world.who(fact("fewer_steps")) == []


@pytest.mark.parametrize(("total", "short"), [("9000", []), ("12", [1])])
def test_who_saves_far_from_the_end_of_its_loop_has_not_left_it(world: World, total: str, short: list[int]) -> None:
    world.steps(0, until=12)
    for n in range(1, 11):
        world.at(float(n), line(1, "step", {"step": str(n), "total": total}))
    world.at(13.0, line(1, "saving"))
    assert world.who(fact("fewer_steps")) == short


def test_a_loop_that_ran_to_its_total_is_not_short(world: World) -> None:
    world.steps(0, until=10)
    for n in range(1, 11):
        world.at(float(n), line(1, "step", {"step": str(n), "total": "11"}))
    world.at(13.0, line(1, "epoch_done"))
    assert world.who(fact("fewer_steps")) == []


def test_fewer_batches_that_a_rank_announces_are_fewer_steps(world: World) -> None:
    world.steps(0, 1).at(11.0, line(0, "batches", {"batches": "30"}), line(1, "batches", {"batches": "29"}))
    assert world.who(fact("fewer_steps")) == [1]
    assert "has 29 batches, others have 30" in world.evidence(1, fact("fewer_steps"))[0].text


@pytest.mark.parametrize(("batches", "short"), [("797", [1]), ("800", [])])
def test_fewer_batches_than_the_loop_of_others_are_fewer_steps(world: World, batches: str, short: list[int]) -> None:
    for n in range(300, 310):
        world.at(float(n), line(0, "step", {"step": str(n), "total": "800"}))
    world.at(311.0, line(1, "batches", {"batches": batches}))
    assert world.who(fact("fewer_steps")) == []
    world.at(700.0, line(0, "step", {"step": "780", "total": "800"}))
    assert world.who(fact("fewer_steps")) == short


def mean(rank: int, value: str, epoch: str = "1") -> Hit:
    return line(rank, "mean", {"metric": "mean", "value": value, "epoch": epoch})


def test_metrics_of_the_same_epoch_that_differ_spread(world: World) -> None:
    signal = fact("metric_spread", name="mean", relative=0.01)
    world.at(1.0, mean(0, "1.00"), mean(1, "1.005"), mean(2, "5", epoch="2"))
    assert world.who(signal) == []
    world.at(2.0, mean(1, "1.05"))
    assert world.who(signal) == [0, 1]
    assert world.who(fact("metric_spread", name="variance", relative=0.01)) == []


@pytest.mark.parametrize("value", ["nan", "0.0"])
def test_a_metric_that_is_no_number_or_zero_everywhere_does_not_spread(world: World, value: str) -> None:
    world.at(1.0, mean(0, value), mean(1, value))
    assert world.who(fact("metric_spread", name="mean", relative=0.01)) == []


# --- lines and frames -------------------------------------------------------------------------------------------------

BROKEN = TINY.signals["bad-file.printed"]
EXCHANGE = TINY.signals["line.exchanging"]


def test_a_line_counts_within_its_window(world: World) -> None:
    world.at(5.0, line(1, "bad-file.printed"))
    assert world.evidence(1, BROKEN, now=65.0, window=60.0)
    assert not world.evidence(1, BROKEN, now=66.0, window=60.0)


def test_a_line_that_must_come_several_times_holds_when_it_has(world: World) -> None:
    twice = replace(BROKEN, count=2)
    world.at(5.0, line(1, "bad-file.printed"))
    assert world.who(twice) == []
    world.at(6.0, line(1, "bad-file.printed"))
    assert [e.t for e in world.evidence(1, twice)] == [5.0, 6.0]


def test_a_line_lapses_when_training_goes_on(world: World) -> None:
    world.steps(0, 1).at(10.5, line(1, "bad-file.printed"))
    assert world.who(BROKEN) == [1]
    world.at(20.0, line(0, "step", {"step": "50"}))
    assert world.who(BROKEN) == []


def test_a_statement_about_the_set_up_never_lapses(world: World) -> None:
    world.at(0.5, line(0, "sync_layers")).steps(0, until=50)
    assert world.who(TINY.signals["line.sync_layers"]) == [0]


def test_a_single_look_convicts_nobody_and_a_steady_one_does(world: World) -> None:
    world.at(10.0, stack(0, "exchange layer.py"))
    assert world.who(EXCHANGE) == []
    world.at(15.0, stack(0, "exchange layer.py"))
    assert world.who(EXCHANGE) == [0]
    assert world.evidence(0, EXCHANGE)[0].text == "exchange (layer.py:0)"


@pytest.mark.parametrize("kind", ["traceback", "faulthandler", "watchdog"])
def test_a_stack_that_the_program_printed_itself_counts_at_once(world: World, kind: str) -> None:
    world.at(10.0, stack(0, "exchange layer.py", kind=kind))
    assert world.who(EXCHANGE) == [0]


def test_frames_lapse_when_the_rank_moves(world: World) -> None:
    world.at(10.0, stack(0, "exchange layer.py")).at(15.0, stack(0, "exchange layer.py"))
    world.at(16.0, line(0, "step", {"step": "1"}))
    assert world.who(EXCHANGE) == []


def test_every_fact_of_the_code_is_in_the_documentation_and_the_other_way_round() -> None:
    text = (Path(__file__).parents[2] / "docs" / "rule-format.md").read_text()
    table = text.split("### Facts")[1].split("## Correlation")[0]
    documented = {row.split("`")[1] for row in table.splitlines() if row.startswith("| `")}
    assert documented == set(FACTS)


def test_the_rank_that_stands_elsewhere_than_the_waiting_majority_is_odd(world: World) -> None:
    for t in (20.0, 26.0):
        world.at(t, stack(0, "barrier log.py"), *(stack(rank, "all_reduce d.py") for rank in (1, 2, 3)))
    assert world.who(fact("odd_stack")) == [0]
    assert world.who(fact("odd_stack", rest="all_reduce")) == [0]


def test_whoever_is_early_where_the_others_compute_is_not_odd(world: World) -> None:
    for t in (20.0, 26.0):
        world.at(t, stack(0, "barrier log.py"), *(stack(rank, "tokenize data.py") for rank in (1, 2, 3)))
    assert world.who(fact("odd_stack", rest="all_reduce")) == []


@pytest.mark.parametrize(("other", "odd"), [("backward graph.py", [0]), ("tokenize data.py", [])])
def test_of_two_ranks_the_one_that_is_not_in_the_step_is_odd(other: str, odd: list[int]) -> None:
    world = World(2)
    for t in (20.0, 26.0):
        world.at(t, stack(0, "barrier log.py"), stack(1, other))
    assert world.who(fact("odd_stack", rest="backward", pair=True)) == odd
    assert world.who(fact("odd_stack", rest="backward")) == []


def test_no_stack_is_odd_without_an_agreeing_majority(world: World) -> None:
    for t in (20.0, 26.0):
        world.at(t, *(stack(rank, f"work{rank % 2} t.py") for rank in range(4)))
    assert world.who(fact("odd_stack")) == []


def test_a_launcher_whose_ranks_were_all_interrupted_has_not_failed(world: World) -> None:
    world.at(5.0, raised(0, ("Interrupted", "told to stop")), Exit(0.0, -1, 1))
    assert world.who(fact("exit", failed=True)) == []
    world.at(6.0, raised(1, ("ValueError", "bad")))
    assert world.who(fact("exit", failed=True)) == [-1]
