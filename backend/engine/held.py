"""Requests that are accepted and cannot be scheduled yet: what constrains their text is still being made."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple

from backend.engine.sampler import Grammar
from backend.engine.sequence import Sequence

__all__ = ["GrammarFactory", "Held", "MakeGrammar"]

MakeGrammar = Callable[[], Grammar]
"""Makes what constrains one choice, at once; every choice of a request gets its own."""

GrammarFactory = Callable[[str], "Future[MakeGrammar]"]
"""Begins to compile a grammar elsewhere and returns at once. What the future fails with says why in one line."""


class Held(NamedTuple):
    """One such request. Its arrival and its seed were settled when it came: how long it is held changes neither."""

    sequence: Sequence
    seed: int
    grammar: Future[MakeGrammar]
