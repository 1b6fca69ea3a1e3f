"""The table of operations: routes are made from it, and so is the OpenAPI document."""

from __future__ import annotations

from typing import Any, NamedTuple

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from policies import __version__
from proxy.admin import schemas
from proxy.admin.problem import CONTENT_TYPE

__all__ = ["OPERATIONS", "Operation", "Parameter", "document"]


class Parameter(NamedTuple):
    """A query parameter or header."""

    name: str
    where: str
    description: str
    schema: dict[str, Any]


class Operation(NamedTuple):
    """One method on one path. `handler` names a method of `AdminApi`, which also gives the operation its id."""

    method: str
    path: str
    handler: str
    summary: str
    answer: type[BaseModel] | None
    body: type[BaseModel] | None = None
    parameters: tuple[Parameter, ...] = ()
    problems: tuple[int, ...] = ()
    also: tuple[tuple[int, type[BaseModel]], ...] = ()
    """Further answers that are no problem documents."""
    content: str = "application/json"


_ACTOR = Parameter("X-Trimtab-Actor", "header", "Who is asking; kept in the decision log.", {
    "type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9@._+-]{0,63}$",
})  # fmt: skip
_IF_MATCH = Parameter("If-Match", "header", "ETag of the state the change was made for.", {"type": "string"})
_WRITE = (_ACTOR, _IF_MATCH)
_FOR = Parameter(
    "for_s",
    "query",
    "Take the change back after so many seconds, unless the same thing is changed again before.",
    {"type": "number", "minimum": 1, "maximum": 2_592_000},
)
_MOMENT = {"type": "string", "examples": ["2030-01-31T08:00:00Z", "1900000000"]}
_AT = Parameter("at", "query", "Make the change then: Unix seconds, or a time with its offset (RFC 3339).", _MOMENT)
_UNTIL = Parameter("until", "query", "Take the change back then; instead of for_s.", _MOMENT)
_TIMES = (_AT, _FOR, _UNTIL)
_PLANNED = ((202, schemas.PlanOut),)
_POOL = "/admin/v1/pools/{pool}"
_BODY_FAULTS = (400, 413, 415, 422)

