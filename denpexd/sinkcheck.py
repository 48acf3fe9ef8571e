"""`denpexd notify test`: send a made-up incident through every configured sink, without a running daemon."""

import sys

from denpexd.clock import SystemClock
from denpexd.errors import DeliveryError, SettingsError
from denpexd.notify.policy import Delivery
from denpexd.notify.post import new_client
from denpexd.notify.rows import Row
from denpexd.notify.sinks import make_sinks
from denpexd.settings import Settings


async def send_test(settings: Settings, only: str | None) -> list[tuple[str, str]]:
    """(sink, "" or what went wrong) for each sink, or for the one named `only`; SettingsError if there is none such."""
    clock = SystemClock()
    done = []
    async with new_client() as client:
        sinks = make_sinks(settings, client, clock, sys.stdout, color=False, width=100)
        chosen = [s for s in sinks if only in (None, s.name)]
        if not chosen:
            raise SettingsError(f"no sink is named {only!r}; configured: {', '.join(s.name for s in sinks)}")
        for sink in chosen:
            verdict = sample(clock.wall())
            key = str(verdict["key"])
            delivery = Delivery(sink.name, key, 1, "opened", f"{key}:1", "first", verdict)
            try:
                await sink.send(Row(1, delivery, "pending", 0, clock.wall(), clock.wall()))
                done.append((sink.name, ""))
            except DeliveryError as error:
                done.append((sink.name, error.reason))
    return done


def sample(now: float) -> dict[str, object]:
    """A verdict that says that it is a test."""
    return {
        "key": f"denpexd-test-{round(now):x}",
        "job": "denpexd-test",
        "attempt": 0,
        "failure": "denpexd-test",
        "title": "Test message of denpexd",
        "category": "environment",
        "severity": "low",
        "certainty": "confirmed",
        "state": "open",
        "opened_t": now,
        "updated_t": now,
        "revision": 1,
        "event": "opened",
        "aliases": [],
        "domain": "configuration",
        "initiating_ranks": [0],
        "collateral_ranks": [1],
        "unheard_ranks": [],
        "nodes": {},
        "step": None,
        "hang": False,
        "quick_answer": "Nothing is wrong: somebody tries whether alerts arrive here.",
        "summary": "Test message of denpexd: nothing is wrong.",
        "evidence": [],
        "stacks": [],
        "changed": None,
        "against": [],
        "missing": [],
        "alternatives": [],
        "root_cause": "denpexd notify test was run.",
        "remediation": [{"do": "Nothing.", "risk": "read-only"}],
        "fallback": "",
        "mitigation": "",
        "verification": "you read this",
        "prevention": "",
        "references": [],
        "related": [],
        "resume_safe": "yes",
    }
