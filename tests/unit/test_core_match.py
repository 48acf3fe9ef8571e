"""One rule against the state of a job: which ranks started it, which are victims, and how sure that is."""

from dataclasses import replace

import pytest

from denpexd.core.cadence import Limits
from denpexd.core.candidate import Candidate
from denpexd.core.events import UNKNOWN_RANK, Activity, Exit, Fact, Frame, Frames
from denpexd.core.match import candidate
from denpexd.core.rule import Correlation, Role

from .jobs import TINY, World, line, raised


class Judged(World):
    """What the ranks of a job have shown, judged by one rule of the tiny catalogue."""

    def judge(self, rule: str, correlation: Correlation | None = None, now: float = 100.0) -> Candidate | None:
        known = TINY.rules[rule]
        if correlation is not None:
            known = replace(known, correlation=correlation)
        return candidate(known, TINY.signals, self.job, now, Limits())

    def found(self, rule: str, correlation: Correlation | None = None, now: float = 100.0) -> Candidate:
        it = self.judge(rule, correlation, now)
        assert it is not None
        return it


def dump(rank: int, *functions: str) -> Frames:
    """A stack that the program printed: no second look needed."""
    return Frames(0.0, rank, "faulthandler", tuple(Frame(f.split()[0], f.split()[1]) for f in functions))


def heard(*ranks: int) -> list[Activity]:
    return [Activity(0.0, rank, f"rank{rank}", 1) for rank in ranks]


@pytest.fixture
def world() -> Judged:
    return Judged()


# --- local failures ---------------------------------------------------------------------------------------------------


def test_whoever_showed_it_first_started_it_and_everyone_else_is_a_victim(world: Judged) -> None:
    c = world.at(10.0, raised(2)).at(20.0, line(0, "lost"), line(1, "lost")).at(21.0, raised(0)).found("any-error")
    assert (c.initiating, c.collateral) == ((2,), (0, 1, 3))
    assert (c.cause_t, c.fatal) == (10.0, True)


def test_ranks_that_fail_within_two_seconds_failed_together(world: Judged) -> None:
    world.at(10.0, raised(2)).at(10.5, line(3, "lost")).at(12.0, raised(0)).at(12.1, raised(1))
    assert world.found("any-error").initiating == (0, 2)


def test_later_ones_count_while_nobody_had_reported_a_lost_peer(world: Judged) -> None:
    world.at(10.0, raised(2)).at(25.0, raised(0)).at(26.0, line(3, "lost")).at(27.0, raised(1))
    assert world.found("any-error").initiating == (0, 2)


def test_half_a_minute_later_is_another_failure(world: Judged) -> None:
    world.at(10.0, raised(2)).at(40.5, raised(0))
    assert world.found("any-error").initiating == (2,)


def test_victims_that_raise_after_they_reported_a_lost_peer_are_not_initiating(world: Judged) -> None:
    world.at(9.9, line(1, "lost")).at(10.0, raised(1)).at(10.1, raised(0))
    assert world.found("any-error").initiating == (0,)


def test_where_all_had_reported_a_lost_peer_nobody_started_it_here(world: Judged) -> None:
    world.at(9.0, line(1, "lost")).at(10.0, raised(1))
    assert world.judge("any-error") is None


def test_a_line_of_an_unknown_rank_names_nobody_without_a_launcher(world: Judged) -> None:
    c = world.at(10.0, line(UNKNOWN_RANK, "bad-file.printed")).found("bad-file")
    assert (c.initiating, c.collateral) == ((), ())


def test_a_line_of_an_unknown_rank_is_placed_by_the_launchers_root_cause(world: Judged) -> None:
    world.at(10.0, line(UNKNOWN_RANK, "bad-file.printed"), Fact(0.0, 3, "launcher_root"))
    assert world.found("bad-file").initiating == (3,)


def test_a_line_of_an_unknown_rank_is_placed_by_the_traceback_that_it_stands_in(world: Judged) -> None:
    driver = f"rank{UNKNOWN_RANK}"
    world.at(10.0, line(UNKNOWN_RANK, "bad-file.printed"), replace(raised(2), source=driver), raised(1))
    assert world.found("bad-file").initiating == (2,)


def test_the_launchers_root_cause_decides_between_exits_that_only_it_reports(world: Judged) -> None:
    world.at(10.0, Exit(0.0, 0, 1, "launcher"), Exit(0.0, 2, 1, "launcher"), Exit(0.0, 3, 1, "launcher"))
    assert world.found("any-error").initiating == (0, 2, 3)
    world.at(10.0, Fact(0.0, 2, "launcher_root"))
    assert world.found("any-error").initiating == (2,)


