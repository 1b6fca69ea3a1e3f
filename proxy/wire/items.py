"""Inputs that come one at a time or as a list, and how to put several requests' inputs into one list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson

from proxy.wire.base import Call, MergeMismatch, Reply
from proxy.wire.prompt import estimate

__all__ = ["Items", "by_index", "merged_body", "pass_on", "read_items", "weights"]


_VOCABULARY: Final = 1 << 31


@dataclass(slots=True, init=False)
class Items:
    """The inputs of one request in list form. Nobody changes one."""

    kind: str
    """`text` or `tokens`; only equal kinds may share a list."""
    values: list[Any]
    listed: bool
    """Whether the caller sent a list of inputs rather than one bare input."""

    def __init__(self, kind: str, values: list[Any], listed: bool) -> None:
        # Written out: compiled, it is many times as quick as the one that dataclasses make.
        self.kind = kind
        self.values = values
        self.listed = listed


def read_items(value: Any) -> Items | None:
    """Read a text, a list of texts, a token array, or a list of token arrays; None for anything else.

    Empty lists, empty texts and mixtures are for the upstream to judge: they are not understood here.
    """
    if type(value) is str:
        return Items("text", [value], False) if value else None
    if type(value) is not list or not value:
        return None
    kinds = set(map(type, value))
    if kinds == {str}:
        return Items("text", value, True) if all(value) else None
    if kinds == {int}:
        return Items("tokens", [value], False) if _are_tokens(value) else None
    if kinds == {list} and all(bool(inner) and _are_tokens(inner) for inner in value):
        return Items("tokens", value, True)
    return None


def _are_tokens(values: list[Any]) -> bool:
    """Whether these are numbers that a vocabulary may have, every one of them."""
    return set(map(type, values)) == {int} and min(values) >= 0 and max(values) < _VOCABULARY


def merged_body(calls: Sequence[Call], field: str, items: Sequence[Sequence[Any]]) -> bytes:
    """Return the first call's fields, in their order, with `field` holding everybody's items."""
    if len(calls) == 1:
        return calls[0].body
    everything = [value for values in items for value in values]
    return orjson.dumps({**calls[0].payload, field: everything})


def by_index(results: Any, count: int) -> list[dict[str, Any]]:
    """Put `results` in the order of their `index`. Raises MergeMismatch unless each of 0..count-1 is there once."""
    if type(results) is not list:
        raise MergeMismatch("the answer holds no list of results")
    if len(results) != count:
        raise MergeMismatch(f"{count} items were sent, {len(results)} results came back")
    ordered: list[dict[str, Any] | None] = [None] * count
    for result in results:
        index = result.get("index") if type(result) is dict else None
        if type(index) is not int or not 0 <= index < count:
            raise MergeMismatch(f"a result has index {index!r}, expected one of 0..{count - 1}")
        if ordered[index] is not None:
            raise MergeMismatch(f"two results have index {index}")
        ordered[index] = result
    return [result for result in ordered if result is not None]


def pass_on(calls: Sequence[Call], status: int, body: bytes, headers: Sequence[tuple[bytes, bytes]]) -> list[Reply]:
    """Return the whole answer for every call: what was not merged, or went wrong for all alike."""
    content_type = "application/json"
    for name, value in headers:
        if name.lower() == b"content-type":
            content_type = value.decode("latin-1")
    return [Reply(status, body, content_type)] * len(calls)


def weights(items: Sequence[Sequence[Any]]) -> list[int]:
    """Return each call's share of the work: the estimated tokens of its items."""
    return [sum(map(estimate, values)) for values in items]
