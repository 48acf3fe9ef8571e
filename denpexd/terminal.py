"""What the parts of the command line share: kinds of arguments, colours and widths, the catalogue, how to give up."""

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

if TYPE_CHECKING:
    from denpexd.core.rule import Catalog
    from denpexd.settings import Settings

F = TypeVar("F", bound=Callable[..., object])

EXISTING = click.Path(path_type=Path)
CONFIG = click.option("-c", "--config", type=EXISTING, help="Configuration file (YAML).")
ACTIVE = click.option(
    "--evidence",
    "active",
    type=click.Choice(["on", "dry-run", "off"]),
    help="Whether processes, drivers and NCCL may be asked; dry-run only tells what would be.",
)
PACKS = click.option("--rules", "packs", multiple=True, type=EXISTING, help="Further folders of rules.")


def form(*choices: str, default: str = "text") -> Callable[[F], F]:
    """The option --format."""
    return click.option("--format", "form", type=click.Choice(choices), default=default, show_default=True)


def say(page: str, *, err: bool = False, nl: bool = True) -> None:
    """Print a page: whatever is quoted in it, a terminal only sees text and our own colours."""
    from denpexd.notify.text import printable

    click.echo(printable(page), err=err, nl=nl)


def say_json(value: object, indent: int | None = 2) -> None:
    """Print a value as JSON."""
    from denpexd.notify.text import json_text

    click.echo(json_text(value, indent))


def warn(message: str) -> None:
    """Say on standard error what is wrong, without the secrets that may be in it."""
    from denpexd.notify.redact import redact

    say(f"denpexd: {redact(message)[0]}", err=True)


def fail(message: str) -> NoReturn:
    """Say what is wrong and leave with 2."""
    warn(message)
    sys.exit(2)


def save_archive(path: Path, data: bytes, about: str) -> None:
    """Write what `replay` plays, for its owner alone, and say so; what cannot be written is said with exit code 2."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
    except OSError as error:
        fail(f"{path} cannot be written: {error.strerror}")
    say(f"{path}: {len(data) / 1024:.0f} KiB about {about}")
    say(f"Look through it before you pass it on. It is replayed with: denpexd replay {path}")


def catalogue(packs: tuple[Path, ...] = ()) -> "Catalog":
    """The shipped rules, those of installed packs and of these folders; says what had to be left out."""
    from denpexd.catalog.packs import load_packs

    found = load_packs(packs)
    for error in found.errors:
        warn(f"rule left out: {error}")
    return found.catalog


def flags_of(*, job: str | None, port: int | None, state_dir: Path | None, active: str | None) -> dict[str, Any]:
    """Flags of `run` nested as the settings are; what was not given is left out."""
    flags: dict[str, Any] = {}
    if job is not None:
        flags["job"] = job
    if port is not None:
        flags["web"] = {"port": port}
    if state_dir is not None:
        flags["state_dir"] = str(state_dir)
    if active is not None:
        flags["evidence"] = {"active": active}
    return flags


def settings_of(config: Path | None, flags: dict[str, Any]) -> "Settings":
    """The settings of a file, of the environment and of flags; SettingsError with every mistake."""
    from denpexd.settings import load

    return load(config, overrides=flags, environ=os.environ)


def color(no_color: bool = False) -> bool:
    """Whether to colour what goes to standard output."""
    return not no_color and sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def whole() -> bool:
    """Whether standard output has no edge that a line could run over."""
    return not sys.stdout.isatty()


def width() -> int:
    """Columns to use: those of the terminal or of $COLUMNS, at least 40."""
    return max(40, min(120, shutil.get_terminal_size((100, 24)).columns))


def room() -> int:
    """Columns for tables: as wide as they are where no edge is, for a file or a pipe."""
    return 10_000 if whole() else width()


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells below each other, without a head."""
    return "\n".join(table((), rows, room()))


def table(head: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Lines of a table that fit into `width` columns, its last column wrapped; too narrow: each row as a short list.

    Columns in which nothing stands are left out. An empty `head` is none.
    """
    from denpexd.notify.text import cells, cut

    kept = [at for at in range(len(rows[0])) if any(row[at] for row in rows)] if rows else []
    if not kept:
        return []
    shown = [[row[at] for at in kept] for row in ([head] if head else []) + list(rows)]
    widths = [max(cells(row[at]) for row in shown) for at in range(len(kept))]
    over = sum(widths) + 2 * (len(widths) - 1) - width
    shrunk = max(range(len(widths)), key=lambda at: widths[at])
    if over > 0 and widths[-1] - over >= 24:
        shrunk = len(widths) - 1
    if over > 0 and widths[shrunk] - over < 16:
        return _lists(shown if head else [[""] * len(kept), *shown], width)
    widths[shrunk] -= max(0, over)
    lines = []
    for *first, last in shown:
        fields = [(cut(cell, room), room) for cell, room in zip(first, widths, strict=False)]
        before = "".join(text + " " * (room - cells(text) + 2) for text, room in fields)
        lines += _wrapped(last, before, len(before) * " ", width) or [before.rstrip()]
    return lines


def _lists(shown: Sequence[Sequence[str]], width: int) -> list[str]:
    from denpexd.notify.text import cut

    names, lines = shown[0][1:], list[str]()
    widest = max(len(name) for name in names) if names else 0
    for row in shown[1:]:
        lines.append(cut(row[0], width))
        for name, cell in zip(names, row[1:], strict=True):
            before = f"  {name.lower():<{widest}}  " if widest else "  "
            lines += _wrapped(cell, before, " " * len(before), width)
    return lines


def _wrapped(text: str, before: str, hang: str, width: int) -> list[str]:
    from denpexd.notify.text import wrap

    return wrap(text, max(width, len(hang) + 8), before, hang)


class Progress:
    """How far a long reading has come, on one line of standard error: only on a terminal, and only for much."""

    MUCH = 32 << 20  # bytes

    def __init__(self) -> None:
        self._shown = -1

    def __call__(self, done: int, total: int) -> None:
        """`done` of `total` bytes have been read; all of them: what was read is judged."""
        percent = 100 * done // max(1, total)
        if total < self.MUCH or percent == self._shown or not sys.stderr.isatty():
            return
        self._shown = percent
        wide = max(8, min(40, width() - 30))
        bar = "█" * (wide * percent // 100)
        said = f"{percent:3} % of {total >> 20} MiB" if done < total else "judging"
        sys.stderr.write(f"\r\x1b[K{bar:░<{wide}} {said}")
        sys.stderr.flush()

    def clear(self) -> None:
        """Take the line away: what comes now is the answer."""
        if self._shown >= 0:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
