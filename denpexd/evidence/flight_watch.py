"""Flight Recorder dumps of running ranks: finds the files as they appear, lets ranks write them where they offer it.

PyTorch writes one file a rank when a collective times out, named by TORCH_FR_DUMP_TEMP_FILE (before:
TORCH_NCCL_DEBUG_INFO_TEMP_FILE) and the number of the rank. With TORCH_NCCL_DEBUG_INFO_PIPE_FILE each rank also listens
at a pipe, `<value><rank>.pipe`: a byte in it makes the rank write its file at once, by a thread of its own. That is
asked once a standstill, never on a timer.
"""

import asyncio
import errno
import logging
import os
import stat
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from denpexd.clock import Clock
from denpexd.core.events import Event
from denpexd.errors import EvidenceUnavailable
from denpexd.evidence.flight_read import MOST_OPS, files_in, rank_of, read_files
from denpexd.evidence.procs import Processes, RankProcess

log = logging.getLogger(__name__)

EVERY = 2.0  # seconds between two looks for new files
APART = 600.0  # seconds between two requests to one process
FRESH = 60.0  # a file that claims to be older by more than that, or younger than now, counts as written now
RECENT = 600.0  # seconds before our start: what was written earlier is of another moment, as with log files
PREFIXES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_PIECE = 16  # dumps that are read before they are told
PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
_WANTED = (*PREFIXES, PIPE, "HOME", "XDG_CACHE_HOME")

_Stamp = tuple[int, int, int]


