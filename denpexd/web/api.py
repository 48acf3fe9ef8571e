"""The daemon's HTTP side: metrics, health, the JSON API and the console. What changes anything is a POST.

The daemon gives one View (web/view.py); answers that can be long are made in threads.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from denpexd.clock import Clock, SystemClock
from denpexd.errors import RequestError
from denpexd.web.changes import Changes
from denpexd.web.exposition import Exposition
from denpexd.web.gate import Gate, answer_error
from denpexd.web.live import Live
from denpexd.web.page import Console
from denpexd.web.pages import Pages
from denpexd.web.rest import Rest
from denpexd.web.view import Actions, Reference, View

THREADS = 2
_HERE = Path(__file__).parent
_T = TypeVar("_T")

Handler = Callable[[Request], Awaitable[Response]]
Reload = Callable[[], Awaitable[tuple[bool, str]]]
"""Takes the rules anew; whether that went well, and what to say."""


def create_app(
    view: View,
    *,
    token: str | None = None,
    allowed_hosts: Collection[str] = (),
    host: str = "127.0.0.1",
    reload: Reload | None = None,
    reference: Reference | None = None,
    clock: Clock | None = None,
    actions: Actions | None = None,
) -> Starlette:
    """The ASGI application.

    `host` is the address it will be bound to: beyond loopback everything but /metrics, /healthz and /readyz needs
    `token`. `allowed_hosts`: names, beside the loopback ones, that a request may ask for. `clock`: how often listeners
    are told what changed. `app.state.live` is closed before the server is, or listeners would hold it up.
    """
    routes = _Routes(view, reload, reference, actions, clock or SystemClock())
    app = Starlette(
        routes=list(_table(routes, Changes(actions))),
        middleware=[Middleware(Gate, host=host, token=token, allowed_hosts=allowed_hosts)],
        exception_handlers={HTTPException: _http_error, RequestError: _request_error, ClientDisconnect: _gone},
    )
    app.state.live = routes.live
    return app


def _table(routes: "_Routes", changes: Changes) -> Iterator[Route]:
    rest, pages = routes.rest, routes.pages
    # Before the path of an incident, which would take it for one.
    yield Route("/api/v1/incidents/{key:path}/ack", changes.acknowledge, methods=["POST"])
    for path, handler in (
        ("/metrics", routes.metrics),
        ("/healthz", routes.healthz),
        ("/readyz", routes.readyz),
        ("/api/v1/incidents", rest.incidents),
        ("/api/v1/incidents/{key:path}/decisions", rest.decisions),
        ("/api/v1/incidents/{key:path}", rest.incident),
        ("/api/v1/jobs", rest.jobs),
        ("/api/v1/jobs/{job:path}/ranks/{rank:int}", rest.rank),
        ("/api/v1/jobs/{job:path}/ranks", rest.ranks),
        ("/api/v1/jobs/{job:path}/recording", rest.recording),
        ("/api/v1/jobs/{job:path}", rest.job),
        ("/api/v1/failures", rest.failures),
        ("/api/v1/failures/{failure}", rest.failure),
        ("/api/v1/rules", rest.rules),
        ("/api/v1/history", changes.history),
        ("/api/v1/fixes", changes.fixes),
        ("/api/v1/events", rest.events),
        ("/api/v1/schema", rest.schema),
        ("/api/v1/openapi.json", rest.openapi),
        ("/", pages.overview),
        ("/incidents", pages.incidents),
        ("/incidents/{key:path}", pages.incident),
        ("/jobs/{job:path}", pages.job),
        ("/encyclopedia", pages.encyclopedia),
        ("/encyclopedia/{failure}", pages.entry),
        ("/health", pages.health),
        ("/static/{name}", routes.static),
    ):
        yield Route(path, handler, methods=["GET"])
    yield _either("/api/v1/silences", changes.silences, changes.add_silence)
    yield _either("/diagnose", pages.paste, pages.diagnose)
    yield Route("/api/v1/diagnose", rest.diagnose, methods=["POST"])
    yield Route("/api/v1/silences/{id}", changes.expire_silence, methods=["DELETE"])
    yield Route("/-/reload", routes.reload, methods=["POST"])


def _either(path: str, get: Handler, post: Handler) -> Route:
    """One route for both, so that another method is told both."""

    async def handler(request: Request) -> Response:
        return await (post if request.method == "POST" else get)(request)

    return Route(path, handler, methods=["GET", "POST"])


def verdict_schema() -> str:
    """The JSON Schema of a verdict, as published in docs/verdict.schema.json."""
    return (_HERE / "verdict.schema.json").read_text("utf-8")


class _Routes:
    def __init__(
        self, view: View, reload: Reload | None, reference: Reference | None, actions: Actions | None, clock: Clock
    ) -> None:
        self._view, self._reload = view, reload
        self._pool = ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="denpexd-web")
        self._exposition = Exposition(view, self._pool)
        self.live = Live(view, self._pool, clock)
        self.rest = Rest(view, reference, self.live, self._off_loop, verdict_schema())
        self.pages = Pages(view, self.rest, actions, Console(_HERE / "console"), self._off_loop)
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

    async def reload(self, request: Request) -> Response:
        if self._reload is None:
            raise HTTPException(404, "nothing can be reloaded here")
        good, said = await self._reload()
        return PlainTextResponse(f"{said}\n", 200 if good else 500)

    async def static(self, request: Request) -> Response:
        found = self._static.get(request.path_params["name"])
        if found is None:
            raise HTTPException(404, "no such file")
        return Response(found[0], media_type=found[1], headers={"cache-control": "no-cache"})

    async def _off_loop(self, work: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # registered for nothing else
    text = error.detail
    if error.status_code == 405:
        only = (error.headers or {}).get("Allow", "GET").replace("GET, HEAD", "GET").replace("HEAD, GET", "GET")
        text = f"only {only} is answered here"
    return answer_error(request.url.path, error.status_code, text, error.headers)


async def _request_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)  # registered for nothing else
    return answer_error(request.url.path, error.status, str(error))


def _health(good: bool, why: str) -> Response:
    return PlainTextResponse(f"{why or ('ok' if good else 'not ok')}\n", 200 if good else 503)


def _accepts_gzip(header: str) -> bool:
    for part in header.split(","):
        coding, _, weight = part.partition(";")
        if coding.strip() == "gzip":
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def _gone(_: Request, error: Exception) -> Response:
    """Whoever left in the middle of a body is no fault of ours; nobody reads this."""
    return Response(status_code=400)
