"""Jobs on several nodes: one verdict, one key, one page, whatever happens to clocks, broker, hubs and nodes."""

import asyncio
import random
from collections.abc import Iterator, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from denpexd.core.events import Activity, Event, Frame, Frames
from denpexd.errors import BrokerError
from denpexd.hub.leases import SAFE, TTL, Leases
from denpexd.hub.spool import Spool
from denpexd.hub.wire import PARTITIONS, Message, encode_message, lines, subject
from denpexd.recording import Printed, Recording
from denpexd.replay import Replayer
from denpexd.scan.engine import choose_engine
from denpexd.watched import Job, Outcome

from .jobs import TINY
from .spans import Link, Machine, Span, split

A, B = (0, 1), (2, 3)
TRACEBACK = ["Traceback (most recent call last):", '  File "train.py", line 3, in main', "ValueError: a bad sample"]
FAILS = 20.0
ENDS = 60.0
OTHER = "a job that is not judged"


@pytest.fixture(scope="module")
def replayer() -> Replayer:
    return Replayer(TINY, choose_engine())


def trains(until: float, ranks: Sequence[int] = (0, 1, 2, 3)) -> list[Printed]:
    return [Printed(t + rank / 100, rank, "stdout", f"step {t}") for t in range(1, int(until) + 1) for rank in ranks]


def crash(at: float = FAILS) -> Recording:
    """Rank 2 fails; the others say that they lost it. Nobody's exit is seen."""
    lines = [*trains(at), *(Printed(at + 0.5, 2, "stderr", line) for line in TRACEBACK)]
    lines += [Printed(at + 2.0 + rank, rank, "stderr", "peer was lost") for rank in (0, 1, 3)]
    return Recording("job", 4, ENDS, sorted(lines, key=lambda p: p.t))


def hang(at: float = FAILS) -> Recording:
    """Rank 3 evaluates alone, the others wait for it; nobody prints anything more."""
    stood = {3: ("exchange layer.py", "evaluate train.py")} | dict.fromkeys((0, 1, 2), ("barrier dist.py",))
    looks = [
        Frames(at + 1, rank, "py-spy", tuple(Frame(*f.split(), 3) for f in frames)) for rank, frames in stood.items()
    ]
    return Recording("job", 4, 120.0, trains(at), looks)


def essence(verdict: object) -> tuple[object, ...]:
    assert isinstance(verdict, dict)
    names = ("failure", "certainty", "initiating_ranks", "collateral_ranks", "state")
    return tuple(verdict[name] for name in names)


@pytest.fixture
def span(replayer: Replayer) -> Iterator[Span]:
    with Span(replayer) as made:
        yield made


def two_nodes(span: Span, recording: Recording, skew: tuple[float, float] = (0.0, 0.0)) -> None:
    for name, part, by in zip(("node-a", "node-b"), split(recording, A, B), skew, strict=True):
        span.node(name, part, by)


