"""The demo: its recordings, how they are played, and what the daemon makes of them."""

import asyncio
import json
import math
import shutil
import socket
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import denpexd.demo as demo
from denpexd.catalog.load import load, shipped_rules
from denpexd.clock import FastClock, ManualClock
from denpexd.core.events import Exit, Fact, Frame, Frames, Joined, Want
from denpexd.errors import CaseError, SettingsError
from denpexd.playback import Playback, Receiver, RecordedCollector, shortened
from denpexd.recording import Printed, Recording
from denpexd.replay import Replayer
from denpexd.scan.engine import choose_engine

HOME = Path(demo.__file__).parent / "recordings"
NAMES = [name for name, _ in demo.catalogue()]
CASE_KEYS = {"id", "title", "origin", "stack", "world_size", "observe_until", "evidence_t", "exits", "shorten_from"}


@pytest.fixture(scope="module")
def replayer() -> Replayer:
    catalog, errors = load([shipped_rules()])
    assert not errors
    return Replayer(catalog, choose_engine())


# --- recordings -------------------------------------------------------------------------------------------------------


def test_the_catalogue_begins_with_the_default_and_names_every_recording() -> None:
    assert len(NAMES) == len(set(NAMES)) >= 7
    assert demo.find(None).name == NAMES[0]
    assert sorted(NAMES) == sorted(path.name for path in HOME.iterdir() if path.is_dir())
    assert all(title for _, title in demo.catalogue())
    assert any(demo.find(name).failure is None for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_recording_does_not_hold_the_answer(name: str) -> None:
    about = yaml.safe_load((HOME / name / "case.yaml").read_text())
    assert set(about) <= CASE_KEYS
    assert about["id"] == name
    failures = [str(demo.find(other).failure) for other in NAMES]
    for file in (HOME / name).rglob("*.*"):
        text = file.read_text(encoding="utf-8")
        assert not [failure for failure in failures if failure in text]


@pytest.mark.parametrize("name", NAMES)
def test_a_recording_in_simulated_time_gives_what_was_really_wrong(name: str, replayer: Replayer) -> None:
    show = demo.find(name)
    said = [(v["failure"], v["initiating_ranks"]) for v in replayer.run(show.recording).verdicts]
    assert said == ([] if show.failure is None else [(show.failure, list(show.initiating))])


def test_the_recordings_are_small() -> None:
    assert sum(path.stat().st_size for path in HOME.rglob("*") if path.is_file()) < 400_000


def test_an_unknown_name_is_told_with_the_nearest_one() -> None:
    with pytest.raises(CaseError, match="did you mean nccl-timeouts"):
        demo.find("nccl-timeout")
    with pytest.raises(CaseError, match="denpexd demo --list"):
        demo.find("0")


# --- shortening -------------------------------------------------------------------------------------------------------


def _printed(times: list[float]) -> Recording:
    return Recording("x", 1, times[-1] + 10.0, [Printed(t, 0, "stdout", f"line at {t}") for t in times])


@given(st.lists(st.floats(0.0, 5000.0), min_size=1, max_size=30), st.floats(0.1, 100.0))
def test_shortening_keeps_order_and_short_pauses_and_longer_stays_longer(pauses: list[float], keep: float) -> None:
    times = [sum(pauses[: n + 1]) for n in range(len(pauses))]
    recording = _printed(times)
    short = shortened(recording, keep)
    before = [b - a for a, b in pairwise([0.0, *(p.t for p in recording.lines)])]
    after = [b - a for a, b in pairwise([0.0, *(p.t for p in short.lines)])]
    assert [p.text for p in short.lines] == [p.text for p in recording.lines]
    for old, new in zip(before, after, strict=True):
        assert new <= old + 1e-6
        assert old > keep or math.isclose(new, old, abs_tol=1e-6)
        assert old <= keep or new > keep - 1e-6
    ranked = sorted(zip(before, after, strict=True))
    assert all(b >= a - 1e-6 for (_, a), (_, b) in pairwise(ranked))


def test_shortening_moves_evidence_and_exits_with_the_lines_around_them() -> None:
    recording = _printed([1.0, 101.0])
    recording.looks = [Frames(51.0, 0, "py-spy", (Frame("f", "x.py"),))]
    recording.exits = [Exit(101.0, 0, 1)]
    short = shortened(recording, 10.0)
    assert short.lines[1].t == pytest.approx(1.0 + 10.0 * (1.0 + math.log(10.0)))
    assert short.exits[0].t == short.lines[1].t
    assert short.lines[0].t < short.looks[0].t < short.lines[1].t
    assert short.observe_until == pytest.approx(short.lines[1].t + 10.0)
    assert recording.lines[1].t == 101.0


# --- playback ---------------------------------------------------------------------------------------------------------


async def test_lines_are_written_as_they_were_printed(tmp_path: Path) -> None:
    lines = [
        Printed(1.0, 0, "stderr", "\rtrain: 0/8"),
        Printed(1.1, 0, "stderr", "\rtrain: 1/8"),
        Printed(1.2, 0, "stderr", "warning"),
        Printed(1.2, 0, "stdout", "zürich"),
        Printed(1.3, -1, "stderr", "launched"),
    ]
    clock = FastClock(50.0)
    playback = Playback(Recording("x", 2, 5.0, lines), tmp_path / "logs", clock)
    files = playback.prepare()
    assert [f.name for f in files] == [
        "launcher.log",
        "rank0.stderr.log",
        "rank0.stdout.log",
        "rank1.stderr.log",
        "rank1.stdout.log",
    ]
    assert all(f.read_bytes() == b"" for f in files)
    began = clock.now()
    assert playback.t == 0.0
    await playback.run()
    assert clock.now() - began >= 1.3
    assert files[1].read_bytes() == b"\rtrain: 0/8\rtrain: 1/8warning\n"
    assert files[2].read_bytes() == "zürich\n".encode()
    assert files[0].read_bytes() == b"launched\n"
    assert files[3].read_bytes() == b""


def test_one_stream_makes_one_file_a_rank(tmp_path: Path) -> None:
    lines = [Printed(1.0, rank, "stderr", "x") for rank in (0, 1)]
    playback = Playback(Recording("x", 2, 5.0, lines), tmp_path, ManualClock())
    assert [f.name for f in playback.prepare()] == ["rank0.log", "rank1.log"]


async def test_the_collector_answers_from_the_recording_in_its_time(tmp_path: Path) -> None:
    clock = ManualClock()
    look = Frames(10.0, 0, "py-spy", (Frame("forward", "torch/nn/modules/_functions.py", 83),))
    recording = Recording("x", 2, 60.0, [], [look], [Fact(10.0, 1, "frozen", text="T")], [Exit(30.0, 1, -9)])
    playback = Playback(recording, tmp_path, clock)
    collector = RecordedCollector(playback, clock)
    assert await collector.watch() == []
    await playback.run()
    await clock.advance(5.0)
    assert await collector.watch() == [Joined(5.0, rank, world_size=2) for rank in (0, 1)]
    assert await collector.watch() == []
    assert {type(e) for e in await collector.collect(Want(5.0, "stacks", (), "early"))} == {Joined}
    await clock.advance(10.0)
    seen = await collector.collect(Want(15.0, "stacks", (), "silence"))
    assert [(e.t, e.rank) for e in seen if isinstance(e, Frames)] == [(15.0, 0)]
    assert [(e.t, e.rank) for e in seen if isinstance(e, Fact)] == [(15.0, 1)]
    assert not [e for e in await collector.collect(Want(15.0, "process", (), "")) if isinstance(e, Frames)]
    await clock.advance(20.0)
    assert await collector.watch() == [Exit(35.0, 1)]
    assert await collector.collect(Want(35.0, "stacks", (1,), "")) == [Exit(35.0, 1)]
    assert [w.why for w in collector.asked] == ["early", "silence", "", ""]
    assert collector.counts["stacks", "ok"] == 4


async def test_all_ranks_are_gone_with_their_launcher(tmp_path: Path) -> None:
    clock = ManualClock()
    playback = Playback(Recording("x", 3, 60.0, exits=[Exit(2.0, 1, 1), Exit(4.0, -1, 1)]), tmp_path, clock)
    collector = RecordedCollector(playback, clock)
    await playback.run()
    await clock.advance(3.0)
    assert [e.rank for e in await collector.watch() if isinstance(e, Exit)] == [1]
    await clock.advance(3.0)
    assert [e.rank for e in await collector.watch() if isinstance(e, Exit)] == [0, 2]


async def test_the_fast_clock_runs_ahead_and_changes_speed_without_a_jump() -> None:
    clock = FastClock(50.0)
    began = clock.now()
    await clock.sleep(2.0)
    now = clock.now()
    assert now - began >= 2.0
    clock.run_at(1.0)
    assert 0.0 <= clock.now() - now < 1.0 + 50.0 * 0.1
    assert abs(clock.wall() - clock.now()) < 1.0


# --- receiver ---------------------------------------------------------------------------------------------------------


async def test_the_receiver_keeps_requests_as_they_came() -> None:
    async with Receiver() as receiver, httpx.AsyncClient(trust_env=False) as client:
        answer = await client.post(receiver.url, json={"key": "k"}, headers={"Idempotency-Key": "k:1"})
        assert answer.status_code == 204
        (request,) = receiver.received
        assert (request.method, request.path) == ("POST", "/alerts")
        assert request.header("idempotency-key") == "k:1"
        assert request.json == {"key": "k"}


async def test_the_receiver_survives_what_is_no_request() -> None:
    async with Receiver() as receiver:
        port = httpx.URL(receiver.url).port
        assert port is not None
        for data in (b"hello\r\n\r\n", b"POST / HTTP/1.1\r\nContent-Length: 9999999999\r\n\r\n", b""):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(data)
            writer.write_eof()
            assert await reader.read() == b""
            writer.close()
        assert receiver.received == []


# --- the whole demo ---------------------------------------------------------------------------------------------------


@pytest.fixture
def taken_port(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The port that the demo wants belongs to somebody."""
    with socket.create_server(("127.0.0.1", 0)) as sock:
        monkeypatch.setattr(demo, "PORT", sock.getsockname()[1])
        yield


async def test_the_daemon_finds_the_hang_and_alarms(capsys: pytest.CaptureFixture[str]) -> None:
    assert await demo.play(None, speed=15.0, keep=False, color=False) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "rrrr" in out or "ssss" in out
    assert "denpexd looks at the stacks" in out
    assert "HANG  rank 0 of 4" in out
    assert "Fwww" in out
    assert "Idempotency-Key: demo-" in out
    assert json.dumps("syncbatchnorm-single-rank-eval-deadlock") in out
    assert 'denpexd_incident_open{failure="syncbatchnorm-single-rank-eval-deadlock",training_job="demo"} 1' in out
    assert "✔ found" in out


@pytest.mark.usefixtures("taken_port")
async def test_a_healthy_job_alarms_nobody_and_another_port_is_taken_if_need_be(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert await demo.play("long-validation", speed=30.0, keep=False, color=True) == 0
    out = capsys.readouterr().out
    assert "\x1b[" in out
    assert f"127.0.0.1:{demo.PORT}/" not in out
    assert "nothing was reported" in out
    assert "The alert" not in out


async def test_another_answer_than_the_true_one_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(HOME / "vanished-rank", tmp_path / "vanished-rank")
    (tmp_path / "expected.yaml").write_text("vanished-rank: {failure: hdf5-data-corruption, initiating_ranks: [1]}\n")
    monkeypatch.setattr(demo, "_home", lambda: tmp_path)
    assert await demo.play(None, speed=30.0, keep=False, color=False) == 1
    assert "✘ not found; denpexd said rank-oom-killed, started by rank 2" in capsys.readouterr().out


@pytest.mark.parametrize("speed", [0.0, -1.0, 1000.0, math.nan])
async def test_an_impossible_speed_is_refused(speed: float) -> None:
    with pytest.raises(SettingsError, match="--speed"):
        await demo.play(None, speed=speed, keep=False, color=False)


async def test_the_demo_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert await demo.play("vanished-rank", speed=20.0, keep=False, color=False) == 0
    assert list(tmp_path.iterdir()) == []
