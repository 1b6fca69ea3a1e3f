"""The engine's side of constrained output: one matcher per choice, one mask per step."""

from __future__ import annotations

import hashlib
import logging
import os
import queue
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from typing import Final, NamedTuple, Never

import numpy as np
import torch
from llguidance import LLMatcher, LLTokenizer

from backend.engine.held import MakeGrammar

__all__ = ["KEPT_GRAMMARS", "Grammars", "Matcher", "Unenforceable"]

logger = logging.getLogger(__name__)

KEPT_GRAMMARS: Final = 64
"""Compiled grammars kept for the next request with the same one."""
STACK_BYTES: Final = 8 << 20
"""Well above what the checker allows (`checker.STACK_BYTES`): what passes there must not overflow here."""
NICENESS: Final = 5
"""Where steps keep all processors busy, the thread gets about a quarter of one: they go first, and it still moves."""


class Unenforceable(Exception):
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
    """Compiles grammars in a thread of its own, so that no step ever waits for one.

    The library lets other threads run while it compiles. Its own tokenizer, which takes seconds for a large
    vocabulary, is the thread's first work. Whoever asks for a grammar that is known, or under way, shares it. What is
    cancelled before it was begun is not compiled; what was begun cannot be stopped: it is finished, and kept.

    Args:
        tokenizer_json: returns the tokenizer in the format of tokenizer.json.
        vocab_size: width of a row of logits.
        eos_token_ids: what may end a complete text.
    """

    def __init__(self, tokenizer_json: Callable[[], str], vocab_size: int, eos_token_ids: Iterable[int]) -> None:
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._known: OrderedDict[bytes, Future[MakeGrammar]] = OrderedDict()
        ends = sorted(eos_token_ids)
        start = partial(
            _compile_all,
            self._jobs,
            lambda: LLTokenizer(tokenizer_json(), n_vocab=vocab_size, eos_token=ends),
            vocab_size,
        )
        usual = threading.stack_size(STACK_BYTES)
        try:
            # A daemon: an engine that ends does not wait for a grammar.
            threading.Thread(target=start, name="grammar", daemon=True).start()
        finally:
            threading.stack_size(usual)

    def __call__(self, grammar: str) -> Future[MakeGrammar]:
        """Return what will make the matchers of choices, or will fail with Unenforceable."""
        key = hashlib.sha256(grammar.encode()).digest()
        found = self._known.get(key)
        if found is None or found.cancelled():
            found = self._known[key] = Future()
            self._jobs.put(_Job(grammar, found))
            if len(self._known) > KEPT_GRAMMARS:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return found


class _Job(NamedTuple):
    grammar: str
    made: Future[MakeGrammar]


def _compile_all(jobs: queue.SimpleQueue[_Job], make_tokenizer: Callable[[], LLTokenizer], vocab_size: int) -> Never:
    """Work through `jobs` for ever. Steps go first: on Linux, priorities are a thread's own."""
    if sys.platform == "linux":
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
    try:
        tokenizer: LLTokenizer | BaseException = make_tokenizer()
    except BaseException as error:  # a panic of the library is no Exception; only requests with a grammar need it
        tokenizer = error
    while True:
        job = jobs.get()
        if not job.made.set_running_or_notify_cancel():
            continue
        try:
            prototype = _compile(tokenizer, job.grammar)
        except Unenforceable as error:
            job.made.set_exception(error)
        except BaseException as error:
            logger.exception("the grammar library failed")
            job.made.set_exception(Unenforceable(f"the library failed on it ({type(error).__name__})"))
        else:
            job.made.set_result(partial(_matcher, prototype, vocab_size))


def _matcher(prototype: LLMatcher, vocab_size: int) -> Matcher:
    return Matcher(prototype.deep_copy(), vocab_size)


def _compile(tokenizer: LLTokenizer | BaseException, grammar: str) -> LLMatcher:
    if isinstance(tokenizer, BaseException):
        raise Unenforceable(f"the library does not take this model's tokenizer: {tokenizer}")
    found = LLMatcher(tokenizer, grammar, log_level=0)
    if found.is_error():
        raise Unenforceable(" ".join(found.get_error().split()))
    trial = found.deep_copy()
    trial.compute_bitmask()
    if trial.is_error():
        raise Unenforceable("no text satisfies it")
    return found
