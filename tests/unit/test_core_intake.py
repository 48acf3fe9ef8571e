"""What each kind of event changes in the memory of the job; nothing is judged here."""

import re
from dataclasses import replace

import pytest

from denpexd.core.events import (
    UNKNOWN_RANK,
    Activity,
    Attempt,
    Event,
    Exit,
    Fact,
    Hit,
    Joined,
    Raised,
)
from denpexd.core.intake import Intake
from denpexd.core.rank import MAX_METRICS, MAX_RAISED
from denpexd.core.rule import Catalog

from .jobs import TINY, World, stack


def line(rank: int, signal: str, *, handled: bool = False, history: bool = False, **fields: str) -> Hit:
    name = signal if "." in signal else f"line.{signal}"
    return Hit(0.0, rank, name, f"rank{rank}", 0, signal, fields, handled, history)


def step(rank: int, number: int, **fields: str) -> Hit:
    return replace(line(rank, "step"), fields={"step": str(number), **fields})


def raised(rank: int, *chain: tuple[str, str]) -> Raised:
    return Raised(0.0, rank, f"rank{rank}", 0, "text", chain, (), uncaught=True)


@pytest.fixture
def memory() -> World:
    return World(2)


# --- movement ---------------------------------------------------------------------------------------------------------


def test_a_step_moves_the_rank_and_the_job(memory: World) -> None:
    memory.at(5.0, step(0, 7, total="100"))
    state = memory.job.ranks[0]
    assert (state.step, state.total, state.phase, state.moved_t, state.moves) == (7, 100, "train", 5.0, 1)
    assert (memory.job.moved_t, memory.job.trained_t, memory.job.moves) == (5.0, 5.0, 1)


def test_a_redrawn_progress_bar_is_no_movement(memory: World) -> None:
    memory.at(1.0, step(0, 7))
    memory.at(60.0, step(0, 7), step(0, 7))
    assert (memory.job.ranks[0].moved_t, memory.job.ranks[0].moves, memory.job.moved_t) == (1.0, 1, 1.0)
    assert memory.job.ranks[0].last_t == 60.0


def test_the_same_step_of_the_next_epoch_is_movement(memory: World) -> None:
    memory.at(1.0, step(0, 7, epoch="1"))
    memory.at(2.0, step(0, 7, epoch="2"))
    assert memory.job.ranks[0].moves == 2


@pytest.mark.parametrize("label", ["Validation", "Running generate_until requests"])
def test_a_bar_of_an_evaluation_moves_the_rank_but_is_no_training_step(memory: World, label: str) -> None:
    memory.at(1.0, step(0, 7))
    memory.at(2.0, line(0, "bar", label=label, step="1", total="50"))
    memory.at(3.0, line(0, "bar", label=label, step="2", total="50"))
    state = memory.job.ranks[0]
    assert (state.phase, state.step, state.aside) == ("eval", 7, 2)
    assert (state.moved_t, memory.job.trained_t) == (3.0, 1.0)


def test_a_redrawn_bar_of_an_evaluation_is_no_movement(memory: World) -> None:
    memory.at(1.0, line(0, "bar", label="eval", step="3", total="50"))
    memory.at(9.0, line(0, "bar", label="eval", step="3", total="50"), line(0, "bar", label="eval", step="0"))
    assert memory.job.ranks[0].moved_t == 1.0


def test_a_nameless_bar_of_another_length_belongs_to_the_evaluation_that_was_announced(memory: World) -> None:
    memory.at(1.0, step(0, 7, total="100"))
    memory.at(2.0, line(0, "evaluating"))
    memory.at(3.0, step(0, 4, total="20"))
    assert (memory.job.ranks[0].phase, memory.job.ranks[0].step, memory.job.ranks[0].aside) == ("eval", 7, 4)
    memory.at(4.0, step(0, 8, total="100"))
    assert (memory.job.ranks[0].phase, memory.job.ranks[0].step) == ("train", 8)


