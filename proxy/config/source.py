"""Reading YAML so that every key remembers its line, duplicate keys are refused and ${NAME} is filled in."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path as FilePath
from typing import Any

import yaml

from proxy.config.errors import ConfigError, Path, Problem, join

__all__ = ["Source", "read_file", "read_text"]

_MOST_VALUES = 100_000
"""Ten aliases of ten aliases, ten deep, would be read for years."""
_REFERENCE = re.compile(r"\$(?:\$|\{(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::-(?P<default>[^}]*))?\})")


@dataclass(slots=True)
class Source:
    """Plain data, and where each part of it was written."""

    data: dict[str, Any] = field(default_factory=dict)
    origins: dict[Path, str] = field(default_factory=dict)
    """Path to `file:line`, environment variable or flag."""

    def origin(self, path: Path) -> str:
        """Return where `path`, or the nearest thing around it, was written."""
        for size in range(len(path), -1, -1):
            if path[:size] in self.origins:
                return self.origins[path[:size]]
        return ""

    def set(self, path: Path, value: Any, origin: str) -> None:
        """Put `value` at `path`, making mappings and list entries on the way. Raises ValueError when it cannot."""
        here: Any = self.data
        for part, following in pairwise(path):
            here = _step(here, part, [] if isinstance(following, int) else {})
        _step(here, path[-1], value, replace=True)
        for known in [known for known in self.origins if known[: len(path)] == path]:
            del self.origins[known]
        self.origins[path] = origin


def _step(here: Any, part: str | int, fresh: Any, *, replace: bool = False) -> Any:
    """Enter `here[part]`, putting `fresh` there when nothing is (or anyway, to replace)."""
    if isinstance(part, int):
        if not isinstance(here, list) or part > len(here):
            raise ValueError(f"there is no entry {part} to set")
        if part == len(here):
            here.append(fresh)
        elif replace:
            here[part] = fresh
        return here[part]
    if not isinstance(here, dict):
        raise ValueError(f"{part} has no mapping to go into")
    if replace or here.get(part) is None:
        here[part] = fresh
    return here[part]


def read_file(path: FilePath, environ: Mapping[str, str]) -> Source:
    """Read a YAML file. Raises ConfigError when it cannot be read or is not a mapping."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError([Problem(str(path), "", "no such file")]) from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise ConfigError([Problem(str(path), "", f"cannot be read: {reason}")]) from None
    return read_text(text, str(path), environ)


def read_text(text: str, name: str, environ: Mapping[str, str]) -> Source:
    """Read YAML from `text`; `name` stands for the file in messages. Raises ConfigError."""
    loader: yaml.SafeLoader | None = None
    try:
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        if node is None:
            return Source({}, {(): name})
        if _expanded(node, {}) > _MOST_VALUES:
            raise ConfigError([Problem(name, "", f"has more than {_MOST_VALUES} values, aliases counted where used")])
        reader = _Reader(loader, name, environ)
        data = reader.read(node, ())
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{name}:{mark.line + 1}:{mark.column + 1}" if mark else name
        raise ConfigError([Problem(where, "", f"not valid YAML: {error.problem or error.context}")]) from None
    except yaml.YAMLError as error:
        raise ConfigError([Problem(name, "", f"not valid YAML: {' '.join(str(error).split())}")]) from None
    except RecursionError:
        raise ConfigError([Problem(name, "", "is nested too deep")]) from None
    finally:
        if loader is not None:
            loader.dispose()
    if not isinstance(data, dict):
        reader.problems.append(Problem(f"{name}:1", "", "must be a mapping of keys to values"))
    if reader.problems:
        raise ConfigError(reader.problems)
    return Source(data, reader.origins)


def _expanded(node: yaml.Node, known: dict[int, int]) -> int:
    """Return how many values `node` stands for, each alias counted as what it repeats. Raises RecursionError."""
    if id(node) not in known:
        known[id(node)] = 1  # an alias within itself is refused by the reader
        parts = node.value if isinstance(node, yaml.SequenceNode) else ()
        if isinstance(node, yaml.MappingNode):
            parts = [part for pair in node.value for part in pair]
        known[id(node)] = 1 + sum(_expanded(part, known) for part in parts)
    return known[id(node)]


class _Reader:
    """Turns a tree of YAML nodes into data."""

    def __init__(self, loader: yaml.SafeLoader, name: str, environ: Mapping[str, str]) -> None:
        self.origins: dict[Path, str] = {(): name}
        self.problems: list[Problem] = []
        self._loader = loader
        self._name = name
        self._environ = environ
        self._open: set[int] = set()

    def read(self, node: yaml.Node, path: Path) -> Any:
        """Return the data of `node`, which stands at `path`."""
        self.origins.setdefault(path, self._at(node))
        if id(node) in self._open:
            raise yaml.constructor.ConstructorError(None, None, "an alias must not contain itself", node.start_mark)
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path)
            if isinstance(node, yaml.SequenceNode):
                return [self.read(item, (*path, index)) for index, item in enumerate(node.value)]
            value = self._loader.construct_object(node)
            return self._fill(value, node, path) if isinstance(value, str) else value
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, Any]:
        own = [id(key) for key, _ in node.value]
        self._loader.flatten_mapping(node)  # resolves `<<`; merged keys come first, so own ones win
        data: dict[str, Any] = {}
        first: dict[str, str] = {}
        for key_node, value_node in node.value:
            key = str(self._loader.construct_object(key_node, deep=True))
            here, at = (*path, key), self._at(key_node)
            if id(key_node) in own:
                if key in first:
                    self.problems.append(Problem(at, join(here), f"is given twice, first at {first[key]}"))
                first[key] = at
            self.origins[here] = at
            data[key] = self.read(value_node, here)
        return data

    def _fill(self, text: str, node: yaml.Node, path: Path) -> str:
        """Replace ${NAME} and ${NAME:-default} by the environment's value, and $$ by $."""

        def value_of(match: re.Match[str]) -> str:
            name, default = match["name"], match["default"]
            if name is None:
                return "$"
            if name in self._environ:
                return self._environ[name]
            if default is None:
                self.problems.append(
                    Problem(
                        self._at(node),
                        join(path),
                        f"environment variable {name} is not set; set it, or write ${{{name}:-default}}",
                    )
                )
            return default or ""

        return _REFERENCE.sub(value_of, text)

    def _at(self, node: yaml.Node) -> str:
        return f"{self._name}:{node.start_mark.line + 1}"
