"""The JSON API below /api/v1: which question has which answer, rendered in a thread.

openapi.py describes the same for programs; a test compares both.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Protocol, TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from denpexd.errors import SourceError
from denpexd.web.live import Live, TooManyError
from denpexd.web.openapi import document
from denpexd.web.questions import MOST, body, decoded, encoded, find, limit_of, one_of, query, select
from denpexd.web.view import RANK_STATES, Entry, JobView, RankView, Reference, Verdict, View

MOST_RANKS = 20_000
ALL = 1_000_000
MAX_LOG = 2 << 20  # bytes of a pasted log
MAX_TEXT = 20_000  # characters that are searched for
CATEGORIES = frozenset({"state", "job", "failure", "category", "severity", "since", "limit", "cursor"})
_T = TypeVar("_T")


class OffLoop(Protocol):
    """Runs a function in the web side's threads."""

    def __call__(self, work: Callable[[], _T], /) -> Awaitable[_T]: ...


class Rest:
    """Handlers of the API. `schema`: the JSON Schema of a verdict; `reference`: None where there is none."""

    def __init__(self, view: View, reference: Reference | None, live: Live, off_loop: OffLoop, schema: str) -> None:
        self._view, self._reference, self._live, self._off_loop = view, reference, live, off_loop
        self._schema = schema
        self._recording = asyncio.Lock()
        self._openapi = json.dumps(document(json.loads(schema)))

    # --- incidents --------------------------------------------------------------------------------------------------

    async def incidents(self, request: Request) -> Response:
        asked = query(request, CATEGORIES)
        page, after = select(self._view.incidents(None, ALL), asked)
        return await self._json(lambda: {"incidents": page, "next": after})

    async def incident(self, request: Request) -> Response:
        query(request, frozenset())
        verdict = find(self._view, request)
        return await self._json(lambda: verdict)

    async def decisions(self, request: Request) -> Response:
        query(request, frozenset())
        key = str(find(self._view, request)["key"])
        return await self._json(lambda: {"decisions": [one._asdict() for one in self._view.decisions(key)]})

    # --- jobs -------------------------------------------------------------------------------------------------------

    async def jobs(self, request: Request) -> Response:
        asked = query(request, {"limit", "cursor", "ranks"})
        wanted = one_of(asked, "ranks", ("all", "none"))
        limit, after = limit_of(asked.get("limit"), MOST), decoded(asked.get("cursor"), str)

        def make() -> object:
            known = sorted((job for job in self._view.jobs() if after is None or job.job > after), key=lambda j: j.job)
            page = known[:limit]
            more = encoded(page[-1].job) if len(known) > limit else None
            return {"jobs": [plain(job, ranks=wanted != "none") for job in page], "next": more}

        return await self._json(make)

    async def job(self, request: Request) -> Response:
        wanted = one_of(query(request, {"ranks"}), "ranks", ("all", "none"))
        job = await self._job(request)
        pace = [list(point) for point in self._view.pace(job.job)]
        return await self._json(lambda: {**plain(job, ranks=wanted != "none"), "pace": pace})

    async def recording(self, request: Request) -> Response:
        query(request, frozenset())
        job = await self._job(request)
        if self._recording.locked():  # each holds a copy of what is known in memory
            raise HTTPException(503, "another recording is being written; try again in a moment", {"retry-after": "5"})
        async with self._recording:
            archive = await self._view.recorded(job.job)
        if archive is None:
            raise HTTPException(404, "nothing is recorded of this job: keep.bundles is off")
        return Response(archive, media_type="application/x-xz")

    async def ranks(self, request: Request) -> Response:
        asked = query(request, {"state", "limit", "cursor"})
        state = one_of(asked, "state", RANK_STATES)
        limit, after = limit_of(asked.get("limit"), MOST_RANKS), decoded(asked.get("cursor"), int)
        job = await self._job(request)

        def make() -> object:
            ranks = sorted(r for r in job.ranks if state in (None, r.state) and (after is None or r.rank > after))
            more = encoded(ranks[limit - 1].rank) if len(ranks) > limit else None
            return {"ranks": [rank._asdict() for rank in ranks[:limit]], "next": more}

        return await self._json(make)

    async def rank(self, request: Request) -> Response:
        query(request, frozenset())
        job, number = await self._job(request), request.path_params["rank"]
        found: RankView | None = next((rank for rank in job.ranks if rank.rank == number), None)
        if found is None:
            raise HTTPException(404, "the job has no rank of this number")
        return await self._json(found._asdict)

    async def _job(self, request: Request) -> JobView:
        name: str = request.path_params["job"]
        job = await self._off_loop(lambda: self._view.job(name))
        if job is None:
            raise HTTPException(404, "no job of this name is watched; /api/v1/jobs lists those that are")
        return job

    # --- what is known ----------------------------------------------------------------------------------------------

    async def failures(self, request: Request) -> Response:
        asked = query(request, {"q", "limit", "cursor"})
        limit, after = limit_of(asked.get("limit"), MOST), decoded(asked.get("cursor"), str)
        text, reference = asked.get("q", "")[:MAX_TEXT], self.reference()

        def make() -> object:
            if text.strip():
                return {"failures": [_entry(entry) for entry in reference.search(text)[:limit]], "next": None}
            known = sorted((e for e in reference.entries() if after is None or e.id > after), key=lambda e: e.id)
            more = encoded(known[limit - 1].id) if len(known) > limit else None
            return {"failures": [_entry(entry) for entry in known[:limit]], "next": more}

        return await self._json(make)

    async def failure(self, request: Request) -> Response:
        query(request, frozenset())
        article = await self._off_loop(lambda: self.reference().article(request.path_params["failure"]))
        if article is None:
            raise HTTPException(404, "no failure has this id; /api/v1/failures lists them")
        return await self._json(lambda: article.data)

    async def diagnose(self, request: Request) -> Response:
        query(request, frozenset())
        verdicts = await diagnosed(self.reference(), await body(request, MAX_LOG))
        return await self._json(lambda: {"verdicts": verdicts})

    def reference(self) -> Reference:
        """What is known without a job, or 404."""
        if self._reference is None:
            raise HTTPException(404, "there is no encyclopedia here")
        return self._reference

    async def rules(self, request: Request) -> Response:
        query(request, frozenset())
        packs = self._view.packs()
        return await self._json(lambda: {"packs": [asdict(pack) for pack in packs]})

    async def schema(self, request: Request) -> Response:
        return Response(self._schema, media_type="application/schema+json")

    async def openapi(self, request: Request) -> Response:
        return Response(self._openapi, media_type="application/json")

    async def events(self, request: Request) -> Response:
        job = query(request, {"job"}).get("job")
        try:
            stream = self._live.join(job, request.headers.get("last-event-id", "")[:64])
        except TooManyError:
            raise HTTPException(503, "too many listen already", {"retry-after": "10"}) from None
        return StreamingResponse(stream, media_type="text/event-stream", headers={"x-accel-buffering": "no"})

    async def _json(self, make: Callable[[], object]) -> Response:
        content = await self._off_loop(lambda: in_pieces(make()).encode())
        return Response(content, media_type="application/json")


