"""What holds for every job that could be watched: random scripts of events, played in many ways.

Times lie on a grid of an eighth of a second, so that shifting them is exact. A script is played as the daemon would:
everything of one moment is a batch, and a tick comes every second.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from denpexd.catalog.load import load, shipped_rules
from denpexd.core.correlate import Correlator
from denpexd.core.events import (
    UNKNOWN_RANK,
    Activity,
    Attempt,
    Blind,
    Closed,
    Event,
    Exit,
    Fact,
    Frame,
    Frames,
    Hit,
    Joined,
    Opened,
    Output,
    Raised,
    Tick,
    Updated,
    Want,
)
from denpexd.core.rank import MAX_METRICS, MAX_RAISED, MAX_SIGNALS
from denpexd.journal import decode, encode
from denpexd.recording import Printed, Recording, read_case
from denpexd.replay import Replayer
from denpexd.scan.engine import choose_engine

TESTS = Path(__file__).parents[1]
TINY, _ = load([TESTS / "data" / "tiny"], strict=False)
SCHEMA = json.loads((TESTS.parent / "docs" / "verdict.schema.json").read_text())
RANKS = 4
END = 60.0  # seconds of silence behind every script

Verdict = Mapping[str, Any]


@dataclass(frozen=True)
class Script:
    """Timed events of a job, in order of time."""

    events: tuple[Event, ...]

    @property
    def end(self) -> float:
        return max((e.t for e in self.events), default=0.0)

    def moved(self, seconds: float) -> "Script":
        return Script(tuple(replace(e, t=e.t + seconds) for e in self.events))

    def renamed(self, names: Sequence[int]) -> "Script":
        return Script(tuple(_renamed(e, names) for e in self.events))

    def moments(self) -> Iterator[tuple[float, list[Event]]]:
        for t, group in groupby(self.events, key=lambda e: e.t):
            yield t, list(group)


def _renamed(event: Event, names: Sequence[int]) -> Event:
    if isinstance(event, Tick | Attempt | Blind) or event.rank < 0:
        return event
    new = names[event.rank]
    if isinstance(event, Exit | Joined):
        return replace(event, rank=new)
    return replace(event, rank=new, source=f"rank{new}")


Cut = Callable[[list[Event]], list[list[Event]]]


def at_once(moment: list[Event]) -> list[list[Event]]:
    return [moment]


def alone(moment: list[Event]) -> list[list[Event]]:
    """Each event is a batch, except the answers to one look at all ranks: they are of one moment."""
    pieces = groupby(moment, key=lambda e: isinstance(e, Frames) and e.kind == "py-spy")
    return [piece for look, found in pieces for piece in ([list(found)] if look else [[e] for e in found])]


def play(script: Script, cut: Cut = at_once, *, start: float = 0.0, core: Correlator | None = None) -> list[Output]:
    """Everything that is said about the script, with END more seconds of silence."""
    core = core or Correlator(TINY, "job", start_t=start, world_size=RANKS)
    said: list[Output] = []
    t = start
    for moment, events in script.moments():
        while t + 1 <= moment:
            t += 1
            said += core.feed([Tick(t)])
        for batch in cut(events):
            said += core.feed(batch)
    end = script.end + END if script.events else start + END
    while t + 1 <= end:
        t += 1
        said += core.feed([Tick(t)])
    return said + core.finish(end)


def changes(said: Sequence[Output]) -> list[Verdict]:
    return [o.verdict for o in said if not isinstance(o, Want)]


def final(said: Sequence[Output]) -> list[dict[str, Any]]:
    """The last state of each incident, in order of their opening."""
    last = {v["key"]: dict(v) for v in changes(said)}
    return list(last.values())


def essence(verdict: Verdict, *keys: str) -> tuple[Any, ...]:
    """What a verdict says, apart from times and numbers of messages; `keys`: further parts of it."""
    ranks = (frozenset(verdict[k]) for k in ("initiating_ranks", "collateral_ranks", "unheard_ranks"))
    return (
        verdict["failure"],
        verdict["certainty"],
        verdict["state"],
        verdict["hang"],
        *ranks,
        *map(verdict.get, keys),
    )


# --- scripts ----------------------------------------------------------------------------------------------------------


def line(rank: int, signal: str, fields: Mapping[str, str] | None = None, *, handled: bool = False) -> Hit:
    name = signal if "." in signal else f"line.{signal}"
    return Hit(0.0, rank, name, f"rank{rank}", 0, signal, fields or {}, handled)


def raised(rank: int, kind: str, message: str, uncaught: bool) -> Raised:
    return Raised(0.0, rank, f"rank{rank}", 0, f"{kind}: {message}", ((kind, message),), (), uncaught)


def stack(rank: int, kind: str, *functions: str) -> Frames:
    return Frames(0.0, rank, kind, tuple(Frame(f.split()[0], f.split()[1]) for f in functions), source=f"rank{rank}")


ranks = st.integers(0, RANKS - 1)
lines = st.sampled_from(["evaluating", "saving", "epoch_done", "lost", "told_to_stop", "sync_layers"])
stacks = st.sampled_from(["exchange layer.py", "barrier d.py", "evaluate train.py", "main train.py"])
kinds = st.sampled_from(["py-spy", "faulthandler"])
broken: st.SearchStrategy[Event] = st.builds(
    lambda r, h: line(r, "bad-file.printed", handled=h), ranks, st.booleans()
) | st.builds(lambda r, u: raised(r, "FormatError", "bad magic", u), ranks, st.booleans())
killed: st.SearchStrategy[Event] = st.builds(lambda r: Exit(0.0, r, -9), ranks)
full: st.SearchStrategy[Event] = st.builds(lambda r: line(r, "full-disk.printed"), ranks)
common: st.SearchStrategy[Event] = (
    st.builds(line, ranks, lines)
    | st.builds(lambda r: line(r, "timeout", {"op": "ALLREDUCE", "seq": "7"}), ranks)
    | st.builds(lambda r, u: raised(r, "ValueError", "bad", u), ranks, st.booleans())
    | st.builds(lambda r: raised(r, "RuntimeError", "peer was lost", True), ranks)
    | st.builds(lambda r, k, f: stack(r, k, f), ranks, kinds, stacks)
    | st.builds(lambda r, c: Exit(0.0, r, c), ranks, st.sampled_from([None, 0, 1]))
    | st.builds(lambda r, n: Fact(0.0, r, n, source=f"rank{r}"), ranks, st.sampled_from(["frozen", "running"]))
)


def _at(event: Event, t: float) -> Event:
    return replace(event, t=t)


@st.composite
def scripts(draw: st.DrawFn, *, goes_on: bool = True) -> Script:
    """Training for a while, then bursts of anything with pauses and, if training `goes_on`, steps between them."""
    others = st.sampled_from(["look", "pause", "steps"] if goes_on else ["look", "pause"])
    pieces = st.lists(st.lists(common | broken | killed | full, min_size=1, max_size=5) | others, max_size=8)
    events: list[Event] = []
    t, n = 0.0, 0

    def steps(count: int) -> None:
        nonlocal t, n
        for _ in range(count):
            t, n = t + 1.0, n + 1
            events.extend(replace(line(r, "step", {"step": str(n)}), t=t) for r in range(RANKS))

    steps(4)
    for piece in draw(pieces):
        if piece == "steps":
            steps(draw(st.integers(1, 6)))
        elif piece == "pause":
            t += draw(st.sampled_from([3.0, 12.0, 45.0]))
        elif piece == "look":
            functions = [draw(stacks) for _ in range(RANKS)]
            for _ in range(2):
                t += 5.0
                events.extend(replace(stack(r, "py-spy", f), t=t) for r, f in enumerate(functions))
        elif not isinstance(piece, str):
            for event in piece:
                t += draw(st.sampled_from([0.0, 0.0, 0.125, 0.5, 2.5]))
                events.append(_at(event, t))
    if goes_on and draw(st.booleans()):
        events.append(Attempt(t + 0.5, 1))
        t += 1.0
        steps(draw(st.integers(0, 6)))
    return Script(tuple(events))


# --- naming, time, order ----------------------------------------------------------------------------------------------


@given(scripts(), st.permutations(range(RANKS)))
def test_renaming_ranks_renames_the_verdict_and_changes_nothing_else(script: Script, names: list[int]) -> None:
    def named(verdict: dict[str, Any]) -> tuple[Any, ...]:
        for key in ("initiating_ranks", "collateral_ranks", "unheard_ranks"):
            verdict[key] = [names[r] for r in verdict[key]]
        return essence(verdict, "key", "opened_t", "revision", "step")

    as_it_was = [named(v) for v in final(play(script))]
    renamed = [essence(v, "key", "opened_t", "revision", "step") for v in final(play(script.renamed(names)))]
    assert renamed == as_it_was


@given(scripts(), st.integers(1, 10**9))
def test_shifting_time_shifts_the_verdict_and_changes_nothing_else(script: Script, seconds: int) -> None:
    def back(verdict: dict[str, Any]) -> dict[str, Any]:
        for key in ("opened_t", "updated_t", "stopped_t"):
            verdict[key] = None if verdict[key] is None else verdict[key] - seconds
        verdict["evidence"] = [{**e, "t": e["t"] - seconds} for e in verdict["evidence"]]
        return {**verdict, "key": verdict["key"].rsplit("-", 1)[0]}

    plain = [{**v, "key": v["key"].rsplit("-", 1)[0]} for v in final(play(script))]
    assert [back(v) for v in final(play(script.moved(seconds), start=float(seconds)))] == plain


@given(scripts(), st.lists(st.tuples(st.integers(4, 400), ranks, st.integers(1, 9999)), max_size=30))
def test_harmless_lines_change_nothing(script: Script, where: list[tuple[int, int, int]]) -> None:
    harmless = [Activity(4.0 + eighths / 8, rank, f"rank{rank}", size) for eighths, rank, size in where]
    inside = [event for event in harmless if event.t < script.end]
    noisy = Script(tuple(sorted([*script.events, *inside], key=lambda e: e.t)))
    assert final(play(noisy)) == final(play(script))


@given(scripts(), st.randoms(use_true_random=False))
def test_the_order_of_ranks_within_a_moment_does_not_change_the_final_verdict(script: Script, chance: Any) -> None:
    def shuffled(moment: list[Event]) -> list[list[Event]]:
        """Another order, in which each rank keeps its own."""
        by_rank: dict[int, list[Event]] = {}
        for event in moment:
            by_rank.setdefault(getattr(event, "rank", UNKNOWN_RANK), []).append(event)
        order = [rank for rank, events in by_rank.items() for _ in events]
        chance.shuffle(order)
        return [[by_rank[rank].pop(0) for rank in order]]

    assert [essence(v) for v in final(play(script, shuffled))] == [essence(v) for v in final(play(script))]


@given(scripts(goes_on=False))
def test_how_events_are_cut_into_batches_does_not_change_the_final_verdict(script: Script) -> None:
    def told(cut: Cut) -> list[tuple[Any, ...]]:
        """`hang` is left out: what is told at once says it of what was known then, and alone it is worth no update."""
        return [essence({**v, "hang": None}) for v in final(play(script, cut))]

    assert told(alone) == told(at_once)


class Rechecked(Correlator):
    """Works out anew, after each batch, what it remembers of ranks of which no event came since."""

    def feed(self, events: Iterable[Event]) -> list[Output]:
        said = super().feed(events)
        kept, self.job.kept = self.job.kept or {}, None
        assert kept == {key: getattr(self.job, f"_{key}")() for key in kept}
        self.job.kept = kept
        return said


@given(scripts())
def test_what_is_remembered_of_silent_ranks_is_what_would_be_found_anew(script: Script) -> None:
    play(script, alone, core=Rechecked(TINY, "job", start_t=0.0, world_size=RANKS))


# --- incidents --------------------------------------------------------------------------------------------------------


@given(scripts())
def test_an_incident_opens_once_keeps_its_key_and_counts_its_messages(script: Script) -> None:
    revisions: dict[str, int] = {}
    closed: set[str] = set()
    for output in play(script):
        if isinstance(output, Want):
            continue
        key, revision = str(output.verdict["key"]), output.verdict["revision"]
        assert key not in closed
        assert isinstance(output, Opened) == (key not in revisions)
        assert revision == revisions.get(key, 0) + 1
        assert output.verdict["event"] == {Opened: "opened", Updated: "updated", Closed: "closed"}[type(output)]
        revisions[key] = int(str(revision))
        if isinstance(output, Closed):
            closed.add(key)


@given(scripts())
def test_a_stop_has_one_incident_at_a_time(script: Script) -> None:
    running: set[str] = set()
    for output in play(script):
        if isinstance(output, Want) or not TINY.rules[str(output.verdict["failure"])].stops:
            continue
        running.add(str(output.verdict["key"]))
        assert len(running) == 1
        if isinstance(output, Closed):
            running.clear()


@given(scripts())
def test_an_incident_closes_only_after_training_went_on(script: Script) -> None:
    steps = [e.t for e in script.events if isinstance(e, Hit) and e.signal == "line.step"]
    for output in play(script):
        if isinstance(output, Closed):
            opened, now = output.verdict["opened_t"], output.verdict["updated_t"]
            assert any(opened < t <= now for t in steps)


@given(scripts())
def test_every_verdict_is_as_published(script: Script) -> None:
    for verdict in changes(play(script)):
        assert json.loads(json.dumps(verdict)) == verdict
        jsonschema.validate(verdict, SCHEMA)
        assert not set(verdict["initiating_ranks"]) & set(verdict["collateral_ranks"])


@given(scripts())
def test_nothing_is_told_twice(script: Script) -> None:
    said: dict[str, tuple[Any, ...]] = {}
    for output in play(script):
        if isinstance(output, Opened | Updated):
            key, now = str(output.verdict["key"]), essence(output.verdict)[:2] + essence(output.verdict)[4:6]
            assert said.get(key) != now
            said[key] = now


# --- restart ----------------------------------------------------------------------------------------------------------


@given(scripts())
def test_events_survive_the_journal(script: Script) -> None:
    for event in script.events:
        written = encode("job", event)
        assert written is None or decode(written) == ("job", event)


@given(scripts(goes_on=False), st.sampled_from(["raised", "printed"]), ranks)
def test_a_restart_gives_an_open_incident_the_same_key(script: Script, failure: str, rank: int) -> None:
    t = script.end + 60.0
    error = raised(rank, "FormatError", "bad magic", True) if failure == "raised" else line(rank, "bad-file.printed")
    crash = (replace(error, t=t), Exit(t + 0.5, rank, 1), replace(line((rank + 1) % RANKS, "lost"), t=t + 1.0))
    core = Correlator(TINY, "job", world_size=RANKS)
    play(Script((*script.events, *crash)), core=core)
    open_now = core.verdicts()
    lines_ = [text for e in (*script.events, *crash) if (text := encode("job", e)) is not None]
    now = t + 1.0 + END
    keys = []
    for _ in range(2):
        again = Correlator(TINY, "job", world_size=RANKS)
        again.restore([decode(text)[1] for text in lines_], open_now, now)
        said = [o for s in range(1, 6) for o in again.feed([Tick(now + s)])]
        assert [o for o in said if isinstance(o, Opened)] == []
        keys.append({v["key"] for v in again.verdicts()})
    assert keys[0] == keys[1] == {v["key"] for v in open_now}


# --- bounds -----------------------------------------------------------------------------------------------------------


def test_the_memory_of_a_rank_stays_bounded() -> None:
    core = Correlator(TINY, "job", world_size=RANKS)
    for n in range(1000):
        t = float(n)
        batch: list[Event] = [
            line(0, "step", {"step": str(n)}),
            line(0, "mean", {"metric": "mean", "value": str(n), "epoch": str(n)}),
            line(1, "bad-file.printed", handled=True),
            raised(1, "ValueError", f"bad {n}", uncaught=False),
            stack(1, "faulthandler", f"f{n} x.py"),
            line(2, ("evaluating", "saving", "epoch_done")[n % 3]),
            Exit(0.0, 3, n % 3),
            Fact(0.0, 3, "evidence_unavailable", {"kind": "stacks", "why": f"{n}"}),
        ]
        core.feed([replace(e, t=t) for e in batch])
        core.feed([Tick(t)])
    for state in core.job.ranks.values():
        assert len(state.metrics) <= MAX_METRICS
        assert len(state.raised) <= MAX_RAISED
        assert len(state.seen) <= MAX_SIGNALS
        assert len(state.rhythm.gaps) <= 64
        assert len(state.snapshots) <= 4
        assert len(state.exits) <= 8
        assert len(state.states) <= 8
        assert sum(len(known) for known in state.rhythm.phases.values()) <= 16 * 8


# --- recorded jobs ----------------------------------------------------------------------------------------------------

CASES = {folder.name: folder for folder in sorted((TESTS / "cases").iterdir())}
PLAYED = [
    "lab-exc-value-n3-tqdm",
    "lab-kill-n3-srun",
    "lab-inif-gather-n3-json",
    "lab-syncbn-next-nobuffers-n3-json",
    "lab-uneven-idle-n3-tqdm",
    "lab-corrupt-hdf5-trunc-n3",
    "lab-bnstats-diverge-n3-logging",
]


@pytest.fixture(scope="module")
def replayer() -> Replayer:
    return Replayer(load([shipped_rules()])[0], choose_engine())


def told(replayer: Replayer, recording: Recording, *keys: str) -> list[tuple[Any, ...]]:
    return [essence(v, *keys) for v in replayer.run(recording).verdicts]


@pytest.mark.parametrize("case", PLAYED)
def test_a_recorded_job_that_began_later_failed_later(replayer: Replayer, case: str) -> None:
    plain = read_case(CASES[case])
    later = replace(
        plain,
        observe_until=plain.observe_until + 7,
        lines=[replace(p, t=p.t + 7) for p in plain.lines],
        looks=[replace(f, t=f.t + 7) for f in plain.looks],
        dumps=[replace(d, t=d.t + 7) for d in plain.dumps],
        states=[replace(f, t=f.t + 7) for f in plain.states],
        exits=[replace(e, t=e.t + 7) for e in plain.exits],
    )
    before, after = (replayer.run(recording).verdicts for recording in (plain, later))
    assert [essence(v) for v in after] == [essence(v) for v in before]
    assert [v["opened_t"] for v in after] == pytest.approx([float(str(v["opened_t"])) + 7 for v in before])


@pytest.mark.parametrize("case", PLAYED)
def test_harmless_lines_in_a_recorded_job_change_nothing(replayer: Replayer, case: str) -> None:
    plain = read_case(CASES[case])
    chatter = ("gpu memory 43.1 GB", "lr 3e-4", "shuffled the buffer", "", "    ", "tokens seen: 8.1B")
    heard = {(p.rank, p.stream) for p in plain.lines}
    added = [
        Printed(p.t, rank, stream, chatter[n % len(chatter)])
        for n, p in enumerate(plain.lines)
        for rank, stream in [(p.rank, p.stream)]
        if (rank, stream) in heard and not p.text.startswith((" ", "Traceback", "\r"))
        if not _in_a_traceback(plain.lines, n)
    ]
    noisy = replace(plain, lines=sorted([*plain.lines, *added], key=lambda p: p.t))
    assert told(replayer, noisy, "opened_t") == told(replayer, plain, "opened_t")


def _in_a_traceback(printed: Sequence[Printed], n: int) -> bool:
    """Whether a line of the same stream goes on with what this line began: a line between them would cut it."""
    here = printed[n]
    later = (p.text for p in printed[n + 1 :] if (p.rank, p.stream) == (here.rank, here.stream))
    return any(word in next(later, "") for word in ("File ", "Error", "    ", "Traceback"))
