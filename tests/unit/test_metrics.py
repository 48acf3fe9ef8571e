"""The page that Prometheus reads: names, values, bounds, and that a scrape never holds up the loop's answers."""

import asyncio
import gzip
import re
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import accumulate
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    SummaryMetricFamily,
)
from prometheus_client.openmetrics.exposition import generate_latest as openmetrics_latest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from prometheus_client.registry import Collector
from stand import Stand

from denpexd.web.exposition import MAX_JOBS, OTHER_JOBS, Exposition, Writer
from denpexd.web.metrics import FAMILIES, Family, Snapshot
from denpexd.web.view import JobView, RankView, Stats

DOCS = Path(__file__).parents[2] / "docs"

PROMISED = re.findall(
    r"\w+",
    """
denpexd_build_info denpexd_incidents_total denpexd_incident_open denpexd_fingerprint_hits_total denpexd_ranks
denpexd_step denpexd_step_seconds denpexd_stall_seconds denpexd_suspected_hangs_total denpexd_lines_total
denpexd_bytes_total denpexd_file_lag_bytes denpexd_files denpexd_read_errors_total denpexd_truncations_total
denpexd_task_restarts_total denpexd_detect_seconds denpexd_idle_gpu_seconds_total
denpexd_rotations_total denpexd_watch_overflows_total denpexd_lines_repeated_total denpexd_bytes_lost_total
denpexd_lines_truncated_total denpexd_outbox_pending
denpexd_outbox_oldest_seconds denpexd_notify_total denpexd_state_write_errors_total denpexd_loop_lag_seconds
denpexd_redactions_total denpexd_evidence_seconds denpexd_evidence_pause_seconds denpexd_evidence_total
denpexd_config_last_reload_successful denpexd_config_reloads_total denpexd_rules denpexd_rule_errors
denpexd_config_last_reload_success_timestamp_seconds denpexd_scan_engine_info denpexd_blind
denpexd_bundles_total denpexd_bundle_bytes denpexd_recording_bytes
denpexd_hub_messages_total denpexd_hub_waiting denpexd_hub_nodes denpexd_hub_partitions denpexd_hub_alone
denpexd_kept denpexd_forgotten_total denpexd_state_recoveries_total denpexd_silences denpexd_fixes
""",
)

HANG = ("run-7", "syncbn-eval-rank0", "hang", "critical")
CRASH = ("run-7", "cuda-oom", "memory", "high")

FULL = Stats(
    engine="hyperscan",
    lines=1200,
    bytes=98304,
    file_lag_bytes=17,
    files={"live": 8, "idle": 2},
    read_errors={"EACCES": 3},
    bytes_lost=8,
    truncations=1,
    rotations=2,
    watch_overflows=4,
    lines_repeated=3,
    lines_truncated=5,
    outbox_pending=6,
    outbox_oldest_seconds=7.5,
    notifications={("slack", "sent"): 9, ("slack", "dead"): 1},
    task_restarts={"read": 2},
    state_write_errors=10,
    state_recoveries=1,
    silences=2,
    fixes={("run-7", "cuda-oom", "held"): 1},
    loop_lag_seconds=0.011,
    redactions=12,
    evidence_seconds={"stacks": 0.25},
    evidence_outcomes={("stacks", "ok"): 4, ("stacks", "denied"): 1},
    evidence_pause_seconds=0.004,
    bundles={"written": 3, "failed": 1},
    bundle_bytes=4096,
    tape_bytes=512,
    kept={"job": 1},
    forgotten={"file": 21},
    suspected_hangs=13,
    detect_seconds={"hang": ([0, 0, 0, 2, 0, 1, 0, 0, 0, 0, 1], 4100.5)},
    idle_gpu_seconds={"run-7": 7200.0},
    incidents={CRASH: 2},
    incidents_open={HANG: 1},
    fingerprint_hits={("run-7", "cuda-oom"): 14},
    blind=True,
    config_reload_ok=False,
    config_reloads={"taken": 2, "refused": 1},
    config_taken_at=1_760_000_000.0,
    rules={"denpexd": 165},
    rule_errors={"denpexd": 0},
    hub={
        "messages": {"read": 5},
        "waiting": {"batches": 2},
        "nodes": {"silent": 1},
        "state": {"partitions": 8},
    },
)
JOB = JobView(
    job="run-7",
    attempt=2,
    step=480,
    step_seconds=0.5,
    stall_seconds=90.0,
    ranks=[RankView(0, "silent"), RankView(1, "waiting"), RankView(2, "waiting")],
)


