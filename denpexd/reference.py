"""What the console knows without a job: the encyclopedia, the search in it, and the explanation of a pasted log.

A pasted log is hostile input and can take seconds, so a child reads it: one at a time, with limits to its time and
memory. It comes on standard input and goes with the child; nothing of it is written anywhere.
"""

import asyncio
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from denpexd.catalog.packs import Packs
from denpexd.core.rule import Catalog, Rule
from denpexd.encyclopedia import answer, entry_json, parts
from denpexd.errors import SourceError
from denpexd.notify.redact import redact
from denpexd.scan.re2_engine import Re2Engine
from denpexd.search import Found, Search
from denpexd.web.view import Article, Chapter, Entry, Point

Verdict = Mapping[str, object]

FOUND = 12
SECONDS = 50.0  # less than the server gives an answer, or nobody is told why there is none
MEMORY = 2 << 30  # bytes of address space; the scanner's tables alone map a quarter of it
LARGEST = 8 << 20  # bytes of an answer
_HERE = str(Path(__file__).resolve().parents[1])
_CHILD = (
    "import os, resource as r; os.nice(10); open('/proc/self/oom_score_adj', 'w').write('1000'); "
    f"r.setrlimit(r.RLIMIT_CPU, (45, 50)); r.setrlimit(r.RLIMIT_AS, ({MEMORY}, {MEMORY})); "
    "r.setrlimit(r.RLIMIT_CORE, (0, 0)); r.setrlimit(r.RLIMIT_FSIZE, (0, 0)); "
    "from denpexd.cli import main; main(prog_name='denpexd')"
)


class RuleReference:
    """Implements web.view.Reference for the rules in force, as `packs` gives them at any time."""

    def __init__(self, packs: Callable[[], Packs]) -> None:
        self._packs = packs
        self._search: tuple[Catalog, Search] | None = None
        self._busy = False

    def entries(self) -> Sequence[Entry]:
        rules = self._packs().catalog.rules.values()
        return sorted(map(_entry, rules), key=lambda entry: (entry.category, entry.title))

    def article(self, failure: str) -> Article | None:
        catalog = self._packs().catalog
        rule = catalog.rules.get(catalog.aliases.get(failure, failure))
        return None if rule is None else _article(rule)

    def search(self, text: str) -> Sequence[Entry]:
        """The failures that explain a text best. The first time after a change of the rules takes a second or two."""
        catalog = self._packs().catalog
        if self._search is None or self._search[0] is not catalog:
            self._search = catalog, Search(catalog, Re2Engine)
        return [_entry(one.rule, one) for one in self._search[1](text, FOUND)]

    async def diagnose(self, log: bytes) -> Sequence[Verdict]:
        """What a finished log shows; SourceError: why it cannot be read. BlockingIOError: another one is being read."""
        if self._busy:
            raise BlockingIOError
        self._busy = True
        try:
            return await self._read(log)
        finally:
            self._busy = False

    async def _read(self, log: bytes) -> Sequence[Verdict]:
        folders = [state.pack.folder for state in self._packs().states if state.pack.kind == "folder"]
        packs = [word for folder in folders for word in ("--rules", str(folder))]
        child = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", _CHILD, "diagnose", "-", "--format", "json", *packs),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={"PATH": os.defpath, "LC_ALL": "C.UTF-8", "PYTHONPATH": _HERE, "PYTHONDONTWRITEBYTECODE": "1"},
            cwd="/",
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(SECONDS):
                answer, said = await child.communicate(log)
        except TimeoutError:
            raise SourceError(f"reading this log took more than {SECONDS:g} s; use denpexd diagnose FILE") from None
        finally:
            if child.returncode is None:
                child.kill()
                await child.wait()
        try:
            verdicts: Sequence[Verdict] = json.loads(answer[: LARGEST + 1])["verdicts"]
        except ValueError:  # a child that ran out of memory ends with 1, as one that found a failure does
            lines = said.decode(errors="replace").strip().splitlines()
            why = redact(lines[-1])[0] if child.returncode == 2 and lines else "it took too much memory or time"
            raise SourceError(f"this log cannot be read: {why}") from None
        return verdicts


def _entry(rule: Rule, found: Found | None = None) -> Entry:
    e = rule.entry
    quotes = [] if found is None else [(redact(line)[0], means) for line, means in found.quotes[:3]]
    return Entry(rule.id, e.title, e.category, e.severity, e.domain, answer(rule), quotes)


def _article(rule: Rule) -> Article:
    e = rule.entry
    chapters = [
        Chapter(part.head, [Point(i.text, i.risk, i.command, i.code) for i in part.items], part.numbered)
        for part in parts(rule)
    ]
    facts = [("also", ", ".join(e.aliases)), ("happens in", ", ".join(e.scope)), ("affects", "; ".join(e.affects))]
    return Article(_entry(rule), [f for f in facts if f[1]], chapters, e.related, e.references, entry_json(rule))
