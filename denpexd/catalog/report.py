"""`denpexd rules check`: everything that can be said about folders of rules, as one table or one JSON object."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from denpexd.catalog.lint import lint
from denpexd.catalog.load import Loaded, read_folders
from denpexd.catalog.trials import Trial
from denpexd.errors import RuleError

UNTESTED = "no example needs this clause"


@dataclass(frozen=True, slots=True)
class Row:
    """One rule: mistakes of schema and lint; examples that fired and stayed silent as written, and clauses that some
    example needs, each as (so many, of all); failures that also explain its examples. None: not tried.
    """

    rule: str
    path: str
    schema: int
    lint: int
    fired: tuple[int, int] | None = None
    silent: tuple[int, int] | None = None
    clauses: tuple[int, int] | None = None
    overlaps: int | None = None
    require_clauses: bool = True

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong with the rule."""
        parts = (self.fired, self.silent, self.clauses if self.require_clauses else None)
        whole = all(part is None or part[0] == part[1] for part in parts)
        return whole and not (self.schema or self.lint or self.overlaps)


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What a check found. `errors` are of the schema, `findings` of lint, the others of the trials of each rule."""

    rows: tuple[Row, ...]
    errors: tuple[RuleError, ...]
    findings: tuple[RuleError, ...]
    trials: tuple[Trial, ...]
    unneeded: tuple[RuleError, ...]
    overlaps: tuple[RuleError, ...]
    signals: int
    require_clauses: bool = True

    @property
    def ok(self) -> bool:
        """Whether the folders are as they must be."""
        mistakes = self.errors or self.findings or self.overlaps or (self.unneeded and self.require_clauses)
        return not mistakes and all(result.ok for trial in self.trials for result in trial.results)


Prove = Callable[[Loaded, Sequence[str]], Sequence[Trial]]
"""Plays the examples of these rules of what was loaded."""


def check(
    folders: Sequence[Path],
    prove: Prove | None = None,
    *,
    strict: bool = True,
    only: Sequence[Path] = (),
    require_clauses: bool = True,
) -> CheckReport:
    """Schema, lint and, where they can be proved, the examples and clauses of all rules in the folders. Never raises.

    `only`: report on these rule files (or all files below these folders) alone, read with all folders for company.
    `require_clauses`: a clause that no example needs is a mistake, else it is only told.
    """
    loaded, chosen = read_folders(folders, strict=strict), {path.resolve() for path in only}

    def wanted(path: str) -> bool:
        where = Path(path).resolve()
        return not chosen or bool(chosen & {where, *where.parents})

    findings = lint(loaded, wanted)
    loaded.paths = [path for path in loaded.paths if wanted(str(path))]
    loaded.errors = [error for error in loaded.errors if wanted(error.path)]
    rules = [rule for rule, source in loaded.rule_sources.items() if wanted(source.document.path)]
    trials = list(prove(loaded, rules)) if prove else []
    return CheckReport(
        rows=_rows(loaded, findings, trials, require_clauses=require_clauses),
        errors=tuple(loaded.errors),
        findings=tuple(findings),
        trials=tuple(trials),
        unneeded=tuple(_unneeded(loaded, trials)),
        overlaps=tuple(_overlaps(loaded, trials)),
        signals=sum(len(source.file.signals) for source in loaded.signal_sources.values()),
        require_clauses=require_clauses,
    )


def _unneeded(loaded: Loaded, trials: Sequence[Trial]) -> list[RuleError]:
    found = []
    for trial in trials:
        for one in trial.unneeded:
            document = loaded.rule_sources[one.rule].document
            hint = "remove it, or add the example that shows what it is for"
            found.append(document.error(one.trail, f"{UNTESTED}: {one.clause}", hint))
    return found


def _overlaps(loaded: Loaded, trials: Sequence[Trial]) -> list[RuleError]:
    found = []
    for trial in trials:
        for one in trial.overlaps:
            source = loaded.rule_sources[one.rule]
            name = source.file.examples[one.example].name
            how = "also opens an incident" if one.wins else "also explains it"
            hint = f"name '{one.other}' in `supersedes` or `related`, or make one of the two rules narrower"
            why = f"example '{name}': '{one.other}' {how}, which is not declared"
            found.append(source.document.error(("examples", one.example, "name"), why, hint))
    return found


def _rows(
    loaded: Loaded, findings: Sequence[RuleError], trials: Sequence[Trial], *, require_clauses: bool
) -> tuple[Row, ...]:
    schema = Counter(error.path for error in loaded.errors)
    linted = Counter(error.path for error in findings)
    ids = {source.document.path: rule_id for rule_id, source in loaded.rule_sources.items()}
    tried = {trial.rule: trial for trial in trials}
    rows = []
    for path in map(str, loaded.paths):
        rule = ids.get(path, Path(path).stem)
        parts = _parts(tried[rule]) if path in ids and rule in tried else {}
        rows.append(Row(rule, path, schema[path], linted[path], require_clauses=require_clauses, **parts))
    return tuple(sorted(rows, key=lambda row: row.path))


def _parts(trial: Trial) -> dict[str, Any]:
    fires = [result.ok for result in trial.results if result.fires]
    silent = [result.ok for result in trial.results if not result.fires]
    clauses = (trial.clauses - len(trial.unneeded), trial.clauses) if trial.clauses else None
    return {
        "fired": (sum(fires), len(fires)),
        "silent": (sum(silent), len(silent)),
        "clauses": clauses,
        "overlaps": len(trial.overlaps),
    }


def table(report: CheckReport) -> str:
    """The report for a person: every mistake as `file:line:column`, then one row a rule, then the sum."""
    lines = [f"{error}" for error in (*report.errors, *report.findings)]
    results = [result for trial in report.trials for result in trial.results]
    lines += [f"{one.rule}: example '{one.example}': {one.why}" for one in results if not one.ok]
    lines += [f"{error}" for error in report.overlaps]
    if report.unneeded:
        worth = "" if report.require_clauses else " (told, no mistake)"
        head = f"{len(report.unneeded)} clauses that no example needs{worth}:"
        lines += [*([""] if lines else []), head, *(str(error) for error in report.unneeded)]
    cells = [("rule", "schema", "lint", "fired", "silent", "clauses", "overlaps", "result")]
    for row in report.rows:
        numbers = (_part(row.fired), _part(row.silent), _part(row.clauses))
        overlaps = "-" if row.overlaps is None else _count(row.overlaps)
        cells.append((row.rule, _count(row.schema), _count(row.lint), *numbers, overlaps, _word(row.ok)))
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
    kinds = {"schema": report.errors, "lint": report.findings, "clause": report.unneeded, "overlap": report.overlaps}
    return {
        "ok": report.ok,
        "shared_signals": report.signals,
        "rules": [
            {
                "rule": row.rule, "path": row.path, "ok": row.ok, "schema_errors": row.schema, "lint_errors": row.lint,
                "fired": _json_part(row.fired), "silent": _json_part(row.silent),
                "clauses": _json_part(row.clauses), "overlaps": row.overlaps,
            }
            for row in report.rows
        ],
        "errors": [
            {
                "kind": kind, "path": error.path, "line": error.line, "column": error.column,
                "why": error.why, "hint": error.hint,
            }
            for kind, errors in kinds.items() for error in errors
        ],
        "examples": [
            {
                "rule": one.rule, "example": one.example, "expects": "fires" if one.fires else "none", "ok": one.ok,
                "why": one.why, "opened_t": one.opened_t, "verdicts": list(one.verdicts),
            }
            for trial in report.trials for one in trial.results
        ],
    }  # fmt: skip


def _json_part(part: tuple[int, int] | None) -> dict[str, int] | None:
    return None if part is None else {"as_expected": part[0], "all": part[1]}
