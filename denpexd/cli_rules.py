"""`denpexd rules`: list, check and write rules."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from denpexd.completion import failures
from denpexd.terminal import EXISTING, PACKS, catalogue, columns, fail, form, say, say_json

if TYPE_CHECKING:
    from denpexd.catalog.load import Loaded
    from denpexd.catalog.report import CheckReport
    from denpexd.catalog.trials import Trial

FEW = 12  # rules whose examples are played second by second

CLAUSES = click.option(
    "--clauses",
    type=click.Choice(["require", "report", "skip"]),
    default="require",
    show_default=True,
    help="Clauses that no example needs: a mistake, worth a line, or not looked for.",
)
WORKERS = click.option("--workers", type=click.IntRange(1, 64), help="Processes (default: one a processor).")


@click.group()
def rules() -> None:
    """List, check and write rules."""


@rules.command(name="list")
@click.option("--category", help="Only this category.")
@click.option("--severity", help="Only this severity.")
@click.option("--status", help="Only this status.")
@click.option("--domain", help="Only what is of this domain: code, configuration, data, infrastructure, hardware.")
@click.option("--tag", "tags", multiple=True, help="Only what has this tag (given twice: both).")
@PACKS
@form("text", "json")
def list_(packs: tuple[Path, ...], form: str, tags: tuple[str, ...], **wanted: str | None) -> None:
    """List the failures that are known, or those asked for.

    Exit code 1: there is none of that kind.
    """
    chosen = [
        rule
        for rule in catalogue(packs).rules.values()
        if set(tags) <= set(rule.entry.tags)
        and all(value in (None, getattr(rule.entry, name)) for name, value in wanted.items())
    ]
    chosen.sort(key=lambda rule: (rule.entry.category, rule.id))
    if form == "json":
        names = ("title", "category", "severity", "status", "domain", "scope", "tags", "aliases")
        say_json([{"id": r.id} | {n: getattr(r.entry, n) for n in names} for r in chosen])
    elif chosen:
        say(columns([(r.entry.category, r.entry.severity, r.id, r.entry.title) for r in chosen]))
    else:
        say("no failure is of that kind; denpexd rules list shows all", err=True)
    sys.exit(0 if chosen else 1)


@rules.command()
@click.argument("rule_id", metavar="ID")
@click.option("--category", default="crash", show_default=True, help="What kind of failure it is: its folder.")
@click.option("--into", type=EXISTING, default=Path("rules"), show_default=True, help="Folder of rules to write to.")
def new(rule_id: str, category: str, into: Path) -> None:
    """Write a commented rule to begin with.

    It passes every check as it is.

    Exit code 2: the id is no id, or exists already.
    """
    import re
    from typing import get_args

    from denpexd.catalog.schema import Category, schema_file
    from denpexd.catalog.skeleton import skeleton

    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rule_id):
        fail(f"{rule_id!r} is no id: lower case words with hyphens, as in disk-full")
    if category not in get_args(Category):
        fail(f"there is no category {category!r}; choose one of {', '.join(get_args(Category))}")
    known = catalogue()
    path = into / category / f"{rule_id}.yaml"
    if rule_id in known.rules or rule_id in known.aliases or path.exists():
        fail(f"{rule_id!r} exists already: denpexd explain {rule_id}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(skeleton(rule_id, category, path, str(schema_file())), "utf-8")
    say(f"{path}\nnow change it, and after each change: denpexd rules test {path}")


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
    if (file := next((folder for folder in folders if not folder.is_dir()), None)) is not None:
        fail(f"{file} is no folder; one rule is checked, in seconds, by: denpexd rules test {file}")
    where = [shipped_rules(), *folders]
    _finish(_checked(where, clauses, workers, only=folders if only_new else ()), form)


@rules.command()
@click.argument("which", nargs=-1, required=True, metavar="FILE|ID...", shell_complete=failures)
@PACKS
@CLAUSES
@WORKERS
@form("text", "json")
def test(which: tuple[str, ...], packs: tuple[Path, ...], clauses: str, workers: int | None, form: str) -> None:
    """Check single rules, in seconds.

    Given as files or by their ids, among all shipped ones.

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
    """Show where rules come from, and every mistake in them.

    Shipped ones, those of folders, and those of installed distributions.

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
        say_json({"packs": rows})
    else:
        cells = [("pack", "kind", "rules", "signals", "mistakes", "from")]
        for s in found.states:
            where = f"{s.pack.origin} ({s.pack.folder})" if s.pack.origin else str(s.pack.folder)
            cells.append((s.pack.name, s.pack.kind, str(s.rules), str(s.signals), str(len(s.errors)), where))
        say(columns(cells))
        for error in found.errors:
            say(str(error))
    sys.exit(1 if found.errors else 0)


@rules.command()
@click.option("--path", is_flag=True, help="Only where the file is.")
def schema(path: bool) -> None:
    """The JSON Schema of a rule file, for editors."""
    from denpexd.catalog.schema import json_schema, schema_file

    say(str(schema_file()) if path else json.dumps(json_schema(), indent=2))


@rules.command()
@click.argument("folder", type=EXISTING)
@click.option("--check", is_flag=True, help="Write nothing; say what would be written.")
@PACKS
def docs(folder: Path, check: bool, packs: tuple[Path, ...]) -> None:
    """Write the encyclopedia as Markdown into FOLDER.

    A page for each failure, indexes by category and by symptom.

    Exit code 0: written, or nothing to do, 1: with --check, something is out of date.
    """
    from denpexd.catalog.load import load, shipped_rules
    from denpexd.encyclopedia import difference, write

    catalog, errors = load([shipped_rules(), *packs])
    if errors:
        fail("mend the rules first:\n" + "\n".join(map(str, errors)))
    changes = difference(catalog, folder)
    if not check:
        write(folder, changes)
        say(f"{len(catalog.rules)} failures, {len(changes)} pages changed in {folder}")
    elif changes:
        names = ", ".join(sorted(changes)[:10]) + (", ..." if len(changes) > 10 else "")
        say(f"{len(changes)} pages in {folder} are out of date: {names}\nrun: denpexd rules docs {folder}", err=True)
        sys.exit(1)


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

        stage, exact = Replayer(loaded.catalog, choose_engine()), len(ids) <= FEW
        prover = Prover(loaded.catalog, stage, clauses=clauses != "skip", exact=exact)
        return prover.all(ids, workers=workers or len(os.sched_getaffinity(0)))

    return report.check(where, prove, only=only, require_clauses=clauses == "require")


def _finish(result: "CheckReport", form: str) -> Any:
    from denpexd.catalog import report

    say_json(report.as_json(result)) if form == "json" else say(report.table(result))
    sys.exit(0 if result.ok else 1)
