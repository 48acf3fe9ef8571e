"""`denpexd rules check`: everything that can be said about folders of rules, as one table or one JSON object."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from denpexd.catalog.examples import ExampleResult, Runner, run_examples
from denpexd.catalog.lint import lint
from denpexd.catalog.load import Loaded, read_folders
from denpexd.errors import RuleError


@dataclass(frozen=True, slots=True)
class Row:
    """One rule: mistakes of schema and lint, and examples as (as expected, all), None where they were not run."""

    rule: str
    path: str
    schema: int
    lint: int
    fired: tuple[int, int] | None
    silent: tuple[int, int] | None

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong with the rule."""
        examples = (self.fired, self.silent)
        return not self.schema and not self.lint and all(part is None or part[0] == part[1] for part in examples)


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What a check found. `errors` are of the schema, `findings` of lint."""

    rows: tuple[Row, ...]
    errors: tuple[RuleError, ...]
    findings: tuple[RuleError, ...]
    examples: tuple[ExampleResult, ...]
    signals: int

    @property
    def ok(self) -> bool:
        """Whether the folders are as they must be."""
        return not self.errors and not self.findings and all(result.ok for result in self.examples)


def check(
    folders: Sequence[Path], runner: Runner | None = None, *, strict: bool = True, only: Sequence[Path] = ()
) -> CheckReport:
    """Schema, lint and, where a runner is given, the examples of all rules in the folders. Never raises.

    `only`: report on these rule files alone, read with all folders for company.
    """
    loaded = read_folders(folders, strict=strict)
    findings = lint(loaded)
    if only:
        _narrow(loaded, findings, {path.resolve() for path in only})
    results = run_examples(loaded.catalog, runner) if runner else []
    return CheckReport(
        rows=_rows(loaded, findings, results if runner else None),
        errors=tuple(loaded.errors),
        findings=tuple(findings),
        examples=tuple(results),
        signals=sum(len(source.file.signals) for source in loaded.signal_sources.values()),
    )


def _narrow(loaded: Loaded, findings: list[RuleError], only: set[Path]) -> None:
    loaded.paths = [path for path in loaded.paths if path.resolve() in only]
    loaded.errors = [error for error in loaded.errors if Path(error.path).resolve() in only]
    findings[:] = [error for error in findings if Path(error.path).resolve() in only]
    chosen = {rule for rule, source in loaded.rule_sources.items() if Path(source.document.path).resolve() in only}
    loaded.rules = {rule_id: rule for rule_id, rule in loaded.rules.items() if rule_id in chosen}


def _rows(loaded: Loaded, findings: Sequence[RuleError], results: Sequence[ExampleResult] | None) -> tuple[Row, ...]:
    schema = Counter(error.path for error in loaded.errors)
    linted = Counter(error.path for error in findings)
    ids = {source.document.path: rule_id for rule_id, source in loaded.rule_sources.items()}
    rows = []
    for path in map(str, loaded.paths):
        rule = ids.get(path, Path(path).stem)
        mine = None if results is None or path not in ids else [one for one in results if one.rule == rule]
        fired, silent = (None, None) if mine is None else (_tally(mine, fires=True), _tally(mine, fires=False))
        rows.append(Row(rule, path, schema[path], linted[path], fired, silent))
    return tuple(sorted(rows, key=lambda row: row.path))


def _tally(results: Sequence[ExampleResult], *, fires: bool) -> tuple[int, int]:
    kind = [result.ok for result in results if result.fires is fires]
    return sum(kind), len(kind)


def table(report: CheckReport) -> str:
    """The report for a person: every mistake as `file:line:column`, then one row a rule, then the sum."""
    lines = [f"{error}" for error in (*report.errors, *report.findings)]
    lines += [f"{one.rule}: example '{one.example}': {one.why}" for one in report.examples if not one.ok]
    cells = [("rule", "schema", "lint", "examples fired", "silent", "result")]
    cells += [
        (row.rule, _count(row.schema), _count(row.lint), _part(row.fired), _part(row.silent), _word(row.ok))
        for row in report.rows
    ]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    if lines:
        lines.append("")
    lines += ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    good = sum(row.ok for row in report.rows)
    lines += ["", f"{len(report.rows)} rules, {report.signals} shared signals: {good} rules ok, {_word(report.ok)}"]
    return "\n".join(lines)


def _count(number: int) -> str:
    return "ok" if number == 0 else f"{number} wrong"


def _part(part: tuple[int, int] | None) -> str:
    return "-" if part is None else f"{part[0]}/{part[1]}"


def _word(ok: bool) -> str:
    return "ok" if ok else "FAILED"


def as_json(report: CheckReport) -> dict[str, Any]:
    """The report for programs (`--format json`): `ok`, `rules`, `errors`, `examples`."""
    errors = [("schema", error) for error in report.errors] + [("lint", error) for error in report.findings]
    return {
        "ok": report.ok,
        "shared_signals": report.signals,
        "rules": [
            {
                "rule": row.rule, "path": row.path, "ok": row.ok, "schema_errors": row.schema, "lint_errors": row.lint,
                "fired": _json_part(row.fired), "silent": _json_part(row.silent),
            }
            for row in report.rows
        ],
        "errors": [
            {
                "kind": kind, "path": error.path, "line": error.line, "column": error.column,
                "why": error.why, "hint": error.hint,
            }
            for kind, error in errors
        ],
        "examples": [
            {
                "rule": one.rule, "example": one.example, "expects": "fires" if one.fires else "none", "ok": one.ok,
                "why": one.why, "opened_t": one.opened_t, "verdicts": list(one.verdicts),
            }
            for one in report.examples
        ],
    }  # fmt: skip


def _json_part(part: tuple[int, int] | None) -> dict[str, int] | None:
    return None if part is None else {"as_expected": part[0], "all": part[1]}
