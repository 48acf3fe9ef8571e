"""Examples, clauses and overlaps of rules, played by the real scanner and core."""

import textwrap
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from denpexd.catalog.load import Loaded, load, read_folders, shipped_rules
from denpexd.catalog.mutants import mutants
from denpexd.catalog.report import CheckReport, as_json, check, table
from denpexd.catalog.trials import Prover, Trial
from denpexd.core.rule import Correlation, Role, Rule, Signal
from denpexd.replay import Replayer
from denpexd.scan.re2_engine import Re2Engine

TINY = Path(__file__).parents[1] / "data" / "tiny"
STEPS = "\n".join(f"          {t}     *   | step {t} loss 2.3" for t in range(1, 9))

HEAD = """
    schema: 1
    id: {id}
    title: A broken disk
    category: {category}
    severity: high
    status: stable
    domain: code
    scope: [training]
    quick_answer: Mend it.
"""

SIGNALS = """
    schema: 1
    signals:
      step:
        log: '^step (?P<step>[0-9]+) loss (?P<loss>[0-9.]+)$'
        role: progress
        means: a step
        samples: ["step 1 loss 2.3"]
      lost:
        log: '^peer is gone$'
        role: collateral
        means: it lost a peer
        samples: ["peer is gone"]
"""


def prove(loaded: Loaded, ids: Sequence[str]) -> list[Trial]:
    return Prover(loaded.catalog, Replayer(loaded.catalog, Re2Engine)).all(ids)


def write(folder: Path, rule_id: str, body: str, *, category: str = "storage") -> Path:
    (folder / "signals").mkdir(exist_ok=True)
    (folder / "signals" / "basic.yaml").write_text(textwrap.dedent(SIGNALS))
    path = folder / category / f"{rule_id}.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(textwrap.dedent(HEAD.format(id=rule_id, category=category)) + textwrap.dedent(body))
    return path


def example(name: str, lines: Sequence[str], expect: str) -> str:
    timeline = "\n".join([STEPS, *(f"          {line}" for line in lines)])
    return (
        f"      - name: {name}\n        world_size: 2\n        observe_until: 90\n"
        f"        timeline: |\n{timeline}\n        expect: {expect}\n"
    )


FIRES = "{initiating: [1], collateral: [0], by: 60}"
DISK = ["9 1 | disk 7 is broken", "10 0 | peer is gone", "11 * ! exit code=1"]


def checked(folder: Path, *, require: bool = True) -> CheckReport:
    return check([folder], prove, strict=False, require_clauses=require)


def test_a_rule_whose_clauses_are_all_needed_is_well(tmp_path: Path) -> None:
    signals = "    signals:\n      broken: {log: 'disk [0-9]+ is broken', means: x}\n    examples:\n"
    body = signals + example("fires", DISK, FIRES) + example("silent", ["9 1 ! exit code=0"], "none")
    write(tmp_path, "bad-disk", body)
    report = checked(tmp_path)
    assert report.ok, table(report)
    assert report.rows[0].fired == (1, 1)


def test_a_signal_that_no_example_shows_is_told_at_its_place(tmp_path: Path) -> None:
    body = (
        "    signals:\n"
        "      broken: {log: 'disk [0-9]+ is broken', means: x}\n"
        "      full: {log: 'disk [0-9]+ is full', means: x}\n"
        "      dead: {fact: oom_killed, means: x}\n"
        "    examples:\n" + example("fires", DISK, FIRES) + example("silent", ["9 1 ! exit code=0"], "none")
    )
    path = write(tmp_path, "bad-disk", body)
    report = checked(tmp_path)
    assert [str(error).split(" (")[0] for error in report.unneeded] == [
        f"{path}:13:3: no example needs this clause: signal full",
        f"{path}:14:3: no example needs this clause: signal dead",
    ]
    assert not report.ok
    assert table(report).splitlines()[-3].split() == ["bad-disk", "ok", "ok", "1/1", "1/1", "1/3", "ok", "FAILED"]
    assert checked(tmp_path, require=False).ok
    assert {error["kind"] for error in as_json(report)["errors"]} == {"clause"}


@pytest.mark.parametrize(
    ("clause", "lines"),
    [
        ("except", ["9 1 | disk 7 is broken, said the manual"]),
        ("count 2", ["9 1 | disk 7 is broken"]),
    ],
)
def test_a_near_miss_makes_a_limit_of_a_signal_needed(tmp_path: Path, clause: str, lines: list[str]) -> None:
    written = "except: manual" if clause == "except" else "count: 2"
    signals = f"    signals:\n      broken: {{log: 'disk [0-9]+ is broken', {written}, means: x}}\n    examples:\n"
    fires = signals + example("fires", ["8.5 1 | disk 7 is broken", *DISK], FIRES)
    miss = example("near miss", [*lines, "10 0 | peer is gone", "11 * ! exit code=1"], "none")
    write(tmp_path, "bad-disk", fires + example("silent", ["9 1 ! exit code=0"], "none"))
    assert [error.why for error in checked(tmp_path).unneeded] == [
        f"no example needs this clause: signal broken: {clause}"
    ]
    write(tmp_path, "bad-disk", fires + miss)
    assert checked(tmp_path).unneeded == ()


