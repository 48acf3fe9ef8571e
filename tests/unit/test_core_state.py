"""What is remembered about ranks and about the job, and for how long."""

import pytest

from denpexd.core.events import Exit, Frames
from denpexd.core.evidence import Evidence
from denpexd.core.rank import MAX_SIGNALS, RankState
from denpexd.core.records import Collective, Exited, RaisedBy, Snapshot
from denpexd.core.state import JobState


def evidence(t: float, seq: int, *, weight: str = "fatal", teller: int = -1) -> Evidence:
    return Evidence(0, "log", "rank0", 0, t, "text", "it means", teller=teller, seq=seq, weight=weight)


def job(ranks: int = 0, started_t: float = 0.0) -> JobState:
    state = JobState("job", started_t)
    for number in range(ranks):
        state.rank(number)
    return state


def test_the_witness_is_who_told_it_and_how() -> None:
    assert evidence(1.0, 1).witness == (0, "log")
    assert evidence(1.0, 1, teller=3).witness == (3, "log")


def test_a_signal_keeps_its_first_and_last_evidence_and_a_count() -> None:
    rank = RankState(0)
    for n in range(4):
        rank.note("s", evidence(float(n), n), {"n": str(n)} if n % 2 else {"m": str(n)})
    seen = rank.seen["s"]
    assert (seen.first.t, seen.last.t, seen.count) == (0.0, 3.0, 4)
    assert seen.fields == {"m": "2", "n": "3"}


def test_a_fatal_line_takes_the_place_of_a_handled_one_as_the_first() -> None:
    rank = RankState(0)
    rank.note("s", evidence(1.0, 1, weight="suspect"), {})
    rank.note("s", evidence(2.0, 2), {})
    rank.note("s", evidence(3.0, 3), {})
    assert rank.seen["s"].first.t == 2.0


def test_no_more_signals_are_kept_than_the_bound() -> None:
    rank = RankState(0)
    for n in range(2 * MAX_SIGNALS):
        rank.note(f"s{n}", evidence(1.0, n), {})
    assert len(rank.seen) == MAX_SIGNALS


def test_a_rank_is_heard_when_anything_shows_it() -> None:
    assert not RankState(0).heard
    assert RankState(0, printed=True).heard
    assert RankState(0, looked_at=True).heard
    assert RankState(0, exits=[Exited(Exit(1.0, 0), 1)]).heard
    told = RankState(0)
    told.note("s", evidence(1.0, 1), {})
    assert told.heard


def test_what_belongs_to_a_stop_that_is_over_is_forgotten_and_the_rest_kept() -> None:
    rank = RankState(0, printed=True, step=7)
    for seq in (1, 9):
        rank.note(f"s{seq}", evidence(float(seq), seq), {})
        rank.snapshots[f"k{seq}"] = Snapshot(Frames(float(seq), 0, "py-spy", ()), seq, 0.0)
        rank.exits.append(Exited(Exit(float(seq), 0, seq), seq))
    rank.raised.append(RaisedBy(None, 3, False))
    rank.reported = evidence(4.0, 4)
    rank.states["frozen"] = evidence(9.0, 9)
    rank.collectives["0"] = Collective("ALLREDUCE")
    rank.killing.add("9")
    rank.forget(5)
    assert set(rank.seen) == {"s9"}
    assert set(rank.snapshots) == {"k9"}
    assert [e.seq for e in rank.exits] == [9]
    assert rank.raised == []
    assert rank.reported is None
    assert (rank.states, rank.collectives, rank.killing) == ({}, {}, set())
    assert (rank.printed, rank.step) == (True, 7)


def test_a_later_report_survives_the_end_of_an_earlier_stop() -> None:
    rank = RankState(0)
    rank.reported = evidence(9.0, 9)
    rank.forget(5)
    assert rank.reported is not None


def test_the_universe_is_the_world_where_its_size_is_known() -> None:
    state = job()
    state.rank(3)
    state.rank(-1)
    assert state.universe == [3]
    state.world_size = 3
    assert state.universe == [0, 1, 2, 3]


def test_a_stream_of_no_rank_speaks_for_a_job_of_which_nothing_else_is_known() -> None:
    state = job(started_t=100.0)
    state.world_size = 2
    state.rank(-1).printed = True
    assert state.voices == [0, 1]  # a launcher
    state.rank(-1).moved_t = 110.0
    assert state.voices == [-1]
    state.rank(1).printed = True
    assert state.voices == [0, 1]


def test_silence_counts_from_whatever_was_last() -> None:
    state = job(started_t=100.0)
    assert state.silence(160.0) == 60.0
    state.moved_t = 120.0
    assert state.silence(160.0) == 40.0
    state.spoke_t = 130.0
    assert state.silence(160.0) == 30.0
    state.blind_until = 150.0
    assert state.silence(160.0) == 10.0


def test_silence_never_counts_from_before_the_start() -> None:
    state = job(started_t=100.0)
    state.moved_t = 50.0
    assert state.silence(130.0) == 30.0


def test_a_job_has_ended_when_every_rank_that_was_heard_says_so_or_is_gone() -> None:
    state = job(3)
    assert not state.ended
    state.ranks[0].printed = state.ranks[1].printed = True
    state.ranks[0].phase = "end"
    assert not state.ended
    state.ranks[1].exits.append(Exited(Exit(5.0, 1, 0), 1))
    assert state.ended
    assert not state.over


def test_a_job_is_over_when_every_process_that_was_heard_is_gone() -> None:
    state = job(3)
    state.ranks[0].exits.append(Exited(Exit(5.0, 0, 0), 1))
    state.ranks[1].printed = True
    assert not state.over
    state.ranks[1].exits.append(Exited(Exit(5.0, 1, 0), 2))
    assert state.over
    assert state.ended


def test_a_job_is_over_when_its_launcher_has_ended() -> None:
    state = job(2)
    state.ranks[0].printed = True
    state.rank(-1).exits.append(Exited(Exit(5.0, -1, 1), 1))
    assert state.over


def test_the_usual_gap_is_that_of_the_rank_that_moves_most_often() -> None:
    state = job(3)
    assert state.usual is None
    for number, gap in ((0, 10.0), (1, 2.0)):
        for _ in range(3):
            state.ranks[number].rhythm.moved(gap, "train")
            state.moves += 1
    assert state.usual == 2.0


def test_the_last_phase_is_the_newest_of_any_rank() -> None:
    state = job(3)
    assert state.last_phase == "start"
    state.ranks[0].phase, state.ranks[0].phase_t = "eval", 10.0
    state.ranks[2].phase, state.ranks[2].phase_t = "checkpoint", 20.0
    assert state.last_phase == "checkpoint"


def test_the_busiest_rank_is_the_one_that_moved_most() -> None:
    state = job(3)
    assert state.busiest is None
    state.ranks[1].moves = state.ranks[2].moves = 4
    assert state.busiest is state.ranks[1]
    state.ranks[2].moves = 5
    assert state.busiest is state.ranks[2]


@pytest.mark.parametrize(
    ("known", "idle"),
    [
        (Collective(enqueued=5, completed=5), True),
        (Collective(enqueued=6, completed=5), False),
        (Collective("ALLREDUCE", enqueued=5, completed=5), False),
        (Collective(), False),
    ],
)
def test_a_collective_is_idle_when_nothing_is_pending(known: Collective, idle: bool) -> None:
    assert known.idle is idle
