"""How fast a job went lately, as the console plots it."""

from pathlib import Path

import pytest

from denpexd import series
from denpexd.catalog.load import load
from denpexd.core.cadence import Limits
from denpexd.core.events import Hit, Joined
from denpexd.pipeline import Pipeline
from denpexd.scan.engine import choose_engine
from denpexd.scan.scanner import Scanner
from denpexd.series import Series

TINY, _ = load([Path(__file__).parents[1] / "data" / "tiny"], strict=False)


class Still:
    """A clock that nobody asks."""

    def now(self) -> float:
        return 0.0

    def wall(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        raise AssertionError


@pytest.fixture
def pipeline() -> Pipeline:
    scanner = Scanner([s for s in TINY.signals.values() if s.kind == "log"], choose_engine())
    made = Pipeline(TINY, scanner, start_t=0.0, limits=Limits())
    made.evidence("run", [Joined(0.0, 0, world_size=1)])
    return made


def step(pipeline: Pipeline, t: float, number: int) -> None:
    pipeline.evidence("run", [Hit(t, 0, "line.step", "rank0", 0, f"step {number}", {"step": str(number)})])
    pipeline.job("run").lines += 10


def test_a_step_is_timed_between_its_lines_and_not_between_two_looks(pipeline: Pipeline) -> None:
    kept = Series(pipeline, Still())
    step(pipeline, 9.0, 100)
    kept.look(10.0)
    step(pipeline, 19.0, 120)
    kept.look(20.0)
    kept.look(30.0)
    step(pipeline, 39.0, 130)
    kept.look(40.0)
    assert [tuple(point) for point in kept.of("run")] == [(20.0, 0.5, 1.0), (30.0, None, 0.0), (40.0, 2.0, 1.0)]


def test_a_job_that_begins_again_makes_no_negative_step(pipeline: Pipeline) -> None:
    kept = Series(pipeline, Still())
    step(pipeline, 9.0, 100)
    kept.look(10.0)
    step(pipeline, 19.0, 5)
    kept.look(20.0)
    assert [point.step_seconds for point in kept.of("run")] == [None]


def test_points_and_jobs_are_bounded(pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(series, "MOST_JOBS", 2)
    kept = Series(pipeline, Still())
    for number in range(series.POINTS + 5):
        kept.look(10.0 * number)
    assert len(kept.of("run")) == series.POINTS
    for name in ("a", "b"):
        pipeline.job(name).heard = 99.0
    kept.look(9e9)
    assert (kept.of("run"), len(kept._tracks)) == ([], 2)
