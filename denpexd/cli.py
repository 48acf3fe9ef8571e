"""The command line. Heavy imports happen inside the commands, so that --help answers at once.

Exit codes: 0 all well, 1 a failure was found (diagnose) or a check failed, 2 unusable input or settings.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from denpexd import __version__
from denpexd.errors import DenpexdError

if TYPE_CHECKING:
    from denpexd.core.rule import Catalog

FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
EXISTING = click.Path(path_type=Path)
CONFIG = click.option("-c", "--config", type=EXISTING, help="Configuration file (YAML).")


class Group(click.Group):
    """Shows every DenpexdError as its message, without a traceback."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except DenpexdError as error:
            fail(str(error))


def fail(message: str) -> NoReturn:
    """Say what is wrong and leave with 2."""
    click.echo(f"denpexd: {message}", err=True)
    sys.exit(2)


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="denpexd")
def main() -> None:
    """Explains failures and hangs of multi-GPU training jobs while they happen.

    Start with one of

    \b
      denpexd demo                        see a real hang explained (no GPU needed)
      denpexd run LOGDIR                  watch the per-rank logs of a running job
      torchrun ... 2>&1 | denpexd run -   watch a merged stream
      denpexd exec -- torchrun ...        start a job and watch it
      denpexd diagnose LOGDIR             explain a job that is over
    """


@main.command()
@click.argument("paths", nargs=-1)
@CONFIG
@click.option("--job", help="Name of the job in alerts and metrics.")
@click.option("--port", type=int, help="Port of metrics and console (default 9464, 0: any free one).")
@click.option("--state-dir", type=EXISTING, help="Where positions and unsent alerts are kept.")
@click.option("--no-color", is_flag=True, help="Plain text on the terminal.")
def run(
    paths: tuple[str, ...],
    config: Path | None,
    job: str | None,
    port: int | None,
    state_dir: Path | None,
    no_color: bool,
) -> None:
    """Watch the logs in PATHS (folders, files, globs, templates like /logs/{job}/rank{rank}.log), or - for a stream.

    Without a configuration file reports go to the terminal; metrics, API and console page are on 127.0.0.1:9464.
    """
    from denpexd.execute import watch

    sys.exit(watch(list(paths), config, _flags(job=job, port=port, state_dir=state_dir), color=_color(no_color)))


