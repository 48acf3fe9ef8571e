"""What people do about alerts through the API: silences, acknowledgements, and closing an incident by hand.

Every change is on disk before it is answered. What people write is redacted like everything else.
"""

import asyncio
import json
import logging
import math
import re
import secrets
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from denpexd.core.events import Closed, Output
from denpexd.daemon import Daemon
from denpexd.errors import RequestError
from denpexd.notify.book import MOST_SILENCES, Acknowledgement, Silence
from denpexd.notify.in_force import unknown_in
from denpexd.notify.policy import revision_of
from denpexd.notify.redact import redact
from denpexd.settings_alerts import Match
from denpexd.settings_values import Duration
from denpexd.watched import Outcome

log = logging.getLogger(__name__)

LONGEST = 366 * 86400.0  # a silence

Body = Mapping[str, object]

MOST_FOUND = 200
_FOUND = (
    "SELECT updated, key, verdict FROM incidents WHERE (? = '' OR job = ?) AND (? = '' OR failure = ?) AND (? = ''"
    " OR EXISTS (SELECT 1 FROM json_each(verdict, '$.nodes') WHERE value = ?))"
    " AND (? = '' OR verdict LIKE ? ESCAPE '\\') AND (updated, key) < (?, ?)"
    " ORDER BY updated DESC, key DESC LIMIT ?"
)


