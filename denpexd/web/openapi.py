"""The OpenAPI 3.1 document of the API: served at /api/v1/openapi.json and kept as docs/openapi.json.

Written by hand beside the handlers of rest.py, so that a change of either is seen in a test of both.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import denpexd
from denpexd.web.view import RANK_STATES

Schema = Mapping[str, Any]

TEXT: Schema = {"type": "string"}
NUMBER: Schema = {"type": "number"}
COUNT: Schema = {"type": "integer", "minimum": 0}
CURSOR: Schema = {"type": ["string", "null"], "description": "For the next page; null on the last one."}
ERRORS = {
    400: "A wrong parameter or body.",
    401: "No or a wrong token.",
    403: "No token is configured, or a page of another site asks for a change.",
    404: "Not known.",
    409: "It does not go with how things stand.",
    413: "More was sent than is taken.",
    415: "The body is not JSON.",
    421: "A foreign Host.",
    422: "The log cannot be used.",
    503: "Too many do the same at once.",
}
BESIDE: Schema = {"$ref": "verdict.schema.json"}
ALWAYS = (400, 401, 403, 421)


def document(verdict: Schema = BESIDE) -> dict[str, Any]:
    """The whole document. `verdict`: the JSON Schema of a verdict; without it a reference to the file in docs/."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "denpexd",
            "version": denpexd.__version__,
            "description": "Failures and hangs of multi-GPU training jobs, explained. Keys of answers may be added; "
            "none is removed or changes its meaning. Lists come in pages: give `next` of one as `cursor` of the next.",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": "/", "description": "the daemon, by default http://127.0.0.1:9464/"}],
        "security": [{}, {"bearer": []}, {"basic": []}],
        "paths": _paths(),
        "components": {
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "The content of web.token_file."},
                "basic": {"type": "http", "scheme": "basic", "description": "Any user, the token as password."},
            },
            "schemas": _schemas(verdict),
        },
    }


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _list(name: str, of: Schema, **more: Schema) -> Schema:
    values = {name: {"type": "array", "items": of}, **more}
    return {"type": "object", "required": list(values), "properties": values}


def _query(name: str, schema: Schema, text: str) -> Schema:
    return {"name": name, "in": "query", "required": False, "description": text, "schema": schema}


def _path(name: str, text: str, schema: Schema = TEXT) -> Schema:
    least = {"minLength": 1} if schema.get("type") == "string" else {}
    return {"name": name, "in": "path", "required": True, "description": text, "schema": {**schema, **least}}


def _page(most: int, usual: int) -> list[Schema]:
    limit = {"type": "integer", "minimum": 1, "maximum": most, "default": usual}
    cursor = _query("cursor", {"type": "string", "minLength": 1}, "Where the page before ended: its `next`.")
    return [_query("limit", limit, "Entries of a page."), cursor]


KEY = _path("key", "Key of an incident.")
JOB = _path("job", "Name of a job.")
RANKS = _query("ranks", {"enum": ["all", "none"], "default": "all"}, "Whether ranks are listed.")
FILTERS = [
    _query("state", {"enum": ["open", "closed"]}, "Both where it is not given."),
    _query("job", TEXT, "Of this job only."),
    _query("failure", TEXT, "With this id of a failure only."),
    _query("category", TEXT, "Of this category only."),
    _query("severity", {"enum": ["critical", "high", "medium", "low"]}, "Of this severity only."),
    _query("since", {"type": "number", "minimum": 0, "maximum": 9e11}, "Changed at or after these Unix seconds."),
]


def _answer(text: str, schema: Schema, kind: str = "application/json") -> Schema:
    return {"description": text, "content": {kind: {"schema": schema}}}


def _operation(name: str, summary: str, answer: Schema, *also: int, good: int = 200, **more: object) -> dict[str, Any]:
    wrong = {str(status): _answer(ERRORS[status], _ref("Error")) for status in sorted({*ALWAYS, *also})}
    return {"operationId": name, "summary": summary, **more, "responses": {str(good): answer, **wrong}}


def _json(schema: Schema, example: object, *, required: bool) -> Schema:
    return {"required": required, "content": {"application/json": {"schema": schema, "example": example}}}


_STATE: Schema = {"enum": ["pending", "active", "expired"]}  # of a silence
_SILENCED = {"match": {"job": ["llama-*"], "node": ["gpu-17"]}, "for": "2h", "by": "anna", "comment": "cable"}


