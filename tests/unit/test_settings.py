"""The configuration: where values come from, that no typo passes, and that no secret is shown."""

import re
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel, SecretStr

from denpexd.errors import SettingsError
from denpexd.reload import load_rules
from denpexd.settings import Settings, load, show
from denpexd.settings_sources import default_state_dir, models_of
from denpexd.settings_values import read_secret

ENV = {"HOME": "/home/me"}
DOC = Path(__file__).parents[2] / "docs" / "configuration.md"


@pytest.fixture
def config(tmp_path: Path) -> Path:
    return tmp_path / "denpexd.yaml"


def mistakes(path: Path | None, environ: dict[str, str] | None = None, **overrides: Any) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load(path, overrides=overrides, environ=ENV | (environ or {}))
    return str(caught.value).splitlines()


def test_a_file_that_became_empty_is_a_mistake_and_one_without_options_is_not(tmp_path: Path) -> None:
    file = tmp_path / "denpexd.yaml"
    for text in ("", " \n"):
        file.write_text(text)
        assert mistakes(file) == [f"{file}: is empty; remove it, or write {{}} into it, for the defaults"]
    for text in ("{}", "# all defaults\n"):
        file.write_text(text)
        assert [name for name, _ in load(file, overrides={}, environ=ENV).named_sinks()] == ["console"]


def test_an_empty_configuration_is_complete() -> None:
    settings = load(None, overrides={}, environ=ENV)
    assert (settings.web.host, settings.web.port) == ("127.0.0.1", 9464)
    assert settings.hang.min_silence == 30
    assert settings.hang.budgets.eval == 900
    assert settings.hang.budgets.compile == 1200
    assert (settings.ingest.sweep, settings.ingest.max_line) == (2, 65536)
    assert settings.evidence.stacks == "auto"
    assert [name for name, _ in settings.named_sinks()] == ["console"]
    assert settings.state_dir == Path("/home/me/.local/state/denpexd")


def test_flags_win_over_environment_over_file(config: Path) -> None:
    config.write_text("job: file\nweb: {port: 1, host: '::1'}\nhang: {budgets: {eval: 1m}}\n")
    environ = {"DENPEXD_JOB": "env", "DENPEXD_WEB__PORT": "2", "DENPEXD_HANG__BUDGETS__TRAIN": "2m"}
    settings = load(config, overrides={"web": {"port": 3, "host": None}}, environ=ENV | environ)
    assert settings.job == "env"
    assert (settings.web.port, settings.web.host) == (3, "::1")
    assert (settings.hang.budgets.eval, settings.hang.budgets.train) == (60, 120)


def test_lists_come_whole_from_one_source(config: Path) -> None:
    config.write_text("paths: [/a, /b]\nsinks: [{type: console}, {type: webhook, url: 'http://h'}]\n")
    environ = {"DENPEXD_PATHS": "/logs/**/*.log", "DENPEXD_SINKS": '[{"type": "apprise", "url_file": "/run/x"}]'}
    settings = load(config, overrides={}, environ=ENV | environ)
    assert settings.paths == ["/logs/**/*.log"]
    assert [sink.type for sink in settings.sinks] == ["apprise"]
    assert load(None, overrides={}, environ=ENV | {"DENPEXD_RULES": "[/a, /b]"}).rules == [Path("/a"), Path("/b")]


@pytest.mark.parametrize(
    ("text", "seconds"), [("2s", 2.0), ("1500ms", 1.5), ("20m", 1200.0), ("1h30m", 5400.0), ("1.5s", 1.5)]
)
def test_durations(text: str, seconds: float) -> None:
    assert load(None, overrides={"hang": {"budgets": {"eval": text}}}, environ=ENV).hang.budgets.eval == seconds


@pytest.mark.parametrize("text", ["2", "2 s", "s", "2sec", "", "-2s", "1s1"])
def test_a_duration_without_a_unit_is_refused(text: str) -> None:
    [line] = mistakes(None, ingest={"sweep": text})
    assert "ingest.sweep" in line
    assert "30s" in line


@pytest.mark.parametrize(("text", "size"), [("64KiB", 65536), ("1MB", 1_000_000), ("2048B", 2048), ("1 MiB", 1 << 20)])
def test_sizes(text: str, size: int) -> None:
    assert load(None, overrides={"ingest": {"max_line": text}}, environ=ENV).ingest.max_line == size


