"""A daemon that stands still: a View and a Reference of fixed values, for everything that asks the web side."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from denpexd.errors import RequestError, SourceError
from denpexd.web.view import (
    Article,
    Chapter,
    Decided,
    Entry,
    JobView,
    Pace,
    PackView,
    Point,
    RankView,
    Stats,
    Told,
    Verdict,
)

T = 1_767_225_600.0  # when it all happened: 2026-01-01 00:00 UTC


def quote(rank: int, t: float, text: str, means: str, offset: int | None = 4711) -> dict[str, object]:
    return {"rank": rank, "source": f"rank{rank}.log", "offset": offset, "t": t, "text": text, "means": means}


def verdict(key: str = "run-7-3f2a", **other: object) -> dict[str, object]:
    """One that has everything a verdict can have."""
    return {
        "key": key,
        "job": "run-7",
        "attempt": 1,
        "failure": "syncbn-eval-rank0",
        "title": "Rank 0 evaluates alone through SyncBatchNorm",
        "category": "hang",
        "severity": "critical",
        "certainty": "confirmed",
        "state": "open",
        "opened_t": T + 62.0,
        "updated_t": T + 75.0,
        "revision": 2,
        "event": "updated",
        "aliases": [],
        "domain": "code",
        "initiating_ranks": [0],
        "collateral_ranks": [1, 2, 3],
        "unheard_ranks": [],
        "nodes": {"0": "gpu-17", "1": "gpu-17", "2": "gpu-18", "3": "gpu-18"},
        "step": 480,
        "hang": True,
        "quick_answer": "Let every rank run the evaluation, or evaluate model.module under rank 0 only.",
        "summary": "Rank 0 waits in the statistics exchange of SyncBatchNorm; ranks 1-3 wait in a barrier.",
        "evidence": [
            quote(0, T + 0.5, "evaluating on rank 0 ...", "rank 0 entered evaluation"),
            quote(1, T + 2.0, "step 480 done, waiting", "rank 1 finished the step"),
            quote(0, T + 31.0, "all_reduce <- forward <- SyncBatchNorm.forward", "rank 0 stands in the exchange"),
            quote(2, T + 32.0, "barrier <- main", "rank 2 waits for all ranks"),
            quote(3, T + 32.5, "barrier <- main", "rank 3 waits for all ranks", None),
        ],
        "stacks": [
            {
                "ranks": [0],
                "at": "torch/nn/modules/_functions.py:forward",
                "under": "train.py:88 evaluate",
                "state": "",
            },
            {"ranks": [1, 2, 3], "at": "distributed_c10d.py:barrier", "under": "train.py:120 main", "state": ""},
        ],
        "changed": None,
        "against": ["The launcher's summary names rank 2 as root cause; it names who was killed first."],
        "missing": [{"fact": "the stack of rank 3 a second time", "how": "py-spy dump --pid 4242"}],
        "alternatives": [{"failure": "slow-eval", "why_not": "two equal snapshots five seconds apart"}],
        "root_cause": "SyncBatchNorm exchanges statistics with all ranks in every forward pass in training mode.",
        "remediation": [
            {"do": "Stop the job.", "risk": "disruptive", "command": "scancel 4711"},
            {"do": "Evaluate on all ranks.", "risk": "restart", "command": "torchrun --nproc-per-node 8 train.py"},
        ],
        "fallback": "Convert back to BatchNorm.",
        "mitigation": "",
        "verification": "torchrun --nproc-per-node 2 train.py --max-steps 3",
        "prevention": "A test with two processes that evaluates once.",
        "references": ["https://pytorch.org/docs/stable/distributed.html", "javascript:alert(1)"],
        "related": ["barrier-mismatch"],
        "resume_safe": "yes: the weights were not touched",
    } | other


def job(name: str = "run-7", ranks: int = 4) -> JobView:
    """A job whose first rank is silent and whose others wait for it."""
    return JobView(
        job=name,
        attempt=1,
        step=480,
        step_seconds=0.5,
        stall_seconds=125.0,
        phase="eval",
        world_size=ranks,
        ranks=[
            RankView(0, "silent", 478, "eval", 120.0, "gpu-17", 4242),
            *(RankView(r, "waiting", 480, "train", 119.0, f"gpu-{17 + r // 2}", 4242 + r) for r in range(1, ranks)),
        ],
    )


ENTRY = Entry(
    "syncbn-eval-rank0",
    "Rank 0 evaluates alone through SyncBatchNorm",
    "hang",
    "critical",
    "code",
    "Let every rank run the evaluation.",
)
ARTICLE = Article(
    ENTRY,
    [("also", "syncbn-hang")],
    [
        Chapter("What to do", [Point("Evaluate on all ranks.", "restart", "torchrun train.py", "")], numbered=True),
        Chapter("Code: plain DDP", [Point("", "", "", "model.eval()")], numbered=False),
    ],
    ["barrier-mismatch"],
    ["https://pytorch.org/docs/stable/distributed.html"],
    {"id": ENTRY.id, "title": ENTRY.title, "quick_answer": ENTRY.quick_answer, "remediation": []},
)


@dataclass
class Stand:
    """What a test may change of it, it changes; `read`: the logs that were pasted."""

    verdicts: list[dict[str, Any]] = field(default_factory=list)
    job_views: list[JobView] = field(default_factory=list)
    counts: Stats = field(default_factory=lambda: Stats(engine="re2", lines=1234567))
    is_ready: tuple[bool, str] = (True, "")
    is_healthy: tuple[bool, str] = (True, "")
    paces: dict[str, list[Pace]] = field(default_factory=dict)
    messages: list[Told] = field(default_factory=list)
    read: list[bytes] = field(default_factory=list)
    silenced: list[dict[str, Any]] = field(default_factory=list)

    def incidents(self, state: str | None, limit: int) -> Sequence[Verdict]:
        return [v for v in self.verdicts if state in (None, v["state"])][:limit]

    def incident(self, key: str) -> Verdict | None:
        return next((v for v in self.verdicts if v["key"] == key), None)

    def told(self, key: str) -> Sequence[Told]:
        return self.messages

    def decisions(self, key: str) -> Sequence[Decided]:
        return [Decided(T, "pager", "drop", "severity", "severity is medium", "", 1)]

    def jobs(self) -> Sequence[JobView]:
        return self.job_views

    def job(self, name: str) -> JobView | None:
        return next((job for job in self.job_views if job.job == name), None)

    def pace(self, job: str) -> Sequence[Pace]:
        return self.paces.get(job, [])

    async def recorded(self, job: str) -> bytes | None:
        return b"\xfd7zXZ" if self.job(job) is not None else None

    def packs(self) -> Sequence[PackView]:
        shipped = PackView(name="shipped", kind="shipped", folder="/usr/share/denpexd/rules", rules=174, signals=12)
        mine = PackView(name="mine", kind="folder", folder="/rules", rules=3, errors=["/rules/x.yaml:1:1: wrong"])
        return [shipped, mine]

    def stats(self) -> Stats:
        return self.counts

    def ready(self) -> tuple[bool, str]:
        return self.is_ready

    def healthy(self) -> tuple[bool, str]:
        return self.is_healthy

    def set_rank(self, name: str, at: int, rank: RankView) -> None:
        """One rank of a job is another from now on."""
        self.job_views = [
            replace(job, ranks=[*job.ranks[:at], rank, *job.ranks[at + 1 :]]) if job.job == name else job
            for job in self.job_views
        ]

    # --- what people do ---------------------------------------------------------------------------------------------

    def silences(self, state: str | None) -> Sequence[dict[str, Any]]:
        return [one for one in self.silenced if state in (None, one["state"])]

    def fixes(self) -> Sequence[dict[str, Any]]:
        said = {"key": "old", "job": "run-7", "failure": "syncbn-eval-rank0", "t": T, "by": "anna", "note": "all ranks"}
        watched = {"observed_seconds": 3600, "window_seconds": 86400.0, "state": "pending"}
        return [said | watched | {"decided_t": None, "again": None}]

    async def history(self, asked: Mapping[str, str]) -> dict[str, Any]:
        return {"incidents": [v for v in self.verdicts if v["job"] == asked.get("job", v["job"])], "next": None}

    async def add_silence(self, body: Mapping[str, Any]) -> dict[str, Any]:
        said = {name: body.get(name, "") for name in ("by", "comment")}
        times = {"starts_t": T, "ends_t": T + 7200.0, "created_t": T}
        one = {"id": f"s{len(self.silenced)}", "match": body["match"], **times, **said, "state": "active"}
        self.silenced.append(one)
        return one

    async def expire_silence(self, id_: str) -> dict[str, Any]:
        for one in self.silenced:
            if one["id"] == id_:
                one["state"] = "expired"
                return one
        raise RequestError(404, "no silence has this id; /api/v1/silences lists them")

    async def acknowledge(self, key: str, body: Mapping[str, Any]) -> dict[str, Any]:
        for one in self.verdicts:
            if one["key"] == key:
                one["acknowledged"] = {"by": body.get("by", ""), "note": body.get("note", ""), "t": T, "closed": False}
                one["acknowledged"]["closed"] = bool(body.get("close"))
                one["state"] = "closed" if body.get("close") else one["state"]
                return one
        raise RequestError(404, "no incident has this key; /api/v1/incidents lists those that are kept")

    # --- the reference ----------------------------------------------------------------------------------------------

    def entries(self) -> Sequence[Entry]:
        return [ENTRY, ENTRY._replace(id="oom-killed", title="The kernel killed a rank", category="memory")]

    def article(self, failure: str) -> Article | None:
        return ARTICLE if failure == ENTRY.id else None

    def search(self, text: str) -> Sequence[Entry]:
        return [ENTRY._replace(quotes=[(text[:80], "a line that proves it")])] if "SyncBatchNorm" in text else []

    async def diagnose(self, log: bytes) -> Sequence[Verdict]:
        if b"\0" in log:
            raise SourceError("this is no text")
        self.read.append(log)
        return [verdict("pasted")] if b"SyncBatchNorm" in log else []


def stand() -> Stand:
    """One job that hangs, one that trains, an open incident and a closed one."""
    fine = JobView("llama-70b", 0, 12_000, 1.2, 0.0, "train", 8, [RankView(r, "running", 12_000) for r in range(8)])
    older = verdict("old", job="llama-70b", state="closed", event="closed", updated_t=T - 3600.0)
    return Stand([verdict(), older], [job(), fine])
