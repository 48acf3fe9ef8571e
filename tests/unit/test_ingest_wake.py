"""The waker shortens the wait and never lengthens it: whatever happens to watchdog, a full look comes in time."""

import asyncio
import errno
import logging
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from denpexd.clock import ManualClock
from denpexd.ingest.wake import Waker

LONG = 1000.0  # seconds of a clock that only the test moves


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
async def waker(clock: ManualClock) -> AsyncIterator[Waker]:
    waker = Waker(clock)
    yield waker
    waker.close()


async def touched(waker: Waker) -> set[str] | None:
    return await asyncio.wait_for(waker.wait(LONG), 60)


async def until_touched(waker: Waker, *paths: Path) -> None:
    seen: set[str] = set()
    while not {str(path) for path in paths} <= seen:
        seen |= await touched(waker) or set()


async def test_a_write_is_told_with_its_path(waker: Waker, tmp_path: Path) -> None:
    waker.watch([tmp_path])
    log = tmp_path / "r0.log"
    log.write_text("x")
    await until_touched(waker, log)
    with log.open("a") as file:
        file.write("more")
    await until_touched(waker, log)


async def test_rename_and_delete_are_told(waker: Waker, tmp_path: Path) -> None:
    log, old = tmp_path / "r0.log", tmp_path / "r0.log.1"
    log.write_text("x")
    waker.watch([tmp_path])
    log.rename(old)
    await until_touched(waker, log, old)
    old.unlink()
    await until_touched(waker, old)


