"""Whether two answers say the same, as far as one can expect of numbers."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Final

import orjson

__all__ = ["TOLERANCE", "alike", "alike_numbers"]

TOLERANCE: Final = 0.02
"""By how much a number may differ, as a part of the largest in its list. Batches of another size run through other
kernels and are padded to other lengths: in half precision the last bits of a vector differ by about 0.01 of its
largest element, while what depends on its company (a softmax over the batch, a wrong row) is off by much more."""
_FLOOR: Final = 1e-5
"""What differs by less than this is the same."""
_DEPTH: Final = 32


def alike(merged: bytes, alone: bytes, varying: Collection[str]) -> bool:
    """Whether two bodies are equal, or JSON of equal shape whose numbers are close (see TOLERANCE).

    `varying` are members of the outermost object that are different each time: ids, times, counts.
    """
    if merged == alone:
        return True
    try:
        one, other = orjson.loads(merged), orjson.loads(alone)
    except orjson.JSONDecodeError:
        return False
    if type(one) is dict and type(other) is dict:
        one = {name: value for name, value in one.items() if name not in varying}
        other = {name: value for name, value in other.items() if name not in varying}
    return _alike(one, other, 0.0, _DEPTH)


def alike_numbers(one: list[Any], other: list[Any]) -> bool:
    """Whether two lists, of lists or of numbers, are of one shape and close."""
    return _alike(one, other, 0.0, _DEPTH)


def _alike(one: Any, other: Any, scale: float, depth: int) -> bool:
    """Compare two values; `scale` is the largest number of the list that they are in, 0 outside of lists."""
    if _is_number(one) and _is_number(other):
        return bool(abs(one - other) <= max(_FLOOR, TOLERANCE * max(abs(one), abs(other), scale)))
    if type(one) is not type(other) or depth == 0:
        return False
    if type(one) is list:
        if len(one) != len(other):
            return False
        largest = max([abs(value) for value in one if _is_number(value)], default=0.0)
        return all(_alike(a, b, largest, depth - 1) for a, b in zip(one, other, strict=True))
    if type(one) is dict:
        return one.keys() == other.keys() and all(_alike(one[name], other[name], 0.0, depth - 1) for name in one)
    return bool(one == other)


def _is_number(value: Any) -> bool:
    return type(value) is int or type(value) is float
