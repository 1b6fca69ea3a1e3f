"""Which jobs of an ordering go together: as many as fit, from the head, passing over few."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

__all__ = ["Pack", "pack"]

T = TypeVar("T")


class Pack(NamedTuple, Generic[T]):
    """What goes into one batch."""

    taken: list[T]
    """In order; empty only when there were no candidates."""
    items: int
    tokens: float
    full: bool
    """Whether nothing more fits: the item cap is reached, or a candidate had to be left behind."""


def pack(
    candidates: Iterable[T],
    *,
    max_items: int,
    max_tokens: float | None = None,
    items: Callable[[T], int],
    tokens: Callable[[T], float],
    max_skip: int = 0,
) -> Pack[T]:
    """Fill a batch from the head of an order.

    Candidates are taken while they fit both `max_items` and `max_tokens` (None: no token budget). Up to
    `max_skip` candidates that do not fit are passed over for later ones that do; the first one beyond that ends
    the batch, so at most `len(taken) + max_skip + 1` candidates are looked at. The first candidate is always
    taken, alone when it exceeds a limit by itself: an oversize job must never wait for room that cannot come, and
    a head that always goes is why passing over cannot starve anyone.
    """
    taken: list[T] = []
    used_items, used_tokens, skipped = 0, 0.0, 0
    for candidate in candidates:
        count, cost = items(candidate), tokens(candidate)
        fits = used_items + count <= max_items and (max_tokens is None or used_tokens + cost <= max_tokens)
        if not taken or fits:
            taken.append(candidate)
            used_items += count
            used_tokens += cost
            if used_items >= max_items or (max_tokens is not None and used_tokens >= max_tokens):
                return Pack(taken, used_items, used_tokens, True)
        else:
            skipped += 1
            if skipped > max_skip:
                break
    return Pack(taken, used_items, used_tokens, skipped > 0)
