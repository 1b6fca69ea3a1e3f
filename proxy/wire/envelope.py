"""What stands around the results of a merged answer: whose each of its fields is."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, Final
from uuid import UUID, uuid5

from proxy.wire.base import MergeMismatch

__all__ = ["DEPTH", "SERVER_FIELDS", "check_shared", "has_words", "own_id"]

SERVER_FIELDS: Final = frozenset(
    {
        "choices", "created", "data", "id", "model", "object", "results", "service_tier", "system_fingerprint",
        "usage",
    }
)  # fmt: skip
"""Fields of OpenAI's lists, and of those that follow them, that speak of the server or are divided."""

_PLAIN_MEMBERS: Final = frozenset(
    {
        "api_version", "billed_units", "content_type", "input_tokens", "is_deprecated", "is_experimental",
        "output_tokens", "search_units", "tokens", "total_tokens", "version",
    }
)  # fmt: skip
"""Names inside other fields that say nothing about an input."""
DEPTH: Final = 4
"""Words are looked for so deep; what goes on below has them."""
_VERSION: Final = re.compile(r"v?[0-9]+(?:\.[0-9]+)*")


def check_shared(envelope: dict[str, Any], known: Collection[str]) -> None:
    """Raise MergeMismatch when a field that is not `known` holds words.

    Words of a shared answer may be about any of its inputs (a warning that quotes one), and each caller would read
    them. Nobody can tell whose they are, so everybody has to be asked for alone.
    """
    for name, value in envelope.items():
        if name not in known and has_words(value, DEPTH):
            raise MergeMismatch(f"{name[:40]!r} in the answer may speak of one caller's input")


def has_words(value: Any, depth: int) -> bool:
    """Whether there is text in `value` that is more than a version, names of members included."""
    kind = type(value)
    if kind is str:
        return bool(value) and _VERSION.fullmatch(value) is None
    if (kind is list or kind is dict) and value:
        if depth == 0:
            return True
        if kind is list:
            return any(has_words(item, depth - 1) for item in value)
        return any(
            name not in _PLAIN_MEMBERS or (name != "content_type" and has_words(item, depth - 1))
            for name, item in value.items()
        )
    return False


def own_id(minted: Any, position: int) -> Any:
    """Return an id of its own for the part at `position` of an answer that the server called `minted`.

    It is of the kind that the server makes: a UUID where that was one.
    """
    if type(minted) is not str:
        return minted
    try:
        whole = UUID(minted)
    except ValueError:
        return f"{minted}-{position}"
    return str(uuid5(whole, str(position))) if str(whole) == minted.lower() else f"{minted}-{position}"
