"""A slot on an upstream, owned by one request or batch and given back exactly once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from proxy.upstream.endpoint import Endpoint

__all__ = ["Lease", "LeaseBook"]


class Lease:
    """Counts one call against its endpoint, and against whoever granted the slot.

    Whoever holds it releases it in a `finally`; releasing twice is harmless.
    """

    __slots__ = ("_book", "_on_release", "_trial", "endpoint", "held", "work")

    def __init__(
        self, book: LeaseBook, endpoint: Endpoint, work: float, on_release: Callable[[Lease], Any] | None
    ) -> None:
        self._book = book
        self._on_release = on_release
        self.work = work
        """Predicted work in tokens."""
        self.held = True
        self.endpoint = endpoint
        self._trial = endpoint.entered(work)
        book.held += 1

    def move(self, endpoint: Endpoint) -> None:
        """Go on at another endpoint, for a retry; the slot stays the same."""
        if self.held:
            self.endpoint.left(self.work, self._trial)
            self.endpoint = endpoint
            self._trial = endpoint.entered(self.work)

    def release(self) -> None:
        """Give the slot back."""
        if self.held:
            self.held = False
            self.endpoint.left(self.work, self._trial)
            self._book.held -= 1
            if self._on_release is not None:
                self._on_release(self)


class LeaseBook:
    """How many leases of a pool are out."""

    __slots__ = ("held",)

    def __init__(self) -> None:
        self.held = 0

    def grant(self, endpoint: Endpoint, work: float = 0.0, on_release: Callable[[Lease], Any] | None = None) -> Lease:
        """Lease a slot at `endpoint`; `on_release` is called with it once it is given back."""
        return Lease(self, endpoint, work, on_release)
