"""What people do about alerts, over the real API of a real daemon: silences and acknowledgements that survive it."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from click.testing import CliRunner

from denpexd.catalog.packs import Packs
from denpexd.cli import main
from denpexd.client import Client
from denpexd.clock import ManualClock
from denpexd.core.cadence import Limits
from denpexd.core.events import Closed, Opened, Updated
from denpexd.daemon import Daemon
from denpexd.handling import Handling
from denpexd.notify.history import History
from denpexd.notify.outbox import Store
from denpexd.notify.render import report
from denpexd.pipeline import Pipeline
from denpexd.reload import Rules
from denpexd.scan.engine import choose_engine
from denpexd.scan.scanner import Scanner
from denpexd.settings import Settings
from denpexd.snapshot import DaemonView
from denpexd.watched import Outcome
from denpexd.web.api import create_app, verdict_schema

from .test_daemon import TINY, Files, Processes

START = 1_700_000_000.0
SCANNER = Scanner([s for s in TINY.signals.values() if s.kind == "log"], choose_engine())


class Deliverer:
    counters: Mapping[tuple[str, str], int] = {}

    def wake(self) -> None:
        pass

    def well(self, name: str) -> bool:
        return True


class Site:
    """A daemon with its API, on a state that outlives it."""

    def __init__(self, store: Store, clock: ManualClock, **settings: Any) -> None:
        self.store, self.clock = store, clock
        pipeline = Pipeline(TINY, SCANNER, start_t=clock.now(), limits=Limits())
        rules = Rules(Packs(TINY, ()), clock)
        options = {"sinks": [{"type": "console", "name": "hook", "remind": "30m"}], **settings}
        parts: Any = (pipeline, Files(), store, Deliverer(), Processes(), clock, rules)
        self.daemon = Daemon(Settings(**options), *parts)
        app = create_app(DaemonView(self.daemon), actions=Handling(self.daemon))
        self.app = app
        self.client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost")

    async def say(self, kind: type[Any], **more: Any) -> None:
        """The core says this about an incident."""
        await self.daemon.handle(Outcome([kind(incident(self.clock.now(), **more))]))

    async def later(self, seconds: float) -> None:
        """Time passes, a tick a minute."""
        for _ in range(max(1, int(seconds / 60))):
            await self.clock.advance(min(60.0, seconds))
            await self.daemon.ledger.commit()

    def sent(self) -> list[tuple[str, str]]:
        """What has been sent since the last call: key and reason."""
        rows = self.store.due(1e12)
        found = [(row.delivery.key, row.delivery.reason) for row in rows]
        for row in rows:
            self.store.done(row)
        return found + (self.sent() if found else [])

    def why(self, key: str) -> list[tuple[str, str]]:
        """What was decided about an incident, as it is stored."""
        return self.store.rows("SELECT action, reason FROM decisions WHERE key = ? ORDER BY id", (key,))


def incident(now: float, key: str = "k", revision: int = 1, **more: Any) -> dict[str, Any]:
    about = {"job": "llama", "failure": "nccl-timeout", "severity": "high", "initiating_ranks": [3]}
    told = {"state": "open", "opened_t": now, "updated_t": now, "nodes": {"3": "gpu-17"}, "category": "hang"}
    return {"key": key, "revision": revision, **about, **told, **more}


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(START, START)


@asynccontextmanager
async def started(folder: Path, clock: ManualClock, **settings: Any) -> AsyncIterator[Site]:
    with Store(folder / "x.sqlite", clock) as store:
        site = Site(store, clock, **settings)
        try:
            yield site
        finally:
            await site.client.aclose()


async def silence(site: Site, **body: Any) -> dict[str, Any]:
    answer = await site.client.post("/api/v1/silences", json={"match": {"node": "gpu-17"}, "for": "1h", **body})
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


class TestSilences:
    async def test_nothing_new_is_told_while_it_lasts_and_what_is_open_still_after_it(
        self, tmp_path: Path, clock: ManualClock
    ) -> None:
        async with started(tmp_path, clock) as site:
            one = await silence(site, by="anna", comment="cable")
            assert (one["state"], one["ends_t"], one["match"]) == ("active", START + 3600, {"node": ["gpu-17"]})
            await site.say(Opened)
            await site.say(Opened, key="other", nodes={"3": "gpu-2"}, job="bert")
            assert site.sent() == [("other", "first")]
            await site.later(1800)
        async with started(tmp_path, clock) as site:  # it survives a restart
            (known,) = (await site.client.get("/api/v1/silences?state=active")).json()["silences"]
            assert (known["id"], known["by"], known["comment"]) == (one["id"], "anna", "cable")
            await site.later(1500)
            assert [one for one in site.sent() if one[0] == "k"] == []
            await site.later(600)
            assert ("k", "first") in site.sent()
            assert site.why("k") == [("drop", "silenced"), ("drop", "silenced"), ("send", "first")]
            told = (await site.client.get("/api/v1/incidents/k/decisions")).json()["decisions"]
            assert (told[0]["sink"], told[0]["action"]) == ("hook", "drop")
            assert told[0]["detail"] == f"silence {one['id']}"

    async def test_what_was_over_before_its_end_is_not_told(self, tmp_path: Path, clock: ManualClock) -> None:
        async with started(tmp_path, clock) as site:
            await silence(site)
            await site.say(Opened)
            await site.say(Closed, revision=2, state="closed")
            await site.later(7200)
            assert site.sent() == []

    async def test_it_can_be_expired_and_the_end_of_what_was_told_passes_it(
        self, tmp_path: Path, clock: ManualClock
    ) -> None:
        async with started(tmp_path, clock) as site:
            await site.say(Opened)
            one = await silence(site)
            await site.say(Updated, revision=2)
            assert site.sent() == [("k", "first")]
            ended = await site.client.delete(f"/api/v1/silences/{one['id']}")
            assert ended.json()["state"] == "expired"
            await site.later(60)
            assert site.sent() == [("k", "updated")]
            await silence(site)
            await site.say(Closed, revision=3, state="closed")
            assert site.sent() == [("k", "closed")]

    @pytest.mark.parametrize(
        ("body", "status", "why"),
        [
            ({}, 400, "match: field required"),
            ({"match": {}, "for": "1h"}, 400, "it names nothing"),
            ({"match": {"jobb": "x"}, "for": "1h"}, 400, "unknown field match.jobb; there are category, domain"),
            ({"match": {"job": "x"}}, 400, 'give either "for"'),
            ({"match": {"job": "x"}, "for": "1h", "ends_t": 2e9}, 400, 'give either "for"'),
            ({"match": {"job": "x"}, "for": "60"}, 400, "a duration has a unit"),
            ({"match": {"job": "x"}, "ends_t": 5}, 400, "over before it begins"),
            ({"match": {"job": "x"}, "for": "800d"}, 400, "for: input should be less"),
            ({"match": {"rank": "x"}, "for": "1h"}, 400, "is no rank"),
            ({"match": {"severity": "urgent"}, "for": "1h"}, 400, "severity"),
            ({"match": {"failure": "stuk"}, "for": "1h"}, 400, "no rule has failure stuk; did you mean stuck?"),
            ({"match": {"failure": ["stuck", "nope-*"]}, "for": "1h"}, 400, "no rule has failure nope-*"),
            ({"match": {"category": "hangs"}, "for": "1h"}, 400, "no rule has category hangs; did you mean hang?"),
            ({"match": {"job": "x"}, "for": "1h", "by": "x" * 201}, 400, "by: string should have at most 200"),
            ([], 400, "must be a JSON object"),
        ],
    )
    async def test_what_is_wrong_is_said(
        self, tmp_path: Path, clock: ManualClock, body: Any, status: int, why: str
    ) -> None:
        async with started(tmp_path, clock) as site:
            answer = await site.client.post("/api/v1/silences", json=body)
            assert (answer.status_code, why in answer.json()["error"]) == (status, True), answer.text
            assert (await site.client.get("/api/v1/silences")).json() == {"silences": []}

    async def test_other_sites_forms_and_looks_change_nothing(self, tmp_path: Path, clock: ManualClock) -> None:
        async with started(tmp_path, clock) as site:
            body = b'{"match": {"job": "*"}, "for": "1h"}'
            ask = site.client.post
            for headers in ({"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}):
                assert (await ask("/api/v1/silences", content=body, headers=headers)).status_code == 403
            for kind in ({}, {"content-type": "text/plain"}):
                assert (await ask("/api/v1/silences", content=body, headers=kind)).status_code == 415
            typed = {"content-type": "application/json"}
            assert (await ask("/api/v1/silences", content=b"{", headers=typed)).status_code == 400
            assert (await ask("/api/v1/silences", content=b'"\\ud800"', headers=typed)).status_code == 400
            assert (await ask("/api/v1/silences", content=b" " * 70_000, headers=typed)).status_code == 413
            assert (await site.client.get("/api/v1/silences?state=odd")).status_code == 400
            assert (await site.client.delete("/api/v1/silences/nope")).status_code == 404
            assert (await site.client.get("/api/v1/incidents/k/ack")).status_code in (404, 405)
            assert site.daemon.ledger.book.silences == {}

    async def test_secrets_in_comments_are_hidden(self, tmp_path: Path, clock: ManualClock) -> None:
        async with started(tmp_path, clock) as site:
            one = await silence(site, comment="see https://user:hunter2secret@wiki/x")
            assert "hunter2secret" not in one["comment"]


class TestAcknowledge:
    async def test_reminders_come_until_somebody_takes_it_on(self, tmp_path: Path, clock: ManualClock) -> None:
        async with started(tmp_path, clock) as site:
            await site.say(Opened)
            await site.later(2000)
            assert site.sent() == [("k", "first"), ("k", "reminder")]
            await site.later(3600 + 7200)
            assert site.sent() == [("k", "reminder")], "of those that wait for the receiver the newest is enough"
            answer = await site.client.post("/api/v1/incidents/k/ack", json={"by": "anna", "note": "looking"})
            said = answer.json()["acknowledged"]
            assert (answer.status_code, said) == (
                200,
                {"t": clock.wall(), "by": "anna", "note": "looking", "closed": False},
            )
            assert site.sent() == [("k", "acknowledged")]
            await site.later(40 * 3600)
            assert site.sent() == []
        async with started(tmp_path, clock) as site:
            await site.later(20 * 3600)
            assert site.sent() == [], "it survives a restart"
            assert (await site.client.get("/api/v1/incidents/k")).json()["acknowledged"]["by"] == "anna"
            taken_over = await site.client.post("/api/v1/incidents/k/ack", json={"by": "bob"})
            assert {name: taken_over.json()["acknowledged"][name] for name in ("by", "note")} == {
                "by": "bob", "note": "looking"
            }  # fmt: skip

    async def test_closing_by_hand_tells_the_end_with_the_note(self, tmp_path: Path, clock: ManualClock) -> None:
        async with started(tmp_path, clock) as site:
            await site.say(Opened)
            answer = await site.client.post("/api/v1/incidents/k/ack", json={"note": "cable swapped", "close": True})
            assert (answer.json()["state"], answer.json()["acknowledged"]["note"]) == ("closed", "cable swapped")
            assert site.sent() == [("k", "first"), ("k", "closed")]
            again = await site.client.post("/api/v1/incidents/k/ack", json={"close": True})
            assert again.status_code == 409
            noted = await site.client.post("/api/v1/incidents/k/ack", json={"note": "it was the switch"})
            assert noted.json()["acknowledged"]["note"] == "it was the switch"
            assert site.sent() == []

    async def test_what_is_not_there_is_said(self, tmp_path: Path, clock: ManualClock) -> None:
        async with started(tmp_path, clock) as site:
            answer = await site.client.post("/api/v1/incidents/nope/ack")
            assert (answer.status_code, "no incident has the key nope" in answer.json()["error"]) == (404, True)
            odd = await site.client.post("/api/v1/incidents/k/ack", json={"bye": "x"})
            assert "unknown field bye; there are by, close, note" in odd.json()["error"]

    async def test_who_acknowledges_at_a_receiver_counts_once(self, tmp_path: Path, clock: ManualClock) -> None:
        async with started(tmp_path, clock) as site:
            await site.say(Opened)
            handling = Handling(site.daemon)
            for _ in range(3):
                handling.note("k", "Anna")
                handling.note("unknown", "Anna")
                await site.later(60)
            assert site.sent() == [("k", "first"), ("k", "acknowledged")]


class TestCommandLine:
    """The verbs, against the API of the daemon in this process."""

    @pytest.fixture
    async def site(self, tmp_path: Path, clock: ManualClock) -> AsyncIterator[Site]:
        async with started(tmp_path, clock) as site:
            await site.say(Opened)
            yield site

    @pytest.fixture
    async def run(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> Any:
        def transport(request: httpx.Request) -> httpx.Response:
            # The client is synchronous, so it runs in a thread of its own; the daemon answers in this loop.
            future = asyncio.run_coroutine_threadsafe(
                site.client.request(
                    request.method,
                    request.url.raw_path.decode(),
                    content=request.read(),
                    headers=dict(request.headers),
                ),
                loop,
            )
            got = future.result(10)
            return httpx.Response(got.status_code, content=got.content, headers=got.headers)

        loop = asyncio.get_running_loop()
        over = httpx.MockTransport(transport)
        monkeypatch.setattr("denpexd.client.client_of", lambda *_: Client("http://localhost", transport=over))

        async def call(*words: str) -> tuple[int, str]:
            result = await asyncio.to_thread(CliRunner().invoke, main, list(words))
            return result.exit_code, result.output

        return call

    async def test_a_silence_is_added_listed_and_expired(self, run: Any) -> None:
        code, said = await run(
            "silence", "add", "job=llama-*,bert", "tags.team=nlp", "--for", "2h", "--by", "anna", "--comment", "why"
        )
        assert (code, "active   until 2023-11-15 00:13Z  job=llama-*,bert tags.team=nlp  anna  why" in said) == (
            0,
            True,
        )
        assert said.split()[0] in (await run("silence", "list"))[1]
        assert "expired" in (await run("silence", "expire", said.split()[0]))[1]
        assert "nothing is silenced" in (await run("silence", "list"))[1]
        assert "expired" in (await run("silence", "list", "--all"))[1]

    async def test_the_beginning_of_a_key_is_enough_where_no_other_begins_so(self, run: Any, site: Site) -> None:
        await site.say(Opened, key="llama-a0-1-1a2b3c")
        await site.say(Opened, key="llama-a0-2-99")
        code, said = await run("ack", "llama-a0-1", "--by", "anna")
        assert (code, said) == (0, "llama-a0-1-1a2b3c is open, acknowledged by anna\n")
        code, said = await run("ack", "llama")
        assert (code, "llama-a0-1-1a2b3c, llama-a0-2-99" in said) == (2, True)
        code, said = await run("ack", "x/y ?")
        assert (code, "denpexd status" in said, "/api" in said) == (2, True, False)
        ids = [(await run("silence", "add", f"job={n}", "--for", "2h"))[1].split()[0] for n in range(2)]
        same = next(n for n in range(9) if ids[0][:n] != ids[1][:n])
        assert "expired" in (await run("silence", "expire", ids[0][:same]))[1]
        code, said = await run("silence", "expire", "nope")
        assert (code, "denpexd silence list --all" in said) == (2, True)

    async def test_mistakes_are_one_line_and_exit_code_2(self, run: Any) -> None:
        for words in (
            ["silence", "add", "job", "--for", "2h"],
            ["silence", "add", "jobb=x", "--for", "2h"],
            ["silence", "add", "job=x", "--for", "2"],
            ["silence", "expire", "nope"],
            ["ack", "nope"],
        ):
            code, said = await run(*words)
            assert (code, said.count("\n")) == (2, 1), said

    async def test_the_past_and_what_was_done_about_it_are_listed(self, run: Any) -> None:
        code, said = await run("history", "--failure", "nccl-timeout")
        assert (code, "2023-11-14 22:13Z  open" in said, "nccl-timeout  llama" in said) == (0, True, True)
        assert await run("history", "no such text") == (0, "nothing is known\n")
        await run("ack", "k", "--by", "anna", "--note", "cable", "--close")
        assert "anna: cable" in (await run("history", "--fixes"))[1]
        assert json.loads((await run("history", "--format", "json"))[1])["incidents"][0]["key"] == "k"

    async def test_an_incident_is_taken_on_and_closed(self, run: Any) -> None:
        assert await run("ack", "k", "--by", "anna") == (0, "k is open, acknowledged by anna\n")
        assert await run("ack", "k", "--by", "", "--note", "done", "--close") == (
            0,
            "k is closed, acknowledged: done\n",
        )


class TestHistory:
    async def test_an_alert_tells_how_often_and_where_and_what_was_done(
        self, tmp_path: Path, clock: ManualClock
    ) -> None:
        async with started(tmp_path, clock, alerts={"flap": "0s"}) as site:
            await site.say(Opened, key="first")
            assert "history" not in site.daemon.ledger.incidents["first"]
            await site.client.post("/api/v1/incidents/first/ack", json={"by": "anna", "note": "cable", "close": True})
            await site.later(3600)
            await site.say(Opened, key="elsewhere", job="bert")
            await site.say(Closed, key="elsewhere", job="bert", state="closed", revision=2)
            await site.later(7200)
        async with started(tmp_path, clock, alerts={"flap": "0s"}) as site:  # it is in the state
            await site.say(Opened, key="second")
            told = site.daemon.ledger.incidents["second"]["history"]
            assert isinstance(told, dict)
            assert (told["in_job"], told["elsewhere"], told["on_node"]) == (1, 1, {"gpu-17": 2})
            assert told["text"] == (
                "once in this job, once in others, 2 times on gpu-17, last 2 h ago;"
                " fixed by anna 3 h ago: cable - it has come back"
            )
            schema = json.loads(verdict_schema())["properties"]["history"]
            jsonschema.validate(told, schema)
            (row,) = [row for row in site.store.due(1e12) if row.delivery.key == "second"]
            assert "it has come back" in report(row.delivery.verdict, color=False, width=200)

    async def test_a_fix_has_held_after_enough_training(self, tmp_path: Path, clock: ManualClock) -> None:
        async with started(tmp_path, clock) as site:
            history = site.daemon.ledger.history
            await site.say(Opened)
            await site.say(Closed, revision=2, state="closed")
            assert history.watched == frozenset()
            await site.client.post("/api/v1/incidents/k/ack", json={"note": "cable"})
            assert history.watched == {"llama"}
            history.trained(["bert"], 90_000.0, clock.wall())
            history.trained(["llama"], 80_000.0, clock.wall())
            await site.later(60)
        async with started(tmp_path, clock) as site:
            (fix,) = (await site.client.get("/api/v1/fixes")).json()["fixes"]
            assert (fix["state"], fix["observed_seconds"], fix["note"]) == ("pending", 80_000, "cable")
            site.daemon.ledger.history.trained(["llama"], 7000.0, clock.wall())
            (fix,) = (await site.client.get("/api/v1/fixes")).json()["fixes"]
            assert (fix["state"], fix["decided_t"]) == ("held", clock.wall())
            await site.later(9 * 86400)
            await site.say(Opened, key="again")
            (fix,) = (await site.client.get("/api/v1/fixes")).json()["fixes"]
            assert (fix["state"], fix["again"]) == ("came_back", "again")

    async def test_of_a_job_that_hardly_trains_it_cannot_be_told(self, tmp_path: Path, clock: ManualClock) -> None:
        async with started(tmp_path, clock, alerts={"fix_window": "1h"}) as site:
            await site.say(Opened)
            await site.client.post("/api/v1/incidents/k/ack", json={"close": True})
            site.daemon.ledger.history.trained([], 1.0, clock.wall() + 13 * 3600)
            assert site.daemon.ledger.history.fixes["k"].state == "pending"
            site.daemon.ledger.history.trained([], 1.0, clock.wall() + 15 * 3600)
            assert site.daemon.ledger.history.fixes["k"].state == "unknown"

    async def test_what_is_over_is_found_by_job_failure_node_and_text(self, tmp_path: Path, clock: ManualClock) -> None:
        async with started(tmp_path, clock) as site:
            for n in range(5):
                job = f"job{n}"
                await site.say(Opened, key=f"k{n}", job=job, nodes={"3": f"gpu-{n % 2}"}, summary=f"50% naïve_{n}")
                await site.say(Closed, key=f"k{n}", job=job, nodes={"3": f"gpu-{n % 2}"}, revision=2, state="closed")
                await site.later(60)

            async def keys(**asked: str) -> list[str]:
                answer = await site.client.get("/api/v1/history", params=asked)
                assert answer.status_code == 200, answer.text
                return [v["key"] for v in answer.json()["incidents"]]

            assert await keys() == ["k4", "k3", "k2", "k1", "k0"]
            assert await keys(job="job3") == ["k3"]
            assert await keys(node="gpu-1") == ["k3", "k1"]
            assert await keys(failure="other") == []
            assert await keys(q="GPU-17") == []
            first = (await site.client.get("/api/v1/history?limit=2")).json()
            assert [v["key"] for v in first["incidents"]] == ["k4", "k3"]
            assert await keys(limit="9", cursor=first["next"]) == ["k2", "k1", "k0"]
            for wrong in ("limit=0", "limit=x", "limit=000001" + "9" * 5000, "limit=000050999", "cursor=x", "jobb=x"):
                assert (await site.client.get(f"/api/v1/history?{wrong}")).status_code == 400
            assert await keys(q="50%") == []  # the last word of each had no summary
            await site.say(Opened, key="new", job="job9", summary="50% naïve_x")
            assert await keys(q="50% naïve_X") == ["new"]
            assert await keys(q="50_ na") == []


def test_a_state_with_something_else_among_its_incidents_can_be_opened() -> None:
    seen = [("k", "j", "f", "soon", "abc", '{"0": "gpu-1"}')]
    assert History(lambda sql: [] if "fixes" in sql else seen, 1.0).watched == frozenset()
