"""Other rules for a running daemon: over real signals, sockets and files."""

import asyncio
import io
import json
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from denpexd.app import Mode, run
from denpexd.catalog import packs
from denpexd.catalog.load import shipped_rules
from denpexd.core.events import Opened
from denpexd.daemon import Daemon
from denpexd.errors import SettingsError
from denpexd.settings import Settings
from denpexd.watched import Outcome

RULE = (shipped_rules() / "memory" / "rank-oom-killed.yaml").read_text("utf-8").replace("rank-oom-killed", "my-rule", 1)
STEP = "step {n} loss 2.3\n"


class Site:
    """A daemon at work on two ranks, with one pack of its own."""

    def __init__(self, folder: Path) -> None:
        self.logs, self.rules = folder / "logs", folder / "rules"
        self.logs.mkdir()
        (self.rules / "memory").mkdir(parents=True)
        (self.rules / "memory" / "my-rule.yaml").write_text(RULE)
        self.settings = Settings(
            paths=[str(self.logs / "rank{rank}.log")],
            rules=[self.rules],
            state_dir=folder / "state",
            web={"port": 0},
            ingest={"sweep": 0.1},
        )
        self.daemon: Daemon | None = None
        self.stop = False
        self.client = httpx.AsyncClient(trust_env=False, timeout=90)

    def until(self, daemon: Daemon) -> bool:
        self.daemon = daemon
        return self.stop

    def print(self, rank: int, text: str) -> None:
        with (self.logs / f"rank{rank}.log").open("a") as file:
            file.write(text)

    async def numbers(self) -> dict[str, float]:
        page = (await self.client.get("/metrics")).text
        rows = [line.rsplit(" ", 1) for line in page.splitlines() if line.startswith("denpexd_")]
        return {name.replace('"', ""): float(value) for name, value in rows}

    async def becomes(self, true: Callable[[], bool]) -> None:
        async with asyncio.timeout(90):
            while not true():
                await asyncio.sleep(0.05)


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    """The daemon with two of the shipped rules, which are compiled in no time."""
    shipped = tmp_path / "shipped"
    shutil.copytree(shipped_rules() / "signals", shipped / "signals")
    for rule in ("crash/single-rank-exception.yaml", "hang/silent-hang.yaml"):
        (shipped / rule).parent.mkdir()
        shutil.copy(shipped_rules() / rule, shipped / rule)
    monkeypatch.setattr(packs, "shipped_rules", lambda: shipped)
    site = Site(tmp_path)
    url: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    mode = Mode(
        stream=io.StringIO(),
        color=False,
        until=site.until,
        listening=url.set_result,
        reread=lambda: site.settings,
    )
    running = asyncio.create_task(run(site.settings, mode))
    try:
        await asyncio.wait([url, running], return_when=asyncio.FIRST_COMPLETED)
        site.client.base_url = httpx.URL(await url)
        await site.becomes(lambda: site.daemon is not None)
        yield site
    finally:
        site.stop = True
        await running
        await site.client.aclose()


async def test_new_rules_are_taken_and_nothing_that_is_known_is_lost(site: Site) -> None:
    daemon = site.daemon
    assert daemon is not None
    for rank in (0, 1):
        site.print(rank, "".join(STEP.format(n=n) for n in range(1, 40)))
    site.print(1, "MYDISK: sector lost\n")
    await site.becomes(lambda: daemon.pipeline.lines == 2 * 39 + 1)
    (job,) = daemon.pipeline.jobs.values()
    core, moves, lines = job.core, job.core.job.moves, daemon.pipeline.lines
    before = await site.numbers()
    other = RULE.replace("my-rule", "other-rule", 1).replace("fact: oom_killed", "log: 'MYDISK: [a-z ]+'", 1)
    (site.rules / "memory" / "other-rule.yaml").write_text(other)
    answer = await site.client.post("/-/reload")
    assert (answer.status_code, "in force" in answer.text) == (200, True)
    assert job.core is core
    assert "other-rule" in core.catalog.rules
    assert (core.job.moves, daemon.pipeline.lines) == (moves, lines)
    after = await site.numbers()
    assert after["denpexd_rules{pack=rules}"] == before["denpexd_rules{pack=rules}"] + 1 == 2
    assert after["denpexd_config_reloads_total{outcome=taken}"] == 1
    stamp = "denpexd_config_last_reload_success_timestamp_seconds"
    assert after[stamp] > before[stamp]
    site.print(1, "MYDISK: sector lost\n")
    await site.becomes(lambda: "other-rule" in core.fingerprints)