def test_gaps_between_movements_teach_the_rhythm(memory: World) -> None:
    for n in range(5):
        memory.at(10.0 + 2.0 * n, step(0, 10 * n))
    assert memory.job.ranks[0].rhythm.usual == 2.0
    assert memory.job.ranks[0].rhythm.step_seconds == 0.2


def test_a_phase_line_restarts_the_silence_but_is_no_step(memory: World) -> None:
    memory.at(1.0, step(0, 7))
    memory.at(50.0, line(0, "evaluating"))
    assert (memory.job.ranks[0].phase, memory.job.ranks[0].moved_t) == ("eval", 1.0)
    assert memory.job.silence(60.0) == 10.0
    memory.at(80.0, line(0, "evaluating"))
    assert memory.job.silence(90.0) == 40.0


def test_the_last_drawing_of_a_bar_does_not_end_the_phase_that_was_announced(memory: World) -> None:
    def drawn(t: float, number: int) -> None:
        memory.at(t, line(0, "bar", pct="50", step=str(number), total="8"))

    drawn(1.0, 7)
    memory.at(2.0, line(0, "evaluating"))
    drawn(2.1, 8)
    assert (memory.job.ranks[0].phase, memory.job.ranks[0].step) == ("eval", 8)
    memory.at(30.0, line(0, "evaluating"))
    drawn(60.0, 8)
    drawn(61.0, 1)
    assert memory.job.ranks[0].phase == "train"


def test_how_long_a_phase_took_is_learned_when_it_is_left(memory: World) -> None:
    memory.at(10.0, line(0, "evaluating"))
    memory.at(40.0, line(0, "saving"))
    memory.at(45.0, step(0, 1))
    assert memory.job.ranks[0].rhythm.usual_phase("eval") == 30.0
    assert memory.job.ranks[0].rhythm.usual_phase("checkpoint") == 5.0
    assert memory.job.ranks[0].rhythm.usual_phase("train") is None


def test_history_teaches_but_starts_no_clock_in_the_past() -> None:
    memory = World(2)
    memory.job.started_t = 1000.0
    memory.at(1000.0, replace(step(0, 1), history=True))
    assert memory.job.moved_t == 1000.0


@pytest.mark.parametrize(
    ("text", "number"),
    [("12,345", 12345), ("7_000", 7000), ("-3", -3), ("", None), ("7.5", None), ("²", None), ("9" * 5000, None)],
)
def test_what_is_no_counter_is_no_step(memory: World, text: str, number: int | None) -> None:
    memory.at(1.0, line(0, "step", step=text))
    assert memory.job.ranks[0].step == number


# --- lines ------------------------------------------------------------------------------------------------------------


def test_any_line_counts_as_life_only_while_no_progress_lines_are_known(memory: World) -> None:
    memory.at(10.0, Activity(0.0, 0, "rank0", 100))
    assert memory.job.spoke_t == 10.0
    for n in range(3):
        memory.at(11.0 + n, step(0, n))
    memory.at(60.0, Activity(0.0, 0, "rank0", 100))
    assert memory.job.spoke_t == 10.0
    assert memory.job.ranks[0].last_t == 60.0


def test_history_is_no_sign_of_life(memory: World) -> None:
    memory.at(10.0, Activity(0.0, 0, "rank0", 100, history=True))
    assert memory.job.spoke_t == float("-inf")
    assert memory.job.ranks[0].printed


def test_a_handled_line_is_only_suspect(memory: World) -> None:
    memory.at(1.0, line(0, "bad-file.printed", handled=True), line(1, "bad-file.printed"))
    assert memory.job.ranks[0].seen["bad-file.printed"].first.weight == "suspect"
    assert memory.job.ranks[1].seen["bad-file.printed"].first.weight == "fatal"


