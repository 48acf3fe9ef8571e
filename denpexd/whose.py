"""`denpexd discover`: which file is the log of which rank of which job, and what says so; what is left out, and why.

The same looks as the daemon's: names and templates (ingest.discover), the processes that hold the files open
(evidence.procs), the prefixes of the lines (scan.prefixes). Nothing is kept.
"""

import os
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from denpexd.core.events import UNKNOWN_RANK
from denpexd.core.numbers import ranks_text
from denpexd.evidence.procs import Processes
from denpexd.ingest.discover import Discovery, Found
from denpexd.ingest.finished import is_binary
from denpexd.ingest.links import Links
from denpexd.notify.redact import redact_name
from denpexd.notify.render import Page
from denpexd.notify.text import one_line, rank_words
from denpexd.scan.prefixes import PrefixReader
from denpexd.settings import Settings
from denpexd.terminal import table
from denpexd.web.page import byte_size, plural

_SAMPLE = 64 << 10  # bytes at either end of a file that are looked at
_MOST_READ = 500  # files of which the lines are looked at
_SHOWN = 40  # files a job, and left out ones, on the screen; all of them with --format json


@dataclass(frozen=True, slots=True)
class Whose:
    """One file. `rank` UNKNOWN_RANK: several, or not known, see `why`. `lines`: ranks that its lines name."""

    path: str
    job: str
    job_why: str
    rank: int
    why: str
    stream: str
    attempt: int | None
    size: int
    lines: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Discovered:
    """`left_out`: path to reason, of files that are no logs; `said`: what is wrong or remarkable."""

    files: Sequence[Whose]
    left_out: Mapping[str, str]
    said: Sequence[str]


def look(settings: Settings, processes: Processes | None = None) -> Discovered:
    """Look once. SettingsError for a wrong placeholder."""
    left_out: dict[str, str] = {}
    discovery = Discovery(settings.paths, settings.job, links=settings.ingest.links, passed_over=left_out)
    found = discovery.scan()
    held = _held(processes or Processes(), [each.path for each in found])
    files = [
        _whose(each, held.get(each.path), discovery.links if number < _MOST_READ else None)
        for number, each in enumerate(found)
    ]
    out = {redact_name(path): why for path, why in left_out.items()}
    return Discovered(files, out, [redact_name(said) for said in discovery.errors])


def _held(processes: Processes, paths: Sequence[Path]) -> dict[Path, int]:
    """Which rank's processes write a file, as far as they may be looked at; UNKNOWN_RANK: more than one."""
    try:
        claims = processes.claims(paths)
    except OSError:
        return {}
    return {path: rank for claim in claims for path, rank in claim.files.items()}


def _whose(found: Found, holder: int | None, links: Links | None) -> Whose:
    data, size, wrong = (b"", 0, "") if links is None else _ends(found.path, links)
    rank, why = found.rank, found.note or found.how
    if holder is not None and holder != UNKNOWN_RANK:
        rank, why = holder, "the process of that rank writes it"
    ranks = _ranks_in(data, rank)
    if wrong:
        why = wrong
    elif rank == UNKNOWN_RANK and not found.note:
        why = "several ranks' processes write it" if holder is not None else "no rank in its name or its lines yet"
        why = f"a merged stream: its lines name {rank_words(ranks)}" if ranks else why
    elif found.local and rank == found.rank:
        why += ", counts within its node"
    path, job = redact_name(str(found.path)), redact_name(found.job)
    return Whose(path, job, found.job_how, rank, why, found.stream, found.attempt, size, tuple(ranks))


def _ends(path: Path, links: Links) -> tuple[bytes, int, str]:
    """Beginning and end of a file, its size, and why it cannot be read."""
    try:
        fd, info = links.open(path)
    except OSError as error:
        return b"", 0, f"cannot be read: {error.strerror}"
    try:
        data = os.pread(fd, _SAMPLE, 0)
        if info.st_size > 2 * _SAMPLE:
            data += b"\n" + os.pread(fd, _SAMPLE, info.st_size - _SAMPLE).partition(b"\n")[2]
    except OSError as error:
        return b"", info.st_size, f"cannot be read: {error.strerror}"
    finally:
        os.close(fd)
    if data and is_binary(data):
        return b"", info.st_size, "is no text: binary content or UTF-16"
    return data, info.st_size, ""


def _ranks_in(data: bytes, rank: int) -> list[int]:
    """Ranks that prefixes of the lines name."""
    reader = PrefixReader(UNKNOWN_RANK)
    reader.sample(data)
    named = {line.rank for each in data.split(b"\n") if each for line in reader.read(each) if line.certain}
    return sorted(named - {UNKNOWN_RANK, rank})


def as_json(found: Discovered) -> dict[str, object]:
    """The same for scripts; an unknown rank is null."""
    names = Whose.__slots__
    rows = [{name: getattr(each, name) for name in names} for each in found.files]
    return {
        "files": [row | {"rank": None if row["rank"] == UNKNOWN_RANK else row["rank"]} for row in rows],
        "left_out": [{"path": path, "why": why} for path, why in sorted(found.left_out.items())],
        "said": list(found.said),
    }


def as_text(found: Discovered, *, color: bool, width: int) -> str:
    """Job by job a table of its files, then what was left out."""
    page = Page(color, width)
    jobs: dict[str, list[Whose]] = {}
    for each in found.files:
        jobs.setdefault(each.job, []).append(each)
    # What is wrong with many files is said once, below them.
    told = Counter(each.why for each in found.files if any(said.startswith(f"{each.why}: ") for said in found.said))
    for job, files in jobs.items():
        _job(page, job, files, told)
    if not jobs:
        page.lines.append(page.paint("no log file was found", "high"))
    for said in found.said:
        number = next((count for why, count in told.items() if said.startswith(f"{why}: ")), 0)
        page.text(f"▲ {said}" + (f" ({plural(number, 'file')})" if number else ""), "", "  ", style="medium")
    if found.left_out:
        page.head(f"Left out: {len(found.left_out)}")
        rows = [(one_line(path), why) for path, why in sorted(found.left_out.items())]
        page.lines += _cut(table(("FILE", "WHY"), rows[:_SHOWN], width), len(rows) - _SHOWN)
    return "\n".join(page.lines).lstrip("\n")


def _job(page: Page, job: str, files: Sequence[Whose], told: Container[str]) -> None:
    ranks = sorted({each.rank for each in files} - {UNKNOWN_RANK})
    known = f"ranks {ranks_text(ranks)}" if len(ranks) > 1 else f"rank {ranks[0]}" if ranks else "no rank by name"
    page.lines.append("")
    page.text(
        f"job {one_line(job)} ({files[0].job_why}): {len(files)} file{'s' if len(files) > 1 else ''}, {known}",
        "",
        "  ",
        style="head",
    )
    root = os.path.commonpath([str(Path(each.path).parent) for each in files])
    page.text(f"in {one_line(root)}", "  ", style="dim")
    rows = [
        (
            one_line(os.path.relpath(each.path, root)),
            "?" if each.rank == UNKNOWN_RANK else str(each.rank),
            byte_size(each.size),
            "in doubt, see below" if each.why in told else each.why,
        )
        for each in sorted(files, key=lambda one: (one.rank, one.path))
    ]
    page.lines += _cut(table(("FILE", "RANK", "SIZE", "WHY"), rows[:_SHOWN], page.width), len(rows) - _SHOWN)


def _cut(lines: Iterable[str], more: int) -> list[str]:
    return [*lines, f"and {more} more: --format json"] if more > 0 else list(lines)