async def test_an_open_incident_outlives_a_reload_with_its_key(site: Site) -> None:
    daemon = site.daemon
    assert daemon is not None
    crash = "Traceback (most recent call last):\n  File 'a.py', line 3, in main\n    step()\nValueError: bad\n"
    lost = "RuntimeError: [/gloo/transport/tcp/pair.cc:544] Connection closed by peer [10.0.0.2]:4711\n"
    for rank in (0, 1):
        site.print(rank, "".join(STEP.format(n=n) for n in range(1, 40)))
    await site.becomes(lambda: daemon.pipeline.lines >= 78)
    site.print(1, crash)
    site.print(0, "Traceback (most recent call last):\n  File 'a.py', line 3, in main\n    step()\n" + lost)
    await site.becomes(lambda: bool(daemon.ledger.incidents))
    (opened,) = daemon.ledger.incidents.values()
    assert (await site.client.post("/-/reload")).status_code == 200
    (still,) = (await site.client.get("/api/v1/incidents")).json()["incidents"]
    assert (still["key"], still["state"], still["revision"]) == (opened["key"], "open", opened["revision"])


async def test_one_mistake_anywhere_keeps_all_former_rules(site: Site) -> None:
    daemon = site.daemon
    assert daemon is not None
    former = daemon.pipeline.catalog
    good = site.rules / "memory" / "good.yaml"
    good.write_text(RULE.replace("my-rule", "good", 1))
    bad = site.rules / "memory" / "my-rule.yaml"
    bad.write_text(RULE.replace("severity: critical", "severity: critcal", 1))
    answer = await site.client.post("/-/reload")
    assert answer.status_code == 500
    assert f"{bad}:5:11: 'critcal' is not a valid value (did you mean 'critical'?)" in answer.text
    assert daemon.pipeline.catalog is former
    numbers = await site.numbers()
    assert numbers["denpexd_config_last_reload_successful"] == 0
    assert numbers["denpexd_config_reloads_total{outcome=refused}"] == 1
    bad.write_text(RULE)
    os.kill(os.getpid(), signal.SIGHUP)
    await site.becomes(lambda: "good" in daemon.pipeline.catalog.rules)
    assert (await site.numbers())["denpexd_config_last_reload_successful"] == 1


async def test_looking_never_changes_anything_and_other_sites_may_not(site: Site) -> None:
    for method in ("GET", "HEAD", "PUT", "DELETE"):
        answer = await site.client.request(method, "/-/reload")
        assert (answer.status_code, answer.headers["allow"]) == (405, "POST")
    for headers in (
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"host": "evil.example"},
    ):
        assert (await site.client.post("/-/reload", headers=headers)).status_code in (403, 421)
    assert (await site.numbers())["denpexd_config_reloads_total{outcome=taken}"] == 0
    own = {"origin": str(site.client.base_url).rstrip("/"), "sec-fetch-site": "same-origin"}
    assert (await site.client.post("/-/reload", headers=own)).status_code == 200


async def test_packs_and_their_mistakes_are_shown(site: Site) -> None:
    shown = (await site.client.get("/api/v1/rules")).json()["packs"]
    assert [(pack["name"], pack["kind"], pack["errors"]) for pack in shown[:2]] == [
        ("denpexd", "shipped", []),
        ("rules", "folder", []),
    ]
    assert shown[1]["rules"] == 1


