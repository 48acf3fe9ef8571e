"""How each job was started, kept from run to run, so that an incident can say what changed since the last good one.

A run is good once it has made progress; only good runs are kept, a few of each job. The facts go to the core as events
(`launch`, `launch_before`), so a replay knows them too. Looking is done on a thread of its own with a time limit: the
working folder of a job may lie on a mount that hangs, and nobody waits for it.
"""

import asyncio
import contextlib
import hashlib
import hmac
import json
import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from denpexd.clock import Clock, iso
from denpexd.core.events import UNKNOWN_RANK, Event, Fact
from denpexd.core.launch import HIDDEN, known
from denpexd.core.numbers import ranks_text
from denpexd.core.records import Facts
from denpexd.core.state import JobState
from denpexd.errors import SourceError
from denpexd.evidence.fingerprint import Fingerprints
from denpexd.evidence.git_head import read_file
from denpexd.evidence.procs import RankProcess
from denpexd.ingest.remote import RemoteReader
from denpexd.notify.redact import redact
from denpexd.shelf import Shelf

log = logging.getLogger(__name__)

FOLDER = "launches"
GOOD = 3  # movements after which a run has made progress
OFTEN = 10.0  # seconds between two looks at whether more is known of a run that is kept
LONELY = 5.0  # seconds until a command counts as one without ranks
AGAIN = (0.0, 20.0, 120.0)  # seconds after a rank is met: an interpreter loads its libraries one after another
_RUNS, _MOST_JOBS = 3, 200
_ROOM, _AGE = 32 << 20, 180 * 86400.0
_LARGEST = 8 << 20
_SECRET = re.compile(r"TOKEN|SECRET|PASS|KEY|CREDENTIAL|AUTH|COOKIE|SESSION|DSN|PRIVATE|SIGNATURE|WEBHOOK")
_UNNAMED = re.compile(r"(exec|stdin)-\d{8}-\d{6}")
_PLAIN = re.compile(r"[^A-Za-z0-9._-]+")

Rows = list[dict[str, Any]]  # of ranks that were started alike: `ranks` as text, `facts`


class _Process(NamedTuple):
    """What is needed of a process: where to look, and whether it is still the same."""

    pid: int
    start: int
    node: str


@dataclass(slots=True)
class _Run:
    """One start of one job, as far as it is known. `due`: when that is compared with what is kept next."""

    attempt: int
    key: str = ""
    ident: str = ""
    pids: dict[int, tuple[int, int]] = field(default_factory=dict)
    met: float = 0.0
    looks: int = 0
    told: Rows = field(default_factory=list)
    before_told: bool = False
    saved: Rows = field(default_factory=list)
    moves: int = 0  # of the job when this run began
    due: float = float("-inf")