def test_the_launchers_word_alone_about_a_rank_whose_log_is_not_there_decides_nothing(world: Judged) -> None:
    world.at(1.0, Activity(0.0, 0, "rank0", 9))
    world.at(10.0, Exit(0.0, 3, 1, "launcher"), Fact(0.0, 3, "launcher_root"))
    found = world.found("any-error")
    assert (found.initiating, found.certainty) == ((3,), "undetermined")
    world.at(10.5, Activity(0.0, 3, "rank3", 9))
    assert world.found("any-error").certainty == "likely"


def test_the_launchers_root_cause_is_used_only_when_nothing_better_speaks(world: Judged) -> None:
    world.at(10.0, raised(1), Exit(0.0, 1, 1, "launcher")).at(11.0, Exit(0.0, 2, 1, "launcher"))
    world.at(11.0, Fact(0.0, 2, "launcher_root"))
    assert world.found("any-error").initiating == (1,)


def test_an_exception_and_the_end_of_its_process_confirm_each_other(world: Judged) -> None:
    world.at(10.0, raised(1))
    assert world.found("any-error").certainty == "likely"
    assert world.at(11.0, Exit(0.0, 1, None)).found("any-error").certainty == "confirmed"


def test_a_victims_report_is_a_second_witness(world: Judged) -> None:
    world.at(10.0, raised(1)).at(11.0, line(0, "lost"))
    assert world.found("any-error").certainty == "confirmed"


def test_two_ranks_that_say_the_same_confirm_each_other(world: Judged) -> None:
    assert world.at(10.0, line(0, "full-disk.printed")).found("full-disk").certainty == "likely"
    assert world.at(10.5, line(1, "full-disk.printed")).found("full-disk").certainty == "confirmed"


def test_a_failure_whose_rank_is_not_known_is_never_confirmed(world: Judged) -> None:
    world.at(10.0, line(UNKNOWN_RANK, "bad-file.printed")).at(11.0, line(0, "lost"))
    assert world.found("bad-file").certainty == "likely"


def test_an_exit_code_alone_is_never_certain(world: Judged) -> None:
    world.at(10.0, Exit(0.0, 1, -9)).at(11.0, line(0, "lost"))
    assert world.found("killed").certainty == "likely"


def test_handled_errors_are_not_fatal(world: Judged) -> None:
    assert not world.at(10.0, raised(1, uncaught=False)).found("any-error").fatal


def test_a_candidate_is_history_if_all_of_its_evidence_is(world: Judged) -> None:
    assert world.at(1.0, line(1, "bad-file.printed", history=True)).found("bad-file").history
    assert not world.at(2.0, line(1, "bad-file.printed")).found("bad-file").history


# --- sets of ranks ----------------------------------------------------------------------------------------------------


def only(ranks: str) -> Correlation:
    return Correlation((Role("them", ranks, any_of=(("bad-file.printed",),)),), initiating=("them",))


@pytest.mark.parametrize(
    ("ranks", "counts"),
    [
        ("one", [1]),
        ("minority", [1, 2]),
        ("majority", [3, 4]),
        ("any", [1, 2, 3, 4]),
        ("all", [4]),
        ("maybe", [1, 2, 3, 4]),
    ],
)
def test_how_many_ranks_may_fit_a_role(ranks: str, counts: list[int]) -> None:
    fitting = []
    for count in range(5):
        world = Judged().at(1.0, *heard(0, 1, 2, 3), *(line(r, "bad-file.printed") for r in range(count)))
        if world.judge("bad-file", only(ranks)) is not None:
            fitting.append(count)
    assert fitting == counts


def test_roles_are_disjoint_and_assigned_in_order(world: Judged) -> None:
    printed = (("bad-file.printed",),)
    roles = (Role("first", "any", any_of=printed), Role("second", "maybe", any_of=printed), Role("others", "rest"))
    world.at(1.0, *heard(0, 1, 2, 3), line(1, "bad-file.printed"), line(2, "bad-file.printed"))
    c = world.found("bad-file", Correlation(roles, initiating=("first",), collateral=("second", "others")))
    assert c.roles == {"first": (1, 2), "second": (), "others": (0, 3)}
    assert (c.initiating, c.collateral) == ((1, 2), (0, 3))


