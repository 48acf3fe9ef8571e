"""The part of the API about what people do: silences, acknowledgements, fixes, and what is remembered of all that.

The gate lets no page of another site ask for a change.
"""

import json
from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from denpexd.errors import RequestError
from denpexd.web.questions import query
from denpexd.web.view import Actions

MAX_BODY = 64 * 1024


class Changes:
    """Routes; without `actions` (no daemon is behind the API) all of them answer 404."""

    def __init__(self, actions: Actions | None) -> None:
        self._given = actions

    async def history(self, request: Request) -> Response:
        """GET /api/v1/history."""
        asked = query(request, {"job", "failure", "node", "q", "limit", "cursor"})
        return JSONResponse(await self._actions.history(asked))

    async def fixes(self, request: Request) -> Response:
        """GET /api/v1/fixes."""
        query(request, frozenset())
        return JSONResponse({"fixes": list(self._actions.fixes())})

    async def silences(self, request: Request) -> Response:
        """GET /api/v1/silences."""
        state = query(request, {"state"}).get("state")
        return JSONResponse({"silences": list(self._actions.silences(state))})

    async def add_silence(self, request: Request) -> Response:
        """POST /api/v1/silences."""
        return JSONResponse(await self._actions.add_silence(await _body(request)), 201)

    async def expire_silence(self, request: Request) -> Response:
        """DELETE /api/v1/silences/{id}."""
        return JSONResponse(await self._actions.expire_silence(request.path_params["id"]))

    async def acknowledge(self, request: Request) -> Response:
        """POST /api/v1/incidents/{key}/ack."""
        return JSONResponse(await self._actions.acknowledge(request.path_params["key"], await _body(request)))

    @property
    def _actions(self) -> Actions:
        if self._given is None:
            raise RequestError(404, "nothing can be changed here")
        return self._given


async def _body(request: Request) -> Mapping[str, object]:
    """The JSON object of a request; an empty body is an empty object."""
    raw = bytearray()
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > MAX_BODY:
            raise RequestError(413, f"the body is longer than {MAX_BODY} bytes")
    if not raw.strip():
        return {}
    # A form of another site can send text, never this type.
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RequestError(415, f"the body is {kind or 'of no type'}; send JSON with Content-Type: application/json")
    try:
        body = json.loads(raw)
        json.dumps(body, ensure_ascii=False).encode()  # half a character can be written in JSON, but not sent again
    except (ValueError, RecursionError) as error:
        raise RequestError(400, f"the body is no JSON: {error}") from None
    if not isinstance(body, dict):
        raise RequestError(400, 'the body must be a JSON object, such as {"by": "anna"}')
    return body