@main.command(name="exec", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@CONFIG
@click.option("--job", help="Name of the job in alerts and metrics.")
@click.option("--port", type=int, help="Port of metrics and console (default 9464, 0: any free one).")
@click.option("--state-dir", type=EXISTING, help="Where positions and unsent alerts are kept.")
@click.option("--log-dir", "log_dirs", multiple=True, help="Folders of per-rank logs that the command writes.")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def exec_(
    config: Path | None,
    job: str | None,
    port: int | None,
    state_dir: Path | None,
    log_dirs: tuple[str, ...],
    command: tuple[str, ...],
) -> None:
    """Start COMMAND (torchrun, srun, mpirun, python) and watch what it prints; returns its exit code.

    Its output is passed through unchanged and at once, signals are forwarded. The job never waits for denpexd.
    """
    from denpexd.execute import execute

    flags = _flags(job=job, port=port, state_dir=state_dir)
    sys.exit(execute(list(command), config, flags, list(log_dirs)))


@main.command()
@click.argument("paths", nargs=-1, required=True)
@click.option("--format", "form", type=click.Choice(["text", "json", "markdown"]), default="text", show_default=True)
@click.option("--rules", "packs", multiple=True, type=EXISTING, help="Further folders of rules.")
@click.option("--no-color", is_flag=True, help="Plain text.")
def diagnose(paths: tuple[str, ...], form: str, packs: tuple[Path, ...], no_color: bool) -> None:
    """Explain finished logs: files, folders, or - for pasted text on standard input.

    Exit code 0: nothing wrong found, 1: a failure found, 2: unusable input.
    """
    from denpexd.diagnose import Diagnosis
    from denpexd.notify.redact import redact, redact_verdict
    from denpexd.notify.render import markdown, report

    diagnosis = Diagnosis(_catalog(packs))
    verdicts = [redact_verdict(v)[0] for v in diagnosis.paths(list(paths), sys.stdin.buffer)]
    nothing = f"No failure found. {redact(diagnosis.coverage.text())[0]}"
    if form == "json":
        click.echo(json.dumps({"verdicts": verdicts}, indent=2, ensure_ascii=False))
    elif form == "markdown":
        click.echo("\n\n".join(markdown(v) for v in verdicts) or nothing)
    else:
        pages = [report(v, color=_color(no_color), width=_width(), whole=_whole()) for v in verdicts]
        click.echo("\n\n".join(pages) or nothing)
    sys.exit(1 if verdicts else 0)


@main.command()
@click.argument("cases", nargs=-1, required=True, type=EXISTING)
@click.option("--format", "form", type=click.Choice(["text", "jsonl"]), default="text", show_default=True)
@click.option("--rules", "packs", multiple=True, type=EXISTING, help="Further folders of rules.")
def replay(cases: tuple[Path, ...], form: str, packs: tuple[Path, ...]) -> None:
    """Play recorded CASES (folders with timeline.jsonl and case.yaml) in simulated time."""
    from denpexd.errors import CaseError
    from denpexd.notify.redact import redact_verdict
    from denpexd.notify.render import report
    from denpexd.recording import read_case
    from denpexd.replay import Replayer
    from denpexd.scan.engine import choose_engine

    replayer = Replayer(_catalog(packs), choose_engine())
    failed = False
    for case in cases:
        try:
            verdicts = [redact_verdict(v)[0] for v in replayer.run(read_case(case)).verdicts]
        except CaseError as error:
            click.echo(f"denpexd: {error}", err=True)
            failed = True
            continue
        if form == "jsonl":
            click.echo(json.dumps({"case": case.name, "verdicts": verdicts}, ensure_ascii=False))
        else:
            click.echo(f"== {case.name}: {len(verdicts)} incident(s)")
            for verdict in verdicts:
                click.echo(report(verdict, color=_color(False), width=_width(), whole=_whole()) + "\n")
    sys.exit(2 if failed else 0)


@main.command()
@click.argument("failure")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def explain(failure: str, form: str) -> None:
    """Print the encyclopedia entry of FAILURE (an id or an alias)."""
    import difflib

    from denpexd.entry import entry_json, entry_text

    catalog = _catalog(())
    rule = catalog.rules.get(catalog.aliases.get(failure, failure))
    if rule is None:
        near = difflib.get_close_matches(failure, [*catalog.rules, *catalog.aliases], 3, 0.4)
        hint = f"did you mean {', '.join(near)}?" if near else "see: denpexd rules list"
        fail(f"no failure {failure!r}; {hint}")
    if form == "json":
        click.echo(json.dumps(entry_json(rule), indent=2, ensure_ascii=False))
    else:
        click.echo(entry_text(rule, _width()))


@main.group()
def rules() -> None:
    """List and check rules."""


@rules.command(name="list")
@click.option("--category", help="Only this category.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def list_(category: str | None, form: str) -> None:
    """All failures that are known."""
    chosen = [r for r in _catalog(()).rules.values() if category in (None, r.entry.category)]
    if form == "json":
        names = ("title", "category", "severity", "status")
        click.echo(json.dumps([{"id": r.id} | {n: getattr(r.entry, n) for n in names} for r in chosen], indent=2))
        return
    for rule in sorted(chosen, key=lambda r: (r.entry.category, r.id)):
        click.echo(f"{rule.entry.category:<12} {rule.entry.severity:<9} {rule.id:<44} {rule.entry.title}")


@rules.command()
@click.argument("folders", nargs=-1, type=EXISTING)
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def check(folders: tuple[Path, ...], form: str) -> None:
    """Schema, lint and examples of the shipped rules, and of those in FOLDERS beside them."""
    from denpexd.catalog import report
    from denpexd.catalog.load import read_folders, shipped_rules
    from denpexd.replay import Replayer
    from denpexd.scan.engine import choose_engine

    where = [shipped_rules(), *folders]
    result = report.check(where, Replayer(read_folders(where).catalog, choose_engine()))
    click.echo(json.dumps(report.as_json(result), indent=2) if form == "json" else report.table(result))
    sys.exit(0 if result.ok else 1)


@rules.command()
@click.argument("files", nargs=-1, required=True, type=FILE)
@click.option("--rules", "packs", multiple=True, type=EXISTING, help="Further folders of rules.")
@click.option("--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True)
def test(files: tuple[Path, ...], packs: tuple[Path, ...], form: str) -> None:
    """Schema, lint and examples of single rule FILES, played among all shipped rules."""
    from denpexd.catalog import report
    from denpexd.catalog.load import read_folders, rule_folder, shipped_rules
    from denpexd.replay import Replayer
    from denpexd.scan.engine import choose_engine

    where = list(dict.fromkeys([shipped_rules(), *packs, *(rule_folder(file) for file in files)]))
    result = report.check(where, Replayer(read_folders(where).catalog, choose_engine()), only=files)
    click.echo(json.dumps(report.as_json(result), indent=2) if form == "json" else report.table(result))
    sys.exit(0 if result.ok else 1)


@rules.command()
def schema() -> None:
    """The JSON Schema of a rule file, for editors."""
    from denpexd.catalog.schema import json_schema

    click.echo(json.dumps(json_schema(), indent=2))


@main.group()
def config() -> None:
    """Check and show the configuration."""


@config.command(name="check")
@CONFIG
def config_check(config: Path | None) -> None:
    """Say every mistake of the file and of the DENPEXD_* variables, with its place."""
    _settings(config, {})
    click.echo("the configuration is valid")


@config.command(name="show")
@CONFIG
def config_show(config: Path | None) -> None:
    """The settings in force as YAML, secrets masked."""
    from denpexd.settings import show

    click.echo(show(_settings(config, {})), nl=False)


@main.group()
def notify() -> None:
    """Try the destinations of alerts."""


@notify.command(name="test")
@click.argument("sink", required=False)
@CONFIG
def notify_test(sink: str | None, config: Path | None) -> None:
    """Send a test message through every configured sink, or through SINK only."""
    from denpexd.sinkcheck import send_test

    results = asyncio.run(send_test(_settings(config, {}), sink))
    for name, wrong in results:
        click.echo(f"{name}: {'FAILED: ' + wrong if wrong else 'sent'}")
    sys.exit(1 if any(wrong for _, wrong in results) else 0)


@main.command()
@click.argument("incident", required=False)
@click.option("--list", "listing", is_flag=True, help="What can be shown.")
@click.option("--speed", type=float, default=4.0, show_default=True, help="How much faster than recorded it is played.")
@click.option("--keep", is_flag=True, help="Leave metrics and console running until Ctrl-C.")
def demo(incident: str | None, listing: bool, speed: float, keep: bool) -> None:
    """Play a recorded incident live into per-rank files and let the daemon explain it."""
    from denpexd.demo import catalogue, play

    if listing:
        for name, title in catalogue():
            click.echo(f"{name:<28} {title}")
        return
    sys.exit(asyncio.run(play(incident, speed=speed, keep=keep, color=_color(False))))


# --- shared -----------------------------------------------------------------------------------------------------------


def _flags(*, job: str | None, port: int | None, state_dir: Path | None) -> dict[str, Any]:
    flags: dict[str, Any] = {}
    if job is not None:
        flags["job"] = job
    if port is not None:
        flags["web"] = {"port": port}
    if state_dir is not None:
        flags["state_dir"] = str(state_dir)
    return flags


def _settings(config: Path | None, flags: dict[str, Any]) -> Any:
    from denpexd.settings import load

    return load(config, overrides=flags, environ=os.environ)


def _catalog(packs: tuple[Path, ...]) -> "Catalog":
    from denpexd.catalog.load import load, shipped_rules

    catalog, errors = load([shipped_rules(), *packs])
    for error in errors:
        click.echo(f"denpexd: rule left out: {error}", err=True)
    return catalog


def _color(no_color: bool) -> bool:
    return not no_color and sys.stdout.isatty() and "NO_COLOR" not in os.environ


def _whole() -> bool:
    """Whether standard output has no edge that a line could run over."""
    return not sys.stdout.isatty()


def _width() -> int:
    import shutil

    return max(80, min(120, shutil.get_terminal_size((100, 24)).columns))
