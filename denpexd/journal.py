"""Events as JSON lines and back: what the core was fed, bounded, for restarts and bug reports.

The journal of the state leaves Activity and Tick out: they carry nothing that another event does not imply, and would
be most of the volume. A recording (`packed`) has all kinds. What is read back is checked: it may come from strangers.
"""

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from math import isfinite
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

from pydantic_core import from_json

from denpexd.core import events as vocabulary
from denpexd.core.events import Activity, Attempt, Blind, Event, Exit, Fact, Frames, Hit, Joined, Raised, Tick
from denpexd.core.flight import Dump, Op
from denpexd.errors import CaseError

_KINDS: dict[str, type[Any]] = {c.__name__: c for c in (Attempt, Blind, Dump, Exit, Fact, Frames, Hit, Joined, Raised)}
DUMPED = 64  # operations of a dump that the journal keeps: a thousand ranks may write theirs in one second
_SCALARS = frozenset({str, int, float, bool, type(None)})
_SIMPLE: Mapping[Any, type] = {kind: kind for kind in (str, int, float, bool)}
_TEXTS, _ONLY_TEXT = (str, str), frozenset({str})
_ALL = {**_KINDS, "Activity": Activity, "Tick": Tick}


def encode(job: str, event: Event) -> str | None:
    """One line, or None for an event that is not journaled."""
    kind = type(event).__name__
    if kind not in _KINDS:
        return None
    if isinstance(event, Dump):
        event = event.shortened(DUMPED)
    return json.dumps({"job": job, "event": kind, **_plain(event)}, separators=(",", ":"), ensure_ascii=False)


def packed(event: Event) -> dict[str, Any]:
    """An event of any kind as JSON-ready values, without what is as usual."""
    kind: Any = type(event)
    usual = _defaults(kind)
    told: dict[str, Any] = {"event": kind.__name__}
    for name in _hints(kind):
        if (value := getattr(event, name)) != usual.get(name, MISSING):
            told[name] = _plain(value)
    return told


def unpacked(content: Any) -> Event:
    """The inverse of `packed`; CaseError for anything else."""
    try:
        known = dict(content)
        event: Event = _made(_ALL[known.pop("event")], known)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as wrong:
        raise CaseError(f"not an event ({wrong!r}): {str(content)[:80]}") from None
    return event


def decode(line: str) -> tuple[str, Event]:
    """(job, event); CaseError for a line that is none."""
    try:
        content = _read(line)
        kind, job = _KINDS[content.pop("event")], str(content.pop("job"))
        event: Event = _made(kind, content)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as wrong:
        raise CaseError(f"not a journal line ({wrong!r}): {line[:80]}") from None
    return job, event


def _read(line: str) -> Any:
    try:
        return from_json(line)
    except (ValueError, TypeError):  # half a surrogate, of a file name that is no UTF-8: json takes it
        return json.loads(line)


def _plain(value: Any) -> Any:
    if type(value) in _SCALARS:
        return value
    if isinstance(value, Op):  # hundreds of them are one event: without the names
        return [_plain(getattr(value, f.name)) for f in fields(value)]
    if is_dataclass(value):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return {str(key): _plain(item) for key, item in value.items()} if isinstance(value, dict) else value


@cache
def _defaults(kind: Any) -> dict[str, Any]:
    found = {f.name: f.default for f in fields(kind) if f.default is not MISSING}
    return found | {f.name: f.default_factory() for f in fields(kind) if f.default_factory is not MISSING}


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind, vars(vocabulary))


def _made(kind: Any, content: Mapping[str, Any]) -> Any:
    hints = _hints(kind)  # a restart reads 51,000 lines: what needs no look inside is not looked at
    return kind(
        **{
            name: value if type(value) is hint and hint is not float else _checked(hint, value)
            for name, value in content.items()
            for hint in (hints[name],)
        }
    )


def _checked(hint: Any, value: Any) -> Any:
    """The value as this type of the vocabulary; TypeError or ValueError where it is another."""
    if _SIMPLE.get(hint) is type(value):
        return value if type(value) is not float or isfinite(value) else _refuse(hint, value)
    origin, inner = _shape(hint)
    if origin is UnionType:
        if value is None and type(None) in inner:
            return None
        return _checked(next(kind for kind in inner if kind is not type(None)), value)
    if origin is tuple:
        items = list(value) if isinstance(value, list) else _refuse(hint, value)
        if inner[-1] is not ...:
            return tuple(_checked(kind, item) for kind, item in zip(inner, items, strict=True))
        return tuple(_checked(inner[0], item) for item in items)
    if origin is not None:  # a mapping, by text or by number
        items = value.items() if isinstance(value, dict) else _refuse(hint, value)
        if inner == _TEXTS and _ONLY_TEXT.issuperset(map(type, (*value, *value.values()))):
            return value
        return {inner[0](key): _checked(inner[1], item) for key, item in items}
    if hint is Op:
        value = dict(zip((f.name for f in fields(Op)), value, strict=True))
    if is_dataclass(hint) and isinstance(hint, type):
        return _made(hint, value)
    allowed = (int, float) if hint is float else hint
    if not isinstance(value, allowed) or (isinstance(value, bool) and hint is not bool):
        _refuse(hint, value)
    return value if hint is not float or isfinite(value) else _refuse(hint, value)


@cache
def _shape(hint: Any) -> tuple[Any, tuple[Any, ...]]:
    return get_origin(hint), get_args(hint)


def _refuse(hint: Any, value: Any) -> Any:
    raise TypeError(f"{str(value)[:40]!r} is not {getattr(hint, '__name__', hint)}")
