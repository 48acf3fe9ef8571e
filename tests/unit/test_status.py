"""`denpexd status` and the client below it, against the real server on loopback."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from click.testing import CliRunner, Result
from stand import Stand

from denpexd.cli import main
from denpexd.client import Client, client_of
from denpexd.errors import DaemonError, SettingsError
from denpexd.notify.text import cells
from denpexd.settings import Settings
from denpexd.status import SHOWN, as_text, ask
from denpexd.web.api import create_app
from denpexd.web.server import bind, serve
from denpexd.web.view import JobView, RankView, Stats

INCIDENT = {
    "key": "run-7-a0-1-1a2b3c",
    "job": "run-7",
    "attempt": 0,
    "failure": "cuda-oom",
    "title": "The GPU has no memory left for what rank 3 wants to allocate next",
    "category": "memory",
    "severity": "critical",
    "certainty": "confirmed",
    "state": "open",
    "opened_t": 1_760_000_000.0,
    "updated_t": 1_760_000_000.0,
    "initiating_ranks": [3],
    "collateral_ranks": [0, 1, 2],
    "hang": False,
}
RANKS = [*(RankView(rank, "waiting") for rank in range(3)), RankView(3, "failed")]
BROKEN = JobView(job="run-7", attempt=0, step=480, step_seconds=0.5, stall_seconds=125.0, ranks=RANKS)
SOUND = JobView(job="run-8", attempt=1, step=9, ranks=[RankView(0, "running")])


class Shown(Stand):
    """What a daemon shows; a test changes it."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        counts = Stats(engine="re2", files={"reading": 4}, notifications={("slack", "sent"): 2})
        super().__init__(job_views=[SOUND], counts=counts)
        self.recordings: dict[str, bytes] = {}

    async def recorded(self, job: str) -> bytes | None:
        return self.recordings.get(job)


def serving(view: Shown, said: Callable[[str], None], **options: Any) -> Callable[[], None]:
    """The real server in a thread of its own; returns what ends it."""
    loop = asyncio.new_event_loop()
    server = create_app(view, **options)
    task = loop.create_task(serve(server, bind("127.0.0.1", 0), listening=said))

    def run() -> None:
        with pytest.raises(asyncio.CancelledError):
            loop.run_until_complete(task)
        loop.close()

    thread = threading.Thread(target=run)
    thread.start()

    def end() -> None:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(10)

    return end


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Shown, str]]:
    shown, urls, up = Shown(), list[str](), threading.Event()
    end = serving(shown, lambda url: (urls.append(url), up.set()))
    assert up.wait(60)
    yield shown, urls[0]
    end()


@pytest.fixture
def daemon(server: tuple[Shown, str]) -> tuple[Shown, str]:
    server[0].reset()
    return server


def status(url: str, *arguments: str, columns: int = 100) -> Result:
    return CliRunner().invoke(main, ["status", "--url", url, *arguments], env={"COLUMNS": str(columns)})


def test_all_is_well_and_the_exit_code_says_so(daemon: tuple[Shown, str]) -> None:
    result = status(daemon[1])
    assert result.exit_code == 0
    assert "nothing is open" in result.output
    assert "run-8  running  9" in result.output
    assert "slack  2 sent" in result.output
    assert "4 reading" in result.output


def test_an_open_incident_is_told_with_its_key_and_where_to_read_on(daemon: tuple[Shown, str]) -> None:
    daemon[0].verdicts = [INCIDENT, INCIDENT | {"key": "old", "state": "closed"}]
    daemon[0].job_views = [SOUND, BROKEN]
    result = status(daemon[1])
    assert result.exit_code == 1
    assert "1 open incident\n" in result.output
    assert "MEMORY  rank 3 of 4" in result.output
    assert "key run-7-a0-1-1a2b3c" in result.output
    assert "$ denpexd explain cuda-oom" in result.output
    rows = [line.split()[:2] for line in result.output.splitlines() if line.startswith("run-")]
    assert rows == [["run-7", "failed"], ["run-8", "running"]]
    assert "2 min 5 s" in result.output
    assert "3 waiting, 1 failed" in result.output


