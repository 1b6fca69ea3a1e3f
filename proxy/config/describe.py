"""What a key accepts, in words: for error messages and for the generated reference."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from proxy.config.base import NAME_PATTERN, Section, unit_of
from proxy.config.model import Config

__all__ = ["Key", "accepted", "find", "plain_type", "section_of"]


class Key(NamedTuple):
    """Where a path into the configuration leads."""

    name: str
    """The key's own name, without indexes."""
    type: Any
    """The type of the value there."""
    field: FieldInfo | None
    """The field that holds it, for bounds and description; None inside free-form values."""
    owner: type[Section] | None
    """The section the key belongs to."""
    unit: str = ""
    """What its numbers count, by its own name or by that of what it is in."""


def plain_type(annotation: Any) -> Any:
    """Return `annotation` without None and Annotated."""
    if get_origin(annotation) is Annotated:
        return plain_type(get_args(annotation)[0])
    if get_origin(annotation) in (Union, types.UnionType):
        kinds = [kind for kind in get_args(annotation) if kind is not type(None)]
        return plain_type(kinds[0]) if len(kinds) == 1 else annotation
    return annotation


def section_of(annotation: Any) -> type[Section] | None:
    """Return the section that `annotation` is, or is a list or a mapping of; None for other values."""
    kind = plain_type(annotation)
    if isinstance(kind, type) and issubclass(kind, Section):
        return kind
    for part in get_args(kind):
        found = section_of(part)
        if found is not None:
            return found
    return None


def find(path: Sequence[str | int], root: type[Section] = Config) -> Key | None:
    """Follow `path` from `root`; None where it leaves the known keys."""
    key = Key("", root, None, None)
    for part in path:
        kind = plain_type(key.type)
        if isinstance(kind, type) and issubclass(kind, Section):
            field = kind.model_fields.get(str(part))
            if field is None:
                return None
            key = Key(str(part), field.annotation, field, kind, unit_of(str(part)) or key.unit)
        elif get_origin(kind) is tuple and isinstance(part, int):
            key = key._replace(type=get_args(kind)[0])
        elif get_origin(kind) is dict:
            key = Key(str(part), get_args(kind)[1], None, None)
        else:
            return None
    return key


def accepted(key: Key) -> str:
    """Return the range of a value in words, with its unit: `a number from 0 to 60000 (milliseconds)`."""
    kind = plain_type(key.type)
    if get_origin(kind) is Literal:
        return _one_of([str(choice) for choice in get_args(kind)])
    if isinstance(kind, type) and issubclass(kind, Section):
        return f"a mapping with the keys {', '.join(kind.model_fields)}"
    if get_origin(kind) is tuple:
        return "a list"
    if get_origin(kind) is dict or kind is dict:
        return "a mapping"
    bounds = _bounds(key.field)
    if kind is bool:
        words = "true or false"
    elif kind in (int, float):
        words = ("a whole number" if kind is int else "a number") + _range(bounds)
    elif kind is SecretStr:
        words = "a secret" + (f" of at least {bounds['min_length']} characters" if "min_length" in bounds else "")
    else:
        words = _text(bounds.get("pattern"))
    return f"{words} ({key.unit})" if key.unit and kind in (int, float) else words


def _text(pattern: str | None) -> str:
    if pattern is None:
        return "text"
    return "a name of letters, digits and . _ -" if pattern == NAME_PATTERN else f"text matching {pattern}"


def _bounds(field: FieldInfo | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for item in field.metadata if field else ():
        for name in ("ge", "gt", "le", "lt", "min_length", "max_length", "pattern"):
            value = getattr(item, name, None)
            if value is not None:
                found[name] = value
    return found


def _range(bounds: dict[str, Any]) -> str:
    low = (
        f"from {_number(bounds['ge'])}"
        if "ge" in bounds
        else f"above {_number(bounds['gt'])}"
        if "gt" in bounds
        else ""
    )
    high = (
        f"to {_number(bounds['le'])}"
        if "le" in bounds
        else f"below {_number(bounds['lt'])}"
        if "lt" in bounds
        else ""
    )
    return "".join(f" {part}" for part in (low, high) if part)


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _one_of(choices: Sequence[str]) -> str:
    return choices[0] if len(choices) == 1 else f"{', '.join(choices[:-1])} or {choices[-1]}"
