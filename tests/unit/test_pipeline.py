"""Bytes of many files through one pipeline: which job and attempt they belong to, and what they cause."""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from denpexd import pipeline as module
from denpexd.catalog.load import load
from denpexd.core.cadence import Limits
from denpexd.core.events import UNKNOWN_RANK, Closed, Exit, Hit, Joined, Opened, Raised
from denpexd.ingest.discover import Found
from denpexd.ingest.tail import TailRead
from denpexd.journal import decode
from denpexd.pipeline import OTHER, QUIET, Pipeline
from denpexd.scan.engine import choose_engine
from denpexd.scan.scanner import Scanner
from denpexd.watched import Outcome

TINY, _ = load([Path(__file__).parents[1] / "data" / "tiny"], strict=False)
START = 1_000.0
CRASH = (
    'Traceback (most recent call last):\n  File "train.py", line 1, in <module>\n    main()\nFormatError: bad magic\n'
)


@pytest.fixture(scope="module")
def scanner() -> Scanner:
    return Scanner([s for s in TINY.signals.values() if s.kind == "log"], choose_engine())


class Files:
    """Files that grow, and the pipeline that is shown what was added."""

    def __init__(self, scanner: Scanner) -> None:
        self.pipeline = Pipeline(TINY, scanner, start_t=START, limits=Limits())
        self.done = Outcome()
        self._sizes: dict[Path, int] = {}

    def add(self, t: float, rank: int, text: str, *, history: bool = False, event: str = "", **where: Any) -> Outcome:
        known = found(rank, **where)
        size = 0 if event else self._sizes.get(known.path, 0)
        data = text.encode()
        self._sizes[known.path] = size + len(data)
        outcome = self.pipeline.feed(known, TailRead(data, size, history=history, event=event), START + t)
        self.done.merge(outcome)
        return outcome

    def train(self, first: int, last: int, ranks: int = 2, **where: Any) -> None:
        for n in range(first, last + 1):
            for rank in range(ranks):
                self.add(n, rank, f"step {n}\n", **where)
            self.wait(n, n)

    def wait(self, first: int, last: int) -> None:
        for second in range(first, last + 1):
            for outcome in (*self.pipeline.idle(START + second), self.pipeline.tick(START + second)):
                self.done.merge(outcome)

    @property
    def verdicts(self) -> list[Mapping[str, Any]]:
        return [dict(v) for job in self.pipeline.jobs.values() for v in job.core.verdicts()]


def found(rank: int, *, job: str = "run", run: str = "", attempt: int | None = None, path: str | None = None) -> Found:
    where = Path(path or f"/logs/{job}/{run}/{attempt}/rank{rank}.log")
    return Found(where, job, rank, attempt, "stdout", False, run)


@pytest.fixture
def files(scanner: Scanner) -> Files:
    return Files(scanner)


def test_a_crash_is_told_with_the_file_and_place_that_prove_it(files: Files) -> None:
    files.train(1, 10)
    before = len("".join(f"step {n}\n" for n in range(1, 11)))
    files.add(11, 1, CRASH)
    files.add(12, 0, "peer was lost\n")
    files.wait(12, 60)
    (opened,) = files.done.changes
    assert isinstance(opened, Opened)
    assert (opened.verdict["failure"], opened.verdict["initiating_ranks"]) == ("bad-file", [1])
    (quote, *_) = files.verdicts[0]["evidence"]
    assert (quote["source"], quote["offset"], quote["rank"]) == ("/logs/run/None/rank1.log", before, 1)


def test_what_the_core_wants_names_its_job(files: Files) -> None:
    files.train(1, 10)
    files.wait(11, 30)
    assert {(job, want.kind) for job, want in files.done.wants} == {("run", "stacks")}


def test_jobs_are_judged_apart(files: Files) -> None:
    for n in range(1, 11):
        for job in ("one", "two"):
            files.add(n, 0, f"step {n}\n", job=job)
            files.add(n, 1, f"step {n}\n", job=job)
    files.add(11, 1, CRASH, job="two")
    files.add(11.5, 0, "peer was lost\n", job="two")
    files.wait(12, 30)
    assert [v["job"] for v in files.verdicts] == ["two"]
    assert dict(files.pipeline.open_labels) == {("two", "bad-file", "data", "high"): 1}


