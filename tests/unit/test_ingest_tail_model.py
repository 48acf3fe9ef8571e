"""A tail against a model: whatever is done to a file, each line that could be read is delivered once, and whole.

The model knows which lines were out of reach (truncated or deleted before anybody looked) and asks for all others.
"""

import os
import shutil
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from denpexd.ingest.open_files import OpenFiles
from denpexd.ingest.positions import Position
from denpexd.ingest.tail import Tail, new_buffer

TALLY: Counter[str] = Counter()  # what all sequences have tried; said at the end


@dataclass
class Generation:
    """One file that had the name for a time. `due`: complete lines that must still be delivered."""

    identity: tuple[int, int]
    due: set[bytes] = field(default_factory=set)
    partial: bytes = b""
    named: bool = True
    deleted: bool = False
    seen: bool = False


class TailMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="denpexd-model-"))
        self.path = self.folder / "r0.log"
        self.files = OpenFiles()
        self.tail = Tail(self.path, None, files=self.files, history=False)
        self.buffer = new_buffer(24)
        self.current: Generation | None = None
        self.old: list[Generation] = []
        self.number = self.rotations = 0
        self.now = 0.0
        self.carry = b""
        self.written: set[bytes] = set()
        self.got: list[bytes] = []

    # What is done to the file

    def write(self, data: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(data)
        info = self.path.stat()
        if self.current is None:
            self.current = Generation((info.st_dev, info.st_ino))
        *lines, self.current.partial = (self.current.partial + data).split(b"\n")
        self.current.due.update(lines)
        self.written.update(lines)

    def token(self) -> bytes:
        self.number += 1
        return b"%d" % self.number

    @rule(length=st.integers(0, 60), count=st.integers(1, 12))
    def append_lines(self, length: int, count: int) -> None:
        self.write(b"".join(self.token() + b"x" * length + b"\n" for _ in range(count)))

    @rule()
    def append_part(self) -> None:
        self.write(self.token() + b"-")

    @rule()
    def create_empty(self) -> None:
        self.write(b"")

    @precondition(lambda self: self.current is not None)
    @rule()
    def rotate_by_rename(self) -> None:
        assert self.current is not None
        self.rotations += 1
        self.path.rename(self.folder / f"r0.log.{self.rotations}")
        self.retire(self.current, reachable=self.is_on(self.current) or self.is_known(self.current))

    @precondition(lambda self: self.current is not None)
    @rule()
    def delete(self) -> None:
        assert self.current is not None
        self.path.unlink()
        self.current.deleted = True
        self.retire(self.current, reachable=self.is_on(self.current))

    @precondition(lambda self: self.current is not None)
    @rule()
    def copytruncate(self) -> None:
        assert self.current is not None
        os.truncate(self.path, 0)
        self.current.due.clear()
        self.current.partial = b""
        self.current.seen = False

    def retire(self, generation: Generation, *, reachable: bool) -> None:
        generation.named = False
        if not reachable:
            generation.due.clear()
        self.old.append(generation)
        self.current = None

    # What the tail knows

    def is_on(self, generation: Generation) -> bool:
        position = self.tail.position
        return self.tail.is_open and position is not None and position.identity == generation.identity

    def is_known(self, generation: Generation) -> bool:
        position = self.tail.position
        return (
            generation.seen and position is not None and position.known > 0 and position.identity == generation.identity
        )

    def descriptor_goes(self) -> None:
        for generation in self.old:
            if generation.deleted or not self.is_known(generation):
                generation.due.clear()

    # What the daemon does

    def read(self) -> bool:
        result = self.tail.read(self.buffer, self.now)
        if result.anew:
            self.carry = b""
        *lines, self.carry = (self.carry + result.data).split(b"\n")
        for generation in [*self.old, *([self.current] if self.current else [])]:
            generation.due.difference_update(lines)
        self.got.extend(lines)
        if self.current and self.is_on(self.current):
            self.current.seen = True
        return result.more

    @rule()
    def read_once(self) -> None:
        self.read()

    @rule()
    def read_all(self) -> None:
        assert any(not self.read() for _ in range(10_000)), "reading never ends"
        due = set().union(*(generation.due for generation in [*self.old, *([self.current] if self.current else [])]))
        assert not due, f"never delivered: {due}"
        assert self.tail.lag == 0
        self.old.clear()

    @rule(seconds=st.sampled_from([0.1, 1.5, 30.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule()
    def descriptor_is_evicted(self) -> None:
        self.descriptor_goes()
        fd = self.tail.take_descriptor()
        if fd >= 0:
            os.close(fd)

    @rule()
    def restart_with_saved_positions(self) -> None:
        self.descriptor_goes()
        rows = [position.to_row() for position in [*self.files.take_left(), self.tail.position] if position]
        saved = [Position.from_row(row) for row in rows]
        mine = Position.from_row(rows[-1]) if self.tail.position else None
        self.tail.close()
        self.files = OpenFiles(saved)
        self.tail = Tail(self.path, mine, files=self.files, history=True)
        self.carry = b""

    @invariant()
    def lines_are_whole_and_delivered_once(self) -> None:
        assert set(self.got) <= self.written, f"never written: {set(self.got) - self.written}"
        assert len(self.got) == len(set(self.got)), "delivered twice"

    def teardown(self) -> None:
        self.read_all()
        TALLY.update({"sequences": 1, "lines written": len(self.written), "examined": len(self.got)})
        self.tail.close()
        shutil.rmtree(self.folder)


TestTailAgainstModel = TailMachine.TestCase
TestTailAgainstModel.settings = settings(
    max_examples=4 * settings.default.max_examples,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
