"""Who told the job to stop, who killed it, how often it was started again, and what an OOM message's numbers say."""

from dataclasses import replace

import pytest

from denpexd.core.correlate import Correlator
from denpexd.core.events import UNKNOWN_RANK, Closed, Exit, Fact, Joined, Opened, Output, Tick
from denpexd.core.rule import Signal
from denpexd.core.state import JobState

from .jobs import TINY, World, fact, line
from .test_core_facts import raised

OLD_OOM = "CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 39.59 GiB total capacity; {})"
NEW_OOM = "CUDA out of memory. Tried to allocate 224.00 MiB. GPU 2 has a total capacity of 79.33 GiB of which {}"
IN_TORCH = (
    "Of the allocated memory {} GiB is allocated by PyTorch, and 102.00 MiB is reserved by PyTorch but unallocated."
)


def told(by: str, **more: str | float) -> Signal:
    return fact("told_to_stop", by=by, **more)


def failed(rank: int, pid: int, code: int = 1, agent: str = "7") -> Fact:
    return Fact(0.0, rank, "attempt_failed", {"pid": str(pid), "code": str(code), "agent": agent}, "job.stderr")


def running() -> World:
    return World().steps(0, 1, 2, 3)


def test_a_job_that_is_told_to_stop_blames_no_rank() -> None:
    assert running().at(11.0, line(0, "launcher_told")).who(told("launcher")) == [UNKNOWN_RANK]


def test_training_that_goes_on_was_not_stopped() -> None:
    world = running().at(11.0, line(0, "launcher_told"))
    world.at(20.0, line(0, "step", {"step": "20"}))
    assert world.who(told("launcher")) == []


def test_what_failed_before_explains_more_and_what_fails_later_is_the_consequence() -> None:
    assert running().at(10.5, Exit(0.0, 1, -11)).at(11.0, line(0, "launcher_told")).who(told("launcher")) == []
    assert running().at(11.0, line(0, "launcher_told")).at(12.0, Exit(0.0, 1, 1)).who(told("launcher")) != []


def test_a_job_that_stood_still_was_stopped_by_something_else() -> None:
    assert running().at(400.0, line(0, "launcher_told")).who(told("launcher"), now=410.0) == []


def test_a_worker_that_is_told_counts_only_where_nothing_failed() -> None:
    world = running().at(11.0, line(0, "worker_told"))
    assert world.who(told("signal")) == [UNKNOWN_RANK]
    world.at(11.5, Exit(0.0, 0, -15))
    world.at(30.0, Exit(0.0, 1, -9))  # it did not stop in time
    assert world.who(told("signal")) == [UNKNOWN_RANK]
    world.at(31.0, raised(2, ("ValueError", "bad sample")))
    assert world.who(told("signal")) == []


def test_a_worker_that_its_own_launcher_stops_says_nothing_about_the_job() -> None:
    stopping = Fact(0.0, UNKNOWN_RANK, "launcher_killing", {"signal": "SIGTERM"})
    assert running().at(10.5, stopping).at(11.0, line(0, "worker_told")).who(told("signal")) == []
    assert running().at(10.5, line(0, "rescaled")).at(11.0, line(0, "worker_told")).who(told("signal")) == []


def test_a_container_stopped_for_its_health_check_is_told_of_and_has_not_failed_by_itself() -> None:
    world = running().at(11.0, line(1, "unhealthy"))
    assert world.who(told("probe")) == []  # it may train on until it is killed
    world.at(30.0, line(1, "step", {"step": "30"})).at(41.0, Exit(0.0, 1, 137))
    world.at(42.0, line(0, "lost"), line(2, "lost"), line(3, "lost"))
    assert world.who(told("probe"), now=50.0) == [1]
    assert world.who(fact("exit", signal=9), now=50.0) == []


def test_a_health_check_that_fails_in_a_job_that_stood_still_explains_nothing() -> None:
    world = running().at(400.0, line(1, "unhealthy")).at(430.0, Exit(0.0, 1, 137))
    assert world.who(told("probe"), now=440.0) == []


