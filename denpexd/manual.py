"""Manual pages made from the command line itself: one for the program and one for every command. Pure text, no import
but click, because the wheel is built with nothing else at hand.
"""

import inspect
import re
from collections.abc import Iterator

import click

from denpexd import __version__

_FILES = (
    ("denpexd.yaml", "The configuration, wherever -c says: docs/configuration.md has every option."),
    ("$STATE_DIRECTORY, $XDG_STATE_HOME/denpexd, ~/.local/state/denpexd", "Positions, incidents, unsent alerts."),
)
_VARIABLES = (
    ("DENPEXD_*", "Options of the configuration: DENPEXD_WEB__PORT is web.port."),
    ("NO_COLOR", "No colour, unless it is empty."),
    ("COLUMNS", "Width of pages, from 40 on."),
)


def pages(main: click.Group) -> dict[str, str]:
    """Every page by the name of its file, such as `denpexd-run.1`."""
    return {f"{name.replace(' ', '-')}.1": page(name, context) for name, context in commands(main)}


def commands(
    group: click.Group, name: str = "denpexd", above: click.Context | None = None
) -> Iterator[tuple[str, click.Context]]:
    """The program and all commands below it with their whole names; hidden ones are left out."""
    context = click.Context(group, info_name=name, parent=above, **group.context_settings)
    yield name, context
    for each in group.list_commands(context):
        command = group.get_command(context, each)
        if command is None or command.hidden:
            continue
        if isinstance(command, click.Group):
            yield from commands(command, f"{name} {each}", context)
        else:
            yield f"{name} {each}", click.Context(command, info_name=f"{name} {each}", parent=context)


def page(name: str, context: click.Context) -> str:
    """One page in the language of man(7)."""
    command = context.command
    text = inspect.cleandoc(command.help or "")
    first, *rest = re.split(r"\n\s*\n", text) if text else [""]
    summary = " ".join(first.split()).rstrip(".")
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [
        f'.TH "{name.replace(" ", "-").upper()}" "1" "" "denpexd {__version__}" "denpexd"',
        ".SH NAME",
        f"{_plain(name.replace(' ', '-'))} \\- {_plain(summary[:1].lower() + summary[1:])}",
        ".SH SYNOPSIS",
        f"\\fB{_plain(name)}\\fP {_plain(usage)}",
        ".SH DESCRIPTION",
        *_paragraphs([first, *rest]),
        *_options(context),
    ]
    if isinstance(command, click.Group):
        lines.append(".SH COMMANDS")
        for each in command.list_commands(context):
            below = command.get_command(context, each)
            if below is not None and not below.hidden:
                lines += [".TP", f"\\fB{_plain(each)}\\fP", _plain(below.get_short_help_str(200))]
    if name == "denpexd":
        lines += _table(".SH FILES", _FILES) + _table(".SH ENVIRONMENT", _VARIABLES)
        lines += [
            ".SH SEE ALSO",
            ", ".join(f"\\fBdenpexd\\-{_plain(each)}\\fP(1)" for each in _listed(command, context)),
        ]
    else:
        lines += [".SH SEE ALSO", f"\\fB{_plain(name.rpartition(' ')[0].replace(' ', '-'))}\\fP(1)"]
    return "\n".join(lines) + "\n"


def _listed(command: click.Command, context: click.Context) -> list[str]:
    return command.list_commands(context) if isinstance(command, click.Group) else []


def _paragraphs(paragraphs: list[str]) -> Iterator[str]:
    for number, paragraph in enumerate(paragraphs):
        if number:
            yield ".PP"
        if paragraph.startswith("\b\n"):  # as written
            yield from (".nf", *(_plain(line) for line in paragraph[2:].split("\n")), ".fi")
        else:
            yield _plain(" ".join(paragraph.split()))


def _options(context: click.Context) -> list[str]:
    options = [one for one in context.command.get_params(context) if isinstance(one, click.Option)]
    records = [record for one in options if (record := one.get_help_record(context))]
    return _table(".SH OPTIONS", records) if records else []


def _table(head: str, rows: "list[tuple[str, str]] | tuple[tuple[str, str], ...]") -> list[str]:
    lines = [head]
    for name, text in rows:
        lines += [".TP", f"\\fB{_plain(name)}\\fP", _plain(" ".join(text.split())) or "\\&"]
    return lines


def _plain(text: str) -> str:
    """Text in which nothing is a request or an escape."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq")
    return f"\\&{text}" if text.startswith((".", "\\(aq")) else text
