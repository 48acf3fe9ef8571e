"""Timelines through the real scanner, the shipped rules and the core, in simulated time."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from denpexd.catalog.examples import read_timeline
from denpexd.catalog.load import load, shipped_rules
from denpexd.core.cadence import Limits
from denpexd.core.events import Closed, Opened, Updated
from denpexd.recording import Recording, from_timeline
from denpexd.replay import Replayed, Replayer
from denpexd.scan.engine import choose_engine

Verdict = Mapping[str, Any]
Play = Callable[..., list[Verdict]]


@pytest.fixture(scope="module")
def replayer() -> Replayer:
    return Replayer(load([shipped_rules()])[0], choose_engine())


def recording(text: str, ranks: int, until: float) -> Recording:
    events, mistakes = read_timeline(text, ranks, until)
    assert mistakes == []
    return from_timeline(events, "job", ranks, until)


@pytest.fixture
def play(replayer: Replayer) -> Play:
    def run(text: str, *, ranks: int = 2, until: float = 120.0, steps: int = 20) -> list[Verdict]:
        training = "\n".join(f"{n} * | step {n} loss 2.{n}" for n in range(1, steps + 1))
        return list(replayer.run(recording(f"{training}\n{text}", ranks, until)).verdicts)

    return run


def traceback(t: float, rank: int, error: str, *, prefix: str = "") -> str:
    lines = ["Traceback (most recent call last):", '  File "train.py", line 7, in <module>', "    main()", error]
    return "\n".join(f"{t} {rank} | {prefix}{line}" for line in lines) + "\n"


LOST = "RuntimeError: [/opt/gloo/transport/tcp/pair.cc:544] Connection closed by peer [10.0.0.2]:4711"
EXCHANGE = "all_gather torch/distributed/distributed_c10d.py; forward torch/nn/modules/_functions.py; evaluate train.py"
BARRIER = "barrier torch/distributed/distributed_c10d.py; train train.py"


def test_training_that_ends_well_opens_nothing(play: Play) -> None:
    assert play("21 * | Training finished\n22 * ! exit code=0", until=2000.0) == []


def test_who_raised_first_started_it_and_who_lost_a_peer_is_a_victim(play: Play) -> None:
    crash = traceback(21, 1, "ValueError: bad batch") + traceback(22, 0, LOST) + "23 * ! exit code=1"
    (verdict,) = play(crash)
    assert (verdict["failure"], verdict["initiating_ranks"]) == ("single-rank-exception", [1])
    assert (verdict["collateral_ranks"], verdict["certainty"]) == ([0], "confirmed")
    assert "ValueError: bad batch" in str(verdict["evidence"])


def test_an_error_that_the_program_handled_opens_nothing(play: Play) -> None:
    caught = traceback(20.5, 1, "OSError: cannot read shard 7")
    later = "\n".join(f"{n} * | step {n} loss 1.9" for n in range(21, 60))
    assert play(f"{caught}20.6 1 | WARNING: skipping shard 7\n{later}\n60 * | Training finished") == []


def test_a_lonely_evaluation_is_explained_from_stacks_before_any_timeout(play: Play) -> None:
    hang = f"21 0 | Running validation\n21 0 > {EXCHANGE}\n21 1-3 > {BARRIER}"
    (verdict,) = play(hang, ranks=4, until=100.0)
    assert verdict["failure"] == "syncbatchnorm-single-rank-eval-deadlock"
    assert (verdict["initiating_ranks"], verdict["collateral_ranks"]) == ([0], [1, 2, 3])
    assert (verdict["certainty"], verdict["hang"]) == ("confirmed", True)
    assert verdict["opened_t"] <= 21 + 60


def test_a_rank_that_moves_on_is_not_accused(play: Play) -> None:
    hang = f"21 0 | Running validation\n21 0 > {EXCHANGE}\n21 1 > {BARRIER}\n"
    assert (
        play(
            hang + "45 * | step 21 loss 2.0\n46 * | step 22 loss 2.0\n47 * | Training finished\n48 * ! exit code=0",
            until=300.0,
        )
        == []
    )


def test_a_short_pause_without_evidence_opens_nothing(play: Play) -> None:
    assert play("", until=600.0) == []


def test_a_stack_is_answered_only_until_the_process_is_gone(play: Play) -> None:
    gone = f"20.5 0 > {EXCHANGE}\n20.5 1 > {BARRIER}\n21 * ! exit code=0"
    assert play(gone, until=200.0) == []


def test_a_traceback_that_the_recording_ends_in_counts(replayer: Replayer) -> None:
    cut = recording("1 * | step 1 loss 2\n2 * | step 2 loss 2\n" + traceback(3, 1, "ValueError: bad").rstrip(), 2, 3.0)
    (verdict,) = replayer.run(cut).verdicts
    assert verdict["failure"] == "single-rank-exception"
    assert "ValueError: bad" in str(verdict["evidence"])


def test_verdicts_are_the_final_ones_root_cause_first(replayer: Replayer) -> None:
    def told(kind: type[Opened | Updated | Closed], key: str, opened: float, **more: Any) -> Opened | Updated | Closed:
        plain = {"collateral_ranks": [], "initiating_ranks": [], "hang": False}
        return kind({"key": key, "opened_t": opened, **plain, **more})

    done = Replayed(
        [
            told(Opened, "slow", 1.0),
            told(Opened, "late", 9.0, hang=True),
            told(Opened, "crash", 5.0, initiating_ranks=[1]),
            told(Closed, "late", 9.0, hang=True, state="closed"),
        ]
    )
    assert [v["key"] for v in done.verdicts] == ["crash", "late", "slow"]
    assert done.verdicts[1]["state"] == "closed"


def test_limits_change_when_silence_becomes_a_hang() -> None:
    patient = Replayer(load([shipped_rules()])[0], choose_engine(), limits=Limits(min_silence=500.0))
    text = "\n".join(f"{n} * | step {n} loss 2" for n in range(1, 20)) + f"\n21 0 > {EXCHANGE}\n21 1 > {BARRIER}"
    assert patient.run(recording(text, 2, 300.0)).verdicts == []
    assert len(patient.run(recording(text, 2, 700.0)).verdicts) == 1


def test_the_same_recording_gives_the_same_outputs_twice(replayer: Replayer) -> None:
    text = "1 * | step 1 loss 2\n" + traceback(3, 1, "ValueError: bad") + "4 1 ! exit code=1"
    first, second = (replayer.run(recording(text, 2, 60.0)).outputs for _ in range(2))
    assert first == second
    assert first
