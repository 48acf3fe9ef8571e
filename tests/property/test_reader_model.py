"""All files of a job against a model: whatever happens to files, mounts, clocks and the daemon, each line is examined.

The world writes, rotates, truncates, deletes, links and makes files; opening and reading fails; the daemon is killed
between two commits and starts from what it had committed. The model knows which lines were out of reach (truncated or
deleted before anybody looked, or rotated away from a daemon that was not running) and asks for all others.
"""

import asyncio
import errno
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from denpexd.clock import ManualClock
from denpexd.ingest.discover import Discovery
from denpexd.ingest.wake import Waker
from denpexd.reader import Reader

RANKS = st.integers(0, 2)
LINKED = 2  # this rank's log is a link to a file elsewhere
TALLY: Counter[str] = Counter()  # what all sequences have tried; said at the end
FAILURES = {"EIO": errno.EIO, "ESTALE": errno.ESTALE, "EACCES": errno.EACCES}


@dataclass
class Content:
    """What stood under one name for a time. `due`: complete lines that must still be examined."""

    due: set[bytes] = field(default_factory=set)
    partial: bytes = b""
    seen: bool = False  # the daemon has had it open


class Failing:
    """System calls on some paths that fail for a while; all others go through."""

    def __init__(self) -> None:
        self.paths: dict[str, tuple[int, int]] = {}  # errno, how many calls more
        self._real: tuple[Callable[..., Any], ...] = (os.open, os.preadv)

    def __enter__(self) -> None:
        real_open, real_read = self._real

        def fail(path: str) -> None:
            number, left = self.paths.get(path, (0, 0))
            if left > 0:
                self.paths[path] = number, left - 1
                raise OSError(number, os.strerror(number), path)

        def open_(path: Any, *args: Any, **more: Any) -> int:
            fail(str(path))
            return int(real_open(path, *args, **more))

        def read(fd: int, *args: Any) -> int:
            fail(str(Path(f"/proc/self/fd/{fd}").readlink()).removesuffix(" (deleted)"))
            return int(real_read(fd, *args))

        os.open, os.preadv = open_, read

    def __exit__(self, *_: object) -> None:
        os.open, os.preadv = self._real


class ReaderMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="denpexd-model-"))
        (self.folder / "logs").mkdir()
        self.loop = asyncio.Runner()
        self.clock, self.failing = ManualClock(1000.0), Failing()
        self.stamp, self.number = 1_700_000_000_000_000_000, 0
        self.current: dict[int, Content] = {}
        self.old: list[Content] = []
        self.written: set[bytes] = set()
        self.got: Counter[bytes] = Counter()
        self.since_commit: list[bytes] = []
        self.may_repeat: Counter[bytes] = Counter()
        self.rows: dict[str, str] = {}
        self.carry: dict[Path, bytes] = {}
        self.start()

    def start(self) -> None:
        self.loop.run(self._start())

    async def _start(self) -> None:
        discovery = Discovery([str(self.folder / "logs" / "rank{rank}.log")], "run")
        self.reader = Reader(discovery, self.clock, Waker(self.clock, enabled=False), self.rows, 2.0)
        self.carry.clear()

    def path(self, rank: int) -> Path:
        return self.folder / "logs" / f"rank{rank}.log"

    # What happens to the files

    def write(self, rank: int, data: bytes) -> None:
        path = self.path(rank)
        if rank == LINKED and not path.is_symlink():
            self.link(rank)
        with path.open("ab") as file:
            file.write(data)
        # Each write has a time stamp of its own, as writes that are further apart than the kernel's tick have.
        self.stamp += 1_000_000
        os.utime(path, ns=(self.stamp, self.stamp))
        content = self.current.setdefault(rank, Content())
        *lines, content.partial = (content.partial + data).split(b"\n")
        content.due.update(lines)
        self.written.update(lines)

    def link(self, rank: int) -> None:
        self.number += 1
        target, new = self.folder / f"v{self.number}.log", self.folder / "new"
        target.touch()
        new.symlink_to(target)
        new.rename(self.path(rank))

    def token(self) -> bytes:
        self.number += 1
        return b"%d" % self.number

    def retire(self, rank: int, *, reachable: bool) -> None:
        content = self.current.pop(rank, Content())
        if not reachable:
            content.due.clear()
        self.old.append(content)

    @rule(rank=RANKS, length=st.integers(0, 300), count=st.integers(1, 12))
    def append_lines(self, rank: int, length: int, count: int) -> None:
        self.write(rank, b"".join(self.token() + b"x" * length + b"\n" for _ in range(count)))

    @rule(rank=RANKS)
    def append_part(self, rank: int) -> None:
        self.write(rank, self.token() + b"-")

    def rotate_by_rename(self, rank: int) -> None:
        if rank in self.current:
            self.number += 1
            self.path(rank).rename(self.path(rank).with_name(f"rank{rank}.{self.number}"))
            self.retire(rank, reachable=self.current[rank].seen)

    def delete(self, rank: int) -> None:
        if rank in self.current:
            self.path(rank).unlink()
            self.retire(rank, reachable=self.current[rank].seen)

    def truncate(self, rank: int) -> None:
        if rank in self.current:
            os.truncate(self.path(rank), 0)
            self.current[rank] = Content(seen=self.current[rank].seen)

    def switch_the_link(self, _: int) -> None:
        reachable = LINKED in self.current and self.current[LINKED].seen
        self.link(LINKED)
        self.retire(LINKED, reachable=reachable)

    @rule(rank=RANKS, what=st.sampled_from(["rotate_by_rename", "delete", "truncate", "switch_the_link"]))
    def something_happens_to_a_file(self, rank: int, what: str) -> None:
        if rank != LINKED or what in ("truncate", "switch_the_link"):
            getattr(self, what)(rank)

    @rule(rank=RANKS, failure=st.sampled_from(sorted(FAILURES)), calls=st.integers(1, 6))
    def reads_fail(self, rank: int, failure: str, calls: int) -> None:
        self.failing.paths[str(self.path(rank).resolve())] = FAILURES[failure], calls
        self.failing.paths[str(self.path(rank))] = FAILURES[failure], calls

    # What the daemon does

    def one_round(self) -> None:
        with self.failing:
            self.loop.run(self._round())

    async def _round(self) -> None:
        async for found, read in self.reader.round(None):
            before = b"" if read.anew else self.carry.get(found.path, b"")
            *lines, self.carry[found.path] = (before + read.data).split(b"\n")
            self.got.update(lines)
            self.since_commit += lines
            for content in [*self.old, *self.current.values()]:
                content.due.difference_update(lines)
        for rank, content in self.current.items():
            tail = self.reader._tails.get(self.path(rank))
            content.seen = content.seen or (tail is not None and tail.is_open and tail._identity == self.identity(rank))

    def identity(self, rank: int) -> tuple[int, int]:
        info = self.path(rank).stat()
        return info.st_dev, info.st_ino

    def look_around(self) -> None:
        with self.failing:
            self.loop.run(self.reader.look_around())

    @rule(looks=st.booleans(), rounds=st.integers(1, 3), commits=st.booleans())
    def read(self, looks: bool, rounds: int, commits: bool) -> None:
        if looks:
            self.look_around()
        for _ in range(rounds):
            self.one_round()
        if commits:
            self.commit()

    def commit(self) -> None:
        """Positions and what the lines caused are one transaction."""
        self.rows |= self.reader.positions()
        self.since_commit.clear()

    @rule(seconds=st.sampled_from([0.1, 1.5, 30.0, 86400.0]), wall=st.sampled_from([0, 0, -3600, 3600]))
    def time_passes(self, seconds: float, wall: int) -> None:
        """`wall`: seconds by which the clock that stamps the files jumps."""
        self.loop.run(self.clock.advance(seconds))
        self.stamp += wall * 1_000_000_000

    @rule(cleanly=st.booleans())
    def restart(self, cleanly: bool) -> None:
        """Cleanly, or by SIGKILL: what was read since the last commit is forgotten."""
        if cleanly:
            self.commit()
        self.may_repeat.update(self.since_commit)
        self.since_commit.clear()
        self.reader.close()
        for content in self.old:  # it had only the open descriptor
            content.due.clear()
        for content in self.current.values():
            content.seen = False
        self.start()

    @rule()
    def settle(self) -> None:
        """Nothing fails any more, and time is given: now everything must have been examined."""
        self.failing.paths.clear()
        for _ in range(3):
            self.look_around()
            for _ in range(400):
                self.one_round()
                if not self.reader.behind():
                    break
            self.loop.run(self.clock.advance(30.0))
        due = set[bytes]().union(*(content.due for content in [*self.old, *self.current.values()]))
        assert not due, f"never examined: {sorted(due)}"
        self.old.clear()

    @invariant()
    def nothing_is_invented_and_only_a_kill_repeats(self) -> None:
        invented = self.got.keys() - self.written
        assert not invented, f"never written: {sorted(invented)}"
        repeated = {line for line, times in self.got.items() if times > 1 + self.may_repeat[line]}
        assert not repeated, f"examined again without a kill: {sorted(repeated)}"

    def teardown(self) -> None:
        self.settle()
        again = sum(self.got.values()) - len(self.got)
        TALLY.update({"sequences": 1, "lines written": len(self.written), "examined": len(self.got)})
        TALLY["examined again, each after a kill"] += again
        self.reader.close()
        self.loop.close()
        shutil.rmtree(self.folder)


TestReaderAgainstModel = ReaderMachine.TestCase
TestReaderAgainstModel.settings = settings(stateful_step_count=30, suppress_health_check=list(HealthCheck))
