"""What the parts of the command line share: kinds of arguments, colours and widths, the catalogue, how to give up."""

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, TypeVar

import click

if TYPE_CHECKING:
    from denpexd.core.rule import Catalog

F = TypeVar("F", bound=Callable[..., object])

EXISTING = click.Path(path_type=Path)
PACKS = click.option("--rules", "packs", multiple=True, type=EXISTING, help="Further folders of rules.")


def form(*choices: str, default: str = "text") -> Callable[[F], F]:
    """The option --format."""
    return click.option("--format", "form", type=click.Choice(choices), default=default, show_default=True)


def fail(message: str) -> NoReturn:
    """Say what is wrong and leave with 2."""
    click.echo(f"denpexd: {message}", err=True)
    sys.exit(2)


def catalogue(packs: tuple[Path, ...] = ()) -> "Catalog":
    """The shipped rules, those of installed packs and of these folders; says what had to be left out."""
    from denpexd.catalog.packs import load_packs

    found = load_packs(packs)
    for error in found.errors:
        click.echo(f"denpexd: rule left out: {error}", err=True)
    return found.catalog


def color(no_color: bool = False) -> bool:
    """Whether to colour what goes to standard output."""
    return not no_color and sys.stdout.isatty() and "NO_COLOR" not in os.environ


def whole() -> bool:
    """Whether standard output has no edge that a line could run over."""
    return not sys.stdout.isatty()


def width() -> int:
    """Columns to use for prose."""
    return max(80, min(120, shutil.get_terminal_size((100, 24)).columns))


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells below each other."""
    widths = [max(len(row[at]) for row in rows) for at in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)
