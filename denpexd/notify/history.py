"""What is remembered of incidents that are over: how often a failure was seen, where, and what was done about it.

After a fix - an incident closed by hand, or a note on one that is over - the failure's absence is watched, in the time
that the job trains: `pending`, `held` after enough of it, `came_back`, or `unknown` where the job hardly trained since.
Nothing here does I/O; times are Unix seconds.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from denpexd.notify.book import Acknowledgement
from denpexd.notify.database import Statement
from denpexd.notify.match import Verdict
from denpexd.notify.rows import MAX_CLOSED, YEAR

MOST_FIXES = 500
PATIENCE = 14.0  # windows after which a fix whose job hardly trained cannot be told any more
SAVE = 60.0  # seconds of watching that a crash may lose
STATES = ("pending", "held", "came_back", "unknown")

_SEEN = (
    "SELECT key, job, failure, json_extract(verdict, '$.opened_t'), json_extract(verdict, '$.initiating_ranks'),"
    " json_extract(verdict, '$.nodes') FROM incidents WHERE json_valid(verdict) ORDER BY updated"
)

Rows = Callable[[str], list[tuple[Any, ...]]]


@dataclass(frozen=True, slots=True)
class Seen:
    """An incident of which only this is remembered; `nodes`: of those who started it."""

    job: str
    failure: str
    opened: float
    nodes: frozenset[str]


@dataclass(frozen=True, slots=True)
class Fix:
    """What somebody did about an incident. `observed`: seconds of training since; `again`: the incident that came."""

    key: str
    job: str
    failure: str
    t: float
    by: str
    note: str
    observed: float = 0.0
    state: str = "pending"
    decided: float = 0.0
    again: str = ""

    def plain(self, window: float) -> dict[str, object]:
        """As the API tells it."""
        about = {"key": self.key, "job": self.job, "failure": self.failure, "t": self.t, "by": self.by}
        watched = {"observed_seconds": round(self.observed), "window_seconds": window, "state": self.state}
        return {**about, "note": self.note, **watched, "decided_t": self.decided or None, "again": self.again or None}


class History:
    """All of it; `take()` gives what is to be written."""

    def __init__(self, rows: Rows, window: float) -> None:
        self.window = window
        self.fixes: dict[str, Fix] = {}
        self._seen: dict[str, Seen] = {}
        self._changes: dict[tuple[object, ...], Statement] = {}
        self._saved: dict[str, float] = {}
        for key, job, failure, opened, ranks, nodes in rows(_SEEN):
            self._remember(key, Seen(job, failure, _number(opened), _nodes(_parsed(ranks), _parsed(nodes))))
        for values in rows("SELECT * FROM fixes ORDER BY t"):
            self.fixes[values[0]] = Fix(*values)

    def take(self) -> dict[tuple[object, ...], Statement]:
        """The statements since the last call, by what they are about."""
        taken, self._changes = self._changes, {}
        return taken

    @property
    def counts(self) -> dict[tuple[str, str, str], int]:
        """The last fix of each failure of each job, by (job, failure, state)."""
        last = {(one.job, one.failure): one for one in sorted(self.fixes.values(), key=lambda one: one.t)}
        return {(one.job, one.failure, one.state): 1 for one in last.values()}

    @property
    def kept(self) -> dict[str, int]:
        """Entries in memory, by kind."""
        return {"seen": len(self._seen), "fix": len(self.fixes)}

    # --- incidents --------------------------------------------------------------------------------------------------

    def note(self, verdict: Verdict, now: float) -> None:
        """An incident as it is now; one that is open may be what a fix was to prevent."""
        key, job, failure = (str(verdict.get(name, "")) for name in ("key", "job", "failure"))
        nodes = _nodes(verdict.get("initiating_ranks"), verdict.get("nodes"))
        self._remember(key, Seen(job, failure, _number(verdict.get("opened_t")), nodes))
        if verdict.get("state") == "closed":
            return
        for fix in [one for one in self.fixes.values() if (one.job, one.failure) == (job, failure)]:
            since = key == fix.key or _number(verdict.get("opened_t")) >= fix.t
            if fix.state in ("pending", "held") and since:
                self._put(replace(fix, state="came_back", decided=now, again=key))

    def of(self, verdict: Verdict, now: float) -> dict[str, object] | None:
        """What is known of earlier incidents like this one; None if it is the first."""
        key, job, failure = (str(verdict.get(name, "")) for name in ("key", "job", "failure"))
        nodes = _nodes(verdict.get("initiating_ranks"), verdict.get("nodes"))
        opened = _number(verdict.get("opened_t"))
        before = [
            one for at, one in self._seen.items() if at != key and one.failure == failure and one.opened <= opened
        ]
        fix = self._fix_of(job, failure, opened)
        if not before and fix is None:
            return None
        here, on = [one for one in before if one.job == job], Counter[str]()
        for one in before:
            on.update(one.nodes & nodes)
        told: dict[str, object] = {
            "in_job": len(here),
            "elsewhere": len(before) - len(here),
            "on_node": dict(sorted(on.items())),
            "last_t": max((one.opened for one in before), default=None),
            "fix": None if fix is None else fix.plain(self.window),
        }
        return {**told, "text": _text(told, fix, now)}

    def _fix_of(self, job: str, failure: str, before: float) -> Fix | None:
        """The last fix of this failure, rather of the same job."""
        known = [one for one in self.fixes.values() if one.failure == failure and one.t <= before]
        return max(known, key=lambda one: (one.job == job, one.t), default=None)

    def _remember(self, key: str, seen: Seen) -> None:
        self._seen.pop(key, None)
        self._seen[key] = seen
        while len(self._seen) > MAX_CLOSED:
            del self._seen[next(iter(self._seen))]

    # --- fixes ------------------------------------------------------------------------------------------------------

    def fixed(self, said: Acknowledgement, verdict: Verdict) -> None:
        """Somebody says what was done about an incident; a fix of the same that is watched still gives way."""
        job, failure = str(verdict.get("job", "")), str(verdict.get("failure", ""))
        for one in [
            one for one in self.fixes.values() if (one.job, one.failure, one.state) == (job, failure, "pending")
        ]:
            self._drop(one.key)
        self._put(Fix(said.key, job, failure, said.t, said.by, said.note))
        for one in sorted(self.fixes.values(), key=lambda one: one.t)[: max(0, len(self.fixes) - MOST_FIXES)]:
            self._drop(one.key)

    @property
    def watched(self) -> frozenset[str]:
        """Jobs whose training is to be told by `trained`."""
        return frozenset(fix.job for fix in self.fixes.values() if fix.state == "pending")

    def trained(self, jobs: Iterable[str], seconds: float, now: float) -> None:
        """These of the watched jobs made progress for so many seconds."""
        moving = set(jobs)
        for fix in [one for one in self.fixes.values() if one.state == "pending"]:
            observed = fix.observed + (seconds if fix.job in moving else 0.0)
            if observed >= self.window:
                self._put(replace(fix, observed=observed, state="held", decided=now))
            elif now - fix.t > PATIENCE * self.window:
                self._put(replace(fix, observed=observed, state="unknown", decided=now))
            elif observed - self._saved.get(fix.key, 0.0) >= SAVE:
                self._put(replace(fix, observed=observed))
            else:
                self.fixes[fix.key] = replace(fix, observed=observed)
        for old in [one for one in self.fixes.values() if one.state != "pending" and one.t < now - YEAR]:
            self._drop(old.key)

    def _put(self, fix: Fix) -> None:
        self.fixes[fix.key], self._saved[fix.key] = fix, fix.observed
        values = (fix.key, fix.job, fix.failure, fix.t, fix.by, fix.note)
        watched = (fix.observed, fix.state, fix.decided, fix.again)
        self._changes["fix", fix.key] = ("INSERT OR REPLACE INTO fixes VALUES (?,?,?,?,?,?,?,?,?,?)", values + watched)

    def _drop(self, key: str) -> None:
        del self.fixes[key]
        self._saved.pop(key, None)
        self._changes["fix", key] = ("DELETE FROM fixes WHERE key = ?", (key,))


def _text(told: Mapping[str, Any], fix: Fix | None, now: float) -> str:
    """As in `3 times in this job, 2 times on gpu-17, last 5 h ago; fixed by anna 2 d ago: cable swapped`."""
    parts = [f"{_times(told['in_job'])} in this job"] if told["in_job"] else []
    parts += [f"{_times(told['elsewhere'])} in others"] if told["elsewhere"] else []
    parts += [f"{_times(count)} on {node}" for node, count in list(told["on_node"].items())[:3]]
    text = ", ".join(parts)
    if told["last_t"] is not None:
        text += f", last {_ago(now - told['last_t'])}"
    if fix is not None:
        who = f" by {fix.by}" if fix.by else ""
        how = f": {fix.note}" if fix.note else ""
        text += f"{'; ' if text else ''}fixed{who} {_ago(now - fix.t)}{how}"
        text += " - it has come back" if fix.state == "came_back" else ""
    return text


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _ago(seconds: float) -> str:
    for unit, length in (("d", 86400.0), ("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit} ago"
    return "just now"


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


def _parsed(text: object) -> object:
    try:
        return json.loads(text) if isinstance(text, str) else None
    except ValueError:
        return None


def _nodes(ranks: object, nodes: object) -> frozenset[str]:
    if not isinstance(ranks, list | tuple) or not isinstance(nodes, Mapping):
        return frozenset()
    at = {str(rank): str(node) for rank, node in nodes.items()}
    return frozenset(at[str(rank)] for rank in ranks if str(rank) in at)
