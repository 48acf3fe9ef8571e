"""What sources say on their own about who began it: agreement confirms, contradiction is told and never confirmed."""

from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denpexd.catalog.load import load, shipped_rules
from denpexd.core import stands
from denpexd.core.cadence import Limits
from denpexd.core.candidate import Candidate
from denpexd.core.events import Event, Exit, Fact, Frame, Frames, Joined, Raised
from denpexd.core.evidence import Evidence
from denpexd.core.facts import holds
from denpexd.core.flight import Dump, Op
from denpexd.core.intake import Intake
from denpexd.core.match import candidate
from denpexd.core.records import Collective
from denpexd.core.rule import Rule, Signal
from denpexd.core.state import JobState
from denpexd.core.testimony import weighed
from denpexd.recording import Printed, Recording
from denpexd.replay import Replayer
from denpexd.scan.engine import choose_engine

CATALOG, _ = load([shipped_rules()])
HANG, CRASH = CATALOG.rules["dataloader-stall"], CATALOG.rules["single-rank-exception"]
WAITS = (
    "wait torch/distributed/distributed_c10d.py",
    "all_reduce torch/distributed/distributed_c10d.py",
    "main train.py",
)
LOADS = ("read sharded.py", "__getitem__ dataset.py", "main train.py")
STOOD = 50.0  # when the job moved last


class Job:
    """A job of four ranks that has moved for the last time at STOOD."""

    def __init__(self, world_size: int = 4) -> None:
        self.state = JobState("job", 0.0, world_size=world_size, moved_t=STOOD, trained_t=STOOD)
        self._intake = Intake(CATALOG, self.state)
        for rank in range(world_size):
            known = self.state.rank(rank)
            known.printed, known.moved_t, known.moves = True, STOOD, 10

    def at(self, t: float, *events: Event) -> "Job":
        for event in events:
            self.state.seq += 1
            known = replace(event, t=t)
            match known:
                case Frames():
                    self._intake.frames(known)
                case Dump():
                    self._intake.dumped(known)
                case Exit():
                    self._intake.exit(known)
                case Fact():
                    self._intake.fact(known)
                case Raised():
                    self._intake.raised(known)
                case Joined():
                    self._intake.joined(known)
        return self

    def looks(self, rank: int, frames: tuple[str, ...], *times: float) -> "Job":
        for t in times or (60.0, 66.0):
            self.at(t, stack(rank, *frames))
        return self

    def weigh(self, rank: int, rule: Rule = HANG, certainty: str = "confirmed", kind: str = "log") -> Candidate:
        """A verdict that names this rank on the word of one kind of witness."""
        said = Evidence(rank, kind, "x", 0, 55.0, "it was so", "which means this")
        others = tuple(r for r in self.state.universe if r != rank)
        c = Candidate(rule, (rank,), others, (said,), {}, certainty, 55.0, 0, fatal=True, sure=True)
        return weighed(c, self.state, 100.0)


def stack(rank: int, *functions: str) -> Frames:
    frames = tuple(Frame(f.split()[0], f.split()[1], 7) for f in functions)
    return Frames(0.0, rank, "py-spy", frames)


def dumps(late: int, world: int = 4) -> list[Dump]:
    """All ranks but one stand in the second all-reduce; that one has completed the first and entered nothing since."""
    done = Op("0", 1, "all_reduce", 1, pending=False)
    waits = Op("0", 2, "all_reduce", 2, pending=True)
    return [Dump(0.0, r, ops=(done,) if r == late else (done, waits), source=f"dump{r}") for r in range(world)]


@pytest.fixture
def job() -> Job:
    return Job()


# --- contradictions ---------------------------------------------------------------------------------------------------


def test_dumps_that_name_another_rank_speak_against_a_verdict(job):
    job.at(60.0, *dumps(late=3))
    said = job.weigh(1)
    assert said.certainty == "likely"
    assert any("the Flight Recorder dumps name rank 3" in text for text in said.against)


