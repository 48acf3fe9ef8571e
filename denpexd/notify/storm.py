"""What is too much for one receiver: further incidents are told together, in one message, instead of one page each.

Of one failure of one job three first messages an hour, of all together sixty; what is above waits for a digest. The
digests of what was not told alone for other reasons are made here, too. Nothing here does I/O; times are Unix seconds.
"""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

SAME, ALL, WITHIN = 3, 60, 3600.0
GATHER, EVERY = 60.0, 300.0  # a digest comes so long after its first incident, and so long after the one before
MOST = 1000  # incidents that wait; with so many the digest comes at once
_SEVERITIES = ("low", "medium", "high", "critical")

Verdict = Mapping[str, object]


@dataclass(slots=True)
class Storm:
    """What one sink was told first lately, and what waits to be told together."""

    held: dict[str, Verdict] = field(default_factory=dict)
    _pages: deque[tuple[float, tuple[object, object]]] = field(default_factory=deque)
    _since: float = 0.0
    _told: float = float("-inf")

    def holds(self, verdict: Verdict, now: float) -> bool:
        """Whether the first message about an incident has to wait; if not, it counts as sent now."""
        while self._pages and not now - WITHIN < self._pages[0][0] <= now:  # also of before the clock was set back
            self._pages.popleft()
        slot, key = (verdict.get("job"), verdict.get("failure")), str(verdict["key"])
        if len(self._pages) < ALL and sum(other == slot for _, other in self._pages) < SAME:
            self._pages.append((now, slot))
            self.held.pop(key, None)
            return False
        self.hold(verdict, now)
        return True

    def hold(self, verdict: Verdict, now: float) -> None:
        """Tell of this incident with the next digest."""
        if not self.held:
            self._since = now
        self.held[str(verdict["key"])] = verdict

    def take(self, now: float, *, last: bool = False) -> list[Verdict]:
        """All that waits, when the time for one message about it has come or `last`; nothing otherwise."""
        self._since, self._told = min(self._since, now), min(self._told, now)  # the clock may have been set back
        due = last or len(self.held) >= MOST or now >= max(self._since + GATHER, self._told + EVERY)
        if not self.held or not due:
            return []
        held, self.held, self._told = list(self.held.values()), {}, now
        return held


_WHY = {
    "storm": (
        "further incidents",
        "Too many incidents for a message each.",
        f"Within an hour a receiver is told of {ALL} incidents, and of {SAME} of one failure in one job.",
    ),
    "maintenance": ("incidents during maintenance", "Held back during maintenance.", "A maintenance window was set."),
    "quiet": ("incidents during quiet hours", "Held back during quiet hours.", "This receiver has quiet hours."),
    "dropped": (
        "incidents that could not be told in time",
        "This receiver was away for so long that messages had to be dropped.",
        "More messages waited than the outbox holds; `denpexd notify dead` lists what was dropped.",
    ),
}


def digest(reason: str, sink: str, held: Sequence[Verdict], now: float) -> dict[str, object]:
    """One message about many incidents, as a verdict. `reason`: storm | maintenance | quiet | dropped."""
    jobs: dict[str, Counter[str]] = {}
    for verdict in held:
        jobs.setdefault(str(verdict.get("failure")), Counter())[str(verdict.get("job"))] += 1
    ended = sum(v.get("state") == "closed" for v in held)
    kinds = sorted(jobs.items(), key=lambda kind: -kind[1].total())
    where = [f"{f} {js.total()} times in {next(iter(js)) if len(js) == 1 else f'{len(js)} jobs'}" for f, js in kinds]
    listed = "; ".join(where[:20]) + (f"; and {len(where) - 20} more failures" if len(where) > 20 else "")
    severity = max(
        (str(v.get("severity")) for v in held), key=lambda s: _SEVERITIES.index(s) if s in _SEVERITIES else 0
    )
    what, why, cause = _WHY[reason]
    return notice(
        key=f"denpexd-{reason}-{round(now * 1000):x}-{sink}",
        job="denpexd",
        failure=f"denpexd-{reason}",
        title=f"{len(held)} {what}",
        severity=severity,
        t=now,
        quick_answer=f"{why} These {len(held)}, {ended} of them over by now: {listed}.",
        root_cause=cause,
        incidents=[str(v["key"]) for v in held],
        remediation=[{"do": "Look at them in the console or with `denpexd history`.", "risk": "read-only"}],
    )


def notice(*, t: float, title: str, **said: object) -> dict[str, object]:
    """A verdict that tells of denpexd itself, not of a failure. `t`: Unix seconds; `said`: fields of the verdict."""
    lists = ("aliases", "unheard_ranks", "evidence", "stacks", "against", "missing", "alternatives", "references")
    blank = dict.fromkeys(("fallback", "mitigation", "verification", "prevention"), "")
    ranks: dict[str, object] = {"initiating_ranks": [], "collateral_ranks": [], "nodes": {}, "related": []}
    return {
        "attempt": 0,
        "title": title,
        "category": "environment",
        "certainty": "confirmed",
        "state": "open",
        "opened_t": t,
        "updated_t": t,
        "revision": 1,
        "event": "opened",
        "domain": "configuration",
        "step": None,
        "hang": False,
        "summary": title,
        "changed": None,
        "resume_safe": "yes",
        **{name: [] for name in lists},
        **blank,
        **ranks,
        **said,
    }