def _paths() -> dict[str, Any]:
    def get(name: str, summary: str, schema: Schema, *also: int, parameters: Sequence[Schema] = ()) -> dict[str, Any]:
        return {"get": _operation(name, summary, _answer(summary, schema), *also, parameters=list(parameters))}

    log = {"required": True, "content": {"text/plain": {"schema": {"type": "string", "minLength": 1}}}}
    found = _list("verdicts", _ref("Verdict"))
    listen = [
        _query("job", TEXT, "Also tell of each rank of this job."),
        {"name": "Last-Event-ID", "in": "header", "required": False, "schema": TEXT, "description": "Go on after it."},
    ]
    described = _answer("JSON Schema of a verdict.", {"type": "object"}, "application/schema+json")
    events = _answer("Server-sent events: all, jobs, board, ranks, pace, incident.", TEXT, "text/event-stream")
    return {
        "/api/v1/incidents": get(
            "incidents", "Incidents, last changed first.", _list("incidents", _ref("Verdict"), next=CURSOR),
            parameters=[*FILTERS, *_page(1000, 100)],
        ),
        "/api/v1/incidents/{key}": get("incident", "One incident.", _ref("Verdict"), 404, parameters=[KEY]),
        "/api/v1/incidents/{key}/decisions": get(
            "decisions", "What was decided about telling each sink of it, and why.",
            _list("decisions", _ref("Decision")), 404, parameters=[KEY],
        ),
        "/api/v1/incidents/{key}/ack": {
            "post": _operation(
                "acknowledge", "Somebody has taken an incident on, or closes it.",
                _answer("The incident as it is then.", _ref("Verdict")), 404, 409, 413, 415, parameters=[KEY],
                requestBody=_json(_ref("Acknowledge"), {"by": "anna", "note": "cable swapped"}, required=False),
            )
        },
        "/api/v1/history": get(
            "history", "Incidents that are kept in the state, last changed first.",
            _list("incidents", {"type": "object"}, next=CURSOR),
            parameters=[
                FILTERS[1], FILTERS[2], _query("node", TEXT, "With a rank on this node only."),
                _query("q", TEXT, "With this text anywhere in them only."), *_page(200, 50),
            ],
        ),
        "/api/v1/fixes": get("fixes", "What was done about failures, and whether they stayed away.",
                             _list("fixes", _ref("Fix"))),
        "/api/v1/silences": {
            **get("silences", "Silences, newest first.", _list("silences", _ref("Silence")),
                  parameters=[_query("state", _STATE, "All where it is not given.")]),
            "post": _operation(
                "silence", "Keep incidents quiet for a while.", _answer("The silence.", _ref("Silence")), 409, 413, 415,
                good=201, requestBody=_json(_ref("NewSilence"), _SILENCED, required=True),
            ),
        },
        "/api/v1/silences/{id}": {
            "delete": _operation(
                "expire", "End a silence now.", _answer("The silence.", _ref("Silence")), 404, 409,
                parameters=[_path("id", "Id of a silence.")],
            )
        },
        "/api/v1/jobs": get(
            "jobs", "Jobs that are watched, by name.", _list("jobs", _ref("Job"), next=CURSOR),
            parameters=[RANKS, *_page(1000, 1000)],
        ),
        "/api/v1/jobs/{job}": get("job", "One job.", _ref("OneJob"), 404, parameters=[JOB, RANKS]),
        "/api/v1/jobs/{job}/recording": {
            "get": _operation(
                "recording", "What was seen of a job lately, without secrets, for denpexd replay.",
                _answer("A .tar.xz archive.", {"type": "string", "format": "binary"}, "application/x-xz"), 404, 503,
                parameters=[JOB],
            )
        },
        "/api/v1/jobs/{job}/ranks": get(
            "ranks", "Ranks of a job, by number.", _list("ranks", _ref("Rank"), next=CURSOR), 404,
            parameters=[JOB, _query("state", {"enum": list(RANK_STATES)}, "In this state only."), *_page(20000, 20000)],
        ),
        "/api/v1/jobs/{job}/ranks/{rank}": get(
            "rank", "One rank.", _ref("Rank"), 404, parameters=[JOB, _path("rank", "Global rank.", COUNT)]
        ),
        "/api/v1/failures": get(
            "failures", "The encyclopedia by id, or what explains a text best.",
            _list("failures", _ref("Entry"), next=CURSOR), 404,
            parameters=[_query("q", TEXT, "Text to search for, such as the lines of an error."), *_page(1000, 1000)],
        ),
        "/api/v1/failures/{failure}": get(
            "failure", "One failure in full.", _ref("Failure"), 404, parameters=[_path("failure", "Id of a failure.")]
        ),
        "/api/v1/diagnose": {
            "post": _operation(
                "diagnose", "Explain a finished log; nothing of it is kept.", _answer("What it shows.", found),
                404, 413, 422, 503, requestBody=log,
            )
        },
        "/api/v1/rules": get("rules", "Where rules come from, and mistakes in them.", _list("packs", _ref("Pack"))),
        "/api/v1/events": {"get": _operation("events", "What changes, live.", events, 503, parameters=listen)},
        "/api/v1/schema": {"get": _operation("schema", "JSON Schema of a verdict.", described, parameters=[])},
        "/api/v1/openapi.json": get("openapi", "This document.", {"type": "object"}),
    }  # fmt: skip


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
    "ranks": {"type": "array", "items": _ref("Rank"), "description": "Left out with ranks=none."},
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


def _schemas(verdict: Schema) -> dict[str, Any]:
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
            {"id": TEXT, "match": _ref("Match"), **_TIMES, "created_t": NUMBER, **_SAID, "state": _STATE}
        ),
        "NewSilence": _object(
            {"match": _ref("Match"), "for": _LASTING, **_TIMES, **_SAID}, optional=("for", *_TIMES, *_SAID)
        ),
        "Acknowledge": _object(_ACK, optional=tuple(_ACK)),
        "Error": _object({"error": {**TEXT, "description": "What is wrong and what is allowed."}}),
    }


def _object(properties: Mapping[str, Schema], optional: tuple[str, ...] = ()) -> dict[str, Any]:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "required": required, "properties": dict(properties)}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(document(), indent=1) + "\n")
