"""Whether a JSON body may be parsed: what a parser does for it is known by its size, its commas and its brackets."""

from __future__ import annotations

from typing import Final

__all__ = ["PARSED_BYTES", "PARSED_VALUES", "SLIGHT_VALUES", "SURELY_SLIGHT", "is_light", "is_slight"]

SURELY_SLIGHT: Final = 16_384
"""Bytes of a body that is parsed at once whatever is in it."""
SLIGHT_VALUES: Final = 5_461
"""So many commas and brackets a larger body may have to be parsed at once: what the former has at worst."""
PARSED_BYTES: Final = 1_048_576
"""Bytes of the largest body that is parsed."""
PARSED_VALUES: Final = 16_384
"""So many commas and brackets a body may have to be parsed: at worst some 10 ms of work, in a turn of its own."""


def is_slight(body: bytes) -> bool:
    """Tell whether a body may be parsed in the turn of the loop that it came in."""
    size = len(body)
    return size <= SURELY_SLIGHT or (size <= PARSED_BYTES and _tokens_in(body) <= SLIGHT_VALUES)


def is_light(body: bytes) -> bool:
    """Tell whether a body may be parsed."""
    size = len(body)
    return size <= SURELY_SLIGHT or (size <= PARSED_BYTES and _tokens_in(body) <= PARSED_VALUES)


def _tokens_in(body: bytes) -> int:
    return body.count(b",") + body.count(b"[") + body.count(b"{")
