"""The console's templates: rendered on the server, so that pages can be read without JavaScript and without a network.

Log text is hostile; every value passes jinja's autoescaping and lands in element text or a quoted attribute.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup, escape

import denpexd
from denpexd.clock import iso
from denpexd.core.numbers import ranks_named

UNIX_SINCE = 1_000_000_000.0  # an axis of events that starts at the Unix epoch; less is seconds of a recording


class Console:
    """Renders templates of `folder`; safe to call from threads."""

    def __init__(self, folder: Path) -> None:
        self._env = Environment(
            loader=FileSystemLoader(folder),
            autoescape=True,
            finalize=_visible,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._env.filters.update(
            duration=duration,
            path=path,
            prose=prose,
            ranks=_ranks,
            bytes=byte_size,
            web_links=web_links,
            number=number,
            plural=plural,
        )
        self._env.globals.update(version=denpexd.__version__, when=when, hang_due=hang_due)

    def render(self, template: str, **values: object) -> bytes:
        """A page."""
        # a lone surrogate (a file name that is not UTF-8) must not cost the page
        return self._env.get_template(template).render(**values).encode("utf-8", "replace")


def _visible(value: object) -> object:
    """Texts of strangers: control and direction characters would let a line look like another one."""
    if not isinstance(value, str) or isinstance(value, Markup) or value.isprintable():
        return value
    return "".join(c if c.isprintable() or c in "\n\t\xa0\u3000" else ascii(c)[1:-1] for c in value)


def prose(text: object) -> Markup:
    """A text of a rule: what stands between backticks is code, the rest shows as it is."""
    parts = re.split(r"`([^`]+)`", str(_visible(text)) if text else "")
    return Markup().join(Markup("<code>{}</code>").format(p) if n % 2 else escape(p) for n, p in enumerate(parts))


def rank_ranges(ranks: Iterable[int], most: int = 1000) -> str:
    """Ranks in words a person reads: "rank 3", "ranks 0,4-7"; "none" when empty. `most`: spans that are named."""
    named = sorted(set(ranks))
    if not named:
        return "none"
    spans = ranks_named(named).split(",")
    return ",".join(spans[:most]) + (f" and {len(spans) - most} more" if len(spans) > most else "")


def _ranks(ranks: Iterable[int], most: int = 1000) -> Markup:
    """The same, broken between lines after a comma only."""
    spans = rank_ranges(ranks, most).split(",")
    return Markup(",<wbr>").join(Markup('<span class="whole">{}</span>').format(span) for span in spans)


def duration(seconds: float | None) -> str:
    """Seconds in the two largest units that matter; "?" when unknown."""
    if seconds is None:
        return "?"
    if seconds < 60:
        return f"{seconds:.2g} s" if seconds < 10 else f"{seconds:.0f} s"
    minutes = int(seconds // 60)
    if minutes < 60:
        return f"{minutes} min {int(seconds % 60)} s"
    if minutes < 48 * 60:
        return f"{minutes // 60} h {minutes % 60} min"
    return f"{minutes // 1440} days {minutes % 1440 // 60} h"


def hang_due(step: int | None, stall_seconds: float, t: float | None, by: str) -> str:
    """What a job without a step, or one that stands, waits for before it is told; empty where it waits for nothing."""
    if t is None or (step is not None and not stall_seconds):
        return ""
    waits = "no step seen yet" if step is None else "no progress"
    return f"{waits}; silence is judged from {iso(t)[11:19]} UTC ({by})"


def byte_size(count: float) -> str:
    """Bytes with a binary unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def number(value: object) -> str:
    """A number with thousands apart; "?" when unknown, anything else as it is."""
    if value is None or not isinstance(value, int | float):
        return "?" if value is None else str(value)
    return f"{value:,.0f}" if value == int(value) or value >= 100 else f"{value:,.2g}"


def plural(count: int, word: str) -> str:
    """ "1 job", "2 jobs"."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def path(name: object) -> str:
    """A name as a part of a path; a lone surrogate cannot be written there and becomes a question mark."""
    return quote(str(name).encode("utf-8", "replace"), safe="")


def web_links(references: Iterable[str]) -> list[tuple[str, bool]]:
    """Each reference and whether it may become a link: only the web, never javascript: and the like."""
    return [(text, text.startswith(("https://", "http://"))) for text in references]


def when(t: object) -> Mapping[str, str]:
    """Time of a verdict as machines read it and as people do; `iso` is empty where it is no time of the world."""
    value = float(str(t))
    if value < UNIX_SINCE:
        return {"iso": "", "text": f"{value:.1f} s of the recording"}
    stamp = iso(value)
    return {"iso": stamp, "text": stamp[:19].replace("T", " ") + " UTC"}
