"""`denpexd render` and `denpexd report`: of what a daemon has kept, of a bundle, of a case."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from denpexd.archive import pack
from denpexd.cli import main
from denpexd.clock import ManualClock
from denpexd.notify.outbox import Store
from denpexd.notify.policy import Delivery

# apprise loads all its plugins, and some use what their own dependencies call deprecated.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

ROOT = Path(__file__).parents[2]
HANG: dict[str, Any] = json.loads((ROOT / "tests" / "data" / "alerts" / "hang.json").read_text("utf-8"))
KEY = str(HANG["key"])


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The state of a daemon that has told Slack of a hang and failed to tell PagerDuty."""
    folder = tmp_path_factory.mktemp("state")
    with Store(folder / "denpexd.sqlite", ManualClock(wall=HANG["opened_t"])) as store:
        told = [Delivery(sink, KEY, 1, "opened", f"{KEY}:1", "first", HANG) for sink in ("slack", "pagerduty")]
        store.commit(incidents=[HANG], deliveries=told)
        slack, pagerduty = store.due(HANG["opened_t"])
        store.done(slack)
        store.dead(pagerduty, "HTTP 400 | no")
    return folder


def run(*arguments: object, code: int = 0) -> Result:
    result = CliRunner().invoke(main, [str(each) for each in arguments], env={"COLUMNS": "100"})
    assert result.exit_code == code, result.output
    return result


def test_every_kind_of_sink_is_shown(state: Path) -> None:
    rows = json.loads(run("render", "--state-dir", state, "--all", "--format", "json").stdout)
    assert [row["sink"] for row in rows] == [
        *("console", "slack", "pagerduty", "alertmanager", "webhook", "file", "apprise"),
    ]
    shown = {row["sink"]: row["message"] for row in rows}
    assert {row["incident"] for row in rows} == {KEY}
    assert shown["console"].startswith("● HANG  rank 0 of 2")
    assert shown["slack"]["blocks"][0]["text"]["text"].startswith("🔴 HANG rank 0 of 2")
    assert shown["pagerduty"]["event_action"] == "trigger"
    assert shown["webhook"]["failure"] == HANG["failure"]
    assert "xoxb" not in json.dumps(rows)


def test_only_what_is_configured_is_shown_as_text(state: Path, tmp_path: Path) -> None:
    config = tmp_path / "denpexd.yaml"
    config.write_text(
        f"state_dir: {state}\nsinks:\n  - {{type: slack, name: a, webhook_url: 'https://h/s3cret'}}\n"
        f"  - {{type: apprise, name: b, url_file: {tmp_path}/absent}}\n"
    )
    page = run("render", KEY[:8], "-c", config, "--event", "closed").stdout
    assert page.startswith(f"== a: {KEY}\n{{\n")
    assert "✅ CLOSED" in page
    assert "s3cret" not in page
    assert f"nothing can be sent: cannot read {tmp_path}/absent" in page
    assert "no sink is named 'c'; configured: a, b" in run("render", "-c", config, "--sink", "c", code=2).output


def test_a_bundle_and_a_case_are_shown_too(tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.tar.xz"
    bundle.write_bytes(pack({"verdict.json": json.dumps(HANG | {"title": "Then"}).encode()}, "x"))
    assert "Then" in run("render", bundle).stdout
    assert "SyncBatchNorm" in run("render", ROOT / "tests" / "cases" / "lab-syncbn-exit-n2").stdout
    bundle.write_bytes(pack({"verdict.json": b"{"}, "x"))
    assert "verdict.json is missing or damaged" in run("render", bundle, code=2).output
    (tmp_path / "text").write_text("no archive")
    run("render", tmp_path / "text", code=2)


def test_a_healthy_case_would_send_nothing() -> None:
    assert "no incident in it" in run("render", ROOT / "tests" / "cases" / "ok-crlf", code=2).output


def test_an_unknown_key_is_said(state: Path) -> None:
    assert (
        f"no incident with 'absent'; there are: {KEY}" in run("report", "absent", "--state-dir", state, code=2).output
    )


def test_the_post_mortem_tells_what_happened_and_who_was_told(state: Path, tmp_path: Path) -> None:
    page = run("report", KEY, "--state-dir", state).stdout
    for part in (
        "# Post-mortem: SyncBatchNorm deadlock during single-rank evaluation in llama-70b",
        "**still open**",
        "| Lasted | 30 min until it last changed, ",
        "| GPU time lost | 1 GPU-hour (2 ranks x 0.5 h; one GPU a rank, no rank has worked since) |",
        "| slack | is told: opened |",
        r"| pagerduty | is told: opened (given up: HTTP 400 \| no) |",
        "## Cause",
        "## What to do",
        f"- [ ] Note what mended it: `denpexd ack {KEY} --note TEXT`",
        "- [ ] Watch whether `syncbatchnorm-single-rank-eval-deadlock` comes back",
        "## What was not known",
    ):
        assert part in page, part
    times = [line for line in page.partition("## Timeline")[2].partition("## Cause")[0].splitlines() if "UTC" in line]
    assert times == sorted(times, key=lambda line: line[:26])
    output = tmp_path / "page.md"
    run("report", KEY, "--state-dir", state, "-o", output)
    assert output.read_text("utf-8") == page


def test_a_closed_incident_has_an_end(state: Path, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle.tar.xz"
    closed = HANG | {"state": "closed", "initiating_ranks": [], "missing": [{"fact": "the stack", "how": "py-spy"}]}
    closed["history"] = {"text": "3 times in this job"}
    closed["acknowledged"] = {"t": HANG["opened_t"] + 60, "by": "anna", "note": "restarted", "closed": False}
    bundle.write_bytes(pack({"verdict.json": json.dumps(closed).encode()}, "x"))
    page = run("report", bundle).stdout
    assert "| Ended | " in page
    assert "closes the incident" in page
    assert "| Seen before | 3 times in this job |" in page
    assert "| anna | takes it on: restarted |" in page
    assert "- Which rank started it." in page
    assert "- [ ] Know it next time: the stack. py-spy" in page
