"""Tasks that fail are begun again, and not for ever."""

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading

import pytest

from denpexd.clock import ManualClock
from denpexd.supervise import MOST, WITHIN, Supervisor, on_signals, run


class Faulty:
    """Work that fails as often as it is told, then is done."""

    def __init__(self, clock: ManualClock, failures: int) -> None:
        self.clock, self.failures, self.begun = clock, failures, list[float]()

    async def __call__(self) -> None:
        self.begun.append(self.clock.now())
        if len(self.begun) <= self.failures:
            raise ValueError("poison")


async def until_done(clock: ManualClock, task: "asyncio.Task[None]", step: float = 1.0) -> None:
    for _ in range(10_000):
        if task.done():
            return
        await clock.advance(step)
    raise AssertionError("it never ended")


async def test_a_task_that_fails_is_begun_again_after_growing_waits(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock(0.0)
    work, supervisor = Faulty(clock, 3), Supervisor(clock)
    task = asyncio.create_task(supervisor.keep("read", work))
    await until_done(clock, task)
    await task
    gaps = [round(b - a) for a, b in zip(work.begun, work.begun[1:], strict=False)]
    assert gaps == [1, 2, 4]
    assert supervisor.restarts == {"read": 3}
    assert caplog.text.count("Traceback") == 3


async def test_a_task_that_fails_all_the_time_ends_the_daemon_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock(0.0)
    work, supervisor = Faulty(clock, 1000), Supervisor(clock)
    task = asyncio.create_task(supervisor.keep("read", work))
    await until_done(clock, task)
    with pytest.raises(ValueError, match="poison"):
        await task
    assert len(work.begun) == MOST + 1
    (said,) = [r.getMessage() for r in caplog.records if r.levelno == logging.CRITICAL]
    assert said == "read failed 6 times in 10 minutes: the daemon ends"


async def test_a_storm_of_sighup_is_one_reload_and_one_more_that_sees_the_last_state() -> None:
    sent, seen, one_at_a_time, go_on = list[int](), list[int](), asyncio.Lock(), asyncio.Event()

    async def reload() -> None:
        async with one_at_a_time:
            seen.append(len(sent))
            await go_on.wait()

    loop = asyncio.get_running_loop()
    on_signals(asyncio.Event(), reload)
    try:
        for number in range(30):
            sent.append(number)
            os.kill(os.getpid(), signal.SIGHUP)
            await asyncio.sleep(0.001)
        go_on.set()
        while seen[-1:] != [30] or one_at_a_time.locked():
            await asyncio.sleep(0.001)
        assert len(seen) <= 3
    finally:
        for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


async def test_rare_failures_never_end_it() -> None:
    clock = ManualClock(0.0)
    supervisor = Supervisor(clock)
    begun = 0

    async def work() -> None:
        nonlocal begun
        begun += 1
        if begun == 30:
            return
        await clock.sleep(WITHIN / MOST + 1)
        raise ValueError("now and then")

    task = asyncio.create_task(supervisor.keep("tick", work))
    await until_done(clock, task, 10.0)
    await task
    assert supervisor.restarts["tick"] == 29


def test_a_loop_that_stands_still_shows_where() -> None:
    program = """
        import asyncio, time
        from denpexd.clock import SystemClock
        from denpexd.supervise import tell_where_it_is_stuck

        def hung_mount():
            time.sleep(1.0)

        async def main():
            task = asyncio.create_task(tell_where_it_is_stuck(SystemClock(), 0.3))
            await asyncio.sleep(1.0)
            print("turning", flush=True)
            hung_mount()
            task.cancel()

        asyncio.run(main())
    """
    for _ in range(5):  # where the machine itself stands still for a moment, so does the loop that turns
        command = [sys.executable, "-c", textwrap.dedent(program)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        if done.stderr.count("Timeout") == 1:
            break
    assert done.stdout == "turning\n"
    assert "in hung_mount" in done.stderr
    assert done.stderr.count("Timeout") == 1


def test_a_name_server_that_does_not_answer_holds_up_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    answered, asked = threading.Event(), list[object]()

    def hang(*what: object) -> object:
        asked.append(what[0])
        answered.wait(30)
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    async def main() -> str:
        loop = asyncio.get_running_loop()
        for _ in range(50):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(loop.getaddrinfo("dead.invalid", 443), 0.002)
        return await asyncio.wait_for(asyncio.to_thread(lambda: "stored"), 25)

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    assert run(main()) == "stored"  # and it has ended
    assert asked == ["dead.invalid"]
    answered.set()


def test_an_answer_of_a_name_server_arrives_and_the_next_question_is_asked_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = [OSError("no such name"), ["127.0.0.1"]]

    def answer(*what: object) -> object:
        if isinstance(now := answers.pop(0), OSError):
            raise now
        return now

    async def main() -> object:
        loop = asyncio.get_running_loop()
        with pytest.raises(OSError, match="no such name"):
            await loop.getaddrinfo("host", 443)
        return await loop.getaddrinfo("host", 443)

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    assert run(main()) == ["127.0.0.1"]
