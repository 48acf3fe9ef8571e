"""The HTTP side over real sockets on loopback: answers, who may ask, hostile text, and start and stop."""

import asyncio
import base64
import contextlib
import json
import re
import resource
import signal
import socket
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote

import httpx
import jsonschema
import pytest
import stand

from denpexd.errors import SettingsError
from denpexd.supervise import sd_notify
from denpexd.web.api import create_app, verdict_schema
from denpexd.web.gate import is_loopback
from denpexd.web.page import duration, rank_ranges
from denpexd.web.server import bind, serve
from denpexd.web.view import RANK_STATES, JobView, PackView, RankView, Stats

DOCS = Path(__file__).parents[2] / "docs"
FORGED = ["localhost:x.evil.example", "[::1].evil.example", "localhost:80:80", "127.0.0.1@evil.example"]
HOSTILE = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)> \udcff"

QUOTE = stand.quote(0, stand.T + 60.5, "evaluating ...", "rank 0 entered evaluation")
VERDICT = stand.verdict("run-7/1/a3f9", evidence=[QUOTE, QUOTE | {"rank": -1, "offset": None, "t": None}])
del VERDICT["stacks"], VERDICT["changed"]  # stored verdicts may lack them


class Daemon(stand.Stand):
    """A View of values that a test may change."""

    def __init__(self) -> None:
        super().__init__([VERDICT, VERDICT | {"key": "old", "state": "closed", "event": "closed"}], [stand.job()])

    def packs(self) -> Sequence[PackView]:
        return [PackView(name="mine", kind="folder", folder="/rules", rules=3, errors=["/rules/x.yaml:1:1: wrong"])]


@asynccontextmanager
async def served(daemon: Daemon, host: str = "127.0.0.1", **options: object) -> AsyncIterator[httpx.AsyncClient]:
    """The real server on a free port; `host` is what the app believes it is bound to."""
    listening: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    app = create_app(daemon, host=host, **options)
    task = asyncio.create_task(serve(app, bind("127.0.0.1", 0), listening=listening.set_result))
    try:
        async with httpx.AsyncClient(base_url=await listening, trust_env=False) as client:
            yield client
    finally:
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


@pytest.fixture
def daemon() -> Daemon:
    return Daemon()


@pytest.fixture
async def client(daemon: Daemon) -> AsyncIterator[httpx.AsyncClient]:
    async with served(daemon) as client:
        yield client


PAGES = [
    "/",
    "/incidents/old",
    "/api/v1/incidents",
    "/api/v1/incidents/old",
    "/api/v1/jobs",
    "/api/v1/rules",
    "/api/v1/schema",
]
OPEN = ["/metrics", "/healthz", "/readyz"]