async def diagnosed(reference: Reference, log: bytes) -> Sequence[Verdict]:
    """What a log shows; 400 where there is nothing to read in it, 503 where others are at it."""
    if not log.strip():
        raise HTTPException(400, "nothing was sent; the log is the body of the request")
    try:
        return await reference.diagnose(log)
    except SourceError as error:
        raise HTTPException(422, str(error)) from None
    except BlockingIOError:
        raise HTTPException(503, "other logs are being read; try again in a moment", {"retry-after": "5"}) from None


# --- answers ----------------------------------------------------------------------------------------------------------


def plain(job: JobView, *, ranks: bool = True) -> dict[str, object]:
    """A job as JSON-ready values; keys are the fields of JobView and RankView."""
    values: dict[str, object] = {name: getattr(job, name) for name in JobView.__slots__ if name != "ranks"}
    values["counts"] = job.counts
    if ranks:
        values["ranks"] = [rank._asdict() for rank in job.ranks]
    return values


def in_pieces(value: object, depth: int = 4) -> str:
    """A value as JSON, made in small pieces down to a depth: one call on thousands of ranks would hold up the loop."""
    if depth and isinstance(value, Mapping):
        pairs = (f"{json.dumps(str(name))}:{in_pieces(one, depth - 1)}" for name, one in value.items())
        return "{" + ",".join(pairs) + "}"
    if depth and isinstance(value, list | tuple):
        return "[" + ",".join(in_pieces(one, depth - 1) for one in value) + "]"
    return json.dumps(value, default=jsonable, separators=(",", ":"))


def _entry(entry: Entry) -> dict[str, object]:
    return {**entry._asdict(), "quotes": [{"text": text, "means": means} for text, means in entry.quotes]}


def jsonable(value: object) -> object:
    """Verdicts may hold read-only mappings and sets, which json does not know."""
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} is not a value of a verdict")
