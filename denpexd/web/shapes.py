"""The shapes of what the API takes and answers: the schemas that its OpenAPI document refers to by name."""

import json
from collections.abc import Mapping
from typing import Any

from denpexd.web.view import RANK_STATES

Schema = Mapping[str, Any]

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
COUNT: Schema = {"type": "integer", "minimum": 0}
SILENCE_STATE: Schema = {"enum": ["pending", "active", "expired"]}  # of a silence


def ref(name: str) -> Schema:
    """A schema, by the name that it has in the document."""
    return {"$ref": f"#/components/schemas/{name}"}


def _maybe(kind: str) -> Schema:
    return {"type": [kind, "null"]}


_RANK = {
    "rank": COUNT,
    "state": {"enum": list(RANK_STATES)},
    "step": _maybe("integer"),
    "phase": _maybe("string"),
    "silent_for": {**_maybe("number"), "description": "Seconds since its last line."},
    "node": _maybe("string"),
    "pid": _maybe("integer"),
}
_JOB = {
    "job": TEXT,
    "attempt": COUNT,
    "step": _maybe("integer"),
    "step_seconds": _maybe("number"),
    "stall_seconds": {"type": "number", "minimum": 0},
    "phase": _maybe("string"),
    "world_size": _maybe("integer"),
    "hang_due_t": {**_maybe("number"), "description": "When silence alone will be told as a hang, if it lasts."},
    "hang_due_by": {**TEXT, "description": "What that comes from, such as hang.budgets.start."},
    "counts": {"type": "object", "additionalProperties": COUNT, "description": "Ranks by state."},
    "ranks": {"type": "array", "items": ref("Rank"), "description": "Left out with ranks=none."},
}
_POINT = {"type": "array", "description": "Unix seconds, seconds a step or null, lines a second."}
_ENTRY = dict.fromkeys(("id", "title", "category", "severity", "domain", "quick_answer"), TEXT)
_QUOTE = {"type": "object", "required": ["text", "means"], "properties": {"text": TEXT, "means": TEXT}}
_PACK = {
    "name": TEXT, "kind": {"enum": ["shipped", "folder", "installed"]}, "folder": TEXT, "origin": TEXT,
    "rules": COUNT, "signals": COUNT, "errors": {"type": "array", "items": TEXT},
}  # fmt: skip
_GLOBS = {"oneOf": [TEXT, {"type": "array", "minItems": 1, "items": TEXT}]}
_FIELDS = dict.fromkeys(("key", "job", "failure", "category", "severity", "domain", "node"), _GLOBS)
_TAGS = {"type": "object", "additionalProperties": _GLOBS}
_NUMBERS = {"oneOf": [COUNT, TEXT, {"type": "array", "minItems": 1, "items": {"type": ["integer", "string"]}}]}
_MATCH = {
    "type": "object",
    "description": "All fields that are given must fit, each by any of its globs; ranks are such as 3 or 0-7.",
    "properties": {**_FIELDS, "rank": _NUMBERS, "tags": _TAGS},
    "additionalProperties": False,
}
_SAID = {"by": TEXT, "comment": TEXT}
_TIMES = {"starts_t": NUMBER, "ends_t": NUMBER}
_LASTING = {"type": "string", "description": "Such as 2h; this or ends_t."}
_DECISION = {
    **dict.fromkeys(("sink", "reason", "detail", "event"), TEXT), "t": NUMBER, "revision": COUNT,
    "action": {"enum": ["send", "hold", "drop"], "description": "Sent, told later, or not told."},
}  # fmt: skip
_FIX = {
    **dict.fromkeys(("key", "job", "failure", "by", "note"), TEXT), "t": NUMBER, "observed_seconds": COUNT,
    "window_seconds": NUMBER, "state": {"enum": ["pending", "held", "came_back", "unknown"]},
    "decided_t": _maybe("number"), "again": {**_maybe("string"), "description": "The incident that came back."},
}  # fmt: skip
_ACK = {"by": TEXT, "note": TEXT, "close": {"type": "boolean", "default": False}}


def schemas(verdict: Schema) -> dict[str, Any]:
    """All of them by name; `verdict`: the JSON Schema of a verdict, or a reference to it."""
    # References of a schema that stands inside another document would lead nowhere.
    whole: dict[str, Any] = json.loads(json.dumps(verdict).replace("#/$defs/", "#/components/schemas/"))
    parts = whole.pop("$defs", {})
    return {
        **parts,
        "Verdict": {name: value for name, value in whole.items() if name not in ("$schema", "$id")},
        "Rank": _object(_RANK),
        "Job": _object(_JOB, optional=("ranks",)),
        "OneJob": _object({**_JOB, "pace": {"type": "array", "items": _POINT}}, optional=("ranks",)),
        "Entry": _object({**_ENTRY, "quotes": {"type": "array", "items": _QUOTE}}),
        "Failure": {"type": "object", "required": ["id", "title", "quick_answer", "remediation"]},
        "Pack": _object(_PACK),
        "Match": _MATCH,
        "Fix": _object(_FIX),
        "Decision": _object(_DECISION),
        "Silence": _object(
            {"id": TEXT, "match": ref("Match"), **_TIMES, "created_t": NUMBER, **_SAID, "state": SILENCE_STATE}
        ),
        "NewSilence": _object(
            {"match": ref("Match"), "for": _LASTING, **_TIMES, **_SAID}, optional=("for", *_TIMES, *_SAID)
        ),
        "Acknowledge": _object(_ACK, optional=tuple(_ACK)),
        "Error": _object({"error": {**TEXT, "description": "What is wrong and what is allowed."}}),
    }


def _object(properties: Mapping[str, Schema], optional: tuple[str, ...] = ()) -> dict[str, Any]:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "required": required, "properties": dict(properties)}
