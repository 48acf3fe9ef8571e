"""What operators copy: unit, manifests, dashboard and alert rules, checked by the tools that will read them."""

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.version import Version

from denpexd.notify.history import STATES
from denpexd.settings import load
from denpexd.web.metrics import FAMILIES
from denpexd.web.view import RANK_STATES

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "systemd" / "denpexd.service"
HUB_UNIT = ROOT / "systemd" / "denpexd-hub.service"
TEMPLATE = ROOT / "systemd" / "denpexd@.service"
DROP_INS = ROOT / "systemd" / "denpexd.service.d"
PROMETHEUS = ROOT / "deploy" / "prometheus"
DASHBOARDS = sorted((ROOT / "deploy" / "grafana").glob("*.json"))
COMPOSE = ROOT / "deploy" / "compose"
KUBERNETES = ROOT / "deploy" / "kubernetes"

LABELS = {family.name: set(family.labels) for family in FAMILIES}
SPREAD = {"summary": ("sum", "count"), "histogram": ("sum", "count", "bucket")}
LABELS |= {
    f"{family.name}_{part}": {*family.labels, *(["le"] if part == "bucket" else [])}
    for family in FAMILIES
    for part in SPREAD.get(family.kind, ())
}
ALONE = {family.name for family in FAMILIES if family.kind in SPREAD}  # names without samples

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
needs_promtool = pytest.mark.skipif(
    shutil.which("promtool") is None, reason="promtool is not installed (Debian package prometheus)"
)


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    done = subprocess.run(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=250
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


def directives(path: Path) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for line in path.read_text("utf-8").splitlines():
        if "=" in line and not line.startswith("#"):
            name, _, value = line.partition("=")
            found.setdefault(name, []).append(value)
    return found


def unit_with(drop_in: str | None, folder: Path, template: bool = False) -> Path:
    """The unit as systemd would see it with a drop-in: later assignments win or add."""
    text = (TEMPLATE if template else UNIT).read_text("utf-8")
    if drop_in is not None:
        service = (DROP_INS / drop_in).read_text("utf-8").partition("[Service]\n")[2]
        text = text.replace("\n[Install]", f"\n{service}\n[Install]")
    unit = folder / ("denpexd@run7.service" if template else "denpexd.service")
    unit.write_text(text, "utf-8")
    return unit


class TestSystemd:
    @needs_systemd
    @pytest.mark.parametrize("template", [False, True])
    @pytest.mark.parametrize(
        ("drop_in", "limit"), [(None, 2.0), ("logs.conf.example", 2.0), ("stacks.conf.example", 2.6)]
    )
    def test_the_unit_is_valid_and_exposes_little(self, tmp_path, drop_in, limit, template):
        unit = unit_with(drop_in, tmp_path, template)
        assert run("systemd-analyze", "verify", "--man=no", unit) == ""
        threshold = f"--threshold={limit * 10:.0f}"  # of a hundred; above it the exit code is not 0
        report = run("systemd-analyze", "security", "--no-pager", "--offline=yes", threshold, unit)
        assert re.search(r"exposure level for denpexd\S*: [\d.]+", report)

    @needs_systemd
    def test_the_unit_of_the_hub_exposes_as_little(self):
        assert run("systemd-analyze", "verify", "--man=no", HUB_UNIT) == ""
        run("systemd-analyze", "security", "--no-pager", "--offline=yes", "--threshold=20", HUB_UNIT)

    def test_the_unit_of_the_hub_is_that_of_the_daemon_but_for_what_it_watches(self):
        hub, daemon = directives(HUB_UNIT), directives(UNIT)
        assert hub["ExecStart"] == ["/usr/bin/env denpexd hub -c /etc/denpexd/hub.yaml"]
        same = ("Type", "WatchdogSec", "NotifyAccess", "DynamicUser", "CapabilityBoundingSet", "SystemCallFilter")
        assert {name: hub[name] for name in same} == {name: daemon[name] for name in same}
        assert hub["ProtectHome"] == ["yes"]

    def test_one_of_several_differs_in_its_names_only(self):
        one, many = (path.read_text("utf-8").splitlines() for path in (UNIT, TEMPLATE))
        assert [line for line in many if line not in one and "%i" not in line and not line.startswith("#")] == []
        assert [line.replace("%i", "denpexd") for line in many if "=" in line and line not in one] == [
            "Description=denpexd for denpexd, explains hangs and crashes of multi-GPU training jobs",
            "EnvironmentFile=-/etc/denpexd/denpexd.env",
            "ExecStart=/usr/bin/env denpexd run -c /etc/denpexd/denpexd.yaml",
            "StateDirectory=denpexd/denpexd",
        ]

    def test_systemd_watches_a_daemon_that_reports_to_it(self):
        unit = directives(UNIT)
        assert unit["Type"] == ["notify"]
        assert unit["WatchdogSec"] == ["30s"]
        assert unit["NotifyAccess"] == ["main"]
        assert unit["DynamicUser"] == ["yes"]
        assert unit["StateDirectory"] == ["denpexd"]

    def test_the_command_is_the_documented_one(self):
        assert directives(UNIT)["ExecStart"] == ["/usr/bin/env denpexd run -c /etc/denpexd/denpexd.yaml"]

    def test_only_the_opt_in_grants_a_capability(self):
        assert directives(UNIT)["CapabilityBoundingSet"] == [""]
        granting = [path.name for path in DROP_INS.iterdir() if "CAP_SYS_PTRACE" in path.read_text("utf-8")]
        assert granting == ["stacks.conf.example"]


def pod() -> dict[str, object]:
    job = list(yaml.safe_load_all((KUBERNETES / "pytorchjob.yaml").read_text("utf-8")))[1]
    assert job["kind"] == "PyTorchJob"
    return job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]


