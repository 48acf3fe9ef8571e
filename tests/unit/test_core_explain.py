"""The verdict as it is told: texts filled in, evidence chosen, what is unknown said."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from denpexd.catalog.load import load
from denpexd.core.candidate import Candidate
from denpexd.core.events import Exit, Frame, Frames
from denpexd.core.evidence import Evidence
from denpexd.core.explain import MAX_EVIDENCE, MAX_TEXT, against, missing, verdict
from denpexd.core.incident import Incident
from denpexd.core.records import Exited, Snapshot
from denpexd.core.state import JobState
from denpexd.core.testimony import is_hang

ROOT = Path(__file__).parents[2]
TINY, _ = load([Path(__file__).parents[1] / "data" / "tiny"], strict=False)


def evidence(
    rank: int = 1, t: float = 10.0, text: str = "bad magic", means: str = "the file cannot be read"
) -> Evidence:
    return Evidence(rank, "log", f"rank{rank}.log", 77, t, text, means)


def found(rule: str = "bad-file", *evidence_: Evidence, **changes: Any) -> Candidate:
    roles = {"evaluating": (1,), "waiting": (0, 2, 3)}
    known = Candidate(TINY.rules[rule], (1,), (0, 2), evidence_ or (evidence(),), roles, "likely", 10.0, 5, fatal=True)
    return replace(known, **changes)


@pytest.fixture
def job() -> JobState:
    """Ranks 0 to 2 of four were heard; training stood still at 8 s."""
    state = JobState("run-7", 0.0, attempt=1, world_size=4, moved_t=8.0)
    for rank in range(3):
        state.rank(rank).printed = True
        state.rank(rank).step = 40 + rank
    state.rank(1).node = "n1"
    return state


def told(c: Candidate, job: JobState, now: float = 20.0, **changes: Any) -> dict[str, Any]:
    incident = Incident("run-7-a1-1-x", 12.0, c, 1, alternatives=[("any-error", "explained")], **changes)
    return verdict(incident, job, now, event="opened", state="open")


def test_texts_name_the_ranks_and_leave_other_braces_alone(job: JobState) -> None:
    said = told(found(), job)
    assert said["quick_answer"] == "Rank 1 read a broken file; ranks 0,2 wait, rank 3 is unknown."
    assert said["remediation"] == [
        {"do": "check the file of rank 1", "risk": "read-only", "command": "check 1 ${HOME}"},
        {"do": "restart", "risk": "restart"},
    ]


def test_the_answer_ends_with_the_place_where_the_one_who_started_a_hang_stands(job: JobState) -> None:
    stands = (Frame("barrier", "torch/distributed/distributed_c10d.py", 9), Frame("log_norms", "train.py", 65))
    for rank, frames in ((0, stands[:1]), (1, stands)):
        look = Frames(15.0, rank, "py-spy", frames, state="S")
        job.rank(rank).snapshots["py-spy"] = Snapshot(look, 1, 10.0, steady=True)
    answer = "Rank 1 evaluates, ranks 0,2-3 wait."
    assert told(found("lonely-eval"), job)["quick_answer"] == f"{answer} Rank 1 stands in log_norms (train.py:65)."
    assert told(found("lonely-eval", initiating=(0,)), job)["quick_answer"].endswith("wait.")
    job.rank(1).exits.append(Exited(Exit(16.0, 1, -9), 2, forced=False))
    job.rank(0).reported = evidence(0)
    assert told(found("lonely-eval"), job)["quick_answer"] == answer


def test_the_answer_names_the_place_where_a_worker_of_the_starved_rank_reads(job: JobState) -> None:
    def worker(*inner: Frame) -> tuple[Frame, ...]:
        return (*inner, Frame("_worker_loop", "torch/utils/data/_utils/worker.py", 9), Frame("main", "train.py", 30))

    idle, busy = (
        worker(Frame("get", "queue.py", 1)),
        worker(Frame("read", "shards.py", 12), Frame("item", "data.py", 5)),
    )
    look = Frames(15.0, 1, "py-spy", (Frame("_try_get_data", "torch/utils/data/dataloader.py", 7),), state="S")
    for others, said in (
        ((), ""),
        ((("worker 7", idle),), ""),
        ((("worker 7", idle), ("worker 8", busy)), "shards.py:12"),
    ):
        job.rank(1).snapshots["py-spy"] = Snapshot(replace(look, others=others), 1, 10.0, steady=True)
        answer = told(found("lonely-eval"), job)["quick_answer"]
        assert answer.endswith(f"A DataLoader worker of rank 1 is in read ({said})." if said else "wait.")


def test_texts_name_the_ranks_of_a_role(job: JobState) -> None:
    assert told(found("lonely-eval"), job)["quick_answer"] == "Rank 1 evaluates, ranks 0,2-3 wait."


def test_ranks_that_are_not_known_are_called_unknown(job: JobState) -> None:
    said = told(found(initiating=(), collateral=()), job)
    assert said["quick_answer"].startswith("Rank unknown read")
    assert said["summary"].startswith("A file is broken: no rank can be named as the one that started it of 4.")


def test_the_summary_says_who_when_and_how_long(job: JobState) -> None:
    assert told(found(), job)["summary"] == (
        "A file is broken: rank 1 of 4. Ranks 0,2 only wait, or fail as a consequence. Last step seen: 42. "
        "No progress for 12 s."
    )
    alone = told(found(collateral=(2,)), job, found_at_start=True)["summary"]
    assert "Rank 2 only waits, or fails as a consequence." in alone
    assert alone.endswith("Found in the logs when denpexd started.")


def test_the_verdict_has_its_bookkeeping(job: JobState) -> None:
    said = told(found(), job, now=20.00049, revision=3)
    assert (said["key"], said["job"], said["attempt"], said["revision"]) == ("run-7-a1-1-x", "run-7", 1, 3)
    assert (said["opened_t"], said["updated_t"], said["event"], said["state"]) == (12.0, 20.0, "opened", "open")
    assert (said["initiating_ranks"], said["collateral_ranks"], said["unheard_ranks"]) == ([1], [0, 2], [3])
    assert (said["nodes"], said["step"]) == ({"1": "n1"}, 42)
    assert said["alternatives"] == [{"failure": "any-error", "why_not": "explained"}]


def test_the_verdict_is_json_and_as_published(job: JobState) -> None:
    said = told(found(), job)
    assert json.loads(json.dumps(said)) == said
    schema = json.loads((ROOT / "docs" / "verdict.schema.json").read_text())
    jsonschema.validate(said, schema)


def test_the_same_words_are_quoted_once_and_no_meaning_more_than_four_times(job: JobState) -> None:
    same = [evidence() for _ in range(3)]
    many = [evidence(rank, text="lost", means="it lost a peer") for rank in range(9)]
    quoted = told(found("bad-file", *same, *many), job)["evidence"]
    assert [(q["rank"], q["text"]) for q in quoted] == [(1, "bad magic"), *((r, "lost") for r in range(4))]


def test_a_line_that_means_several_things_is_quoted_once(job: JobState) -> None:
    twice = [evidence(means="it is late"), evidence(means="it waits"), evidence(means="it waits"), evidence(rank=2)]
    assert [(e["rank"], e["means"]) for e in told(found("bad-file", *twice), job)["evidence"]] == [
        (1, "it is late; it waits"),
        (2, "the file cannot be read"),
    ]


def test_an_exception_and_the_line_that_tells_of_it_are_quoted_once_with_the_longer_text(job: JobState) -> None:
    line = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB"
    for texts in ((line, line[24:]), (line[24:], line)):
        both = [evidence(text=text, means=f"it means {text[:5]}") for text in texts]
        (quoted,) = told(found("bad-file", *both), job)["evidence"]
        assert quoted["text"] == line
        assert quoted["means"] == f"it means {texts[0][:5]}; it means {texts[1][:5]}"


def test_the_number_and_length_of_quotes_are_bounded(job: JobState) -> None:
    many = [evidence(text=f"{n}" + "x" * 9999, means=f"it means {n}") for n in range(40)]
    quoted = told(found("bad-file", *many), job)["evidence"]
    assert len(quoted) == MAX_EVIDENCE
    assert {len(q["text"]) for q in quoted} == {MAX_TEXT}
    assert quoted[0].keys() == {"rank", "source", "offset", "t", "text", "means"}


def test_what_is_missing_is_asked_for_only_while_the_verdict_is_not_confirmed(job: JobState) -> None:
    asked = missing(found("any-error"), job, [], lambda text: text.replace("{initiating}", "1"))
    assert asked == [{"fact": "what rank 1 printed", "how": "look at its log"}]
    assert missing(found("any-error", certainty="confirmed"), job, [], str) == []


def test_unheard_ranks_are_asked_for_where_sets_of_ranks_matter(job: JobState) -> None:
    asked = told(found("lonely-eval"), job)["missing"]
    (wanted,) = [one for one in asked if one["fact"].startswith("anything from rank 3")]
    assert "grep -qxE 'RANK=(3)' && py-spy dump" in wanted["how"]
    assert told(found("bad-file"), job)["missing"] == []


def test_evidence_that_could_not_be_had_is_told_once_with_its_remedy(job: JobState) -> None:
    for rank in range(3):
        job.rank(rank).states["unavailable stacks"] = evidence(rank, text="not permitted", means="grant SYS_PTRACE")
    assert told(found("bad-file"), job)["missing"] == [
        {"fact": "evidence that could not be collected: not permitted", "how": "grant SYS_PTRACE"}
    ]


def test_a_launcher_that_names_another_rank_speaks_against_it_and_is_called_worthless(job: JobState) -> None:
    job.rank(2).states["launcher_root"] = evidence(2)
    hang = found("lonely-eval")
    (said,) = against(hang, job)
    assert "names rank 2 as root cause" in said
    assert "proves nothing in a hang" in said
    assert against(replace(hang, initiating=(2,)), job) == []
    assert against(replace(hang, initiating=()), job) == []
    job.rank(2).reported = evidence(2, text="peer was lost")
    assert against(found(), job) == [
        "the launcher's summary names rank 2 as root cause; it names a rank that lost another"
    ]


def test_a_rank_without_any_trace_is_a_finding_where_it_may_be_the_one(job: JobState) -> None:
    silent = "Rank 3 left no trace: no log line, no stack or dump, no process"
    nobody = found("lonely-eval", initiating=())
    assert f"{silent}; it may be what the others wait for." in told(nobody, job)["summary"]
    assert f"{silent}." in told(replace(nobody, initiating=(3,)), job)["summary"]
    assert "no trace" not in told(found("lonely-eval"), job)["summary"]  # another rank is named
    assert "no trace" not in told(found("bad-file"), job)["summary"]
    job.rank(3).looked_at = True
    assert "no trace" not in told(nobody, job)["summary"]


def test_ranks_are_no_finding_where_most_of_them_never_print(job: JobState) -> None:
    for rank in (1, 2):
        job.rank(rank).printed = False
    said = told(found("lonely-eval", initiating=()), job)
    assert "no trace" not in said["summary"]
    assert said["unheard_ranks"] == [1, 2, 3]


def test_an_initiator_that_had_reported_a_lost_peer_speaks_against_it(job: JobState) -> None:
    job.rank(1).reported = evidence(1, t=8.0, text="peer was lost")
    assert against(found(), job) == ["rank 1 had already reported a failed peer: peer was lost"]
    job.rank(1).states["timeout"] = job.rank(1).reported  # as every rank does that waited too long
    assert against(found(), job) == []
    del job.rank(1).states["timeout"]
    job.rank(1).reported = evidence(1, t=9.5)
    assert against(found(), job) == []


def test_a_hang_is_a_hang_also_when_it_ended_in_timeouts(job: JobState) -> None:
    assert is_hang(found("lonely-eval"), job)
    assert not is_hang(found("bad-file"), job)
    waited = replace(TINY.rules["lonely-eval"], entry=TINY.rules["bad-file"].entry)
    assert is_hang(replace(found(), rule=waited), job)  # all stand, nobody failed or lost anybody
    job.rank(2).reported = evidence(2)
    assert not is_hang(replace(found(), rule=waited), job)
    job.rank(0).states["timeout"] = evidence(0)
    assert is_hang(replace(found(), rule=waited), job)
    assert not is_hang(found("drift"), job)


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ((3,), "Rank 3 was killed while rank 3 reaches rank 3; the GPU of rank 3 is full. Rank 3 as the first raises."),
        (
            (0, 1, 3),
            "Ranks 0-1,3 were killed while ranks 0-1,3 reach ranks 0-1,3; the GPU of ranks 0-1,3 is full. "
            "Ranks 0-1,3 as the first raises.",
        ),
    ],
)
def test_a_text_for_one_rank_reads_well_of_several(job: JobState, ranks: tuple[int, ...], text: str) -> None:
    one = "Rank 3 was killed while rank 3 reaches rank 3; the GPU of rank 3 is full. Rank 3 as the first raises."
    rule = TINY.rules["bad-file"]
    entry = replace(rule.entry, quick_answer=one.replace("3", "{initiating}"))
    said = told(replace(found(), rule=replace(rule, entry=entry), initiating=ranks), job)
    assert said["quick_answer"] == text