def test_the_first_line_about_a_lost_peer_is_kept_until_the_rank_moves_again(memory: World) -> None:
    memory.at(1.0, line(0, "lost"))
    memory.at(2.0, line(0, "timeout", op="ALLREDUCE"))
    assert memory.job.ranks[0].reported is not None
    assert memory.job.ranks[0].reported.t == 1.0
    assert "timeout" in memory.job.ranks[0].states
    memory.at(2.5, step(0, 1))  # was in flight
    assert memory.job.ranks[0].reported is not None
    memory.at(9.0, step(0, 2))
    assert memory.job.ranks[0].reported is None
    assert memory.job.ranks[0].collectives == {}
    assert "timeout" not in memory.job.ranks[0].states


def test_what_is_known_about_a_collective_is_put_together_from_several_lines(memory: World) -> None:
    memory.at(1.0, line(0, "counters", enq="12", done="11"))
    memory.at(2.0, line(0, "timeout", op="ALLREDUCE", numel_in="1,024", seq="12"))
    known = memory.job.ranks[0].collectives["0"]
    assert (known.op, known.numel, known.seq, known.enqueued, known.completed) == ("ALLREDUCE", 1024, 12, 12, 11)
    assert known.evidence is not None
    assert known.evidence.text == "timeout"


def test_process_groups_are_kept_apart(memory: World) -> None:
    memory.at(1.0, line(0, "timeout", op="ALLREDUCE", pg="tp"), line(0, "timeout", op="ALLGATHER", pg="dp"))
    assert {pg: c.op for pg, c in memory.job.ranks[0].collectives.items()} == {"tp": "ALLREDUCE", "dp": "ALLGATHER"}


def test_metrics_are_kept_by_epoch_or_step_and_only_so_many(memory: World) -> None:
    memory.at(1.0, step(0, 3), line(0, "mean", metric="mean", value="0.5"))
    memory.at(2.0, line(0, "mean", metric="mean", value="0.7", epoch="4"), line(0, "mean", metric="mean", value="bad"))
    assert {key: value for key, (value, _) in memory.job.ranks[0].metrics.items()} == {
        ("mean", "step 3"): 0.5,
        ("mean", "epoch 4"): 0.7,
    }
    for n in range(3 * MAX_METRICS):
        memory.at(3.0, line(0, "mean", metric="mean", value="1", epoch=f"{n}"))
    assert len(memory.job.ranks[0].metrics) == MAX_METRICS
    assert ("mean", f"epoch {3 * MAX_METRICS - 1}") in memory.job.ranks[0].metrics


def test_how_many_batches_a_rank_has_is_noted_where_it_is_a_number(memory: World) -> None:
    memory.at(1.0, line(0, "batches", batches="12,345"))
    memory.at(2.0, line(0, "batches", batches="many"))
    assert memory.job.ranks[0].batches == 12345


def test_signals_that_are_not_in_the_catalogue_are_left_out(memory: World) -> None:
    memory.at(1.0, line(0, "no.such"))
    assert memory.job.ranks == {}


# --- other witnesses --------------------------------------------------------------------------------------------------


def test_an_exception_that_only_reports_a_lost_peer_is_a_victims(memory: World) -> None:
    memory.at(1.0, raised(0, ("RuntimeError", "peer was lost")), raised(1, ("ValueError", "bad")))
    assert [memory.job.ranks[r].raised[0].collateral for r in (0, 1)] == [True, False]


def test_an_exception_with_a_cause_of_its_own_is_no_victims(memory: World) -> None:
    memory.at(1.0, raised(0, ("RuntimeError", "peer was lost"), ("FormatError", "bad magic")))
    assert not memory.job.ranks[0].raised[0].collateral


def test_being_told_to_stop_is_no_error_of_ones_own(memory: World) -> None:
    memory.at(1.0, raised(0, ("SignalException", "told to stop")))
    assert memory.job.ranks[0].raised[0].collateral


