"""Questions to the API: their parameters, pages with a cursor, bodies; what is wrong is said with 4xx."""

import base64
import binascii
import json
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import TypeVar

from starlette.exceptions import HTTPException
from starlette.requests import Request

from denpexd.web.view import Verdict, View

MOST, USUAL = 1000, 100  # entries of a page
SEVERITIES = ("critical", "high", "medium", "low")
_T = TypeVar("_T")


def query(request: Request, known: Set[str]) -> dict[str, str]:
    """The parameters of a question; 400 where one is not known or comes twice: a typo must not go unnoticed."""
    found: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name not in known:
            allowed = f"known are {', '.join(sorted(known))}" if known else "none is known here"
            raise HTTPException(400, f"parameter {name[:40]!r} is not known; {allowed}")
        if name in found:
            raise HTTPException(400, f"parameter {name} is given more than once")
        found[name] = value
    return found


def one_of(asked: Mapping[str, str], name: str, allowed: Sequence[str]) -> str | None:
    """A parameter that has a few values; None where it is not given."""
    value = asked.get(name)
    if value is not None and value not in allowed:
        raise HTTPException(400, f"{name} is {value[:40]!r}; give one of {', '.join(allowed)}, or leave it out")
    return value


def limit_of(text: str | None, most: int, usual: int | None = None) -> int:
    """How many entries a page has."""
    if text is None:
        return usual or most
    if not (text.isascii() and text.isdigit() and len(text) < 6 and 1 <= int(text) <= most):
        raise HTTPException(400, f"limit is {text[:20]!r}; give a number from 1 to {most}")
    return int(text)


def select(verdicts: Iterable[Verdict], asked: Mapping[str, str]) -> tuple[list[Verdict], str | None]:
    """One page of the incidents that are asked for, last changed first, and the cursor of the next one."""
    state, limit = one_of(asked, "state", ("open", "closed")), limit_of(asked.get("limit"), MOST, USUAL)
    since, after = _since(asked.get("since")), decoded(asked.get("cursor"), list)
    if after is not None and [type(part) for part in after] not in ([float, str], [int, str]):
        raise HTTPException(400, WRONG_CURSOR)
    one_of(asked, "severity", SEVERITIES)
    wanted = {name: asked[name] for name in ("job", "failure", "category", "severity") if asked.get(name)}

    def is_wanted(v: Verdict) -> bool:
        fits = state in (None, v["state"]) and (since is None or float(str(v["updated_t"])) >= since)
        return fits and all(v.get(name) == value for name, value in wanted.items())

    ordered = sorted(((float(str(v["updated_t"])), str(v["key"]), v) for v in verdicts if is_wanted(v)), reverse=True)
    rows = [row for row in ordered if after is None or (row[0], row[1]) < (after[0], after[1])]
    page = rows[:limit]
    return [v for _, _, v in page], encoded(page[-1][:2]) if len(rows) > limit else None


def _since(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 9e11:
        raise HTTPException(400, f"since is {text[:40]!r}; give seconds since 1970 in UTC, such as 1767225600")
    return value


WRONG_CURSOR = "this is no cursor of ours; take `next` of the page before as it is, or leave cursor out"


def encoded(place: object) -> str:
    """Where a page ended, as one opaque word."""
    return base64.urlsafe_b64encode(json.dumps(place).encode()).decode().rstrip("=")


def decoded(cursor: str | None, kind: type[_T]) -> _T | None:
    """What a cursor stands for; 400 where it is none of ours."""
    if cursor is None:
        return None
    try:
        place = json.loads(base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True))
    except (binascii.Error, ValueError, RecursionError):
        place = None
    if type(place) is not kind:
        raise HTTPException(400, WRONG_CURSOR)
    return place


def find(view: View, request: Request) -> Verdict:
    """The incident of a path."""
    verdict = view.incident(request.path_params["key"])
    if verdict is None:
        raise HTTPException(404, "no incident has this key; /api/v1/incidents lists those that are kept")
    return verdict


async def body(request: Request, most: int) -> bytes:
    """What was sent, at most so many bytes."""
    content = bytearray()
    async for piece in request.stream():
        content += piece
        if len(content) > most:
            raise HTTPException(413, f"at most {most >> 20} MiB are taken; use denpexd diagnose for more")
    return bytes(content)
