"""Thirty things that happen to log files, one job each, under one real daemon that is restarted and killed meanwhile.

The numbers are those of docs/reliability.md. Every job prints one error and must be told of once, by one key, whatever
was done to its files; jobs without an error of today must stay silent.
"""

import contextlib
import gzip
import json
import os
import re
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from .waiting import answer, until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

ERROR = (
    b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.15 GiB "
    b"of which 3.12 MiB is free."
)
ERR = ERROR + b"\n"
MEMORY = 400 << 20  # bytes that the daemon may have held at most, with everything below going on at once


class Fault:
    """One job of two ranks and what happens to it, in five stages. `told`: whether an alert is due."""

    told = True
    name = ""

    def __init__(self, logs: Path) -> None:
        self.folder = logs / (self.name or type(self).__name__)
        self.number = 0

    def log(self, rank: int = 0) -> Path:
        return self.folder / f"rank{rank}.log"

    def write(self, data: bytes, rank: int = 0) -> None:
        with self.log(rank).open("ab") as file:
            file.write(data)

    def train(self, steps: int = 10) -> None:
        for rank in range(2):
            self.write(b"".join(b"step %d loss 2.31\n" % (self.number + i) for i in range(steps)), rank)
        self.number += steps

    def before(self) -> None:
        """Before the daemon is there."""
        self.folder.mkdir()
        self.train()

    def live(self) -> None:
        """While it runs."""

    def stopped(self) -> None:
        """While it is stopped."""

    def after(self) -> None:
        """When it runs again."""


class A01RenameAndCreate(Fault):
    def live(self) -> None:
        self.log().rename(self.folder / "rank0.log.1")
        self.write(ERR)


class A02LateWriterOfTheRenamedFile(Fault):
    def live(self) -> None:
        with self.log().open("ab", buffering=0) as old:
            self.log().rename(self.folder / "rank0.log.1")
            self.log().touch()
            time.sleep(4.0)
            old.write(ERR)


class A03FiveRotationsAtOnce(Fault):
    def live(self) -> None:
        self.write(ERR)
        for number in range(5):
            self.log().rename(self.folder / f"rank0.log.{number}")
            self.write(b"step 99 loss 2.3\n")


class A04Copytruncate(Fault):
    def live(self) -> None:
        (self.folder / "rank0.log.1").write_bytes(self.log().read_bytes())
        os.truncate(self.log(), 0)
        self.write(ERR)


class A05RotatedWhileStopped(Fault):
    def stopped(self) -> None:
        self.write(ERR)
        self.log().rename(self.folder / "rank0.log.1")
        self.log().touch()


class A07TruncatedDuringABacklog(Fault):
    def before(self) -> None:
        super().before()
        self.write(b"step 10 loss 2.31 and something to make it longer than it would be\n" * 700_000)

    def live(self) -> None:
        os.truncate(self.log(), 0)
        self.write(ERR)


class A08DeletedAtOnce(Fault):
    def live(self) -> None:
        self.write(ERR)
        time.sleep(0.05)
        self.log().unlink()


class A09DeletedAndRecreated(Fault):
    def live(self) -> None:
        self.log().unlink()
        time.sleep(1.0)
        self.write(ERR)


class A10ReplacedWithOneLineMore(Fault):
    def live(self) -> None:
        new = self.folder / "new"
        new.write_bytes(self.log().read_bytes() + ERR)
        new.rename(self.log())


class A11NothingButTheError(Fault):
    def before(self) -> None:
        self.folder.mkdir()
        self.log().touch()

    def live(self) -> None:
        self.write(ERR)


class A12IdentityGrowsOverRestarts(Fault):
    def before(self) -> None:
        self.folder.mkdir()
        self.write(b"step 1 loss 2.3\n")

    def live(self) -> None:
        self.train(400)

    def after(self) -> None:
        self.write(ERR)


class A15LinkIsSwitched(Fault):
    def before(self) -> None:
        self.folder.mkdir()
        for version in ("v1", "v2"):
            (self.folder / version).mkdir()
        self.log().symlink_to(self.folder / "v1" / "out")
        (self.folder / "v1" / "out").touch()
        self.train()

    def live(self) -> None:
        (self.folder / "v2" / "out").write_bytes(ERR)
        (self.folder / "link").symlink_to(self.folder / "v2" / "out")
        (self.folder / "link").rename(self.log())


class A16LinkBecomesValid(Fault):
    def before(self) -> None:
        self.folder.mkdir()
        self.log().symlink_to(self.folder / "late")

    def live(self) -> None:
        time.sleep(2.0)
        (self.folder / "late").write_bytes(b"step 1 loss 2.3\n" + ERR)