def config_text() -> str:
    config = next(yaml.safe_load_all((KUBERNETES / "pytorchjob.yaml").read_text("utf-8")))
    assert config["kind"] == "ConfigMap"
    return config["data"]["denpexd.yaml"]


def hub_documents() -> dict[str, dict[str, Any]]:
    found = yaml.safe_load_all((KUBERNETES / "hub.yaml").read_text("utf-8"))
    return {document["kind"]: document for document in found}


class TestHubOnKubernetes:
    def test_its_configuration_is_accepted(self, tmp_path):
        config = tmp_path / "hub.yaml"
        config.write_text(hub_documents()["ConfigMap"]["data"]["hub.yaml"])
        assert load(config, overrides={}, environ={}).hub.url == ["nats://denpexd-nats:4222"]

    def test_hubs_and_broker_have_no_rights_and_every_mount_its_volume(self):
        documents = hub_documents()
        for kind in ("Deployment", "StatefulSet"):
            template = documents[kind]["spec"]["template"]["spec"]
            [container] = template["containers"]
            security = container["securityContext"]
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert (security["readOnlyRootFilesystem"], security["allowPrivilegeEscalation"]) == (True, False)
            claims = documents[kind]["spec"].get("volumeClaimTemplates", [])
            volumes = {v["name"] for v in template["volumes"]} | {c["metadata"]["name"] for c in claims}
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes

    def test_the_service_is_the_broker_that_the_hubs_ask(self):
        documents = hub_documents()
        assert documents["Service"]["metadata"]["name"] == "denpexd-nats"
        labels = documents["StatefulSet"]["spec"]["template"]["metadata"]["labels"]
        assert documents["Service"]["spec"]["selector"].items() <= labels.items()


