"""Texts of one's own: a jinja2 template whose first line is the title and whose rest is the body.

It runs in jinja2's sandbox. What it puts in is escaped for the destination, what stands in it is not. The file is read
at every use; where it is missing or wrong the built-in text is sent instead, and the log says so once.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from pathlib import Path

from denpexd.notify.message import FACTS, Message
from denpexd.notify.policy import Verdict
from denpexd.notify.text import moment, one_line, rank_list, unmentioned, visible

log = logging.getLogger(__name__)

_LINKS = {"console": "", "runbook": ""}
LARGEST = 64 * 1024  # bytes of a template
LONGEST = 1_000_000  # characters of what it gives, pieces counted; every receiver takes less

Escape = Callable[[str], str]


def plain(text: str) -> str:
    """For destinations of plain text."""
    return unmentioned(text)


class Template:
    """The template of one sink; `path` None: none is configured."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._said = ""

    def render(self, verdict: Verdict, told: Message, escape: Escape = plain) -> tuple[str, str] | None:
        """Title and body; None where the built-in text is to be sent."""
        if self._path is None:
            return None
        try:
            return rendered(_read(self._path), verdict, told, escape)
        except Exception as error:  # a template can fail in every way that a program can
            why = f"{self._path}: {_reason(error)}"
            if why != self._said:
                log.error("template %s; the built-in text is sent instead", why)
            self._said = why
        return None


def rendered(source: str, verdict: Verdict, told: Message, escape: Escape) -> tuple[str, str]:
    """Title and body of a template. Raises what jinja2 raises, ValueError if there is nothing in it."""
    from jinja2 import StrictUndefined
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def finalized(value: object) -> object:
        return "" if value is None else escape(visible(str(value)))

    environment = ImmutableSandboxedEnvironment(
        undefined=StrictUndefined, finalize=finalized, trim_blocks=True, lstrip_blocks=True, autoescape=False
    )
    environment.filters |= {"ranks": _ranks, "moment": moment, "one_line": one_line}
    facts, links = dict.fromkeys(FACTS, "") | dict(told.facts), _LINKS | dict(told.links)  # what is unknown is empty
    names = {**asdict(told), "title": told.title, "facts": facts, "links": links}
    text = _bounded(environment.from_string(source).generate(names, verdict=_plain(verdict))).strip()
    title, _, body = text.partition("\n")
    if not title.strip():
        raise ValueError("it gives no text")
    return title.strip(), body.strip()


def _bounded(pieces: Iterable[str]) -> str:
    found, left = [], LONGEST
    for piece in pieces:
        left -= len(piece) + 1  # also of loops that give nothing
        if left < 0:
            raise ValueError(f"it gives more than {LONGEST} characters")
        found.append(piece)
    return "".join(found)


def _ranks(value: object) -> str:
    """`0-3,7` of a list of ranks."""
    return rank_list([rank for rank in value if isinstance(rank, int)]) if isinstance(value, list | tuple) else ""


def _plain(value: object) -> object:
    """A copy, so that nothing of ours is reached through it."""
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _read(path: Path) -> str:
    with path.open("rb") as file:
        found = file.read(LARGEST + 1)
    if len(found) > LARGEST:
        raise ValueError(f"it is larger than {LARGEST // 1024} KiB")
    return found.decode("utf-8")


def _reason(error: Exception) -> str:
    line = getattr(error, "lineno", None)
    said = getattr(error, "strerror", None) or getattr(error, "message", None) or str(error) or type(error).__name__
    return (f"line {line}: " if line else "") + one_line(said)