class TestAnswers:
    async def test_incidents_are_filtered_and_limited(self, client):
        keys = [v["key"] for v in (await client.get("/api/v1/incidents")).json()["incidents"]]
        assert keys == ["run-7/1/a3f9", "old"]
        for query, expected in [("state=open", ["run-7/1/a3f9"]), ("state=closed", ["old"]), ("limit=1", keys[:1])]:
            answer = await client.get(f"/api/v1/incidents?{query}")
            assert [v["key"] for v in answer.json()["incidents"]] == expected

    async def test_a_wrong_question_is_told_what_is_allowed(self, client):
        for query in ["state=weird", "limit=0", "limit=-1", "limit=1001", "limit=x", "limit=", "limit=²"]:
            answer = await client.get(f"/api/v1/incidents?{query}")
            assert answer.status_code == 400, query
            assert "give" in answer.json()["error"]

    async def test_one_incident_is_the_verdict_itself_and_fits_the_schema(self, client):
        verdict = (await client.get("/api/v1/incidents/run-7/1/a3f9")).json()
        assert verdict == json.loads(json.dumps(VERDICT))
        jsonschema.Draft202012Validator((await client.get("/api/v1/schema")).json()).validate(verdict)

    async def test_an_unknown_key_is_404_and_reads_no_file(self, client):
        for key in ["nope", "%2e%2e/%2e%2e/etc/passwd", "..%2f..%2fetc%2fpasswd", "a%00b"]:
            answer = await client.get(f"/api/v1/incidents/{key}")
            assert answer.status_code == 404
            assert "/api/v1/incidents" in answer.json()["error"]
        assert (await client.get("/static/..%2fapi.py")).status_code == 404

    async def test_jobs_carry_every_rank(self, client):
        (job,) = (await client.get("/api/v1/jobs")).json()["jobs"]
        assert job["job"] == "run-7"
        assert job["ranks"][0] == {
            "rank": 0,
            "state": "silent",
            "step": 478,
            "phase": "eval",
            "silent_for": 120.0,
            "node": "gpu-17",
            "pid": 4242,
        }

    async def test_health_and_readiness_say_why_not(self, client, daemon):
        assert (await client.get("/healthz")).text == "ok\n"
        daemon.is_healthy, daemon.is_ready = (False, "pipeline stands for 40 s"), (False, "no file yet")
        health, ready = await client.get("/healthz"), await client.get("/readyz")
        assert (health.status_code, health.text) == (503, "pipeline stands for 40 s\n")
        assert (ready.status_code, ready.text) == (503, "no file yet\n")

    async def test_metrics_are_zipped_for_a_scraper_that_can(self, client):
        for accepted, coding in [("gzip", "gzip"), ("identity", None), ("gzip;q=0", None)]:
            answer = await client.get("/metrics", headers={"accept-encoding": accepted})
            assert answer.headers.get("content-encoding") == coding
            assert "denpexd_lines_total 1234567" in answer.text

    async def test_nothing_but_get_is_answered(self, client):
        for method in ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"]:
            for path in PAGES + OPEN:
                assert (await client.request(method, path)).status_code == 405

    async def test_text_of_logs_survives_json(self, client, daemon):
        daemon.verdicts[0] = VERDICT | {"evidence": [QUOTE | {"text": HOSTILE}]}
        assert (await client.get("/api/v1/incidents/run-7/1/a3f9")).json()["evidence"][0]["text"] == HOSTILE