class _Asked(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


_By = Annotated[str, Field(max_length=200)]
_Text = Annotated[str, Field(max_length=2000)]


class _Silence(_Asked):
    match: Match
    duration: Annotated[Duration, Field(gt=0, le=LONGEST)] | None = Field(default=None, alias="for")
    starts_t: float | None = None
    ends_t: float | None = None
    by: _By = ""
    comment: _Text = ""


class _Ack(_Asked):
    by: _By = ""
    note: _Text = ""
    close: bool = False


class Handling:
    """Implements web.view.Actions for a daemon; every method raises RequestError with what is wrong."""

    def __init__(self, daemon: Daemon) -> None:
        self._daemon = daemon

    def silences(self, state: str | None) -> list[dict[str, object]]:
        """Newest first; `state`: pending, active, expired, or None for all."""
        if state not in (None, "pending", "active", "expired"):
            raise RequestError(400, f"state is {state!r}; give pending, active or expired, or leave it out for all")
        now = self._daemon.clock.wall()
        told = [one.plain(now) for one in reversed(self._daemon.ledger.book.silences.values())]
        return [one for one in told if state in (None, one["state"])]

    async def add_silence(self, body: Body) -> dict[str, object]:
        """Make a silence: `match`, `for` or `ends_t`, and perhaps `starts_t`, `by`, `comment`."""
        asked, now = _read(_Silence, body), self._daemon.clock.wall()
        if wrong := unknown_in(asked.match, self._daemon.rules.packs.catalog):
            raise RequestError(400, "; ".join(wrong))
        if (asked.duration is None) == (asked.ends_t is None):
            raise RequestError(400, 'give either "for", such as "2h", or "ends_t" in Unix seconds')
        starts = now if asked.starts_t is None else asked.starts_t
        ends = starts + asked.duration if asked.duration is not None else asked.ends_t
        if ends is None or not (math.isfinite(starts) and math.isfinite(ends)) or ends <= max(starts, now):
            raise RequestError(400, "the silence would be over before it begins; its end must be in the future")
        if ends - now > LONGEST:
            raise RequestError(400, "a silence may last a year at most")
        book = self._daemon.ledger.book
        if sum(one.ends > now for one in book.silences.values()) >= MOST_SILENCES:
            raise RequestError(409, f"there are {MOST_SILENCES} silences already; expire some, or match more with one")
        said = redact(asked.by)[0], redact(asked.comment)[0]
        silence = Silence(secrets.token_hex(4), asked.match.matcher(), starts, ends, now, *said)
        book.put_silence(silence)
        await self._daemon.ledger.commit()
        return silence.plain(now)

    async def expire_silence(self, id_: str) -> dict[str, object]:
        """End a silence now, named by its id or the beginning of it; harmless if it has ended."""
        book, now = self._daemon.ledger.book, self._daemon.clock.wall()
        ended = book.expire(book.silences[_only(id_, book.silences, "silence", "denpexd silence list --all")], now)
        await self._daemon.ledger.commit()
        return ended.plain(now)

    async def acknowledge(self, key: str, body: Body) -> dict[str, object]:
        """Somebody has taken an incident on: `by`, `note`; with `close` it is over. The verdict as it is then.

        `key`: whole, or a beginning that no other has.
        """
        asked, ledger = _read(_Ack, body), self._daemon.ledger
        key = _only(key, ledger.incidents, "incident", "denpexd status")
        verdict = ledger.incidents[key]
        closed = verdict["state"] == "closed"
        if closed and not asked.note:
            raise RequestError(409, "the incident is over already; a note is all that can be added")
        before = ledger.book.acknowledged.get(key)
        note = redact(asked.note)[0] or (before.note if before else "")  # nobody's note is lost by another's taking on
        by = redact(asked.by)[0]
        one = Acknowledgement(key, self._daemon.clock.wall(), by, note, asked.close or closed)
        ledger.book.acknowledge(one)
        if one.closed:
            ledger.history.fixed(one, verdict)
        if asked.close and not closed:
            await self._close(key)
        else:
            ledger.say(key)
        await ledger.commit()
        return dict(ledger.incidents[key])

    def fixes(self) -> list[dict[str, object]]:
        """What was done about failures, newest first, and whether they have stayed away."""
        history = self._daemon.ledger.history
        return [one.plain(history.window) for one in sorted(history.fixes.values(), key=lambda one: -one.t)]

    async def history(self, asked: Mapping[str, str]) -> dict[str, object]:
        """Incidents of the state, last changed first: `job`, `failure`, `node`, `q`, `limit`, `cursor`."""
        limit = asked.get("limit", "50")
        if not (limit.isascii() and limit.isdigit() and len(limit) < 6 and 1 <= int(limit) <= MOST_FOUND):
            raise RequestError(400, f"limit is {limit[:20]!r}; give a number from 1 to {MOST_FOUND}")
        place = _place(asked.get("cursor"))
        wanted = [asked.get(name, "")[:500] for name in ("job", "failure", "node")]
        # The state holds JSON in ASCII; a text is looked for as it stands there.
        text = re.sub(r"([%_\\])", r"\\\1", json.dumps(asked.get("q", "")[:500])[1:-1])
        values = [value for one in wanted for value in (one, one)] + [text, f"%{text}%", *place, int(limit) + 1]
        rows = await asyncio.to_thread(self._daemon.store.rows, _FOUND, values)
        page = rows[: int(limit)]
        more = f"{page[-1][0]!r}:{page[-1][1]}" if len(rows) > len(page) else None
        return {"incidents": [json.loads(verdict) for _, _, verdict in page], "next": more}

    def note(self, key: str, by: str) -> None:
        """Somebody has acknowledged an open incident at a receiver; that it is still so is not said again."""
        ledger = self._daemon.ledger
        verdict = ledger.incidents.get(key)
        if verdict is None or verdict["state"] == "closed" or ledger.desk.acknowledged(key):
            return
        log.info("incident %s: %s has acknowledged it in PagerDuty", key, by)
        ledger.book.acknowledge(Acknowledgement(key, self._daemon.clock.wall(), redact(by)[0], "in PagerDuty", False))
        ledger.say(key)

    async def _close(self, key: str) -> None:
        daemon = self._daemon
        verdict = daemon.ledger.incidents[key]
        outcome = daemon.pipeline.close(str(verdict["job"]), daemon.ledger.core_key(key))
        if not outcome.changes:  # nothing is known of it any more but that it was open
            over: list[Output] = [
                Closed(
                    {
                        **verdict,
                        "state": "closed",
                        "event": "closed",
                        "revision": revision_of(verdict) + 1,
                        "updated_t": daemon.clock.now(),
                    }
                )
            ]
            outcome = Outcome()
            outcome.add(str(verdict["job"]), [], over)
        await daemon.handle(outcome)


def _place(cursor: str | None) -> tuple[float, str]:
    """Where a page ended: when its last incident had changed, and its key."""
    if cursor is None:
        return math.inf, ""
    at, colon, key = cursor.partition(":")
    try:
        return float(at if colon else "wrong"), key
    except ValueError:
        raise RequestError(400, "this is no cursor of ours; take `next` of the page before as it is") from None


def _only(begin: str, known: Iterable[str], what: str, lister: str) -> str:
    """The name that this is, or the only one that begins so."""
    found = [name for name in known if name.startswith(begin)]
    if begin in found or len(found) == 1:
        return begin if begin in found else found[0]
    if not found:
        raise RequestError(404, f"no {what} has the key {begin[:80]} or one that begins so; {lister} shows them")
    some = ", ".join(sorted(found)[:5]) + (f" and {len(found) - 5} more" if len(found) > 5 else "")
    raise RequestError(409, f"{len(found)} {what}s have a key that begins with {begin[:80]}: {some}")


def _read(model: type[Any], body: Body) -> Any:
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise RequestError(400, "; ".join(_mistake(dict(one), model) for one in error.errors())) from None


def _mistake(one: dict[str, Any], model: type[Any]) -> str:
    at = ".".join(str(part) for part in one["loc"])
    if one["type"] == "extra_forbidden":
        where = Match if one["loc"][0] == "match" else model
        valid = sorted(info.alias or name for name, info in where.model_fields.items())
        return f"unknown field {at}; there are {', '.join(valid)}"
    why = one["msg"].removeprefix("Value error, ")
    return f"{at}: {why[:1].lower()}{why[1:]}" if at else why
