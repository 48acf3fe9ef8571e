"""The recording of a job: judged again it gives the same verdict, also when it has forgotten the beginning."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from denpexd.archive import pack
from denpexd.bundle import Material, files
from denpexd.catalog.load import load, shipped_rules
from denpexd.core.cadence import Limits
from denpexd.core.correlate import Correlator
from denpexd.core.events import (
    Activity,
    Attempt,
    Closed,
    Event,
    Exit,
    Fact,
    Frame,
    Frames,
    Hit,
    Joined,
    Raised,
    Tick,
    Want,
)
from denpexd.core.rule import Catalog
from denpexd.recording import Recording, read_case
from denpexd.replay import Replayer
from denpexd.scan.engine import choose_engine
from denpexd.tape import Cut, Tape, depth_of

CASES = Path(__file__).parents[1] / "cases"
SOME = ("dies-cuda-oom-uncaught", "lab-ddpeval-rank1-n2", "lab-elastic-static-rdzv-n2", "lab-exc-index-n4-tee-json")


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    return load([shipped_rules()], strict=False)[0]


@pytest.fixture(scope="module")
def replayer(catalog: Catalog) -> Replayer:
    return Replayer(catalog, choose_engine())


def essence(verdict: Mapping[str, Any]) -> tuple[object, ...]:
    return verdict["failure"], verdict["initiating_ranks"], verdict["collateral_ranks"], verdict["certainty"]


def live(recording: Recording, replayer: Replayer, tape: Tape) -> dict[str, tuple[Mapping[str, Any], Cut]]:
    """The job as the daemon would see it: what was said of each incident last, and the recording of that moment."""
    from denpexd.replay import _answers

    size = recording.world_size
    core = Correlator(replayer.catalog, recording.name, start_t=recording.start, world_size=size)
    kept: dict[str, tuple[Mapping[str, Any], Cut]] = {}
    for events in replayer.hear(recording).batches:
        batch: list[Event] = list(events)
        while batch:
            outputs = core.feed(batch)
            tape.add(batch)
            for told in outputs:
                if not isinstance(told, Want | Closed):
                    kept[str(told.verdict["key"])] = told.verdict, tape.cut()
            batch = [e for want in outputs if isinstance(want, Want) for e in _answers(want, recording)]
    return kept


@pytest.mark.parametrize("room", [1 << 24, 30_000])
@pytest.mark.parametrize("name", SOME)
def test_a_bundle_is_judged_as_the_job_was(
    name: str, room: int, replayer: Replayer, catalog: Catalog, tmp_path: Path
) -> None:
    recording = read_case(CASES / name)
    tape = Tape(name, recording.start, Limits(), lambda s: depth_of(catalog, s), room=room, age=3600.0)
    kept = live(recording, replayer, tape)
    for verdict, cut in kept.values():
        path = tmp_path / "bundle.tar.xz"
        path.write_bytes(pack(files(Material(verdict, cut)), "bundle"))
        again = replayer.run(read_case(path)).verdicts
        assert essence(verdict) in [essence(one) for one in again]
        if not cut.before:
            assert verdict["opened_t"] in [one["opened_t"] for one in again]


def tape(room: int = 1 << 20, age: float = 100.0) -> Tape:
    return Tape("job", 0.0, Limits(), lambda signal: 5, room=room, age=age)


def hit(t: float, text: str = "x", signal: str = "progress.step", rank: int = 0) -> Hit:
    return Hit(t, rank, signal, "log", 0, text)


def test_it_is_bounded_by_bytes_and_by_age() -> None:
    made = tape(room=50_000)
    for n in range(1000):
        made.add([hit(float(n) / 100, "x" * 1000)])
    assert made.bytes <= 50_000
    made.fit(10_000)  # also where nothing more comes: a job that is over
    assert 0 < made.bytes <= 10_000
    old = tape(age=100.0)
    for n in range(1000):
        old.add([Tick(float(n))])
    assert 99 <= len(old.cut().batches) <= 102


def test_a_batch_larger_than_the_room_is_still_there() -> None:
    made = tape(room=100)
    made.add([hit(1.0, "y" * 5000)])
    assert len(made.cut().batches) == 1


def test_of_what_is_older_the_first_and_the_last_of_each_kind_are_known() -> None:
    made = tape(age=1.0)
    made.known([Joined(0.0, 1, node="a", world_size=8)])
    for n in range(100):
        made.add([hit(float(n), str(n)), Activity(float(n), 0, "log", 9), Tick(float(n))])
    made.add(
        [Frames(200.0, 0, "py-spy", (Frame("f", "x.py", 1),)), Raised(200.0, 0, "log", 0, "E", (), ()), Exit(200.0, 0)]
    )
    made.add([Tick(400.0)])
    before = made.cut().before
    assert [e.text for e in before if isinstance(e, Hit)] == ["0", "95", "96", "97", "98", "99"]
    assert isinstance(before[0], Joined)
    assert {Frames, Raised, Exit} <= {type(e) for e in before}
    assert not any(isinstance(e, Tick) for e in before)
    times = [e.t for e in before]
    assert times == sorted(times)


def test_facts_about_other_ranks_do_not_replace_each_other() -> None:
    made = tape(age=1.0)
    for number in range(20):
        made.add([Fact(1.0, -1, "launch", {"ranks": str(number)})])
    made.add([Tick(100.0)])
    assert len({e.fields["ranks"] for e in made.cut().before if isinstance(e, Fact)}) == 20


def test_a_new_attempt_forgets_what_the_one_before_it_said() -> None:
    made = tape(age=1.0)
    made.add([Joined(0.0, 0, node="a"), Raised(1.0, 0, "log", 0, "E", (), ()), hit(1.0, "boom", "rule.printed")])
    made.add([Attempt(2.0, 1)])
    made.add([hit(3.0, "again")])
    made.add([Tick(100.0)])
    kinds = [type(e) for e in made.cut().before]
    assert kinds == [Joined, Attempt, Hit]


def test_later_events_do_not_change_a_cut() -> None:
    made = tape()
    made.add([hit(1.0)])
    cut = made.cut()
    made.add([hit(2.0)])
    made.finish(3.0)
    assert (len(cut.batches), cut.finished, cut.since, cut.until) == (1, None, 1.0, 1.0)
    assert made.cut().until == 3.0