def test_a_job_that_has_shown_no_step_says_until_when_it_is_waited_for(daemon: tuple[Shown, str]) -> None:
    waits = {"hang_due_t": 1_760_000_400.0, "hang_due_by": "hang.budgets.start"}
    ranks = [RankView(0, "running")]
    daemon[0].job_views = [SOUND, replace(SOUND, **waits), JobView(job="run-9", attempt=0, ranks=ranks, **waits)]
    result = status(daemon[1], columns=120)
    assert "run-9: no step seen yet; silence is judged from 09:00:00 UTC (hang.budgets.start)" in result.output
    assert result.output.count("silence is judged") == 1
    assert result.exit_code == 0
    daemon[0].job_views = [replace(daemon[0].job_views[2], job=f"run-{n}") for n in range(SHOWN + 3)]
    many = status(daemon[1], columns=120).output
    assert (many.count("silence is judged"), "and 3 more that wait" in many) == (SHOWN, True)


def test_scripts_get_the_same_as_json_with_ranks_counted(daemon: tuple[Shown, str]) -> None:
    daemon[0].verdicts, daemon[0].job_views = [INCIDENT], [BROKEN]
    told = json.loads(status(daemon[1], "--format", "json").stdout)
    assert told["well"] is False
    assert told["incidents"] == [INCIDENT]
    assert told["jobs"][0]["state"] == "failed"
    assert told["jobs"][0]["counts"]["waiting"] == 3
    assert told["sinks"] == {"slack": {"sent": 2}}
    assert told["engine"] == "re2"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"is_healthy": (False, "reading has stood still for 70 s")}, "reading has stood still for 70 s"),
        ({"is_ready": (False, "still catching up")}, "still catching up"),
        ({"counts": Stats(blind=True)}, "cannot read the logs"),
        ({"counts": Stats(notifications={("pd", "dead"): 1})}, "nothing has arrived at pd"),
        ({"counts": Stats(outbox_oldest_seconds=900.0)}, "a message has waited for 15 min"),
        ({"counts": Stats(state_write_errors=1)}, "state cannot be written"),
        ({"counts": Stats(config_reload_ok=False)}, "reload was refused"),
    ],
)
def test_a_daemon_that_is_not_well_is_no_success(daemon: tuple[Shown, str], change: dict[str, Any], told: str) -> None:
    for name, value in change.items():
        setattr(daemon[0], name, value)
    result = status(daemon[1])
    assert result.exit_code == 1
    assert told in result.output


@pytest.mark.parametrize("columns", [40, 57, 80, 120])
def test_nothing_but_what_is_copied_runs_over_the_edge(daemon: tuple[Shown, str], columns: int) -> None:
    daemon[0].verdicts, daemon[0].job_views = [INCIDENT], [SOUND, BROKEN]
    for line in status(daemon[1], columns=columns).output.splitlines():
        assert cells(line) <= columns or "$ denpexd" in line or "key " in line


def test_of_many_incidents_the_screen_shows_some_and_says_how_many_more(daemon: tuple[Shown, str]) -> None:
    daemon[0].verdicts = [INCIDENT | {"key": f"k{n}"} for n in range(SHOWN + 5)]
    result = status(daemon[1])
    assert "25 open incidents" in result.output
    assert result.output.count("key k") == SHOWN
    assert "and 5 more" in result.output


