"""What `run` and `exec` choose where nobody did: port, state folder, and the pipe they stand at the end of."""

import logging
import os
import time
from pathlib import Path
from typing import Any

import pytest

from denpexd import watch
from denpexd.errors import SettingsError
from denpexd.watch import _pipe, is_chosen
from denpexd.web.server import bind


def test_an_option_is_chosen_by_file_variable_or_flag(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    file = tmp_path / "c.yaml"
    file.write_text("web: {host: 127.0.0.1}\n")
    assert not is_chosen(None, {}, "web", "port")
    assert not is_chosen(file, {"job": "x", "state_dir": None}, "web", "port")
    assert not is_chosen(file, {"job": "x", "state_dir": None}, "state_dir")
    assert is_chosen(None, {"web": {"port": 9464}}, "web", "port")
    file.write_text("web: {port: 9464}\nstate_dir: /x\n")
    assert is_chosen(file, {}, "web", "port")
    assert is_chosen(file, {}, "state_dir")
    monkeypatch.setenv("DENPEXD_WEB__PORT", "9464")
    assert is_chosen(None, {}, "web", "port")
    monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/denpexd")
    assert is_chosen(None, {}, "state_dir")


def test_a_port_in_use_is_an_error_or_another_one_is_taken_and_said(caplog: pytest.LogCaptureFixture) -> None:
    with bind("127.0.0.1", 0) as other:
        port = other.getsockname()[1]
        with pytest.raises(SettingsError, match=f"port {port} on 127.0.0.1 is in use"):
            bind("127.0.0.1", port, any_port=False)
        with caplog.at_level(logging.WARNING), bind("127.0.0.1", port, any_port=True) as mine:
            taken = mine.getsockname()[1]
        assert [record.getMessage().endswith(f"on port {taken}") for record in caplog.records] == [True]


def test_another_mistake_about_the_port_stays_an_error() -> None:
    with pytest.raises(SettingsError, match=r"cannot listen on 203\.0\.113\.1"):
        bind("203.0.113.1", 9464, any_port=True)


def test_only_a_pipe_is_a_pipe(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    try:
        assert _pipe(reader) == os.fstat(writer).st_ino
    finally:
        os.close(reader)
        os.close(writer)
    with (tmp_path / "x").open("wb") as file:
        assert _pipe(file.fileno()) is None
    assert _pipe(reader) is None


def test_beside_a_command_the_chosen_state_folder_is_kept_and_else_a_temporary_one_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from denpexd import app, execute

    seen: list[dict[str, Any]] = []

    async def run(settings: Any, mode: app.Mode) -> int:
        seen.append({"folder": str(settings.state_dir), "port": mode.any_port, "fresh": mode.fresh})
        return 0

    monkeypatch.setattr(app, "run", run)
    monkeypatch.setattr(execute, "log_to_stderr", lambda level: None)
    monkeypatch.delenv("STATE_DIRECTORY", raising=False)
    for flags in ({}, {"state_dir": "/chosen"}):
        plan = {
            "config": None,
            "flags": flags,
            "root_pid": 1,
            "relay_pid": 1,
            "folder": str(tmp_path),
            "state_dir": "/tmp/x/state",
        }
        assert execute.beside(plan) == 0
    assert [one["folder"] for one in seen] == ["/tmp/x/state", "/chosen"]
    assert all(one["port"] and one["fresh"] for one in seen)


def test_who_stops_reading_the_log_stops_nothing_and_is_told_what_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "MOST_ENTRIES", 10)
    reading, writing = os.pipe()
    with (
        os.fdopen(writing, "w") as writer,
        os.fdopen(reading) as reader,
    ):  # closed first, so that no write is in its way
        handler = watch.PatientHandler(writer)
        long = "x" * 40_000  # two fill the pipe

        def say(text: str) -> None:
            handler.handle(logging.LogRecord("x", logging.INFO, "f.py", 1, text, (), None))

        for number in range(2):
            say(f"{number} {long}")
        while not handler._entries.empty():  # then its thread stands in the second write
            time.sleep(0.01)
        for number in range(2, 30):
            say(f"{number} {long}")
        assert [reader.readline().split()[0] for _ in range(12)] == [str(number) for number in range(12)]
        say("at last")
        assert reader.readline() == "    (18 entries before this one were lost: nobody read them)\n"
        assert reader.readline() == "at last\n"
