"""Errors of the admin API as problem details (RFC 9457), naming the field and what it accepts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

from aiohttp import web

from proxy.config.errors import Problem

__all__ = ["CONTENT_TYPE", "ApiError", "field_error", "problem_body", "problem_response"]

CONTENT_TYPE = "application/problem+json"


class ApiError(Exception):
    """A request that is answered with a problem document instead of what it asked for."""

    def __init__(
        self,
        status: int,
        detail: str,
        *,
        errors: Iterable[Mapping[str, Any]] = (),
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.detail = detail
        self.errors = [dict(error) for error in errors]
        self.headers = dict(headers or {})

    @classmethod
    def invalid(cls, problems: Iterable[Problem]) -> ApiError:
        """Return a 422 that lists what is wrong with a body, or with a file where problems have an origin."""
        errors = [
            {"field": problem.path, "message": problem.message}
            | ({"origin": problem.origin} if problem.origin else {})
            for problem in problems
        ]
        detail = "; ".join(f"{error['field'] or error.get('origin', 'body')}: {error['message']}" for error in errors)
        return cls(HTTPStatus.UNPROCESSABLE_ENTITY, detail, errors=errors)


def field_error(field: str, message: str, **more: Any) -> ApiError:
    """Return a 422 about one field; `more` may carry `accepted` or `known`."""
    return ApiError(422, f"{field}: {message}", errors=[{"field": field, "message": message, **more}])


def problem_body(error: ApiError) -> bytes:
    """Return `error` as a problem document."""
    body: dict[str, Any] = {
        "type": "about:blank",
        "title": HTTPStatus(error.status).phrase,
        "status": error.status,
        "detail": error.detail,
    }
    if error.errors:
        body["errors"] = error.errors
    return json.dumps(body).encode()


def problem_response(error: ApiError) -> web.Response:
    """Write `error` as application/problem+json."""
    return web.Response(
        status=error.status, headers=error.headers, body=problem_body(error), content_type=CONTENT_TYPE
    )
