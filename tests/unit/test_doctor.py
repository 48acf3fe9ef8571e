"""`denpexd doctor`: each thing that can be wrong with a machine is said, with how to mend it."""

import asyncio
import errno
import json
import os
import resource
import socket
import ssl
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from denpexd import doctor, doctor_machine, doctor_reach
from denpexd.cli import main
from denpexd.clock import ManualClock, SystemClock
from denpexd.doctor import as_text, examine
from denpexd.doctor_machine import clock_checks, limit_checks, rights_checks, state_checks
from denpexd.doctor_reach import port_checks, sink_checks
from denpexd.findings import Finding, bad, ok, warn
from denpexd.notify.text import cells
from denpexd.settings import Settings

GONE = "http://127.0.0.1:1/hook/s3cret"


def only(found: Sequence[Finding], name: str) -> Finding:
    (one,) = [each for each in found if each.name == name]
    return one


class TestWhole:
    def test_a_machine_that_is_fit_and_a_sink_that_is_not(self, tmp_path: Path) -> None:
        (tmp_path / "logs").mkdir()
        (tmp_path / "logs" / "rank0.log").write_text("step 1\n")
        config = tmp_path / "denpexd.yaml"
        config.write_text(f"paths: {tmp_path}/logs\nsinks: [{{type: webhook, url: '{GONE}'}}]\nweb: {{port: 0}}\n")
        result = CliRunner().invoke(
            main, ["doctor", "-c", str(config), "--state-dir", str(tmp_path / "state"), "--format", "json"]
        )
        assert result.exit_code == 1
        checks = [Finding(**one) for one in json.loads(result.stdout)["checks"]]
        assert [one.name for one in checks if one.state == "bad"] == ["sink webhook"]
        assert only(checks, "paths").says == "1 log files of 1 job(s)"
        assert {"engine", "rules", "inotify", "descriptors", "disk", "stacks", "clock", "port"} <= {
            one.name for one in checks
        }
        assert "s3cret" not in result.output
        assert not (tmp_path / "state").exists()

    async def test_a_wrong_configuration_is_said_and_the_rest_is_checked_all_the_same(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for heavy in ("_rules", "_engine"):
            monkeypatch.setattr(doctor, heavy, lambda *_: [])

        def read() -> Settings:
            from denpexd.settings import load

            return load(None, overrides={}, environ={"DENPEXD_JOBB": "x"})

        found = await examine(read, SystemClock())
        assert "did you mean DENPEXD_JOB?" in only(found, "configuration").says
        assert only(found, "sink console").state == "ok"

    async def test_a_check_that_fails_or_hangs_is_a_finding_of_its_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def fails() -> Sequence[Finding]:
            raise PermissionError(errno.EACCES, "Permission denied")

        monkeypatch.setattr(doctor, "_LONGEST", 0.01)
        assert "Permission denied" in only(await doctor._tried("limits", fails), "limits").says
        hung = only(await doctor._tried("paths", asyncio.Event().wait), "paths")
        assert hung.state == "bad"
        assert "hung mount" in hung.says

    @pytest.mark.parametrize("width", [40, 100])
    def test_the_page_fits_and_says_how_to_mend_what_is_not_well(self, width: int) -> None:
        found = [ok("engine", "hyperscan"), warn("clock", "is not " * 20, "run chrony"), bad("port", "taken", "move")]
        text = as_text(found, color=False, width=width)
        assert all(cells(line) <= width for line in text.splitlines())
        assert text.startswith("✔ engine  hyperscan\n▲ clock   is not")
        assert "→ run chrony" in text
        assert text.endswith("1 thing to mend, 1 to know of")
        assert as_text(found[:1], color=False, width=width).endswith("\nall well")
        assert as_text(found, color=True, width=width).count("\x1b[33m▲\x1b[0m") == 1


class TestMachine:
    async def test_missing_notifications_are_no_obstacle(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        assert only(await limit_checks([str(tmp_path)], 3, SystemClock()), "inotify").state == "ok"

        def refused(self: object) -> None:
            raise OSError(errno.EMFILE, "inotify instance limit reached")

        monkeypatch.setattr("watchdog.observers.api.BaseObserver.start", refused)
        told = only(await limit_checks([str(tmp_path)], 3, SystemClock()), "inotify")
        assert told.state == "warn"
        assert "max_user_instances" in told.says

    async def test_too_few_descriptors_for_the_logs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 4096))
        told = only(await limit_checks([], 500, SystemClock()), "descriptors")
        assert told.state == "bad"
        assert "ulimit -n 700" in told.mend

    def test_a_state_folder_is_tried_without_being_made(self, tmp_path: Path) -> None:
        found = state_checks(tmp_path / "new" / "state", 1 << 20, SystemClock())
        assert only(found, "state folder").state == "ok"
        assert list(tmp_path.iterdir()) == []

    def test_a_state_folder_that_cannot_be(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "file").write_text("")
        assert "is no folder" in only(state_checks(tmp_path / "file" / "x", 1, SystemClock()), "state folder").says

        def refused(**_: object) -> None:
            raise PermissionError(errno.EACCES, "Permission denied")

        monkeypatch.setattr(doctor_machine.tempfile, "NamedTemporaryFile", refused)
        told = only(state_checks(tmp_path, 1, SystemClock()), "state folder")
        assert told.state == "bad"
        assert f"user id {os.geteuid()}" in told.says

    def test_a_network_file_system_and_little_room(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        table = doctor_machine.Mounts(f"server:/x {tmp_path} nfs4 rw 0 0\n")
        monkeypatch.setattr(doctor_machine, "Mounts", lambda: table)
        monkeypatch.setattr(doctor_machine.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 100 << 20}))
        found = state_checks(tmp_path, 256 << 20, SystemClock())
        assert f"nfs4 at {tmp_path}" in only(found, "state folder").says
        assert only(found, "disk").state == "warn"
        monkeypatch.setattr(doctor_machine.shutil, "disk_usage", lambda _: type("Usage", (), {"free": 1 << 20}))
        assert only(state_checks(tmp_path, 256 << 20, SystemClock()), "disk").state == "bad"

    def test_a_file_server_whose_clock_differs(self, tmp_path: Path) -> None:
        found = state_checks(tmp_path, 1, ManualClock(wall=time.time() - 90))
        assert "1 min 30 s ahead" in only(found, "clock").says or "1 min 29 s ahead" in only(found, "clock").says

    def test_clocks_that_cannot_be_right(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "rank0.log").write_text("x")
        now = time.time()
        monkeypatch.setattr(doctor_machine, "_synchronised", lambda: True)
        assert only(clock_checks([tmp_path / "rank0.log"], SystemClock()), "clock").says == "synchronised"
        os.utime(tmp_path / "rank0.log", (now + 60, now + 60))
        assert "ahead" in only(clock_checks([tmp_path / "rank0.log"], ManualClock(wall=now)), "clock").says
        assert "before denpexd" in only(clock_checks([tmp_path / "gone"], ManualClock(wall=1e9)), "clock").says
        monkeypatch.setattr(doctor_machine, "_synchronised", lambda: False)
        assert "not synchronised" in only(clock_checks([], SystemClock()), "clock").says

    async def test_rights_to_look_at_processes(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(doctor_machine, "find_py_spy", lambda: None)
        assert "pip install" in only(await rights_checks(Settings(), SystemClock()), "stacks").mend
        off = Settings(evidence={"active": "off"})
        assert [one.state for one in await rights_checks(off, SystemClock())] == ["ok"]
        (tmp_path / "kern.log").write_text("")
        for kernel, state in (("off", "ok"), (tmp_path / "kern.log", "ok"), (tmp_path / "none", "warn")):
            found = await rights_checks(Settings(evidence={"stacks": "off", "kernel": kernel}), SystemClock())
            assert only(found, "kernel").state == state
        monkeypatch.setattr(doctor_machine, "open_kernel", lambda *_: None)
        assert "CAP_SYSLOG" in only(await rights_checks(Settings(), SystemClock()), "kernel").mend

    def test_gpus_are_asked_where_there_are_some_and_a_library(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        assert doctor_machine._gpus("auto", tmp_path) == []
        (tmp_path / "nvidia0").touch()
        assert doctor_machine._gpus("off", tmp_path) == []
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        assert "denpexd[gpu]" in only(doctor_machine._gpus("auto", tmp_path), "GPUs").mend
        monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
        assert only(doctor_machine._gpus("auto", tmp_path), "GPUs").state == "ok"

    async def test_without_stacks_the_rest_is_still_looked_at(self) -> None:
        off = Settings(evidence={"stacks": "off"})
        assert "not taken" in only(await rights_checks(off, SystemClock()), "stacks").says

    @pytest.mark.parametrize(
        ("scope", "capable", "state"),
        [("0", False, "ok"), ("1", False, "warn"), ("3", False, "warn"), ("1", True, "ok")],
    )
    async def test_yama_decides_whose_stacks_can_be_taken(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, scope: str, capable: bool, state: str
    ) -> None:
        async def dump(self: object, pid: int, rank: int, t: float) -> None:
            assert Path(f"/proc/{pid}").exists()

        (tmp_path / "scope").write_text(f"{scope}\n")
        (tmp_path / "status").write_text(f"Name:\tx\nCapEff:\t{1 << 19 if capable else 0:016x}\n")
        may = doctor_machine._may_trace(tmp_path / "status")
        assert may is capable
        monkeypatch.setattr(doctor_machine.PySpy, "dump", dump)
        monkeypatch.setattr(doctor_machine, "find_py_spy", lambda: "/bin/true")
        monkeypatch.setattr(doctor_machine, "_may_trace", lambda: may)
        monkeypatch.setattr(doctor_machine, "_YAMA", tmp_path / "scope")
        assert only(await rights_checks(Settings(), SystemClock()), "stacks").state == state


class TestReach:
    async def test_a_port_that_is_taken(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            web = Settings(web={"port": taken.getsockname()[1]}).web
            taken.close()
            assert only(await port_checks(web, chosen=True), "port").state == "ok"
        listener = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        async with listener:
            web = Settings(web={"port": listener.sockets[0].getsockname()[1]}).web
            assert only(await port_checks(web, chosen=True), "port").state == "bad"
            assert only(await port_checks(web, chosen=False), "port").state == "warn"

    async def test_an_open_address_wants_a_token(self, tmp_path: Path) -> None:
        web: dict[str, Any] = {"host": "0.0.0.0", "port": 0}
        assert only(await port_checks(Settings(web=web).web, chosen=True), "token").state == "warn"
        web["token_file"] = tmp_path / "none"
        assert only(await port_checks(Settings(web=web).web, chosen=True), "token").state == "bad"
        (tmp_path / "none").write_text("x")
        assert [one.name for one in await port_checks(Settings(web=web).web, chosen=True)] == ["port"]

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")  # apprise imports imghdr
    async def test_destinations_are_connected_to_and_nothing_is_sent(self, tmp_path: Path) -> None:
        heard = []

        async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heard.append(await reader.read(100))
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            writer.close()

        async with await asyncio.start_server(listen, "127.0.0.1", 0) as listener:
            port = listener.sockets[0].getsockname()[1]
            sinks = [
                {"type": "webhook", "url": f"http://127.0.0.1:{port}/s3cret"},
                {"type": "webhook", "name": "gone", "url": GONE},
                {"type": "webhook", "name": "tls", "url": f"https://127.0.0.1:{port}/"},
                {"type": "webhook", "name": "file", "url_file": str(tmp_path / "none")},
                {"type": "apprise", "name": "good", "url": "json://127.0.0.1/x"},
                {"type": "apprise", "name": "wrong", "url": "nonsense://x"},
                {"type": "slack", "name": "bot", "bot_token_file": str(tmp_path / "none"), "channel": "C1"},
                {"type": "pagerduty", "name": "pager", "routing_key": "x", "url": f"http://127.0.0.1:{port}/v2"},
                {"type": "file", "name": "lines", "path": str(tmp_path / "alerts.jsonl")},
                {"type": "file", "name": "nowhere", "path": str(tmp_path / "absent" / "alerts.jsonl")},
                {"type": "console"},
            ]
            found = await sink_checks(Settings(sinks=sinks))
        states = {one.name.removeprefix("sink "): one.state for one in found}
        assert states == {"webhook": "ok", "gone": "bad", "tls": "bad", "file": "bad"} | {
            "good": "ok",
            "wrong": "bad",
            "console": "ok",
            "bot": "bad",
            "pager": "ok",
            "lines": "ok",
            "nowhere": "bad",
        }
        assert b"" in heard
        assert not any(b"POST" in each for each in heard)
        assert "s3cret" not in str(found)
        assert "TLS" in only(found, "sink tls").says or "SSL" in only(found, "sink tls").says

    async def test_where_a_proxy_is_set_the_proxy_is_tried(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
        monkeypatch.setenv("no_proxy", "")
        found = await sink_checks(Settings(sinks=[{"type": "webhook", "url": "http://hook.example/x"}]))
        assert "the proxy of HTTP_PROXY: no connection to 127.0.0.1:1" in only(found, "sink webhook").says

    async def test_a_certificate_that_is_not_accepted_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        async def refuse(*_: object, **__: object) -> None:
            error = ssl.SSLCertVerificationError()
            error.verify_message = "certificate has expired"
            raise error

        monkeypatch.setattr(doctor_reach.asyncio, "open_connection", refuse)
        found = await sink_checks(Settings(sinks=[{"type": "webhook", "url": "https://hook.example/x"}]))
        assert "certificate has expired" in only(found, "sink webhook").says

    async def test_a_broker_is_known_by_its_greeting(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert await doctor_reach.broker_checks(Settings().hub) == []
        monkeypatch.setattr("importlib.util.find_spec", lambda name: name)
        greetings = {b'INFO {"server_id":"x"}\r\n': "ok", b"220 smtp\r\n": "bad"}
        for greeting, state in greetings.items():

            async def greet(_: object, writer: asyncio.StreamWriter, greeting: bytes = greeting) -> None:
                writer.write(greeting)
                writer.close()
                await writer.wait_closed()

            async with await asyncio.start_server(greet, "127.0.0.1", 0) as listener:
                port = listener.sockets[0].getsockname()[1]
                found = await doctor_reach.broker_checks(Settings(hub={"url": f"nats://127.0.0.1:{port}"}).hub)
                assert only(found, "broker").state == state
        gone = await doctor_reach.broker_checks(Settings(hub={"url": "nats://127.0.0.1:1"}).hub)
        assert "nats-server -js" in only(gone, "broker").mend
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        missing = await doctor_reach.broker_checks(Settings(hub={"url": "nats://127.0.0.1:1"}).hub)
        assert "denpexd[hub]" in only(missing, "broker").mend

    async def test_with_send_a_test_message_goes_through_each(self, capsys: pytest.CaptureFixture[str]) -> None:
        (told,) = await doctor_reach.sent_checks(Settings())
        assert told == ok("sink console", "took a test message")
        assert "Test message of denpexd" in capsys.readouterr().out