class A17LoopOfLinks(Fault):
    def before(self) -> None:
        super().before()
        (self.folder / "loop").symlink_to(self.folder)
        (self.folder / "rank2.log").symlink_to(self.folder / "rank3.log")
        (self.folder / "rank3.log").symlink_to(self.folder / "rank2.log")

    def live(self) -> None:
        self.write(ERR)


class A19RotatedAndPacked(Fault):
    def live(self) -> None:
        self.write(ERR)
        time.sleep(3.0)
        (self.folder / "rank0.log.1.gz").write_bytes(gzip.compress(self.log().read_bytes()))
        os.truncate(self.log(), 0)


class A21ErrorOfLastWeek(Fault):
    told = False

    def before(self) -> None:
        super().before()
        self.write(ERR)
        for rank in range(2):
            os.utime(self.log(rank), (time.time() - 7 * 86400,) * 2)


class B01FolderAndErrorAtOnce(Fault):
    def before(self) -> None:
        pass

    def live(self) -> None:
        self.folder.mkdir()
        self.write(ERR)


class B15OddName(Fault):
    name = "-j [x], é \U0001f600"

    def live(self) -> None:
        self.write(ERR)


class B17CreatedAndDeletedAllTheTime(Fault):
    def live(self) -> None:
        for _ in range(2000):
            self.log(7).touch()
            self.log(7).unlink()
        self.write(ERR)


class C01NoNewlineYet(Fault):
    def live(self) -> None:
        self.write(ERROR)

    def after(self) -> None:
        self.write(b"\n")


class C02LineInTwoHalvesOverARestart(Fault):
    def live(self) -> None:
        self.write(ERROR[:30])

    def after(self) -> None:
        self.write(ERROR[30:] + b"\n")


class C03LineOf50Megabytes(Fault):
    def live(self) -> None:
        for _ in range(50):
            self.write(b"x" * 1_000_000)
        self.write(b"\n" + ERR)


class C04LongLineOverARestart(Fault):
    def live(self) -> None:
        self.write(b"x" * 5_000_000)

    def after(self) -> None:
        self.write(b"x" * 5_000_000 + b"\n" + ERR)


class C06NulInside(Fault):
    def live(self) -> None:
        self.write(ERROR + b"\0\0 more\n")


class C07InvalidUtf8(Fault):
    def live(self) -> None:
        self.write(b"\xff\xfe " + ERROR + b" \xc3\n")


class C08CharactersOverTheEdgesOfReads(Fault):
    def live(self) -> None:
        for byte in "漢😀 ".encode() * 3 + ERR:
            self.write(bytes([byte]))
            time.sleep(0.002)


class C09CarriageReturns(Fault):
    def live(self) -> None:
        self.write(ERROR + b"\r\n")


class C10ProgressBarWithoutLineEnd(Fault):
    def live(self) -> None:
        self.write(b"".join(b"\r%3d%%|###   | %d/5000 [00:01<00:09, 3.1it/s]" % (i / 50, i) for i in range(5000)))
        self.write(b"\n" + ERR)


class C11ByteOrderMark(Fault):
    def before(self) -> None:
        self.folder.mkdir()
        self.log().touch()

    def live(self) -> None:
        self.write(b"\xef\xbb\xbf" + ERR)


class C13OtherLineSeparators(Fault):
    def live(self) -> None:
        self.write("a\u2028b\x85c\x0bd\x1ce ".encode() + ERR)


class C14Colours(Fault):
    def live(self) -> None:
        self.write(b"\x1b[31m" + ERROR.replace(b":", b"\x1b[0m:", 1) + b"\x1b[0m\n")


class C18RecordsOfAContainerInParts(Fault):
    def before(self) -> None:
        self.folder.mkdir()
        self.write(b"".join(b"2026-01-02T03:04:%02d.0Z stdout F step %d loss 2.3\n" % (i, i) for i in range(10)))

    def live(self) -> None:
        parts = [b"P " + b"x" * 16_000, b"P " + ERROR + b"x" * 15_000, b"F and the rest"]
        self.write(b"".join(b"2026-01-02T03:05:00.0Z stderr " + part + b"\n" for part in parts))


class C19JsonLines(Fault):
    def live(self) -> None:
        text = 'Traceback (most recent call last):\n  File "/ws/train.py", line 7, in <module>\n    main()\n'
        self.write(json.dumps({"level": "error", "msg": text + ERROR.decode()}).encode() + b"\n")


class C20AMillionBlankLines(Fault):
    def live(self) -> None:
        self.write(b"\n" * 1_000_000 + ERR)


class C21Binary(Fault):
    told = False

    def live(self) -> None:
        self.write(os.urandom(5_000_000))


