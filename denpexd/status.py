"""What a running daemon knows, on one screen: open incidents, jobs and their ranks, destinations, its own health.

`ask` takes it over the HTTP API, once; `as_text` and `as_json` show it, and `denpexd top` draws the same values live.
"""

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from prometheus_client.parser import text_string_to_metric_families

from denpexd.client import Client
from denpexd.clock import Clock
from denpexd.errors import DaemonError
from denpexd.notify.render import Page, acknowledged, kind_word, who
from denpexd.notify.text import one_line
from denpexd.terminal import table
from denpexd.web.page import byte_size, duration, hang_due
from denpexd.web.view import RANK_STATES

A_PAGE = 1000  # of the API
JOB_HEAD = ("JOB", "STATE", "STEP", "A STEP", "STANDS", "RANKS")
SHOWN = 20  # incidents on one screen; the others are counted

Verdict = Mapping[str, Any]
Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One look at a daemon at `now` (Unix seconds). `why`: what is not well; `incidents`: the open ones, newest first.

    `jobs` as /api/v1/jobs gives them, ranks counted; `metrics`: sample name to labels to value.
    """

    url: str
    now: float
    why: Sequence[str]
    incidents: Sequence[Verdict]
    jobs: Sequence[Mapping[str, Any]]
    metrics: Mapping[str, Mapping[Labels, float]] = field(default_factory=dict)

    @property
    def well(self) -> bool:
        """Whether nothing is open and nothing is wrong with the daemon itself."""
        return not self.why and not self.incidents

    def value(self, name: str) -> float:
        """The sum of all samples of a metric, 0 where there is none."""
        return sum(self.metrics.get(name, {}).values())

    def label(self, name: str, label: str) -> str:
        """A label of the first sample of a metric, such as the version in build_info."""
        return next((dict(labels).get(label, "") for labels in self.metrics.get(name, {})), "")

    def files(self) -> dict[str, int]:
        """How many files are in each state."""
        return {dict(at).get("state", ""): int(n) for at, n in self.metrics.get("denpexd_files", {}).items()}


def ask(client: Client, now: float) -> Standing:
    """Look once; DaemonError where nobody answers."""
    healthy, why = client.health("/healthz")
    ready, waits = client.health("/readyz")
    metrics = samples(client.metrics())
    incidents = client.every("incidents", "incidents", state="open", limit=A_PAGE)
    jobs = client.every("jobs", "jobs", ranks="none", limit=A_PAGE)
    standing = Standing(url=client.url, now=now, why=(), incidents=incidents, jobs=jobs, metrics=metrics)
    wrong = [text for good, text in ((healthy, why), (ready, waits)) if not good] + _trouble(standing)
    return Standing(url=client.url, now=now, why=wrong, incidents=incidents, jobs=jobs, metrics=metrics)


class Asked:
    """A daemon that is asked again and again."""

    def __init__(self, client: Client, clock: Clock) -> None:
        self._client, self._clock = client, clock

    def look(self) -> Standing:
        """How it stands now."""
        return ask(self._client, self._clock.wall())

    def acknowledge(self, key: str) -> None:
        """Take an incident on, in the name of $USER."""
        self._client.post(f"incidents/{quote(key)}/ack", {"by": os.environ.get("USER", ""), "note": "", "close": False})

    def ranks(self, job: str) -> Sequence[Mapping[str, Any]]:
        """The ranks of a job, by number; none where it is watched no more."""
        try:
            found: Sequence[Mapping[str, Any]] = self._client.get(f"jobs/{quote(job, safe='')}/ranks")["ranks"]
        except DaemonError as error:
            if error.status != 404:
                raise
            return ()
        return found


def samples(page: str) -> dict[str, dict[Labels, float]]:
    """Every sample of a page of metrics by its name."""
    found: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return found


def _trouble(standing: Standing) -> list[str]:
    """What is wrong with the daemon though it answers."""
    dead = [one_line(sink) for sink, n in _sinks(standing).items() if n.get("dead") and not n.get("sent")]
    oldest, value = standing.value("denpexd_outbox_oldest_seconds"), standing.value
    return [
        *(["it cannot read the logs: silence of a rank proves nothing now"] if value("denpexd_blind") else []),
        *([f"a message has waited for {duration(oldest)}"] if oldest > 300 else []),
        *([f"nothing has arrived at {', '.join(dead)}: denpexd notify dead"] if dead else []),
        *(["its state cannot be written: disk full?"] if value("denpexd_state_write_errors_total") else []),
        *(
            ["the last reload was refused: denpexd config check -c FILE"]
            if "denpexd_config_last_reload_successful" in standing.metrics
            and not value("denpexd_config_last_reload_successful")
            else []
        ),
    ]


def _sinks(standing: Standing) -> dict[str, dict[str, int]]:
    sinks: dict[str, dict[str, int]] = {}
    for labels, count in standing.metrics.get("denpexd_notify_total", {}).items():
        about = dict(labels)
        sinks.setdefault(about.get("sink", ""), {})[about.get("outcome", "")] = int(count)
    return sinks


def job_state(job: Mapping[str, Any]) -> str:
    """The word for a whole job: of its ranks the worst state tells, or that it stands still."""
    counts = Counter(job["counts"])
    if counts["failed"] or counts["gone"]:
        return "failed" if counts["failed"] else "gone"
    if job["stall_seconds"] > 0 and (counts["silent"] or counts["waiting"]):
        return "stalled"
    if counts["done"] and not counts["running"]:
        return "done"
    return "running" if counts["running"] else "unheard"


def in_order(standing: Standing) -> list[Mapping[str, Any]]:
    """The jobs as they are listed: those that stand longest first."""
    return sorted(standing.jobs, key=lambda job: (-job["stall_seconds"], job["job"]))


def job_cells(job: Mapping[str, Any]) -> tuple[str, str, str, str, str]:
    """What a table tells of a job under JOB_HEAD, but for its ranks; empty what is not known."""
    return (
        one_line(job["job"]),
        job_state(job),
        "" if job["step"] is None else str(job["step"]),
        "" if job["step_seconds"] is None else duration(job["step_seconds"]),
        duration(job["stall_seconds"]) if job["stall_seconds"] else "",
    )


def as_json(standing: Standing) -> dict[str, object]:
    """The same for scripts."""
    return {
        "url": standing.url,
        "version": standing.label("denpexd_build_info", "version"),
        "well": standing.well,
        "why": list(standing.why),
        "incidents": list(standing.incidents),
        "jobs": [{**job, "state": job_state(job)} for job in standing.jobs],
        "sinks": _sinks(standing),
        "outbox_pending": int(standing.value("denpexd_outbox_pending")),
        "files": standing.files(),
        "lines": int(standing.value("denpexd_lines_total")),
        "lag_bytes": int(standing.value("denpexd_file_lag_bytes")),
        "engine": standing.label("denpexd_scan_engine_info", "engine"),
    }


def as_text(standing: Standing, *, color: bool, width: int) -> str:
    """One screen of `width` columns."""
    page = Page(color, width)
    version = standing.label("denpexd_build_info", "version")
    page.text(f"denpexd {version} at {standing.url}".replace("  ", " "), "", style="head")
    for why in standing.why:
        page.text(f"▲ {why}", "", "  ", style="high")
    _incidents(standing, page)
    _jobs(standing, page)
    _itself(standing, page)
    return "\n".join(page.lines)


def _incidents(standing: Standing, page: Page) -> None:
    number = len(standing.incidents)
    page.lines.append("")
    if not number:
        page.lines.append(page.paint("✔ nothing is open", "closed"))
        return
    page.lines.append(page.paint(f"{number} open incident{'' if number == 1 else 's'}", "head"))
    for verdict in standing.incidents[:SHOWN]:
        since = duration(max(0.0, standing.now - float(verdict.get("opened_t") or standing.now)))
        head = page.cut(f"● {kind_word(verdict)}  {who(verdict)}  {one_line(verdict.get('title'))}", page.width)
        page.lines.append(page.paint(head, str(verdict.get("severity"))))
        taken = f", taken on: {said}" if (said := acknowledged(verdict)) else ""
        page.text(f"{one_line(verdict.get('job'))}, {one_line(verdict.get('certainty'))}, for {since}{taken}", "    ")
        page.lines.append("    " + page.paint(f"key {one_line(verdict.get('key'))}", "dim"))  # whole: to be copied
        page.command(f"denpexd explain {one_line(verdict.get('failure'))}", "    ")
    if number > SHOWN:
        page.lines.append(f"  and {number - SHOWN} more: {standing.url}/")


def _jobs(standing: Standing, page: Page) -> None:
    if not standing.jobs:
        page.text("No job is seen: no log file was found yet. denpexd discover PATH says why.", "")
        return
    rows = [
        (*job_cells(job), ", ".join(f"{job['counts'][s]} {s}" for s in RANK_STATES if job["counts"].get(s)))
        for job in in_order(standing)
    ]
    page.lines += ["", *table(JOB_HEAD, rows, page.width)]
    waits = [(one_line(job["job"]), text) for job in standing.jobs if (text := waits_for(job))]
    for name, text in waits[:SHOWN]:
        page.text(f"{name}: {text}", "  ")
    if len(waits) > SHOWN:
        page.lines.append(f"  and {len(waits) - SHOWN} more that wait: {standing.url}/")


def waits_for(job: Mapping[str, Any]) -> str:
    """What a job without a step, or one that stands, waits for before it is told; "" where it waits for nothing."""
    return hang_due(job["step"], job["stall_seconds"], job.get("hang_due_t"), one_line(job.get("hang_due_by")))


def _itself(standing: Standing, page: Page) -> None:
    rows = [
        (sink, ", ".join(f"{n} {outcome}" for outcome, n in sorted(outcomes.items()) if n))
        for sink, outcomes in sorted(_sinks(standing).items())
    ]
    if rows:
        page.lines += ["", *table(("SINK", "MESSAGES"), rows, page.width)]
    files = ", ".join(f"{n} {state}" for state, n in standing.files().items() if n)
    lines, lag = int(standing.value("denpexd_lines_total")), standing.value("denpexd_file_lag_bytes")
    waiting = int(standing.value("denpexd_outbox_pending"))
    parts = [
        f"files: {files or 'none'}",
        f"{lines:,} lines read, {byte_size(lag)} behind",
        f"{waiting} message{'' if waiting == 1 else 's'} waiting",
        f"engine {standing.label('denpexd_scan_engine_info', 'engine')}",
    ]
    page.lines.append("")
    page.text("; ".join(parts), "", style="dim")
