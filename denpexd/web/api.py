"""The daemon's HTTP side: metrics, health, a read-only JSON API and the console. What changes anything is a POST.

The daemon gives one View (web/view.py); answers that can be long are rendered in a thread of their own.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from denpexd.web.gate import Gate, answer_error, is_loopback
from denpexd.web.metrics import Exposition
from denpexd.web.page import Console, Overview
from denpexd.web.server import bind, serve
from denpexd.web.view import RANK_STATES, IncidentLabels, JobView, PackView, RankState, RankView, Stats, Verdict, View

__all__ = [
    "RANK_STATES",
    "IncidentLabels",
    "JobView",
    "PackView",
    "RankState",
    "RankView",
    "Stats",
    "Verdict",
    "View",
    "bind",
    "create_app",
    "is_loopback",
    "serve",
    "verdict_schema",
]

MAX_INCIDENTS = 1000
DEFAULT_INCIDENTS = 100
_HERE = Path(__file__).parent
_T = TypeVar("_T")


Reload = Callable[[], Awaitable[tuple[bool, str]]]
"""Takes the rules anew; whether that went well, and what to say."""


def create_app(
    view: View,
    *,
    token: str | None = None,
    allowed_hosts: Collection[str] = (),
    host: str = "127.0.0.1",
    reload: Reload | None = None,
) -> Starlette:
    """The ASGI application.

    `host` is the address it will be bound to: beyond loopback everything but /metrics, /healthz and /readyz needs
    `token`. `allowed_hosts`: names, beside the loopback ones, that a request may ask for.
    """
    routes = _Routes(view, reload)
    return Starlette(
        routes=[
            Route("/metrics", routes.metrics, methods=["GET"]),
            Route("/healthz", routes.healthz, methods=["GET"]),
            Route("/readyz", routes.readyz, methods=["GET"]),
            Route("/api/v1/incidents", routes.incidents, methods=["GET"]),
            Route("/api/v1/incidents/{key:path}", routes.incident, methods=["GET"]),
            Route("/api/v1/jobs", routes.jobs, methods=["GET"]),
            Route("/api/v1/rules", routes.rules, methods=["GET"]),
            Route("/api/v1/schema", routes.schema, methods=["GET"]),
            Route("/-/reload", routes.reload, methods=["POST"]),
            Route("/", routes.index, methods=["GET"]),
            Route("/incidents/{key:path}", routes.incident_page, methods=["GET"]),
            Route("/static/{name}", routes.static, methods=["GET"]),
        ],
        middleware=[Middleware(Gate, host=host, token=token, allowed_hosts=allowed_hosts)],
        exception_handlers={HTTPException: _http_error},
    )


def verdict_schema() -> str:
    """The JSON Schema of a verdict, as published in docs/verdict.schema.json."""
    return (_HERE / "verdict.schema.json").read_text("utf-8")


class _Routes:
    def __init__(self, view: View, reload: Reload | None) -> None:
        self._view, self._reload = view, reload
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="denpexd-web")
        self._exposition = Exposition(view, self._pool)
        self._console = Console(_HERE / "console")
        self._schema = verdict_schema()
        self._static = {
            "style.css": ((_HERE / "console" / "style.css").read_bytes(), "text/css"),
            "app.js": ((_HERE / "console" / "app.js").read_bytes(), "text/javascript"),
            "icon.svg": ((_HERE / "console" / "icon.svg").read_bytes(), "image/svg+xml"),
        }

    async def metrics(self, request: Request) -> Response:
        zipped = _accepts_gzip(request.headers.get("accept-encoding", ""))
        page, content_type = await self._exposition.render(request.headers.get("accept", ""), zipped)
        headers = {"content-type": content_type, "vary": "Accept, Accept-Encoding"}
        return Response(page, headers=headers | ({"content-encoding": "gzip"} if zipped else {}))

    async def healthz(self, request: Request) -> Response:
        return _health(*self._view.healthy())

    async def readyz(self, request: Request) -> Response:
        return _health(*self._view.ready())

    async def incidents(self, request: Request) -> Response:
        state = request.query_params.get("state")
        if state not in (None, "open", "closed"):
            raise HTTPException(400, f"state is {state!r}; give open or closed, or leave it out for both")
        verdicts = self._view.incidents(state, _limit(request.query_params.get("limit")))
        return await self._json(lambda: {"incidents": verdicts})

    async def incident(self, request: Request) -> Response:
        verdict = self._find(request)
        return await self._json(lambda: verdict)

    async def jobs(self, request: Request) -> Response:
        jobs = self._view.jobs()
        return await self._json(lambda: {"jobs": [_plain(job) for job in jobs]})

    async def rules(self, request: Request) -> Response:
        packs = self._view.packs()
        return await self._json(lambda: {"packs": [asdict(pack) for pack in packs]})

    async def reload(self, request: Request) -> Response:
        if self._reload is None:
            raise HTTPException(404, "nothing can be reloaded here")
        good, said = await self._reload()
        return PlainTextResponse(f"{said}\n", 200 if good else 500)

    async def schema(self, request: Request) -> Response:
        return Response(self._schema, media_type="application/schema+json")

    async def index(self, request: Request) -> Response:
        view = self._view
        overview = Overview(
            jobs=view.jobs(),
            open=view.incidents("open", 50),
            closed=view.incidents("closed", 10),
            stats=view.stats(),
            ready=view.ready(),
        )
        return _html(await self._off_loop(lambda: self._console.index(overview)))

    async def incident_page(self, request: Request) -> Response:
        verdict = self._find(request)
        return _html(await self._off_loop(lambda: self._console.incident(verdict)))

    async def static(self, request: Request) -> Response:
        found = self._static.get(request.path_params["name"])
        if found is None:
            raise HTTPException(404, "no such file")
        return Response(found[0], media_type=found[1], headers={"cache-control": "no-cache"})

    def _find(self, request: Request) -> Verdict:
        verdict = self._view.incident(request.path_params["key"])
        if verdict is None:
            raise HTTPException(404, "no incident has this key; /api/v1/incidents lists those that are kept")
        return verdict

    async def _json(self, make: Callable[[], object]) -> Response:
        body = await self._off_loop(lambda: json.dumps(make(), default=_jsonable, separators=(",", ":")).encode())
        return Response(body, media_type="application/json")

    async def _off_loop(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # registered for nothing else
    text = error.detail
    if error.status_code == 405:
        only = (error.headers or {}).get("Allow", "GET").replace("GET, HEAD", "GET").replace("HEAD, GET", "GET")
        text = f"only {only} is answered here"
    return answer_error(request.url.path, error.status_code, text, error.headers)


def _health(good: bool, why: str) -> Response:
    return PlainTextResponse(f"{why or ('ok' if good else 'not ok')}\n", 200 if good else 503)


def _html(page: bytes) -> Response:
    return Response(page, media_type="text/html")


def _limit(text: str | None) -> int:
    if text is None:
        return DEFAULT_INCIDENTS
    if not (text.isascii() and text.isdigit() and len(text) < 6 and 1 <= int(text) <= MAX_INCIDENTS):
        raise HTTPException(400, f"limit is {text[:20]!r}; give a number from 1 to {MAX_INCIDENTS}")
    return int(text)


def _accepts_gzip(header: str) -> bool:
    for part in header.split(","):
        coding, _, weight = part.partition(";")
        if coding.strip() == "gzip":
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def _plain(job: JobView) -> Mapping[str, object]:
    """A job as JSON-ready values; keys are the fields of JobView and RankView."""
    values: dict[str, object] = {name: getattr(job, name) for name in JobView.__slots__ if name != "ranks"}
    values["ranks"] = [{name: getattr(rank, name) for name in RankView.__slots__} for rank in job.ranks]
    return values


def _jsonable(value: object) -> object:
    """Verdicts may hold read-only mappings and sets, which json does not know."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} is not a value of a verdict")
