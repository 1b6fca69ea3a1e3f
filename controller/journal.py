"""Everything a controller was told, and what it answered, written down.

A controller reads no clock and does no I/O, so the same calls give the same answers, on any machine. A journal of a
live pool is therefore a complete account of why it did what it did (`controller.replay`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

from controller.decision import Decision
from controller.load import Load
from controller.observation import Observation, Result
from controller.setpoints import Bounds, Setpoints
from controller.slo import SLO
from controller.tune.experiment import Arm
from controller.verdict import Choice, Verdict
from policies.base import Job

__all__ = ["Journal", "comparable", "decode", "encode"]

_TYPES: Mapping[str, type] = {
    kind.__name__: kind for kind in (Arm, Bounds, Choice, Job, Load, Observation, Setpoints, SLO, Verdict)
}
_NAMES: Mapping[str, tuple[str, ...]] = {
    name: tuple(f.name for f in fields(kind)) if is_dataclass(kind) else () for name, kind in _TYPES.items()
}
_ANONYMOUS = {"Job": {"id": ""}}
"""What no decision depends on and a file should not carry."""


def _name(kind: type) -> str | None:
    """Return which of ours `kind` is, or is built on."""
    return next((base.__name__ for base in kind.__mro__ if _TYPES.get(base.__name__) is base), None)


def encode(value: Any) -> Any:
    """Return `value` JSON-ready: what is one of ours becomes {"$": its type, "v": its fields}."""
    name = _name(type(value))
    if name is not None:
        names, hidden = _NAMES[name], _ANONYMOUS.get(name, {})
        own = [hidden.get(key, getattr(value, key)) for key in names] if names else list(value)
        return {"$": name, "v": [encode(part) for part in own]}
    if isinstance(value, Mapping):
        return {key: encode(part) for key, part in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [encode(part) for part in value]
    return value


def decode(value: Any) -> Any:
    """Return what `encode` was given; sequences come back as tuples."""
    if isinstance(value, dict):
        if "$" not in value:
            return {key: decode(part) for key, part in value.items()}
        kind, parts = _TYPES[value["$"]], [decode(part) for part in value["v"]]
        if kind is Observation:
            parts[_NAMES["Observation"].index("result")] = Result(parts[_NAMES["Observation"].index("result")])
        return kind(*parts)
    return tuple(decode(part) for part in value) if isinstance(value, list) else value


def comparable(result: Any) -> Any:
    """Return what a replay must give again; the wall clock and what came of a decision later are left out."""
    if isinstance(result, Decision):
        shown = result.as_dict()
        return encode({key: shown[key] for key in ("id", "at", "rule", "law", "actor", "seen", "old", "new", "text")})
    return encode(result)


class Journal:
    """Writes down what one pool's controller was told and what it answered, one JSON line a call, through `write`."""

    def __init__(self, pool: str, write: Callable[[str], object]) -> None:
        self._pool = pool
        self._write = write

    def begun(self, **settings: Any) -> None:
        """Write down what the controller was made with."""
        self._line({"pool": self._pool, "call": "begin", "args": encode(settings)})

    def wrote(self, call: str, args: tuple[Any, ...], answer: Any, /, **named: Any) -> None:
        """Write down one call, with its keyword arguments `named`; an answer of None is left out."""
        line = {"pool": self._pool, "call": call, "args": encode(args)}
        if named:
            line["named"] = named
        if answer is not None:
            line["answer"] = comparable(answer)
        self._line(line)

    def _line(self, entry: Mapping[str, Any]) -> None:
        self._write(json.dumps(entry, separators=(",", ":")) + "\n")