def test_a_stack_outside_of_any_collective_speaks_against_a_rank_that_waits_in_one(job):
    for rank in range(4):
        job.looks(rank, LOADS if rank == 2 else WAITS)
    said = job.weigh(3, kind="dump")
    assert said.certainty == "likely"
    assert said.against == (
        "the stack of rank 2 is outside of any collective, in read (sharded.py:7), while others wait",
    )


def test_the_stack_that_a_verdict_rests_on_is_not_contradicted_by_another_stack(job):
    for rank in range(4):
        job.looks(rank, LOADS if rank == 2 else WAITS)
    assert not job.weigh(3, kind="stack").against


def test_a_rank_that_goes_on_working_after_its_error_did_not_end_there(job):
    job.looks(1, ("matmul model.py", "step train.py"), 65.0)
    said = job.weigh(1, CRASH)
    assert said.certainty == "likely"
    assert said.against == ("rank 1 goes on: 10 s after its error its stack is in matmul (model.py:7)",)


@pytest.mark.parametrize(
    "frames",
    [
        ("destroy_process_group torch/distributed/distributed_c10d.py", "main train.py"),
        ("_shutdown threading.py",),
        WAITS,
    ],
)
def test_a_rank_on_its_way_out_is_no_contradiction_of_its_error(job, frames):
    job.looks(1, frames, 65.0)
    assert not job.weigh(1, CRASH).against


def test_the_launcher_that_names_another_rank_speaks_against_a_crash(job):
    job.at(60.0, Fact(0.0, 2, "launcher_root", {}, text="Root Cause (first observed failure): rank 2"))
    said = job.weigh(1, CRASH)
    assert said.certainty == "likely"
    assert said.against == ("the launcher's summary names rank 2 as the one that failed first",)


def test_the_process_that_the_kernel_killed_speaks_against_a_verdict_about_another_rank(job):
    job.at(60.0, Fact(0.0, 3, "oom_killed", {}, text="Out of memory: Killed process 812 (python)"))
    said = job.weigh(1, CRASH)
    assert said.certainty == "likely"
    assert "rank 3 was killed because memory ran out: Out of memory: Killed process 812" in said.against[0]


@pytest.mark.parametrize("fact", ["frozen", "unreachable", "gpu_lost"])
def test_a_process_that_cannot_go_on_speaks_against_a_hang_of_another_rank(job, fact):
    job.at(60.0, Fact(0.0, 3, fact, {}, source="ras" if fact == "unreachable" else "process", text="it is so"))
    assert job.weigh(1).certainty == "likely"
    assert job.weigh(3).certainty == "confirmed"


def test_equal_counts_of_all_ranks_speak_against_a_late_one(job):
    job.at(60.0, *(Fact(0.0, r, "launched_same", {}, source="ras") for r in range(4)))
    said = job.weigh(1)
    assert said.certainty == "likely"
    assert said.against == ("NCCL's RAS says that all ranks have launched the same, so nobody was late in NCCL",)


def test_equal_counts_of_some_ranks_say_nothing(job):
    job.at(60.0, *(Fact(0.0, r, "launched_same", {}, source="ras") for r in range(3)))
    assert not job.weigh(1).against


def test_a_process_that_ended_before_anybody_complained_speaks_against_a_hang_of_another_rank(job):
    job.at(60.0, Exit(0.0, 2, -9))
    said = job.weigh(1)
    assert said.certainty == "likely"
    assert said.against == ("the process of rank 2 had ended (exit code -9) before any rank complained",)


# --- agreement --------------------------------------------------------------------------------------------------------


def test_another_source_that_names_the_same_rank_confirms(job):
    job.at(60.0, *dumps(late=3))
    said = job.weigh(3, certainty="likely")
    assert said.certainty == "confirmed"
    assert not said.against
    assert [e.kind for e in said.evidence] == ["log", "dump"]