class TestOneJob:
    @pytest.mark.parametrize("skew", [(2.0, -2.0), (-3600.0, 0.25)])
    async def test_clocks_that_are_off_change_nothing(
        self, span: Span, replayer: Replayer, skew: tuple[float, float]
    ) -> None:
        hub = span.hub()
        two_nodes(span, crash(), skew)
        await span.run(ENDS)
        [alone] = replayer.run(crash()).verdicts
        [verdict] = hub.verdicts
        assert essence(verdict) == essence(dict(alone))
        assert verdict["initiating_ranks"] == [2]
        assert verdict["nodes"] == {"0": "node-a", "1": "node-a", "2": "node-b", "3": "node-b"}
        assert verdict["evidence"][0]["source"].startswith("node-b:")
        assert [(who, event) for who, _, _, event in span.pager.got] == [("hub", "opened")]

    async def test_a_job_that_cannot_be_judged_stops_no_other(
        self, span: Span, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hub = span.hub()
        two_nodes(span, crash())
        take = hub.pipeline.take

        def broken(job: Job, events: Sequence[Event]) -> Outcome:
            if job.core.job.job == OTHER:
                raise OverflowError
            return take(job, events)

        monkeypatch.setattr(hub.pipeline, "take", broken)
        data = encode_message(Message("node-c", OTHER, 1.0), [("run", 1, lines([[Activity(1.0, 0, "x", 9)]]))])
        await span.run(1)
        await hub.link.publish(subject(OTHER), data, "other")
        await span.run(ENDS)
        [verdict] = hub.verdicts
        assert verdict["initiating_ranks"] == [2]

    async def test_a_partition_is_read_on_after_a_message_that_cannot_be_taken(
        self, span: Span, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        daemon = span.hub().daemon
        await daemon.own()
        part, tried = next(iter(daemon.parts.values())), 0

        async def read(*_: object) -> int:
            nonlocal tried
            tried += 1
            raise RuntimeError("a message that cannot be taken")

        monkeypatch.setattr(daemon, "read", read)
        daemon.parts = {part.number: part}
        for _ in range(2):
            daemon.keep_reading()
            assert part.reader is not None
            await asyncio.wait([part.reader])
        assert tried == 2

    async def test_a_hang_is_explained_by_the_stacks_of_all_nodes(self, span: Span, replayer: Replayer) -> None:
        hub = span.hub()
        two_nodes(span, hang(), (1.0, -1.0))
        await span.run(120)
        [alone] = replayer.run(hang()).verdicts
        [verdict] = hub.verdicts
        assert essence(verdict)[:4] == essence(dict(alone))[:4]
        assert (verdict["failure"], verdict["initiating_ranks"]) == ("lonely-eval", [3])

    async def test_the_hub_asks_the_nodes_for_what_it_wants_to_see(self, span: Span) -> None:
        span.hub()
        two_nodes(span, hang())
        for node in span.nodes:
            node.pipeline.job("job").core._asking.at = lambda *_, **__: iter(())  # they ask nothing themselves
        await span.run(60)
        for node in span.nodes:
            assert {want.kind for want in node.processes.asked} >= {"stacks"}
            assert all(abs(want.t - node.clock.now()) < 60 for want in node.processes.asked)

    @pytest.mark.parametrize("again", [False, True])
    @pytest.mark.parametrize("seed", range(2))
    async def test_order_and_repeats_of_messages_change_nothing(
        self, replayer: Replayer, seed: int, again: bool
    ) -> None:
        with Span(replayer) as span:
            span.server.order = order = random.Random(seed)
            hub = span.hub()
            two_nodes(span, crash(), (0.3, -0.4))
            for node in span.nodes if again else ():
                unreliable(node, order)
                span.server.keeps_ids = False
            await span.run(ENDS)
            [verdict] = hub.verdicts
            assert essence(verdict)[:4] == ("any-error", "confirmed", [2], [0, 1, 3])
            assert (hub.daemon.counts()["messages"]["repeated"] > 0) == again
            assert len(span.pager.opened) == 1


def unreliable(machine: Machine, chance: random.Random) -> None:
    """Every third message arrives, but its sender is told that it did not."""
    publish = machine.link.publish
    count = iter(range(10**6))

    async def half(subject: str, data: bytes, message_id: str) -> None:
        await publish(subject, data, message_id)
        if next(count) % 3 == chance.randrange(3):
            raise BrokerError("no answer")

    machine.link.publish = half


class TestBroker:
    async def test_an_outage_loses_nothing_and_is_no_silence(self, span: Span) -> None:
        hub = span.hub()
        two_nodes(span, crash())
        await span.run(12)
        span.server.up = False
        await span.run(45)
        assert span.pager.got == []
        span.server.up = True
        await span.run(100)
        [verdict] = hub.verdicts
        assert verdict["initiating_ranks"] == [2]
        assert [event for _, _, _, event in span.pager.got] == ["opened"]
        assert [node.uplink.counts()["waiting"]["rows"] for node in span.nodes] == [0, 0]

    async def test_a_healthy_job_survives_an_outage_unnoticed(self, span: Span) -> None:
        span.hub()
        two_nodes(span, Recording("job", 4, 200.0, trains(150)))
        await span.run(40)
        span.server.up = False
        await span.run(90)
        span.server.up = True
        await span.run(150)
        assert span.pager.got == []

    async def test_a_node_without_hub_tells_itself_and_the_hub_goes_on_under_its_key(self, span: Span) -> None:
        two_nodes(span, crash())
        await span.run(70)
        [(who, key, _, event)] = [got for got in span.pager.got if got[0] == "node-b"]
        assert (who, event) == ("node-b", "opened")
        told = next(v for v in span.pager.verdicts if v["key"] == key)
        assert "only node-b was heard" in told["missing"][-1]["fact"]
        told_by_nodes = span.pager.keys
        hub = span.hub()
        await span.run(140)
        [verdict] = [v for v in hub.verdicts if v["state"] == "open"]
        assert verdict["initiating_ranks"] == [2]
        assert verdict["key"] in told_by_nodes
        assert [got for got in span.pager.got if got[0] == "hub" and got[3] == "opened"] == []
        assert span.pager.keys == told_by_nodes
        # Each node had told under a key of its own: of the other one it tells the end.
        [ended] = told_by_nodes - {verdict["key"]}
        assert [event for _, k, _, event in span.pager.got if k == ended] == ["opened", "closed"]
        for node in span.nodes:
            assert {v["key"] for v in node.daemon.ledger.incidents.values() if v["state"] == "open"} == {verdict["key"]}

    async def test_a_node_that_hears_a_hub_tells_nobody(self, span: Span) -> None:
        hub = span.hub()
        two_nodes(span, crash())
        await span.run(ENDS)
        assert {who for who, *_ in span.pager.got} == {"hub"}
        [key] = {v["key"] for v in hub.verdicts}
        for node in span.nodes:  # what they saw of it is the hub's incident
            assert {k for k, v in node.daemon.ledger.incidents.items() if v["state"] == "open"} <= {key}

    async def test_when_the_hub_is_gone_a_node_does_not_page_again(self, span: Span) -> None:
        hub = span.hub()
        two_nodes(span, crash())
        await span.run(ENDS)
        hub.dead = True
        await span.run(200)
        assert len(span.pager.opened) == 1
        assert len(span.pager.keys) == 1


class TestTakeover:
    @pytest.mark.parametrize("dies", [5, 22, 33, 36, 38, 45])
    async def test_whenever_a_hub_dies_there_is_one_key_and_one_page(self, span: Span, dies: int) -> None:
        first, second = span.hub("one"), span.hub("two")
        two_nodes(span, crash())
        await span.run(dies)
        owner = first if any(part.jobs for part in first.daemon.parts.values()) else second
        owner.dead = True
        await span.run(120)
        other = second if owner is first else first
        assert set(other.daemon.parts) == set(range(PARTITIONS))
        [verdict] = [v for v in other.verdicts if v["state"] == "open"]
        assert verdict["initiating_ranks"] == [2]
        assert span.pager.keys == {verdict["key"]}
        assert len(span.pager.opened) == 1

    async def test_a_message_that_was_not_sent_is_sent_by_the_next_owner(self, span: Span) -> None:
        first, second = span.hub("one"), span.hub("two")
        two_nodes(span, crash())
        first.sends = second.sends = False
        await span.run(45)
        owner, other = (first, second) if first.verdicts else (second, first)
        [key] = [v["key"] for v in owner.verdicts]
        owner.paused = True
        other.sends = True
        await span.run(80)
        assert [(who, k, e) for who, k, _, e in span.pager.got] == [(other.name, key, "opened")]
        owner.paused, owner.sends = False, True
        await owner.deliver()  # before it has looked at its leases
        assert len(span.pager.got) == 1
        await span.run(100)
        assert len(span.pager.got) == 1
        assert owner.store.pending() == 0

    async def test_a_healthy_job_is_handed_over_without_a_word(self, span: Span) -> None:
        first = span.hub("one")
        two_nodes(span, Recording("job", 4, 100.0, trains(90)))
        await span.run(20)
        second = span.hub("two")
        await span.run(40)
        assert len(first.daemon.parts) == len(second.daemon.parts) == PARTITIONS // 2
        await first.daemon.leases.leave()
        first.dead = True
        await span.run(90)
        assert span.pager.got == []
        assert len(second.daemon.parts) == PARTITIONS

    @given(pauses=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 120), st.integers(1, 60)), max_size=6))
    @settings(max_examples=20)
    async def test_no_partition_ever_has_two_owners(
        self, replayer: Replayer, pauses: list[tuple[int, int, int]]
    ) -> None:
        with Span(replayer) as span:
            all_leases = [Leases(Link(span.server), f"hub{n}", span.clock) for n in range(3)]
            for t in range(150):
                span.clock._now = float(t)
                for number, leases in enumerate(all_leases):
                    if any(who == number and at <= t < at + long for who, at, long in pauses) or t % 4:
                        continue
                    list(leases.lost())
                    await leases.renew()
                    free, excess = await leases.share()
                    for part in excess:
                        await leases.release(part)
                    for part in free:
                        await leases.take(part)
                for part in range(PARTITIONS):
                    assert sum(leases.has(part) for leases in all_leases) <= 1
            if not any(at + long > 100 for _, at, long in pauses):
                assert sorted(part for leases in all_leases for part in leases.held) == list(range(PARTITIONS))
                assert max(len(leases.held) for leases in all_leases) <= 6

    def test_a_lease_is_given_up_before_the_broker_forgets_it(self) -> None:
        assert SAFE < TTL - 2.0


