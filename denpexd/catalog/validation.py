"""Checks a document against a model and says each mistake with its place and the nearest valid word."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar

from pydantic import ValidationError

from denpexd.catalog.document import Document, Trail
from denpexd.catalog.fields import Model
from denpexd.errors import RuleError

M = TypeVar("M", bound=Model)
_KINDS = {"string_type": "text", "dict_type": "a mapping of keys", "tuple_type": "a list", "model_type": "a mapping"}


def validate(model: type[M], document: Document) -> tuple[M | None, list[RuleError]]:
    """The document as `model`, or every mistake in it."""
    keys: dict[int, tuple[str, ...]] = {}
    try:
        return model.model_validate(document.data, context=keys), []
    except ValidationError as error:
        found = error.errors(include_url=False)
    return None, [_translated(document, one, keys) for one in found if not _echo(one)]


def _echo(error: Any) -> bool:
    """A list that is "too short" only because its items have mistakes of their own, reported beside it."""
    return bool(error["type"] == "too_short" and error["input"])


def nearest(word: object, valid: Iterable[str]) -> str:
    """A hint: the closest of `valid`, or all of them where none is close."""
    options = sorted(set(valid))
    if close := get_close_matches(str(word), options, n=1, cutoff=0.6):
        return f"did you mean '{close[0]}'?"
    return f"valid here: {', '.join(options)}" if 0 < len(options) <= 20 else ""


def _translated(document: Document, error: Any, keys: dict[int, tuple[str, ...]]) -> RuleError:
    kind, loc = error["type"], error["loc"]
    trail = _trail(document, loc)
    if kind == "extra_forbidden":
        valid = keys.get(id(_node(document.data, trail[:-1])), ())
        return document.error(trail, f"unknown key '{trail[-1]}'", nearest(trail[-1], valid))
    if kind == "missing":
        return document.error(trail, f"'{loc[-1]}' is missing", "")
    why, hint = _why(kind, error)
    return document.error(trail, why, hint, at_value=loc[-1:] != ("[key]",))


def _why(kind: str, error: Any) -> tuple[str, str]:
    value, context = error["input"], error.get("ctx", {})
    if kind == "literal_error":
        return f"'{value}' is not a valid value", nearest(value, _words(context["expected"]))
    if kind == "union_tag_invalid":
        return f"'{context['tag']}' is not a known fact", nearest(context["tag"], _words(context["expected_tags"]))
    if kind == "string_pattern_mismatch":
        return f"'{value}' does not have the form {context['pattern']}", ""
    if kind in _KINDS:
        return f"expected {_KINDS[kind]}, got {_said(value)}", _type_hint(kind, value)
    if kind == "too_short":
        return "must not be empty", ""
    if kind == "value_error":
        return str(context["error"]), ""
    return error["msg"][:1].lower() + error["msg"][1:], ""


def _words(listing: str) -> Sequence[str]:
    return [word.strip().strip("'") for word in listing.replace(" or ", ", ").split(",")]


def _said(value: Any) -> str:
    if value is None:
        return "nothing"
    names = {dict: "a mapping", list: "a list", str: "text", bool: "true or false"}
    return names.get(type(value), f"the number {value}")


def _type_hint(kind: str, value: Any) -> str:
    if kind == "string_type" and isinstance(value, dict | int | float):
        return "quote the text: it contains ': ', begins with '{', or reads as a number or a truth value"
    if kind == "tuple_type" and isinstance(value, str):
        return "write [ ... ] around it, or begin the line with '- '"
    return ""


def _trail(document: Document, loc: Sequence[str | int]) -> Trail:
    """The part of pydantic's location that exists in the file; names of union members and the like fall out."""
    trail: Trail = ()
    for part in loc:
        if (*trail, part) in document.values:
            trail = (*trail, part)
    return trail


def _node(data: Any, trail: Trail) -> Any:
    for part in trail:
        data = data[part]
    return data