def test_a_stack_confirms_what_the_log_says(job):
    for rank in range(4):
        job.looks(rank, LOADS if rank == 2 else WAITS)
    assert job.weigh(2, certainty="likely").certainty == "confirmed"
    assert job.weigh(2, certainty="likely", kind="stack").certainty == "likely"  # the same witness again


def test_the_launcher_confirms_a_crash_but_never_a_hang(job):
    job.at(60.0, Fact(0.0, 2, "launcher_root", {}, text="Root Cause (first observed failure): rank 2"))
    assert job.weigh(2, CRASH, certainty="likely").certainty == "confirmed"
    assert job.weigh(2, HANG, certainty="likely").certainty == "likely"


def test_who_agrees_does_not_outweigh_who_contradicts(job):
    job.at(60.0, *dumps(late=3), Fact(0.0, 1, "frozen", {"state": "T"}, text="state T"))
    said = job.weigh(3, certainty="likely")
    assert said.certainty == "likely"
    assert said.against == ("rank 1 is stopped, or stuck in the kernel: state T",)


def test_what_is_undetermined_stays_so(job):
    job.at(60.0, *dumps(late=3))
    assert job.weigh(3, certainty="undetermined").certainty == "undetermined"


# --- only what was seen since the rank moved last ---------------------------------------------------------------------

STALE = STOOD - 10.0


@pytest.mark.parametrize(
    "told",
    [
        dumps(late=3),
        [Fact(0.0, 3, "frozen", {"state": "T"}, text="state T")],
        [Fact(0.0, 3, "launched_less", {}, source="ras", text="launched 1, most 2")],
        [Fact(0.0, 3, "oom_killed", {}, text="Out of memory: Killed process 8")],
        [Fact(0.0, r, "launched_same", {}, source="ras") for r in range(4)],
    ],
    ids=["dump", "process", "ras", "kernel", "ras-same"],
)
def test_a_witness_from_before_the_last_step_counts_for_nothing(told):
    stale, fresh = Job().at(STALE, *told), Job().at(STOOD + 10.0, *told)
    assert not stale.weigh(1).against
    assert stale.weigh(1).certainty == "confirmed"
    assert fresh.weigh(1).against
    assert fresh.weigh(1).certainty == "likely"


def test_stacks_from_before_the_last_step_count_for_nothing():
    job = Job()
    for rank in range(4):
        job.looks(rank, LOADS if rank == 2 else WAITS, STALE, STALE + 6.0)
    assert not job.weigh(3, kind="dump").against


@given(
    named=st.integers(0, 3),
    blamed=st.integers(0, 3),
    certainty=st.sampled_from(["confirmed", "likely", "undetermined"]),
    source=st.sampled_from(["dump", "frozen", "oom_killed", "launched_less", "gpu_lost"]),
    t=st.floats(STOOD - 40.0, STOOD + 40.0),
)
def test_confirmed_means_that_nobody_contradicts(named, blamed, certainty, source, t):
    told = dumps(late=named) if source == "dump" else [Fact(0.0, named, source, {}, source="ras", text="so")]
    said = Job().at(t, *told).weigh(blamed, certainty=certainty)
    assert not (said.against and said.certainty == "confirmed")
    order = ["undetermined", "likely", "confirmed"]
    if named != blamed:
        assert order.index(said.certainty) <= order.index(certainty)
    if t < STOOD:
        assert said.certainty == certainty
        assert not said.against


# --- in a verdict -----------------------------------------------------------------------------------------------------


def test_every_rule_is_weighed(job):
    """A crash that is confirmed by itself, with a launcher that names another rank."""
    crash = Raised(0.0, 1, "rank1", 0, "ValueError: bad", (("ValueError", "bad"),), (), True)
    job.at(60.0, crash).at(61.0, Exit(0.0, 1, 1))
    alone = candidate(CRASH, CATALOG.signals, job.state, 100.0, Limits())
    assert alone is not None
    assert alone.initiating == (1,)
    assert alone.certainty == "confirmed"
    job.at(62.0, Fact(0.0, 2, "launcher_root", {}, text="Root Cause (first observed failure): rank 2"))
    doubted = candidate(CRASH, CATALOG.signals, job.state, 100.0, Limits())
    assert doubted is not None
    assert doubted.certainty == "likely"
    assert doubted.against


