"""Requests that are not over, and what turns each of their sequences into what its caller reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from backend.engine.blocks import IntegrityError
from backend.engine.choice import Choice
from backend.engine.detokenizer import Decoder
from backend.engine.held import MakeGrammar
from backend.engine.sequence import Sequence

__all__ = ["OpenRequest", "OpenRequests"]


@dataclass(slots=True)
class OpenRequest:
    """One request from when it may be scheduled to the end of its last choice."""

    first: Sequence
    make_grammar: MakeGrammar | None = None
    sequences: set[Sequence] = field(default_factory=set)
    """Those that are not over; one stands for all choices that have not started."""
    completion_tokens: int = 0


class OpenRequests:
    """Those requests by id, in the order in which they were opened, and the `Choice` of each sequence."""

    def __init__(self, decoder: Decoder, vocab_size: int) -> None:
        """`vocab_size` is the width of a row of logits."""
        self._decoder = decoder
        self._vocab_size = vocab_size
        self._open: dict[str, OpenRequest] = {}
        self._choices: dict[Sequence, Choice] = {}

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._open

    def __iter__(self) -> Iterator[str]:
        return iter(self._open)

    @property
    def sequences(self) -> set[Sequence]:
        """All that are not over."""
        return set(self._choices)

    def of(self, sequence: Sequence) -> OpenRequest:
        """Return the request that a sequence belongs to."""
        return self._open[sequence.request.id]

    def choice(self, sequence: Sequence) -> Choice:
        """Return what turns the tokens of a sequence into text."""
        return self._choices[sequence]

    def sequences_of(self, request_id: str) -> list[Sequence]:
        """Return the sequences of a request that are not over, by index; none where it is not open."""
        opened = self._open.get(request_id)
        return sorted(opened.sequences, key=lambda sequence: sequence.index) if opened is not None else []

    def enter(self, sequence: Sequence, seed: int, make_grammar: MakeGrammar | None) -> None:
        """Open a request whose choices `sequence` stands for; `make_grammar` makes what constrains each of them."""
        opened = self._open[sequence.request.id] = OpenRequest(sequence, make_grammar, {sequence})
        self._choices[sequence] = self._make_choice(opened, sequence, seed)

    def fork(self, family: list[Sequence]) -> None:
        """Take in the sequences that the first of `family` was split into. Each choice has a seed of its own."""
        first, *children = family
        opened, seed = self.of(first), self._choices[first].sampling.seed
        for child in children:
            opened.sequences.add(child)
            self._choices[child] = self._make_choice(opened, child, seed + child.index - first.index)

    def leave(self, sequence: Sequence) -> OpenRequest:
        """Forget a sequence, and its request with the last one; returns the request."""
        opened = self.of(sequence)
        del self._choices[sequence]
        opened.sequences.remove(sequence)
        if not opened.sequences:
            del self._open[sequence.request.id]
        return opened

    def check_integrity(self) -> None:
        """Raise IntegrityError unless every request has sequences, and exactly those have choices."""
        sequences = [sequence for opened in self._open.values() for sequence in opened.sequences]
        if not all(opened.sequences for opened in self._open.values()):
            raise IntegrityError("a request is open and all its choices are over")
        if len(sequences) != len(self._choices) or set(sequences) != self._choices.keys():
            raise IntegrityError("the open requests and the choices disagree about which sequences there are")

    def _make_choice(self, opened: OpenRequest, sequence: Sequence, seed: int) -> Choice:
        grammar = opened.make_grammar() if opened.make_grammar is not None else None
        return Choice(sequence, self._decoder, seed=seed, grammar=grammar, vocab_size=self._vocab_size)
