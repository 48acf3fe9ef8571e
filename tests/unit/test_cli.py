"""The command line as people and scripts use it."""

import json
import re
import socket
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from denpexd import __version__
from denpexd.cli import main
from denpexd.notify.outbox import Store
from denpexd.notify.policy import Delivery
from denpexd.state import FILE

CASES = Path(__file__).parents[1] / "cases"
COMMANDS = ("run", "exec", "diagnose", "replay", "flight", "explain", "rules", "config", "demo")
HEAVY = (
    "pydantic",
    "yaml",
    "httpx",
    "starlette",
    "uvicorn",
    "apprise",
    "re2",
    "hyperscan",
    "prometheus_client",
    "textual",
)


def call(*arguments: str, env: dict[str, str | None] | None = None) -> Result:
    return CliRunner().invoke(main, arguments, env=env)


def test_help_names_the_commands_and_where_to_start() -> None:
    result = call("--help")
    assert result.exit_code == 0
    assert all(f"  {command} " in result.output for command in COMMANDS)
    assert "denpexd demo" in result.output


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command: str) -> None:
    result = call(command, "-h")
    assert result.exit_code == 0
    assert result.output.startswith("Usage:")


def test_help_imports_nothing_heavy() -> None:
    code = f"import sys, denpexd.cli; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_every_command_in_the_documentation_exists() -> None:
    root = Path(__file__).parents[2]
    for page in (root / "README.md", *(root / "docs").glob("*.md")):
        code = re.findall(r"```.*?```|`[^`\n]+`", page.read_text("utf-8"), re.DOTALL)
        named = {name for part in code for name in re.findall(r"(?:^|[`$|] ?)denpexd ([a-z]+)", part, re.MULTILINE)}
        assert named <= set(main.commands), page


def test_the_version_is_told() -> None:
    assert call("--version").output == f"denpexd, version {__version__}\n"


# --- replay -----------------------------------------------------------------------------------------------------------


def test_replay_gives_a_line_of_json_for_each_case_and_goes_on_after_what_is_none(tmp_path: Path) -> None:
    chosen = ("lab-kill-n3-srun", "lab-ok-retry-n2")
    (tmp_path / "broken.yaml").write_text("schema: 1\nid: broken\n")
    places = [tmp_path, *(CASES / name for name in chosen)]
    result = call("replay", "--format", "jsonl", "--rules", str(tmp_path), *map(str, places))
    assert result.exit_code == 2
    assert "a case folder holds timeline.jsonl" in result.stderr
    assert f"rule left out: {tmp_path / 'broken.yaml'}:" in result.stderr
    rows = [json.loads(line) for line in result.stdout.splitlines()]
    assert [row["case"] for row in rows] == list(chosen)
    assert [[v["failure"] for v in row["verdicts"]] for row in rows] == [["rank-oom-killed"], []]
    assert rows[0]["verdicts"][0]["initiating_ranks"] == [2]


def test_replay_can_leave_evidence_out() -> None:
    case = str(CASES / "lab-order-groups-n2")
    told = [
        json.loads(call("replay", "--format", "jsonl", *without, case).output)["verdicts"]
        for without in ((), ("--without", "fr"))
    ]
    assert [[v["failure"] for v in verdicts] for verdicts in told] == [["collective-order-mismatch"], ["silent-hang"]]
    refused = call("replay", "--without", "stack", case)
    assert refused.exit_code == 2
    assert "expected some of stacks, fr, exits" in refused.output


def test_replay_prints_reports_without_colours_for_a_pipe() -> None:
    result = call("replay", str(CASES / "lab-kill-n3-srun"))
    assert result.exit_code == 0
    assert "== lab-kill-n3-srun: 1 incident(s)" in result.output
    assert "\x1b[" not in result.output