class C22BeyondFourGigabytes(Fault):
    def live(self) -> None:
        os.truncate(self.log(), 5 << 30)
        self.write(b"\n" + ERR)


class E01WrittenWhileStopped(Fault):
    def stopped(self) -> None:
        self.write(ERR)


class F17AHundredThousandTimes(Fault):
    def live(self) -> None:
        self.write(ERR * 100_000)


FAULTS = [kind for kind in list(globals().values()) if isinstance(kind, type) and Fault in kind.__bases__]


@dataclass
class Outcome:
    """What the receiver had when all was over. `seconds`: from SIGTERM to the end; `peak`: bytes of memory."""

    alerts: dict[str, list[Any]]
    before_the_kill: set[str]
    after_the_kill: set[str]
    seconds: float
    code: int
    peak: int
    log: str


def faults(place: Any) -> Outcome:
    logs = place.folder / "logs"
    logs.mkdir()
    jobs = [kind(logs) for kind in FAULTS]

    def all_at_once(stage: str) -> None:
        with ThreadPoolExecutor(len(jobs)) as pool:
            list(pool.map(lambda job: getattr(job, stage)(), jobs))

    def enough() -> bool:
        told = {alert.verdict["job"] for alert in sink.alerts}
        return all(job.folder.name in told for job in jobs if job.told)

    all_at_once("before")
    sink = place.sink()
    watcher = place.watch(f"{logs}/{{job}}/rank{{rank}}.log", sink)
    ready(watcher, 1)
    known = sum(path.is_file() for job in jobs for path in job.folder.glob("rank?.log"))
    until(lambda: followed(watcher) >= known, 150.0, f"{known} files are followed")
    all_at_once("live")
    time.sleep(4.0)
    began = time.monotonic()
    watcher.process.terminate()
    code = watcher.process.wait(90)
    seconds = time.monotonic() - began
    all_at_once("stopped")
    watcher.start()
    ready(watcher, 2)
    all_at_once("after")
    with contextlib.suppress(TimeoutError):
        until(enough, 200.0)
    time.sleep(5.0)  # for a second alert that must not come
    peak = peak_memory(watcher.process.pid)
    before = set(sink.keys)
    watcher.kill()
    watcher.start()
    ready(watcher, 3)
    time.sleep(15.0)
    told: dict[str, list[Any]] = {}
    for alert in sink.alerts:
        told.setdefault(alert.verdict["job"], []).append(alert.verdict)
    return Outcome(told, before, set(sink.keys), seconds, code, peak, watcher.log.read_text())


def ready(watcher: Any, times: int) -> None:
    until(lambda: watcher.log.read_text().count("watching ") >= times, 150.0, "the daemon is up")
    time.sleep(2.0)


def followed(watcher: Any) -> float:
    """Files that the daemon holds open or has read."""
    url = re.findall(r"metrics on (http://\S+)", watcher.log.read_text())[-1]
    states = re.findall(
        r'^denpexd_files\{state="reading"\} (\S+)$', (answer(url + "metrics") or b"").decode(), re.MULTILINE
    )
    return float(states[0]) if states else 0.0


def peak_memory(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) << 10


STORIES = {"faults": (150, faults)}


@pytest.mark.parametrize("kind", FAULTS, ids=lambda kind: kind.__name__)
def test_each_error_is_told_once_whatever_is_done_to_its_file(kind: type[Fault], stories: Any) -> None:
    verdicts = stories["faults"].alerts.get(kind(Path("/")).folder.name, [])

    if not kind.told:
        assert verdicts == []
        return
    assert len({verdict["key"] for verdict in verdicts}) == 1
    last = verdicts[-1]
    assert (last["failure"], last["initiating_ranks"]) == ("cuda-out-of-memory", [0])
    (quoted,) = [e["text"] for e in last["evidence"] if "Tried to allocate 20.00 MiB" in e["text"]]
    assert not set(quoted) & {"\r", "\0", "\x1b"}


def test_a_daemon_that_is_told_to_end_ends_in_time(stories: Any) -> None:
    outcome = stories["faults"]
    assert outcome.code == 0
    assert outcome.seconds < 45.0


def test_a_kill_gives_no_incident_a_second_key(stories: Any) -> None:
    outcome = stories["faults"]
    assert outcome.after_the_kill == outcome.before_the_kill


def test_memory_stays_bounded(stories: Any) -> None:
    outcome = stories["faults"]
    print(f"\nmost memory held: {outcome.peak >> 20} MiB")
    assert outcome.peak < MEMORY


def test_no_task_failed_on_the_way(stories: Any) -> None:
    assert "Traceback" not in stories["faults"].log
