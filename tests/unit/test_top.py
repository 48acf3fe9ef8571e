"""`denpexd top` on a screen without a terminal: what is drawn, what the keys do, and what it outlives."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from click.testing import CliRunner
from textual.pilot import Pilot
from textual.widgets import DataTable, Static

from denpexd.cli import main
from denpexd.errors import DaemonError
from denpexd.status import Standing
from denpexd.top import Detail, Top, grid

NOW = 1_760_000_100.0
INCIDENT = {
    "key": "k1",
    "job": "run-7",
    "failure": "cuda-oom",
    "title": "The GPU [bold]has no memory[/bold] left",
    "category": "memory",
    "severity": "critical",
    "certainty": "confirmed",
    "state": "open",
    "opened_t": NOW - 75,
    "initiating_ranks": [3],
    "collateral_ranks": [0, 1, 2],
    "quick_answer": "Lower the batch size.",
    "remediation": [{"do": "Set a smaller batch", "command": "python train.py --batch 8"}],
}


def job(name: str, stall: float = 0.0, **counts: int) -> dict[str, Any]:
    return {"job": name, "attempt": 0, "step": 480, "step_seconds": 0.5, "stall_seconds": stall, "counts": counts}


def ranks(*states: str) -> list[dict[str, Any]]:
    return [{"rank": number, "state": state} for number, state in enumerate(states)]


class Fake:
    """A daemon of fixed values, or one that is away."""

    def __init__(self) -> None:
        self.standing = Standing(
            url="http://127.0.0.1:9464",
            now=NOW,
            why=(),
            incidents=[INCIDENT],
            jobs=[job("run-8", running=2), job("run-7", 125.0, waiting=3, failed=1)],
            metrics={"denpexd_build_info": {(("version", "1.2.3"),): 1.0}},
        )
        self.of = {"run-7": ranks("waiting", "waiting", "waiting", "failed"), "run-8": ranks("running", "running")}
        self.away, self.looks, self.taken = "", 0, list[str]()

    def look(self) -> Standing:
        self.looks += 1
        if self.away:
            raise DaemonError(self.away)
        return self.standing

    def acknowledge(self, key: str) -> None:
        if self.away:
            raise DaemonError(self.away)
        self.taken.append(key)
        taken = {"by": "anna", "note": "", "at": NOW, "t": NOW}
        self.standing = replace(self.standing, incidents=[INCIDENT | {"acknowledged": taken}])

    def ranks(self, job: str) -> Sequence[Mapping[str, Any]]:
        return self.of[job]


@pytest.fixture
def fake() -> Fake:
    return Fake()


def text(pilot: Pilot[None], name: str) -> str:
    return str(pilot.app.query_one(f"#{name}", Static).render())


def rows(pilot: Pilot[None], name: str) -> list[list[str]]:
    table = pilot.app.query_one(f"#{name}", DataTable)
    return [[str(cell) for cell in table.get_row_at(at)] for at in range(table.row_count)]


async def until(pilot: Pilot[None], holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not holds():
            await pilot.pause()


async def seen(pilot: Pilot[None]) -> None:
    await until(pilot, lambda: "asking" not in text(pilot, "head"))


async def test_jobs_ranks_and_incidents_are_on_the_screen(fake: Fake) -> None:
    async with Top(fake, every=60).run_test(size=(100, 30)) as pilot:
        await seen(pilot)
        assert "denpexd 1.2.3 at http://127.0.0.1:9464  1 open incident" in text(pilot, "head")
        assert rows(pilot, "jobs") == [
            ["run-7", "failed", "480", "0.5 s", "2 min 5 s", "3 waiting  1 failed"],
            ["run-8", "running", "480", "0.5 s", "", "2 running"],
        ]
        assert "0 wwwF" in text(pilot, "ranks")
        (incident,) = rows(pilot, "incidents")
        assert incident == [
            "1 min 15 s",
            "critical",
            "run-7",
            "rank 3 of 4",
            "confirmed",
            "MEMORY: The GPU [bold]has no memory[/bold] left",
        ]


async def test_a_job_that_has_shown_no_step_says_until_when_it_is_waited_for(fake: Fake) -> None:
    waits = {"step": None, "hang_due_t": 1_760_000_400.0, "hang_due_by": "hang.budgets.start"}
    fake.standing = replace(fake.standing, jobs=[job("run-8", running=2) | waits])
    async with Top(fake, every=60).run_test(size=(100, 30)) as pilot:
        await seen(pilot)
        said = "no step seen yet; silence is judged from 09:00:00 UTC (hang.budgets.start)"
        assert text(pilot, "ranks").splitlines()[0] == said


async def test_an_incident_is_taken_on_with_a_key(fake: Fake) -> None:
    async with Top(fake, every=60).run_test(size=(100, 30)) as pilot:
        await seen(pilot)
        await pilot.press("a")
        await until(pilot, lambda: "(by anna) MEMORY" in rows(pilot, "incidents")[0][-1])
        fake.away = "away"
        await pilot.press("a")
        await until(pilot, lambda: "away" in text(pilot, "head"))
        assert fake.taken == ["k1"]


async def test_another_job_is_chosen_with_the_arrows_and_stays_chosen(fake: Fake) -> None:
    async with Top(fake, every=60).run_test(size=(100, 30)) as pilot:
        await seen(pilot)
        await pilot.press("down")
        await until(pilot, lambda: "0 rr" in text(pilot, "ranks"))
        fake.of["run-8"] = ranks("running", "silent")
        await pilot.press("r")
        await until(pilot, lambda: "0 rs" in text(pilot, "ranks"))
        assert pilot.app.query_one("#jobs", DataTable).cursor_row == 1


async def test_enter_explains_an_incident_and_escape_comes_back(fake: Fake) -> None:
    async with Top(fake, every=60).run_test(size=(100, 40)) as pilot:
        await seen(pilot)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(pilot.app.screen, Detail))
        pilot.app.action_now()  # what comes meanwhile does not disturb it
        await pilot.app.workers.wait_for_complete()
        await pilot.pause()
        shown = str(pilot.app.screen.query_one("#detail Static", Static).render())
        assert "Lower the batch size." in shown
        assert "$ python train.py --batch 8" in shown
        await pilot.press("escape")
        await until(pilot, lambda: not isinstance(pilot.app.screen, Detail))


async def test_a_pause_holds_the_picture_and_a_key_ends_it(fake: Fake) -> None:
    async with Top(fake, every=0.05).run_test(size=(100, 30)) as pilot:
        await seen(pilot)
        await pilot.press("space")
        assert "paused" in text(pilot, "head")
        await pilot.app.workers.wait_for_complete()
        looks = fake.looks
        await pilot.pause(0.2)
        assert fake.looks == looks
        await pilot.press("space")
        await until(pilot, lambda: fake.looks > looks)
        assert "paused" not in text(pilot, "head")


async def test_a_daemon_that_goes_away_is_told_and_what_was_known_stays(fake: Fake) -> None:
    async with Top(fake, every=60).run_test(size=(100, 30)) as pilot:
        await seen(pilot)
        fake.away = "no daemon answers at http://127.0.0.1:9464"
        await pilot.press("r")
        await until(pilot, lambda: "no daemon answers" in text(pilot, "head"))
        assert len(rows(pilot, "jobs")) == 2
        assert "wwwF" in text(pilot, "ranks")
        fake.away, fake.standing = "", replace(fake.standing, incidents=[], why=["its state cannot be written"])
        await pilot.press("r")
        await until(pilot, lambda: "nothing is open" in text(pilot, "head"))
        assert "no daemon" not in text(pilot, "head")
        assert "state cannot be written" in text(pilot, "head")
        assert rows(pilot, "incidents") == []


async def test_a_job_that_is_gone_leaves_the_screen(fake: Fake) -> None:
    async with Top(fake, every=60).run_test(size=(44, 30)) as pilot:
        await seen(pilot)
        await pilot.press("down")
        fake.standing = replace(fake.standing, jobs=[])
        await pilot.press("r")
        await until(pilot, lambda: rows(pilot, "jobs") == [])
        assert "no rank yet" in text(pilot, "ranks")


@pytest.mark.parametrize(("width", "wide"), [(20, 16), (40, 32), (80, 64), (200, 128)])
def test_the_grid_has_as_many_ranks_a_line_as_a_power_of_two_fits(width: int, wide: int) -> None:
    lines = str(grid(ranks(*["running"] * 200), width)).splitlines()
    assert lines[0] == f"  0 {'r' * wide}"
    assert lines[1].startswith(f"{wide:>3} r")
    assert sum(line[4:].count("r") for line in lines[:-1]) == 200
    assert all(len(line) <= width for line in lines[:-1])


def test_a_healthy_job_of_any_size_is_drawn_in_few_strokes() -> None:
    many = ranks(*["running"] * 8192, "failed", *["running"] * 8191)
    drawn = grid(many, 140)
    assert len(drawn.spans) < 300
    assert drawn == grid(many, 140)
    assert drawn != grid([*many[:-1], {"rank": 16383, "state": "silent"}], 140)


def test_nobody_there_is_said_before_the_screen_changes() -> None:
    result = CliRunner().invoke(main, ["top", "--url", "http://127.0.0.1:1"])
    assert result.exit_code == 2
    assert "no daemon answers" in result.stderr


def test_without_the_library_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = CliRunner().invoke(main, ["top", "--url", "http://127.0.0.1:1"])
    assert result.exit_code == 2
    assert "pip install 'denpexd[top]'" in result.stderr
