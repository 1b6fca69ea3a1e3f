"""The engine's side of constrained output: one matcher per choice, one mask per step."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Final

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer

from backend.engine.errors import RequestRefused
from backend.engine.request import GenerationRequest

__all__ = ["KEPT_GRAMMARS", "Grammars", "Matcher"]

KEPT_GRAMMARS: Final = 64
"""Compiled grammars kept for the next request with the same one."""


class _Unenforceable(Exception):
    """The library refuses a grammar, or all of them."""


class Matcher:
    """Follows one choice through its grammar. Once the grammar is complete only an end token may come."""

    def __init__(self, matcher: LLMatcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size

    def allowed(self) -> torch.Tensor:
        """Return a bool tensor [V] of the tokens that may come next."""
        packed = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        bits = np.unpackbits(packed, count=self._vocab_size, bitorder="little")
        return torch.from_numpy(bits).bool()

    def accept(self, token: int) -> bool:
        """Advance over a sampled token. False when it was not allowed, or when the grammar gave up.

        A matcher that gave up offers the end token and takes it, which would pass off as complete what is not.
        """
        return bool(self._matcher.consume_token(token)) and not self._matcher.is_error()


class Grammars:
    """Makes the matcher of each choice that asks for one.

    The library's own tokenizer takes seconds for a large vocabulary, so it is made in a thread right away: no step
    ever waits for it, except where a grammar is asked for in the first seconds.

    Args:
        tokenizer_json: returns the tokenizer in the format of tokenizer.json.
        vocab_size: width of a row of logits.
        eos_token_ids: what may end a complete text.
    """

    def __init__(self, tokenizer_json: Callable[[], str], vocab_size: int, eos_token_ids: Iterable[int]) -> None:
        self._vocab_size = vocab_size
        ends = sorted(eos_token_ids)
        executor = ThreadPoolExecutor(1, thread_name_prefix="grammar")
        self._tokenizer: Future[LLTokenizer] = executor.submit(
            lambda: LLTokenizer(tokenizer_json(), n_vocab=vocab_size, eos_token=ends)
        )
        executor.shutdown(wait=False)
        self._compiled: OrderedDict[str, LLMatcher] = OrderedDict()

    def __call__(self, request: GenerationRequest) -> Matcher | None:
        """Return what constrains one choice of `request`, or None.

        Raises:
            RequestRefused: the grammar cannot be enforced, naming the field that demands it.
        """
        if request.grammar is None:
            return None
        try:
            return Matcher(self._prototype(request.grammar).deep_copy(), self._vocab_size)
        except _Unenforceable as error:
            name = f"'{request.grammar_param}'" if request.grammar_param else "the grammar"
            raise RequestRefused(f"{name} cannot be enforced: {error}", request.grammar_param) from None

    def _prototype(self, grammar: str) -> LLMatcher:
        """Compile a grammar, or find it among the last ones: choices of one request, and callers, share schemas."""
        found = self._compiled.get(grammar)
        if found is None:
            found = LLMatcher(self._library_tokenizer(), grammar, log_level=0)
            if found.is_error():
                raise _Unenforceable(" ".join(found.get_error().split()))
            trial = found.deep_copy()
            trial.compute_bitmask()
            if trial.is_error():
                raise _Unenforceable("no text satisfies it")
            self._compiled[grammar] = found
            if len(self._compiled) > KEPT_GRAMMARS:
                self._compiled.popitem(last=False)
        self._compiled.move_to_end(grammar)
        return found

    def _library_tokenizer(self) -> LLTokenizer:
        try:
            return self._tokenizer.result()
        except Exception as error:  # whatever made it fail, only requests with a grammar need it
            raise _Unenforceable(f"the library does not take this model's tokenizer: {error}") from error