def test_a_line_that_comes_in_two_reads_is_one_line(files: Files) -> None:
    files.add(1, 0, "ste")
    files.add(2, 0, "p 7\nst")
    assert files.pipeline.jobs["run"].core.job.ranks[0].step == 7
    assert (files.pipeline.lines, files.pipeline.bytes) == (1, 9)


def test_an_unfinished_line_of_a_file_that_was_replaced_counts_as_it_is(files: Files) -> None:
    files.add(1, 0, "step 7")
    files.add(2, 0, "step 1\n", event="replaced")
    assert files.pipeline.jobs["run"].core.job.ranks[0].step == 1
    assert files.pipeline.jobs["run"].core.job.moves == 2


@pytest.mark.parametrize(("ranks", "slices"), [(100, 0), (300, 3)])
def test_what_many_files_have_left_open_is_ended_some_files_at_a_time(files: Files, ranks: int, slices: int) -> None:
    for rank in range(ranks):
        files.add(1, rank, "step 7")  # no line end
    assert len(list(files.pipeline.idle(START + 5))) == slices
    files.wait(5, 5)
    assert {state.step for state in files.pipeline.jobs["run"].core.job.ranks.values()} == {7}
    assert list(files.pipeline.idle(START + 6)) == []


def test_what_a_file_has_left_open_is_ended_in_the_job_that_it_moves_to(files: Files) -> None:
    files.add(1, 0, "step 7", job="one", path="/logs/x.log")
    files.pipeline.settle([found(0, job="two", path="/logs/x.log")])
    files.wait(2, 5)
    assert files.pipeline.jobs["two"].core.job.ranks[0].step == 7


def test_what_has_begun_goes_on_when_the_rank_of_its_file_becomes_known(files: Files) -> None:
    where = "/logs/out.log"
    files.add(1, UNKNOWN_RANK, "step 6\nste", path=where)
    files.add(2, 3, "p 7\n" + CRASH[:60], path=where)
    files.add(2.5, 3, CRASH[60:], path=where)
    files.wait(3, 6)
    told = [decode(line)[1] for line in files.done.journal]
    assert [(e.rank, e.fields["step"]) for e in told if isinstance(e, Hit) and "step" in e.fields][-1] == (3, "7")
    assert [(e.rank, e.text) for e in told if isinstance(e, Raised)] == [(3, "FormatError: bad magic")]


def test_a_traceback_that_began_before_its_rank_was_known_is_told(files: Files) -> None:
    files.add(1, UNKNOWN_RANK, CRASH[:60], path="/logs/out.log")
    files.add(2, 3, CRASH[60:], path="/logs/out.log")
    files.wait(3, 6)
    assert any('"event":"Raised"' in line and "FormatError" in line for line in files.done.journal)


def test_what_the_core_was_fed_is_journaled_without_ticks_and_activity(files: Files) -> None:
    files.train(1, 3, ranks=1)
    events = [decode(line) for line in files.done.journal]
    assert [(job, type(e)) for job, e in events] == [("run", Hit)] * 3
    assert files.pipeline.evidence("run", [Joined(START, UNKNOWN_RANK, world_size=4)]).journal
    assert isinstance(
        decode(files.pipeline.evidence("run", [Joined(START, UNKNOWN_RANK, world_size=8)]).journal[0])[1], Joined
    )
    assert files.pipeline.jobs["run"].core.job.world_size == 8


def test_what_has_begun_moves_along_when_a_file_turns_out_to_be_of_another_job(files: Files) -> None:
    where = "/logs/launcher.log"
    before, after = (found(UNKNOWN_RANK, job=job, path=where) for job in ("logs", "1f2e"))
    files.pipeline.settle([before])
    files.add(1, UNKNOWN_RANK, CRASH[:60], job="logs", path=where)
    files.pipeline.settle([after])
    assert list(files.pipeline.jobs) == ["1f2e"]
    files.add(1.5, UNKNOWN_RANK, CRASH[60:], job="1f2e", path=where)
    files.wait(3, 6)
    told = [decode(line) for line in files.done.journal]
    assert [(job, e.text) for job, e in told if isinstance(e, Raised)] == [("1f2e", "FormatError: bad magic")]


