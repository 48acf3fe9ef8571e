"""`denpexd explain` and `denpexd search`: the encyclopedia on the terminal, without a network."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from denpexd.completion import failures
from denpexd.terminal import PACKS, catalogue, color, fail, form, say, say_json, width

if TYPE_CHECKING:
    from denpexd.search import Found


@click.command()
@click.argument("failure", nargs=-1, required=True, shell_complete=failures)
@PACKS
@form("text", "markdown", "json")
@click.option("--no-color", is_flag=True, help="Plain text.")
def explain(failure: tuple[str, ...], packs: tuple[Path, ...], form: str, no_color: bool) -> None:
    """Print what is known of FAILURE, or of an Xid of the driver.

    FAILURE is an id or an alias, or a code of NVIDIA's driver: denpexd explain xid 79.

    Exit code 2: there is no such failure.
    """
    import difflib
    import shlex

    from denpexd.catalog.xids import asked_for, xid_json, xid_text
    from denpexd.encyclopedia import entry_json, entry_markdown, entry_text

    name = " ".join(failure)
    if (code := asked_for(name)) is not None:
        say_json(xid_json(code), None) if form == "json" else say(xid_text(code))
        return
    catalog = catalogue(packs)
    rule = catalog.rules.get(catalog.aliases.get(name, name))
    if rule is None:
        near = difflib.get_close_matches(name, [*catalog.rules, *catalog.aliases], 3, 0.4)
        hint = f"did you mean {', '.join(near)}? " if near else ""
        fail(
            f"no failure {name!r}; {hint}denpexd search {shlex.quote(name)} looks for words, denpexd rules list has all"
        )
    if form == "json":
        say_json(entry_json(rule))
    elif form == "markdown":
        say(entry_markdown(rule), nl=False)
    else:
        say(entry_text(rule, width(), color=color(no_color)))


@click.command()
@click.argument("text", nargs=-1, required=True)
@PACKS
@click.option("--limit", type=click.IntRange(1, 100), default=5, show_default=True, help="How many at most.")
@form("text", "json")
@click.option("--no-color", is_flag=True, help="Plain text.")
def search(text: tuple[str, ...], packs: tuple[Path, ...], limit: int, form: str, no_color: bool) -> None:
    """Find failures by TEXT: words, or a pasted error.

    An error may have several lines; - reads standard input. Failures whose own signals match the text come first, then
    those that carry all its words in their names, then those that have words in common with it. Exit code 0: found, 1:
    nothing found, 2: no text.
    """
    from denpexd.notify.redact import redact
    from denpexd.scan.re2_engine import Re2Engine
    from denpexd.search import Search

    asked = sys.stdin.buffer.read().decode(errors="replace") if text == ("-",) else " ".join(text)
    if not asked.strip():
        fail("there is no text to search for")
    found = Search(catalogue(packs), Re2Engine)(asked, limit)
    if form == "json":
        rows = [
            {"id": one.rule.id, "title": one.rule.entry.title, "category": one.rule.entry.category}
            | {"severity": one.rule.entry.severity, "quick_answer": one.rule.entry.quick_answer}
            | {"matches": [{"text": redact(line)[0], "means": means} for line, means in one.quotes]}
            | {"words": list(one.words), "score": round(one.score, 3)}
            for one in found
        ]
        say_json({"found": rows})
    else:
        say(_listing(found, color(no_color)) if found else "Nothing found. All failures: denpexd rules list")
    sys.exit(0 if found else 1)


def _listing(found: "list[Found]", colored: bool) -> str:
    from denpexd.notify.redact import redact
    from denpexd.notify.render import Page

    page = Page(colored, width())
    for number, one in enumerate(found, 1):
        e = one.rule.entry
        page.line(f"{number}. {page.paint(e.title, 'head')}  ({page.paint(e.severity, e.severity)})", "   ")
        for line, means in one.quotes[:3]:
            page.lines.append(page.paint(page.cut(f"   > {redact(line)[0]}", page.width), "command"))
            page.text(means, "     ")
        if not one.quotes:
            page.text(f"words in common: {', '.join(one.words)}", "   ", style="dim")
        page.lines += [f"   denpexd explain {one.rule.id}", ""]
    return "\n".join(page.lines[:-1])
