"""Which change makes which message for which sink."""

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from denpexd.core.events import Closed, Opened, Updated
from denpexd.notify.policy import Delivery, Sent, SinkFilter, plan

ALL = SinkFilter("all")
PAGER = SinkFilter("pager", frozenset({"critical", "high"}))


def verdict(revision: int = 1, severity: str = "medium") -> dict[str, object]:
    return {"key": "k", "revision": revision, "severity": severity, "event": "?"}


def test_an_opened_incident_goes_to_every_sink_whose_filter_it_passes() -> None:
    [one] = plan(Opened(verdict()), [ALL, PAGER], {})
    assert (one.sink, one.event, one.reason, one.idempotency_key) == ("all", "opened", "first", "k:1")
    assert one.verdict["event"] == "opened"
    assert [d.sink for d in plan(Opened(verdict(severity="high")), [ALL, PAGER], {})] == ["all", "pager"]


def test_a_sink_joins_when_the_severity_rises_and_then_hears_everything() -> None:
    told = {"all": Sent(1, "opened")}
    both = plan(Updated(verdict(2, "critical")), [ALL, PAGER], told)
    assert [(d.sink, d.event, d.reason) for d in both] == [("all", "updated", "updated"), ("pager", "opened", "first")]
    told = {"all": Sent(2, "updated"), "pager": Sent(2, "opened")}
    assert [d.sink for d in plan(Closed(verdict(3, "low")), [ALL, PAGER], told)] == ["all", "pager"]


def test_the_end_is_told_only_to_whom_the_begin_was_told() -> None:
    assert plan(Closed(verdict(2)), [ALL], {}) == []


def test_a_revision_is_never_repeated() -> None:
    assert plan(Opened(verdict(1)), [ALL], {"all": Sent(1, "opened")}) == []
    assert plan(Updated(verdict(2)), [ALL], {"all": Sent(3, "updated")}) == []
    assert plan(Closed(verdict(4)), [ALL], {"all": Sent(3, "closed")}) == []


def test_the_end_is_told_also_by_a_core_that_counts_anew() -> None:
    [end] = plan(Closed(verdict(2)), [ALL], {"all": Sent(3, "updated")})
    assert (end.revision, end.idempotency_key, end.verdict["revision"]) == (4, "k:4", 4)


def test_an_incident_that_comes_back_is_opened_again() -> None:
    [again] = plan(Updated(verdict(5)), [ALL], {"all": Sent(4, "closed")})
    assert again.event == "opened"


changes = st.lists(
    st.tuples(st.sampled_from([Opened, Updated, Closed]), st.integers(1, 6), st.sampled_from(["critical", "low"])),
    max_size=12,
)


@given(changes)
def test_every_sink_sees_rising_revisions_and_no_end_without_a_begin(
    steps: Sequence[tuple[type[Opened] | type[Updated] | type[Closed], int, str]],
) -> None:
    told: dict[str, Sent] = {}
    seen: dict[str, list[Delivery]] = {"all": [], "pager": []}
    for kind, revision, severity in steps:
        for d in plan(kind(verdict(revision, severity)), [ALL, PAGER], told):
            seen[d.sink].append(d)
            told[d.sink] = Sent(d.revision, d.event)
    for messages in seen.values():
        revisions = [d.revision for d in messages]
        assert revisions == sorted(set(revisions))
        events = [d.event for d in messages]
        assert events[:1] in ([], ["opened"])
        for before, after in pairwise(events):
            assert (after == "opened") == (before == "closed")