class Launches:
    """The starts of the jobs of one daemon. `ranks`: the processes of the job that is watched on this node.

    `root`: the command beside which we run; where it has no ranks, it is looked at itself.
    """

    def __init__(
        self,
        folder: Path,
        clock: Clock,
        ranks: Callable[[], Mapping[int, RankProcess]],
        *,
        root: int | None = None,
    ) -> None:
        self._shelf = Shelf(folder / FOLDER, _ROOM, _AGE)
        self._clock, self._ranks, self._root = clock, ranks, root
        self._began: float | None = None  # with looking for ranks: a daemon may take long to be up
        self._looker, self._thread = Fingerprints(), RemoteReader(clock)
        self._runs: dict[str, _Run] = {}
        self._work: asyncio.Task[list[Event]] | None = None
        self._of = ""
        self._secret = b""

    def tick(self, jobs: Iterable[JobState], local: str | None) -> list[tuple[str, list[Event]]]:
        """To be called about once a second: what was learned, by job. `local`: the job whose ranks `ranks` are."""
        told: list[tuple[str, list[Event]]] = []
        if self._work is not None and self._work.done():
            with contextlib.suppress(OSError, SourceError, asyncio.CancelledError):
                told.append((self._of, self._work.result()))
            self._work = None
        for job in jobs:
            run = self._runs.get(job.job)
            if run is None or run.attempt != job.attempt:
                run = self._runs[job.job] = _Run(job.attempt, moves=job.moves)
            if self._work is None:
                work = self._next(run, job, self._processes() if job.job == local else {})
                if work is not None:
                    self._of, self._work = job.job, asyncio.create_task(self._do(work), name="launch")
        while len(self._runs) > _MOST_JOBS:
            del self._runs[next(iter(self._runs))]
        return [(job_name, events) for job_name, events in told if events]

    def _processes(self) -> Mapping[int, _Process]:
        ranks = {rank: _Process(p.pid, p.start, p.node) for rank, p in self._ranks().items()}
        self._began = self._clock.now() if self._began is None else self._began
        alone = not ranks and self._root is not None and self._clock.now() > self._began + LONELY
        return {0: _Process(self._root or 0, 0, os.uname().nodename)} if alone else ranks

    def about(self, job: JobState) -> dict[str, object]:
        """All that is known of how it was started, for a bundle."""
        launch = job.launch
        return {"now": _rows(known(job)), "last_good": {**launch.about, "ranks": _rows(launch.before)}}

    async def finish(self, jobs: Iterable[JobState]) -> None:
        """Nothing more will be seen: what is known of runs that made progress is kept."""
        with contextlib.suppress(OSError, SourceError):
            if self._work is not None:
                await self._work
            for job in jobs:
                run = self._runs.get(job.job)
                if run is not None and run.attempt == job.attempt and (work := self._progress(run, job)) is not None:
                    await self._do(work)

    def close(self) -> None:
        """Let the thread end; one that hangs is abandoned."""
        self._thread.close()

    async def _do(self, work: Callable[[], list[Event]]) -> list[Event]:
        return await self._thread.call("(launches)", work)

    def _next(self, run: _Run, job: JobState, ranks: Mapping[int, _Process]) -> Callable[[], list[Event]] | None:
        """What is to be done now, if anything."""
        now = self._clock.now()
        pids = {rank: (process.pid, process.start) for rank, process in ranks.items()}
        if pids and pids != run.pids:
            run.pids, run.met, run.looks = pids, now, 0
        if run.pids and run.looks < len(AGAIN) and now >= run.met + AGAIN[run.looks]:
            run.looks += 1
            first = ranks.get(min(run.pids))
            run.ident = run.ident or (f"{first.node}-{first.pid}-{first.start}" if first is not None else "")
            return lambda: self._look(run, job.job, dict(ranks))
        if job.moves - run.moves < GOOD or now < run.due:  # to compare what ten thousand ranks began with takes a while
            return None
        run.due = now + OFTEN
        return self._progress(run, job)

    def _progress(self, run: _Run, job: JobState) -> Callable[[], list[Event]] | None:
        """To keep a run that has made progress, and anew when more is known of it."""
        if job.moves - run.moves >= GOOD:
            facts = self._whole(job)
            if facts and facts != run.saved:
                run.saved = facts
                return lambda: self._save(run, job.job, facts)
        return None

    @staticmethod
    def _whole(job: JobState) -> Rows:
        """All facts of a run, with its nodes; those that only the log told are there too."""
        nodes = ",".join(sorted({state.node for state in job.ranks.values() if state.node}))
        found = known(job)
        return _rows({rank: {**facts, **({"nodes": nodes} if nodes else {})} for rank, facts in found.items()})

    # --- on the thread ----------------------------------------------------------------------------------------------

    def _look(self, run: _Run, job: str, ranks: Mapping[int, _Process]) -> list[Event]:
        """Look at the ranks; what is new of them, and the last good run if it was not told yet."""
        found = {rank: facts for rank, process in ranks.items() if (facts := self._looker.of(process.pid))}
        nodes = ",".join(sorted({process.node for process in ranks.values()}))
        clean = {rank: {**self._masked(facts), "nodes": nodes} for rank, facts in found.items()}
        events: list[Event] = []
        rows = _rows(clean)
        if rows and rows != run.told:
            run.told = rows
            events += self._events("launch", rows)
        return events + self._before(run, job, found)

    def _before(self, run: _Run, job: str, found: Mapping[int, Facts]) -> list[Event]:
        if run.before_told or not (found or not _UNNAMED.fullmatch(job)):
            return []
        run.before_told = True
        run.key = _key(job, found)
        last = next((one for one in self._kept(run.key) if one.get("id") != run.ident), None)
        if last is None:
            return []
        about = {"attempt": str(last.get("attempt", "")), "at": str(last.get("at", ""))}
        return self._events("launch_before", last["ranks"], about)

    def _events(self, name: str, rows: Rows, about: Mapping[str, str] | None = None) -> list[Event]:
        now = self._clock.now()
        return [
            Fact(now, UNKNOWN_RANK, name, {**row["facts"], **(about or {}), "ranks": row["ranks"]}, source="process")
            for row in rows
        ]

    def _save(self, run: _Run, job: str, rows: Rows) -> list[Event]:
        """The run has made progress: from now on it is the last good one."""
        events = self._before(run, job, {})  # a job without processes to look at: before it is written over
        run.key = run.key or _key(job, {})
        run.ident = run.ident or f"{job}-{run.attempt}-{self._clock.wall():.0f}"
        this = {"id": run.ident, "attempt": run.attempt, "at": iso(self._clock.wall())[:19] + "Z", "ranks": rows}
        runs = [this, *(one for one in self._kept(run.key) if one.get("id") != run.ident)][:_RUNS]
        text = json.dumps({"job": redact(job)[0], "runs": runs}, ensure_ascii=False)
        try:
            self._shelf.put(f"{run.key}.json", text.encode("utf-8", "replace"), self._clock.wall())
        except OSError as error:
            log.debug("how %s was started cannot be kept: %s", job, error)
        return events

    def _kept(self, key: str) -> list[dict[str, Any]]:
        """The good runs that are kept of a job, newest first; a damaged file counts as none."""
        try:
            content = json.loads(read_file(str(self._shelf.folder / f"{key}.json"), _LARGEST))
            return [_valid(one) for one in content["runs"]]
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return []

    def _masked(self, facts: Facts) -> dict[str, str]:
        """Values that may be secret as keyed hashes: two runs can be compared, and nothing can be read."""
        clean: dict[str, str] = {}
        for name, value in facts.items():
            hidden, found = redact(value)
            if name.startswith("env.") and (found or _SECRET.search(name)):
                digest = hmac.new(self._key_of_ours(), value.encode("utf-8", "surrogateescape"), hashlib.sha256)
                hidden = f"{HIDDEN}{digest.hexdigest()[:12]}"
            clean[name] = hidden
        return clean

    def _key_of_ours(self) -> bytes:
        """The key of the hashes, made once; it never leaves the state folder."""
        path = self._shelf.folder / ".key"
        if not self._secret:
            try:
                self._shelf.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
                with contextlib.suppress(FileExistsError):
                    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
                    with os.fdopen(handle, "wb") as file:
                        file.write(os.urandom(32))
                self._secret = read_file(str(path), 64)
            except OSError:
                self._secret = b""
            self._secret = self._secret if len(self._secret) >= 32 else os.urandom(32)
        return self._secret


