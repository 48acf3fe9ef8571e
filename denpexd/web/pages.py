"""The console's pages: what each is made of. Everything is read from the View on the loop and rendered in a thread."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qs, urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from denpexd.web.board import PITCH, Shape, board, groups, shapes
from denpexd.web.page import Console
from denpexd.web.picture import plots, timeline
from denpexd.web.questions import SEVERITIES, body, query, select
from denpexd.web.rest import ALL, MAX_LOG, OffLoop, Rest, diagnosed
from denpexd.web.view import RANK_STATES, Actions, JobView, Verdict, View

MOST_JOBS = 200
MOST_OPEN, MOST_CLOSED, MOST_FIXES = 50, 8, 20
MOST_LABELLED = 256  # ranks up to which each cell has its number
FORM = 3 * MAX_LOG + 1000  # bytes: a form writes most bytes of a log as three
FILTERS = frozenset({"state", "job", "failure", "category", "severity", "node", "q", "cursor"})
FOUND_BY = ("job", "failure", "node", "q", "cursor")  # what the history can be searched by
PAGE = "50"


@dataclass(frozen=True, slots=True)
class JobRow:
    """A job in the overview. `bars`: state, begin and width in percent of its ranks; `open`: its open incidents."""

    job: JobView
    counts: Mapping[str, int]
    bars: Sequence[tuple[str, float, float]]
    open: Sequence[Verdict]


@dataclass(frozen=True, slots=True)
class Grid:
    """The ranks as a picture; `labels`: (x, y, rank, state) of each cell where there are few."""

    wide: int
    high: int
    pitch: int
    shapes: Sequence[Shape]
    labels: Sequence[tuple[int, int, int, str]]


class Pages:
    """Handlers of the console's pages."""

    def __init__(self, view: View, rest: Rest, actions: Actions | None, console: Console, off_loop: OffLoop) -> None:
        self._view, self._rest, self._actions = view, rest, actions
        self._console, self._off_loop = console, off_loop

    async def overview(self, request: Request) -> Response:
        view = self._view
        opened, closed = view.incidents("open", ALL), view.incidents("closed", MOST_CLOSED)
        ready, stats = view.ready(), view.stats()

        def make() -> bytes:
            jobs = sorted(view.jobs(), key=lambda job: (-job.stall_seconds, job.job))
            values = {"rows": [_row(job, opened) for job in jobs[:MOST_JOBS]], "more": max(0, len(jobs) - MOST_JOBS)}
            shown = sorted(opened, key=_weight)[:MOST_OPEN]
            return self._console.render(
                "index.html.j2", **values, jobs=len(jobs), opened=shown, open_count=len(opened), closed=closed,
                ready=ready, stats=stats,
            )  # fmt: skip

        return await self._html(make)

    async def incidents(self, request: Request) -> Response:
        asked = {name: value for name, value in query(request, FILTERS).items() if value}
        if self._actions is not None and {"q", "node"} & asked.keys():
            found: Any = await self._actions.history({n: asked[n] for n in FOUND_BY if n in asked} | {"limit": PAGE})
            left = [(name, asked[name]) for name in ("state", "severity", "category") if name in asked]
            page = [v for v in found["incidents"] if all(v[name] == value for name, value in left)]
            after = found["next"]
        else:
            page, after = select(self._view.incidents(None, ALL), {**asked, "limit": PAGE})
        further = urlencode({**asked, "cursor": after}) if after else ""
        known = [] if self._actions is None else self._actions.silences(None)
        silences = [one for one in known if one["state"] != "expired"]
        fixes = [] if self._actions is None else list(self._actions.fixes())[:MOST_FIXES]
        return await self._html(
            lambda: self._console.render(
                "incidents.html.j2", verdicts=page, asked=asked, further=further, silences=silences, fixes=fixes
            )
        )

    async def incident(self, request: Request) -> Response:
        verdict = self._view.incident(request.path_params["key"]) or await self._kept(request.path_params["key"])
        if verdict is None:
            raise HTTPException(404, "no incident has this key; /incidents lists those that are kept")

        def make() -> bytes:
            told, hands = self._view.told(str(verdict["key"])), self._actions is not None
            drawn = timeline(verdict, told)
            kept_back = [one for one in self._view.decisions(str(verdict["key"])) if one.action != "send"]
            return self._console.render(
                "incident.html.j2", v=verdict, picture=drawn, told=told, hands=hands, kept_back=kept_back[-50:]
            )

        return await self._html(make)

    async def _kept(self, key: str) -> Verdict | None:
        """An incident that only the state still knows."""
        if self._actions is None:
            return None
        found: Any = await self._actions.history({"q": key, "limit": "10"})
        return next((v for v in found["incidents"] if v["key"] == key), None)

    async def job(self, request: Request) -> Response:
        name: str = request.path_params["job"]
        opened = [v for v in self._view.incidents("open", ALL) if v["job"] == name]
        pace, drawn = self._view.pace(name), request.query_params.get("grid") != "none"

        def make() -> bytes | None:
            job = self._view.job(name)
            if job is None:
                return None
            told, left_out = groups(job)
            step, lines = plots(pace)
            return self._console.render(
                "job.html.j2", row=_row(job, opened), grid=_grid(job) if drawn else None, groups=told,
                left_out=left_out, step_plot=step, line_plot=lines, states=RANK_STATES,
            )  # fmt: skip

        return await self._html(make, "no job of this name is watched")

    async def encyclopedia(self, request: Request) -> Response:
        text, reference = query(request, {"q"}).get("q", "")[:4000], self._rest.reference()

        def make() -> bytes:
            found = reference.search(text) if text.strip() else reference.entries()
            return self._console.render("encyclopedia.html.j2", entries=found, q=text)

        return await self._html(make)

    async def entry(self, request: Request) -> Response:
        reference = self._rest.reference()

        def make() -> bytes | None:
            article = reference.article(request.path_params["failure"])
            return None if article is None else self._console.render("entry.html.j2", a=article)

        return await self._html(make, "no failure has this id")

    async def paste(self, request: Request) -> Response:
        return await self._html(lambda: self._console.render("diagnose.html.j2", verdicts=None, error="", lines=0))

    async def diagnose(self, request: Request) -> Response:
        content = parse_qs((await body(request, FORM)).decode("ascii", "replace"), max_num_fields=4)
        log = content.get("log", [""])[0].encode("utf-8", "replace")
        verdicts: Sequence[Verdict] | None = None
        error, status = "", 200
        try:
            if len(log) > MAX_LOG:
                raise HTTPException(413, f"at most {MAX_LOG >> 20} MiB are taken; use denpexd diagnose for more")
            verdicts = await diagnosed(self._rest.reference(), log)
        except HTTPException as wrong:
            error, status = wrong.detail, wrong.status_code
        return await self._html(
            lambda: self._console.render(
                "diagnose.html.j2", verdicts=verdicts, error=error, lines=log.count(b"\n") + 1,
                pictures=[timeline(v) for v in verdicts or ()],
            ),
            status=status,
        )  # fmt: skip

    async def health(self, request: Request) -> Response:
        view = self._view
        values = {"ready": view.ready(), "healthy": view.healthy(), "stats": view.stats(), "packs": view.packs()}
        mistakes = [text for pack in view.packs() for text in pack.errors]
        return await self._html(lambda: self._console.render("health.html.j2", **values, mistakes=mistakes))

    async def _html(self, make: Callable[[], bytes | None], missing: str = "", status: int = 200) -> Response:
        page = await self._off_loop(make)
        if page is None:
            raise HTTPException(404, missing)
        return Response(page, status, media_type="text/html")


def _weight(verdict: Verdict) -> int:
    """The worst first."""
    severity = str(verdict["severity"])
    return SEVERITIES.index(severity) if severity in SEVERITIES else len(SEVERITIES)


def _row(job: JobView, opened: Sequence[Verdict]) -> JobRow:
    counts, total, begin = job.counts, max(1, len(job.ranks)), 0.0
    bars = []
    for state, count in counts.items():
        width = 100 * count / total
        bars.append((state, round(begin, 2), round(width, 2)))
        begin += width
    return JobRow(job, counts, bars, [v for v in opened if v["job"] == job.job])


def _grid(job: JobView) -> Grid:
    made = board(job)
    wide, high, paths = shapes(made)
    labels = []
    if len(made.cells) <= MOST_LABELLED:
        for at, (rank, cell) in enumerate(zip(made.ranks, made.cells, strict=True)):
            labels.append((at % wide * PITCH, at // wide * PITCH, rank, cell.state))
    return Grid(wide, high, PITCH, paths, labels)
