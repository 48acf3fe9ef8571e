"""What a scrape of 10,000 series costs: CPU against prometheus_client's own page of the same series, and the loop.

Run by hand: .venv/bin/python bench/scrape.py [SERIES]. Aims: CPU ratio at most 0.3, the loop at most 10 ms late.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from statistics import median

from prometheus_client import CollectorRegistry, Gauge, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from denpexd.web.exposition import Exposition, Writer
from denpexd.web.metrics import Snapshot
from denpexd.web.view import JobView, RankView, Stats

ROUNDS = 30
RANKS = 8
FAILURES = ("cuda-oom", "silent-hang", "nccl-timeout", "checkpoint-corrupt", "loss-nan", "slow-dataloader")
LATE = 0.001  # the ticker of the loop


class Daemon:
    """A View of a daemon that watches many jobs."""

    def __init__(self, series: int) -> None:
        # Of each job: 7 states, step, step time, stall, idle time, and three a failure.
        number = min(500, max(1, series // 20))
        failures = FAILURES[: max(1, round((series / number - 11) / 3))]
        keys = [(f"run-{n}", failure) for n in range(number) for failure in failures]
        self._jobs = [
            JobView(
                f"run-{n}", 0, 100 + n, 0.5 + n, 0.0, "train", RANKS, [RankView(r, "running") for r in range(RANKS)]
            )
            for n in range(number)
        ]
        labels = {(job, failure, "hang", "high"): 1 for job, failure in keys}
        self._stats = Stats(
            incidents=labels,
            incidents_open=labels,
            fingerprint_hits=dict.fromkeys(keys, 17),
            idle_gpu_seconds={f"run-{n}": 3.25 * n for n in range(number)},
        )

    def stats(self) -> Stats:
        return self._stats

    def jobs(self) -> Sequence[JobView]:
        return self._jobs


def same(page: str) -> CollectorRegistry:
    """A registry of plain gauges with the very series of a page, which is what a daemon would have that used it."""
    registry = CollectorRegistry()
    for family in text_string_to_metric_families(page):
        for name in {sample.name for sample in family.samples}:
            samples = [sample for sample in family.samples if sample.name == name]
            gauge = Gauge(name, family.documentation, tuple(samples[0].labels), registry=registry)
            for sample in samples:
                (gauge.labels(**sample.labels) if sample.labels else gauge).set(sample.value)
    return registry


def cpu(work: Callable[[], object]) -> float:
    """Median CPU seconds of a call, when everything is warm."""
    work()
    times = []
    for _ in range(ROUNDS):
        before = time.process_time()
        work()
        times.append(time.process_time() - before)
    return median(times)


Late = tuple[float, float]  # of 99 in 100 looks, and at worst


async def lateness(daemon: Daemon) -> tuple[Late, Late]:
    """How late the loop was while it was scraped again and again, and while nothing happened, in milliseconds."""

    async def tick(until: asyncio.Event) -> Late:
        late = []
        while not until.is_set():
            due = time.monotonic() + LATE
            await asyncio.sleep(LATE)
            late.append((time.monotonic() - due) * 1000)
        late.sort()
        return late[len(late) * 99 // 100], late[-1]

    async def while_running(rounds: int) -> Late:
        over = asyncio.Event()
        ticking = asyncio.create_task(tick(over))
        for _ in range(rounds):
            await exposition.render("", zipped=True)
            await asyncio.sleep(0.01)
        if not rounds:
            await asyncio.sleep(1)
        over.set()
        return await ticking

    with ThreadPoolExecutor(1) as pool:
        exposition = Exposition(daemon, pool)  # no more of a View is asked for
        await exposition.render("", zipped=True)
        return await while_running(ROUNDS), await while_running(0)


def main() -> None:
    daemon = Daemon(int(sys.argv[1]) if len(sys.argv) > 1 else 10_000)
    admitted = frozenset(job.job for job in daemon.jobs())
    writer = Writer()

    def ours() -> str:
        return writer.page(Snapshot(daemon.stats(), daemon.jobs()), admitted)

    page = ours()
    series = sum(not line.startswith("#") for line in page.splitlines())
    registry = same(page)
    mine, theirs = cpu(ours), cpu(lambda: generate_latest(registry))
    late, idle = asyncio.run(lateness(daemon))
    print(f"{series} series, {len(page) / 1024:.0f} KiB")
    print(f"CPU a page: {mine * 1000:.1f} ms; generate_latest of the same series: {theirs * 1000:.1f} ms")
    print(f"ratio {mine / theirs:.2f} (aim 0.3)")
    print(f"loop late in {ROUNDS} scrapes with gzip: p99 {late[0]:.1f} ms, at worst {late[1]:.1f} ms (aim 10)")
    print(f"  and while nothing happens: p99 {idle[0]:.1f} ms, at worst {idle[1]:.1f} ms")


if __name__ == "__main__":
    main()
