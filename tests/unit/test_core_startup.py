"""Facts about ranks that are not there, and about what is stated of ranks; roles that speak about absence."""

from dataclasses import replace

import pytest

from denpexd.catalog.load import load, shipped_rules
from denpexd.catalog.patterns import compile_pattern
from denpexd.core.cadence import Limits
from denpexd.core.events import UNKNOWN_RANK, Exit, Frame, Frames, Hit, Joined, Raised
from denpexd.core.facts import holds
from denpexd.core.intake import Intake
from denpexd.core.match import candidate
from denpexd.core.rule import Correlation, Role, Signal
from denpexd.core.state import JobState

SHIPPED, _ = load([shipped_rules()], strict=False)
RENDEZVOUS = SHIPPED.rules["rendezvous-timeout"]
GAVE_UP = "startup.rendezvous_timed_out"
COUNT = "startup.clients_timed_out"
DOCKER = compile_pattern("^docker")


class World:
    def __init__(self, world_size: int | None = 4) -> None:
        self.job = JobState("job", 0.0, world_size=world_size)
        self.intake = Intake(SHIPPED, self.job)

    def line(self, t: float, rank: int, signal: str, **fields: str) -> "World":
        self.job.seq += 1
        self.intake.hit(Hit(t, rank, signal, "log", 0, signal, fields))
        return self

    def who(self, fact: str, now: float = 50.0, **params: str | int) -> list[int]:
        signal = Signal("own.x", "fact", "because", fact=fact, params=params)
        known = [(r, self.job.rank(r)) for r in sorted({*self.job.universe, *self.job.ranks})]
        return [r for r, state in known if holds(self.job, state, signal, now, 3600.0, Limits())]


@pytest.fixture
def world() -> World:
    return World()


def heard(world: World, *ranks: int) -> World:
    for rank in ranks:
        world.line(1.0, rank, "phase.init")
    return world


def test_a_count_names_the_rank_that_was_never_heard(world: World) -> None:
    heard(world, 0, 1, 3)
    assert world.who("missing_rank") == []
    world.line(30.0, 0, COUNT, joined="3", world="4")
    assert world.who("missing_rank") == [2]


def test_a_count_that_does_not_fit_what_was_heard_names_nobody(world: World) -> None:
    heard(world, 0)
    world.line(30.0, 0, COUNT, joined="3", world="4")
    assert world.who("missing_rank") == []


def test_ranks_that_the_store_missed_are_missing_also_after_they_gave_up_to_reach_it(world: World) -> None:
    heard(world, 0, 1, 2, 3)
    for rank in (0, 1):
        world.line(30.0, rank, COUNT, joined="2", world="4")
    assert world.who("missing_rank") == [2, 3]
    for rank in (2, 3):
        world.line(40.0, rank, "startup.connect_gave_up")
    assert world.who("missing_rank") == [2, 3]


def test_a_launcher_counts_nodes(world: World) -> None:
    heard(world, 0, 1)
    world.line(30.0, UNKNOWN_RANK, COUNT, joined="1", world="2")
    assert world.who("missing_rank") == [2, 3]


def test_nodes_are_whole(world: World) -> None:
    heard(world, 0, 2)
    world.line(30.0, UNKNOWN_RANK, COUNT, joined="1", world="2")
    assert world.who("missing_rank") == []


def test_without_a_count_a_minority_that_does_not_wait_is_missing(world: World) -> None:
    heard(world, 0, 1, 2, 3)
    for rank in (0, 1, 3):
        world.line(30.0, rank, "startup.start_wait_timed_out")
    assert world.who("missing_rank") == [2]


def test_half_of_the_ranks_is_no_minority(world: World) -> None:
    heard(world, 0, 1)
    for rank in (0, 1):
        world.line(30.0, rank, "startup.start_wait_timed_out")
    assert world.who("missing_rank") == []


def test_a_store_that_cannot_be_reached_accuses_rank_0_only_if_it_was_never_heard(world: World) -> None:
    for rank in (1, 2, 3):
        world.line(30.0, rank, "startup.connect_gave_up")
    assert world.who("missing_rank") == [0]
    heard(world, 0)
    assert world.who("missing_rank") == []


def test_an_address_without_a_route_accuses_nobody(world: World) -> None:
    heard(world, 1, 2, 3)
    for rank in (1, 2, 3):
        world.line(30.0, rank, "torch.unroutable").line(31.0, rank, "startup.connect_gave_up")
    assert world.who("missing_rank") == []


def test_stacks_at_the_start_count_only_beyond_the_budget(world: World) -> None:
    heard(world, 0, 1, 2)
    at = Frame("init_process_group", "torch/distributed/distributed_c10d.py", 1)
    for t in (60.0, 70.0):
        for rank in (0, 1, 2):
            world.intake.frames(Frames(t, rank, "py-spy", (at,)))
    assert world.who("missing_rank", now=100.0) == []
    assert world.who("missing_rank", now=1300.0) == [3]


def test_training_jobs_miss_nobody(world: World) -> None:
    heard(world, 0, 1, 3)
    world.job.trained_t = 20.0
    world.line(30.0, 0, COUNT, joined="3", world="4")
    assert world.who("missing_rank") == []


def test_who_reports_nothing_while_others_do(world: World) -> None:
    heard(world, 0, 1, 2)
    assert world.who("unreported") == []
    world.line(30.0, 1, "torch.peer_lost")
    assert world.who("unreported") == [0, 2, 3]
    world.intake.exit(Exit(40.0, 2, 0))
    assert world.who("unreported") == [0, 3]


