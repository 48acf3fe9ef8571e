"""`denpexd rules`: list, check and write rules."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from denpexd.terminal import EXISTING, PACKS, catalogue, columns, fail, form

if TYPE_CHECKING:
    from denpexd.catalog.load import Loaded
    from denpexd.catalog.report import CheckReport
    from denpexd.catalog.trials import Trial

CLAUSES = click.option(
    "--clauses",
    type=click.Choice(["require", "report", "skip"]),
    default="report",
    show_default=True,
    help="Clauses that no example needs: a mistake, worth a line, or not looked for.",
)
WORKERS = click.option("--workers", type=click.IntRange(1, 64), help="Processes (default: one a processor).")


@click.group()
def rules() -> None:
    """List, check and write rules."""


@rules.command(name="list")
@click.option("--category", help="Only this category.")
@form("text", "json")
def list_(category: str | None, form: str) -> None:
    """All failures that are known."""
    chosen = [r for r in catalogue().rules.values() if category in (None, r.entry.category)]
    if form == "json":
        names = ("title", "category", "severity", "status")
        click.echo(json.dumps([{"id": r.id} | {n: getattr(r.entry, n) for n in names} for r in chosen], indent=2))
        return
    for rule in sorted(chosen, key=lambda r: (r.entry.category, r.id)):
        click.echo(f"{rule.entry.category:<12} {rule.entry.severity:<9} {rule.id:<44} {rule.entry.title}")


@rules.command()
@click.argument("folders", nargs=-1, type=EXISTING)
@click.option("--only-new", is_flag=True, help="Report on the rules of FOLDERS only, not on the shipped ones.")
@CLAUSES
@WORKERS
@form("text", "json")
def check(folders: tuple[Path, ...], only_new: bool, clauses: str, workers: int | None, form: str) -> None:
    """Check the shipped rules, and those in FOLDERS beside them.

    \b
    schema    keys, words and patterns, each mistake as file:line:column
    lint      patterns that scan well, names that exist, complete entries
    examples  fire, or stay silent, as they say
    clauses   each one is needed: without it some example ends differently
    overlaps  another failure explains an example, and neither rule says so

    Exit code 0: all is well, 1: something is wrong, 2: unusable arguments.
    """
    from denpexd.catalog.load import shipped_rules

    if only_new and not folders:
        fail("--only-new needs the folders of the new rules")
    where = [shipped_rules(), *folders]
    _finish(_checked(where, clauses, workers, only=folders if only_new else ()), form)


@rules.command()
@click.argument("which", nargs=-1, required=True, metavar="FILE|ID...")
@PACKS
@CLAUSES
@WORKERS
@form("text", "json")
def test(which: tuple[str, ...], packs: tuple[Path, ...], clauses: str, workers: int | None, form: str) -> None:
    """Check single rules, given as files or by their ids, among all shipped ones, in seconds.

    Exit code 0: all is well, 1: something is wrong, 2: there is no such rule.
    """
    from denpexd.catalog.load import rule_folder, shipped_rules

    files = [_file(one, [shipped_rules(), *packs]) for one in which]
    where = list(dict.fromkeys([shipped_rules(), *packs, *(rule_folder(file) for file in files)]))
    _finish(_checked(where, clauses, workers, only=files), form)


@rules.command()
@PACKS
@form("text", "json")
def packs(packs: tuple[Path, ...], form: str) -> None:
    """Where rules come from: shipped, from folders, from installed distributions; and every mistake in them.

    Exit code 0: no mistakes, 1: some files are left out.
    """
    from denpexd.catalog.packs import load_packs

    found = load_packs(packs)
    if form == "json":
        rows = [
            {"name": s.pack.name, "kind": s.pack.kind, "folder": str(s.pack.folder), "origin": s.pack.origin}
            | {"rules": s.rules, "signals": s.signals, "errors": [str(error) for error in s.errors]}
            for s in found.states
        ]
        click.echo(json.dumps({"packs": rows}, indent=2))
    else:
        cells = [("pack", "kind", "rules", "signals", "mistakes", "from")]
        for s in found.states:
            where = f"{s.pack.origin} ({s.pack.folder})" if s.pack.origin else str(s.pack.folder)
            cells.append((s.pack.name, s.pack.kind, str(s.rules), str(s.signals), str(len(s.errors)), where))
        click.echo(columns(cells))
        for error in found.errors:
            click.echo(str(error))
    sys.exit(1 if found.errors else 0)


@rules.command()
def schema() -> None:
    """The JSON Schema of a rule file, for editors."""
    from denpexd.catalog.schema import json_schema

    click.echo(json.dumps(json_schema(), indent=2))


def _file(name: str, folders: Sequence[Path]) -> Path:
    """The file of a rule that is named by its path or its id."""
    path = Path(name)
    if path.is_file():
        return path
    for folder in folders:
        found = next(folder.rglob(f"{name}.yaml"), None) if "/" not in name else None
        if found is not None:
            return found
    fail(f"there is no rule {name!r}; give a file or an id of `denpexd rules list`")


def _checked(where: Sequence[Path], clauses: str, workers: int | None, only: Sequence[Path]) -> "CheckReport":
    from denpexd.catalog import report

    def prove(loaded: "Loaded", ids: Sequence[str]) -> "list[Trial]":
        from denpexd.catalog.trials import Prover
        from denpexd.replay import Replayer
        from denpexd.scan.engine import choose_engine

        prover = Prover(loaded.catalog, Replayer(loaded.catalog, choose_engine()), clauses=clauses != "skip")
        return prover.all(ids, workers=workers or len(os.sched_getaffinity(0)))

    return report.check(where, prove, only=only, require_clauses=clauses == "require")


def _finish(result: "CheckReport", form: str) -> Any:
    from denpexd.catalog import report

    click.echo(json.dumps(report.as_json(result), indent=2) if form == "json" else report.table(result))
    sys.exit(0 if result.ok else 1)