class TestNodes:
    async def test_a_silent_node_is_unheard_never_hung(self, span: Span) -> None:
        hub = span.hub()
        two_nodes(span, Recording("job", 4, 150.0, trains(100)))
        await span.run(20)
        span.nodes[1].dead = True  # its denpexd; the job trains on
        await span.run(100)
        assert span.pager.got == []
        ranks = hub.pipeline.job("job").core.job.ranks
        assert [ranks[r].heard for r in range(4)] == [True, True, False, False]
        assert hub.daemon.counts()["nodes"] == {"heard": 1, "silent": 1, "left": 0}

    async def test_it_is_heard_again(self, span: Span) -> None:
        hub = span.hub()
        two_nodes(span, Recording("job", 4, 150.0, trains(100)))
        await span.run(20)
        span.nodes[1].paused = True
        await span.run(70)
        span.nodes[1].paused = False
        await span.run(90)
        assert all(state.heard for r, state in hub.pipeline.job("job").core.job.ranks.items() if r >= 0)
        assert span.pager.got == []

    async def test_a_gap_in_the_rows_of_a_node_is_counted(self, span: Span) -> None:
        hub = span.hub()
        two_nodes(span, crash())
        await span.run(10)
        span.server.up = False
        await span.run(14)
        span.nodes[0].uplink._spool._most = 1  # no room: the oldest go
        await span.run(18)
        span.server.up = True
        await span.run(ENDS)
        assert span.nodes[0].uplink.counts()["messages"]["dropped"] > 0
        assert hub.daemon.counts()["messages"]["lost"] > 0


