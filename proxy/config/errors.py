"""Configuration errors in words: where, what was found, and what would be right."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from pydantic import SecretStr, ValidationError

from proxy.config.base import nearest
from proxy.config.describe import accepted, find, plain_type
from proxy.config.model import Config

__all__ = ["ConfigError", "Path", "Problem", "join", "problems_of"]

Path = tuple[str | int, ...]
"""Keys and indexes from the top of the configuration."""


class Problem(NamedTuple):
    """One thing that is wrong."""

    origin: str
    """File and line, environment variable or flag; "" when unknown."""
    path: str
    """The key, dotted; "" for the whole."""
    message: str

    def __str__(self) -> str:
        return ": ".join(part for part in self if part)


class ConfigError(Exception):
    """The configuration cannot be used. Its text has one line for each problem."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("\n".join(str(problem) for problem in self.problems))


def join(path: Path) -> str:
    """Return `path` as it would be written: `pools[0].slo.ttft_ms`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def problems_of(
    error: ValidationError, locate: Callable[[Path], tuple[str, Path]], root: Any = Config
) -> list[Problem]:
    """Word every error pydantic found. `locate` maps a path to its origin and to the path as it was written."""
    entries = [entry for entry in error.errors(include_url=False) if entry["type"] != "default_factory_not_called"]
    paths = [tuple(entry["loc"]) for entry in entries]
    problems = []
    for entry, path in zip(entries, paths, strict=True):
        inner = any(len(other) > len(path) and other[: len(path)] == path for other in paths)
        if inner and entry["type"] == "too_short":
            continue  # an item failed, and pydantic counts what is left
        origin, shown = locate(path)
        problems.append(Problem(origin, join(shown), _word(entry, path, root)))
    return sorted(problems, key=_reading_order)


def _reading_order(problem: Problem) -> tuple[str, int]:
    """Sort by file, then by line."""
    name, _, line = problem.origin.rpartition(":")
    return (name, int(line)) if line.isdecimal() else (problem.origin, 0)


def _word(entry: Any, path: Path, root: Any) -> str:
    """Say what was found and what would be right."""
    kind, got = entry["type"], entry.get("input")
    if kind == "extra_forbidden":
        return _unknown(path, root)
    key = find(path, root)
    if kind == "missing":
        described = key.field.description if key and key.field else ""
        return "is required" + (f": {described}" if described else "")
    if kind in ("value_error", "assertion_error"):
        return str(entry["ctx"]["error"])
    if key is None:
        return str(entry["msg"])
    secret = plain_type(key.type) is SecretStr
    if kind in ("too_short", "too_long") and not secret:
        return f"has {entry['ctx']['actual_length']} entries; {_count(entry)}"
    shown = "a value" if secret else _show(got)
    return f"got {shown}; accepted: {accepted(key)}"


def _count(entry: Any) -> str:
    context = entry["ctx"]
    return f"at least {context['min_length']}" if "min_length" in context else f"at most {context['max_length']}"


def _unknown(path: Path, root: Any) -> str:
    owner = find(path[:-1], root)
    fields = getattr(plain_type(owner.type), "model_fields", {}) if owner else {}
    guess = nearest(str(path[-1]), fields)
    known = f"known keys: {', '.join(fields)}"
    return f"unknown key; did you mean {guess}?" if guess else f"unknown key; {known}"


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if value is None:
        return "nothing"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "a list"
    if isinstance(value, dict):
        return "a mapping"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
