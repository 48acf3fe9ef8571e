"""Flight Recorder dumps of simulated jobs with one injected fault: the fault is found, or nobody is named.

The generator runs N ranks that share several process groups. An operation completes when it is the next one of every
member and all call the same; what is left open when nothing moves any more is what their dumps show.
"""

import json
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from denpexd.core.flight import Dump
from denpexd.core.flight_verdict import Verdict, analyse
from denpexd.evidence.flight_child import Lean, decode
from denpexd.evidence.flight_format import to_dump

OPS = ("all_reduce", "_all_gather_base", "_reduce_scatter_base", "broadcast", "all_to_all")
WAYS = ("2.0 pickle", "2.4 pickle", "2.4 json", "2.9 pickle", "2.10 json", "2.10 gloo json")


@dataclass(frozen=True)
class Call:
    group: str
    op: str
    size: int


@dataclass(frozen=True)
class Job:
    """`fault`: none, absent (stops there), swapped (two calls of a group), size, device (its calls never complete)."""

    world: int
    groups: Mapping[str, tuple[int, ...]]
    program: tuple[Call, ...]
    fault: str
    culprit: int
    steps: int = 6
    ahead: int = 3
    ring: int = 64
    plans: dict[int, list[tuple[Call, int]]] = field(default_factory=dict)

    def run(self) -> dict[int, tuple[int, int]]:
        """By rank: how many of its calls were entered, and how many completed."""
        done = dict.fromkeys(range(self.world), 0)
        stop = self.stop()
        moved = True
        while moved:
            moved = False
            for rank in range(self.world):
                if done[rank] < len(self.plans[rank]) and self.meets(rank, done, stop):
                    call, _ = self.plans[rank][done[rank]]
                    for member in self.groups[call.group]:
                        done[member] += 1
                    moved = True
        shown = dict(done)
        if self.fault == "device":
            shown[self.culprit] = min(shown[self.culprit], stop)
        limit = {r: len(p) for r, p in self.plans.items()}
        if self.fault == "absent":
            limit[self.culprit] = stop
        return {r: (min(done[r] + self.ahead, limit[r]), shown[r]) for r in done}

    def stop(self) -> int:
        """Where the culprit's plan goes wrong: the middle of its last step but one."""
        own = len(self.plans[self.culprit]) // self.steps
        return own * (self.steps - 2) + own // 2

    def meets(self, rank: int, done: dict[int, int], stop: int) -> bool:
        """All members of the next call of this rank have it next, and call the same."""
        call, seq = self.plans[rank][done[rank]]
        for member in self.groups[call.group]:
            late = member == self.culprit and (
                (self.fault == "absent" and done[member] >= stop)
                or (self.fault == "device" and done[member] >= stop + 2)
            )
            if late or done[member] >= len(self.plans[member]) or self.plans[member][done[member]] != (call, seq):
                return False
        return True


def planned(job: Job) -> Job:
    """The job with what each rank calls, numbered within each group."""
    plans = {}
    for rank in range(job.world):
        mine = [call for _ in range(job.steps) for call in job.program if rank in job.groups[call.group]]
        plans[rank] = mine
    job = replace(job, plans={r: [(c, 0) for c in p] for r, p in plans.items()})
    at, own = job.stop(), plans[job.culprit]
    if job.fault == "swapped":
        other = next((i for i in range(at + 1, len(own)) if own[i].group == own[at].group and own[i] != own[at]), at)
        own[at], own[other] = own[other], own[at]
    if job.fault == "size":
        own[at] = replace(own[at], size=own[at].size + 8)
    for rank, calls in plans.items():
        numbers: dict[str, int] = {}
        for place, call in enumerate(calls):
            numbers[call.group] = numbers.get(call.group, 0) + 1
            job.plans[rank][place] = (call, numbers[call.group])
    return job


def written(job: Job, rank: int, entered: int, done: int, way: str) -> bytes:
    """The dump as that version of torch writes it."""
    version, kind = way.split()[0], way.split()[-1]
    backend = "gloo" if "gloo" in way else "nccl"
    own = {name: members for name, members in job.groups.items() if rank in members}
    ids = {name: number for number, name in enumerate(own)}
    entries = [
        entry(job, rank, place, place < done, backend, ids, is_json=kind == "json")
        for place in range(max(0, entered - job.ring), entered)
    ]
    number: Any = str if kind == "json" else int
    status = {}
    for name in own:
        seqs = [(place, seq) for place, (call, seq) in enumerate(job.plans[rank]) if call.group == name]
        last = [max([s for p, s in seqs if p < limit], default=-1) for limit in (entered, done)]
        keys = ("last_enqueued_collective", "last_started_collective", "last_completed_collective")
        status[number(ids[name])] = dict(zip(keys, (number(last[0]), number(-1), number(last[1])), strict=True))
    document: dict[str, Any] = {
        "version": version,
        "pg_config": {n: {"name": n, "desc": f"GROUP_{n}", "ranks": str(list(m))} for n, m in own.items()},
        "entries": entries,
    }
    if version != "2.0":
        document["pg_status"] = status
    if kind == "json":
        return json.dumps(document).encode()
    return pickle.dumps(document, protocol=2)


