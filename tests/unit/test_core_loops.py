"""When a silence need not last as long as its budget: beside a second witness that says that nobody computes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denpexd.core.cadence import Limits
from denpexd.core.events import UNKNOWN_RANK, Fact
from denpexd.core.evidence import Evidence
from denpexd.core.intake import Intake
from denpexd.core.loops import GUARD, SECONDED, stalled
from denpexd.core.records import Seen
from denpexd.core.rule import Catalog, Signal
from denpexd.core.state import JobState

BEYOND = Signal("own.stuck", "fact", "it is stuck", fact="stalled", params={"budget": True})
STOOD = 100.0  # the last step, of one each ten seconds


def job(world: int = 2, phase: str = "train") -> JobState:
    known = JobState("job", 0.0, world_size=world, moved_t=STOOD, trained_t=STOOD, moves=10)
    for rank in range(world):
        state = known.rank(rank)
        state.printed, state.moved_t, state.moves, state.phase, state.phase_t = True, STOOD, 10, phase, STOOD
        for _ in range(5):
            state.rhythm.moved(10.0, "train", 1)
    return known


def tell(known: JobState, t: float, *names: str) -> JobState:
    intake = Intake(Catalog({}, {}), known)
    for rank, name in enumerate(names):
        intake.fact(Fact(t, rank, name, {}, source="process", text="used 0.1 s in 30 s"))
    return known


def timer(known: JobState, t: float, guard: str = "0:05:00") -> JobState:
    said = Evidence(0, "log", "rank0", 0, t, f"Timeout ({guard})!", "")
    known.rank(0).seen[GUARD] = Seen(said, said, 1, {"guard": guard})
    return known


def text(known: JobState, now: float) -> str:
    found = stalled(known, known.rank(0), BEYOND, now, Limits())
    return found[0].text if found else ""


def test_silence_alone_lasts_as_long_as_its_budget():
    assert not text(job(), STOOD + 890.0)
    assert text(job(), STOOD + 910.0) == "no progress of any rank for 910 s (usual: every 10 s)"


def test_an_evaluation_of_all_ranks_may_take_twice_as_long_as_one_that_some_wait_for():
    together = job(phase="eval")
    assert not text(together, STOOD + 1790.0)
    assert text(together, STOOD + 1810.0)
    alone = job(phase="eval")
    alone.rank(1).phase = "train"
    assert text(alone, STOOD + 910.0)
    assert text(job(1, phase="eval"), STOOD + 910.0)


def test_an_evaluation_that_one_stream_tells_of_for_all_ranks_may_take_as_long():
    merged = job(1, phase="eval")
    merged.ranks = {UNKNOWN_RANK: merged.ranks[0]}
    merged.ranks[UNKNOWN_RANK].rank = UNKNOWN_RANK
    assert not stalled(merged, merged.ranks[UNKNOWN_RANK], BEYOND, STOOD + 1790.0, Limits())
    assert stalled(merged, merged.ranks[UNKNOWN_RANK], BEYOND, STOOD + 1810.0, Limits())


def test_that_no_process_uses_cpu_time_is_a_second_witness():
    idle = tell(job(), STOOD + 90.0, "cpu_idle", "cpu_idle")
    assert not text(idle, STOOD + SECONDED - 1.0)
    assert text(idle, STOOD + SECONDED).endswith("; no process of any rank uses CPU time")


@pytest.mark.parametrize("names", [("cpu_idle",), ("cpu_idle", "cpu_busy"), ("cpu_busy", "cpu_busy")])
def test_one_process_that_computes_or_is_not_known_is_enough_for_patience(names):
    assert not text(tell(job(), STOOD + 90.0, *names), STOOD + 200.0)


@pytest.mark.parametrize("phase", ["checkpoint", "load", "compile", "init"])
def test_where_ranks_may_wait_for_disks_idle_processes_prove_nothing(phase):
    assert not text(tell(job(phase=phase), STOOD + 90.0, "cpu_idle", "cpu_idle"), STOOD + 200.0)


def test_a_look_that_is_old_or_from_before_the_last_step_counts_for_nothing():
    assert not text(tell(job(), STOOD - 10.0, "cpu_idle", "cpu_idle"), STOOD + 130.0)
    assert not text(tell(job(), STOOD + 40.0, "cpu_idle", "cpu_idle"), STOOD + 300.0)
    later = tell(tell(job(), STOOD + 90.0, "cpu_idle", "cpu_idle"), STOOD + 110.0, "cpu_busy")
    assert not text(later, STOOD + 130.0)


def test_a_pause_that_the_job_has_come_back_from_is_waited_for_twice():
    known = tell(job(), STOOD + 190.0, "cpu_idle", "cpu_idle")
    known.rank(0).rhythm.moved(300.0, "eval")
    assert not text(known, STOOD + 250.0)


def test_the_timer_of_the_program_is_a_second_witness_if_it_was_armed_after_the_last_step():
    assert "timer against hangs ran out: Timeout (0:05:00)!" in text(timer(job(), STOOD + 301.0), STOOD + 310.0)
    assert not text(timer(job(), STOOD + 250.0), STOOD + 310.0)  # armed before it: it prints stacks now and then


@given(st.floats(0.0, 890.0), st.lists(st.sampled_from(["cpu_idle", "cpu_busy"]), min_size=3, max_size=3))
def test_nobody_is_told_of_a_silence_while_a_process_computes(silence, names):
    known = tell(job(3), STOOD + max(0.0, silence - 20.0), *names)
    if text(known, STOOD + silence):
        assert names == ["cpu_idle"] * 3
        assert silence >= SECONDED