class Daemon(Stand):
    """Counts how often it is asked."""

    def __init__(self, stats: Stats = FULL, jobs: Sequence[JobView] = (JOB,)) -> None:
        super().__init__(job_views=list(jobs), counts=stats)
        self.asked = 0

    def stats(self) -> Stats:
        self.asked += 1
        return self.counts


@pytest.fixture
def pool():
    with ThreadPoolExecutor(1) as pool:
        yield pool


async def page(pool: ThreadPoolExecutor, daemon: Daemon, accept: str = "") -> str:
    return (await Exposition(daemon, pool).render(accept, zipped=False))[0].decode()


def samples(text: str) -> dict[str, float]:
    found = {}
    for family in parse_text(text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[f"{sample.name}{{{labels}}}" if labels else sample.name] = sample.value
    return found


def test_the_names_are_exactly_those_promised():
    assert sorted(family.name for family in FAMILIES) == sorted(PROMISED)


def test_no_label_collides_with_one_that_prometheus_sets():
    labels = {label for family in FAMILIES for label in family.labels}
    assert not labels & {"job", "instance", "namespace", "pod", "container", "node", "rank", "__name__"}


def test_every_metric_and_label_is_documented():
    text = (DOCS / "metrics.md").read_text("utf-8")
    for family in FAMILIES:
        row = re.search(rf"^\| `{family.name}` \|.*$", text, re.MULTILINE)
        assert row, family.name
        assert f"| {family.kind} |" in row[0], family.name
        for label in family.labels:
            assert f"`{label}`" in row[0], (family.name, label)
    documented = set(re.findall(r"^\| `(denpexd_\w+)` \|", text, re.MULTILINE))
    assert documented == set(PROMISED)


async def test_every_count_appears_with_its_value(pool):
    found = samples(await page(pool, Daemon()))
    expected = {
        "denpexd_scan_engine_info{engine=hyperscan}": 1,
        "denpexd_incidents_total{category=memory,failure=cuda-oom,severity=high,training_job=run-7}": 2,
        "denpexd_incident_open{failure=syncbn-eval-rank0,training_job=run-7}": 1,
        "denpexd_incident_open{failure=cuda-oom,training_job=run-7}": 0,
        "denpexd_fingerprint_hits_total{failure=cuda-oom,training_job=run-7}": 14,
        "denpexd_ranks{state=silent,training_job=run-7}": 1,
        "denpexd_ranks{state=waiting,training_job=run-7}": 2,
        "denpexd_ranks{state=failed,training_job=run-7}": 0,
        "denpexd_step{training_job=run-7}": 480,
        "denpexd_step_seconds{training_job=run-7}": 0.5,
        "denpexd_stall_seconds{training_job=run-7}": 90,
        "denpexd_suspected_hangs_total": 13,
        "denpexd_detect_seconds_bucket{category=hang,le=15.0}": 0,
        "denpexd_detect_seconds_bucket{category=hang,le=30.0}": 2,
        "denpexd_detect_seconds_bucket{category=hang,le=3600.0}": 3,
        "denpexd_detect_seconds_bucket{category=hang,le=+Inf}": 4,
        "denpexd_detect_seconds_count{category=hang}": 4,
        "denpexd_detect_seconds_sum{category=hang}": 4100.5,
        "denpexd_idle_gpu_seconds_total{training_job=run-7}": 7200,
        "denpexd_lines_total": 1200,
        "denpexd_bytes_total": 98304,
        "denpexd_file_lag_bytes": 17,
        "denpexd_files{state=live}": 8,
        "denpexd_read_errors_total{errno=EACCES}": 3,
        "denpexd_bytes_lost_total": 8,
        "denpexd_truncations_total": 1,
        "denpexd_rotations_total": 2,
        "denpexd_watch_overflows_total": 4,
        "denpexd_lines_repeated_total": 3,
        "denpexd_lines_truncated_total": 5,
        "denpexd_outbox_pending": 6,
        "denpexd_outbox_oldest_seconds": 7.5,
        "denpexd_notify_total{outcome=dead,sink=slack}": 1,
        "denpexd_task_restarts_total{task=read}": 2,
        "denpexd_state_write_errors_total": 10,
        "denpexd_state_recoveries_total": 1,
        "denpexd_silences": 2,
        "denpexd_fixes{failure=cuda-oom,state=held,training_job=run-7}": 1,
        "denpexd_loop_lag_seconds": 0.011,
        "denpexd_redactions_total": 12,
        "denpexd_evidence_seconds_count{kind=stacks}": 5,
        "denpexd_evidence_seconds_sum{kind=stacks}": 0.25,
        "denpexd_evidence_pause_seconds": 0.004,
        "denpexd_evidence_total{kind=stacks,outcome=denied}": 1,
        "denpexd_config_last_reload_successful": 0,
        "denpexd_config_reloads_total{outcome=refused}": 1,
        "denpexd_config_last_reload_success_timestamp_seconds": 1_760_000_000.0,
        "denpexd_rules{pack=denpexd}": 165,
        "denpexd_rule_errors{pack=denpexd}": 0,
        "denpexd_blind": 1,
        "denpexd_kept{kind=job}": 1,
        "denpexd_forgotten_total{kind=file}": 21,
        "denpexd_hub_messages_total{outcome=read}": 5,
        "denpexd_hub_waiting{kind=batches}": 2,
        "denpexd_hub_nodes{state=silent}": 1,
        "denpexd_hub_partitions": 8,
        "denpexd_hub_alone": 0,
    }
    assert {name: found.get(name) for name in expected} == expected


class Reference(Collector):
    """The same families as prometheus_client itself writes them."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterator[Metric]:
        for family in FAMILIES:
            yield self._metric(family)

    def _metric(self, family: Family) -> Metric:
        about = (family.name, family.help)
        if family.kind == "summary":
            summary = SummaryMetricFamily(*about, labels=family.labels)
            for labels, (counts, total) in family.rows(self._snapshot):
                summary.add_metric(labels, sum(counts), total)
            return summary
        if family.kind == "histogram":
            histogram = HistogramMetricFamily(*about, labels=family.labels)
            names = [*map(str, family.bounds), "+Inf"]
            for labels, (counts, total) in family.rows(self._snapshot):
                histogram.add_metric(labels, list(zip(names, accumulate(counts), strict=True)), total)
            return histogram
        kind = CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily
        metric = kind(*about, labels=family.labels)
        for labels, value in dict(family.rows(self._snapshot)).items():
            metric.add_metric(labels, value)
        return metric


@pytest.mark.parametrize("openmetrics", [False, True])
def test_the_page_says_the_same_as_the_librarys_own(openmetrics):
    snapshot = Snapshot(FULL, [JOB])
    ours = Writer().page(snapshot, frozenset(["run-7"]), openmetrics=openmetrics)
    if openmetrics:
        theirs = openmetrics_latest(Reference(snapshot)).decode()
        assert list(parse_openmetrics(ours + "# EOF\n")) == list(parse_openmetrics(theirs))
    else:
        assert list(parse_text(ours)) == list(parse_text(generate_latest(Reference(snapshot)).decode()))


def test_what_is_kept_of_a_page_is_what_the_last_one_showed():
    writer = Writer()
    writer.page(Snapshot(FULL, [JOB]), frozenset(["run-7"]))
    page = writer.page(Snapshot(Stats(), []), frozenset())
    assert "run-7" not in page
    assert not any("run-7" in labels for family in writer._known.values() for labels in family)


async def test_an_open_incident_that_is_not_counted_yet_already_shows_its_severity(pool):
    found = samples(await page(pool, Daemon()))
    assert (
        found["denpexd_incidents_total{category=hang,failure=syncbn-eval-rank0,severity=critical,training_job=run-7}"]
        == 0
    )


async def test_no_created_series_and_memory_of_the_process_is_there(pool):
    text = await page(pool, Daemon())
    assert "_created" not in text
    assert "process_resident_memory_bytes" in text


async def test_a_daemon_without_jobs_has_every_family_without_labels(pool):
    found = samples(await page(pool, Daemon(Stats(), ())))
    assert {family.name for family in FAMILIES if not family.labels} <= set(found)
    assert found["denpexd_config_last_reload_successful"] == 1
    assert found["denpexd_scan_engine_info{engine=none}"] == 1


async def test_openmetrics_is_negotiated_and_parses_strictly(pool):
    accept = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5"
    body, content_type = await Exposition(Daemon(), pool).render(accept, zipped=False)
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    names = {family.name for family in parse_openmetrics(body.decode())}
    assert {"denpexd_lines", "denpexd_incident_open"} <= names


async def test_gzip_holds_the_same_page(pool):
    exposition = Exposition(Daemon(), pool)
    plain, _ = await exposition.render("", zipped=False)
    zipped, _ = await exposition.render("", zipped=True)
    ours = [line for line in plain.splitlines() if line.startswith(b"denpexd_")]
    assert ours == [line for line in gzip.decompress(zipped).splitlines() if line.startswith(b"denpexd_")]


async def test_scrapes_that_arrive_together_share_one_rendering(pool):
    daemon = Daemon()
    exposition = Exposition(daemon, pool)
    pages = await asyncio.gather(*(exposition.render("", zipped=False) for _ in range(20)))
    assert len({body for body, _ in pages}) == 1
    assert daemon.asked == 1
    await exposition.render("", zipped=False)
    assert daemon.asked == 2


async def test_a_scraper_that_hangs_up_does_not_spoil_the_page_of_another(pool):
    exposition = Exposition(Daemon(), pool)
    leaving = asyncio.create_task(exposition.render("", zipped=False))
    staying = asyncio.create_task(exposition.render("", zipped=False))
    await asyncio.sleep(0)
    leaving.cancel()
    assert b"denpexd_blind" in (await staying)[0]


async def test_many_jobs_stay_bounded_and_lose_no_count(pool):
    jobs = [JobView(job=f"job-{n}", attempt=1, step=n, ranks=[RankView(0, "running")]) for n in range(MAX_JOBS + 100)]
    incidents = {(f"job-{n}", "cuda-oom", "memory", "high"): 1 for n in range(MAX_JOBS + 100)}
    found = samples(await page(pool, Daemon(Stats(incidents=incidents), jobs)))
    counted = {name: value for name, value in found.items() if name.startswith("denpexd_incidents_total")}
    assert len(counted) == MAX_JOBS + 1
    assert sum(counted.values()) == MAX_JOBS + 100
    assert found[f"denpexd_ranks{{state=running,training_job={OTHER_JOBS}}}"] == 100
    assert f"denpexd_step{{training_job={OTHER_JOBS}}}" not in found


async def test_a_job_keeps_its_series_while_others_come_and_go(pool):
    daemon = Daemon(Stats(), [JobView(job=f"job-{n}", attempt=1, step=1) for n in range(MAX_JOBS)])
    exposition = Exposition(daemon, pool)
    await exposition.render("", zipped=False)
    daemon.job_views = [JobView(job="newcomer", attempt=1, step=1), *daemon.job_views]
    assert "newcomer" not in (await exposition.render("", zipped=False))[0].decode()
    daemon.job_views = daemon.job_views[:-1]
    assert "newcomer" in (await exposition.render("", zipped=False))[0].decode()


@pytest.mark.parametrize("name", ["a\udcffb", 'quote"back\\slash', "line\nbreak", "x" * 5000, "\x1b[31m", ""])
async def test_hostile_job_names_cannot_break_the_page(pool, name):
    text = await page(pool, Daemon(Stats(fingerprint_hits={(name, "cuda-oom"): 1}), [JobView(job=name, attempt=1)]))
    assert sum(value for key, value in samples(text).items() if key.startswith("denpexd_fingerprint_hits_total")) == 1
    assert max(map(len, text.splitlines())) < 400


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian package prometheus)")
async def test_promtool_finds_nothing_to_say_about_the_page(pool):
    text = await page(pool, Daemon())
    ours = "".join(line for line in text.splitlines(keepends=True) if "denpexd_" in line)
    done = subprocess.run(["promtool", "check", "metrics"], input=ours, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