def test_a_peer_is_named_by_host_or_address(world: World) -> None:
    world.intake.joined(Joined(0.0, 0, node="node-a.local"))
    world.line(1.0, 1, "nccl.interface", host="node-b", address="10.0.0.4")
    world.line(30.0, 2, "nccl.socket_closed", peer="node-a<4711>")
    assert world.who("named_peer") == [0]


def test_a_rank_has_its_number(world: World) -> None:
    assert world.who("rank_is", number=2) == [2]


def stated(world: World, *values: str) -> None:
    for rank, value in enumerate(values):
        world.line(10.0, rank, COUNT, version=value)


def test_who_differs_from_a_majority_in_what_it_says(world: World) -> None:
    stated(world, "a", "a", "b", "a")
    assert world.who("stated_odd", name="version") == [2]
    assert world.who("stated_differs", name="version") == [0, 1, 2, 3]
    assert world.who("stated_same", name="version") == [0, 1, 3]


def test_what_is_stated_of_a_rank_is_compared_with_a_pattern(world: World) -> None:
    stated(world, "eth0", "docker0", "br-17", "ens5")
    signal = Signal("own.x", "fact", "", fact="stated", params={"name": "version"}, param_matchers={"value": DOCKER})
    found = {r: holds(world.job, world.job.rank(r), signal, 1e6, 60.0, Limits()) for r in range(4)}
    assert [r for r in found if found[r]] == [1]


def test_settings_are_compared_among_those_that_tell(world: World) -> None:
    for rank, value in ((0, "Ring"), (1, "Ring"), (2, "Tree")):
        world.line(4.0, rank, "nccl.setting", setting="NCCL_ALGO", setting_value=value)
    assert (world.who("setting_odd"), world.who("settings_differ")) == ([2], [0, 1, 2])
    world.line(5.0, 3, "nccl.interface", interface="eth0")
    assert world.who("setting_odd") == []  # two of four agree: no majority
    assert world.who("several_nodes") == []


def test_halves_name_no_side(world: World) -> None:
    stated(world, "a", "b", "a", "b")
    assert world.who("stated_odd", name="version") == []
    assert world.who("stated_differs", name="version") == [0, 1, 2, 3]


def test_lines_that_compare_two_ranks_state_both(world: World) -> None:
    for rank in (0, 1, 3):
        world.line(9.0, rank, COUNT, rank_a=str(rank), count_a="2", rank_b="2", count_b="4")
    assert world.who("stated_odd", name="count") == [2]


def test_the_same_device_on_different_nodes_is_not_shared(world: World) -> None:
    world.intake.joined(Joined(0.0, 0, node="a"))
    world.intake.joined(Joined(0.0, 1, node="b"))
    world.line(1.0, 0, COUNT, gpu="0").line(1.0, 1, COUNT, gpu="0")
    assert world.who("stated_same", name="gpu") == []


def judge(world: World, *roles: Role, initiating: tuple[str, ...] = ()) -> tuple[int, ...] | None:
    rule = replace(RENDEZVOUS, correlation=Correlation(roles, initiating=initiating))
    found = candidate(rule, SHIPPED.signals, world.job, 50.0, Limits())
    return None if found is None else found.initiating


def test_a_launcher_role_is_about_the_launcher_only(world: World) -> None:
    launcher = Role("launcher", "launcher", any_of=((GAVE_UP,),))
    assert judge(world, launcher) is None
    world.line(30.0, 1, GAVE_UP)
    assert judge(world, launcher) is None
    world.line(31.0, UNKNOWN_RANK, GAVE_UP)
    assert judge(world, launcher) == ()


def test_a_role_of_none_forbids(world: World) -> None:
    waiting, nobody = Role("waiting", "any", any_of=((GAVE_UP,),)), Role("nobody", "none", any_of=((COUNT,),))
    world.line(30.0, 1, GAVE_UP)
    assert judge(world, nobody, waiting, initiating=("waiting",)) == (1,)
    world.line(30.0, 2, COUNT)
    assert judge(world, nobody, waiting) is None


def test_a_role_about_absence_may_hold_ranks_that_were_never_heard(world: World) -> None:
    heard(world, 0, 1, 3)
    world.line(30.0, 0, COUNT, joined="3", world="4")
    roles = RENDEZVOUS.correlation.roles if RENDEZVOUS.correlation else ()
    assert judge(world, *roles, initiating=("missing",)) == (2,)


def test_errors_of_all_ranks_of_a_node_and_of_no_other(world: World) -> None:
    def fail(rank: int) -> None:
        world.job.seq += 1
        world.intake.raised(Raised(9.0, rank, "log", 0, "x", (("AttributeError", "no"),), (), uncaught=True))

    fail(2)
    assert world.who("whole_nodes") == []
    fail(3)
    assert world.who("whole_nodes") == [2, 3]
    fail(1)
    assert world.who("whole_nodes") == []


def test_known_nodes_decide_which_ranks_belong_together(world: World) -> None:
    for rank, node in enumerate("abab"):
        world.intake.joined(Joined(0.0, rank, node=node))
    for rank in (0, 2):
        world.intake.raised(Raised(9.0, rank, "log", 0, "x", (("ImportError", "no"),), (), uncaught=True))
    assert world.who("whole_nodes") == [0, 2]


def test_a_loop_that_reached_its_end_is_complete_whatever_follows(world: World) -> None:
    state = world.job.rank(1)
    state.step, state.total, state.phase = 690, 690, "checkpoint"
    world.line(5.0, 2, "phase.end").line(6.0, 2, "phase.checkpoint")
    assert world.who("complete") == [1, 2]
