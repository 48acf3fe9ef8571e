"""A YAML file as plain data that remembers the line and column of every key and value.

Stricter than YAML on purpose: rule files come from third parties, and a file must mean one thing. Refused are anchors,
aliases, tags, duplicate keys, keys that are not text, several documents, more than 1 MB, nesting beyond 20. Words are
words: only `true` and `false` are booleans (as in YAML 1.2), so `yes` and `no` stay text and dates are no objects.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from yaml.reader import Reader

from denpexd.errors import RuleError

MAX_BYTES = 1_000_000
MAX_DEPTH = 20

Trail = tuple[str | int, ...]
"""The way to a node: keys and list indexes from the root."""

Mark = tuple[int, int]
"""Line and column, both from 1."""

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_WORDS = {"": None, "~": None, "null": None, "Null": None, "NULL": None}
_BOOLS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]{1,18}")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(\.[0-9]*)?[eE][-+]?[0-9]+)")


@dataclass(frozen=True, slots=True)
class Document:
    """One file: `data` as dicts, lists and scalars; `keys` and `values` give the mark of each node by its trail."""

    path: str
    data: dict[str, Any]
    keys: Mapping[Trail, Mark]
    values: Mapping[Trail, Mark]

    def error(self, trail: Trail, why: str, hint: str = "", *, at_value: bool = False, below: int = 0) -> RuleError:
        """A RuleError at the key of `trail` (or its value), `below` lines lower; a missing node uses its parent."""
        marks = (self.values, self.keys) if at_value else (self.keys, self.values)
        while trail and not any(trail in table for table in marks):
            trail = trail[:-1]
        line, column = marks[0].get(trail) or marks[1].get(trail) or (1, 1)
        return RuleError(self.path, line + below, 1 if below else column, why, hint)


class _Refused(Exception):
    def __init__(self, mark: Mark, why: str, hint: str = "") -> None:
        self.mark, self.why, self.hint = mark, why, hint
        super().__init__(why)


def read(path: Path) -> tuple[Document | None, list[RuleError]]:
    """The file as a Document, or what is wrong with it. Never raises for what a file can contain."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        return None, [RuleError(str(path), 1, 1, f"cannot be read: {error.strerror}", "check the path and its rights")]
    return parse(raw, str(path))


def parse(raw: bytes, path: str) -> tuple[Document | None, list[RuleError]]:
    """`read` for bytes that are already there; `path` is only for messages."""
    reader = _Composer()
    try:
        data = reader.compose(_decode(raw))
    except _Refused as error:
        return None, [*reader.errors(path), RuleError(path, *error.mark, error.why, error.hint)]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        problem = error.problem or "not valid YAML"
        return None, [*reader.errors(path), RuleError(path, *at, problem, _yaml_hint(problem))]
    errors = reader.errors(path)
    if not isinstance(data, dict):
        errors.append(RuleError(path, 1, 1, "the file must be a mapping of keys", "start with `schema: 1`"))
        return None, errors
    return Document(path, data, reader.keys, reader.values), errors


def _decode(raw: bytes) -> str:
    if len(raw) > MAX_BYTES:
        raise _Refused((1, 1), f"the file is larger than {MAX_BYTES} bytes", "one failure a file; split it")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        good = raw[: error.start]
        column = len(good[good.rfind(b"\n") + 1 :].decode("utf-8", "replace")) + 1
        raise _Refused((good.count(b"\n") + 1, column), "not UTF-8", "save the file as UTF-8") from None
    if bad := Reader.NON_PRINTABLE.search(text):
        before = text[: bad.start()]
        at = (before.count("\n") + 1, len(before) - before.rfind("\n"))
        raise _Refused(at, f"control character {bad.group()!r}", 'write it in double quotes, as in "\\x1b"')
    return text


def _yaml_hint(problem: str) -> str:
    if "tab" in problem or "cannot start any token" in problem:
        return "indent with spaces, never tabs; quote text that begins with a special character"
    if "mapping values" in problem or "<block end>" in problem or "expected key" in problem:
        return "check the indentation, and quote text that contains ': ' or begins with '{' or '['"
    return "quote text that contains special characters"


class _Composer:
    """Builds plain data out of libyaml's events; mistakes that do not stop the reading are collected."""

    def __init__(self) -> None:
        self.keys: dict[Trail, Mark] = {}
        self.values: dict[Trail, Mark] = {}
        self._found: list[tuple[Mark, str, str]] = []

    def errors(self, path: str) -> list[RuleError]:
        return [RuleError(path, *mark, why, hint) for mark, why, hint in self._found]

    def compose(self, text: str) -> Any:
        loader = _LOADER(text)
        try:
            data: Any = None
            while not isinstance(event := loader.get_event(), yaml.StreamEndEvent):
                if isinstance(event, yaml.DocumentStartEvent):
                    if self.values:
                        raise _Refused(
                            _mark(event), "a second document begins here", "one failure a file; remove `---`"
                        )
                    data = self._node(loader, loader.get_event(), ())
            return data
        finally:
            loader.dispose()

    def _node(self, loader: Any, event: Any, trail: Trail) -> Any:
        mark = _mark(event)
        if len(trail) > MAX_DEPTH:
            raise _Refused(mark, f"nested more than {MAX_DEPTH} levels deep", "rules need at most six")
        self.values[trail] = mark
        if isinstance(event, yaml.AliasEvent):
            self._found.append((mark, f"alias *{event.anchor} is not allowed", "repeat the text, or share a signal"))
            return None
        if event.anchor:
            self._found.append((mark, f"anchor &{event.anchor} is not allowed", "quote text that begins with &"))
        if event.tag:
            self._found.append((mark, f"tag {event.tag} is not allowed", "quote text that begins with !"))
        if isinstance(event, yaml.ScalarEvent):
            return event.value if event.style or event.tag else _scalar(event.value)
        if isinstance(event, yaml.SequenceStartEvent):
            return self._sequence(loader, trail)
        return self._mapping(loader, trail)

    def _sequence(self, loader: Any, trail: Trail) -> list[Any]:
        items: list[Any] = []
        while not isinstance(event := loader.get_event(), yaml.SequenceEndEvent):
            items.append(self._node(loader, event, (*trail, len(items))))
        return items

    def _mapping(self, loader: Any, trail: Trail) -> dict[str, Any]:
        data: dict[str, Any] = {}
        while not isinstance(event := loader.get_event(), yaml.MappingEndEvent):
            mark = _mark(event)
            if not isinstance(event, yaml.ScalarEvent) or event.anchor or event.tag:
                raise _Refused(
                    mark, "a key must be plain text", "quote text that begins with '{', '[', '&', '*' or '!'"
                )
            key, here = event.value, (*trail, event.value)
            if key in data:
                self._found.append((mark, f"key '{key}' is given twice", f"first in line {self.keys[here][0]}"))
                here = (*trail, f"{key} (again in line {mark[0]})")
            self.keys[here] = mark
            value = self._node(loader, loader.get_event(), here)
            data.setdefault(key, value)
        return data


def _mark(event: Any) -> Mark:
    return event.start_mark.line + 1, event.start_mark.column + 1


def _scalar(text: str) -> Any:
    if text in _WORDS:
        return None
    if text in _BOOLS:
        return _BOOLS[text]
    if _INT.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text