class TestKubernetes:
    def test_denpexd_is_a_native_sidecar(self):
        (sidecar,) = pod()["spec"]["initContainers"]
        assert sidecar["name"] == "denpexd"
        assert sidecar["restartPolicy"] == "Always"
        assert [container["name"] for container in pod()["spec"]["containers"]] == ["pytorch"]
        assert pod()["spec"]["shareProcessNamespace"] is True

    def test_it_takes_the_processes_of_its_pod_for_those_of_its_job(self):
        (sidecar,) = pod()["spec"]["initContainers"]
        assert {"name": "DENPEXD_EVIDENCE__PROCESSES", "value": "any"} in sidecar["env"]

    def test_it_has_no_rights_and_cannot_touch_the_logs(self):
        (sidecar,) = pod()["spec"]["initContainers"]
        security = sidecar["securityContext"]
        assert security["runAsNonRoot"]
        assert security["readOnlyRootFilesystem"]
        assert security["allowPrivilegeEscalation"] is False
        assert security["capabilities"] == {"drop": ["ALL"]}
        mounts = {mount["name"]: mount for mount in sidecar["volumeMounts"]}
        assert mounts["logs"]["readOnly"]
        assert '# add: ["SYS_PTRACE"]' in (KUBERNETES / "pytorchjob.yaml").read_text("utf-8")

    def test_every_mount_has_its_volume_and_every_volume_a_bound(self):
        spec = pod()["spec"]
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        mounted = {m["name"] for c in spec["initContainers"] + spec["containers"] for m in c["volumeMounts"]}
        assert mounted == set(volumes)
        assert all(volume["emptyDir"].get("sizeLimit") for volume in volumes.values() if "emptyDir" in volume)

    def test_the_configuration_is_accepted_and_agrees_with_the_pod(self, tmp_path):
        (sidecar,) = pod()["spec"]["initContainers"]
        (tmp_path / "denpexd.yaml").write_text(config_text(), "utf-8")
        variables = {variable["name"]: variable.get("value", "some-job") for variable in sidecar["env"]}
        settings = load(tmp_path / "denpexd.yaml", overrides={}, environ=variables)
        assert settings.web.host == "0.0.0.0"
        assert [port["containerPort"] for port in sidecar["ports"]] == [settings.web.port]
        folders = [mount["mountPath"] for mount in sidecar["volumeMounts"]]
        assert str(settings.state_dir) in folders
        assert str(settings.web.token_file).startswith("/etc/denpexd-secret/")
        (trainer,) = pod()["spec"]["containers"]
        assert "--log-dir=/logs" in trainer["args"][0]
        assert all(path.startswith("/logs/") for path in settings.paths)

    def test_the_probes_ask_the_open_paths(self):
        (sidecar,) = pod()["spec"]["initContainers"]
        asked = {name: sidecar[name]["httpGet"] for name in ("startupProbe", "livenessProbe", "readinessProbe")}
        assert {probe["path"] for probe in asked.values()} == {"/healthz", "/readyz"}
        assert {probe["port"] for probe in asked.values()} == {sidecar["ports"][0]["name"]}
        assert asked["livenessProbe"]["path"] == "/healthz"

    def test_the_pod_monitor_finds_the_sidecar(self):
        monitor = yaml.safe_load((KUBERNETES / "podmonitor.yaml").read_text("utf-8"))
        assert monitor["spec"]["selector"]["matchLabels"].items() <= pod()["metadata"]["labels"].items()
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        assert endpoint["port"] == pod()["spec"]["initContainers"][0]["ports"][0]["name"]
        assert endpoint["path"] == "/metrics"

    def test_the_image_runs_as_the_user_of_the_pod(self):
        text = (KUBERNETES / "Dockerfile").read_text("utf-8")
        user = pod()["spec"]["initContainers"][0]["securityContext"]["runAsUser"]
        assert f"USER {user}:{user}" in text
        assert 'ENTRYPOINT ["denpexd"]' in text


