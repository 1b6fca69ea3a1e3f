"""Requests that are accepted and cannot be scheduled yet: what constrains their text is still being made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import NamedTuple

from backend.engine.sampler import Grammar
from backend.engine.sequence import Sequence

__all__ = ["GrammarFactory", "Held", "HeldRequests", "MakeGrammar"]

MakeGrammar = Callable[[], Grammar]
"""Makes what constrains one choice, at once; every choice of a request gets its own."""

GrammarFactory = Callable[[str], "Future[MakeGrammar]"]
"""Begins to compile a grammar elsewhere and returns at once. What the future fails with says why in one line.

Those who ask for one grammar may get one future. Where nobody waits for it any more it is cancelled, and not returned
again; only what has not begun can be.
"""


class Held(NamedTuple):
    """One such request. Its arrival and its seed were settled when it came: how long it is held changes neither."""

    sequence: Sequence
    seed: int
    grammar: Future[MakeGrammar]


class HeldRequests:
    """Those requests, in the order of their arrival."""

    def __init__(self) -> None:
        self._held: dict[str, Held] = {}
        self._waiting: Counter[Future[MakeGrammar]] = Counter()
        """How many of them wait for each."""

    def __len__(self) -> int:
        return len(self._held)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._held

    def __iter__(self) -> Iterator[str]:
        return iter(self._held)

    @property
    def any_ready(self) -> bool:
        """Whether one of them need not be held any longer, its grammar compiled or failed."""
        return any(held.grammar.done() for held in self._held.values())

    def hold(self, held: Held, ready: Callable[[], None] | None) -> None:
        """Keep a request; `ready` is called when its grammar is compiled or failed, in the thread that did it.

        Where nobody waits for that any more, it may be called by whoever was the last to give up.
        """
        self._held[held.sequence.request.id] = held
        self._waiting[held.grammar] += 1
        if ready is not None:
            held.grammar.add_done_callback(lambda _: ready())

    def ready(self) -> list[Held]:
        """Return those that need not be held any longer. They are kept until they are taken."""
        return [held for held in self._held.values() if held.grammar.done()]

    def take(self, request_id: str) -> Held | None:
        """Give up one of them; None when it is not held. A grammar that only it waited for need not be compiled."""
        held = self._held.pop(request_id, None)
        if held is not None:
            self._waiting[held.grammar] -= 1
            if not self._waiting[held.grammar]:
                del self._waiting[held.grammar]
                held.grammar.cancel()  # in vain where it is compiled, or being compiled
        return held