def test_every_mistake_is_reported_at_once_with_its_place(config: Path) -> None:
    config.write_text(
        "jobb: x\n"
        "evidence: {stacks: yes}\n"
        "hang: {min_silence: 30, budgets: {evl: 3s}}\n"
        "web:\n  port: 99999\n"
        "sinks:\n"
        "  - {type: webhook, url: 'https://u:sesame@h/x', urll: 3}\n"
        "  - {type: webhook, url: 'ftp://sesame'}\n"
        "  - {type: slak, webhook_url_file: /x}\n"
        "  - {url: sesame}\n"
        "ingest: {sweep: 2s, sweep: 3s}\n"
    )
    environ = {"DENPEXD_WEB__PRT": "1", "DENPEXD_HANG__BUDGETS__EVAL": "5"}
    lines = mistakes(config, environ)
    text = "\n".join(lines)
    for expected in (
        f"{config}:1:1: unknown option jobb; did you mean job?",
        f"{config}:2:12: evidence.stacks: input should be 'auto', 'on' or 'off', not 'yes'",
        f"{config}:3:8: hang.min_silence: a duration has a unit",
        f"{config}:3:35: unknown option hang.budgets.evl; did you mean eval?",
        f"{config}:5:3: web.port: input should be less than or equal to 65535, not 99999",
        f"{config}:7:50: unknown option sinks[0].urll; did you mean url?",
        f"{config}:8:5: sinks[1]: a URL starts with http:// or https://",
        f"{config}:9:5: sinks[2]: unknown type 'slak'; valid types are console,",
        f"{config}:10:5: sinks[3]: `type` is missing",
        f"{config}:11:21: ingest.sweep is given twice",
        "environment: unknown variable DENPEXD_WEB__PRT; did you mean DENPEXD_WEB__PORT?",
        "environment variable DENPEXD_HANG__BUDGETS__EVAL: hang.budgets.eval: a duration has a unit",
    ):
        assert any(line.startswith(expected) for line in lines), f"{expected}\nnot in\n{text}"
    assert len(lines) == 12, text
    assert "sesame" not in text


def test_a_mistake_on_the_command_line_is_named() -> None:
    assert mistakes(None, web={"port": "x"})[0].startswith("command line, web.port: ")


def test_variables_of_a_kubernetes_service_are_ignored() -> None:
    environ = {"DENPEXD_PORT": "tcp://10.0.0.1:9464", "DENPEXD_SERVICE_HOST": "10.0.0.1", "DENPEXD_PORT_9464_TCP": "x"}
    assert load(None, overrides={}, environ=ENV | environ).web.port == 9464


def test_an_empty_variable_is_unset() -> None:
    assert load(None, overrides={}, environ=ENV | {"DENPEXD_JOB": "", "DENPEXD_WEB__PORT": ""}).job is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: [1, 2\n", ":2:1: not valid YAML"),
        ("job: *x\n", ":1:6: not valid YAML: aliases"),
        ("- a\n", ":1:1: the file must be a mapping"),
        ("job: \x00\n", "not valid YAML"),
        ("job: " + "[" * 50 + "]" * 50, "nested deeper"),
        ("job: " + "[" * 200_000, "not valid YAML"),
        ("job: !!python/object/apply:os.system [touch /tmp/owned]\n", ":1:6: not valid YAML: tag"),
        ("job: !!python/name:os.system\n", "not valid YAML: tag"),
        ("job: !!binary aGk=\n", "not valid YAML: tag"),
        ("paths: &a [x]\nrules: *a\n", "aliases"),
    ],
)
def test_what_is_no_plain_yaml_is_refused(config: Path, text: str, expected: str) -> None:
    config.write_text(text)
    assert expected in mistakes(config)[0]


@pytest.mark.parametrize("text", ["job: 007\n", "job: 2024-01-02\n", "job: no\n", "job: 1.10\n", "job: 12:30:45\n"])
def test_names_are_taken_as_written(config: Path, text: str) -> None:
    config.write_text(text)
    assert load(config, overrides={}, environ=ENV).job == text[5:].strip()


def test_a_named_file_must_be_readable(tmp_path: Path) -> None:
    assert mistakes(tmp_path / "none.yaml") == [f"{tmp_path}/none.yaml: cannot be read: No such file or directory"]
    (tmp_path / "latin").write_bytes(b"job: \xff\n")
    assert "UTF-8" in mistakes(tmp_path / "latin")[0]
    (tmp_path / "big").write_bytes(b"#" * (1 << 21))
    assert "larger" in mistakes(tmp_path / "big")[0]


