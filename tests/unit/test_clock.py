"""Time that moves by itself, and time that moves when it is told to."""

import asyncio
from itertools import pairwise

import pytest

from denpexd.clock import ManualClock, SteadyClock, SystemClock, iso


async def test_a_manual_clock_moves_only_when_it_is_moved() -> None:
    clock = ManualClock(100.0, wall=1_000_000.0)
    assert (clock.now(), clock.wall()) == (100.0, 1_000_000.0)
    await clock.advance(2.5)
    assert (clock.now(), clock.wall()) == (102.5, 1_000_002.5)


async def test_sleepers_wake_in_order_of_their_time_and_see_it() -> None:
    clock, woken = ManualClock(), list[tuple[str, float]]()

    async def sleeper(name: str, *seconds: float) -> None:
        for length in seconds:
            await clock.sleep(length)
            woken.append((name, clock.now()))

    tasks = [asyncio.create_task(sleeper("a", 5.0)), asyncio.create_task(sleeper("b", 2.0, 2.0, 2.0))]
    await asyncio.sleep(0)
    await clock.advance(4.5)
    assert woken == [("b", 2.0), ("b", 4.0)]
    assert clock.now() == 4.5
    await clock.advance(10.0)
    await asyncio.gather(*tasks)
    assert woken[2:] == [("a", 5.0), ("b", 6.0)]


@pytest.mark.parametrize("seconds", [0.0, -1.0])
async def test_no_wait_gives_others_a_turn_and_takes_no_time(seconds: float) -> None:
    clock = ManualClock()
    other = asyncio.create_task(asyncio.sleep(0))
    await clock.sleep(seconds)
    await clock.sleep(seconds)
    assert other.done()
    assert clock.now() == 0.0


async def test_a_sleeper_that_was_cancelled_does_not_stop_the_clock() -> None:
    clock = ManualClock()
    task = asyncio.create_task(clock.sleep(1.0))
    await asyncio.sleep(0)
    task.cancel()
    await clock.advance(2.0)
    assert task.cancelled()


def test_a_steady_clock_gives_unix_seconds_that_never_go_back() -> None:
    clock = SteadyClock()
    readings = [clock.now() for _ in range(1000)]
    assert all(b >= a for a, b in pairwise(readings))
    assert abs(clock.now() - clock.wall()) < 60.0


async def test_the_machines_clock_sleeps() -> None:
    clock = SystemClock()
    before = clock.now()
    await clock.sleep(0.01)
    assert clock.now() >= before + 0.009


def test_times_for_people_are_in_utc() -> None:
    assert iso(1_700_000_000.25) == "2023-11-14T22:13:20.250Z"