def test_what_comes_in_several_pages_is_taken_together(
    daemon: tuple[Shown, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("denpexd.status.A_PAGE", 3)
    daemon[0].verdicts = [INCIDENT | {"key": f"k{n}", "updated_t": 1_760_000_000.0 - n} for n in range(8)]
    daemon[0].job_views = [JobView(job=f"run-{n}", attempt=0) for n in range(7)]
    with Client(daemon[1]) as client:
        standing = ask(client, 1_760_000_060.0)
    assert [v["key"] for v in standing.incidents] == [f"k{n}" for n in range(8)]
    assert [job["job"] for job in standing.jobs] == [f"run-{n}" for n in range(7)]


def test_colour_follows_what_is_wrong(daemon: tuple[Shown, str]) -> None:
    daemon[0].verdicts = [INCIDENT]
    with Client(daemon[1]) as client:
        standing = ask(client, 1_760_000_060.0)
    assert "\x1b[1;31m● MEMORY" in as_text(standing, color=True, width=100)
    assert "for 1 min 0 s" in as_text(standing, color=False, width=100)
    assert "\x1b" not in as_text(standing, color=False, width=100)


def test_nobody_there_is_said_with_what_to_do() -> None:
    result = status("http://127.0.0.1:1")
    assert result.exit_code == 2
    assert "no daemon answers at http://127.0.0.1:1" in result.stderr
    assert "denpexd run" in result.stderr


def test_another_program_on_the_port_is_told_from_a_daemon() -> None:
    page = httpx.Response(404, text="<html>no such page</html>", headers={"content-type": "text/html"})
    with (
        pytest.raises(
            DaemonError, match="answers 404: Not Found, not as denpexd does: is another program there"
        ) as told,
        Client("http://127.0.0.1:9464", transport=httpx.MockTransport(lambda _: page)) as client,
    ):
        client.get("jobs")
    assert "<html>" not in str(told.value)


def test_a_daemon_that_wants_a_token_is_asked_with_the_one_of_its_configuration(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret-token\n")
    urls, up = list[str](), threading.Event()
    end = serving(Shown(), lambda url: (urls.append(url), up.set()), token="s3cret-token", host="0.0.0.0")
    try:
        assert up.wait(60)
        with pytest.raises(DaemonError, match="401: a token is needed"), Client(urls[0]) as client:
            client.get("jobs")
        assert status(urls[0], "--token-file", str(tmp_path / "token")).exit_code == 0
        (tmp_path / "denpexd.yaml").write_text(f"web: {{token_file: {tmp_path / 'token'}}}")
        assert status(urls[0], "-c", str(tmp_path / "denpexd.yaml")).exit_code == 0
    finally:
        end()


@pytest.mark.parametrize(
    ("web", "url"),
    [
        ({}, "http://127.0.0.1:9464"),
        ({"host": "0.0.0.0", "port": 80}, "http://127.0.0.1:80"),
        ({"host": "::", "port": 80}, "http://[::1]:80"),
        ({"host": "gpu-01", "port": 80}, "http://gpu-01:80"),
    ],
)
def test_where_the_daemon_listens_comes_from_its_settings(web: dict[str, Any], url: str) -> None:
    with client_of(Settings(web=web)) as client:
        assert client.url == url


def test_a_port_that_only_the_system_knows_has_to_be_named() -> None:
    with pytest.raises(SettingsError, match="give --url"):
        client_of(Settings(web={"port": 0}))


def test_something_else_that_listens_there_is_recognised(daemon: tuple[Shown, str]) -> None:
    with Client(daemon[1]) as client, pytest.raises(DaemonError, match="404"):
        client.get("nothing")
    with pytest.raises(SettingsError, match="http"):
        Client("ftp://there")


# --- record -----------------------------------------------------------------------------------------------------------


def test_a_recording_is_written_of_the_only_job_or_the_one_that_is_named(
    daemon: tuple[Shown, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown, url = daemon
    shown.job_views = [SOUND, replace(SOUND, job="team/run 9%")]
    shown.recordings = {"team/run 9%": b"an archive"}
    monkeypatch.chdir(tmp_path)

    def record(*arguments: str) -> Result:
        return CliRunner().invoke(main, ["record", "--url", url, *arguments])

    assert "say of which job; there are: run-8, team/run 9%" in record().output
    assert "no job 'run-7' is watched" in record("run-7").output
    assert "nothing is recorded" in record("run-8").output
    assert list(tmp_path.iterdir()) == []
    shown.job_views = shown.job_views[1:]
    result = record()
    (written,) = tmp_path.iterdir()
    assert written.read_bytes() == b"an archive"
    assert written.stat().st_mode & 0o777 == 0o600
    assert f"denpexd replay {written.name}" in result.output
    assert "ends with .tar.xz" in record("-o", "x.zip").output
