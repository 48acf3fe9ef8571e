"""The page that Prometheus reads, as text or OpenMetrics, written in a thread and once for all who ask together.

The hot path of the daemon only adds to integers. What stands before a value (name and labels) is kept from scrape to
scrape, so that a page of 10,000 series costs little more than its numbers.
"""

import asyncio
import gzip
import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate

from prometheus_client import ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from denpexd.clock import breathe
from denpexd.web.metrics import FAMILIES, Family, Labels, Snapshot, Value
from denpexd.web.view import View

MAX_JOBS = 500
OTHER_JOBS = "_other"
MAX_LABEL = 200
_JOB = ("training_job",)
_BREATH = 256  # rows between two pauses for the event loop


class Writer:
    """Writes pages; for one thread. Jobs that are not admitted share the label `_other`, so that pages are bounded."""

    def __init__(self) -> None:
        self._known: dict[str, dict[Labels, str]] = {}

    def page(self, snapshot: Snapshot, admitted: frozenset[str], *, openmetrics: bool = False) -> str:
        """All families; without the line that ends a page of OpenMetrics."""
        lines: list[str] = []
        for family in FAMILIES:
            kind = "gauge" if family.kind == "info" else family.kind
            name = family.name.removesuffix("_total") if openmetrics else family.name
            lines += [f"# HELP {name} {family.help}", f"# TYPE {name} {kind}"]
            rows = self._rows(family, snapshot, admitted)
            if family.kind in ("summary", "histogram"):
                lines += [line for labels, value in rows.items() for line in _spread(family, labels, value)]
            else:
                lines += [f"{family.name}{labels} {_number(value)}" for labels, value in rows.items()]
        lines.append("")
        return "\n".join(lines)

    def _rows(self, family: Family, snapshot: Snapshot, admitted: frozenset[str]) -> "dict[str, Value]":
        """Values by the text of their labels."""
        known, used = self._known.get(family.name, {}), dict[Labels, str]()
        rows: dict[str, Value] = {}
        per_job = family.labels[:1] == _JOB
        for number, (labels, value) in enumerate(family.rows(snapshot)):
            if not number % _BREATH:
                breathe()
            if per_job and labels[0] not in admitted:
                if family.labels == _JOB and family.kind == "gauge":
                    continue  # the step of "all other jobs" means nothing
                labels = (OTHER_JOBS, *labels[1:])
            text = used[labels] = known.get(labels) or _text(family.labels, labels)
            rows[text] = value if text not in rows else _sum(rows[text], value)
        self._known[family.name] = used
        return rows


def _sum(one: Value, other: Value) -> Value:
    if isinstance(one, tuple) or isinstance(other, tuple):
        assert isinstance(one, tuple)
        assert isinstance(other, tuple)
        return [a + b for a, b in zip(one[0], other[0], strict=True)], one[1] + other[1]
    return one + other


def _spread(family: Family, labels: str, value: Value) -> Iterator[str]:
    """The lines of a summary or a histogram; its buckets are counted up."""
    assert isinstance(value, tuple)
    counts, total = value
    if family.bounds:
        bounds = [*(repr(float(bound)) for bound in family.bounds), "+Inf"]
        inside = labels.removesuffix("}") + ("," if labels else "{")
        for bound, count in zip(bounds, accumulate(counts), strict=True):
            yield f'{family.name}_bucket{inside}le="{bound}"}} {count}'
    yield f"{family.name}_count{labels} {sum(counts)}"
    yield f"{family.name}_sum{labels} {_number(total)}"


def _number(value: Value) -> str:
    if isinstance(value, int):
        return str(int(value))  # True is 1
    assert isinstance(value, float)
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"


def _text(names: Sequence[str], values: Labels) -> str:
    pairs = sorted(f'{name}="{_label(value)}"' for name, value in zip(names, values, strict=True))
    return f"{{{','.join(pairs)}}}" if names else ""


def _label(text: str) -> str:
    """Job names come from paths: no lone surrogates (they cannot be encoded), no control characters, bounded."""
    clean = text[:MAX_LABEL].encode("utf-8", "replace").decode("utf-8")
    if not clean.isprintable():
        clean = "".join(c if c.isprintable() else "?" for c in clean)
    return clean.replace("\\", "\\\\").replace('"', '\\"')


class Exposition:
    """Equal requests that arrive while a page is written get the same answer."""

    def __init__(self, view: View, pool: ThreadPoolExecutor) -> None:
        self._view, self._pool = view, pool
        self._process = ProcessCollector(registry=None)
        self._writer = Writer()
        self._flights: dict[tuple[str, bool], asyncio.Task[bytes]] = {}
        self._admitted: dict[str, None] = {}

    async def render(self, accept: str, zipped: bool) -> tuple[bytes, str]:
        """The page and its content type; `accept` is the request's header, `zipped` asks for gzip."""
        encoder, content_type = choose_encoder(accept)
        key = (content_type, zipped)
        flight = self._flights.get(key)
        if flight is None:
            flight = asyncio.create_task(self._fly(encoder, zipped))
            self._flights[key] = flight
            flight.add_done_callback(lambda _: self._flights.pop(key, None))
        return await asyncio.shield(flight), content_type

    async def _fly(self, encoder: Callable[[Collector], bytes], zipped: bool) -> bytes:
        loop = asyncio.get_running_loop()
        jobs = await loop.run_in_executor(self._pool, self._view.jobs)
        snapshot = Snapshot(self._view.stats(), jobs)
        return await loop.run_in_executor(self._pool, self._write, encoder, snapshot, self._admit(snapshot), zipped)

    def _write(
        self, encoder: Callable[[Collector], bytes], snapshot: Snapshot, admitted: frozenset[str], zipped: bool
    ) -> bytes:
        process = encoder(self._process)
        ended = process.endswith(b"# EOF\n")
        page = self._writer.page(snapshot, admitted, openmetrics=ended).encode() + process
        return gzip.compress(page, compresslevel=1, mtime=0) if zipped else page

    def _admit(self, snapshot: Snapshot) -> frozenset[str]:
        """Jobs that keep a label of their own: first come first served, freed when a job leaves the snapshot."""
        stats = snapshot.stats
        seen = dict.fromkeys(job.job for job in snapshot.jobs)
        for rows in (stats.incidents_open, stats.incidents, stats.fingerprint_hits):
            seen.update(dict.fromkeys(labels[0] for labels in rows))
        kept = [job for job in self._admitted if job in seen]
        fresh = [job for job in seen if job not in self._admitted]
        self._admitted = dict.fromkeys((kept + fresh)[:MAX_JOBS])
        return frozenset(self._admitted)