def test_a_checkpoint_exception_is_that_of_the_ranks_it_names(memory: World) -> None:
    chain = (("CheckpointException", "CheckpointException ranks:dict_keys([1])"), ("OSError", "gone"))
    memory.at(1.0, raised(0, *chain), raised(1, *chain))
    assert [[r.collateral for r in memory.job.ranks[n].raised] for n in (0, 1)] == [[True], [False, False]]
    memory.at(2.0, raised(UNKNOWN_RANK, *chain))
    assert len(memory.job.ranks[1].raised) == 3


def test_a_checkpoint_exception_tells_what_a_rank_without_log_raised(memory: World) -> None:
    chain = (("CheckpointException", "CheckpointException ranks:dict_keys([1, 99])"), ("OSError", "gone"))
    memory.at(1.0, raised(0, *chain))
    assert [r.collateral for r in memory.job.ranks[1].raised] == [False]
    assert 99 not in memory.job.ranks


def test_only_so_many_exceptions_are_kept(memory: World) -> None:
    for n in range(5 * MAX_RAISED):
        memory.at(float(n), raised(0, ("ValueError", f"{n}")))
    assert len(memory.job.ranks[0].raised) <= MAX_RAISED


def test_a_single_look_is_not_steady_and_two_equal_ones_five_seconds_apart_are(memory: World) -> None:
    memory.at(10.0, stack(0, "exchange layer.py", "main train.py"))
    assert not memory.job.ranks[0].snapshots["py-spy"].steady
    memory.at(12.0, stack(0, "exchange layer.py", "main train.py"))
    assert not memory.job.ranks[0].snapshots["py-spy"].steady
    memory.at(15.0, stack(0, "exchange layer.py", "main train.py"))
    assert memory.job.ranks[0].snapshots["py-spy"].steady
    assert set(memory.job.ranks[0].snapshots["py-spy"].hits) == {"line.exchanging"}


@pytest.mark.parametrize(
    "between",
    [
        stack(0, "exchange layer.py", at_line=2),
        stack(0, "forward layer.py"),
        stack(0, "exchange layer.py", "main train.py"),
        step(0, 99),
    ],
    ids=["other line", "other function", "other caller", "moved"],
)
def test_steadiness_begins_anew_when_anything_changed(memory: World, between: Event) -> None:
    memory.at(1.0, step(0, 1))
    memory.at(10.0, stack(0, "exchange layer.py"))
    memory.at(13.0, between)
    memory.at(16.0, stack(0, "exchange layer.py"))
    assert not memory.job.ranks[0].snapshots["py-spy"].steady


def test_frames_are_matched_with_and_without_their_class(memory: World) -> None:
    memory.at(1.0, stack(0, "Layer.exchange layer.py"), stack(1, "my_exchange layer.py"))
    assert set(memory.job.ranks[0].snapshots["py-spy"].hits) == {"line.exchanging"}
    assert memory.job.ranks[1].snapshots["py-spy"].hits == {}


@pytest.mark.parametrize(
    ("frames", "counts"),
    [
        (("Layer.exchange layer.py", "next loader.py", "main train.py"), False),
        (("read file.py", "next loader.py", "exchange layer.py"), True),
        (("exchange layer.py", "main train.py"), True),
    ],
    ids=["called by it", "calls it", "not there"],
)
def test_frames_that_a_frame_outside_calls_do_not_count(memory: World, frames: tuple[str, ...], counts: bool) -> None:
    outside = {"outside": re.compile("^next ")}
    signals = {name: replace(s, param_matchers=outside) for name, s in TINY.signals.items() if s.kind == "frame"}
    memory.intake = Intake(Catalog({}, signals), memory.job)
    memory.at(1.0, stack(0, *frames))
    assert ("line.exchanging" in memory.job.ranks[0].snapshots["py-spy"].hits) is counts


def test_looks_and_dumps_are_kept_apart(memory: World) -> None:
    memory.at(1.0, stack(0, "barrier d.py"), stack(0, "exchange layer.py", kind="faulthandler"))
    assert set(memory.job.ranks[0].snapshots) == {"py-spy", "faulthandler"}


