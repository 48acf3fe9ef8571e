"""Flight Recorder dumps of a folder read and judged, and as scripts are told of them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from denpexd.core.flight_groups import Group, Place
from denpexd.core.flight_verdict import Analysis, analyse
from denpexd.evidence.flight_read import Found, read_folder


@dataclass(frozen=True, slots=True)
class Report:
    """The files as they were found, and what they say together."""

    found: Sequence[Found]
    analysis: Analysis

    @property
    def readable(self) -> bool:
        return any(one.dump is not None for one in self.found)


def read(folder: Path, world: int | None = None) -> Report:
    """All dumps of the folder; a rank whose number is missing between others has left none."""
    found = read_folder(folder)
    dumps = {one.rank: one.dump for one in found if one.dump is not None}
    highest = max((one.rank for one in found), default=-1)
    return Report(found, analyse(dumps, max(world or 0, highest + 1) or None))


def as_json(report: Report) -> dict[str, Any]:
    """Everything that the text says; keys are a promise."""
    verdict = report.analysis.verdict
    return {
        "finding": verdict.finding,
        "failure": verdict.failure,
        "certainty": verdict.certainty,
        "initiating_ranks": list(verdict.initiating),
        "collateral_ranks": list(verdict.waiting),
        "suspected_ranks": list(verdict.suspected),
        "summary": verdict.text,
        "missing": list(verdict.missing),
        "ranks_without_dump": list(report.analysis.absent),
        "groups": [_group_json(group) for group in report.analysis.groups.values()],
        "dumps": [_file_json(one) for one in report.found],
    }


def _group_json(group: Group) -> dict[str, Any]:
    return {
        "name": group.name,
        "description": group.description,
        "ranks": list(group.members),
        "ranks_certain": group.certain,
        "ranks_without_entries": list(group.silent),
        "places": [_place_json(place) for _, place in sorted(group.places.items())],
    }


def _place_json(place: Place) -> dict[str, Any]:
    op = place.op
    stands = None if op is None else {"op": op.name, "seq": op.seq, "numel": op.numel, "dtypes": list(op.dtypes)}
    at = op.place or None if op is not None else None
    return {"rank": place.rank, "enqueued": place.enqueued, "completed": place.done, "stands_in": stands, "at": at}


def _file_json(one: Found) -> dict[str, Any]:
    dump = one.dump
    return {
        "file": one.path.name,
        "rank": one.rank if one.rank >= 0 else None,
        "bytes": one.bytes,
        "version": dump.version if dump is not None else None,
        "entries": len(dump.ops) if dump is not None else None,
        "pending": len(dump.pending) if dump is not None else None,
        "wrong": one.wrong or None,
    }