def test_every_clause_of_a_correlation_is_tried() -> None:
    catalog, _ = load([TINY], strict=False)
    tried = {rule.id: [mutant.clause for mutant in mutants(rule)] for rule in catalog.rules.values()}
    assert tried["lonely-eval"] == [
        "evaluating: any_of exchanging",
        "evaluating: any_of sync_layers + alone + stuck",
        "evaluating: any_of sync_layers + alone + stuck, its sync_layers",
        "evaluating: any_of sync_layers + alone + stuck, its alone",
        "evaluating: any_of sync_layers + alone + stuck, its stuck",
        "evaluating: ranks minority instead of any",
        "waiting: none_of exchanging",
        "waiting: ranks rest instead of maybe",
        "confirm says_so",
        "confirm says_so: any_of in_eval",
        "confirm says_so: any_of alone",
        "confirm says_so: ranks minority instead of any",
        "signal stuck: budget",
    ]
    assert "hold 60 s" in tried["parked"]
    assert tried["any-error"] == ["signal error", "signal code", "signal code: failed"]


def correlated(*roles: Role, confirm: tuple[Role, ...] = ()) -> Rule:
    entry = load([TINY], strict=False)[0].rules["lonely-eval"].entry
    return Rule("made", entry, {}, Correlation(roles=roles, confirm=confirm))


def test_the_only_role_that_can_show_anything_is_not_tried_without_ranks() -> None:
    shows, rest = Role("shows", "any", any_of=(("made.a",),)), Role("others", "rest", none_of=("made.b",))
    size = "shows: ranks any instead of maybe"
    assert size not in [mutant.clause for mutant in mutants(correlated(shows, rest))]
    assert size in [mutant.clause for mutant in mutants(correlated(shows, Role("more", "maybe", all_of=("made.c",))))]
    sure = Role("sure", "any", any_of=(("made.c",),))
    assert size in [mutant.clause for mutant in mutants(correlated(shows, rest, confirm=(sure,)))]


def test_what_is_compared_belongs_to_the_fact() -> None:
    signal = Signal("made.a", "fact", "x", fact="differs", params={"what": "numel"})
    rule = correlated(Role("shows", "any", any_of=(("made.a",),)))
    rule = Rule("made", rule.entry, {"a": signal}, rule.correlation)
    assert [mutant.clause for mutant in mutants(rule)] == ["shows: any_of a"]


def test_another_rule_that_explains_an_example_must_be_declared(tmp_path: Path) -> None:
    signals = "    signals:\n      broken: {log: 'disk [0-9]+ is broken', means: x}\n    examples:\n"
    body = signals + example("fires", DISK, FIRES) + example("silent", ["9 1 ! exit code=0"], "none")
    path = write(tmp_path, "bad-disk", body)
    other = "    precision: general\n    signals:\n      lost: {fact: exit, failed: true, means: x}\n    examples:\n"
    spare = example("fires", ["10 0 | peer is gone", "9 1 ! exit code=1"], FIRES)
    other += spare + example("silent", ["9 * ! exit code=0"], "none")
    write(tmp_path, "bad-exit", other, category="crash")
    report = checked(tmp_path)
    assert [error.path for error in report.overlaps] == [str(path)]
    assert "example 'fires': 'bad-exit' also explains it, which is not declared" in table(report)
    write(tmp_path, "bad-disk", "    related: [bad-exit]\n" + body)
    assert checked(tmp_path).overlaps == ()


def test_an_example_ends_in_its_company_as_among_all_rules() -> None:
    loaded = read_folders([shipped_rules()])
    stage = Replayer(loaded.catalog, Re2Engine)
    prover = Prover(loaded.catalog, stage, clauses=False)
    rule = loaded.catalog.rules["rank-oom-killed"]
    for example_ in rule.examples:
        heard = stage.play(example_)
        among_all = stage.judge(heard)
        company = prover._company(rule, among_all.matched)
        assert len(company.rules) < 12
        assert stage.judge(heard, company).verdicts == among_all.verdicts


def test_a_check_of_many_rules_plays_fewer_seconds_and_finds_the_same(tmp_path: Path) -> None:
    loaded = read_folders([TINY, shipped_rules()], strict=False)
    rules = dict(loaded.catalog.rules)
    rules["silent-hang"] = replace(rules["silent-hang"], examples=rules["silent-hang"].examples[::7])
    catalog, some = replace(loaded.catalog, rules=rules), ["silent-hang", "rank-oom-killed"]
    stage = Replayer(catalog, Re2Engine)
    quick, exact = (Prover(catalog, stage, clauses=False, exact=exact).all(some) for exact in (False, True))
    assert [[r.ok for r in trial.results] for trial in quick] == [[r.ok for r in trial.results] for trial in exact]


def test_several_processes_find_the_same(tmp_path: Path) -> None:
    loaded = read_folders([TINY, shipped_rules()], strict=False)
    some = ["lmdb-corruption", "rank-oom-killed", "text-encoding-mismatch"]
    prover = Prover(loaded.catalog, Replayer(loaded.catalog, Re2Engine))
    assert prover.all(some, workers=2) == prover.all(some)