async def test_a_directory_behind_a_link_is_told_under_the_given_name(waker: Waker, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    waker.watch([tmp_path / "link"])
    (tmp_path / "real" / "r0.log").write_text("x")
    await until_touched(waker, tmp_path / "link" / "r0.log")


async def test_a_new_directory_asks_for_a_full_look(waker: Waker, tmp_path: Path) -> None:
    waker.watch([tmp_path])
    (tmp_path / "attempt_1").mkdir()
    assert await touched(waker) is None


async def test_without_events_a_full_look_comes_after_the_sweep_interval(waker: Waker, clock: ManualClock) -> None:
    waiting = asyncio.ensure_future(waker.wait(2.0))
    await clock.advance(1.9)
    assert not waiting.done()
    await clock.advance(0.2)
    assert await waiting is None


async def test_a_shorter_wait_ends_without_a_look_at_anything(waker: Waker, clock: ManualClock) -> None:
    for seconds, told in ((0.9, set[str]()), (0.9, set[str]()), (0.3, None)):
        waiting = asyncio.ensure_future(waker.wait(2.0, 0.9))
        await clock.advance(0.0)  # it begins to wait
        await clock.advance(seconds)
        assert await waiting == told


async def test_a_flood_of_events_does_not_put_the_full_look_off(
    waker: Waker, clock: ManualClock, tmp_path: Path
) -> None:
    waker.touch([str(tmp_path / "r0.log")])
    assert await waker.wait(2.0) == {str(tmp_path / "r0.log")}
    await clock.advance(1.5)
    waker.touch([str(tmp_path / "r0.log")])
    assert await waker.wait(2.0) is not None
    await clock.advance(0.6)
    waker.touch([str(tmp_path / "r0.log")])
    assert await waker.wait(2.0) is None


async def test_more_paths_than_kept_mean_everything(clock: ManualClock) -> None:
    waker = Waker(clock, keep=10)
    for number in range(12):
        waker.touch([str(number)])
    assert await waker.wait(LONG) is None
    waker.close()


async def test_directories_come_and_go(waker: Waker, tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    second.mkdir()
    waker.watch([first])
    waker.watch([second])
    (first / "r0.log").write_text("x")
    (second / "r1.log").write_text("x")
    await until_touched(waker, second / "r1.log")
    waker.watch([first, second, tmp_path / "missing"])
    (first / "r0.log").write_text("y")
    await until_touched(waker, first / "r0.log")
    assert waker.polling == ""


async def test_a_deleted_directory_is_dropped_and_watched_again_when_it_is_back(waker: Waker, tmp_path: Path) -> None:
    folder = tmp_path / "a"
    folder.mkdir()
    waker.watch([folder])
    folder.rmdir()
    while not waker.dead:
        waker.touch(["x"])
        await touched(waker)
    folder.mkdir()
    waker.watch([folder])
    (folder / "r0.log").write_text("x")
    await until_touched(waker, folder / "r0.log")


async def test_an_overflow_asks_for_a_full_look_and_is_counted(waker: Waker) -> None:
    logging.getLogger("watchdog.observers.inotify_c").warning("Inotify queue overflowed; filesystem events were lost")
    assert await touched(waker) is None
    assert waker.overflows == 1


async def test_a_dead_observer_means_polling_said_once(
    waker: Waker, clock: ManualClock, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    waker.watch([tmp_path])
    observer = next(thread for thread in threading.enumerate() if type(thread).__name__ == "InotifyObserver")
    observer.stop()
    observer.join()
    with caplog.at_level(logging.WARNING):
        assert await touched(waker) is None
        waiting = asyncio.ensure_future(waker.wait(2.0))
        await clock.advance(2.5)
        assert await waiting is None
    assert "thread died" in waker.polling
    assert len([record for record in caplog.records if "polled instead" in record.getMessage()]) == 1
    waker.watch([tmp_path])


async def test_switched_off_it_only_polls(clock: ManualClock, tmp_path: Path) -> None:
    waker = Waker(clock, enabled=False)
    waker.watch([tmp_path])
    waiting = asyncio.ensure_future(waker.wait(2.0))
    (tmp_path / "r0.log").write_text("x")
    await clock.advance(2.5)
    assert await waiting is None
    waker.close()


async def test_more_directories_than_allowed_are_polled(clock: ManualClock, tmp_path: Path) -> None:
    waker = Waker(clock, directories=2)
    folders = [tmp_path / str(n) for n in range(4)]
    for folder in folders:
        folder.mkdir()
    waker.watch(folders)
    assert "more than 2 directories" in waker.polling
    (folders[0] / "r0.log").write_text("x")
    await until_touched(waker, folders[0] / "r0.log")
    waker.close()


async def test_a_directory_that_the_kernel_refused_is_tried_again_when_it_comes_anew(
    clock: ManualClock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*what: object, **more: object) -> None:
        raise OSError(errno.ENOSPC, "inotify watch limit reached")

    waker = Waker(clock)
    with monkeypatch.context() as full:
        full.setattr(waker._observer, "schedule", refuse)
        waker.watch([tmp_path])
    assert "max_user_watches" in waker.polling
    waker.watch([])
    waker.watch([tmp_path])
    (tmp_path / "r0.log").write_text("x")
    await until_touched(waker, tmp_path / "r0.log")
    waker.close()


async def test_events_after_the_end_of_the_loop_are_harmless(clock: ManualClock) -> None:
    def elsewhere() -> Waker:
        async def make() -> Waker:
            return Waker(clock, enabled=False)

        return asyncio.run(make())

    waker = await asyncio.to_thread(elsewhere)
    waker.touch(["x"])
    waker.lost()


LIMITED = """
import asyncio, pathlib, sys
from denpexd.clock import SystemClock
from denpexd.ingest.wake import Waker
async def main():
    waker = Waker(SystemClock())
    folders = []
    for n in range(20):
        folder = pathlib.Path(sys.argv[1]) / str(n)
        folder.mkdir(exist_ok=True)
        folders.append(folder)
    waker.watch(folders)
    print(waker.polling)
    print(await waker.wait(0.1))
    waker.close()
asyncio.run(main())
"""


@pytest.mark.parametrize(("limit", "value"), [("max_inotify_watches", 5), ("max_inotify_instances", 0)])
def test_the_kernels_limits_lead_to_polling(tmp_path: Path, limit: str, value: int) -> None:
    if not (shutil.which("unshare") and Path(f"/proc/sys/user/{limit}").exists()):
        pytest.skip("needs unshare and user namespaces")
    script = f'echo {value} > /proc/sys/user/{limit} || exit 77; exec "$0" -c "$1" "$2"'
    done = subprocess.run(
        ["unshare", "-Ur", "sh", "-c", script, sys.executable, LIMITED, str(tmp_path)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    if done.returncode in (1, 77) and "denpexd" not in done.stderr:
        pytest.skip(f"user namespaces are not allowed here: {done.stderr.strip()}")
    lines = done.stdout.splitlines()
    assert "fs.inotify.max_user_" in lines[0], done.stderr
    assert lines[1] == "None"