def test_a_job_that_was_done_is_not_stopped_any_more() -> None:
    world = running().at(11.0, line(0, "finished"), line(1, "finished")).at(20.0, line(0, "launcher_told"))
    assert world.who(told("launcher")) == []


def test_a_scale_event_is_worth_a_note_only_while_nothing_trains() -> None:
    world = running().at(11.0, line(0, "rescaled"))
    late = {"for": 600.0}
    assert world.who(told("rescaled", **late), now=100.0) == []
    assert world.who(told("rescaled", **late), now=700.0) == [UNKNOWN_RANK]
    world.at(60.0, line(0, "step", {"step": "60"}))
    assert world.who(told("rescaled", **late), now=700.0) == []


def test_a_node_that_is_reclaimed_is_known_by_its_name_or_by_those_who_miss_it() -> None:
    world = running().at(11.0, line(UNKNOWN_RANK, "reclaimed", {"node": "node-b.site"}))
    assert world.who(told("spot")) == []  # only a notice so far
    assert world.at(12.0, line(UNKNOWN_RANK, "launcher_told")).who(told("spot")) == [UNKNOWN_RANK]
    world.at(15.0, line(0, "lost"), line(1, "lost"))
    assert world.who(told("spot")) == [2, 3]
    world.job.rank(3).node = "node-b"
    world.at(16.0)
    world.job.seq += 1
    assert world.who(told("spot")) == [3]


def test_a_node_may_be_named_by_its_pod_or_its_address() -> None:
    world = running()
    for rank, (pod, ip) in enumerate([("w-0", "10.4.0.17"), ("w-0", "10.4.0.17"), ("w-1", "10.4.1.17"), ("w-2", "")]):
        world.at(10.0, line(rank, "step", {"step": "10", "pod": pod, "ip": ip}))
    assert world.at(11.0, line(UNKNOWN_RANK, "node_lost", {"node": "10.4.1.17"})).who(told("node_failure")) == [2]
    world.job.told.clear()
    world.job.seq += 1
    assert world.at(12.0, line(UNKNOWN_RANK, "node_lost", {"node": "w-0"})).who(told("node_failure")) == [0, 1]


@pytest.mark.parametrize(
    ("hosts", "lost"),
    [
        ({0: "a", 2: "b"}, [2, 3]),  # rank 3 has not told where it is: launchers number the ranks of a node in a row
        ({0: "a", 2: "b", 3: "a"}, [2]),
        ({1: "a", 2: "b"}, [2]),  # no blocks of one size
        ({2: "b"}, [2]),
    ],
)
def test_a_rank_of_unknown_place_is_where_its_block_is(hosts: dict[int, str], lost: list[int]) -> None:
    world = running()
    for rank, host in hosts.items():
        world.job.rank(rank).node = host
    assert world.at(11.0, line(UNKNOWN_RANK, "node_lost", {"node": "b"})).who(told("node_failure")) == lost


def test_a_report_of_two_lines_is_about_the_node_that_one_of_them_names() -> None:
    world = running().at(40.0, line(0, "lost"))
    world.job.rank(0).node, world.job.rank(2).node = "a", "b"
    world.at(50.0, line(UNKNOWN_RANK, "node_lost")).at(50.1, line(UNKNOWN_RANK, "node_lost", {"node": "b"}))
    assert world.who(told("node_failure")) == [2, 3]


def test_a_program_that_leaves_when_it_is_told_is_no_news_at_once() -> None:
    world = running().at(11.0, line(0, "worker_told"))
    assert world.who(told("signal")) == [UNKNOWN_RANK]
    assert world.at(20.0, line(0, "left")).who(told("signal")) == []


def test_addresses_that_begin_alike_are_different_nodes() -> None:
    world = running()
    for rank, node in enumerate(["10.4.0.17", "10.4.0.17", "10.4.1.17", "10.4.1.17"]):
        world.at(10.0, Joined(0.0, rank, node, 100 + rank))
    world.at(10.5, Joined(0.0, 3, "gpu-7", 103), Joined(0.0, 3, "10.4.1.17", 103))
    assert world.job.rank(3).node == "gpu-7"  # a name says more than an address
    assert world.at(11.0, line(UNKNOWN_RANK, "node_lost", {"node": "10.4.1.17"})).who(told("node_failure")) == [2, 3]


