"""What Tab offers, and the manual pages: made from the command line itself, so that neither can be out of date."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from denpexd.cli import main
from denpexd.clock import ManualClock
from denpexd.completion import script
from denpexd.manual import commands, page, pages
from denpexd.notify.outbox import Store
from denpexd.state import FILE

ROOT = Path(__file__).parents[2]


def offered(*words: str) -> dict[str, str | None]:
    """What is offered for the last word after the others."""
    shell = ShellComplete(main, {}, "denpexd", "_DENPEXD_COMPLETE")
    return {item.value: item.help for item in shell.get_completions(list(words[:-1]), words[-1])}


class TestCompletion:
    def test_commands_and_failures_are_offered_with_what_they_are(self) -> None:
        assert {"status", "doctor", "discover", "top"} <= offered("").keys()
        found = offered("explain", "syncbatchnorm-")
        assert "SyncBatchNorm" in str(found["syncbatchnorm-single-rank-eval-deadlock"])
        assert all(name.startswith("syncbatchnorm-") for name in found)

    def test_failures_of_a_pack_are_offered_too(self, tmp_path: Path) -> None:
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "our-own.yaml").write_text("id: our-own\ntitle: 'Ours'\n")
        assert offered("explain", "--rules", str(tmp_path), "our") == {"our-own": "Ours"}

    def test_sinks_come_from_the_configuration(self, tmp_path: Path) -> None:
        config = tmp_path / "denpexd.yaml"
        config.write_text("sinks: [{type: webhook, name: ops, url: 'http://x/'}, {type: console}]\n")
        assert offered("notify", "test", "-c", str(config), "") == {"ops": "webhook", "console": "console"}

    def test_incidents_come_from_the_state_folder(self, tmp_path: Path) -> None:
        verdict = {"key": "run-7-a0-1-ff", "state": "open", "failure": "cuda-oom", "job": "run-7"}
        with Store(tmp_path / FILE, ManualClock()) as store:
            store.commit(incidents=[{**verdict, "updated_t": 1.0, "opened_t": 1.0, "revision": 1}])
        found = offered("bundle", "--state-dir", str(tmp_path), "run")
        assert found == {"run-7-a0-1-ff": "open: cuda-oom in run-7"}
        assert offered("render", "--state-dir", str(tmp_path), "run") == found | {"run": None}  # or a file

    def test_what_is_wrong_offers_nothing_and_says_nothing(self, tmp_path: Path) -> None:
        (tmp_path / FILE).write_text("no database")
        (tmp_path / "denpexd.yaml").write_text("sinks: nonsense")
        assert offered("bundle", "--state-dir", str(tmp_path), "x") == {}
        assert offered("notify", "test", "-c", str(tmp_path / "denpexd.yaml"), "") == {}

    @pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
    def test_the_scripts_ask_the_program(self, shell: str) -> None:
        text = CliRunner().invoke(main, ["completion", shell]).output
        assert f"_DENPEXD_COMPLETE={shell}_complete" in text
        assert script(shell, main) in text
        if program := shutil.which(shell):
            done = subprocess.run([program, "-n"], input=text, text=True, capture_output=True, check=False)
            assert (done.returncode, done.stderr) == (0, "")

    def test_bash_gets_an_answer_without_anything_heavy(self) -> None:
        code = "import sys; from denpexd.cli import main\ntry: main(prog_name='denpexd')\nfinally: print(*sys.modules)"
        asked = {"_DENPEXD_COMPLETE": "bash_complete", "COMP_WORDS": "denpexd sta", "COMP_CWORD": "1"}
        done = subprocess.run(
            [sys.executable, "-c", code], env=os.environ | asked, capture_output=True, text=True, check=True
        )
        assert done.stdout.splitlines()[0] == "plain,status"
        assert not {"pydantic", "httpx", "yaml", "re2"} & set(done.stdout.split())


class TestManual:
    def test_every_command_has_a_page(self, tmp_path: Path) -> None:
        said = CliRunner().invoke(main, ["man", str(tmp_path / "man1")]).output
        written = {file.name for file in (tmp_path / "man1").iterdir()}
        assert {"denpexd.1", "denpexd-run.1", "denpexd-config-show.1", "denpexd-notify-test.1"} <= written
        assert said == f"{len(written)} pages in {tmp_path / 'man1'}\n"
        assert written == pages(main).keys()

    def test_a_page_names_every_option(self) -> None:
        for name, context in commands(main):
            text = page(name, context).replace("\\-", "-").replace("\\(aq", "'")
            for option in context.command.get_params(context):
                if isinstance(option, click.Option) and not option.hidden:
                    assert option.opts[-1] in text, (name, option.opts)
            assert "-h, --help" in text, name

    @pytest.mark.skipif(shutil.which("groff") is None, reason="groff is not installed")
    def test_groff_has_nothing_to_complain_about(self) -> None:
        text = "\n".join(pages(main).values())
        done = subprocess.run(
            ["groff", "-man", "-Tutf8", "-ww", "-z"], input=text, text=True, capture_output=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")

    def test_nothing_in_a_help_text_is_taken_for_a_request(self) -> None:
        @click.command(help=".TH forged\n\n\b\n'br\n.x \\fBbold\\fP -y")
        def strange() -> None: ...

        text = page("denpexd strange", click.Context(strange))
        lines = text.splitlines()
        assert "\\&.TH forged" in lines
        assert "\\&\\(aqbr" in lines
        assert "\\&.x \\efBbold\\efP \\-y" in lines
        assert all(re.match(r"\.(TH|SH|PP|TP|nf|fi)\b", line) for line in lines if line.startswith((".", "'")))
        assert sum(line.startswith(".TH") for line in lines) == 1

    def test_the_wheel_is_built_with_what_the_pages_need(self) -> None:
        project = (ROOT / "pyproject.toml").read_text("utf-8")
        assert re.search(r'requires = \["hatchling>=[\d.]+", "click>=[\d.]+"\]', project)
        assert 'path = "deploy/build_hook.py"' in project
        assert re.search(r"^click==", (ROOT / "deploy" / "requirements-build.lock").read_text("utf-8"), re.MULTILINE)
