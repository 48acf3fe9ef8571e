"""Who is told what and when: decisions over simulated time, each with its reason."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from denpexd.notify.match import Matcher, matcher
from denpexd.notify.policy import LONGEST, Delivery, Moment, Quiet, Route, Sent, after, decide, delivery
from denpexd.notify.windows import Window, minutes, weekdays

ALL = Route("all")
PAGER = Route("pager", severity=frozenset({"critical", "high"}))
T = datetime(2026, 11, 30, 23, 30, tzinfo=UTC).timestamp()  # a Monday
FLAP = 600.0


def verdict(revision: int = 1, severity: str = "medium", **more: Any) -> dict[str, Any]:
    return {"key": "k", "revision": revision, "severity": severity, "state": "open", "job": "run", **more}


def closed(revision: int = 2, severity: str = "medium") -> dict[str, Any]:
    return verdict(revision, severity, state="closed")


def decided(told: dict[str, Any], route: Route, last: Sent | None, **at: Any) -> tuple[str, str, str]:
    one = decide(told, route, last, Moment(at.pop("now", T), flap=FLAP, **at))
    return one.action, one.reason, one.event


# --- the beginning, news, the end -------------------------------------------------------------------------------------


def test_a_sink_is_told_of_what_passes_its_route() -> None:
    assert decided(verdict(), ALL, None) == ("send", "first", "opened")
    assert decided(verdict(), PAGER, None) == ("drop", "severity", "")
    assert decided(verdict(severity="high"), PAGER, None) == ("send", "first", "opened")


def test_whoever_was_alarmed_is_told_everything_and_the_end() -> None:
    told = Sent(1, "opened", 1, T)
    assert decided(verdict(2, "low"), PAGER, told) == ("send", "updated", "updated")
    assert decided(closed(2, "low"), PAGER, told) == ("send", "closed", "closed")


def test_the_end_is_told_only_to_whom_the_begin_was_told() -> None:
    assert decided(closed(), ALL, None)[0] == "nothing"
    assert decided(closed(), ALL, Sent(2, "closed", 2, T))[0] == "nothing"


def test_a_revision_is_never_repeated() -> None:
    assert decided(verdict(1), ALL, Sent(1, "opened", 1, T))[0] == "nothing"
    assert decided(verdict(2), ALL, Sent(3, "updated", 3, T))[0] == "nothing"


def test_a_message_never_counts_lower_than_the_one_before_it() -> None:
    last = Sent(5, "updated", 3, T)  # after two reminders
    message = delivery(verdict(4), "all", decide(verdict(4), ALL, last, Moment(T)), last)
    assert (message.revision, message.told, message.idempotency_key) == (6, 4, "k:6")
    assert (message.verdict["revision"], message.verdict["event"]) == (6, "updated")


# --- time -------------------------------------------------------------------------------------------------------------


def test_reminders_come_at_growing_intervals_up_to_eight_hours_until_somebody_takes_it_on() -> None:
    route = Route("chat", remind=1800.0)
    last, waits, now = (
        after(delivery(verdict(), "chat", decide(verdict(), route, None, Moment(T)), None), None, T),
        [],
        T,
    )
    while len(waits) < 7:
        now += 60.0
        if (one := decide(verdict(), route, last, Moment(now))).action == "send":
            assert one.reason == "reminder"
            waits.append(now - last.at)
            last = after(delivery(verdict(), "chat", one, last), last, now)
    assert waits == [1800, 3600, 7200, 14400, LONGEST, LONGEST, LONGEST]
    assert decided(verdict(), route, last, now=now + LONGEST, acknowledged=True) == ("send", "acknowledged", "updated")
    told = replace(last, acknowledged=True)
    assert decided(verdict(), route, told, now=now + 9 * LONGEST, acknowledged=True)[0] == "nothing"
    assert decided(verdict(), ALL, last, now=now + 9 * LONGEST)[0] == "nothing"


def test_a_silence_drops_all_but_the_end() -> None:
    told = Sent(1, "opened", 1, T)
    assert decided(verdict(), ALL, None, silence="ab") == ("drop", "silenced", "")
    assert decided(verdict(2), ALL, told, silence="ab") == ("drop", "silenced", "")
    assert decided(closed(), ALL, told, silence="ab")[:2] == ("send", "closed")
    assert decided(verdict(), ALL, None) == ("send", "first", "opened"), "it is open still when the silence is over"


def test_maintenance_and_quiet_hours_hold_all_but_the_end() -> None:
    night = Quiet(Window(minutes("22:00-08:00")), frozenset({"medium", "low"}))
    route = Route("chat", quiet=(night,))
    morning = T + 9 * 3600
    assert decided(verdict(), ALL, None, maintenance="patch day")[:2] == ("hold", "maintenance")
    assert decided(verdict(), route, None)[:2] == ("hold", "quiet")
    assert decided(verdict(severity="critical"), route, None)[:2] == ("send", "first")
    assert decided(verdict(2), route, Sent(1, "opened", 1, T))[:2] == ("hold", "quiet")
    assert decided(closed(), route, Sent(1, "opened", 1, T))[:2] == ("send", "closed")
    assert decided(verdict(), route, None, now=morning)[:2] == ("send", "first")


def test_a_failure_that_comes_back_at_once_is_the_same_incident_and_its_end_has_to_last() -> None:
    over = Sent(2, "closed", 2, T)
    assert decided(verdict(3), ALL, over, now=T + FLAP - 1) == ("send", "reopened", "updated")
    assert decided(verdict(3), ALL, over, now=T + FLAP) == ("send", "first", "opened")
    flapping = Sent(3, "updated", 3, T, flaps=1)
    assert decided(closed(4), ALL, flapping, ended=T) == ("hold", "flapping", "")
    assert decided(closed(4), ALL, flapping, ended=T, now=T + FLAP) == ("send", "settled", "closed")


def test_what_a_digest_has_told_is_not_told_again_until_there_is_news() -> None:
    assert decided(verdict(2), ALL, None, told_together=2)[0] == "nothing"
    assert decided(verdict(3), ALL, None, told_together=2)[:2] == ("send", "first")


# --- routes -----------------------------------------------------------------------------------------------------------

BROKEN = {
    "key": "k1",
    "job": "llama-7b",
    "failure": "nccl-timeout",
    "aliases": ["nccl-watchdog"],
    "category": "hang",
    "severity": "high",
    "domain": "hardware",
    "initiating_ranks": [3, 4],
    "nodes": {"3": "gpu-17", "4": "gpu-17", "0": "gpu-2"},
}


@pytest.mark.parametrize(
    ("wants", "tags", "why"),
    [
        ({}, {}, None),
        ({"job": ["bert", "llama-*"]}, {}, None),
        ({"job": ["Llama-*"]}, {}, "job is llama-7b"),
        ({"failure": ["nccl-watchdog"]}, {}, None),
        ({"category": ["hang"], "domain": ["data"]}, {}, "domain is hardware"),
        ({"rank": ["0-7"]}, {}, None),
        ({"rank": ["3"]}, {}, "rank is 3, 4"),
        ({"node": ["gpu-17"]}, {}, None),
        ({"node": ["gpu-2"]}, {}, "node is gpu-17"),
        ({}, {"team": ["nlp"]}, None),
        ({}, {"team": ["vision"]}, "tags.team is nlp"),
        ({}, {"site": ["*"]}, "tags.site is not known"),
    ],
)
def test_all_fields_that_are_given_must_fit(wants: Any, tags: Any, why: str | None) -> None:
    assert matcher(wants, tags).misfit(BROKEN, {"team": "nlp"}) == why


def test_who_started_it_is_not_known_then_no_rank_and_no_node_fits() -> None:
    unknown = {**BROKEN, "initiating_ranks": []}
    assert not matcher({"rank": ["0-9999"]}, {}).matches(unknown, {})
    assert not matcher({"node": ["*"]}, {}).matches(unknown, {})
    somewhere = {**BROKEN, "initiating_ranks": [3, 5]}
    assert not matcher({"node": ["gpu-17"]}, {}).matches(somewhere, {}), "rank 5 may stand elsewhere"


def test_a_route_can_leave_out() -> None:
    route = Route("ops", match=matcher({"domain": ["hardware"]}, {}), unless=matcher({"job": ["test-*"]}, {}))
    assert decided(BROKEN | {"state": "open"}, route, None)[1] == "first"
    assert decided(BROKEN | {"state": "open", "job": "test-1"}, route, None)[1] == "unless"
    assert decided(BROKEN | {"state": "open", "domain": "data"}, route, None)[1] == "match"


@given(st.text(alphabet="ab*?[]-!\\.", max_size=40), st.text(alphabet="ab", max_size=40))
def test_no_glob_is_slow_or_an_error(glob: str, text: str) -> None:
    Matcher((("job", (glob,)),)).matches({"job": text}, {})


# --- windows ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hours", "days", "inside", "outside"),
    [
        ("22:00-08:00", ["fri"], ["2026-12-04T22:00", "2026-12-05T07:59"], ["2026-12-04T07:00", "2026-12-05T22:00"]),
        ("09:00-17:00", ["mon-fri"], ["2026-12-01T09:00"], ["2026-12-01T17:00", "2026-12-05T10:00"]),
        ("00:00-24:00", ["sun"], ["2026-12-06T00:00", "2026-12-06T23:59"], ["2026-12-05T23:59"]),
        (None, ["sat-mon"], ["2026-12-05T12:00", "2026-12-07T12:00"], ["2026-12-08T00:00"]),
    ],
)
def test_windows_hold_in_the_time_of_their_zone(hours: Any, days: Any, inside: list[str], outside: list[str]) -> None:
    zone = ZoneInfo("Europe/Berlin")
    window = Window(minutes(hours) if hours else None, weekdays(days), zone)

    def at(text: str) -> float:
        return datetime.fromisoformat(text).replace(tzinfo=zone).timestamp()

    assert [window.holds(at(t)) for t in inside] == [True] * len(inside)
    assert [window.holds(at(t)) for t in outside] == [False] * len(outside)


def test_quiet_hours_follow_the_clock_of_people_through_summer_time() -> None:
    window = Window(minutes("22:00-08:00"), weekdays(["mon-sun"]), ZoneInfo("Europe/Berlin"))
    for day in ("2026-03-29", "2026-10-25", "2026-07-01"):
        eight = datetime.fromisoformat(f"{day}T08:00").replace(tzinfo=ZoneInfo("Europe/Berlin")).timestamp()
        assert (window.holds(eight - 1), window.holds(eight)) == (True, False)


@given(st.integers(0, 1439), st.integers(0, 1439), st.integers(0, 7 * 1440 - 1))
def test_a_window_of_all_days_and_its_complement_cover_every_minute_once(begin: int, end: int, minute: int) -> None:
    if begin == end:
        return
    now = 1_700_000_000 // 86400 * 86400 + minute * 60.0
    assert Window((begin, end)).holds(now) != Window((end, begin)).holds(now)


@pytest.mark.parametrize("text", ["22-8", "25:00-26:00", "22:00", "a:00-b:00", "10:60-11:00", "1:0-2:0", ""])
def test_hours_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="22:00-08:00"):
        minutes(text)


# --- any story --------------------------------------------------------------------------------------------------------


@dataclass
class Receiver:
    """What a sink sees, and what decides about it."""

    route: Route
    last: Sent | None = None
    seen: list[Delivery] = field(default_factory=list)

    def at(self, told: dict[str, Any], moment: Moment) -> str:
        one = decide(told, self.route, self.last, moment)
        assert (one.action == "nothing") == (not one.reason)
        if one.action == "send":
            self.seen.append(delivery(told, self.route.name, one, self.last))
            self.last = after(self.seen[-1], self.last, moment.now)
        return one.reason


steps = st.tuples(
    st.sampled_from(["news", "end", "again", "wait"]),
    st.sampled_from(["critical", "low"]),
    st.sampled_from([1.0, 300.0, 700.0, 4000.0, 30000.0]),
    st.sampled_from(["", "", "s"]),
    st.sampled_from(["", "", "m"]),
    st.booleans(),
)


@given(st.lists(steps, max_size=30))
def test_in_any_story_each_sink_sees_rising_revisions_and_an_end_after_each_begin(story: Sequence[Any]) -> None:
    receivers = [Receiver(ALL), Receiver(replace(PAGER, remind=1800.0))]
    now, revision, state, ended, severity = T, 1, "open", 0.0, "low"
    for what, severe, wait, silence, maintenance, acknowledged in story:
        now += wait
        if what == "end" and state == "open":
            revision, state, ended = revision + 1, "closed", now
        elif (what == "again" and state == "closed") or (what == "news" and state == "open"):
            revision, state, severity = revision + 1, "open", severe
        told = verdict(revision, severity, state=state)
        for one in receivers:
            moment = Moment(now, silence, maintenance, acknowledged, 0, FLAP, ended)
            one.at(told, moment)
            assert one.at(told, moment) in ("", "silenced", "maintenance", "severity", "acknowledged", "flapping")
    now += 10 * LONGEST
    for one in receivers:  # in the end nothing holds any more
        one.at(verdict(revision, severity, state=state), Moment(now, flap=FLAP, ended=ended))
        revisions = [d.revision for d in one.seen]
        assert revisions == sorted(set(revisions))
        events = [d.event for d in one.seen]
        assert events[:1] in ([], ["opened"])
        for before, then in pairwise(one.seen):
            if before.event == "closed":
                assert then.event == "opened" or then.reason == "reopened"
            else:
                assert then.event != "opened"
        if one.seen:
            assert (events[-1] == "closed") == (state == "closed")


def test_after_the_clock_was_set_back_nothing_waits_for_the_time_it_showed() -> None:
    later = T + 365 * 86400
    reminded = Route("all", remind=3600.0)
    assert decided(verdict(), reminded, Sent(1, "opened", 1, later)) == ("send", "reminder", "updated")
    assert decide(verdict(), reminded, Sent(1, "opened", 1, T + 60), Moment(T)).action == "nothing"
    assert decided(closed(), ALL, Sent(1, "updated", 1, later, flaps=1), ended=later) == ("send", "settled", "closed")
    assert decided(verdict(3), ALL, Sent(2, "closed", 2, later)) == ("send", "first", "opened")