def test_a_lost_node_is_declared_after_its_peers_have_missed_it() -> None:
    world = running().at(40.0, line(0, "lost"), line(1, "lost")).at(41.0, Exit(0.0, 0, 1), Exit(0.0, 1, 1))
    world.at(900.0, line(0, "node_lost"))
    assert world.who(told("node_failure"), now=910.0) == [2, 3]
    world = running().at(40.0, Exit(0.0, 0, -11)).at(50.0, line(0, "node_lost"))
    assert world.who(told("node_failure"), now=60.0) == []


def test_a_notice_holds_while_training_goes_on_until_the_stop() -> None:
    world = running().at(11.0, line(3, "reclaimed", {"node": "x"}))
    world.at(60.0, line(0, "step", {"step": "60"}))
    assert world.who(told("spot"), now=70.0) == []
    world.at(61.0, line(0, "lost"), line(1, "lost"))
    assert world.who(told("spot"), now=70.0) == [2, 3]


def test_exit_codes_after_a_stop_that_was_asked_for_are_no_failure() -> None:
    world = running().at(11.0, line(0, "pressed")).at(12.0, Exit(0.0, 0, 1), Exit(0.0, 1, -9), Exit(0.0, 2, -11))
    assert world.who(fact("exit", failed=True)) == []
    assert world.who(fact("exit", signal=9)) == []
    assert world.who(fact("exit", signal=11)) == [2]
    assert running().at(12.0, Exit(0.0, 1, 1)).who(fact("exit", failed=True)) == [1]


def test_an_abort_that_explains_itself_is_not_unexplained() -> None:
    silent = fact("exit", signal=6, unexplained=True)
    assert running().at(12.0, Exit(0.0, 1, -6)).who(silent) == [1]
    assert running().at(11.0, line(1, "lost")).at(12.0, Exit(0.0, 1, -6)).who(silent) == []
    assert running().at(11.0, line(1, "counters")).at(12.0, Exit(0.0, 1, -6)).who(silent) == []
    assert running().at(11.0, line(1, "counters")).at(60.0, Exit(0.0, 1, -6)).who(silent) == [1]


def test_an_oom_kill_is_about_the_process_that_was_killed() -> None:
    slurm = fact("oom_killed", by="slurm")
    world = running().at(11.0, line(UNKNOWN_RANK, "slurm_oom"))
    assert world.who(slurm) == []
    assert world.at(12.0, Exit(0.0, 2, -9, "launcher")).who(slurm) == [2]
    assert running().at(11.0, line(1, "slurm_oom")).at(12.0, line(0, "lost")).who(slurm) == [1]
    world = running().at(11.0, line(1, "slurm_oom")).at(12.0, Exit(0.0, 2)).at(13.0, line(0, "lost"))
    assert world.who(slurm) == [1, 2]


@pytest.mark.parametrize(("text", "by"), [("Memory cgroup out of memory", "cgroup"), ("Out of memory", "kernel")])
def test_the_kernel_says_whose_limit_it_was(text: str, by: str) -> None:
    world = running().at(11.0, Fact(0.0, 1, "oom_killed", text=text))
    assert world.who(fact("oom_killed", by=by)) == [1]
    assert world.who(fact("oom_killed")) == [1]
    assert world.who(fact("oom_killed", by="slurm")) == []


def test_three_attempts_that_end_the_same_way_are_a_loop_of_the_rank_that_failed_first() -> None:
    loop = fact("restarted", times=3)
    world = World().at(5.0, failed(1, 101)).at(8.0, failed(0, 102))
    assert world.who(loop) == []
    world.at(11.0, failed(0, 103)).at(11.5, failed(0, 103))
    assert world.who(loop) == [1]
    assert "3 attempts" in world.evidence(1, loop)[0].text