async def test_other_paths_are_watched_and_former_ones_let_go(site: Site, tmp_path: Path) -> None:
    daemon, more = site.daemon, tmp_path / "more"
    assert daemon is not None
    more.mkdir()
    for folder in (site.logs, more):
        (folder / "rank0.log").write_text(STEP.format(n=1))
    await site.becomes(lambda: set(daemon.reader.found) == {site.logs / "rank0.log"})

    site.settings = site.settings.model_copy(
        update={
            "paths": [str(more / "rank{rank}.log")],
            "hang": site.settings.hang.model_copy(update={"min_silence": 7.0}),
        }
    )
    taken, said = await daemon.reload()

    assert taken, said
    await site.becomes(lambda: set(daemon.reader.found) == {more / "rank0.log"})
    assert daemon.reader.kept["descriptor"] <= 1
    await site.becomes(lambda: any(job.core.job.ranks.get(0) for job in daemon.pipeline.jobs.values()))
    assert {job.core.limits.min_silence for job in daemon.pipeline.jobs.values()} == {7.0}


async def test_other_sinks_and_alert_settings_are_taken_and_what_needs_a_restart_is_named(
    site: Site, tmp_path: Path
) -> None:
    daemon = site.daemon
    assert daemon is not None
    site.print(0, STEP.format(n=1))
    await site.becomes(lambda: len(daemon.reader.found) == 1)
    (console,) = daemon.deliverer._lanes.values()
    told = tmp_path / "told.jsonl"
    others = Settings(
        sinks=[{"type": "console"}, {"type": "file", "path": told}],
        tags={"team": "nlp"},
        alerts={"flap": "1m"},
        web={"port": 9},
        log_level="warning",
    )
    changed = {name: getattr(others, name) for name in ("sinks", "tags", "alerts", "web", "log_level")}
    site.settings = site.settings.model_copy(update=changed)
    taken, said = await daemon.reload()
    assert taken, said
    assert said.endswith("these have changed and are taken at a restart: web.port")
    assert list(daemon.deliverer._lanes) == ["console", "file"]
    assert daemon.deliverer._lanes["console"] is console, "it did not change"
    await daemon.handle(
        Outcome(
            [Opened({"key": "k", "revision": 1, "severity": "high", "state": "open", "job": "run", "failure": "f"})]
        )
    )
    await site.becomes(lambda: daemon.deliverer.counters["file", "sent"] == 1)
    assert json.loads(told.read_text())["tags"] == {"team": "nlp"}

    def unusable(settings: Settings) -> Any:
        raise SettingsError("sinks[0]: there is no such service")

    daemon._prepare = unusable
    taken, said = await daemon.reload()
    assert (taken, "there is no such service" in said) == (False, True)
    assert list(daemon.deliverer._lanes) == ["console", "file"]


async def test_settings_that_are_broken_change_nothing(site: Site) -> None:
    daemon = site.daemon
    assert daemon is not None
    site.print(0, STEP.format(n=1))
    await site.becomes(lambda: len(daemon.reader.found) == 1)

    def broken() -> Settings:
        raise SettingsError("denpexd.yaml:3: unknown key `pahts`")

    daemon.rules._reread = broken
    taken, said = await daemon.reload()

    assert not taken
    assert "denpexd.yaml:3" in said
    assert set(daemon.reader.found) == {site.logs / "rank0.log"}


async def test_a_fault_at_one_line_is_no_crash_loop(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = site.daemon
    assert daemon is not None
    feed, faults = daemon.pipeline.feed, 0

    def poisoned(found: Any, read: Any, now: float) -> Any:
        nonlocal faults
        if b"poison" in read.data:
            faults += 1
            raise ValueError("a fault of ours")
        return feed(found, read, now)

    monkeypatch.setattr(daemon.pipeline, "feed", poisoned)
    site.print(0, "poison\n")
    await site.becomes(lambda: faults > 0)
    for rank in (0, 1):
        site.print(rank, "".join(STEP.format(n=n) for n in range(20)))
    await site.becomes(lambda: daemon.pipeline.lines >= 40)
    assert (await site.numbers())["denpexd_task_restarts_total{task=read}"] == 1
    assert faults == 1