def test_an_exit_is_told_once_and_a_code_adds_to_a_disappearance(memory: World) -> None:
    memory.at(1.0, Exit(0.0, 0), Exit(0.0, 0), Exit(0.0, 0, 1), Exit(0.0, 0, 1), Exit(0.0, 0, 1, "launcher"))
    assert [(e.event.code, e.event.source) for e in memory.job.ranks[0].exits] == [
        (None, "process"),
        (1, "process"),
        (1, "launcher"),
    ]
    assert memory.job.ranks[0].gone is memory.job.ranks[0].exits[0]


def test_an_exit_by_a_signal_that_the_launcher_announced_is_forced(memory: World) -> None:
    memory.at(1.0, Fact(0.0, UNKNOWN_RANK, "launcher_killing", {"signal": "9"}))
    memory.at(2.0, Exit(0.0, 0, -9), Exit(0.0, 1, -11))
    assert [memory.job.ranks[r].exits[0].forced for r in (0, 1)] == [True, False]


def test_an_announcement_about_one_rank_does_not_cover_another(memory: World) -> None:
    memory.at(1.0, Fact(0.0, 0, "launcher_killing", {"signal": "9"}))
    memory.at(2.0, Exit(0.0, 0, -9), Exit(0.0, 1, -9))
    assert [memory.job.ranks[r].exits[0].forced for r in (0, 1)] == [True, False]


def test_a_process_that_runs_again_is_no_longer_frozen(memory: World) -> None:
    memory.at(1.0, Fact(0.0, 0, "frozen", text="process state T"))
    assert memory.job.ranks[0].states["frozen"].text == "process state T"
    assert memory.job.ranks[0].heard
    memory.at(2.0, Fact(0.0, 0, "running"))
    assert "frozen" not in memory.job.ranks[0].states


def test_evidence_that_cannot_be_had_is_remembered_with_its_remedy(memory: World) -> None:
    fields = {"kind": "stacks", "why": "not permitted", "how": "grant SYS_PTRACE"}
    memory.at(1.0, Fact(0.0, 0, "evidence_unavailable", fields))
    known = memory.job.ranks[0].states["unavailable stacks"]
    assert (known.text, known.means) == ("not permitted", "grant SYS_PTRACE")
    assert not memory.job.ranks[0].heard


def test_ranks_and_their_number_become_known(memory: World) -> None:
    memory.at(1.0, Joined(0.0, 1, node="n7", pid=42), Joined(0.0, UNKNOWN_RANK, world_size=8))
    memory.at(2.0, Joined(0.0, 1), Joined(0.0, UNKNOWN_RANK, world_size=4), Joined(0.0, UNKNOWN_RANK, world_size=10**9))
    assert (memory.job.ranks[1].node, memory.job.ranks[1].pid, memory.job.ranks[1].heard) == ("n7", 42, True)
    assert memory.job.world_size == 8


def test_a_new_attempt_forgets_the_failures_and_keeps_the_rhythm(memory: World) -> None:
    for n in range(5):
        memory.at(float(n), step(0, n))
    memory.at(10.0, raised(0, ("ValueError", "bad")), Exit(0.0, 0, 1), line(0, "bad-file.printed"))
    memory.at(20.0, Attempt(0.0, 1))
    state = memory.job.ranks[0]
    assert (state.raised, state.exits, state.seen, state.step, state.phase) == ([], [], {}, None, "start")
    assert (memory.job.attempt, memory.job.started_t, memory.job.moved_t) == (1, 20.0, None)
    assert state.rhythm.usual == 1.0


def test_a_bar_that_is_drawn_again_after_a_line_with_an_epoch_moves_nothing(memory: World) -> None:
    memory.at(1.0, step(0, 300))
    memory.at(2.0, line(0, "step", epoch="2.95"))
    before = memory.job.ranks[0].moves
    memory.at(500.0, step(0, 300))
    assert memory.job.ranks[0].moves == before
