"""Folders of rule files become one catalogue; bad files are reported and stop nothing."""

import shutil
from pathlib import Path

import pytest

from denpexd.catalog.lint import lint
from denpexd.catalog.load import load, read_folders, shipped_rules
from denpexd.core.rule import Rule

GOOD = Path(__file__).parents[1] / "data" / "rules" / "good"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOOD, tmp_path / "rules"))


def good() -> Rule:
    return load([GOOD])[0].rules["good"]


def test_a_good_folder_has_no_errors_and_no_findings() -> None:
    loaded = read_folders([GOOD])
    assert [str(error) for error in (*loaded.errors, *lint(loaded))] == []


def test_shipped_rules_are_found_in_a_checkout() -> None:
    assert (shipped_rules() / "signals").is_dir()


def test_signals_have_full_ids_and_rules_use_local_names() -> None:
    catalog, _ = load([GOOD])
    rule = catalog.rules["good"]
    assert rule.signals["exchanging"].id == "torch.exchange"
    assert rule.signals["stuck"].id == "good.stuck"
    assert {"torch.step", "torch.exchange", "good.stuck", "good.killed"} <= set(catalog.signals)
    assert catalog.aliases == {"good-former": "good"}


def test_roles_hold_full_ids_in_groups() -> None:
    correlation = good().correlation
    assert correlation is not None
    evaluating, waiting = correlation.roles
    assert evaluating.any_of == (("torch.exchange",), ("torch.evaluating", "good.stuck"))
    assert evaluating.none_of == ("good.raised", "good.killed")
    assert (waiting.ranks, waiting.any_of) == ("rest", ())
    assert [role.name for role in correlation.confirm] == ["elsewhere"]
    assert (correlation.window, correlation.hold) == (1800.0, 5.0)
    assert (correlation.initiating, correlation.collateral) == (("evaluating",), ("waiting",))


def test_fact_parameters_are_numbers_words_or_matchers() -> None:
    signals = good().signals
    assert signals["stuck"].params == {"budget": True}
    assert signals["killed"].params == {"signal": 9, "by": "launcher"}
    assert signals["barrier"].params == {"numel": "1"}
    assert signals["barrier"].param_matchers["op"].search("WorkNCCL(OpType=ALLREDUCE")
    assert (signals["quiet"].params, signals["quiet"].count) == ({"for": 120.0}, 2)


def test_the_type_of_an_exception_must_match_as_a_whole() -> None:
    matcher = good().signals["raised"].param_matchers["type"]
    assert matcher.search("ValueError")
    assert not matcher.search("ValueErrors")
    assert not matcher.search("torch.cuda.OutOfMemoryError")


def test_shared_signals_keep_role_phase_and_exclusion() -> None:
    signal = load([GOOD])[0].signals["torch.evaluating"]
    assert (signal.kind, signal.role, signal.phase) == ("log", "phase", "eval")
    assert signal.exclude is not None
    assert signal.exclude.search("not running validation")


def test_a_yes_is_a_word() -> None:
    assert good().entry.resume_safe == "yes, the model was not touched"


def test_a_bad_file_never_stops_the_others(folder: Path) -> None:
    (folder / "hang" / "broken.yaml").write_text("{")
    (folder / "hang" / "latin.yaml").write_bytes(b"title: caf\xe9\n")
    (folder / "hang" / "huge.yaml").write_bytes(b"#" * 1_000_001)
    (folder / "hang" / "bell.yaml").write_text("title: a\x07\n")
    (folder / "hang" / "other.yml").write_text("")
    catalog, errors = load([folder, folder / "nowhere"])
    assert list(catalog.rules) == ["good"]
    said = {Path(error.path).name: (error.line, error.column, error.why) for error in errors}
    assert said["latin.yaml"] == (1, 11, "not UTF-8")
    assert said["bell.yaml"] == (1, 9, "control character '\\x07'")
    assert said["huge.yaml"][2] == "the file is larger than 1000000 bytes"
    assert said["other.yml"][2] == "the file is not read"
    assert said["nowhere"][2] == "there is no such folder of rules"
    assert "broken.yaml" in said


def test_all_mistakes_of_a_file_are_reported_at_once(folder: Path) -> None:
    path = folder / "hang" / "good.yaml"
    text = path.read_text().replace("severity: critical", "severity: dire").replace("window: 30m", "windw: 30m")
    path.write_text(text.replace("world_size: 4", "world_size: four").replace("fallback:", "fallbck:"))
    _, errors = load([folder])
    assert [error.line for error in errors] == sorted(error.line for error in errors)
    assert {error.why for error in errors} >= {
        "'dire' is not a valid value",
        "unknown key 'windw'",
        "unknown key 'fallbck'",
        "'fallback' is missing",
    }


def test_one_bad_shared_signal_leaves_the_rest_of_its_file(folder: Path) -> None:
    path = folder / "signals" / "torch.yaml"
    path.write_text(path.read_text().replace("phase: eval", "phase: evaluation"))
    catalog, errors = load([folder])
    assert {"torch.step", "torch.exchange"} <= set(catalog.signals)
    assert "torch.evaluating" not in catalog.signals
    assert [error.why for error in errors] == [
        "there is no signal 'torch.evaluating'",
        "'evaluation' is not a valid value",
    ]


def test_incomplete_texts_pass_only_where_asked(folder: Path) -> None:
    path = folder / "hang" / "good.yaml"
    path.write_text(path.read_text().replace("fallback: Evaluate on all ranks.\n", ""))
    assert [error.why for error in load([folder])[1]] == ["'fallback' is missing"]
    catalog, errors = load([folder], strict=False)
    assert errors == []
    assert catalog.rules["good"].entry.fallback == ""


def test_ids_are_unique_over_all_folders(folder: Path) -> None:
    catalog, errors = load([GOOD, folder])
    assert list(catalog.rules) == ["good"]
    assert {error.why for error in errors} == {"rule 'good' exists already", "signals called 'torch' exist already"}


def test_a_rule_of_one_folder_may_use_signals_of_a_later_one(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "shared" / "signals").mkdir(parents=True)
    (folder / "signals" / "torch.yaml").rename(tmp_path / "shared" / "signals" / "torch.yaml")
    catalog, errors = load([folder, tmp_path / "shared"])
    assert errors == []
    assert "good" in catalog.rules