def test_a_job_whose_files_went_to_another_stays_while_its_incident_is_open(files: Files) -> None:
    files.pipeline.settle([found(0), found(1)])
    files.train(1, 10)
    files.add(11, 1, CRASH)
    files.wait(12, 30)
    assert len(files.verdicts) == 1
    files.pipeline.settle([found(0, job="other", path=str(found(0).path))])
    assert set(files.pipeline.jobs) == {"run", "other"}
    files.wait(31, 32)


def test_a_job_of_the_journal_without_a_file_does_not_hang(files: Files, scanner: Scanner) -> None:
    files.train(1, 20)
    told = {}
    for there in (["run"], ["other"]):
        again = Pipeline(TINY, scanner, start_t=START + 40, limits=Limits())
        again.restore(files.done.journal, [], START + 40)
        again.settle([found(0, job=job) for job in there])
        wants = [want for second in range(41, 200) for want in again.tick(START + second).wants]
        told[there[0]] = bool(wants)
    assert told == {"run": True, "other": False}


@pytest.mark.parametrize(("down", "told"), [(5, 1), (900, 0)])
def test_what_a_job_said_just_before_a_restart_is_told_although_its_files_are_gone(
    files: Files, scanner: Scanner, down: int, told: int
) -> None:
    files.train(1, 10)
    files.add(11, 1, CRASH)
    files.wait(12, 13)
    assert files.verdicts == []
    again = Pipeline(TINY, scanner, start_t=START + 13 + down, limits=Limits())
    again.restore(files.done.journal, [], START + 13 + down)
    again.settle([found(0, job="other")])
    outcome = Outcome()
    for second in range(14 + down, 60 + down):
        outcome.merge(again.tick(START + second))
    assert [type(change) for change in outcome.changes] == [Opened] * told


# --- attempts ---------------------------------------------------------------------------------------------------------


def test_a_folder_of_a_new_attempt_begins_a_new_attempt_once(files: Files) -> None:
    files.train(1, 5, run="a", attempt=0)
    files.train(6, 7, run="a", attempt=1)
    assert files.pipeline.jobs["run"].core.job.attempt == 1
    assert sum('"event":"Attempt"' in line for line in files.done.journal) == 1


def test_another_run_of_the_same_job_is_another_start_of_it(files: Files) -> None:
    files.train(1, 5, run="a", attempt=0)
    files.train(6, 7, run="b", attempt=0)
    assert sum('"event":"Attempt"' in line for line in files.done.journal) == 1


def test_late_lines_of_an_earlier_attempt_change_nothing(files: Files) -> None:
    files.train(1, 5, run="a", attempt=0)
    files.train(6, 15, run="a", attempt=1)
    assert files.add(16, 1, CRASH, run="a", attempt=0) == Outcome()
    files.train(17, 60, run="a", attempt=1)
    assert files.done.changes == []


def test_a_launchers_own_log_beside_the_folders_belongs_to_every_attempt(files: Files) -> None:
    files.add(1, UNKNOWN_RANK, "sync layers in use\n", path="/logs/run.log")
    files.train(2, 5, run="a", attempt=0)
    files.add(6, UNKNOWN_RANK, "file is broken\n", path="/logs/run.log")
    assert not any('"event":"Attempt"' in line for line in files.done.journal)
    seen = files.pipeline.jobs["run"].core.job.ranks[UNKNOWN_RANK].seen
    assert set(seen) == {"line.sync_layers", "bad-file.printed"}


def test_a_crash_closes_and_counts_when_the_next_attempt_trains(files: Files) -> None:
    files.train(1, 10, run="a", attempt=0)
    files.add(10.5, 1, CRASH, run="a", attempt=0)
    files.add(10.75, 0, "peer was lost\n", run="a", attempt=0)
    files.wait(11, 12)
    assert dict(files.pipeline.settled) == {}
    files.train(13, 40, run="a", attempt=1)
    assert [type(c) for c in files.done.changes] == [Opened, Closed]
    assert dict(files.pipeline.settled) == {("run", "bad-file", "data", "high"): 1}
    assert dict(files.pipeline.open_labels) == {}


# --- the daemon's own life --------------------------------------------------------------------------------------------


