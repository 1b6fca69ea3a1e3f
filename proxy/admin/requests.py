"""Reading what a client of the admin API sent, strictly."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from datetime import datetime
from typing import TypeVar

from aiohttp import web
from pydantic import ValidationError

from proxy.admin.problem import ApiError, field_error
from proxy.config.base import Section
from proxy.config.errors import problems_of

__all__ = ["HOLDER", "actor_of", "integer", "moment", "read_body", "require_match", "seconds"]

_BODY_S = 10.0
_S = TypeVar("_S", bound=Section)
_JSON = frozenset({"application/json", "application/merge-patch+json"})
_DECIMAL = re.compile(r"[0-9]{1,12}(\.[0-9]{1,9})?")
HOLDER = web.RequestKey("holder", str)
"""Where a request keeps the name of the token it came with."""
_ACTOR = re.compile(r"^[A-Za-z0-9][A-Za-z0-9@._+-]{0,63}$")


async def read_body(request: web.Request, schema: type[_S]) -> _S:
    """Return the JSON body as `schema`. Raises ApiError 400, 415 or 422."""
    if request.content_type not in _JSON:
        raise ApiError(415, "The body must be application/json.", headers={"Accept-Patch": ", ".join(sorted(_JSON))})
    try:
        async with asyncio.timeout(_BODY_S):
            raw = await request.read()
    except TimeoutError:
        raise ApiError(
            400, f"The body did not arrive within {_BODY_S:g} s.", headers={"Connection": "close"}
        ) from None
    try:
        data = json.loads(raw, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, f"The body is not JSON: {error}") from None
    if not isinstance(data, dict):
        raise ApiError(422, f"The body must be an object with the keys {', '.join(schema.model_fields)}.")
    try:
        return schema.model_validate(data, strict=True)
    except ValidationError as error:
        raise ApiError.invalid(problems_of(error, lambda path: ("", path), schema)) from None


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number in JSON")


def integer(request: web.Request, name: str, default: int, low: int, high: int) -> int:
    """Return a query parameter as a whole number. Raises ApiError 422 when it is none, or out of range."""
    values = request.query.getall(name, [])
    if not values:
        return default
    accepted = f"a whole number from {low} to {high}"
    text = values[0]
    if len(values) == 1 and text.isascii() and text.isdecimal() and len(text) <= 18 and low <= int(text) <= high:
        return int(text)
    raise field_error(name, f"got {text[:40]!r}; accepted: {accepted}", accepted=accepted)


def seconds(request: web.Request, name: str, low: float, high: float) -> float | None:
    """Return a query parameter as seconds, None when it is absent. Raises ApiError 422 when it is out of range."""
    values = request.query.getall(name, [])
    if not values:
        return None
    accepted = f"a number from {low:g} to {high:g} (seconds)"
    text = values[0]
    if len(values) == 1 and _DECIMAL.fullmatch(text) and low <= float(text) <= high:
        return float(text)
    raise field_error(name, f"got {text[:40]!r}; accepted: {accepted}", accepted=accepted)


def moment(request: web.Request, name: str, wall: float, most_ahead_s: float) -> float | None:
    """Return a query parameter as Unix seconds, None when it is absent; `wall` is the present.

    Raises ApiError 422 when it is neither a number nor a date and time with an offset (RFC 3339), or not to come.
    """
    values = request.query.getall(name, [])
    if not values:
        return None
    accepted = f"Unix seconds or a time like 2030-01-31T08:00:00Z, within {most_ahead_s / 86_400:g} days from now"
    text = values[0]
    found: float | None = None
    if len(values) == 1 and len(text) <= 40:
        if _DECIMAL.fullmatch(text):
            found = float(text)
        else:
            with contextlib.suppress(ValueError, OverflowError):
                stamp = datetime.fromisoformat(text.replace(" ", "+"))  # a plus sign that nobody escaped
                found = stamp.timestamp() if stamp.tzinfo is not None else None
    if found is None or not wall < found <= wall + most_ahead_s:
        raise field_error(name, f"got {text[:40]!r}; accepted: {accepted}", accepted=accepted)
    return found


def actor_of(request: web.Request) -> str:
    """Return who is asking, for the decision log: x-trimtab-actor, or `api`. Raises ApiError 422.

    Who holds a token with a name goes under that name, whatever else they say.
    """
    given = request.headers.get("X-Trimtab-Actor")
    holder = request.get(HOLDER)
    if given is None:
        return f"admin:{holder or 'api'}"
    if not _ACTOR.match(given):
        raise field_error("X-Trimtab-Actor", "accepted: 1 to 64 letters, digits and @ . _ + -")
    return f"admin:{given}" if holder is None else f"admin:{holder}+{given}"


def require_match(
    request: web.Request, etag: str, message: str = "It was changed by someone else since you read it."
) -> None:
    """Refuse a change made against a state that is no longer there (RFC 9110, 13.1.1). Raises ApiError 412."""
    wanted = request.headers.get("If-Match")
    if wanted is None or wanted.strip() == "*":
        return
    tags = {tag.strip() for tag in wanted.split(",")}
    if etag not in tags:
        raise ApiError(412, message, headers={"ETag": etag})
