"""Parameters as a table: one row says a field's name, type, range and default, and reading it checks all of that."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from backend.api.errors import InvalidRequest

__all__ = [
    "Field",
    "boolean",
    "choice",
    "integer",
    "mapping",
    "number",
    "out_of_range",
    "read_fields",
    "refuse_fields",
    "string",
    "string_list",
    "token_ids",
    "type_name",
    "wrong_type",
]


@dataclass(frozen=True, slots=True)
class Field:
    """One parameter. `null` and absence both mean the default."""

    name: str
    check: Callable[[str, Any], Any]
    """(parameter name, value) -> the value to use, or raises InvalidRequest naming the parameter."""
    default: Any = None

    def read(self, body: Mapping[str, Any]) -> Any:
        """Return the field's checked value.

        Raises:
            InvalidRequest: the value has the wrong type or is out of range.
        """
        value = body.get(self.name)
        return self.default if value is None else self.check(self.name, value)


def type_name(value: Any) -> str:
    """Return JSON's name for the type of `value`."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"


def wrong_type(name: str, wanted: str, value: Any) -> InvalidRequest:
    """Return the error for a value of the wrong type."""
    return InvalidRequest(f"'{name}' must be {wanted}, not {type_name(value)}.", param=name, code="invalid_type")


def out_of_range(name: str, accepted: str, value: Any) -> InvalidRequest:
    """Return the error for a value outside its range."""
    return InvalidRequest(f"'{name}' must be {accepted}, but it is {value!r}.", param=name, code="invalid_value")


def _range_text(low: float | None, high: float | None, low_open: bool) -> str:
    bound = "above" if low_open else "at least"
    if low is None:
        return f"at most {high:g}"
    if high is None:
        return f"{bound} {low:g}"
    return f"above {low:g} and at most {high:g}" if low_open else f"between {low:g} and {high:g}"


def number(
    name: str, low: float | None, high: float | None, default: float | None = None, *, low_open: bool = False
) -> Field:
    """Return a field for a finite number in [low, high], or (low, high] when `low_open`."""

    def check(param: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise wrong_type(param, "a number", value)
        below = low is not None and (value <= low if low_open else value < low)
        if below or (high is not None and value > high) or not math.isfinite(value):
            raise out_of_range(param, _range_text(low, high, low_open), value)
        return float(value)

    return Field(name, check, default)


def integer(name: str, low: int | None, high: int | None, default: int | None = None) -> Field:
    """Return a field for a whole number in [low, high]; `16.0` counts as whole."""

    def check(param: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise wrong_type(param, "an integer", value)
        if isinstance(value, float) and not value.is_integer():
            raise InvalidRequest(
                f"'{param}' must be an integer, but it is {value!r}.", param=param, code="invalid_type"
            )
        if (low is not None and value < low) or (high is not None and value > high):
            raise out_of_range(param, _integer_range(low, high), value)
        return int(value)

    return Field(name, check, default)


def _integer_range(low: int | None, high: int | None) -> str:
    if low is not None and high is not None:
        return f"between {low} and {high}"
    return f"at least {low}" if low is not None else f"at most {high}"


def boolean(name: str, default: bool = False) -> Field:
    """Return a field for true or false."""

    def check(param: str, value: Any) -> bool:
        if not isinstance(value, bool):
            raise wrong_type(param, "a boolean", value)
        return value

    return Field(name, check, default)


def string(name: str, default: str | None = None, *, max_length: int | None = None) -> Field:
    """Return a field for a string of at most `max_length` characters."""

    def check(param: str, value: Any) -> str:
        if not isinstance(value, str):
            raise wrong_type(param, "a string", value)
        if max_length is not None and len(value) > max_length:
            raise InvalidRequest(
                f"'{param}' may have at most {max_length} characters, but it has {len(value)}.",
                param=param,
                code="invalid_value",
            )
        return value

    return Field(name, check, default)


def choice(name: str, accepted: Iterable[str], default: str | None = None) -> Field:
    """Return a field for one of a few words."""
    words = tuple(accepted)

    def check(param: str, value: Any) -> str:
        if not isinstance(value, str):
            raise wrong_type(param, "a string", value)
        if value not in words:
            raise out_of_range(param, "one of " + ", ".join(map(repr, words)), value)
        return value

    return Field(name, check, default)


def string_list(name: str, *, max_items: int, max_length: int) -> Field:
    """Return a field for one string or a list of them, none empty; reads as a tuple."""

    def check(param: str, value: Any) -> tuple[str, ...]:
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list):
            raise wrong_type(param, "a string or an array of strings", value)
        if len(items) > max_items:
            raise InvalidRequest(
                f"'{param}' may have at most {max_items} entries, but it has {len(items)}.",
                param=param,
                code="invalid_value",
            )
        for item in items:
            if not isinstance(item, str):
                raise wrong_type(param, "a string or an array of strings", [item])
            if not 1 <= len(item) <= max_length:
                raise InvalidRequest(
                    f"Each entry of '{param}' must have between 1 and {max_length} characters.",
                    param=param,
                    code="invalid_value",
                )
        return tuple(items)

    return Field(name, check, ())


def token_ids(name: str, value: Any, vocab_size: int, *, max_items: int | None = None) -> list[int]:
    """Check a list of token ids against the vocabulary and return it.

    Raises:
        InvalidRequest: not a list of integers in [0, vocab_size), or longer than `max_items`.
    """
    if not isinstance(value, list):
        raise wrong_type(name, "an array of token ids", value)
    if max_items is not None and len(value) > max_items:
        raise InvalidRequest(
            f"'{name}' may have at most {max_items} entries, but it has {len(value)}.",
            param=name,
            code="invalid_value",
        )
    for token in value:
        if type(token) is not int:
            raise wrong_type(name, "an array of token ids (integers)", token)
        if not 0 <= token < vocab_size:
            raise out_of_range(name, f"token ids between 0 and {vocab_size - 1}", token)
    return value


def mapping(name: str) -> Field:
    """Return a field for a JSON object."""

    def check(param: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise wrong_type(param, "an object", value)
        return value

    return Field(name, check)


def read_fields(body: Mapping[str, Any], table: Iterable[Field]) -> dict[str, Any]:
    """Read every field of `table` from `body`; other keys of the body are ignored."""
    return {field.name: field.read(body) for field in table}


def refuse_fields(body: Mapping[str, Any], refused: Mapping[str, tuple[tuple[Any, ...], str]]) -> None:
    """Refuse fields that mean something to the caller and that this server would silently drop.

    Args:
        body: the request.
        refused: field -> (values that change nothing and are accepted, why the others are refused). `null` is
            always accepted.

    Raises:
        InvalidRequest: a refused field is set.
    """
    for name, (harmless, why) in refused.items():
        value = body.get(name)
        if value is not None and not any(type(value) is type(known) and value == known for known in harmless):
            raise InvalidRequest(f"'{name}' is not supported: {why}", param=name, code="unsupported_parameter")
