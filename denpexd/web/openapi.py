"""The OpenAPI 3.1 document of the API: served at /api/v1/openapi.json and kept as docs/openapi.json.

Written by hand beside the handlers of rest.py, so that a change of either is seen in a test of both.
"""

import json
import sys
from collections.abc import Sequence
from typing import Any

import denpexd
from denpexd.web.shapes import COUNT, SILENCE_STATE, TEXT, Schema, ref, schemas
from denpexd.web.view import RANK_STATES

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
        "paths": {**_of_incidents(), **_of_handling(), **_of_jobs(), **_of_failures()},
        "components": {
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer", "description": "The content of web.token_file."},
                "basic": {"type": "http", "scheme": "basic", "description": "Any user, the token as password."},
            },
            "schemas": schemas(verdict),
        },
    }


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
    wrong = {str(status): _answer(ERRORS[status], ref("Error")) for status in sorted({*ALWAYS, *also})}
    return {"operationId": name, "summary": summary, **more, "responses": {str(good): answer, **wrong}}


def _json(schema: Schema, example: object, *, required: bool) -> Schema:
    return {"required": required, "content": {"application/json": {"schema": schema, "example": example}}}


_SILENCED = {"match": {"job": ["llama-*"], "node": ["gpu-17"]}, "for": "2h", "by": "anna", "comment": "cable"}


def _get(name: str, summary: str, schema: Schema, *also: int, parameters: Sequence[Schema] = ()) -> dict[str, Any]:
    return {"get": _operation(name, summary, _answer(summary, schema), *also, parameters=list(parameters))}


def _of_incidents() -> dict[str, Any]:
    return {
        "/api/v1/incidents": _get(
            "incidents", "Incidents, last changed first.", _list("incidents", ref("Verdict"), next=CURSOR),
            parameters=[*FILTERS, *_page(1000, 100)],
        ),
        "/api/v1/incidents/{key}": _get("incident", "One incident.", ref("Verdict"), 404, parameters=[KEY]),
        "/api/v1/incidents/{key}/decisions": _get(
            "decisions", "What was decided about telling each sink of it, and why.",
            _list("decisions", ref("Decision")), 404, parameters=[KEY],
        ),
        "/api/v1/incidents/{key}/ack": {
            "post": _operation(
                "acknowledge", "Somebody has taken an incident on, or closes it.",
                _answer("The incident as it is then.", ref("Verdict")), 404, 409, 413, 415, parameters=[KEY],
                requestBody=_json(ref("Acknowledge"), {"by": "anna", "note": "cable swapped"}, required=False),
            )
        },
        "/api/v1/history": _get(
            "history", "Incidents that are kept in the state, last changed first.",
            _list("incidents", {"type": "object"}, next=CURSOR),
            parameters=[
                FILTERS[1], FILTERS[2], _query("node", TEXT, "With a rank on this node only."),
                _query("q", TEXT, "With this text anywhere in them only."), *_page(200, 50),
            ],
        ),
    }  # fmt: skip


def _of_handling() -> dict[str, Any]:
    """What people do about incidents."""
    return {
        "/api/v1/fixes": _get("fixes", "What was done about failures, and whether they stayed away.",
                             _list("fixes", ref("Fix"))),
        "/api/v1/silences": {
            **_get("silences", "Silences, newest first.", _list("silences", ref("Silence")),
                  parameters=[_query("state", SILENCE_STATE, "All where it is not given.")]),
            "post": _operation(
                "silence", "Keep incidents quiet for a while.", _answer("The silence.", ref("Silence")), 409, 413, 415,
                good=201, requestBody=_json(ref("NewSilence"), _SILENCED, required=True),
            ),
        },
        "/api/v1/silences/{id}": {
            "delete": _operation(
                "expire", "End a silence now.", _answer("The silence.", ref("Silence")), 404, 409,
                parameters=[_path("id", "Id of a silence.")],
            )
        },
    }  # fmt: skip


def _of_jobs() -> dict[str, Any]:
    return {
        "/api/v1/jobs": _get(
            "jobs", "Jobs that are watched, by name.", _list("jobs", ref("Job"), next=CURSOR),
            parameters=[RANKS, *_page(1000, 1000)],
        ),
        "/api/v1/jobs/{job}": _get("job", "One job.", ref("OneJob"), 404, parameters=[JOB, RANKS]),
        "/api/v1/jobs/{job}/recording": {
            "get": _operation(
                "recording", "What was seen of a job lately, without secrets, for denpexd replay.",
                _answer("A .tar.xz archive.", {"type": "string", "format": "binary"}, "application/x-xz"), 404, 503,
                parameters=[JOB],
            )
        },
        "/api/v1/jobs/{job}/ranks": _get(
            "ranks", "Ranks of a job, by number.", _list("ranks", ref("Rank"), next=CURSOR), 404,
            parameters=[JOB, _query("state", {"enum": list(RANK_STATES)}, "In this state only."), *_page(20000, 20000)],
        ),
        "/api/v1/jobs/{job}/ranks/{rank}": _get(
            "rank", "One rank.", ref("Rank"), 404, parameters=[JOB, _path("rank", "Global rank.", COUNT)]
        ),
    }  # fmt: skip


def _of_failures() -> dict[str, Any]:
    """The encyclopedia, finished logs, and what the daemon says of itself."""
    log = {"required": True, "content": {"text/plain": {"schema": {"type": "string", "minLength": 1}}}}
    listen = [
        _query("job", TEXT, "Also tell of each rank of this job."),
        {"name": "Last-Event-ID", "in": "header", "required": False, "schema": TEXT, "description": "Go on after it."},
    ]
    found = _answer("What it shows.", _list("verdicts", ref("Verdict")))
    described = _answer("JSON Schema of a verdict.", {"type": "object"}, "application/schema+json")
    events = _answer("Server-sent events: all, jobs, board, ranks, pace, incident.", TEXT, "text/event-stream")
    return {
        "/api/v1/failures": _get(
            "failures", "The encyclopedia by id, or what explains a text best.",
            _list("failures", ref("Entry"), next=CURSOR), 404,
            parameters=[_query("q", TEXT, "Text to search for, such as the lines of an error."), *_page(1000, 1000)],
        ),
        "/api/v1/failures/{failure}": _get(
            "failure", "One failure in full.", ref("Failure"), 404, parameters=[_path("failure", "Id of a failure.")]
        ),
        "/api/v1/diagnose": {
            "post": _operation(
                "diagnose", "Explain a finished log; nothing of it is kept.", found, 404, 413, 422, 503,
                requestBody=log,
            )
        },
        "/api/v1/rules": _get("rules", "Where rules come from, and mistakes in them.", _list("packs", ref("Pack"))),
        "/api/v1/events": {"get": _operation("events", "What changes, live.", events, 503, parameters=listen)},
        "/api/v1/schema": {"get": _operation("schema", "JSON Schema of a verdict.", described, parameters=[])},
        "/api/v1/openapi.json": _get("openapi", "This document.", {"type": "object"}),
    }  # fmt: skip


if __name__ == "__main__":
    sys.stdout.write(json.dumps(document(), indent=1) + "\n")
