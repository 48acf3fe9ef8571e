"""Several daemons on one node: each gets a state of its own, and nothing that was not sent is lost."""

import errno
import logging
import os
from contextlib import closing
from pathlib import Path

import pytest

from denpexd.clock import SystemClock
from denpexd.errors import StateError
from denpexd.notify.outbox import Store
from denpexd.notify.policy import Delivery
from denpexd.state import of_command, of_daemon

CLOCK = SystemClock()


def tell(store: Store, key: str) -> None:
    """An open incident, whose message waits."""
    verdict = {"key": key, "state": "open", "severity": "high"}
    delivery = Delivery("webhook", key, 1, "opened", f"{key}:1", "first", verdict)
    store.commit(incidents=[verdict], deliveries=[delivery])


def waiting(store: Store) -> list[str]:
    return [row.delivery.key for row in store.due(float("inf"))]


def test_a_daemon_goes_on_with_what_the_one_before_it_stored(tmp_path: Path) -> None:
    with closing(of_daemon(tmp_path, CLOCK)) as store:
        tell(store, "k")
    with closing(of_daemon(tmp_path, CLOCK)) as store:
        assert (waiting(store), [v["key"] for v in store.incidents("open")]) == (["k"], ["k"])


def test_a_second_daemon_in_a_chosen_folder_is_refused(tmp_path: Path) -> None:
    with closing(of_daemon(tmp_path, CLOCK)), pytest.raises(StateError, match="is in use by process"):
        of_daemon(tmp_path, CLOCK)


def test_a_second_daemon_in_the_default_folder_gets_one_below_it_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(of_daemon(tmp_path, CLOCK, "run-1")) as first, caplog.at_level(logging.WARNING):
        second = of_daemon(tmp_path, CLOCK, "run-1")
        third = of_daemon(tmp_path, CLOCK, "run-1")
        tell(second, "second")
        assert [waiting(store) for store in (first, second, third)] == [[], ["second"], []]
        second.close()
        third.close()
    assert f"this one uses {tmp_path}/run-1" in caplog.text
    assert f"this one uses {tmp_path}/run-1-2" in caplog.text


def test_a_folder_that_cannot_be_made_is_a_state_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StateError, match="choose another"):
        of_daemon(tmp_path / "file" / "state", CLOCK, "run-1")


def test_a_file_in_the_way_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for folder in (tmp_path / "file", tmp_path / "file" / "state"):
        for opened in (of_daemon, of_command):
            with pytest.raises(StateError, match=f"{tmp_path / 'file'} is not a folder; choose another"):
                opened(folder, CLOCK)


def test_a_place_where_nothing_can_be_made_is_named() -> None:
    with pytest.raises(StateError, match=r"nothing can be made in /proc; choose another"):
        of_daemon(Path("/proc/xx"), CLOCK)


def test_missing_rights_are_a_state_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, **_: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    # What a user without rights on the folder sees; root may do everything.
    monkeypatch.setattr(Path, "stat", refuse)
    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(StateError, match=r"cannot be made: Permission denied for user id \d+; choose"):
        of_command(tmp_path / "x", CLOCK)


def test_commands_at_the_same_time_do_not_collide_with_each_other_or_a_daemon(tmp_path: Path) -> None:
    stores = [of_daemon(tmp_path, CLOCK), of_command(tmp_path, CLOCK), of_command(tmp_path, CLOCK)]
    assert sorted(path.parent.name for path in tmp_path.glob("*/denpexd.sqlite")) == ["exec", "exec-2"]
    for store in stores:
        store.close()


def test_the_next_command_sends_what_an_earlier_one_could_not(tmp_path: Path) -> None:
    first, second = of_command(tmp_path, CLOCK), of_command(tmp_path, CLOCK)
    tell(second, "k")
    first.close()
    second.close()
    with closing(of_command(tmp_path, CLOCK)) as store:
        assert waiting(store) == ["k"]
        assert store.incidents("open") == [], "its command has ended"
        assert [v["key"] for v in store.incidents("closed")] == ["k"]


def test_what_is_damaged_is_said_and_not_passed_over_for_ever(tmp_path: Path) -> None:
    (tmp_path / "exec").mkdir(parents=True)
    (tmp_path / "exec" / "denpexd.sqlite").mkdir()
    with pytest.raises(StateError, match="cannot be"):
        of_command(tmp_path, CLOCK)
