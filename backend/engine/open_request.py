"""A request that is not over, as the engine keeps it."""

from __future__ import annotations

from dataclasses import dataclass, field

from backend.engine.held import MakeGrammar
from backend.engine.request import GenerationRequest
from backend.engine.sequence import Sequence

__all__ = ["OpenRequest"]


@dataclass(slots=True)
class OpenRequest:
    """One request from its acceptance to the end of its last choice."""

    request: GenerationRequest
    first: Sequence
    make_grammar: MakeGrammar | None = None
    sequences: set[Sequence] = field(default_factory=set)
    """Those that are not over; until the prompt is computed, one stands for all."""
    completion_tokens: int = 0
