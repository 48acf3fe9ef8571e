"""Server-sent events: what is told, to whom, how small, and what becomes of those who do not listen or come back."""

import asyncio
import json
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stand import Stand, job, stand, verdict

from denpexd.web.board import Board, Cell, board, columns, groups, shapes
from denpexd.web.live import KEPT, MOST_LISTENERS, QUEUE, Live, TooManyError
from denpexd.web.view import RANK_STATES, JobView, Pace, RankView


class Steps:
    """A clock whose waits end when the test says so. `sleepers`: who waits now."""

    def __init__(self) -> None:
        self._gate, self.sleepers = asyncio.Event(), set[object]()

    def now(self) -> float:
        return 0.0

    def wall(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        gate, sleeper = self._gate, object()
        self.sleepers.add(sleeper)
        try:
            await gate.wait()
        finally:
            self.sleepers.discard(sleeper)

    def step(self) -> None:
        self.sleepers.clear()
        self._gate.set()
        self._gate = asyncio.Event()


class Listener:
    """Reads one stream; `id`: of the last event."""

    def __init__(self, stream: AsyncIterator[bytes]) -> None:
        self._stream, self.id = stream, ""

    async def next(self) -> tuple[str, dict[str, Any]]:
        while True:
            message = (await asyncio.wait_for(anext(self._stream), 60)).decode()
            fields = dict(line.split(": ", 1) for line in message.splitlines() if line and not line.startswith(":"))
            if "event" in fields:
                self.id = fields["id"]
                return fields["event"], json.loads(fields["data"])

    async def close(self) -> None:
        await self._stream.aclose()


class Side:
    """A daemon, its events and a clock."""

    def __init__(self, daemon: Stand, pool: ThreadPoolExecutor) -> None:
        self.daemon, self.clock = daemon, Steps()
        self.live = Live(daemon, pool, self.clock)

    def listen(self, job: str | None = None, last: str = "") -> Listener:
        return Listener(self.live.join(job, last))

    async def look(self) -> None:
        """Let it look once more, when it has handed out what it saw before."""
        async with asyncio.timeout(60):
            while not self.clock.sleepers and not (self.live._task and self.live._task.done()):
                await asyncio.sleep(0.001)
        self.clock.step()


@pytest.fixture
async def side() -> AsyncIterator[Side]:
    with ThreadPoolExecutor(1) as pool:
        made = Side(stand(), pool)
        yield made
        made.live.close()


async def test_who_comes_is_told_everything_and_then_only_what_changes(side: Side) -> None:
    listener = side.listen("run-7")
    kind, value = await listener.next()
    assert (kind, [j["job"] for j in value["jobs"]]) == ("all", ["run-7", "llama-70b"])
    assert value["board"]["runs"] == [[0, 1, 1, "eval", 2], [1, 3, 2, "train", 0]]
    assert value["board"]["ranks"] == [[0, 3]]
    side.daemon.set_rank("run-7", 2, RankView(2, "failed", 480, "train"))
    await side.look()
    kind, value = await listener.next()
    assert (kind, value["jobs"][0]["counts"]) == ("jobs", {"silent": 1, "waiting": 2, "failed": 1})
    assert await listener.next() == ("ranks", {"job": "run-7", "runs": [[2, 1, 3, "train", 0]]})
    await listener.close()


async def test_an_incident_and_a_point_are_told_once(side: Side) -> None:
    listener, other = side.listen("run-7"), side.listen()
    await listener.next()
    await other.next()
    side.daemon.verdicts.insert(0, verdict("new", title="\u2028<script>"))
    side.daemon.paces["run-7"] = [Pace(5.0, 0.5, 20.0)]
    await side.look()
    assert await listener.next() == ("pace", {"job": "run-7", "point": [5.0, 0.5, 20.0]})
    kind, value = await listener.next()
    assert (kind, value["key"], value["title"]) == ("incident", "new", "\u2028<script>")
    assert (await other.next())[1]["key"] == "new"
    side.daemon.verdicts[0] = verdict("new", revision=3)
    await side.look()
    assert (await listener.next())[1]["revision"] == 3


async def test_a_stall_that_grows_is_no_news(side: Side) -> None:
    listener = side.listen()
    await listener.next()
    side.daemon.job_views[0] = replace(side.daemon.job_views[0], stall_seconds=130.0)
    await side.look()
    side.daemon.job_views.pop(0)
    await side.look()
    assert await listener.next() == ("jobs", {"jobs": [], "gone": ["run-7"]})


async def test_who_comes_back_is_told_what_it_missed_and_no_more(side: Side) -> None:
    listener, stays = side.listen("run-7"), side.listen("run-7")
    await listener.next()
    await stays.next()
    await listener.close()
    side.daemon.verdicts.insert(0, verdict("missed"))
    await side.look()
    await stays.next()
    back = side.listen("run-7", listener.id)
    kind, value = await back.next()
    assert (kind, value["key"]) == ("incident", "missed")


@pytest.mark.parametrize("last", ["", "x", "-", "abcd-1", "{epoch}-999999", "{epoch}-", "{epoch}--1", "{epoch}-²"])
async def test_who_comes_from_elsewhere_is_told_everything(side: Side, last: str) -> None:
    first = side.listen()
    await first.next()
    back = side.listen(None, last.replace("{epoch}", first.id.partition("-")[0]))
    assert (await back.next())[0] == "all"


async def test_who_was_away_too_long_is_told_everything(side: Side) -> None:
    first, stays = side.listen(), side.listen()
    await first.next()
    await stays.next()
    for number in range(KEPT // 100 + 1):
        side.daemon.verdicts[:0] = [verdict(f"k{number}-{n}") for n in range(QUEUE - 1)] if number < 3 else []
        side.daemon.verdicts[:] = [v | {"revision": number + 9} for v in side.daemon.verdicts]
        await side.look()
    assert (await side.listen(None, first.id).next())[0] == "all"


async def test_who_does_not_read_is_let_go_and_holds_up_nobody(side: Side) -> None:
    slow, quick = side.listen(), side.listen()
    await slow.next()
    await quick.next()
    for number in range(QUEUE + 2):
        side.daemon.verdicts[0] = verdict(revision=number + 10)
        await side.look()
        assert (await quick.next())[1]["revision"] == number + 10
    assert len(side.live._listeners) == 1
    assert side.live._task is not None
    assert not side.live._task.done()


async def test_places_are_counted_and_given_back(side: Side) -> None:
    listeners = [side.listen() for _ in range(MOST_LISTENERS)]
    for listener in listeners:
        await listener.next()
    with pytest.raises(TooManyError):
        side.listen()
    await listeners[0].close()
    await side.listen().next()
    for listener in listeners[1:]:
        await listener.close()


async def test_of_too_many_who_join_at_once_the_last_are_sent_away(side: Side) -> None:
    streams = [side.live.join(None, "") for _ in range(MOST_LISTENERS + 1)]  # before any of them is read
    first = [await anext(stream) for stream in streams]
    assert len(side.live._listeners) == MOST_LISTENERS
    assert first[-1] == b"retry: 10000\n\n"
    with pytest.raises(StopAsyncIteration):
        await anext(streams[-1])
    for stream in streams:
        await stream.aclose()  # it is a generator


async def test_nobody_listens_nothing_is_done(side: Side) -> None:
    listener = side.listen()
    await listener.next()
    await listener.close()
    await side.look()
    assert side.live._task is not None
    await asyncio.wait_for(side.live._task, 30)


async def test_closing_ends_every_stream(side: Side) -> None:
    listener = side.listen()
    await listener.next()
    side.live.close()
    with pytest.raises(StopAsyncIteration):
        await listener.next()


async def test_a_change_of_one_of_16384_ranks_is_a_small_event(side: Side) -> None:
    side.daemon.job_views = [job("big", 16_384)]
    listener = side.listen("big")
    _, value = await listener.next()
    assert len(json.dumps(value)) < 1000
    side.daemon.set_rank("big", 9000, RankView(9000, "gone", 480, "train"))
    await side.look()
    assert (await listener.next())[0] == "jobs"
    assert (await listener.next())[1]["runs"] == [[9000, 1, RANK_STATES.index("gone"), "train", 0]]


# --- boards -----------------------------------------------------------------------------------------------------------

RANKS = st.lists(
    st.tuples(st.sampled_from(RANK_STATES), st.sampled_from([None, 7, 8, 9]), st.sampled_from([None, "eval"])),
    max_size=30,
).map(lambda rows: [RankView(3 * n, state, step, phase) for n, (state, step, phase) in enumerate(rows)])


def made_of(ranks: list[RankView]) -> Board:
    return board(JobView("x", 0, step=9, ranks=ranks))


@given(RANKS, RANKS)
def test_what_is_drawn_from_changes_is_what_is(before: list[RankView], after: list[RankView]) -> None:
    old, new = made_of(before), made_of(after)
    drawn: list[Cell | None] = list(old.cells) if new.is_successor(old) else [None] * len(new.cells)
    for run in new.runs(old):
        drawn[run.first : run.first + run.length] = [run.cell] * run.length
    assert drawn == list(new.cells)


@given(RANKS)
def test_every_rank_is_in_one_group_and_has_one_cell_of_the_picture(ranks: list[RankView]) -> None:
    found, left_out = groups(JobView("x", 0, step=9, ranks=ranks))
    if not left_out:
        assert sorted(r for group in found for r in group.ranks) == [r.rank for r in ranks]
    wide, high, paths = shapes(made_of(ranks))
    assert sum(shape.path.count("M") for shape in paths) == len(ranks)
    assert wide * high >= len(ranks)


def test_the_picture_grows_wide_before_it_grows_high() -> None:
    assert [columns(n) for n in (1, 8, 128, 129, 512, 2048, 8192, 16_384)] == [16, 16, 16, 32, 32, 64, 128, 128]
