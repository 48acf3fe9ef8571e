"""The metrics that the daemon promises, and where in a snapshot each comes from. Names and labels: docs/metrics.md."""

import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import denpexd
from denpexd.web.view import DETECT_BOUNDS, RANK_STATES, JobView, Stats

Labels = tuple[str, ...]
Value = float | tuple[Sequence[int], float]
Rows = Iterable[tuple[Labels, Value]]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What one scrape shows, taken on the event loop."""

    stats: Stats
    jobs: Sequence[JobView]


@dataclass(frozen=True, slots=True)
class Family:
    """One promised metric: `name` as it appears on the page, `kind` as Prometheus names it.

    `rows` gives a number for each set of labels; of a summary ((count,), sum), of a histogram (how many in each bucket
    of `bounds` and above them, sum).
    """

    name: str
    kind: str
    help: str
    labels: Labels
    rows: Callable[[Snapshot], Rows]
    bounds: Sequence[float] = ()


def _one(pick: Callable[[Stats], float]) -> Callable[[Snapshot], Rows]:
    return lambda snapshot: [((), pick(snapshot.stats))]


def _by_name(pick: Callable[[Stats], Mapping[str, float]]) -> Callable[[Snapshot], Rows]:
    return lambda snapshot: [((name,), value) for name, value in pick(snapshot.stats).items()]


def _hub_state(name: str) -> Callable[[Snapshot], Rows]:
    return _one(lambda stats: stats.hub.get("state", {}).get(name, 0))


def _incidents(snapshot: Snapshot) -> Rows:
    """Also 0 for a failure that is open but not counted yet, so that its severity can be looked up from the start."""
    return [*{**dict.fromkeys(snapshot.stats.incidents_open, 0), **snapshot.stats.incidents}.items()]


def _incident_open(snapshot: Snapshot) -> Rows:
    stats = snapshot.stats
    yield from (((job, failure), 0) for job, failure, _, _ in stats.incidents)
    yield from (((job, failure), value) for (job, failure, _, _), value in stats.incidents_open.items())


def _ranks(snapshot: Snapshot) -> Rows:
    for job in snapshot.jobs:
        counts = dict.fromkeys(RANK_STATES, 0)
        for rank in job.ranks:
            counts[rank.state] += 1
        yield from (((job.job, state), value) for state, value in counts.items())


def _job_gauge(pick: Callable[[JobView], float | None]) -> Callable[[Snapshot], Rows]:
    return lambda snapshot: [((job.job,), value) for job in snapshot.jobs if (value := pick(job)) is not None]


def _looks(snapshot: Snapshot) -> Iterable[tuple[Labels, tuple[Sequence[int], float]]]:
    stats = snapshot.stats
    for kind, seconds in stats.evidence_seconds.items():
        looks = sum(number for (of, _), number in stats.evidence_outcomes.items() if of == kind)
        yield (kind,), ((looks,), seconds)


_JOB = ("training_job",)
_JOB_FAILURE = ("training_job", "failure")

FAMILIES: tuple[Family, ...] = (
    Family("denpexd_build_info", "info", "Version of denpexd and of Python.", ("version", "python"),
           lambda _: [((denpexd.__version__, platform.python_version()), 1)]),
    Family("denpexd_scan_engine_info", "info", "The matching engine in use.", ("engine",),
           lambda snapshot: [((snapshot.stats.engine or "none",), 1)]),
    Family("denpexd_incidents_total", "counter", "Incidents, counted once each under the failure they settled on.",
           ("training_job", "failure", "category", "severity"), _incidents),
    Family("denpexd_incident_open", "gauge", "Incidents open now.", _JOB_FAILURE, _incident_open),
    Family("denpexd_fingerprint_hits_total", "counter", "Lines, frames and facts that matched a rule's signal.",
           _JOB_FAILURE, lambda snapshot: snapshot.stats.fingerprint_hits.items()),
    Family("denpexd_ranks", "gauge", "Ranks by what they do now.", ("training_job", "state"), _ranks),
    Family("denpexd_step", "gauge", "Last training step that any rank reported.", _JOB, _job_gauge(lambda j: j.step)),
    Family("denpexd_step_seconds", "gauge", "Usual time of a training step.", _JOB,
           _job_gauge(lambda j: j.step_seconds)),
    Family("denpexd_stall_seconds", "gauge", "Time since the job last made progress, 0 while it does.", _JOB,
           _job_gauge(lambda j: j.stall_seconds)),
    Family("denpexd_detect_seconds", "histogram", "Time from the last progress of a job until its stop was told.",
           ("category",), lambda s: [((c,), seen) for c, seen in s.stats.detect_seconds.items()], DETECT_BOUNDS),
    Family("denpexd_idle_gpu_seconds_total", "counter", "Time that ranks stood still in incidents, a GPU for each.",
           _JOB, lambda s: [((job,), seconds) for job, seconds in s.stats.idle_gpu_seconds.items()]),
    Family("denpexd_suspected_hangs_total", "counter", "Times a job fell silent beyond its rhythm; most pass.", (),
           _one(lambda s: s.suspected_hangs)),
    Family("denpexd_lines_total", "counter", "Log lines read.", (), _one(lambda s: s.lines)),
    Family("denpexd_bytes_total", "counter", "Log bytes read.", (), _one(lambda s: s.bytes)),
    Family("denpexd_file_lag_bytes", "gauge", "Unread bytes of the file that is furthest behind.", (),
           _one(lambda s: s.file_lag_bytes)),
    Family("denpexd_files", "gauge", "Watched files by state.", ("state",), _by_name(lambda s: s.files)),
    Family("denpexd_read_errors_total", "counter", "Failed reads by error.", ("errno",),
           _by_name(lambda s: s.read_errors)),
    Family("denpexd_truncations_total", "counter", "Files that became shorter while watched.", (),
           _one(lambda s: s.truncations)),
    Family("denpexd_rotations_total", "counter", "Files replaced by a new one of the same name.", (),
           _one(lambda s: s.rotations)),
    Family("denpexd_watch_overflows_total", "counter", "Lost file events; each was mended by a full sweep.", (),
           _one(lambda s: s.watch_overflows)),
    Family("denpexd_bytes_lost_total", "counter", "Bytes that were there and gone before they were read.", (),
           _one(lambda s: s.bytes_lost)),
    Family("denpexd_lines_repeated_total", "counter", "Lines that only said again what had just been said many times.",
           (), _one(lambda s: s.lines_repeated)),
    Family("denpexd_lines_truncated_total", "counter", "Lines longer than ingest.max_line.", (),
           _one(lambda s: s.lines_truncated)),
    Family("denpexd_outbox_pending", "gauge", "Messages not delivered yet.", (), _one(lambda s: s.outbox_pending)),
    Family("denpexd_outbox_oldest_seconds", "gauge", "Age of the oldest message not delivered yet.", (),
           _one(lambda s: s.outbox_oldest_seconds)),
    Family("denpexd_notify_total", "counter", "Attempts to deliver a message.", ("sink", "outcome"),
           lambda snapshot: snapshot.stats.notifications.items()),
    Family("denpexd_state_write_errors_total", "counter", "Failed writes to the state database.", (),
           _one(lambda s: s.state_write_errors)),
    Family("denpexd_state_recoveries_total", "counter", "Times that a damaged state was set aside at the start.", (),
           _one(lambda s: s.state_recoveries)),
    Family("denpexd_silences", "gauge", "Silences that hold now.", (), _one(lambda s: s.silences)),
    Family("denpexd_fixes", "gauge", "Failures that somebody has fixed, by whether they stayed away.",
           ("training_job", "failure", "state"), lambda snapshot: snapshot.stats.fixes.items()),
    Family("denpexd_task_restarts_total", "counter", "Tasks of the daemon that failed and were begun again.",
           ("task",), _by_name(lambda s: s.task_restarts)),
    Family("denpexd_loop_lag_seconds", "gauge", "How late the event loop woke up last.", (),
           _one(lambda s: s.loop_lag_seconds)),
    Family("denpexd_redactions_total", "counter", "Secrets and addresses hidden in texts before they left.", (),
           _one(lambda s: s.redactions)),
    Family("denpexd_evidence_seconds", "summary", "Time spent looking at training processes.", ("kind",),
           _looks),
    Family("denpexd_evidence_pause_seconds", "gauge", "Longest look at one training process.", (),
           _one(lambda s: s.evidence_pause_seconds)),
    Family("denpexd_evidence_total", "counter", "Looks at training processes.", ("kind", "outcome"),
           lambda snapshot: snapshot.stats.evidence_outcomes.items()),
    Family("denpexd_bundles_total", "counter", "Bundles of incidents by what became of them.", ("outcome",),
           _by_name(lambda s: s.bundles)),
    Family("denpexd_bundle_bytes", "gauge", "Bytes of the bundles that are kept.", (), _one(lambda s: s.bundle_bytes)),
    Family("denpexd_recording_bytes", "gauge", "Memory for what jobs showed lately, about.", (),
           _one(lambda s: s.tape_bytes)),
    Family("denpexd_kept", "gauge", "Entries of each bounded table.", ("kind",), _by_name(lambda s: s.kept)),
    Family("denpexd_forgotten_total", "counter", "Entries that a bounded table had to let go.", ("kind",),
           _by_name(lambda s: s.forgotten)),
    Family("denpexd_config_last_reload_successful", "gauge", "1 if the last reload of the configuration was taken.", (),
           _one(lambda s: s.config_reload_ok)),
    Family("denpexd_config_reloads_total", "counter", "Reloads of the rules by what became of them.", ("outcome",),
           _by_name(lambda s: s.config_reloads)),
    Family("denpexd_config_last_reload_success_timestamp_seconds", "gauge", "When the rules in force were taken.", (),
           _one(lambda s: s.config_taken_at)),
    Family("denpexd_rules", "gauge", "Rules in force by pack.", ("pack",), _by_name(lambda s: s.rules)),
    Family("denpexd_rule_errors", "gauge", "Mistakes in the files of a pack; each leaves out a rule or a signal.",
           ("pack",), _by_name(lambda s: s.rule_errors)),
    Family("denpexd_blind", "gauge", "1 while files cannot be read: silence of a rank proves nothing then.", (),
           _one(lambda s: s.blind)),
    Family("denpexd_hub_messages_total", "counter", "Messages between nodes and hubs by what became of them.",
           ("outcome",), _by_name(lambda s: s.hub.get("messages", {}))),
    Family("denpexd_hub_waiting", "gauge", "What waits for the broker (node) or to be judged (hub).", ("kind",),
           _by_name(lambda s: s.hub.get("waiting", {}))),
    Family("denpexd_hub_nodes", "gauge", "Nodes of the jobs of this hub.", ("state",),
           _by_name(lambda s: s.hub.get("nodes", {}))),
    Family("denpexd_hub_partitions", "gauge", "Partitions that this hub has.", (), _hub_state("partitions")),
    Family("denpexd_hub_alone", "gauge", "Jobs that this node tells of itself, as it hears no hub.", (),
           _hub_state("alone")),
)  # fmt: skip