@pytest.mark.parametrize(
    ("sinks", "expected"),
    [
        ("[{type: webhook}]", "exactly one of url and url_file"),
        ("[{type: webhook, url: 'http://h', url_file: /x}]", "exactly one of url and url_file"),
        ("[{type: webhook, url: 'http://h', headers: {Idempotency-Key: x}}]", "cannot be set"),
        ('[{type: webhook, url: "http://h", headers: {X-A: "a\\nb"}}]', "printable ASCII"),
        ("[{type: console, name: a}, {type: webhook, name: a, url: 'http://h'}]", "two sinks are named 'a'"),
        ("[{type: console, severity: [urgent]}]", "'critical', 'high', 'medium' or 'low'"),
        ("[{type: console, severity: []}]", "at least 1 item"),
        ("[{type: console, name: 'A B'}]", "match pattern"),
        ("[{type: file}]", "path: field required"),
        ("[{type: file, path: /x, size: 1KiB}]", "greater than or equal to 4096"),
        ("[{type: pagerduty}]", "exactly one of routing_key and routing_key_file"),
        ("[{type: pagerduty, routing_key: x, region: uk}]", "'us' or 'eu'"),
        ("[{type: webhook, url: 'http://h', headers: {X-Denpexd-Signature: x}}]", "cannot be set"),
        ("[{type: slack}]", "exactly one of webhook_url, webhook_url_file, bot_token and bot_token_file"),
        ("[{type: slack, bot_token: x}]", "a bot token needs a channel"),
        ("[{type: slack, webhook_url: 'http://h', channel: '#x'}]", "the channel belongs to a webhook"),
        ("[{type: slack, webhook_url: 'hooks.slack.com/x'}]", "a URL starts with http"),
        ("[{type: webhook, url: 'http://me:hunter2/x'}]", "a URL starts with http"),
        ("[{type: webhook, url: 'http://h:70000/x'}]", "a port is a number"),
        ("[{type: alertmanager, url: 'http://h', interval: 1s}]", "greater than or equal to 5"),
    ],
)
def test_a_sink_that_cannot_work_is_refused(config: Path, sinks: str, expected: str) -> None:
    config.write_text(f"sinks: {sinks}\n")
    assert expected in "\n".join(mistakes(config))


@pytest.mark.parametrize(
    ("hub", "expected"),
    [
        ("{url: 'http://h'}", "looks like nats://host:4222"),
        ("{url: ['nats://a', 'nats://']}", "looks like nats://host:4222"),
        ("{url: 'nats://u:sesame@h'}", "no password or token in the URL"),
        ("{url: 'nats://h', key_file: /k}", "key_file needs cert_file"),
        ("{url: 'nats://h', creds_file: /c, token_file: /t}", "only one of creds_file and token_file"),
        ("{url: 'nats://h', alone_after: 5s}", "greater than or equal to 45"),
    ],
)
def test_a_hub_that_cannot_work_is_refused(config: Path, hub: str, expected: str) -> None:
    config.write_text(f"hub: {hub}\n")
    assert expected in "\n".join(mistakes(config))


def test_sinks_of_one_type_get_names_of_their_own() -> None:
    sinks = "[{type: console}, {type: webhook, url: 'http://a'}, {type: webhook, url: 'http://b'}]"
    settings = load(None, overrides={}, environ=ENV | {"DENPEXD_SINKS": sinks})
    assert [name for name, _ in settings.named_sinks()] == ["console", "webhook", "webhook-2"]


def test_show_is_yaml_that_masks_secrets_and_otherwise_loads_again(config: Path) -> None:
    config.write_text(
        "hang: {min_silence: 90s}\ningest: {max_line: 32KiB}\n"
        "sinks:\n"
        "  - {type: webhook, url: 'https://u:sesame@h.example/sesame', headers: {X-T: sesame}}\n"
        "  - {type: apprise, url: 'slack://sesame/sesame/sesame'}\n"
    )
    settings = load(config, overrides={}, environ=ENV)
    shown = show(settings)
    assert "sesame" not in shown + repr(settings)
    data = yaml.safe_load(shown)
    assert data["sinks"][0]["url"] == "https://h.example/***"
    assert data["sinks"][1]["url"] == "slack://***"
    assert (data["hang"]["min_silence"], data["ingest"]["max_line"]) == ("90s", "32KiB")
    del data["sinks"]
    config.write_text(yaml.safe_dump(data))
    assert load(config, overrides={}, environ={}).hang == settings.hang


@pytest.mark.parametrize(
    ("environ", "path"),
    [
        ({"STATE_DIRECTORY": "/var/lib/denpexd:/var/lib/other", "XDG_STATE_HOME": "/x"}, "/var/lib/denpexd"),
        ({"XDG_STATE_HOME": "/x", "HOME": "/h"}, "/x/denpexd"),
        ({"XDG_STATE_HOME": "relative", "HOME": "/h"}, "/h/.local/state/denpexd"),
    ],
)
def test_default_state_folder(environ: dict[str, str], path: str) -> None:
    assert default_state_dir(environ) == Path(path)