def entry(
    job: Job, rank: int, place: int, done: bool, backend: str, ids: Mapping[str, int], *, is_json: bool
) -> dict[str, Any]:
    call, seq = job.plans[rank][place]
    group = (call.group, f"GROUP_{call.group}")
    uneven = call.size + rank if call.op == "all_to_all" else call.size
    return {
        "record_id": place,
        "pg_id": ids[call.group],
        "process_group": list(group) if is_json else group,
        "collective_seq_id": seq,
        "p2p_seq_id": 0,
        "op_id": seq,
        "profiling_name": f"{backend}:{call.op}",
        "time_created_ns": 1_700_000_000_000_000_000 + place,
        "input_sizes": [[uneven]],
        "input_dtypes": ["Float"],
        "output_sizes": [[uneven]],
        "output_dtypes": ["Float"],
        "state": "completed" if done and backend == "nccl" else "scheduled",
        "time_discovered_completed_ns": None,
        "retired": done,
        "is_p2p": False,
    }


@st.composite
def jobs(draw: st.DrawFn, faults: tuple[str, ...] = ("absent", "swapped", "size", "device")) -> Job:
    """Four to eight ranks in the world, in halves and in pairs across the halves."""
    half = draw(st.integers(2, 4))
    world = 2 * half
    groups = {"0": tuple(range(world)), "1": tuple(range(half)), "2": tuple(range(half, world))}
    groups |= {str(3 + i): (i, i + half) for i in range(half)}
    layers = st.sampled_from([("0",), ("1", "2"), tuple(str(3 + i) for i in range(half))])
    program: list[Call] = []
    for _ in range(draw(st.integers(2, 5))):
        op, size = draw(st.sampled_from(OPS)), draw(st.integers(1, 9)) * 16
        program += [Call(group, op, size) for group in draw(layers)]
    program.append(Call("0", "all_reduce", 1000))
    return planned(
        Job(
            world,
            groups,
            tuple(program),
            draw(st.sampled_from(faults)),
            draw(st.integers(0, world - 1)),
            ahead=draw(st.integers(1, 6)),
            ring=draw(st.sampled_from([12, 64])),
        )
    )


def dumps_of(job: Job, way: str) -> dict[int, Dump]:
    places = job.run()
    found = {}
    for rank, (entered, done) in places.items():
        lean = Lean(256).document(decode(written(job, rank, entered, done, way)))
        found[rank] = to_dump(lean, rank)
    return found


def right_or_open(job: Job, verdict: Verdict) -> bool:
    return verdict.initiating in ((), (job.culprit,)) and (
        bool(verdict.initiating) or verdict.certainty == "undetermined"
    )


@given(jobs(), st.sampled_from(WAYS))
def test_the_culprit_or_nobody_is_named(job: Job, way: str) -> None:
    verdict = analyse(dumps_of(job, way), job.world).verdict
    assert right_or_open(job, verdict), verdict


@given(jobs(faults=("absent",)), st.sampled_from(WAYS))
def test_a_rank_that_has_not_come_is_named(job: Job, way: str) -> None:
    verdict = analyse(dumps_of(job, way), job.world).verdict
    waited_in_pairs_only = verdict.finding == "alone"
    assert verdict.initiating == (job.culprit,) or waited_in_pairs_only, verdict


@given(jobs(), st.sampled_from(WAYS), st.data())
def test_one_dump_less_names_nobody_else(job: Job, way: str, data: st.DataObject) -> None:
    dumps = dumps_of(job, way)
    lost = data.draw(st.sampled_from(sorted(dumps)))
    kept = {rank: dump for rank, dump in dumps.items() if rank != lost}
    verdict = analyse(kept, job.world).verdict
    assert right_or_open(job, verdict), verdict


@given(jobs(faults=("none",)), st.sampled_from(WAYS))
def test_a_job_that_is_done_blames_nobody(job: Job, way: str) -> None:
    verdict = analyse(dumps_of(job, way), job.world).verdict
    assert (verdict.finding, verdict.initiating) == ("none", ())


@given(jobs(), st.sampled_from(WAYS), st.sampled_from(WAYS))
def test_every_version_says_the_same(job: Job, one: str, other: str) -> None:
    first, second = (analyse(dumps_of(job, way), job.world).verdict for way in (one, other))
    assert (first.finding, first.initiating) == (second.finding, second.initiating)


@given(jobs(), st.integers(1, 7))
def test_numbering_the_ranks_otherwise_renames_the_verdict(job: Job, by: int) -> None:
    dumps = dumps_of(job, "2.9 pickle")

    def moved(rank: int) -> int:
        return (rank + by) % job.world

    renamed = {
        moved(rank): replace(
            dump, rank=moved(rank), members={n: tuple(sorted(map(moved, m))) for n, m in dump.members.items()}
        )
        for rank, dump in dumps.items()
    }
    before, after = analyse(dumps, job.world).verdict, analyse(renamed, job.world).verdict
    assert after.initiating == tuple(sorted(map(moved, before.initiating)))
    assert after.finding == before.finding