def test_old_history_pages_nobody_and_recent_history_does(scanner: Scanner) -> None:
    told = {}
    for recent in (False, True):
        files = Files(scanner)
        files.done.merge(files.pipeline.recent("run", START, recent=recent))
        files.add(0, 1, "step 1\n" + CRASH, history=True)
        files.add(0, 0, "peer was lost\n", history=True)
        files.wait(1, 60)
        told[recent] = [c.verdict["failure"] for c in files.done.changes]
    assert told == {False: [], True: ["bad-file"]}


def test_a_blind_daemon_takes_no_silence_for_a_hang(files: Files) -> None:
    files.train(1, 10)
    files.pipeline.blind(START + 900, START + 11)
    files.wait(901, 905)
    assert files.done.changes == []
    assert files.done.wants == []


def test_the_end_of_the_bytes_ends_open_lines_and_says_what_had_not_settled(files: Files) -> None:
    files.train(1, 10)
    files.add(11, 1, CRASH.rstrip("\n"))
    assert files.done.changes == []
    outcome = files.pipeline.flush(START + 11.5)
    assert [c.verdict["failure"] for c in outcome.changes] == ["bad-file"]
    assert any('"event":"Raised"' in line for line in outcome.journal)


def test_evidence_goes_to_the_job_that_it_is_about(files: Files) -> None:
    files.train(1, 10)
    files.add(11, 1, CRASH)
    outcome = files.pipeline.evidence("run", [Exit(START + 11.5, 1, 1)])
    assert outcome.journal
    files.done.merge(outcome)
    files.wait(12, 13)
    assert [v["certainty"] for v in files.verdicts] == ["confirmed"]


def test_a_restarted_pipeline_knows_its_open_incidents(files: Files, scanner: Scanner) -> None:
    files.train(1, 10)
    files.add(11, 1, CRASH)
    files.add(11.5, 0, "peer was lost\n")
    files.wait(12, 30)
    again = Pipeline(TINY, scanner, start_t=START + 40, limits=Limits())
    again.restore(files.done.journal, files.verdicts, START + 40)
    outcome = Outcome()
    for second in range(41, 80):
        outcome.merge(again.tick(START + second))
    assert outcome.changes == []
    assert dict(again.open_labels) == dict(files.pipeline.open_labels)
    assert [v["key"] for v in again.jobs["run"].core.verdicts()] == [v["key"] for v in files.verdicts]


def test_steps_that_were_history_before_a_restart_do_not_end_an_incident_after_it(
    files: Files, scanner: Scanner
) -> None:
    for rank in range(2):
        files.add(1, rank, "".join(f"step {n}\n" for n in range(10)), history=True)
    files.add(11, 1, CRASH)
    files.add(11.5, 0, "peer was lost\n")
    files.wait(12, 50)
    assert files.verdicts
    assert restarted(files, scanner, files.verdicts, 60).changes == []


def test_what_was_closed_by_hand_before_a_restart_is_not_told_again(files: Files, scanner: Scanner) -> None:
    files.train(1, 10)
    files.add(11, 1, CRASH)
    files.add(11.5, 0, "peer was lost\n")
    files.wait(12, 30)
    [verdict] = files.verdicts
    files.done.add("run", [], files.pipeline.job("run").core.close(verdict["key"]))
    assert [type(change) for change in files.done.changes] == [Opened, Closed]
    assert restarted(files, scanner, [], 60).changes == []


def restarted(files: Files, scanner: Scanner, open_verdicts: list[Mapping[str, Any]], t: int) -> Outcome:
    """What another pipeline says in the first half minute with the journal of this one."""
    again, outcome = Pipeline(TINY, scanner, start_t=START + t, limits=Limits()), Outcome()
    again.restore(files.done.journal, open_verdicts, START + t)
    outcome.merge(again.recent("run", START + t, recent=True))
    for second in range(t + 1, t + 30):
        outcome.merge(again.tick(START + second))
    return outcome


def test_damaged_lines_of_the_journal_are_left_out_and_counted(
    files: Files, scanner: Scanner, caplog: pytest.LogCaptureFixture
) -> None:
    files.train(1, 5, ranks=1)
    again = Pipeline(TINY, scanner, start_t=START, limits=Limits())
    with caplog.at_level(logging.WARNING, "denpexd.pipeline"):
        again.restore([*files.done.journal, "{", "[]"], [], START + 6)
    assert "2 lines of the journal are damaged" in caplog.text
    assert again.jobs["run"].core.job.ranks[0].step == 5


