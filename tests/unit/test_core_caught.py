"""What a rank says it dealt with proves nothing alone, whichever comes first: the exception or the word about it."""

import pytest

from denpexd.core.events import Raised
from denpexd.core.evidence import Evidence
from denpexd.core.raised import caught, weighed
from denpexd.core.rank import RankState
from denpexd.core.records import RaisedBy

OOM = Raised(10.0, 0, "err", 50, "RuntimeError: out of memory", (("RuntimeError", "out of memory"),), (), uncaught=True)


def said(t: float, offset: int = 100) -> Evidence:
    return Evidence(0, "log", "err", offset, t, "retrying with batch size 8", "caught")


@pytest.mark.parametrize(
    ("word", "uncaught"), [(said(10.3), False), (said(10.0), False), (said(10.0, 20), True), (said(300.0), True)]
)
def test_a_word_speaks_of_what_came_shortly_before_it(word: Evidence, *, uncaught: bool) -> None:
    state = RankState(0)
    state.raised.append(RaisedBy(OOM, 1, collateral=False))
    state.note("x.printed", Evidence(0, "log", "err", 50, 10.0, OOM.text, "printed"), {})
    caught(state, word)
    assert state.raised[0].event.uncaught is uncaught
    assert state.seen["x.printed"].first.weight == ("fatal" if uncaught else "suspect")


def test_who_lost_a_peer_and_builds_its_communicators_anew_reports_nothing() -> None:
    state = RankState(0)
    state.reported = Evidence(0, "log", "err", 50, 10.0, "Timed out waiting 60000ms for recv", "waited")
    caught(state, said(9.0))
    assert state.reported is not None
    caught(state, said(13.0))
    assert state.reported is None


def test_a_traceback_that_is_complete_only_after_the_word_is_weighed_too() -> None:
    state = RankState(0)
    assert weighed(state, OOM).uncaught
    caught(state, said(10.3))
    assert not weighed(state, OOM).uncaught