class TestSpool:
    def test_what_was_not_sent_is_there_after_a_restart(self, span: Span) -> None:
        machine = Machine(span, "one")
        spool = Spool(machine.store, "run1", 1 << 20).open(0.0)
        spool.add("job", [Frames(1.0, 0, "py-spy", ())], urgent=True)
        machine.store.commit(positions={"f": "1"}, beside=spool.cut(0.0))
        spool.written()
        machine.close()
        again = Machine(span, "one")
        [row] = Spool(again.store, "run2", 1 << 20).open(0.0).waiting
        assert (row.start, row.number, row.job) == ("run1", 1, "job")
        again.close()

    def test_what_the_broker_has_is_forgotten_with_the_next_transaction(self, span: Span) -> None:
        machine = Machine(span, "one")
        spool = Spool(machine.store, "run1", 1 << 20).open(0.0)
        spool.add("job", [Frames(1.0, 0, "py-spy", ())], urgent=True)
        machine.store.commit(beside=spool.cut(0.0))
        spool.written()
        spool.sent(list(spool.waiting))
        machine.store.commit(beside=spool.cut(0.0))
        assert machine.store.rows("SELECT * FROM spool") == []
        assert spool.cut(0.0) is None
        machine.close()

    def test_secrets_do_not_travel(self, span: Span) -> None:
        machine = Machine(span, "one")
        spool = Spool(machine.store, "run1", 1 << 20).open(0.0)
        token = "hf_" + "aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3z"
        spool.add("job", [Frames(1.0, 0, "py-spy", (Frame("f", f"--token={token}", 1),))], urgent=True)
        machine.store.commit(beside=spool.cut(0.0))
        spool.written()
        assert token not in spool.waiting[0].lines
        machine.close()