class TestWhoMayAsk:
    async def test_a_foreign_host_name_is_refused_on_loopback(self, client):
        for path in PAGES + OPEN:
            for host in ["evil.example", "evil.example:9464", "127.0.0.1.evil.example", "[::2]", "", *FORGED]:
                assert (await client.get(path, headers={"host": host})).status_code == 421, (path, host)
            for host in ["localhost:9464", "127.0.0.1", "[::1]:9464", "LOCALHOST"]:
                assert (await client.get(path, headers={"host": host})).status_code == 200, (path, host)

    async def test_a_page_of_another_site_may_link_here_and_do_no_more(self, client):
        for site, mode, status in [
            ("cross-site", "no-cors", 403),
            ("same-site", "cors", 403),
            ("cross-site", "navigate", 200),
            ("same-origin", "cors", 200),
            ("none", "navigate", 200),
        ]:
            answer = await client.get("/api/v1/jobs", headers={"sec-fetch-site": site, "sec-fetch-mode": mode})
            assert answer.status_code == status, (site, mode)

    async def test_a_request_that_can_be_read_in_two_ways_is_refused_and_fills_no_log(self, client, caplog):
        two_lengths = b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        for sent in [
            b"POST /-/reload HTTP/1.1\r\nHost: localhost\r\n"
            + two_lengths
            + b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
            b"GET / HTTP/1.1\r\nHost : localhost\r\n\r\n",
        ]:
            reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
            writer.write(sent)
            whole = await asyncio.wait_for(reader.read(), 60)
            writer.close()
            assert whole.startswith(b"HTTP/1.1 400")
            assert whole.count(b"HTTP/1.1") == 1, whole
        assert not caplog.records

    async def test_who_leaves_in_the_middle_of_a_body_fills_no_log(self, daemon, caplog):
        async with served(daemon, reference=daemon) as client:
            _, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
            writer.write(b"POST /api/v1/diagnose HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\nhalf")
            await asyncio.sleep(0.05)  # until it is read
            writer.close()
            await asyncio.sleep(0.05)  # until it is noticed
            assert (await client.get("/healthz")).status_code == 200
        assert not caplog.records

    async def test_further_host_names_can_be_allowed(self, daemon):
        async with served(daemon, allowed_hosts=["gpu-7.lab"]) as client:
            assert (await client.get("/", headers={"host": "gpu-7.lab:9464"})).status_code == 200
            assert (await client.get("/", headers={"host": "gpu-8.lab"})).status_code == 421

    @pytest.mark.parametrize("token", [None, ""])
    async def test_beyond_loopback_without_token_only_the_scraper_is_served(self, daemon, token):
        async with served(daemon, "0.0.0.0", token=token) as client:
            for path in OPEN:
                assert (await client.get(path, headers={"host": "10.1.2.3:9464"})).status_code == 200
            for path in [*PAGES, "/static/app.js", "/metrics/", "//metrics", "/nope"]:
                answer = await client.get(path, headers={"authorization": "Bearer"})
                assert answer.status_code == 403
                assert "web.token_file" in answer.text

    async def test_beyond_loopback_the_token_opens_the_rest(self, daemon):
        async with served(daemon, "0.0.0.0", token="s3cret") as client:
            basic = base64.b64encode(b"anyone:s3cret").decode()
            for path in PAGES:
                assert (await client.get(path)).status_code == 401
                for good in ["Bearer s3cret", "bearer s3cret", f"Basic {basic}"]:
                    assert (await client.get(path, headers={"authorization": good})).status_code == 200
                for bad in ["Bearer s3cre", "Bearer s3cret2", "s3cret", "Basic s3cret", "Basic ===", "Digest s3cret"]:
                    answer = await client.get(path, headers={"authorization": bad})
                    assert answer.status_code == 401
                    assert "s3cret" not in answer.text
                foreign = await client.get(path, headers={"authorization": b"Basic \xe9"})
                assert foreign.status_code == 401
            assert "Basic" in (await client.get("/")).headers["www-authenticate"]

    async def test_a_token_counts_on_loopback_too(self, daemon):
        async with served(daemon, token="s3cret") as client:
            assert (await client.get("/")).status_code == 401
            assert (await client.get("/metrics")).status_code == 200

    async def test_every_answer_carries_the_security_headers(self, client):
        for path in [*PAGES, *OPEN, "/static/app.js", "/nope"]:
            headers = (await client.get(path)).headers
            assert "default-src 'none'" in headers["content-security-policy"]
            assert "unsafe" not in headers["content-security-policy"]
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["x-frame-options"] == "DENY"
            assert "access-control-allow-origin" not in headers
            assert "server" not in headers

    def test_loopback_is_told_from_the_rest(self):
        assert all(map(is_loopback, ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost"]))
        assert not any(map(is_loopback, ["0.0.0.0", "::", "10.0.0.1", "gpu-7", ""]))


class Page(HTMLParser):
    """Checks what a browser would be asked to do."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text, self.urls, self.inline = "", [], []
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.urls += [value or "" for name, value in attributes if name in ("src", "href")]
        self.inline += [name for name, _ in attributes if name.startswith("on") or name == "style"]

    def handle_data(self, data: str) -> None:
        self.text += data


class TestConsole:
    async def test_the_overview_shows_jobs_ranks_and_open_incidents(self, client):
        text = Page((await client.get("/")).text).text
        for expected in ["Rank 0 evaluates alone", "run-7", "2 min 5 s", "3 waiting", "1,234,567"]:
            assert expected in text

    async def test_the_page_of_a_job_shows_its_ranks_as_a_picture_and_in_words(self, client):
        page = Page((await client.get("/jobs/run-7")).text)
        for expected in ["Rank 0 evaluates alone", "2 min 5 s", "ranks 1-3", "gpu-17", "2 min 0 s ago"]:
            assert expected in page.text
        assert page.tags.count("path") == len(RANK_STATES)
        assert "path" not in Page((await client.get("/jobs/run-7?grid=none")).text).tags
        assert (await client.get("/jobs/nope")).status_code == 404

    async def test_a_job_without_a_step_says_until_when_it_is_waited_for(self, daemon, client):
        waits = {"hang_due_t": 1_760_000_400.0, "hang_due_by": "hang.budgets.start"}
        daemon.verdicts, daemon.job_views = [], [JobView("run-9", 0, ranks=[RankView(0, "running")], **waits)]
        for path in ("/", "/jobs/run-9"):
            text = Page((await client.get(path)).text).text
            assert "no step seen yet; silence is judged from 09:00:00 UTC (hang.budgets.start)" in text

    async def test_the_incident_page_shows_all_of_the_verdict(self, client):
        page = Page((await client.get("/incidents/run-7/1/a3f9")).text)
        shown = [
            "title",
            "quick_answer",
            "summary",
            "root_cause",
            "fallback",
            "verification",
            "prevention",
            "resume_safe",
        ]
        for name in shown:
            assert VERDICT[name] in page.text
        for piece in [
            "rank0.log, byte 4711",
            "-1.5 s",
            "1-3",
            "py-spy dump --pid 4242",
            "two equal snapshots",
            "restart",
            "names rank 2",
        ]:
            assert piece in page.text

    async def test_pages_ask_no_other_host_and_hold_no_inline_script(self, client):
        for path in ["/", "/incidents/old"]:
            page = Page((await client.get(path)).text)
            own = {"/static/style.css", "/static/app.js", "/static/icon.svg"}
            assert own <= set(page.urls)
            assert [u for u in page.urls if not u.startswith(("/", "#"))] in ([], [VERDICT["references"][0]])
            assert page.inline == []
            for url in own:
                assert (await client.get(url)).status_code == 200

    async def test_hostile_text_stays_text(self, client, daemon):
        texts = [
            name for name, value in VERDICT.items() if isinstance(value, str) and name not in ("key", "state", "event")
        ]
        hostile = VERDICT | dict.fromkeys(texts, HOSTILE)
        hostile |= {
            "evidence": [QUOTE | {"text": HOSTILE, "source": HOSTILE, "means": HOSTILE}],
            "missing": [{"fact": HOSTILE, "how": HOSTILE}],
            "remediation": [{"do": HOSTILE, "risk": HOSTILE, "command": HOSTILE}],
            "against": [HOSTILE],
            "alternatives": [{"failure": HOSTILE, "why_not": HOSTILE}],
            "references": [HOSTILE, "javascript:alert(1)", f"https://x/{HOSTILE}"],
            "related": [HOSTILE],
        }
        daemon.verdicts = [hostile]
        daemon.job_views = [JobView(job=HOSTILE, attempt=1, phase=HOSTILE, ranks=[RankView(0, "gone", node=HOSTILE)])]
        daemon.is_ready = (False, HOSTILE)
        name = quote(HOSTILE.encode("utf-8", "replace"), safe="")
        daemon.job_views.append(JobView(job=HOSTILE.replace("\udcff", "?"), attempt=1))
        for path in ["/", "/incidents/run-7/1/a3f9", "/incidents", f"/jobs/{name}"]:
            answer = await client.get(path)
            page = Page(answer.text)
            assert answer.status_code == 200
            assert page.tags.count("script") == 1
            assert page.tags.count("img") == 1
            assert page.inline == []
            assert not [url for url in page.urls if url.startswith("javascript")]
            assert "<script>alert(1)</script>" in page.text

    async def test_an_empty_daemon_says_so(self, client, daemon):
        daemon.verdicts, daemon.job_views = [], []
        text = (await client.get("/")).text
        assert "Nothing is wrong" in text
        assert "No job seen yet" in text

    async def test_trouble_of_the_daemon_itself_is_on_the_page(self, client, daemon):
        daemon.counts = Stats(blind=True, outbox_pending=3, outbox_oldest_seconds=200)
        daemon.is_ready = (False, "the state directory is full")
        text = Page((await client.get("/")).text).text
        for expected in ["Blind.", "the state directory is full", "3 not delivered"]:
            assert expected in text

    async def test_a_job_of_sixteen_thousand_ranks_is_drawn_within_bounds(self, client, daemon):
        worst = [RankView(r, RANK_STATES[r % 7], r, f"phase{r % 5}") for r in range(16_384)]
        daemon.job_views = [JobView(job="big", attempt=1, step=16_384, ranks=worst)]
        overview, page = (await client.get("/")).text, (await client.get("/jobs/big")).text
        assert len(overview) < 10_000
        assert len(page) < 600_000
        assert page.count("h9v9h-9z") == 16_384
        assert "more groups" in page

    def test_numbers_are_written_for_people(self):
        assert [rank_ranges(r) for r in ([], [3], [0, 1, 2, 5, 7, 6], [4, 4])] == [
            "none",
            "rank 3",
            "ranks 0-2,5-7",
            "rank 4",
        ]
        assert [duration(s) for s in (None, 0.25, 9.94, 59, 61, 3700)] == [
            "?",
            "0.25 s",
            "9.9 s",
            "59 s",
            "1 min 1 s",
            "1 h 1 min",
        ]


class TestSchema:
    def test_the_published_schema_is_the_one_that_is_served(self):
        assert (DOCS / "verdict.schema.json").read_text("utf-8") == verdict_schema()

    def test_it_is_a_schema_and_demands_every_key_of_the_promise(self):
        schema = json.loads(verdict_schema())
        jsonschema.Draft202012Validator.check_schema(schema)
        assert set(schema["required"]) == set(VERDICT)
        assert set(schema["properties"]) - set(VERDICT) == {
            "stacks",
            "changed",
            "stopped_t",
            "tags",
            "acknowledged",
            "history",
        }  # stored verdicts may lack them

    @pytest.mark.parametrize("key", sorted(VERDICT))
    def test_a_verdict_without_a_key_or_with_nonsense_in_it_is_refused(self, key):
        validator = jsonschema.Draft202012Validator(json.loads(verdict_schema()))
        good = json.loads(json.dumps(VERDICT))
        assert validator.is_valid(good)
        assert not validator.is_valid({k: v for k, v in good.items() if k != key})
        assert not validator.is_valid(good | {key: {"x": []}})

    def test_the_documentation_names_every_route_and_key(self):
        text = (DOCS / "api.md").read_text("utf-8")
        for route in create_app(Daemon()).routes:
            path = re.sub(r":\w+}", "}", route.path)
            assert f"`{path}`" in text
        for key in VERDICT:
            assert re.search(rf"`{key}`", text), key


async def close(*writers: asyncio.StreamWriter) -> None:
    for writer in writers:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def read_all(reader: asyncio.StreamReader) -> bytes:
    """What comes until the other side ends it, in whatever way."""
    found = b""
    with contextlib.suppress(OSError):
        while piece := await reader.read(4096):
            found += piece
    return found


class TestServer:
    def test_a_port_in_use_is_a_setting_to_change(self):
        with bind("127.0.0.1", 0) as taken:
            port = taken.getsockname()[1]
            with pytest.raises(SettingsError) as failure:
                bind("127.0.0.1", port)
        assert str(failure.value).startswith(f"port {port} on 127.0.0.1 is in use; choose another (--port, web.port")

    def test_an_address_of_another_machine_is_a_setting_to_change(self):
        with pytest.raises(SettingsError, match=r"set web\.host"):
            bind("192.0.2.1", 0)

    async def test_signals_stay_with_the_daemon(self, daemon):
        before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
        async with served(daemon) as client:
            await client.get("/healthz")
            assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before

    async def test_after_cancel_the_port_is_free(self, daemon):
        async with served(daemon) as client:
            await client.get("/healthz")
            port = client.base_url.port
        bind("127.0.0.1", port).close()

    async def test_half_open_connections_do_not_keep_others_waiting(self, client):
        address = ("127.0.0.1", client.base_url.port)
        idle = [socket.create_connection(address) for _ in range(100)]
        try:
            for connection in idle:
                connection.sendall(b"GET / HTTP/1.1\r\nHost: loc")
            assert (await client.get("/healthz", timeout=60)).status_code == 200
        finally:
            for connection in idle:
                connection.close()

    async def test_who_does_not_finish_a_question_is_cut_off(self, daemon, monkeypatch):
        async with served(daemon) as client:
            again, writer = second = await asyncio.open_connection("127.0.0.1", client.base_url.port)
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert (await asyncio.wait_for(again.readline(), 60)).startswith(b"HTTP/1.1 200")
            monkeypatch.setattr("denpexd.web.server.ASKING", 0.3)
            silent, _ = first = await asyncio.open_connection("127.0.0.1", client.base_url.port)
            writer.write(b"GET /he")
            assert b"HTTP/1.1" not in await asyncio.wait_for(read_all(again), 60)
            assert await asyncio.wait_for(read_all(silent), 60) == b""
            await close(first[1], second[1])

    async def test_of_too_many_connections_those_that_wait_longest_go(self, daemon, monkeypatch):
        monkeypatch.setattr("denpexd.web.server.MOST_CONNECTIONS", 5)
        async with served(daemon) as client:
            opened = [await asyncio.open_connection("127.0.0.1", client.base_url.port) for _ in range(8)]
            assert [await asyncio.wait_for(read_all(reader), 60) for reader, _ in opened[:3]] == [b"", b"", b""]
            opened[-1][1].write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert (await asyncio.wait_for(read_all(opened[-1][0]), 60)).startswith(b"HTTP/1.1 200")
            await close(*(writer for _, writer in opened))

    async def test_floods_of_connections_and_headers_leave_metrics_fast(self, client):
        address = ("127.0.0.1", client.base_url.port)
        idle = [await asyncio.open_connection(*address) for _ in range(200)]
        for _, writer in idle:
            writer.write(b"GET / HTTP/1.1\r\nHost: loc")
        huge, writer = await asyncio.open_connection(*address)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        writer.write(b"GET / HTTP/1.1\r\nX: ")
        with contextlib.suppress(OSError):
            for _ in range(160):
                writer.write(b"x" * 65536)
                await writer.drain()
        assert (await client.get("/metrics", timeout=60)).status_code == 200
        assert not (await asyncio.wait_for(read_all(huge), 60)).startswith(b"HTTP/1.1 200")
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 40_000  # KiB, of both sides
        await close(writer, *(writer for _, writer in idle))


class TestSystemdNotify:
    @pytest.mark.parametrize("abstract", [False, True])
    def test_the_state_arrives(self, tmp_path, abstract):
        name = f"@denpexd-test-{tmp_path.name}" if abstract else str(tmp_path / "notify")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
            systemd.bind(name.replace("@", "\0", 1))
            assert sd_notify("READY=1\nSTATUS=watching 8 files", name)
            assert systemd.recv(4096) == b"READY=1\nSTATUS=watching 8 files"

    @pytest.mark.parametrize("address", [None, "", "relative/path", "/nonexistent/denpexd/notify", "vsock:2:9"])
    def test_without_a_listener_nothing_happens(self, address):
        assert not sd_notify("READY=1", address)

    def test_a_full_socket_does_not_block(self, tmp_path):
        name = str(tmp_path / "notify")
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
            systemd.bind(name)
            answers = [sd_notify("WATCHDOG=1", name) for _ in range(2000)]
        assert answers[0]
        assert not answers[-1]