def test_secrets_from_files_are_read_at_use(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    with pytest.raises(SettingsError, match=re.escape(str(file))):
        read_secret(None, file)
    file.write_text("  sesame\n")
    file.chmod(stat.S_IRUSR)
    assert read_secret(None, file) == "sesame"
    assert read_secret(SecretStr("direct"), None) == "direct"
    file.chmod(stat.S_IRUSR | stat.S_IWUSR)
    file.write_text("\n")
    with pytest.raises(SettingsError, match="is empty"):
        read_secret(None, file)


def options(model: type[BaseModel], at: str = "") -> Iterator[tuple[str, str]]:
    for name, info in model.model_fields.items():
        inner = models_of(info.annotation)
        if len(inner) == 1 and not get_args(info.annotation):
            yield from options(inner[0], f"{at}{name}.")
        else:
            yield f"{at}{name}", info.description or ""


def test_the_documentation_lists_exactly_the_options_with_their_defaults() -> None:
    text = DOC.read_text(encoding="utf-8").partition("## Sinks")[0]
    documented = re.findall(r"^\| `([a-z_.]+)` \| `?([^|`]+)`? \|", text, re.MULTILINE)
    assert [name for name, _ in documented] == [name for name, _ in options(Settings)]
    data = load(None, overrides={}, environ=ENV).model_dump(mode="json")
    for name, default in documented:
        value: Any = data
        for part in name.split("."):
            value = value[part]
        if value not in (None, []) and name != "state_dir":
            assert default.strip() == str(value), name


def test_the_documentation_lists_exactly_the_options_of_sinks() -> None:
    text = DOC.read_text(encoding="utf-8")
    for model in models_of(Settings.model_fields["sinks"].annotation):
        [kind] = get_args(model.model_fields["type"].annotation)
        [section] = re.findall(rf"^### `{kind}`\n(.*?)(?=^##|\Z)", text, re.MULTILINE | re.DOTALL)
        documented = set(re.findall(r"^\| `([a-z_]+)` \|", section, re.MULTILINE))
        assert documented == set(model.model_fields) - {"type"}, kind


def test_the_examples_of_the_documentation_load(config: Path) -> None:
    for page in ("configuration.md", "alerts.md"):
        blocks = re.findall(r"```yaml\n(.*?)```", (DOC.parent / page).read_text(encoding="utf-8"), re.DOTALL)
        assert blocks
        for block in blocks:
            config.write_text(block)
            load(config, overrides={}, environ=ENV)


class TestWhoMayChangeIt:
    @pytest.fixture
    def config(self, tmp_path: Path) -> Path:
        file = tmp_path / "denpexd.yaml"
        file.write_text("job: run\n")
        file.chmod(0o644)
        tmp_path.chmod(0o755)
        return file

    def test_root_refuses_what_every_user_can_change(self, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("os.geteuid", lambda: 0)
        assert load(config, overrides={}, environ={}).job == "run"
        config.chmod(0o666)
        with pytest.raises(SettingsError, match=r"every user of this machine can change it: chmod o-w"):
            load(config, overrides={}, environ={})
        config.chmod(0o644)
        config.parent.chmod(0o777)
        with pytest.raises(SettingsError, match="every user"):
            load(config, overrides={}, environ={})
        config.parent.chmod(0o1777)  # as /tmp: only the owner can replace it
        assert load(config, overrides={}, environ={}).job == "run"

    def test_others_are_not_kept_from_their_own_files(self, config: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("os.geteuid", lambda: 1000)
        config.chmod(0o666)
        assert load(config, overrides={}, environ={}).job == "run"

    def test_rules_that_every_user_can_change_are_named(self, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
        folder = Path(__file__).parents[1] / "data" / "rules" / "good"
        shutil.copytree(folder, tmp_path / "rules")
        rules = Settings(rules=[tmp_path / "rules"])
        load_rules(rules)
        assert "can be changed by every user" not in caplog.text
        (tmp_path / "rules" / "hang" / "good.yaml").chmod(0o666)
        load_rules(rules)
        assert "1 rules such as" in caplog.text
        assert "good.yaml can be changed by every user: chmod -R o-w" in caplog.text


def test_a_secret_file_without_a_folder_is_a_credential_of_systemd(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slack").write_text("https://hooks.example/x\n")
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    assert read_secret(None, Path("slack")) == "https://hooks.example/x"
    assert read_secret(None, tmp_path / "slack") == "https://hooks.example/x"
    monkeypatch.delenv("CREDENTIALS_DIRECTORY")
    with pytest.raises(SettingsError, match="cannot read slack"):
        read_secret(None, Path("slack"))


def test_of_very_many_mistakes_the_first_are_said_and_the_rest_counted(tmp_path: Path) -> None:
    path = tmp_path / "denpexd.yaml"
    path.write_text("".join(f"wrong{n}: 1\n" for n in range(200)))
    with pytest.raises(SettingsError) as caught:
        load(path, overrides={}, environ=ENV)
    lines = str(caught.value).splitlines()
    assert (len(lines), lines[-1]) == (51, "and 150 more mistakes")
