"""The console: two pages rendered on the server, so that they work without JavaScript and without a network.

Log text is hostile; every value passes jinja's autoescaping and lands in element text or a quoted attribute.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

import denpexd
from denpexd.clock import iso
from denpexd.core.numbers import ranks_named
from denpexd.web.view import RANK_STATES, JobView, RankView, Stats, Verdict

MAX_CELLS = 2048
MAX_ROWS = 32
_WORRYING = ("failed", "gone", "silent", "waiting")


@dataclass(frozen=True, slots=True)
class Overview:
    """What the first page shows."""

    jobs: Sequence[JobView]
    open: Sequence[Verdict]
    closed: Sequence[Verdict]
    stats: Stats
    ready: tuple[bool, str]


@dataclass(frozen=True, slots=True)
class JobPanel:
    """A job as drawn: `cells` is the grid (cut at MAX_CELLS), `worrying` the ranks worth a row of their own."""

    job: JobView
    counts: Sequence[tuple[str, int]]
    cells: Sequence[RankView]
    hidden: int
    worrying: Sequence[RankView]
    more_worrying: int


class Console:
    """Renders pages from `folder`; safe to call from a thread."""

    def __init__(self, folder: Path) -> None:
        self._env = Environment(
            loader=FileSystemLoader(folder),
            autoescape=True,
            finalize=_visible,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._env.filters.update(duration=duration, ranks=rank_ranges, bytes=byte_size, web_links=web_links)
        self._env.globals.update(version=denpexd.__version__)

    def index(self, overview: Overview) -> bytes:
        """The overview: daemon's state, open incidents, jobs with their ranks, incidents closed lately."""
        panels = [job_panel(job) for job in sorted(overview.jobs, key=lambda job: (-job.stall_seconds, job.job))]
        return self._render("index.html.j2", overview=overview, panels=panels, when=_when)

    def incident(self, verdict: Verdict) -> bytes:
        """Everything one verdict says."""
        return self._render("incident.html.j2", v=verdict, when=_when)

    def _render(self, template: str, **values: object) -> bytes:
        # a lone surrogate (a file name that is not UTF-8) must not cost the page
        return self._env.get_template(template).render(**values).encode("utf-8", "replace")


def _visible(value: object) -> object:
    """Texts of strangers: control and direction characters would let a line look like another one."""
    if not isinstance(value, str) or isinstance(value, Markup) or value.isprintable():
        return value
    return "".join(c if c.isprintable() or c in "\n\t\xa0\u3000" else ascii(c)[1:-1] for c in value)


def job_panel(job: JobView) -> JobPanel:
    """Sort a job's ranks into grid, counts and the rows that need a look; worst first."""
    counted = Counter(rank.state for rank in job.ranks)
    ranks = sorted(job.ranks, key=lambda rank: rank.rank)
    worrying = sorted(
        (rank for rank in ranks if rank.state in _WORRYING), key=lambda rank: (_WORRYING.index(rank.state), rank.rank)
    )
    return JobPanel(
        job=job,
        counts=[(state, counted[state]) for state in RANK_STATES if counted[state]],
        cells=ranks[:MAX_CELLS],
        hidden=max(0, len(ranks) - MAX_CELLS),
        worrying=worrying[:MAX_ROWS],
        more_worrying=max(0, len(worrying) - MAX_ROWS),
    )


def rank_ranges(ranks: Iterable[int]) -> str:
    """Ranks in words a person reads: "rank 3", "ranks 0,4-7"; "none" when empty."""
    named = sorted(set(ranks))
    return ranks_named(named) if named else "none"


def duration(seconds: float | None) -> str:
    """Seconds in the two largest units that matter; "?" when unknown."""
    if seconds is None:
        return "?"
    if seconds < 60:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min {int(seconds % 60)} s"
    return f"{minutes // 60} h {minutes % 60} min"


def byte_size(count: float) -> str:
    """Bytes with a binary unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def web_links(references: Iterable[str]) -> list[tuple[str, bool]]:
    """Each reference and whether it may become a link: only the web, never javascript: and the like."""
    return [(text, text.startswith(("https://", "http://"))) for text in references]


def _when(t: object) -> Mapping[str, str]:
    """Time of a verdict as machines read it and as people do."""
    stamp = iso(float(str(t)))
    return {"iso": stamp, "text": stamp[:19].replace("T", " ") + " UTC"}