class TestSupplyChain:
    def locked(self, name: str) -> dict[str, tuple[Version, int]]:
        """Versions and how many hashes each has."""
        text = (ROOT / "deploy" / name).read_text("utf-8").replace("\\\n", " ")
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        found = [re.match(r"([\w.-]+)==([\w.]+)", line) for line in lines]
        assert all(found)
        return {m[1]: (Version(m[2]), line.count("--hash=sha256:")) for m, line in zip(found, lines, strict=True) if m}

    def wanted(self) -> list[Requirement]:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
        extras = [text for group in project["optional-dependencies"].values() for text in group]
        return [r for r in map(Requirement, (*project["dependencies"], *extras)) if r.name != "denpexd"]

    def test_what_the_package_needs_is_locked_with_hashes(self):
        locked = self.locked("requirements.lock")
        for requirement in self.wanted():
            version = locked[requirement.name][0]
            assert version in requirement.specifier, f"{requirement}: make lock"
        assert all(hashes for _, hashes in (*locked.values(), *self.locked("requirements-build.lock").values()))

    def test_no_upper_bound_breaks_an_environment(self):
        for requirement in self.wanted():
            assert [part.operator for part in requirement.specifier] == [">="], requirement

    def test_the_image_installs_nothing_but_what_is_locked(self):
        text = (KUBERNETES / "Dockerfile").read_text("utf-8")
        for line in re.findall(r"pip (?:install|wheel) [^\\\n]*", text):
            assert "--require-hashes" in line or "--no-deps" in line, line


class TestSlurm:
    def test_the_batch_script_parses_and_sets_known_variables(self, tmp_path):
        script = ROOT / "deploy" / "slurm" / "train.sbatch"
        run("bash", "-n", script)
        values = dict(re.findall(r"^\s*(DENPEXD_\w+)=(\S+)", script.read_text("utf-8"), re.MULTILINE))
        assert values
        load(None, overrides={}, environ={n: str(tmp_path) if "$" in v else v for n, v in values.items()})


def used(expression: str) -> None:
    """Fails if an expression names a metric or a label of a metric that /metrics does not have."""
    for name, selector in re.findall(r"\b(denpexd_\w+)(?:\{([^}]*)\})?", expression):
        assert name in LABELS, name
        for label in re.findall(r"(\w+)\s*[=!]~?", selector):
            assert label in LABELS[name] | {"instance"}, (name, label)
        for state in re.findall(r'state=~?"([^"]*)"', selector):
            known = STATES if name == "denpexd_fixes" else RANK_STATES
            assert set(state.split("|")) <= set(known)
    for name in re.findall(r"\bdenpexd:[\w:]+", expression):
        assert name in recorded(), name


def rules() -> list[dict[str, object]]:
    files = [PROMETHEUS / name for name in yaml.safe_load((PROMETHEUS / "scrape.yml").read_text("utf-8"))["rule_files"]]
    groups = [group for file in files for group in yaml.safe_load(file.read_text("utf-8"))["groups"]]
    return [rule for group in groups for rule in group["rules"]]


def recorded() -> set[object]:
    return {rule["record"] for rule in rules() if "record" in rule}


class TestPrometheus:
    @needs_promtool
    def test_promtool_accepts_the_configuration_and_the_rules(self):
        assert "SUCCESS" in run("promtool", "check", "config", "scrape.yml", cwd=PROMETHEUS)
        for tests in ("rules_test.yml", "recurrence_test.yml"):
            assert "SUCCESS" in run("promtool", "test", "rules", tests, cwd=PROMETHEUS)

    def test_rules_use_only_metrics_that_exist_and_say_what_to_do(self):
        assert len(rules()) > 15
        for rule in rules():
            used(rule["expr"])
            if "alert" in rule:
                assert rule["labels"]["severity"] in ("critical", "warning", "info")
                assert set(rule["annotations"]) == {"summary", "description"}

    def test_every_alert_is_tested_to_fire_and_every_recorded_series_to_have_its_value(self):
        tests = [
            test
            for name in ("rules_test.yml", "recurrence_test.yml")
            for test in yaml.safe_load((PROMETHEUS / name).read_text("utf-8"))["tests"]
        ]
        firing = {case["alertname"] for test in tests for case in test["alert_rule_test"] if case["exp_alerts"]}
        assert firing == {rule["alert"] for rule in rules() if "alert" in rule}
        asked = {case["expr"] for test in tests for case in test.get("promql_expr_test", ())}
        used_by_rules = {name for name in recorded() if any(str(name) in str(r["expr"]) for r in rules())}
        assert recorded() <= asked | used_by_rules

    def test_the_scrape_job_has_the_name_that_the_alert_looks_for(self):
        config = yaml.safe_load((PROMETHEUS / "scrape.yml").read_text("utf-8"))
        (job,) = config["scrape_configs"]
        assert f'up{{job="{job["job_name"]}"}}' in (PROMETHEUS / "rules.yml").read_text("utf-8")


