"""Recorded and reconstructed jobs with the truth beside them (tests/cases), replayed with the shipped rules."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from denpexd.catalog.load import load, shipped_rules
from denpexd.recording import read_case
from denpexd.replay import Replayer
from denpexd.scan.engine import choose_engine

CASES = sorted(path.parent for path in (Path(__file__).parents[1] / "cases").glob("*/case.yaml"))


@pytest.fixture(scope="module")
def replayer() -> Replayer:
    return Replayer(load([shipped_rules()])[0], choose_engine())


def truth(folder: Path) -> dict[str, Any]:
    expected: dict[str, Any] = yaml.safe_load((folder / "case.yaml").read_text())["expect"]
    return expected


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_the_first_verdict_of_a_recorded_job_is_the_truth(replayer: Replayer, folder: Path) -> None:
    expected = truth(folder)
    verdicts = replayer.run(read_case(folder)).verdicts
    if expected["failure"] is None:
        assert [v["failure"] for v in verdicts] == []
        return
    assert verdicts
    assert verdicts[0]["failure"] in {expected["failure"], *(expected.get("acceptable") or ())}
    assert verdicts[0]["initiating_ranks"] == (expected.get("initiating_ranks") or [])


def test_the_cases_are_hangs_crashes_and_healthy_jobs() -> None:
    truths = [truth(folder) for folder in CASES]
    assert len(truths) >= 25
    assert sum(bool(t.get("hang")) for t in truths) >= 8
    assert sum(t["failure"] is None for t in truths) >= 6
    assert len({t["failure"] for t in truths}) >= 12
