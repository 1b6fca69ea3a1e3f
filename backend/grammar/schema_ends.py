"""JSON schemas without an end: those that no finite document fits because each needs another one inside."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

from backend.grammar.productions import Productions

__all__ = ["endless_schema"]

Path = tuple[str, ...]
"""Where a schema is, as the keys that lead there. What is only thought of, such as the choice that `anyOf` leaves,
has a key of its own that no schema can have."""

_CHOICE = "\0choice"
_CONTENT = "\0content"


def endless_schema(schema: Mapping[str, Any]) -> str | None:
    """Return the JSON pointer of a schema that can be entered and has no finite document; None where all have one.

    What is undecided is taken to have an end: schemas that contradict themselves are the compiler's to find, and
    what it does not enforce (`not`, `if`) is not looked at. References are followed within the document, relative
    to the nearest `$id`.
    """
    reader = _Reader(schema)
    found = reader.productions.endless(())
    if found is None:
        return None
    return "#" + "".join(f"/{_escape(key)}" for key in found if key not in (_CHOICE, _CONTENT))


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


class _Reader:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self.productions: Productions[Path] = Productions()
        self._root = root
        self._open: list[Path] = [()]
        while self._open:
            path = self._open.pop()
            schema = self._at(path)
            if path not in self.productions and isinstance(schema, dict):
                self._read(path, schema)

    def _at(self, path: Path) -> Any:
        """Return what stands at `path`; None where there is nothing."""
        value: Any = self._root
        for key in path:
            if isinstance(value, dict):
                value = value.get(key)
            elif isinstance(value, list) and key.isdecimal() and int(key) < len(value):
                value = value[int(key)]
            else:
                return None
        return value

    def _read(self, path: Path, schema: dict[str, Any]) -> None:
        """Define one schema: all of what it asks for must be complete."""
        needed = [(*path, "allOf", key) for key in _keys(schema.get("allOf"))]
        reference = schema.get("$ref")
        if isinstance(reference, str) and (target := self._resolve(path, reference)) is not None:
            needed.append(target)
        for name in ("anyOf", "oneOf"):
            if options := [(*path, name, key) for key in _keys(schema.get(name))]:
                needed.append((*path, name, _CHOICE))
                self.productions.define(needed[-1], [(option,) for option in options])
                self._open += options
        if "const" not in schema and "enum" not in schema:
            needed += self._content(path, schema)
        self.productions.define(path, [needed])
        self._open += needed

    def _content(self, path: Path, schema: dict[str, Any]) -> list[Path]:
        """Read what is inside objects and arrays. It must be complete where nothing else is allowed."""
        kind = schema.get("type", ())
        kinds = {kind} if isinstance(kind, str) else {str(item) for item in kind} if isinstance(kind, list) else set()
        options: list[list[Path]] = []
        for name, read in (("object", self._members), ("array", self._items)):
            if not kinds or name in kinds:
                ways, inside = read(path, schema)
                options += ways
                self.productions.mention(path, inside)
                self._open += inside
        if not kinds or kinds - {"object", "array"}:
            return []
        content = (*path, _CONTENT)
        self.productions.define(content, options)
        return [content]

    def _members(self, path: Path, schema: dict[str, Any]) -> tuple[list[list[Path]], list[Path]]:
        """Return the ways in which an object can have all members it must have, and the schemas of all members."""
        named = {key: (*path, "properties", key) for key in _keys(schema.get("properties"))}
        patterns = [(*path, "patternProperties", key) for key in _keys(schema.get("patternProperties"))]
        others = (*path, "additionalProperties")
        wanted = schema.get("required")
        required = []
        for key in wanted if isinstance(wanted, list) else ():
            if key in named:
                required.append(named[key])
            elif not patterns:
                required.append(others)
        inside = [*named.values(), *patterns, others]
        more = _number(schema, "minProperties") > len(required)
        return [[*required, member] for member in inside] if more else [required], inside

    def _items(self, path: Path, schema: dict[str, Any]) -> tuple[list[list[Path]], list[Path]]:
        """Return the way in which an array has all the items it must have, and the schemas of all items."""
        first = "prefixItems" if isinstance(schema.get("prefixItems"), list) else "items"
        prefix = [(*path, first, key) for key in _keys(schema.get(first), of=list)]
        rest = (*path, "items" if isinstance(schema.get("items"), dict) else "additionalItems")
        least, most = _number(schema, "minItems"), _number(schema, "maxItems", len(prefix) + 1)
        required = prefix[:least] + [rest] * (least > len(prefix))
        return [required], prefix[:most] + [rest] * (most > len(prefix))

    def _resolve(self, path: Path, reference: str) -> Path | None:
        """Return where a reference leads; None for one that is not a pointer within the document."""
        if reference != "#" and not reference.startswith("#/"):
            return None
        base = next(
            (path[:size] for size in range(len(path), 0, -1) if self._is_resource(path[:size])),
            (),
        )
        keys = unquote(reference).split("/")[1:]
        return (*base, *(key.replace("~1", "/").replace("~0", "~") for key in keys))

    def _is_resource(self, path: Path) -> bool:
        schema = self._at(path)
        return isinstance(schema, dict) and isinstance(schema.get("$id"), str)


def _number(schema: Mapping[str, Any], key: str, default: int = 0) -> int:
    value = schema.get(key)
    return int(value) if isinstance(value, int | float) else default


def _keys(value: Any, of: type[dict[str, Any]] | type[list[Any]] | None = None) -> list[str]:
    """Return the keys that lead to the members of an object or an array."""
    if isinstance(value, dict) and of is not list:
        return list(value)
    if isinstance(value, list) and of is not dict:
        return [str(index) for index in range(len(value))]
    return []