def test_attempts_of_other_launchers_codes_or_hours_are_no_loop() -> None:
    loop = fact("restarted", times=3)
    assert World().at(5.0, failed(1, 1)).at(6.0, failed(1, 2, agent="8")).at(7.0, failed(1, 3)).who(loop) == []
    assert World().at(5.0, failed(1, 1)).at(6.0, failed(1, 2, code=-9)).at(7.0, failed(1, 3)).who(loop) == []
    assert World().at(5.0, failed(1, 1)).at(9000.0, failed(1, 2)).at(9001.0, failed(1, 3)).who(loop, 9002.0) == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (OLD_OOM.format("25.10 GiB already allocated; 1.20 GiB free; 36.00 GiB reserved in total by PyTorch"), "f"),
        (OLD_OOM.format("35.10 GiB already allocated; 1.20 GiB free; 36.00 GiB reserved in total by PyTorch"), ""),
        (OLD_OOM.format("5.10 GiB already allocated; 1.20 GiB free; 5.20 GiB reserved in total by PyTorch"), "o"),
        (NEW_OOM.format("101.38 MiB is free. Process 911223 has 71.20 GiB memory in use."), "o"),
        (NEW_OOM.format("10.00 MiB is free. Process 9 has 500.00 MiB memory in use."), ""),
        (NEW_OOM.format("1.20 GiB is free. Process 12 has 77.89 GiB memory in use. " + IN_TORCH.format(70.1)), ""),
        (
            NEW_OOM.format(
                "10.00 MiB is free. Process 7 has 30.10 GiB memory in use. Process 8 has 49.00 GiB memory in use. "
                + IN_TORCH.format(46.2)
            ),
            "o",
        ),
        (NEW_OOM.format("1.20 GiB is free. Process 9 has 70.00 GiB memory in use. " + IN_TORCH.format(71.4)), "o"),
        (NEW_OOM.format("10.00 MiB is free. 40.69 GiB is reserved by PyTorch but unallocated."), "f"),
        (NEW_OOM.format("10.00 MiB is free. 80.69 MiB is reserved by PyTorch but unallocated."), ""),
        (NEW_OOM.format("1.2.3 GiB is free."), ""),
        ("Tried to allocate 2.00 GiB", ""),
    ],
)
def test_the_numbers_say_whose_memory_was_missing(text: str, why: str) -> None:
    world = running().at(11.0, raised(1, ("OutOfMemoryError", text)))
    assert world.who(fact("gpu_memory", why="fragmented")) == ([1] if why == "f" else [])
    assert world.who(fact("gpu_memory", why="other_process")) == ([1] if why == "o" else [])


def test_a_line_that_is_no_traceback_has_numbers_too() -> None:
    text = NEW_OOM.format("101.38 MiB is free. Process 911223 has 71.20 GiB memory in use.")
    world = running().at(11.0, replace(line(1, "out_of_room"), text=text))
    assert world.who(fact("gpu_memory", why="other_process")) == [1]


def test_only_so_much_is_remembered() -> None:
    world = running()
    for n in range(300):
        world.at(11.0 + n, line(0, "worker_told"), failed(0, n))
    assert len(world.job.told["signal"]) <= 64
    assert len(world.job.rounds) <= 64
    assert isinstance(world.job, JobState)


def test_the_same_failure_after_a_restart_of_the_launcher_is_one_incident() -> None:
    core = Correlator(TINY, "job", world_size=2)
    told: list[Output] = []

    def attempt(start: float, pid: int) -> None:
        for n in range(1, 5):
            told.extend(core.feed([replace(line(r, "step", {"step": str(n)}), t=start + n) for r in (0, 1)]))
        error = replace(raised(1, ("ValueError", "bad sample")), t=start + 5)
        told.extend(core.feed([error, replace(failed(1, pid), t=start + 6), Exit(start + 6, 1, 1, "launcher")]))
        for second in range(40):
            told.extend(core.feed([Tick(start + 6 + second)]))

    attempt(0.0, 101)
    attempt(60.0, 102)
    stops = [(type(one), one.verdict) for one in told if isinstance(one, Opened | Closed)]
    assert [kind for kind, _ in stops] == [Opened, Closed, Opened]
    assert len({str(verdict["key"]) for _, verdict in stops}) == 1
    assert [verdict["revision"] for _, verdict in stops] == [1, 2, 3]