# --- diagnose ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["text", "markdown"])
def test_no_failure_comes_with_what_was_read(tmp_path: Path, form: str) -> None:
    (tmp_path / "rank0.log").write_text("epoch 0 step 1/900 loss 2.31\n")
    (tmp_path / "rank1.log").write_bytes(bytes(range(256)) * 40)
    result = call("diagnose", "--format", form, str(tmp_path))
    assert result.exit_code == 0
    assert result.stdout.startswith("No failure found. Read: 1 file, rank 0, last step 1, no end line seen. Left out")
    assert "rank 1, " in result.stdout
    assert result.stdout.count("\n") == 1
    assert json.loads(call("diagnose", "--format", "json", str(tmp_path)).stdout) == {"verdicts": []}


def test_the_headline_is_whole_where_no_terminal_ends_it(tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text("Traceback (most recent call last):\n  File 'x.py'\nValueError: x\n")
    result = call("diagnose", str(tmp_path), env={"COLUMNS": "80"})
    first = result.stdout.splitlines()[0]
    assert "…" not in first
    assert first.endswith(")")


# --- explain, rules ---------------------------------------------------------------------------------------------------


def test_explain_prints_the_entry() -> None:
    result = call("explain", "rank-oom-killed")
    assert result.exit_code == 0
    assert "What to do" in result.output


def test_explain_knows_aliases_and_speaks_json() -> None:
    plain = json.loads(call("explain", "syncbatchnorm-single-rank-eval-deadlock", "--format", "json").output)
    other = json.loads(call("explain", "syncbatchnorm-single-rank-eval", "--format", "json").output)
    assert plain == other
    assert plain["id"] == "syncbatchnorm-single-rank-eval-deadlock"


def test_explain_suggests_what_was_probably_meant() -> None:
    result = call("explain", "rank-oom-kiled")
    assert result.exit_code == 2
    assert "did you mean rank-oom-killed" in result.stderr
    assert "denpexd search zzzzzzzz looks for words" in call("explain", "zzzzzzzz").stderr


def test_a_code_of_the_driver_needs_no_quotes() -> None:
    assert call("explain", "xid", "79").output == call("explain", "xid 79").output != ""


def test_rules_are_listed_by_category() -> None:
    hangs = call("rules", "list", "--category", "hang").output.splitlines()
    assert len(hangs) >= 5
    assert all(line.startswith("hang ") for line in hangs)
    rows = json.loads(call("rules", "list", "--format", "json").output)
    assert len(rows) > len(hangs)
    assert {"id", "title", "category", "severity"} <= set(rows[0])


def test_the_schema_of_rule_files_is_json() -> None:
    assert "properties" in call("rules", "schema").output
    json.loads(call("rules", "schema").output)


def test_who_checks_one_rule_is_sent_to_the_command_for_it_at_once(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.touch()
    result = call("rules", "check", str(path))
    assert result.exit_code == 2
    assert f"denpexd rules test {path}" in result.stderr


# --- configuration ----------------------------------------------------------------------------------------------------


def test_a_good_configuration_is_called_valid_and_shown(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("job: my-run\nsinks: [{type: webhook, url: 'https://user:secret@example.org/x'}]\n")
    assert call("config", "check", "-c", str(path)).output == "the configuration is valid\n"
    shown = call("config", "show", "-c", str(path)).output
    assert yaml.safe_load(shown)["job"] == "my-run"
    assert "secret@" not in shown


def test_every_mistake_of_a_configuration_is_said_without_a_traceback(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("jobb: my-run\nweb: {port: 99999999}\n")
    result = call("config", "check", "-c", str(path))
    assert result.exit_code == 2
    assert "jobb" in result.stderr
    assert "port" in result.stderr
    assert "Traceback" not in result.output


def test_an_unknown_variable_is_a_mistake() -> None:
    result = call("config", "check", env={"DENPEXD_JOBB": "x"})
    assert result.exit_code == 2
    assert "DENPEXD_JOBB" in result.stderr


# --- alerts -----------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of apprise
def test_the_test_message_takes_the_way_of_every_alert_and_tells_how_each_sink_took_it(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        dead = free.getsockname()[1]
    got: list[tuple[dict[str, str], Any]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.append((dict(self.headers), json.loads(body)))
            self.send_response(404 if self.path == "/gone" else 200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    address = f"127.0.0.1:{server.server_port}"
    sinks = [
        {"type": "webhook", "name": "hook", "url": f"http://{address}/"},
        {"type": "webhook", "name": "gone", "url": f"http://{address}/gone"},
        {"type": "webhook", "name": "down", "url": f"http://127.0.0.1:{dead}/"},
        {"type": "alertmanager", "name": "am", "url": f"http://{address}"},
        {"type": "apprise", "name": "chat", "url": f"json://{address}/"},
        {"type": "console", "name": "screen"},
    ]
    path = tmp_path / "c.yaml"
    path.write_text(yaml.safe_dump({"sinks": sinks, "state_dir": str(tmp_path / "state")}))
    try:
        result = call("notify", "test", "-c", str(path))
        alone = call("notify", "test", "hook", "-c", str(path))
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
    said = dict(line.split(": ", 1) for line in result.output.splitlines() if re.match(r"\w+: (sent|FAILED)", line))
    assert {name for name, text in said.items() if text == "sent"} == {"hook", "am", "chat", "screen"}
    assert said["gone"].startswith("FAILED: HTTP 404")
    assert said["down"].startswith("FAILED: ConnectError")
    assert result.exit_code == 1
    assert (alone.output, alone.exit_code) == ("hook: sent\n", 0)
    assert all("Test message of denpexd" in json.dumps(body) for _, body in got)
    assert any(headers.get("Idempotency-Key", "").startswith("denpexd-test-") for headers, _ in got)
    assert not (tmp_path / "state").exists()
    assert call("notify", "test", "nobody", "-c", str(path)).exit_code == 2


def test_messages_that_were_given_up_are_listed_with_their_reason(tmp_path: Path) -> None:
    assert call("notify", "dead", "--state-dir", str(tmp_path)).exit_code == 2
    told = Delivery("hook", "k", 1, "opened", "k:1", "first", {"key": "k", "failure": "silent-hang"})
    with Store(tmp_path / FILE) as store:
        assert call("notify", "dead", "--state-dir", str(tmp_path)).output == "no message was given up\n"
        store.commit(deliveries=[told])
        store.dead(store.due(1e12)[0], "HTTP 404 Not Found")
        line = call("notify", "dead", "--state-dir", str(tmp_path)).output
        (row,) = json.loads(call("notify", "dead", "--state-dir", str(tmp_path), "--format", "json").output)
    assert "hook  opened  silent-hang  k:1  HTTP 404 Not Found" in line
    assert (row["error"], row["verdict"]["failure"]) == ("HTTP 404 Not Found", "silent-hang")


def test_run_without_anything_to_watch_says_what_is_missing() -> None:
    result = call("run")
    assert result.exit_code == 2
    assert "nothing to watch" in result.stderr


@pytest.mark.parametrize("place", ["/proc/xx", "{tmp}/file", "{tmp}/file/state"])
def test_an_impossible_state_folder_is_said_in_one_line(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    folder = place.format(tmp=tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "denpexd", "run", "--port", "0", "--state-dir", folder, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith(f"denpexd: state_dir {folder} cannot be made: ")


def test_the_installed_command_answers() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "denpexd", "--version"], capture_output=True, text=True, check=True, timeout=250
    )
    assert done.stdout == f"denpexd, version {__version__}\n"


@pytest.mark.parametrize("group", [[], ["silence"], ["notify"], ["config"], ["rules"]])
def test_what_a_command_does_fits_a_line_of_80_columns(group: list[str]) -> None:
    page = CliRunner().invoke(main, [*group, "--help"], env={"COLUMNS": "80"}).output
    listed = page.partition("Commands:\n")[2].splitlines()
    assert len(listed) > 1
    assert [line for line in listed if line.endswith("...") or len(line) > 80 or not line.strip()] == []
