"""The JSON API: pages and filters, jobs and ranks, the encyclopedia, pasted logs; and its OpenAPI document."""

import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from stand import Stand, job, stand, verdict
from starlette.applications import Starlette
from starlette.routing import Route

from denpexd.web import pages
from denpexd.web.api import create_app
from denpexd.web.openapi import document
from denpexd.web.rest import MAX_LOG, in_pieces

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def daemon() -> Stand:
    return stand()


@pytest.fixture
def app(daemon: Stand) -> Starlette:
    return create_app(daemon, reference=daemon, actions=daemon)


@pytest.fixture
async def client(app: Starlette) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
        yield client


async def keys(client: httpx.AsyncClient, query: str) -> list[str]:
    answer = await client.get(f"/api/v1/incidents?{query}")
    assert answer.status_code == 200, answer.text
    return [v["key"] for v in answer.json()["incidents"]]


class TestIncidents:
    async def test_each_filter_leaves_what_fits(self, client: httpx.AsyncClient, daemon: Stand) -> None:
        daemon.verdicts.append(verdict("oom", failure="oom", category="memory", severity="high", updated_t=50.0))
        assert await keys(client, "") == ["run-7-3f2a", "old", "oom"]
        assert await keys(client, "state=open") == ["run-7-3f2a", "oom"]
        assert await keys(client, "job=llama-70b") == ["old"]
        assert await keys(client, "failure=oom") == ["oom"]
        assert await keys(client, "category=memory&severity=high") == ["oom"]
        assert await keys(client, "severity=low") == []
        assert await keys(client, "since=51") == ["run-7-3f2a", "old"]

    @pytest.mark.parametrize("limit", [1, 2, 3, 7])
    async def test_pages_give_each_incident_once(self, client: httpx.AsyncClient, daemon: Stand, limit: int) -> None:
        daemon.verdicts = [verdict(f"k{n}", updated_t=float(n // 3)) for n in range(10)]
        found, cursor = [], ""
        while cursor is not None:
            page = (await client.get(f"/api/v1/incidents?limit={limit}{cursor and f'&cursor={cursor}'}")).json()
            assert len(page["incidents"]) <= limit
            found += [v["key"] for v in page["incidents"]]
            cursor = page["next"]
        assert found == [f"k{n}" for n in (9, 8, 7, 6, 5, 4, 3, 2, 1, 0)]

    async def test_what_changes_while_one_reads_on_moves_nothing(
        self, client: httpx.AsyncClient, daemon: Stand
    ) -> None:
        daemon.verdicts = [verdict(f"k{n}", updated_t=float(n)) for n in range(4)]
        first = (await client.get("/api/v1/incidents?limit=2")).json()
        daemon.verdicts[3] = verdict("k3", updated_t=99.0, revision=3)
        rest = (await client.get(f"/api/v1/incidents?limit=9&cursor={first['next']}")).json()
        assert [v["key"] for v in rest["incidents"]] == ["k1", "k0"]

    @pytest.mark.parametrize(
        "query",
        [
            "state=weird", "limit=0", "limit=1001", "limit=x", "since=x", "since=-1", "since=nan", "since=inf",
            "cursor=", "cursor=%00", "cursor=WzFd", "cursor=bnVsbA", "cursor=e30", "cursor=W1tbW1tb", "statee=open",
            "limit=1&limit=2",
        ],
    )  # fmt: skip
    async def test_a_wrong_question_is_told_what_is_allowed(self, client: httpx.AsyncClient, query: str) -> None:
        answer = await client.get(f"/api/v1/incidents?{query}")
        assert answer.status_code == 400
        assert len(answer.json()["error"]) > 20


class TestJobs:
    async def test_a_job_is_found_by_its_name_and_has_counts_and_pace(
        self, client: httpx.AsyncClient, daemon: Stand
    ) -> None:
        daemon.job_views.append(job("team/run 8"))
        one = (await client.get("/api/v1/jobs/team%2Frun%208")).json()
        assert (one["job"], one["counts"], one["pace"]) == ("team/run 8", {"silent": 1, "waiting": 3}, [])
        assert len(one["ranks"]) == 4
        assert "ranks" not in (await client.get("/api/v1/jobs/run-7?ranks=none")).json()
        assert (await client.get("/api/v1/jobs/nope")).status_code == 404

    async def test_jobs_come_by_name_in_pages(self, client: httpx.AsyncClient) -> None:
        page = (await client.get("/api/v1/jobs?limit=1&ranks=none")).json()
        assert [j["job"] for j in page["jobs"]] == ["llama-70b"]
        page = (await client.get(f"/api/v1/jobs?limit=1&cursor={page['next']}")).json()
        assert ([j["job"] for j in page["jobs"]], page["next"]) == (["run-7"], None)

    async def test_ranks_are_chosen_by_state_and_come_in_pages(self, client: httpx.AsyncClient) -> None:
        page = (await client.get("/api/v1/jobs/run-7/ranks?state=waiting&limit=2")).json()
        assert [r["rank"] for r in page["ranks"]] == [1, 2]
        page = (await client.get(f"/api/v1/jobs/run-7/ranks?state=waiting&cursor={page['next']}")).json()
        assert ([r["rank"] for r in page["ranks"]], page["next"]) == ([3], None)
        assert (await client.get("/api/v1/jobs/run-7/ranks/0")).json()["node"] == "gpu-17"
        assert (await client.get("/api/v1/jobs/run-7/ranks/4")).status_code == 404
        assert (await client.get("/api/v1/jobs/run-7/ranks?state=odd")).status_code == 400


class TestPages:
    async def test_a_text_or_a_node_searches_all_that_the_state_keeps(
        self, client: httpx.AsyncClient, daemon: Stand, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked = []

        async def history(wanted: dict[str, str]) -> dict[str, Any]:
            asked.append(wanted)
            return {"incidents": [verdict("ancient", title="An old one"), verdict("x", state="closed")], "next": "9:z"}

        monkeypatch.setattr(daemon, "history", history)
        page = (await client.get("/incidents?q=ECC&node=gpu-3&state=open")).text
        assert "An old one" in page
        assert "/incidents/x" not in page
        assert "cursor=9%3Az" in page
        assert "An old one" in (await client.get("/incidents/ancient")).text
        assert (await client.get("/incidents/never")).status_code == 404
        assert asked[0] == {"q": "ECC", "node": "gpu-3", "limit": "50"}

    async def test_fixes_and_what_was_seen_before_are_shown(self, client: httpx.AsyncClient, daemon: Stand) -> None:
        page = (await client.get("/incidents")).text
        assert "so far good" in page
        assert "all ranks" in page
        daemon.verdicts[0]["history"] = {"text": "Seen 3 times on gpu-17."}
        assert "Seen 3 times on gpu-17." in (await client.get("/incidents/run-7-3f2a")).text


class TestWhatIsKnown:
    async def test_failures_are_listed_searched_and_read(self, client: httpx.AsyncClient) -> None:
        page = (await client.get("/api/v1/failures?limit=1")).json()
        assert [e["id"] for e in page["failures"]] == ["oom-killed"]
        page = (await client.get(f"/api/v1/failures?cursor={page['next']}")).json()
        assert ([e["id"] for e in page["failures"]], page["next"]) == (["syncbn-eval-rank0"], None)
        found = (await client.get("/api/v1/failures", params={"q": "SyncBatchNorm.forward"})).json()["failures"]
        assert found[0]["quotes"] == [{"text": "SyncBatchNorm.forward", "means": "a line that proves it"}]
        assert (await client.get("/api/v1/failures/syncbn-eval-rank0")).json()["id"] == "syncbn-eval-rank0"
        assert (await client.get("/api/v1/failures/nope")).status_code == 404

    async def test_a_pasted_log_is_explained(self, client: httpx.AsyncClient, daemon: Stand) -> None:
        answer = await client.post("/api/v1/diagnose", content=b"SyncBatchNorm hangs\n")
        assert [v["key"] for v in answer.json()["verdicts"]] == ["pasted"]
        for content, status in [(b"", 400), (b" \n", 400), (b"\0", 422), (b"x" * (MAX_LOG + 1), 413)]:
            assert (await client.post("/api/v1/diagnose", content=content)).status_code == status
        assert daemon.read == [b"SyncBatchNorm hangs\n"]

    async def test_the_form_says_what_a_log_shows_or_what_is_wrong(
        self, client: httpx.AsyncClient, daemon: Stand, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(pages, "FORM", 60_000)
        monkeypatch.setattr(pages, "MAX_LOG", 20_000)
        for log, status, said in [
            ("SyncBatchNorm\r\nhangs", 200, "2 lines read, 1 failure found"),
            ("all is well", 200, "No failure found."),
            ("", 400, "nothing was sent"),
            ("\0", 422, "this is no text"),
            ("x" * 20_001, 413, "at most"),
        ]:
            answer = await client.post("/diagnose", data={"log": log})
            assert (answer.status_code, said in answer.text) == (status, True)
        assert (await client.post("/diagnose", content=b"log=" + b"x" * 60_000)).status_code == 413
        foreign = {"origin": "https://evil.example"}
        assert (await client.post("/diagnose", data={"log": "x"}, headers=foreign)).status_code == 403
        assert daemon.read == [b"SyncBatchNorm\r\nhangs", b"all is well"]

    async def test_a_page_of_another_site_can_paste_nothing(self, client: httpx.AsyncClient, daemon: Stand) -> None:
        for headers in [{"origin": "https://evil.example"}, {"origin": "null"}, {"sec-fetch-site": "cross-site"}]:
            assert (await client.post("/api/v1/diagnose", content=b"x", headers=headers)).status_code == 403
        assert daemon.read == []

    async def test_without_an_encyclopedia_that_is_said(self, daemon: Stand) -> None:
        app = create_app(daemon)
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://localhost") as client:
            assert (await client.get("/api/v1/failures")).status_code == 404


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner),
)


@given(VALUES)
def test_json_in_pieces_is_json(value: object) -> None:
    assert json.loads(in_pieces(value)) == json.loads(json.dumps(value))


# --- the document -----------------------------------------------------------------------------------------------------

DOCUMENT: dict[str, Any] = document(json.loads((DOCS / "verdict.schema.json").read_text("utf-8")))
# A question for each path that can be asked of the stand.
ASKED = {
    "key": "run-7-3f2a",
    "job": "run-7",
    "rank": "0",
    "failure": "syncbn-eval-rank0",
    "id": "s0",
}
OPERATIONS = [
    (path, method) for path, methods in DOCUMENT["paths"].items() for method in methods if not path.endswith("/events")
]


def routes(app: Starlette) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for route in app.routes:
        if isinstance(route, Route) and route.path.startswith("/api/"):
            path = re.sub(r":\w+}", "}", route.path)
            found.setdefault(path, set()).update(m.lower() for m in route.methods or () if m != "HEAD")
    return found


class TestOpenApi:
    def test_the_published_document_is_the_one_that_is_served(self) -> None:
        assert (DOCS / "openapi.json").read_text("utf-8") == json.dumps(document(), indent=1) + "\n", "run: make docs"

    def test_it_describes_every_route_and_no_other(self, app: Starlette) -> None:
        assert {path: set(methods) for path, methods in DOCUMENT["paths"].items()} == routes(app)

    def test_its_schemas_are_schemas_and_its_references_lead_somewhere(self) -> None:
        for schema in DOCUMENT["components"]["schemas"].values():
            jsonschema.Draft202012Validator.check_schema(schema)
        for reference in re.findall(r'"\$ref": "#/([^"]+)"', json.dumps(DOCUMENT)):
            place: Any = DOCUMENT
            for name in reference.split("/"):
                place = place[name]

    @pytest.mark.parametrize(("path", "method"), OPERATIONS)
    async def test_answers_are_as_it_says(
        self, client: httpx.AsyncClient, daemon: Stand, path: str, method: str
    ) -> None:
        operation = DOCUMENT["paths"][path][method]
        await daemon.add_silence({"match": {"job": ["run-7"]}})
        url = re.sub(r"{(\w+)}", lambda m: ASKED[m[1]], path)
        [(kind, sent)] = operation.get("requestBody", {"content": {"": {}}})["content"].items()
        content = json.dumps(sent["example"]).encode() if "example" in sent else b"SyncBatchNorm" if kind else None
        headers = {"content-type": kind} if kind else {}
        answer = await client.request(method, url, content=content, headers=headers)
        assert answer.is_success, answer.text
        check(operation, answer)
        at = re.sub(r"{(\w+)}", "77", path) + "?nonsense=1"
        unknown = await client.request(method, at, content=content, headers=headers)
        if "{" in path and path.count("{") < 2:
            assert unknown.status_code in (400, 404)
            check(operation, unknown)


def check(operation: dict[str, Any], answer: httpx.Response) -> None:
    kind = answer.headers["content-type"].partition(";")[0]
    schema = operation["responses"][str(answer.status_code)]["content"][kind]["schema"]
    if schema.get("format") == "binary":
        assert answer.content
        return
    jsonschema.Draft202012Validator({**schema, "components": DOCUMENT["components"]}).validate(answer.json())
