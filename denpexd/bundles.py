"""Incidents and their bundles in a state folder, read beside a running daemon or after it: `denpexd bundle`.

Nothing is written there and no lock is taken: SQLite's snapshots and files that are replaced whole make that safe.
"""

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from denpexd.archive import pack, unpack
from denpexd.bundle import Material, file_name, files, from_journal, renewed, versions_of
from denpexd.catalog.packs import load_packs
from denpexd.errors import CaseError, StateError
from denpexd.keeper import ENDING, FOLDER
from denpexd.notify.postmortem import Told
from denpexd.notify.redact import redact_verdict
from denpexd.recording import read_case
from denpexd.replay import Replayer
from denpexd.scan.engine import choose_engine
from denpexd.settings import Settings, show
from denpexd.shelf import Shelf
from denpexd.state import FILE

_MOST = 200  # databases below one folder
_UNKNOWN = "nothing was kept of this incident but its verdict and the journal: the replay is only similar"

Verdict = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Known:
    """An incident that something is known of; `updated` in Unix seconds. `verdict` or `archive` may be missing."""

    key: str
    updated: float
    verdict: Verdict | None = None
    database: Path | None = None
    archive: Path | None = None


def incidents(state_dir: Path) -> list[Known]:
    """Every incident of this folder, of all daemons that keep their state below it, last changed first."""
    archives = {kept.path.name.removesuffix(ENDING): kept for kept in Shelf(state_dir / FOLDER, 0, 0).files()}
    found: dict[str, Known] = {}
    databases = [path for path in (state_dir / FILE, *sorted(state_dir.glob(f"*/{FILE}"))) if path.is_file()]
    for database in databases[:_MOST]:
        for key, updated, text in _rows(database, "SELECT key, updated, verdict FROM incidents"):
            kept = archives.get(file_name(key))
            if key not in found or found[key].updated < updated:
                found[key] = Known(key, updated, json.loads(text), database, kept.path if kept else None)
    named = {file_name(key) for key in found}
    for name, kept in archives.items():
        if name not in named:
            found[name] = Known(name, kept.changed, archive=kept.path)
    return sorted(found.values(), key=lambda known: -known.updated)


def choose(state_dir: Path, key: str | None) -> Known:
    """The incident of this key (or its only beginning), or the newest; StateError if there is none."""
    known = incidents(state_dir)
    if not known:
        raise StateError(f"no incident is known in {state_dir}; give the folder of the daemon's state with --state-dir")
    if key is None:
        return known[0]
    exact = [one for one in known if one.key == key]
    chosen = exact or [one for one in known if one.key.startswith(key)]
    if len(chosen) != 1:
        names = ", ".join(one.key for one in (chosen or known)[:5])
        raise StateError(f"{'several incidents begin' if chosen else 'no incident'} with {key!r}; there are: {names}")
    return chosen[0]


def verdicts(what: str | None, settings: Settings) -> list[tuple[Verdict, Known | None]]:
    """The incidents of a case folder or a bundle, or the one of this key (None: the newest) that a daemon has kept.

    Of a bundle the verdict that was told then, of a case what a replay gives now; redacted. CaseError, StateError.
    """
    path = Path(what) if what is not None else None
    if path is not None and path.is_file():
        return [(_told_then(path), None)]
    if path is not None and path.is_dir():
        replayer = Replayer(load_packs(settings.rules).catalog, choose_engine())
        return [(redact_verdict(found)[0], None) for found in replayer.run(read_case(path, set())).verdicts]
    known = choose(settings.state_dir, what)
    if known.verdict is None and known.archive is None:
        raise StateError(f"nothing is known of {known.key} any more")
    return [(known.verdict or _told_then(cast(Path, known.archive)), known)]


def messages(known: Known) -> list[Told]:
    """What was sent about an incident, oldest first."""
    if known.database is None:
        return []
    sql = "SELECT created, sink, event, reason, state, error FROM deliveries WHERE key = ? ORDER BY id"
    return [Told(*row) for row in _rows(known.database, sql, (known.key,))]


def _told_then(archive: Path) -> Verdict:
    content = unpack(archive)
    try:
        found = json.loads(content["verdict.json"])
    except (KeyError, ValueError, RecursionError) as error:
        raise CaseError(f"{archive}: no bundle of an incident: verdict.json is missing or damaged") from error
    if not isinstance(found, dict) or "key" not in found:
        raise CaseError(f"{archive}: verdict.json holds no verdict")
    return redact_verdict(found)[0]


def made(known: Known, settings: Settings, form: str) -> bytes:
    """The archive of an incident: what was kept at the time, with the verdict as it is now."""
    name = f"denpexd-{file_name(known.key)}"
    content: dict[str, bytes] | None = None
    if known.archive is not None:
        try:
            content = unpack(known.archive)
        except CaseError:
            if known.verdict is None:
                raise
    if content is not None and known.verdict is not None:
        content = renewed(content, known.verdict)
    return pack(content or _rest(known, settings), name, form=form)


def _rest(known: Known, settings: Settings) -> dict[str, bytes]:
    if known.verdict is None or known.database is None:
        raise StateError(f"nothing is known of {known.key} any more")
    lines = [line for (line,) in _rows(known.database, "SELECT line FROM journal ORDER BY id")]
    opened = float(str(known.verdict["opened_t"]))
    cut = from_journal(str(known.verdict["job"]), opened, settings.hang.limits(), lines)
    versions = versions_of("", load_packs(settings.rules))
    return files(Material(known.verdict, cut, show(settings), versions, note=_UNKNOWN))


def _rows(database: Path, sql: str, values: tuple[object, ...] = ()) -> list[tuple[Any, ...]]:
    """Read without a lock; where even SQLite's own files beside it may not be made, as it is on disk."""
    last: sqlite3.Error | None = None
    for mode in ("mode=ro", "immutable=1"):
        try:
            connection = sqlite3.connect(f"file:{quote(str(database.resolve()))}?{mode}", uri=True, timeout=5.0)
            try:
                return connection.execute(sql, values).fetchall()
            finally:
                connection.close()
        except sqlite3.Error as error:
            last = error
    raise StateError(f"state {database} cannot be read: {last}; run this as the user of the daemon")