OPERATIONS = (
    Operation("GET", "/admin/v1/pools", "list_pools", "Every pool at a glance.", schemas.PoolsOut),
    Operation("GET", _POOL, "get_pool", "One pool in full, with live quantiles.", schemas.PoolOut, problems=(404,)),
    Operation(
        "PATCH", f"{_POOL}/slo", "patch_slo", "Change targets of the SLO.", schemas.PoolOut,
        body=schemas.SloPatch, parameters=(*_WRITE, *_TIMES), problems=(404, 409, 412, *_BODY_FAULTS),
        also=_PLANNED,
    ),
    Operation(
        "PATCH", f"{_POOL}/setpoints", "patch_setpoints", "Pin setpoints, or give them back with null.",
        schemas.PoolOut,
        body=schemas.SetpointsPatch, parameters=(*_WRITE, *_TIMES), problems=(404, 409, 412, *_BODY_FAULTS),
        also=_PLANNED,
    ),
    Operation(
        "DELETE", f"{_POOL}/pins", "delete_pins", "Give setpoints back to the law.", schemas.PoolOut,
        parameters=(*_WRITE, Parameter("name", "query", "Only these setpoints; all when absent.", {
            "type": "array", "items": {"type": "string", "enum": ["max_batch_size", "window_ms"]},
        })),
        problems=(404, 412, 422),
    ),
    Operation(
        "PUT", f"{_POOL}/law", "put_law", "Hand the setpoints to another law.", schemas.PoolOut,
        body=schemas.LawIn, parameters=(*_WRITE, *_TIMES), problems=(404, 409, 412, *_BODY_FAULTS),
        also=_PLANNED,
    ),
    Operation(
        "PUT", f"{_POOL}/freeze", "put_freeze", "Keep the law from turning setpoints, or let it go on.",
        schemas.PoolOut,
        body=schemas.FreezeIn, parameters=(*_WRITE, *_TIMES), problems=(404, 409, 412, *_BODY_FAULTS),
        also=_PLANNED,
    ),
    Operation(
        "PUT", f"{_POOL}/drain", "put_drain",
        "Take an upstream out, or back in. It finishes what it has; its state then says drained.", schemas.PoolOut,
        body=schemas.DrainIn, parameters=_WRITE, problems=(404, 412, *_BODY_FAULTS),
    ),
    Operation(
        "PUT", f"{_POOL}/shadow", "put_shadow", "Let another law advise without turning anything.", schemas.PoolOut,
        body=schemas.ShadowIn, parameters=_WRITE, problems=(404, 412, *_BODY_FAULTS),
    ),
    Operation(
        "POST", f"{_POOL}/experiment", "post_experiment",
        "Let another law take turns with the one in force; it stops by itself when it does harm.", schemas.PoolOut,
        body=schemas.ExperimentIn, parameters=_WRITE, problems=(404, 412, *_BODY_FAULTS),
    ),
    Operation(
        "DELETE", f"{_POOL}/experiment", "delete_experiment", "End an experiment; the law it began with stays.",
        schemas.PoolOut, parameters=_WRITE, problems=(404, 409, 412, 422),
    ),
    Operation(
        "POST", f"{_POOL}/rollback", "post_rollback", "Undo a decision.", schemas.PoolOut,
        body=schemas.RollbackIn, parameters=_WRITE, problems=(404, 412, *_BODY_FAULTS),
    ),
    Operation(
        "POST", f"{_POOL}/what-if", "post_what_if",
        "Try a change on paper: the last minutes' requests, simulated with and without it.", schemas.WhatIfOut,
        body=schemas.WhatIfIn, problems=(404, 409, *_BODY_FAULTS, 503),
    ),
    Operation(
        "GET", f"{_POOL}/decisions", "list_decisions", "What was decided and why.", schemas.DecisionsOut,
        parameters=(
            Parameter("limit", "query", "At most so many.", {
                "type": "integer", "minimum": 1, "maximum": 1000, "default": 50,
            }),
            Parameter("since", "query", "Only decisions after this id, oldest first.", {
                "type": "integer", "minimum": 0, "maximum": 10**15,
            }),
        ),
        problems=(404, 422),
    ),
    Operation(
        "GET", f"{_POOL}/history", "get_history", "The last ten minutes: latencies, SLO, setpoints and load.",
        schemas.HistoryOut, problems=(404,),
    ),
    Operation("GET", "/admin/v1/laws", "list_laws", "Every law, and what each can be told.", schemas.LawsOut),
    Operation("GET", "/admin/v1/plans", "list_plans", "The changes to come, in all pools.", schemas.PlansOut),
    Operation("DELETE", "/admin/v1/plans/{plan}", "delete_plan", "Forget a change to come.", schemas.PlansOut,
              parameters=_WRITE, problems=(404, 412, 422)),
    Operation("GET", "/admin/v1/audit", "list_audit", "What operators decided, in all pools.", schemas.AuditOut,
              parameters=(Parameter("limit", "query", "At most so many.", {
                  "type": "integer", "minimum": 1, "maximum": 1000, "default": 50,
              }),), problems=(422,)),
    Operation("GET", "/admin/v1/config", "get_config", "The configuration in force, secrets masked.",
              schemas.ConfigOut),
    Operation("POST", "/admin/v1/reload", "reload", "Read the configuration again; a bad one changes nothing.",
              schemas.ReloadOut, parameters=_WRITE, problems=(412, 422)),
    Operation(
        "GET", "/admin/v1/events", "events",
        "Server-sent events: `decision` as each is made, `state` of every pool once a second.", None,
        parameters=(
            Parameter("every_s", "query", "Seconds between two states.", {
                "type": "number", "minimum": 0.2, "maximum": 60, "default": 1,
            }),
            Parameter("Last-Event-ID", "header", "Go on after this event.", {"type": "string"}),
        ),
        problems=(422, 503), content="text/event-stream",
    ),
    Operation("GET", "/admin/v1/openapi.json", "openapi", "This document.", None),
    Operation("GET", "/healthz", "healthz", "Whether the process answers.", schemas.Health),
    Operation("GET", "/readyz", "readyz", "Whether traffic should be sent here.", schemas.Readiness,
              also=((503, schemas.Readiness),)),
    Operation("GET", "/metrics", "metrics", "Prometheus or OpenMetrics text.", None, content="text/plain"),
)  # fmt: skip


