"""Which parts of a grammar have an end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

__all__ = ["Productions"]

S = TypeVar("S", bound=Hashable)


class Productions(Generic[S]):
    """The symbols of a context-free grammar and what each asks for; what always has an end need not be named."""

    def __init__(self) -> None:
        self._alternatives: dict[S, list[frozenset[S]]] = {}
        self._mentions: defaultdict[S, list[S]] = defaultdict(list)

    def __contains__(self, symbol: S) -> bool:
        return symbol in self._alternatives

    def define(self, symbol: S, alternatives: Iterable[Iterable[S]]) -> None:
        """Say that `symbol` is complete once all symbols of one alternative are."""
        self._alternatives[symbol] = [frozenset(alternative) for alternative in alternatives]

    def mention(self, symbol: S, others: Iterable[S]) -> None:
        """Say that `others` may be entered from `symbol` and need not be."""
        self._mentions[symbol].extend(others)

    def endless(self, start: S) -> S | None:
        """Return the first symbol, in the order of discovery from `start`, that can be entered and never completed.

        A symbol without a definition has an end. The ones that have (the productive ones: Hopcroft and Ullman 1979,
        lemma 4.1) are the least fixed point of "all symbols of one alternative have"; it is found in time linear in
        the size of the grammar.
        """
        missing = [(symbol, set(needed)) for symbol, options in self._alternatives.items() for needed in options]
        waiting: defaultdict[S, list[int]] = defaultdict(list)
        ready: list[S] = []
        for number, (symbol, needed) in enumerate(missing):
            needed.intersection_update(self._alternatives)
            for other in needed:
                waiting[other].append(number)
            if not needed:
                ready.append(symbol)
        done: set[S] = set()
        while ready:
            symbol = ready.pop()
            if symbol in done:
                continue
            done.add(symbol)
            for number in waiting[symbol]:
                head, needed = missing[number]
                needed.discard(symbol)
                if not needed:
                    ready.append(head)
        return next((symbol for symbol in self._reachable(start) if symbol not in done), None)

    def _reachable(self, start: S) -> dict[S, None]:
        found: dict[S, None] = {start: None}
        level = [start]
        while level:
            following: dict[S, None] = {}
            for symbol in level:
                for needed in self._alternatives[symbol]:
                    following.update(dict.fromkeys(needed))
                following.update(dict.fromkeys(self._mentions[symbol]))
            level = [symbol for symbol in following if symbol in self._alternatives and symbol not in found]
            found.update(dict.fromkeys(level))
        return found