def test_a_traceback_is_not_lost_when_the_rank_of_its_file_becomes_known(files: Files) -> None:
    files.train(1, 10)
    head, last = CRASH.rsplit("FormatError", 1)
    files.add(11, UNKNOWN_RANK, head, path="/logs/out.log")
    files.add(11.5, 1, f"FormatError{last}", path="/logs/out.log")
    files.wait(12, 15)
    assert any('"event":"Raised"' in written and "FormatError" in written for written in files.done.journal)


def test_a_recording_begins_with_what_the_journal_of_an_earlier_daemon_tells(scanner: Scanner) -> None:
    first = Files(scanner)
    first.train(1, 5)
    pipeline = Pipeline(TINY, scanner, start_t=START, limits=Limits(), record=(1 << 20, 3600.0))
    pipeline.restore(first.done.journal, [], START + 10)
    pipeline.tick(START + 11)
    tape = pipeline.job("run").tape
    assert tape is not None
    cut = tape.cut()
    assert [type(event) for event in cut.before].count(Hit) == 10
    assert len(cut.batches) == 1
    assert Files(scanner).pipeline.job("run").tape is None


# --- what is forgotten ------------------------------------------------------------------------------------------------


def test_a_job_that_has_been_quiet_for_a_day_is_forgotten_and_its_counts_stay(files: Files) -> None:
    files.train(1, 30)
    files.add(31, 0, "step 31 " + "x" * 100_000 + "\n")
    files.pipeline.settle([found(0), found(1)])
    counts = (files.pipeline.truncated, files.pipeline.repeated, files.pipeline.suspected)
    assert counts[0] == 1
    files.pipeline.forget(START + QUIET)
    assert set(files.pipeline.jobs) == {"run"}
    files.pipeline.forget(START + 31 + QUIET)
    assert files.pipeline.jobs == {}
    assert (files.pipeline.truncated, files.pipeline.repeated, files.pipeline.suspected) == counts
    assert files.pipeline.forgotten["job"] == 1


def test_an_open_incident_keeps_its_job_until_its_files_are_gone_for_an_hour(files: Files) -> None:
    files.train(1, 30)
    files.add(31, 0, CRASH)
    files.wait(32, 60)
    files.pipeline.settle([found(0), found(1)])
    assert files.pipeline.forget(START + 10 * QUIET) == Outcome()
    assert len(files.verdicts) == 1
    files.pipeline.settle([found(0, job="other")])
    outcome = files.pipeline.forget(START + 10 * QUIET)
    assert [type(change) for change in outcome.changes] == [Closed]
    assert files.verdicts == []
    assert "run" not in files.pipeline.jobs
    assert sum(files.pipeline.settled.values()) == 1


def test_of_too_many_jobs_the_quietest_without_an_incident_go_first(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_JOBS", 3)
    for number in range(5):
        files.train(10 * number + 1, 10 * number + 9, job=f"run{number}")
    files.add(50, 0, CRASH, job="run0")
    files.wait(51, 70)
    assert len(files.verdicts) == 1
    files.add(71, 0, "step 50\n", job="run4")
    assert files.pipeline.forget(START + 71).changes == []
    assert set(files.pipeline.jobs) == {"run3", "run4", "run0"}
    monkeypatch.setattr(module, "MOST_JOBS", 0)
    assert [type(change) for change in files.pipeline.forget(START + 72).changes] == [Closed]
    assert files.pipeline.jobs == {}


def test_labels_of_settled_incidents_are_bounded_and_none_is_lost(
    files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_COUNTED", 3)
    files.pipeline.settled.update({(f"run{n}", "f", "hang", "high"): 1 for n in range(9)})
    files.pipeline.forget(START)
    assert files.pipeline.settled[OTHER, "f", "hang", "high"] == 7
    assert len(files.pipeline.settled) == 3


def test_recordings_of_many_jobs_share_the_memory_of_a_few(scanner: Scanner) -> None:
    pipeline = Pipeline(TINY, scanner, start_t=START, limits=Limits(), record=(1 << 20, 600.0))
    for number in range(80):
        pipeline.job(f"run{number}")
    pipeline.forget(START)
    rooms = [job.tape.room for job in pipeline.jobs.values() if job.tape is not None]
    assert 2 << 20 < sum(rooms) <= 3 << 20
    assert len(rooms) == 80