# --- when one look is enough ------------------------------------------------------------------------------------------

TIMED_OUT = (
    "[rank0]:[E ProcessGroupNCCL.cpp:607] [Rank 0] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600029 milliseconds"
)


def test_one_look_convicts_only_beside_a_collective_that_did_not_complete(job):
    look = job.looks(1, LOADS, 60.0).state.rank(1)
    assert not stands.counts(job.state, look, look.snapshots["py-spy"])
    job.looks(1, LOADS, 66.0)
    assert stands.counts(job.state, look, look.snapshots["py-spy"])


@pytest.mark.parametrize(("t", "counts"), [(STOOD + 15.0, True), (STOOD - 20.0, False)])
def test_a_timeout_that_training_survived_makes_no_single_look_count(job, t, counts):
    look = job.looks(1, LOADS, 60.0).state.rank(1)
    job.state.rank(0).states["timeout"] = Evidence(0, "log", "rank0", 0, t, TIMED_OUT, "")
    assert stands.counts(job.state, look, look.snapshots["py-spy"]) is counts


@pytest.mark.parametrize(("t", "pending"), [(STOOD + 15.0, True), (STOOD - 20.0, False)])
def test_a_collective_that_was_told_of_before_the_last_step_is_not_pending(job, t, pending):
    rank = job.state.rank(0)
    rank.collectives["0"] = Collective("ALLREDUCE", 7, evidence=Evidence(0, "log", "rank0", 0, t, TIMED_OUT, ""), t=t)
    signal = Signal("own.x", "fact", "it waits", fact="pending")
    assert bool(holds(job.state, rank, signal, 100.0, 3600.0, Limits())) is pending


# --- from end to end --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def replayer() -> Replayer:
    return Replayer(CATALOG, choose_engine())


def steps(until: int, ranks: Iterable[int]) -> list[Printed]:
    return [Printed(float(n), r, "stdout", f"step {n} loss 2.{n:03}") for n in range(until) for r in ranks]


def test_a_rank_without_any_trace_is_said_of_a_silent_hang(replayer):
    lines = steps(40, (0, 1, 3))
    (said,) = replayer.run(Recording("job", 4, 1400.0, lines)).verdicts
    assert (said["failure"], said["certainty"], said["unheard_ranks"]) == ("silent-hang", "undetermined", [2])
    assert "Rank 2 left no trace: no log line, no stack or dump, no process" in said["summary"]
    assert any("RANK=(2)" in one["how"] for one in said["missing"])


def test_a_rank_without_any_trace_is_said_of_a_start_that_is_not_complete(replayer):
    gave_up = "torch.distributed.DistStoreError: Timed out after 301 seconds waiting for clients. 3/4 clients joined."
    lines = [Printed(float(r), r, "stderr", "initializing process group") for r in (0, 1, 3)]
    lines += [Printed(301.0, r, "stderr", f"[rank{r}]: {gave_up}") for r in (0, 1, 3)]
    said = replayer.run(Recording("job", 4, 420.0, sorted(lines, key=lambda line: line.t))).verdicts[0]
    assert (said["category"], said["unheard_ranks"]) == ("startup", [2])
    assert "Rank 2 left no trace" in said["summary"]


def test_rank_zero_logging_alone_makes_no_finding_of_all_the_others(replayer):
    (said,) = replayer.run(Recording("job", 4, 1400.0, steps(40, (0,)))).verdicts
    assert "no trace" not in said["summary"]
    assert said["unheard_ranks"] == [1, 2, 3]