def _rows(facts: Mapping[int, Facts]) -> Rows:
    """Ranks that were started alike in one row."""
    groups: dict[str, tuple[list[int], Facts]] = {}
    for rank, each in sorted(facts.items()):
        groups.setdefault(json.dumps(sorted(each.items())), ([], each))[0].append(rank)
    return [{"ranks": ranks_text(ranks), "facts": dict(each)} for ranks, each in groups.values()]


def _key(job: str, found: Mapping[int, Facts]) -> str:
    """The name under which the runs of a job are kept; of a job that nobody named, program and folder are its name."""
    if (unnamed := _UNNAMED.fullmatch(job)) and found:
        first = found[min(found)]
        job = f"{unnamed[1]} {first.get('program', '')} {first.get('cwd', '')}"
    digest = hashlib.sha256(job.encode("utf-8", "surrogateescape")).hexdigest()[:12]
    return f"{_PLAIN.sub('-', redact(job)[0])[:60].strip('-.')}-{digest}"


def _valid(run: Any) -> dict[str, Any]:
    """A kept run as this program writes it; KeyError, TypeError or ValueError for anything else."""
    rows: Rows = []
    for row in run["ranks"]:
        facts = {str(name): str(value) for name, value in row["facts"].items()}
        rows.append({"ranks": str(row["ranks"]), "facts": facts})
    return {"id": str(run["id"]), "attempt": int(run["attempt"]), "at": str(run["at"]), "ranks": rows}