_TAGGED: dict[type[BaseModel] | None, str] = {
    schemas.PoolOut: "Names the SLO, pins and law.",
    schemas.PlansOut: "Names the list.",
    schemas.ConfigOut: "Names the configuration in force.",
}


def document() -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of the admin API."""
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Trimtab admin API",
            "version": __version__,
            "description": "Look at and steer a running proxy. Changes take effect at once and touch no request.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"bearer": []}, {}],
        "paths": _paths(),
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "admin.token, or one of admin.tokens; read tokens may only look.",
                }
            },
        },
    }


def _paths() -> dict[str, Any]:
    paths: dict[str, Any] = {}
    for operation in OPERATIONS:
        item = paths.setdefault(operation.path, {})
        if "{pool}" in operation.path:
            item["parameters"] = [
                {"name": "pool", "in": "path", "required": True, "schema": {"type": "string"},
                 "description": "The pool's name in the configuration."}
            ]  # fmt: skip
        if "{plan}" in operation.path:
            item["parameters"] = [
                {"name": "plan", "in": "path", "required": True, "schema": {"type": "string"},
                 "description": "The plan's number."}
            ]  # fmt: skip
        item[operation.method.lower()] = _operation(operation)
    return paths


def _operation(operation: Operation) -> dict[str, Any]:
    open_to_all = not operation.path.startswith("/admin/")
    answers: dict[str, Any] = {"200": _answer("Done.", operation.answer, operation.content)}
    if operation.answer in _TAGGED:
        answers["200"]["headers"] = {"ETag": {"description": _TAGGED[operation.answer], "schema": {"type": "string"}}}
    for status, schema in operation.also:
        answers[str(status)] = _answer("Not now." if status >= 400 else "Planned for later.", schema)
    for status in (*operation.problems, *(() if open_to_all else (401, 403))):
        answers[str(status)] = _answer("Refused; the body says why.", schemas.ProblemOut, CONTENT_TYPE)
    answers["default"] = _answer("Refused; the body says why.", schemas.ProblemOut, CONTENT_TYPE)
    out: dict[str, Any] = {
        "operationId": operation.handler,
        "summary": operation.summary,
        "responses": dict(sorted(answers.items())),
    }
    if operation.parameters:
        out["parameters"] = [
            {"name": p.name, "in": p.where, "description": p.description, "schema": p.schema, "required": False}
            for p in operation.parameters
        ]
    if operation.body:
        content = {"schema": _ref(operation.body)}
        out["requestBody"] = {"required": True, "content": {"application/json": content}}
    if open_to_all:
        out["security"] = []
    return out


def _answer(description: str, schema: type[BaseModel] | None, content: str = "application/json") -> dict[str, Any]:
    media: dict[str, Any] = {"schema": _ref(schema) if schema else {}}
    return {"description": description, "content": {content: media}}


def _ref(schema: type[BaseModel]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{schema.__name__}"}


def _schemas() -> dict[str, Any]:
    inputs = {operation.body for operation in OPERATIONS if operation.body}
    outputs = {operation.answer for operation in OPERATIONS if operation.answer} | {schemas.ProblemOut}
    outputs |= {schema for operation in OPERATIONS for _, schema in operation.also}
    modes = [*((model, "validation") for model in inputs), *((model, "serialization") for model in outputs)]
    modes.sort(key=lambda pair: pair[0].__name__)
    _, made = models_json_schema(modes, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
    return dict(sorted(made["$defs"].items()))