def boards() -> dict[str, dict[str, object]]:
    return {path.stem: json.loads(path.read_text("utf-8")) for path in DASHBOARDS}


def expressions() -> list[str]:
    panels = [panel for board in boards().values() for panel in board["panels"]]
    found = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    return found + [mark["expr"] for board in boards().values() for mark in board["annotations"]["list"]]


class TestGrafana:
    def test_there_is_one_for_all_jobs_one_for_a_job_and_one_for_denpexd(self):
        assert {name: board["uid"] for name, board in boards().items()} == {
            name: name for name in ("denpexd-overview", "denpexd-job", "denpexd-itself")
        }
        for board in boards().values():
            led_to = {link["url"].rpartition("/")[2] for link in board["links"]}
            assert led_to == boards().keys() - {board["uid"]}

    def test_every_expression_uses_only_metrics_that_exist(self):
        assert len(expressions()) > 60
        for expression in expressions():
            used(expression)

    @needs_promtool
    def test_every_expression_is_promql(self, tmp_path):
        filled = [re.sub(r"\$__\w+", "5m", e).replace("$training_job", ".*") for e in expressions()]
        records = [{"record": f"panel:{n}", "expr": e} for n, e in enumerate(filled)]
        (tmp_path / "rules.yml").write_text(
            yaml.safe_dump({"groups": [{"name": "dashboard", "rules": records}]}), "utf-8"
        )
        run("promtool", "check", "rules", "--lint=none", tmp_path / "rules.yml")

    def test_they_show_every_metric_that_tells_of_training_or_trouble(self):
        shown = set(re.findall(r"denpexd_\w+", " ".join(expressions())))
        assert set(LABELS) - ALONE <= shown

    @pytest.mark.parametrize("name", [path.stem for path in DASHBOARDS])
    def test_it_asks_for_a_data_source_and_names_none(self, name):
        board = boards()[name]
        kinds = {variable["name"]: variable["type"] for variable in board["templating"]["list"]}
        assert kinds.pop("datasource") == "datasource"
        assert kinds in ({}, {"training_job": "query"})
        assert ("training_job" in kinds) == ("$training_job" in json.dumps(board))
        assert set(re.findall(r'"uid": "([^"]*)"', json.dumps(board))) == {"${datasource}", name}
        assert isinstance(board["refresh"], str)

    @pytest.mark.parametrize("name", [path.stem for path in DASHBOARDS])
    def test_panels_have_a_description_and_do_not_overlap(self, name):
        taken: set[tuple[int, int]] = set()
        panels = boards()[name]["panels"]
        assert len({panel["id"] for panel in panels}) == len(panels)
        for panel in panels:
            assert panel["type"] == "row" or panel["description"]
            at = panel["gridPos"]
            cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            assert at["x"] + at["w"] <= 24
            assert not cells & taken, panel["title"]
            taken |= cells


