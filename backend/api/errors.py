"""What can go wrong with a request, each with its HTTP status, as OpenAI error objects."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import orjson
from aiohttp import web

__all__ = [
    "ApiError",
    "BodyTooLarge",
    "EngineFailed",
    "Forbidden",
    "HeadTooLarge",
    "InvalidRequest",
    "MethodNotAllowed",
    "ModelNotFound",
    "NotFound",
    "Unauthorized",
    "Unavailable",
    "error_response",
    "json_response",
]


class ApiError(Exception):
    """Base of the closed tree; each class carries its status and OpenAI's `type`."""

    status: ClassVar[int] = 500
    kind: ClassVar[str] = "server_error"
    default_code: ClassVar[str | None] = None

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code if code is not None else self.default_code

    @property
    def headers(self) -> Mapping[str, str]:
        """Headers that go with the answer."""
        return {}

    def body(self) -> dict[str, Any]:
        """Return the OpenAI error object."""
        return {"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}}


class InvalidRequest(ApiError):
    """The caller's fault: a parameter that is wrong, named in `param`."""

    status = 400
    kind = "invalid_request_error"


class Unauthorized(ApiError):
    """The API key is missing or wrong."""

    status = 401
    kind = "invalid_request_error"
    default_code = "invalid_api_key"

    @property
    def headers(self) -> Mapping[str, str]:
        """RFC 9110, section 11.6.1: a 401 names the scheme."""
        return {"WWW-Authenticate": "Bearer"}


class Forbidden(ApiError):
    """Not for whoever asks under this name."""

    status = 403
    kind = "invalid_request_error"
    default_code = "host_not_allowed"


class NotFound(ApiError):
    """No such path."""

    status = 404
    kind = "invalid_request_error"
    default_code = "unknown_url"


class ModelNotFound(ApiError):
    """The model named is not the one served here."""

    status = 404
    kind = "invalid_request_error"
    default_code = "model_not_found"


class MethodNotAllowed(ApiError):
    """The path exists, the method does not."""

    status = 405
    kind = "invalid_request_error"
    default_code = "method_not_allowed"

    def __init__(self, message: str, *, allowed: str) -> None:
        super().__init__(message)
        self._allowed = allowed

    @property
    def headers(self) -> Mapping[str, str]:
        """RFC 9110, section 15.5.6: a 405 lists the methods that would work."""
        return {"Allow": self._allowed}


class BodyTooLarge(ApiError):
    """The body is longer than the server reads."""

    status = 413
    kind = "invalid_request_error"
    default_code = "body_too_large"


class HeadTooLarge(ApiError):
    """A line of the request's head is longer than the server reads."""

    status = 431
    kind = "invalid_request_error"
    default_code = "head_too_large"


class EngineFailed(ApiError):
    """The engine gave up on this request."""

    status = 500
    default_code = "engine_error"


class Unavailable(ApiError):
    """Loading, draining, full, or without a working engine: trying later may help."""

    status = 503
    default_code = "unavailable"

    def __init__(self, message: str, *, code: str | None = None, retry_after_s: int = 1) -> None:
        super().__init__(message, code=code)
        self.retry_after_s = retry_after_s

    @property
    def headers(self) -> Mapping[str, str]:
        """Whole seconds after which a retry is sensible."""
        return {"Retry-After": str(self.retry_after_s)}


def json_response(value: Any, *, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return `value` as an `application/json` response."""
    return web.Response(body=orjson.dumps(value), status=status, headers=headers, content_type="application/json")


def error_response(error: ApiError) -> web.Response:
    """Turn an error into its HTTP answer."""
    return json_response(error.body(), status=error.status, headers=error.headers)
