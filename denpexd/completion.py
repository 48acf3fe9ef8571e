"""What a shell offers when Tab is pressed: ids of failures, keys of incidents, names of sinks. Light; never an error.

The program is started anew for each Tab, so nothing is parsed that a look at names can tell.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

if TYPE_CHECKING:
    from denpexd.settings import Settings

_HEAD = 400  # bytes of a rule in which its title stands


def failures(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Ids of the shipped rules and of the packs given with --rules, with their titles."""
    from denpexd.catalog.load import shipped_rules

    folders = [shipped_rules(), *(Path(folder) for folder in ctx.params.get("packs") or ())]
    files = (file for folder in folders for file in sorted(folder.glob("*/*.yaml")))
    return [
        CompletionItem(file.stem, help=_title(file))
        for file in files
        if file.parent.name != "signals" and file.stem.startswith(incomplete)
    ]


def _title(file: Path) -> str | None:
    try:
        with file.open(encoding="utf-8", errors="replace") as text:
            lines = text.read(_HEAD).splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip().strip("'\"") for line in lines if line.startswith("title:")), None)


def incidents(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Keys of the incidents in the state folder, newest first, with job and failure."""
    return [CompletionItem(key, help=what) for key, what in _quiet(_incidents, ctx) if key.startswith(incomplete)]


def incidents_and_files(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """The same, and names of files."""
    return [*incidents(ctx, param, incomplete), CompletionItem(incomplete, type="file")]


def _incidents(ctx: click.Context) -> Iterator[tuple[str, str]]:
    import json

    from denpexd.notify.database import read_rows
    from denpexd.state import FILE

    folder = _settings(ctx).state_dir
    for file in [*folder.glob(FILE), *folder.glob(f"*/{FILE}")]:
        for key, text in read_rows(file, "SELECT key, verdict FROM incidents ORDER BY updated DESC LIMIT 200"):
            verdict = json.loads(text)
            yield str(key), f"{verdict.get('state')}: {verdict.get('failure')} in {verdict.get('job')}"


def sinks(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Names of the configured sinks, with their types."""
    return [CompletionItem(name, help=kind) for name, kind in _quiet(_sinks, ctx) if name.startswith(incomplete)]


def _sinks(ctx: click.Context) -> Iterator[tuple[str, str]]:
    yield from ((name, sink.type) for name, sink in _settings(ctx).named_sinks())


def _settings(ctx: click.Context) -> "Settings":
    from denpexd.terminal import flags_of, settings_of

    flags = flags_of(job=None, port=None, state_dir=ctx.params.get("state_dir"), active=None)
    return settings_of(ctx.params.get("config"), flags)


def _quiet(look: Callable[[click.Context], Iterator[tuple[str, str]]], ctx: click.Context) -> list[tuple[str, str]]:
    """Whatever is wrong with configuration or state is said by the command itself, not in the middle of its line."""
    try:
        return list(look(ctx))
    except Exception:
        return []


def script(shell: str, program: click.Command) -> str:
    """What to load into a shell for it: bash, zsh or fish."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    made = kind(program, {}, "denpexd", "_DENPEXD_COMPLETE")
    return made.source_template % made.source_vars()
