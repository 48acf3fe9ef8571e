"""Events as JSON lines and back: what the core was fed, bounded, for restarts and bug reports.

Activity and Tick are left out: they carry nothing that another event does not imply, and would be most of the volume.
"""

import json
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from typing import Any

from denpexd.core.events import Attempt, Blind, Event, Exit, Fact, Frame, Frames, Hit, Joined, Raised
from denpexd.errors import CaseError

_KINDS: dict[str, type[Any]] = {c.__name__: c for c in (Attempt, Blind, Exit, Fact, Frames, Hit, Joined, Raised)}


def encode(job: str, event: Event) -> str | None:
    """One line, or None for an event that is not journaled."""
    kind = type(event).__name__
    if kind not in _KINDS:
        return None
    return json.dumps({"job": job, "event": kind, **_plain(event)}, separators=(",", ":"), ensure_ascii=False)


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return dict(value) if isinstance(value, dict) else value


def decode(line: str) -> tuple[str, Event]:
    """(job, event); CaseError for a line that is none."""
    try:
        content = json.loads(line)
        kind, job = _KINDS[content.pop("event")], str(content.pop("job"))
        for name in ("frames",):
            if name in content:
                content[name] = _frames(content[name])
        if "others" in content:
            content["others"] = tuple((str(label), _frames(frames)) for label, frames in content["others"])
        if "chain" in content:
            content["chain"] = tuple((str(kind_), str(message)) for kind_, message in content["chain"])
        event: Event = kind(**content)
    except (ValueError, KeyError, TypeError, AttributeError) as wrong:
        raise CaseError(f"not a journal line ({wrong!r}): {line[:80]}") from None
    return job, event


def _frames(items: Iterable[Any]) -> tuple[Frame, ...]:
    return tuple(Frame(str(f["function"]), str(f["path"]), int(f["line"])) for f in items)
