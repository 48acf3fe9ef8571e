"""`denpexd bundle` and `denpexd flight`: all evidence of an incident in one archive, or what its dumps say alone."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from denpexd.completion import incidents
from denpexd.terminal import EXISTING, columns, fail, form, save_archive, say, say_json

if TYPE_CHECKING:
    from denpexd.core.flight_groups import Place
    from denpexd.core.flight_verdict import Analysis
    from denpexd.flight import Report

_MOST_GROUPS = 40
_HEAD = ("GROUP", "RANKS", "ENTERED", "DONE", "STANDS IN", "AT")


@click.command()
@click.argument("key", required=False, shell_complete=incidents)
@click.option("-c", "--config", type=EXISTING, help="Configuration file (YAML).")
@click.option("--state-dir", type=EXISTING, help="Where the daemon keeps its state.")
@click.option(
    "-o", "--output", type=EXISTING, help="File to write: .tar.xz or .zip (default: denpexd-KEY.tar.xz here)."
)
@click.option("--list", "listing", is_flag=True, help="Which incidents there are.")
def bundle(key: str | None, config: Path | None, state_dir: Path | None, output: Path | None, listing: bool) -> None:
    """Write all that is known of an incident into one archive.

    KEY as denpexd bundle --list shows it, or its beginning (default: the newest). The archive holds the report, what
    the daemon saw, stacks, quoted log lines, versions and configuration, without secrets. denpexd replay FILE gives the
    verdict again. Works beside a running daemon.
    """
    from denpexd.bundle import file_name
    from denpexd.bundles import choose, incidents, made
    from denpexd.notify.text import moment, one_line
    from denpexd.settings import load

    settings = load(config, overrides={"state_dir": str(state_dir)} if state_dir else {}, environ=os.environ)
    if listing:
        rows = [
            (moment(one.updated), one.key, one_line((one.verdict or {}).get("title")), "kept" if one.archive else "")
            for one in incidents(settings.state_dir)
        ]
        say(columns(rows) if rows else f"no incident is known in {settings.state_dir}")
        return
    known = choose(settings.state_dir, key)
    path = output or Path(f"denpexd-{file_name(known.key)}.tar.xz")
    form = "zip" if path.name.endswith(".zip") else "tar.xz"
    if form == "tar.xz" and not path.name.endswith((".tar.xz", ".txz")):
        fail(f"{path}: the name of a bundle ends with .tar.xz or .zip")
    note = "" if known.archive else " (made from verdict and journal only: nothing else was kept of it)"
    save_archive(path, made(known, settings, form), f"{known.key}{note}")


@click.command()
@click.argument("folder", metavar="DIR", type=EXISTING)
@click.option("--world", type=click.IntRange(min=1), help="How many ranks the job has, if the dumps do not show it.")
@click.option("--all", "everything", is_flag=True, help="Show the groups in which nobody waits, too.")
@form("text", "json")
def flight(folder: Path, world: int | None, everything: bool, form: str) -> None:
    """Read Flight Recorder dumps: which rank the others wait for.

    DIR holds one file a rank: who is behind, who is in another collective. Pickle and JSON, NCCL and gloo, all
    versions. Damaged and missing dumps are named; where one of them could change the answer, nobody is blamed.

    Exit code 0: no rank waits, 1: ranks wait for others, 2: no readable dump.
    """
    from denpexd.flight import as_json, read
    from denpexd.notify.redact import redact, redact_value

    if not folder.is_dir():
        fail(f"{folder}: no such folder; give the one that holds the dumps, such as /tmp/nccl_trace_rank_*")
    report = read(folder, world)
    if not report.readable:
        say(redact(as_text(report, everything=True))[0], err=True)
        fail(f"{folder}: no readable dump; files end in the number of the rank, as in nccl_trace_rank_3 or rank3.json")
    if form == "json":
        say_json(redact_value(as_json(report))[0])
    else:
        say(redact(as_text(report, everything=everything))[0])
    sys.exit(0 if report.analysis.verdict.finding == "none" else 1)


def as_text(report: "Report", *, everything: bool = False) -> str:
    """The verdict first, then what it rests on, then what could not be read."""
    from denpexd.core.numbers import ranks_named

    parts = [_verdict(report.analysis)] if report.readable else []
    rows = _rows(report.analysis, everything=everything)
    if rows:
        parts.append(columns([_HEAD, *rows]))
    wrong = [f"  {one.path.name}: {one.wrong}" for one in report.found if one.wrong]
    if wrong:
        parts.append("Not used:\n" + "\n".join(wrong))
    if report.readable and report.analysis.absent:
        parts.append(f"No readable dump of {ranks_named(report.analysis.absent)}.")
    return "\n\n".join(parts)


def _verdict(analysis: "Analysis") -> str:
    from denpexd.core.numbers import ranks_named

    verdict = analysis.verdict
    if verdict.initiating:
        keep = "keeps" if len(verdict.initiating) == 1 else "keep"
        head = f"{ranks_named(verdict.initiating).capitalize()} {keep} the others waiting ({verdict.certainty})."
    elif verdict.finding == "none":
        head = "The dumps show no rank that waits."
    else:
        head = "Ranks wait; the dumps do not tell which rank is the cause (undetermined)."
    lines = [head, f"{verdict.text[:1].upper()}{verdict.text[1:]}."]
    if verdict.suspected:
        lines.append(f"In question: {ranks_named(verdict.suspected)}.")
    lines += [f"Missing: {text}." for text in verdict.missing]
    if verdict.failure:
        lines.append(f"What to do: denpexd explain {verdict.failure}")
    return "\n".join(lines)


def _rows(analysis: "Analysis", *, everything: bool) -> list[tuple[str, ...]]:
    from denpexd.core.numbers import ranks_text

    rows: list[tuple[str, ...]] = []
    shown = [g for g in analysis.groups.values() if everything or any(p.waits for p in g.places.values())]
    for group in shown[:_MOST_GROUPS]:
        alike: dict[tuple[str, str, str, str], list[int]] = {}
        for rank, place in sorted(group.places.items()):
            alike.setdefault(_cells(place), []).append(rank)
        for cells, members in alike.items():
            rows.append((group.label, ranks_text(members), *cells))
        if group.silent:
            rows.append((group.label, ranks_text(group.silent), "-", "-", "no entries", ""))
    if len(shown) > _MOST_GROUPS:
        rows.append((f"and {len(shown) - _MOST_GROUPS} more groups", "", "", "", "", ""))
    return rows


def _cells(place: "Place") -> tuple[str, str, str, str]:
    op = place.op
    stands = "nothing" if not place.waits else (f"#{op.seq} {op.call}" if op is not None else f"#{place.done + 1}")
    return str(place.enqueued), str(place.done), stands, op.place if op is not None else ""
