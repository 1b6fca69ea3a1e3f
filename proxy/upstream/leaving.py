"""Upstreams that an operator takes out: nothing new goes there, and somebody is told once they are empty."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from controller.base import Controller
from controller.decision import Decision
from proxy.upstream.endpoint import Endpoint

__all__ = ["Leaving", "UnknownUpstream", "note_drain"]


class UnknownUpstream(ValueError):
    """The pool has no upstream of that URL; the text names those that it has."""

    def __init__(self, url: str, known: Iterable[str]) -> None:
        super().__init__(f"there is no upstream {url[:200]!r}; upstreams are {', '.join(known)}")


def note_drain(controller: Controller, upstream: str, before: bool, out: bool, now: float, actor: str) -> Decision:
    """Keep the decision to take an upstream out, or back in, among those about its pool."""
    return controller.note(
        now,
        actor,
        "admin.drain",
        {"upstream": upstream, "draining": before},
        {"upstream": upstream, "draining": out},
        f"{actor} took {upstream} {'out' if out else 'back in'}.",
    )


class Leaving:
    """Takes endpoints out and back in. `on_empty` is called once for each that has finished what it had."""

    __slots__ = ("_endpoints", "_on_empty", "_waited_for")

    def __init__(self, endpoints: Sequence[Endpoint], on_empty: Callable[[Endpoint, int], None]) -> None:
        self._endpoints = tuple(endpoints)
        self._on_empty = on_empty
        self._waited_for: dict[Endpoint, int] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The URLs of those that are out, or on their way."""
        return tuple(endpoint.name for endpoint in self._endpoints if endpoint.draining)

    def find(self, url: str) -> Endpoint:
        """Return the endpoint of `url`, with or without a slash at its end. Raises UnknownUpstream."""
        wanted = url.rstrip("/")
        for endpoint in self._endpoints:
            if endpoint.name == wanted:
                return endpoint
        raise UnknownUpstream(url, (endpoint.name for endpoint in self._endpoints))

    def set(self, endpoint: Endpoint, out: bool, number: int) -> None:
        """Take `endpoint` out or back in; `number` goes to `on_empty`."""
        if endpoint.draining and not out:
            endpoint.ease_in()
        endpoint.draining = out
        self._waited_for.pop(endpoint, None)
        if out:
            self._waited_for[endpoint] = number
        self.look()

    def keep_out(self, urls: Iterable[str]) -> None:
        """Take out exactly these, as somebody else has decided."""
        wanted = frozenset(urls)
        for endpoint in self._endpoints:
            if endpoint.draining and endpoint.name not in wanted:
                endpoint.ease_in()
            endpoint.draining = endpoint.name in wanted

    def look(self) -> None:
        """Tell of those that are empty by now."""
        for endpoint in [endpoint for endpoint in self._waited_for if not endpoint.inflight]:
            self._on_empty(endpoint, self._waited_for.pop(endpoint))
