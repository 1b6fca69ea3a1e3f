"""`response_format`, `structured_outputs` and their older names: what the text must be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

from backend.api.errors import InvalidRequest, Unavailable
from backend.api.fields import boolean, integer, type_name, wrong_type
from backend.api.service import Service
from backend.grammar import source
from backend.grammar.checker import CheckerBusy

__all__ = ["GUIDED", "Constraint", "check_enforceable", "check_fields", "read_constraint", "require_grammar"]

MAX_CHOICES: Final = 1024
MAX_GRAMMAR: Final = 1 << 20
"""Characters of a grammar."""
_BUSY_S: Final = 5
"""Half of what a grammar may take at most."""
RESPONSE_FORMATS: Final = ("text", "json_object", "json_schema")


def require_grammar(param: str) -> None:
    """Refuse what only the grammar library can do, where it is not installed.

    Raises:
        InvalidRequest: naming the parameter and the extra.
    """
    if not source.available():
        raise InvalidRequest(
            f"'{param}' is not supported: {source.MISSING}", param=param, code="unsupported_parameter"
        )


def _schema(param: str, value: Any) -> str:
    if not isinstance(value, dict):
        raise wrong_type(param, "a JSON schema (an object)", value)
    return source.from_json_schema(value)


def _text(build: Callable[[str], str]) -> Callable[[str, Any], str]:
    def read(param: str, value: Any) -> str:
        if not isinstance(value, str):
            raise wrong_type(param, "a string", value)
        return build(value)

    return read


def _choices(param: str, value: Any) -> str:
    if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
        raise wrong_type(param, "an array of non-empty strings", value)
    if not 1 <= len(value) <= MAX_CHOICES:
        raise InvalidRequest(
            f"'{param}' must have between 1 and {MAX_CHOICES} entries, but it has {len(value)}.",
            param=param,
            code="invalid_value",
        )
    return source.from_choices(value)


_KINDS: Final[Mapping[str, Callable[[str, Any], str]]] = {
    "json": _schema,
    "regex": _text(source.from_regex),
    "choice": _choices,
    "grammar": _text(source.from_lark),
}
GUIDED: Final = tuple(f"guided_{kind}" for kind in _KINDS)
"""The older names of the keys of `structured_outputs`."""


def _response_format(value: Any) -> str | None:
    if not isinstance(value, dict):
        raise wrong_type("response_format", "an object", value)
    kind = value.get("type")
    if kind not in RESPONSE_FORMATS:
        raise InvalidRequest(
            f"'response_format.type' must be one of {', '.join(map(repr, RESPONSE_FORMATS))}, but it is {kind!r}.",
            param="response_format",
            code="invalid_value",
        )
    if kind == "text":
        return None
    require_grammar("response_format")
    if kind == "json_object":
        return source.any_json_object()
    described = value.get("json_schema")
    schema = described.get("schema") if isinstance(described, dict) else None
    if not isinstance(schema, dict):
        raise InvalidRequest(
            f"'response_format.json_schema.schema' must be an object, not {type_name(schema)}.",
            param="response_format",
            code="invalid_type",
        )
    return source.from_json_schema(schema)


def _structured_outputs(value: Any) -> str:
    if not isinstance(value, dict):
        raise wrong_type("structured_outputs", "an object", value)
    given = {kind: setting for kind, setting in value.items() if setting is not None}
    if len(given) != 1 or not given.keys() <= _KINDS.keys():
        raise InvalidRequest(
            f"'structured_outputs' must have exactly one of {', '.join(map(repr, _KINDS))}.",
            param="structured_outputs",
            code="invalid_value",
        )
    ((kind, setting),) = given.items()
    return _KINDS[kind]("structured_outputs", setting)


class Constraint(NamedTuple):
    """A grammar, not yet compiled, and the parameter that demands it."""

    grammar: str
    param: str


def read_constraint(body: Mapping[str, Any]) -> Constraint | None:
    """Return what a request demands of the text; None where it is free.

    Raises:
        InvalidRequest: malformed, several at once, or the grammar library is not installed.
    """
    wanted = [name for name in ("response_format", "structured_outputs", *GUIDED) if body.get(name) is not None]
    found: list[Constraint] = []
    for name in wanted:
        if name == "response_format":
            grammar = _response_format(body[name])
        else:
            require_grammar(name)
            if name == "structured_outputs":
                grammar = _structured_outputs(body[name])
            else:
                grammar = _KINDS[name.removeprefix("guided_")](name, body[name])
        if grammar is not None:
            found.append(Constraint(grammar, name))
    if len(found) > 1:
        first, second = (constraint.param for constraint in found[:2])
        raise InvalidRequest(f"'{second}' cannot be combined with '{first}'.", param=second, code="invalid_value")
    return found[0] if found else None


async def check_enforceable(service: Service, constraint: Constraint) -> None:
    """See that a grammar can be enforced.

    Raises:
        InvalidRequest: it cannot, naming the parameter.
        Unavailable: it takes long to find out, and so do others just now.
    """
    if len(constraint.grammar) > MAX_GRAMMAR:
        raise InvalidRequest(
            f"'{constraint.param}' cannot be enforced: it is too large.",
            param=constraint.param,
            code="invalid_grammar",
        )
    try:
        await service.check_grammar(constraint.grammar)
    except CheckerBusy as error:
        raise Unavailable(str(error), code="grammar_checker_busy", retry_after_s=_BUSY_S) from None
    except source.GrammarError as error:
        raise InvalidRequest(
            f"'{constraint.param}' cannot be enforced: {error}.", param=constraint.param, code="invalid_grammar"
        ) from error


def check_fields(body: Mapping[str, Any], constraint: Constraint) -> None:
    """Refuse what cannot go with a grammar.

    Raises:
        InvalidRequest: a parameter keeps the text from ending where the grammar does.
    """
    for field, harmless in ((boolean("ignore_eos"), False), (integer("min_tokens", 0, None, 0), 0)):
        if field.read(body) != harmless:
            raise InvalidRequest(
                f"'{field.name}' cannot be combined with '{constraint.param}': the text ends where its grammar does.",
                param=field.name,
                code="invalid_value",
            )
