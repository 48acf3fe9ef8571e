"""Recorded and reconstructed jobs with the truth beside them (tests/cases), replayed with the shipped rules."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from denpexd.catalog.load import load, shipped_rules
from denpexd.core.cadence import BUDGETS, Limits
from denpexd.recording import Printed, Recording, read_case
from denpexd.replay import Replayer
from denpexd.scan.engine import choose_engine

from .spans import Span, split

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


@pytest.mark.parametrize(
    "name",
    [
        "lab-exc-index-n4-tee-json",
        "lab-kill-n4-torchrun",
        "lab-syncbn-sleep-timeout-n3",
        "lab-order-groups-n2",
        "lab-ok-longval-n4",
    ],
)
async def test_split_over_two_nodes_a_job_has_the_same_verdict(replayer: Replayer, name: str) -> None:
    recording = read_case(CASES[0].parent / name)
    ranks = list(range(recording.world_size or 0))
    half = len(ranks) // 2
    with Span(replayer, name) as span:
        hub = span.hub()
        for node, part, off in zip("ab", split(recording, ranks[:half], ranks[half:]), (7.3, -3600.0), strict=True):
            span.node(node, part, off)
        await span.run(recording.observe_until + 20.0)
        told = ("failure", "certainty", "initiating_ranks", "collateral_ranks")
        alone = replayer.run(recording).verdicts
        assert [[v[name] for name in told] for v in hub.verdicts] == [[v[name] for name in told] for v in alone]
        assert len(span.pager.opened) == len(alone)


def _steps(until: int, ranks: range) -> list[Printed]:
    return [Printed(t + r / 100, r, "stdout", f"step {10 * t} loss 2.31") for t in range(1, until) for r in ranks]


async def test_a_node_that_dies_with_its_ranks_is_named_when_others_miss_it(replayer: Replayer) -> None:
    lost = "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/NCCLUtils.hpp:268, "
    lost += "remote process exited or there was a network error, NCCL version 2.21.5"
    lines = _steps(20, range(4)) + [Printed(30.0 + r, r, "stderr", lost) for r in (0, 1)]
    with Span(replayer) as span:
        hub = span.hub()
        for node, part in zip("ab", split(Recording("job", 4, 60.0, lines), (0, 1), (2, 3)), strict=True):
            span.node(node, part)
        await span.run(20)
        span.nodes[1].dead = True
        await span.run(160)
        [verdict] = hub.verdicts
        assert (verdict["failure"], verdict["initiating_ranks"]) == ("node-lost", [2, 3])
        assert verdict["collateral_ranks"] == [0, 1]
        assert "node b has sent nothing" in str(verdict["evidence"])
        assert len(span.pager.opened) == 1


async def test_ranks_of_a_silent_node_are_unheard_and_not_said_to_hang(replayer: Replayer) -> None:
    """Training stops for real some time after the other node's daemon is gone: what its ranks do is not known."""
    recording = Recording("job", 4, 60.0, _steps(60, range(4)))
    with Span(replayer, limits=Limits(budgets=dict.fromkeys(BUDGETS, 60.0))) as span:
        hub = span.hub()
        for node, part in zip("ab", split(recording, (0, 1), (2, 3)), strict=True):
            span.node(node, part)
        await span.run(15)
        span.nodes[1].dead = True
        await span.run(260)
        [verdict] = hub.verdicts
        assert (verdict["certainty"], verdict["initiating_ranks"], verdict["unheard_ranks"]) == (
            "undetermined",
            [],
            [2, 3],
        )
        assert any("ranks 2-3" in one["fact"].lower() for one in verdict["missing"])