class FlightRecorder:
    """`folder`: where dumps appear, whoever writes them; else only where the environment of the ranks says so.

    `trigger`: ranks that listen at a pipe may be asked to write. Use from one event loop.
    """

    def __init__(
        self,
        processes: Processes,
        clock: Clock,
        *,
        folder: Path | None = None,
        trigger: bool = True,
        proc: Path = Path("/proc"),
    ) -> None:
        self._processes, self._clock, self._folder = processes, clock, folder
        self._trigger, self._proc = trigger, proc
        self._environs: dict[tuple[int, int], dict[str, str]] = {}
        self._seen: dict[Path, _Stamp] = {}
        self._told: dict[Path, _Stamp] = {}
        self._left: dict[Path, _Stamp] = {}
        self._booted: float | None = None
        self._asked: dict[tuple[int, int], float] = {}
        self._next = float("-inf")
        self._began = clock.now()
        self._reading: asyncio.Task[None] | None = None
        self._ready: list[Event] = []

    async def watch(self, here: Sequence[RankProcess]) -> list[Event]:
        """The dumps that were finished and read since the last call; to be called about once a second.

        Reading goes on beside it: a thousand dumps take long, and nothing else waits for them.
        """
        if self._reading is not None and self._reading.done():
            self._reading.result()
            self._reading = None
        if self._reading is None and self._clock.now() >= self._next:
            self._next = self._clock.now() + EVERY
            self._reading = asyncio.create_task(self._read(list(here), self._clock.now()), name="dumps")
        ready, self._ready = self._ready, []
        return ready

    async def settle(self) -> None:
        """Wait until what has been found is read."""
        if self._reading is not None:
            await self._reading

    def close(self) -> None:
        """Read no further."""
        if self._reading is not None:
            self._reading.cancel()

    async def _read(self, here: list[RankProcess], now: float) -> None:
        found = await asyncio.to_thread(self._finished, here)
        names = list(found)
        for begin in range(0, len(names), _PIECE):
            read = await asyncio.to_thread(read_files, names[begin : begin + _PIECE], now, MOST_OPS)
            for one in read:
                if one.dump is None or one.rank < 0:
                    log.warning("Flight Recorder dump %s cannot be used: %s", one.path, one.wrong)
                    continue
                written = found[one.path]
                t = written if max(now - FRESH, self._began) <= written <= now else now
                self._ready.append(replace(one.dump.shortened(MOST_OPS), t=t))

    def _finished(self, here: Sequence[RankProcess]) -> dict[Path, float]:
        """Files of this run that no longer grow, with the time of writing."""
        found: dict[Path, float] = {}
        begun = {process.rank: self._begun(process) for process in here}
        for path in self._places(here):
            stamp = _stamp(path)
            if stamp is None:
                self._seen.pop(path, None)
                continue
            grows = self._seen.get(path) != stamp
            self._seen[path] = stamp
            if grows or not stamp[1] or self._told.get(path) == stamp:
                continue
            written = stamp[0] / 1e9
            if self._is_of_this_run(written, rank_of(path.name), begun):
                self._told[path] = stamp
                found[path] = written
            elif begun and self._left.get(path) != stamp:
                self._left[path] = stamp
                log.info("Flight Recorder dump %s is older than what runs now, or than ten minutes: left alone", path)
        return found

    def _is_of_this_run(self, written: float, rank: int | None, begun: Mapping[int, float]) -> bool:
        """Written since we came; or shortly before, by a job that is still there: since its rank was started, or, of
        a rank of another node, since the first rank of this node was.
        """
        if written >= self._began:
            return True
        since = begun.get(-1 if rank is None else rank, min(begun.values(), default=float("inf")))
        return written >= max(since, self._began - RECENT)

    def _begun(self, process: RankProcess) -> float:
        """When a process was started, in Unix seconds; never, if that cannot be told."""
        if self._booted is None:
            try:
                lines = (self._proc / "stat").read_text().splitlines()
                self._booted = next(float(line.split()[1]) for line in lines if line.startswith("btime "))
            except (OSError, ValueError, StopIteration):
                self._booted = float("inf")
        return self._booted + process.start / os.sysconf("SC_CLK_TCK")

    def _places(self, here: Sequence[RankProcess]) -> list[Path]:
        """Where a dump of these ranks would be."""
        places = []
        if self._folder is not None:
            try:
                places = [paths[-1] for paths in files_in(self._folder).values()]
            except OSError:
                pass  # not made yet
        for process in here:
            environ = self._environ(process)
            cache = environ.get("XDG_CACHE_HOME") or f"{environ.get('HOME', '/root')}/.cache"
            given = next((environ[name] for name in PREFIXES if environ.get(name)), None)
            for prefix in [given] if given else ["/tmp/nccl_trace_rank_", f"{cache}/torch/comm_lib_trace_rank_"]:  # noqa: S108 - torch's own places
                place = self._seen_by(process, f"{prefix}{process.rank}")
                if place not in places:
                    places.append(place)
        return places

    def _seen_by(self, process: RankProcess, path: str) -> Path:
        """A path of the rank as we reach it: its container may have other files than ours."""
        theirs = self._proc / str(process.pid) / "root"
        plain = Path(path)
        return plain if plain.exists() or not plain.is_absolute() else theirs / plain.relative_to("/")

    def _environ(self, process: RankProcess) -> Mapping[str, str]:
        key = (process.pid, process.start)
        if key not in self._environs:
            self._environs[key] = self._processes.environ(process, _WANTED)
        return self._environs[key]

    async def collect(self, here: Sequence[RankProcess]) -> list[Event]:
        """Let the ranks write their dumps now, those that listen; the files are found by `watch`."""
        if not self._trigger:
            return []
        failed = await asyncio.to_thread(lambda: [why for process in here if (why := self._ask(process))])
        if failed and len(failed) == len(here):
            raise EvidenceUnavailable(failed[0], "see docs/flight-recorder.md; stacks and logs go on without")
        return []

    async def plan(self, here: Sequence[RankProcess]) -> list[str]:
        """The pipes that would be written to."""
        pipes = await asyncio.to_thread(lambda: [(p, self._pipe(p)) for p in here]) if self._trigger else []
        return [f"for the dump of rank {process.rank} (a byte into {pipe})" for process, pipe in pipes if pipe]

    def _pipe(self, process: RankProcess) -> Path | None:
        """Where the rank listens, as we reach it."""
        prefix = self._environ(process).get(PIPE)
        return self._seen_by(process, f"{prefix}{process.rank}.pipe") if prefix else None

    def _ask(self, process: RankProcess) -> str:
        """Why the rank could not be asked; empty where it was, or where it offers no pipe."""
        pipe, key, now = self._pipe(process), (process.pid, process.start), self._clock.now()
        if pipe is None or now - self._asked.get(key, float("-inf")) < APART:
            return ""
        self._asked[key] = now
        try:
            number = os.open(pipe, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            why = "nobody listens" if error.errno == errno.ENXIO else error.strerror
            return f"the Flight Recorder's pipe {pipe} cannot be written to: {why}"
        try:
            if not stat.S_ISFIFO(os.fstat(number).st_mode):
                return f"{pipe} is no pipe"
            os.write(number, b"1")
        except OSError as error:
            return f"the Flight Recorder's pipe {pipe} cannot be written to: {error.strerror}"
        finally:
            os.close(number)
        log.info("rank %d is asked to write its Flight Recorder dump", process.rank)
        return ""


def _stamp(path: Path) -> _Stamp | None:
    """What changes when a file is written anew: time, size, inode."""
    try:
        about = path.lstat()
    except OSError:
        return None
    return (about.st_mtime_ns, about.st_size, about.st_ino) if stat.S_ISREG(about.st_mode) else None