def test_the_rest_binds_only_ranks_that_were_heard(world: Judged) -> None:
    world.at(1.0, dump(0, "exchange layer.py"), dump(1, "barrier d.py"))
    c = world.found("lonely-eval")
    assert (c.initiating, c.collateral) == ((0,), (1, 2, 3))
    world.at(2.0, dump(2, "exchange layer.py"), dump(3, "exchange layer.py"))
    assert world.judge("lonely-eval") is None


def test_a_group_of_signals_must_hold_together(world: Judged) -> None:
    together = (("bad-file.printed", "full-disk.printed"),)
    correlation = Correlation((Role("them", "any", any_of=together),), initiating=("them",))
    world.at(1.0, line(0, "bad-file.printed"), line(1, "full-disk.printed"))
    assert world.judge("bad-file", correlation) is None
    world.at(1.0, line(0, "full-disk.printed"))
    assert world.found("bad-file", correlation).initiating == (0,)


def test_all_of_and_none_of_bind_the_same_rank(world: Judged) -> None:
    role = Role("them", "any", all_of=("bad-file.printed", "line.told_to_stop"), none_of=("line.lost",))
    correlation = Correlation((role,), initiating=("them",))
    world.at(1.0, *(line(r, s) for r in (0, 1) for s in ("bad-file.printed", "told_to_stop")), line(1, "lost"))
    world.at(1.0, line(2, "bad-file.printed"))
    assert world.found("bad-file", correlation).initiating == (0,)


def order() -> Correlation:
    first, second = (
        Role("a", "any", any_of=(("bad-file.printed",),)),
        Role("b", "any", any_of=(("full-disk.printed",),)),
    )
    return Correlation((first, second), order=("a", "b"), initiating=("a",))


def test_order_compares_the_first_evidence_of_roles() -> None:
    before = Judged().at(1.0, line(0, "bad-file.printed")).at(2.0, line(1, "full-disk.printed"))
    assert before.judge("bad-file", order()) is not None
    after = Judged().at(1.0, line(1, "full-disk.printed")).at(2.0, line(0, "bad-file.printed"))
    assert after.judge("bad-file", order()) is None
    same = Judged().at(1.0, line(1, "full-disk.printed"), line(0, "bad-file.printed"))
    assert same.judge("bad-file", order()) is None


def test_signals_are_remembered_for_the_window_of_the_rule(world: Judged) -> None:
    world.at(1.0, line(0, "bad-file.printed"))
    short = replace(only("any"), window=50.0)
    assert world.judge("bad-file", short, now=50.0) is not None
    assert world.judge("bad-file", short, now=52.0) is None


def test_a_correlated_verdict_is_confirmed_by_independent_witnesses_that_agree(world: Judged) -> None:
    world.at(1.0, *(dump(r, "barrier d.py") for r in (1, 2, 3)), dump(0, "exchange layer.py"))
    assert world.found("lonely-eval").certainty == "likely"
    world.at(2.0, dump(0, "exchange layer.py", "evaluate train.py"))
    assert world.found("lonely-eval").certainty == "likely"  # still one witness
    world.at(3.0, line(0, "evaluating"))
    assert world.found("lonely-eval").certainty == "confirmed"


def test_ranks_that_were_never_heard_cap_the_certainty(world: Judged) -> None:
    world.at(3.0, line(0, "evaluating"), dump(0, "exchange layer.py"), dump(1, "barrier d.py"), *heard(2))
    assert world.found("lonely-eval").certainty == "likely"
    assert world.at(4.0, *heard(3)).found("lonely-eval").certainty == "confirmed"


def test_a_symptom_never_claims_to_know(world: Judged) -> None:
    world.at(1.0, *heard(0, 1, 2, 3), *(line(r, "timeout", {"op": "ALLREDUCE"}) for r in range(4)))
    c = world.found("timed-out")
    assert (c.certainty, c.initiating) == ("undetermined", ())


def test_evidence_names_each_quote_once_and_the_initiators_first(world: Judged) -> None:
    world.at(1.0, *heard(0, 1, 2, 3), line(0, "evaluating"), dump(0, "exchange layer.py", "evaluate t.py"))
    c = world.found("lonely-eval")
    assert c.evidence[0].rank == 0
    assert len(set(c.evidence)) == len(c.evidence)


def test_the_order_in_which_ranks_are_met_changes_nothing() -> None:
    met = [
        Judged().at(1.0, *heard(*ranks)).at(2.0, raised(2)).at(3.0, raised(1)) for ranks in ((0, 1, 2, 3), (3, 2, 1))
    ]
    assert {w.found("any-error").initiating for w in met} == {(1, 2)}