class TestCompose:
    def services(self) -> dict[str, dict[str, object]]:
        return yaml.safe_load((COMPOSE / "compose.yaml").read_text("utf-8"))["services"]

    def test_every_file_that_is_mounted_exists_and_nothing_listens_beyond_this_machine(self):
        assert set(self.services()) == {"denpexd", "prometheus", "alertmanager", "grafana"}
        for service in self.services().values():
            for volume in service["volumes"]:
                source = str(volume).partition(":")[0]
                assert not source.startswith(".") or (COMPOSE / source).exists(), source
            assert all(str(port).startswith("127.0.0.1:") for port in service["ports"])

    def test_denpexd_takes_its_configuration_and_writes_where_it_may(self):
        settings = load(COMPOSE / "denpexd.yaml", overrides={}, environ={})
        mounts = [str(volume).rsplit(":", 2) for volume in self.services()["denpexd"]["volumes"]]
        assert str(settings.state_dir) in {mount[-1] for mount in mounts}
        assert settings.web.host == "0.0.0.0"
        hosts = re.findall(r"http://([\w-]+)", (COMPOSE / "denpexd.yaml").read_text("utf-8"))
        assert set(hosts) == {"alertmanager"}

    def test_prometheus_has_the_rules_and_keeps_as_long_as_they_look_back(self, tmp_path):
        prometheus = self.services()["prometheus"]
        config = yaml.safe_load((COMPOSE / "prometheus.yml").read_text("utf-8"))
        shipped = yaml.safe_load((PROMETHEUS / "scrape.yml").read_text("utf-8"))
        assert config["rule_files"] == shipped["rule_files"]
        assert config["scrape_configs"][0]["job_name"] == shipped["scrape_configs"][0]["job_name"]
        mounted = {str(volume).split(":")[0].rpartition("/")[2] for volume in prometheus["volumes"]}
        assert {"prometheus.yml", *config["rule_files"]} <= mounted
        assert "--storage.tsdb.retention.time=35d" in prometheus["command"]
        for asked in [*config["scrape_configs"], *config["alerting"]["alertmanagers"]]:
            for target in asked["static_configs"][0]["targets"]:
                assert target.partition(":")[0] in self.services()

    @needs_promtool
    def test_prometheus_and_alertmanager_accept_their_files(self, tmp_path):
        for file in (COMPOSE / "prometheus.yml", *PROMETHEUS.glob("*.yml")):
            shutil.copy(file, tmp_path)
        assert "SUCCESS" in run("promtool", "check", "config", "prometheus.yml", cwd=tmp_path)
        if shutil.which("amtool") is not None:
            assert "SUCCESS" in run("amtool", "check-config", COMPOSE / "alertmanager.yml")

    def test_grafana_finds_the_dashboards_and_the_data_source(self):
        grafana = self.services()["grafana"]
        source = yaml.safe_load((COMPOSE / "grafana/provisioning/datasources/prometheus.yaml").read_text("utf-8"))
        assert source["datasources"][0]["url"] == "http://prometheus:9090"
        provider = yaml.safe_load((COMPOSE / "grafana/provisioning/dashboards/denpexd.yaml").read_text("utf-8"))
        folder = provider["providers"][0]["options"]["path"]
        assert f"../grafana:{folder}:ro" in grafana["volumes"]
        home = Path(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
        assert (str(home.parent), home.stem in boards()) == (folder, True)


def test_files_named_by_the_deployment_guide_exist():
    text = (ROOT / "docs" / "deployment.md").read_text("utf-8")
    named = set(re.findall(r"(?<![\w/])((?:systemd|deploy)/[\w./-]+)", text))
    assert len(named) > 6
    for path in named:
        assert (ROOT / path.rstrip(".")).exists(), path
    for example in re.findall(r"`(\w+\.conf\.example)`", text):
        assert (DROP_INS / example).exists()


def test_configurations_of_the_deployment_guide_are_accepted(tmp_path):
    text = (ROOT / "docs" / "deployment.md").read_text("utf-8")
    blocks = [block for block in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL) if "paths:" in block]
    assert blocks
    for block in blocks:
        (tmp_path / "denpexd.yaml").write_text(block, "utf-8")
        load(tmp_path / "denpexd.yaml", overrides={}, environ={})
