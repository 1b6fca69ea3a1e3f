"""The models of all pools in one list: each pool's own, as far as it serves them, and the names they go by here."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

import orjson

__all__ = ["Listing", "is_listing", "merged_listing"]

_MEMBERS: Final = {"/models": ("data", "id"), "/api/tags": ("models", "name")}
"""Where lists stand, which member holds them, and which member of an entry is the model's name."""
_GLOB: Final = frozenset("*?[")


class Listing:
    """One pool's part: what its upstream said, None where it said nothing, and which models go there."""

    __slots__ = ("body", "globs")

    def __init__(self, body: bytes | None, globs: Sequence[str]) -> None:
        self.body = body
        self.globs = globs


def is_listing(path: str) -> bool:
    """Tell whether a GET of `path` asks for the list of models."""
    return any(path.endswith(end) for end in _MEMBERS)


def merged_listing(path: str, listings: Sequence[Listing]) -> bytes:
    """Return one list of what can be asked for, in the order of the pools; who is down has a part without entries.

    A model of an upstream is listed where requests for it reach that upstream: under its own name if the pool's globs
    take that and no earlier pool's do. A name without wildcards among the globs is listed in any case.
    """
    member, key = next(names for end, names in _MEMBERS.items() if path.endswith(end))
    entries: dict[str, Any] = {}
    earlier: list[str] = []
    for listing in listings:
        for entry in _entries(listing.body, member):
            name = entry.get(key)
            if type(name) is str and _takes(listing.globs, name) and not _takes(earlier, name):
                entries.setdefault(name, entry)
        for name in listing.globs:
            if _GLOB.isdisjoint(name) and not _takes(earlier, name):
                entries.setdefault(name, _alias(member, key, name))
        earlier += listing.globs
    whole: dict[str, Any] = {"object": "list"} if member == "data" else {}
    return orjson.dumps({**whole, member: list(entries.values())})


def _alias(member: str, key: str, name: str) -> dict[str, Any]:
    if member == "data":
        return {key: name, "object": "model", "created": 0, "owned_by": "trimtab"}
    return {key: name, "model": name}


def _entries(body: bytes | None, member: str) -> list[dict[str, Any]]:
    try:
        document = None if body is None else orjson.loads(body)
    except orjson.JSONDecodeError:
        return []
    listed = document.get(member) if type(document) is dict else None
    return [entry for entry in listed if type(entry) is dict] if type(listed) is list else []


def _takes(globs: Sequence[str], name: str) -> bool:
    return any(glob == "*" or fnmatchcase(name, glob) for glob in globs)
