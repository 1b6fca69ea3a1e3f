"""What turns one sequence's sampled tokens into what its caller reads."""

from __future__ import annotations

from dataclasses import dataclass

from backend.engine.detokenizer import Decoder, Detokenizer
from backend.engine.request import Delta, FinishReason, TokenLogprob, Usage
from backend.engine.sampler import Grammar, SamplingState
from backend.engine.sequence import Sequence

__all__ = ["Choice", "Output"]

CONTEXT_TOKENS = 6
"""Prompt tokens that decide about spaces at the start of the output."""


class Choice:
    """One choice of one request: its sampling state and its text. Both survive preemption."""

    __slots__ = ("_include_stop", "_text", "sampling", "sequence", "stops_on_text")

    def __init__(
        self, sequence: Sequence, decoder: Decoder, *, seed: int, grammar: Grammar | None, vocab_size: int
    ) -> None:
        request, params = sequence.request, sequence.request.params
        ends = [token for token in sequence.eos_token_ids | sequence.stop_token_ids if 0 <= token < vocab_size]
        self.sequence = sequence
        self.sampling = SamplingState(params, request.prompt_token_ids, seed, ends, grammar)
        self.stops_on_text = bool(params.stop)
        """Whether its text decides when it ends."""
        self._include_stop = params.include_stop
        self._text = Detokenizer(
            decoder,
            stop=params.stop,
            include_stop=params.include_stop,
            skip_special_tokens=params.skip_special_tokens,
            min_tokens=params.min_tokens,
            context=request.prompt_token_ids[-CONTEXT_TOKENS:],
        )

    def read(self, token: int, reason: FinishReason | None) -> tuple[str, str | None]:
        """Return the text that `token` completes, and the stop string that this text ends with, if it does.

        `reason` is why the token ends the choice, if it does. A token that ends it by being a stop token has no
        text of its own unless stops are to be included.
        """
        text, matched = "", None
        if reason is not FinishReason.STOP or self._include_stop:
            text, matched = self._text.put(token)
        if reason is not None and matched is None:
            tail, matched = self._text.finish()
            text += tail
        return text, matched


@dataclass(slots=True)
class Output:
    """What one step gave one choice. Its text is made only when it is read, unless it was needed before."""

    choice: Choice
    token: int
    logprob: TokenLogprob | None
    reason: FinishReason | None
    stop: str | int | None
    text: str | None = None
    usage: Usage | None = None

    def delta(self) -> Delta:
        """Return what the caller gets. Outputs of one choice are read once each, in order."""
        text = self.text
        if text is None:
            text, _ = self.choice.read(self.token, self.reason)
        sequence = self.choice.sequence
        return Delta(
            sequence.request.id,
            sequence.index,
            text,
            (self.token,),
            () if self.logprob is None else (self.logprob,),
            self.reason,
            self.stop,
            self.usage,
        )
