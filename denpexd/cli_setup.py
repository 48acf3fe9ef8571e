"""What one does before a job starts: `denpexd config`, `doctor`, `discover`; completion and manual pages."""

import json
import os
import sys
from dataclasses import asdict
from pathlib import Path

import click

from denpexd.terminal import (
    ACTIVE,
    CONFIG,
    EXISTING,
    catalogue,
    color,
    fail,
    flags_of,
    form,
    room,
    say,
    say_json,
    settings_of,
    table,
    width,
)


@click.group()
def config() -> None:
    """Check and show the configuration."""


@config.command(name="check")
@CONFIG
@click.option("--route", "failure", metavar="FAILURE", help="Which sinks an incident of this failure reaches, and why.")
@click.option("--job", default="job", help="With --route: of this job.")
@click.option("--severity", type=click.Choice(["critical", "high", "medium", "low"]), help="With --route.")
@click.option("--node", help="With --route: started on this node.")
def config_check(config: Path | None, failure: str | None, job: str, severity: str | None, node: str | None) -> None:
    """Say every mistake of the configuration, with its place.

    Of the file and of the DENPEXD_* variables; also what routes and maintenance ask for that no rule has. Exit code 2
    if there is a mistake.
    """
    from denpexd.clock import SystemClock
    from denpexd.notify.in_force import asks_of_rules, reached, unknown_values

    settings = settings_of(config, {})
    catalog = catalogue(tuple(settings.rules)) if failure is not None or asks_of_rules(settings) else None
    if catalog is not None and (wrong := unknown_values(settings, catalog)):
        fail("\n".join(wrong))
    if catalog is None or failure is None:
        say("the configuration is valid")
        return
    rule = next((r for r in catalog.rules.values() if failure in (r.id, *r.entry.aliases)), None)
    if rule is None:
        fail(f"no rule is named {failure}; denpexd search finds its name")
    known = rule.entry
    verdict: dict[str, object] = {"key": "key", "job": job, "failure": rule.id, "aliases": list(known.aliases)}
    verdict |= {"category": known.category, "domain": known.domain, "severity": severity or known.severity}
    verdict |= {"state": "open", "revision": 1}
    verdict |= {"initiating_ranks": [0], "nodes": {"0": node}} if node else {}
    rows = reached(settings, verdict, SystemClock().wall())
    say("\n".join(table(("sink", "", "why"), rows, width())))


@config.command(name="show")
@CONFIG
@click.option("--origin", is_flag=True, help="Say of each value where it comes from.")
@click.option("--job", help="As if run were given it; so are the next three.")
@click.option("--port", type=int)
@click.option("--state-dir", type=EXISTING)
@ACTIVE
@form("text", "json")
def config_show(
    config: Path | None,
    origin: bool,
    job: str | None,
    port: int | None,
    state_dir: Path | None,
    active: str | None,
    form: str,
) -> None:
    """The settings in force as YAML, secrets masked.

    With --origin one line an option: its value, and file:line:column, variable or flag that set it, or `default`.
    """
    from denpexd.settings import show
    from denpexd.settings_origins import origins

    flags = flags_of(job=job, port=port, state_dir=state_dir, active=active)
    settings = settings_of(config, flags)
    if not origin:
        say_json(settings.model_dump(mode="json")) if form == "json" else say(show(settings), nl=False)
        return
    rows = origins(settings, config, flags, os.environ)
    if form == "json":
        say_json([{"option": option, "value": value, "origin": where} for option, value, where in rows])
    else:
        texts = [(option, json.dumps(value, ensure_ascii=False), where) for option, value, where in rows]
        say("\n".join(table(("OPTION", "VALUE", "FROM"), texts, room())))


@click.command()
@click.argument("paths", nargs=-1)
@CONFIG
@click.option("--port", type=int, help="As for run.")
@click.option("--state-dir", type=EXISTING, help="As for run.")
@click.option("--send", is_flag=True, help="Also send a test message through every destination.")
@form("text", "json")
@click.option("--no-color", is_flag=True, help="Plain text.")
def doctor(
    paths: tuple[str, ...],
    config: Path | None,
    port: int | None,
    state_dir: Path | None,
    send: bool,
    form: str,
    no_color: bool,
) -> None:
    """Check whether a daemon could do its work here.

    On PATHS, or with this configuration; and how to mend what is missing. Limits of the kernel, file systems, rights,
    clock, disk, port, rules, and whether every destination answers. Exit code 0: nothing to mend, 1: something will not
    work.
    """
    import asyncio

    from denpexd.clock import SystemClock
    from denpexd.doctor import as_text, examine
    from denpexd.watch import is_chosen, log_to_stderr

    log_to_stderr("error")
    flags = flags_of(job=None, port=port, state_dir=state_dir, active=None) | ({"paths": list(paths)} if paths else {})
    chosen = is_chosen(config, flags, "web", "port")
    found = asyncio.run(examine(lambda: settings_of(config, flags), SystemClock(), chosen_port=chosen, send=send))
    if form == "json":
        say_json({"checks": [asdict(one) for one in found]})
    else:
        say(as_text(found, color=color(no_color), width=width()))
    sys.exit(1 if any(one.state == "bad" for one in found) else 0)


@click.command()
@click.argument("paths", nargs=-1)
@CONFIG
@click.option("--job", help="As for run.")
@form("text", "json")
@click.option("--no-color", is_flag=True, help="Plain text.")
def discover(paths: tuple[str, ...], config: Path | None, job: str | None, form: str, no_color: bool) -> None:
    """Show which file is the log of which rank, and why.

    Of the files in PATHS, or in the paths of the configuration: by a template, its name, the launcher's folders, the
    process that writes it, or the prefixes of its lines. Below that: which files are left out, and why. Exit code 0:
    logs were found, 1: none.
    """
    from denpexd.errors import SettingsError
    from denpexd.watch import log_to_stderr
    from denpexd.whose import as_json, as_text, look

    log_to_stderr("error")
    flags = flags_of(job=job, port=None, state_dir=None, active=None) | ({"paths": list(paths)} if paths else {})
    settings = settings_of(config, flags)
    if not settings.paths:
        raise SettingsError("nothing to look at: give folders, files or globs, or a configuration with paths (-c)")
    found = look(settings)
    if form == "json":
        say_json(as_json(found))
    else:
        say(as_text(found, color=color(no_color), width=width()))
    sys.exit(0 if found.files else 1)


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print what makes SHELL complete commands and names.

    Options, ids of failures, keys of incidents and names of sinks, too.

    \b
      bash   denpexd completion bash > ~/.local/share/bash-completion/completions/denpexd
      zsh    denpexd completion zsh > ~/.zfunc/_denpexd     (fpath+=~/.zfunc before compinit)
      fish   denpexd completion fish > ~/.config/fish/completions/denpexd.fish
    """
    from denpexd.completion import script

    say(script(shell, ctx.find_root().command))


@click.command()
@click.argument("folder", metavar="DIR", type=EXISTING)
@click.pass_context
def man(ctx: click.Context, folder: Path) -> None:
    """Write the manual pages into DIR, one a command.

    man DIR/denpexd-run.1 shows one. The wheel brings them along, so that `man denpexd` works where share/man of the
    environment is searched.
    """
    from denpexd.manual import pages

    program = ctx.find_root().command
    assert isinstance(program, click.Group)
    found = pages(program)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in found.items():
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        fail(f"{folder} cannot be written: {error.strerror}")
    say(f"{len(found)} pages in {folder}")
