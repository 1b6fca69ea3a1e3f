"""What the handlers share: the engine, the model being served, the limits, and how a request gets its identity."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from backend.api.errors import InvalidRequest, ModelNotFound, Unavailable
from backend.api.fields import wrong_type
from backend.api.intake import BodyLimits, Intake
from backend.api.metrics import Metrics
from backend.engine.request import Delta, GenerationRequest
from backend.engine.stats import EngineStats

__all__ = ["Engine", "Limits", "Pooling", "ServedModel", "Service", "TextTokenizer", "new_id"]

Pooling = Literal["mean", "last"]

COUNTED_CONTEXTS: Final = 8
"""Texts that are only counted may be longer than the context: up to so many times, as far as is known at once."""


class Engine(Protocol):
    """The part of EngineClient that the API needs."""

    @property
    def healthy(self) -> bool:
        """False once the engine is gone or stuck."""
        ...

    def generate(self, request: GenerationRequest) -> AsyncIterator[Delta]:
        """Run a request; closing the iterator aborts it. Always ends."""
        ...

    async def stats(self) -> EngineStats:
        """Return the engine's counters."""
        ...

    async def embed(self, token_ids: list[list[int]], pooling: Pooling) -> list[list[float]]:
        """Return one pooled vector per input."""
        ...


class TextTokenizer(Protocol):
    """The part of backend.tokenizer.Tokenizer that the API needs."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Text to token ids."""
        ...

    def least_tokens(self, text: str) -> int:
        """Return, at once, a number such that the text has at least so many tokens."""
        ...

    def decode(self, ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Token ids to text."""
        ...

    def token_bytes(self, token_id: int) -> bytes | None:
        """Return the bytes that one token stands for; None where the vocabulary cannot say."""
        ...

    def id_to_token(self, token_id: int) -> str | None:
        """Return how the vocabulary spells a token."""
        ...

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids that `skip_special_tokens` leaves out."""
        ...

    @property
    def chat_template(self) -> str | None:
        """The model's Jinja chat template."""
        ...

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """Render messages to a prompt."""
        ...


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What is known of the model behind this server."""

    names: tuple[str, ...]
    """The names it answers to; the first one is listed."""
    tokenizer: TextTokenizer
    vocab_size: int
    max_model_len: int
    """Tokens of prompt and output together; the prompt may have at most one less."""
    created: int
    """Unix seconds."""
    sampling_defaults: Mapping[str, float] = field(default_factory=dict)
    tool_format: str | None = None
    """How the model writes tool calls (backend.api.tools); None where its template knows no tools."""
    pooling: Pooling = "mean"


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what one request, or all of them, may ask for."""

    max_n: int = 128
    max_prompts: int = 2048
    max_sequences: int = 2048
    """Sequences accepted and not yet finished, over all requests; beyond it requests get a 503."""
    write_stall_s: float = 60.0
    """A client that takes no bytes for this long is given up."""
    bodies: BodyLimits = field(default_factory=BodyLimits)


class Service:
    """One engine, one model. The count of sequences in flight is its only state."""

    def __init__(
        self,
        engine: Engine,
        model: ServedModel,
        *,
        limits: Limits,
        metrics: Metrics,
        executor: Executor,
        large: Executor,
        check_grammar: Callable[[str], Awaitable[None]],
        clock: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        """Serve `engine`. What is in large bodies is worked on by `large`, in all but the smallest by `executor`.

        `check_grammar` raises GrammarError for what cannot be enforced; it may take seconds.
        """
        self.engine = engine
        self.model = model
        self.limits = limits
        self.metrics = metrics
        self.clock = clock
        self.wall = wall
        self.check_grammar = check_grammar
        self.sequences = 0
        self.intake = Intake(limits.bodies, executor, large)

    def check_model(self, body: Mapping[str, Any]) -> str:
        """Return the name under which the caller asked for the model; none means the one served.

        Raises:
            InvalidRequest: `model` is not a string.
            ModelNotFound: it is another model.
        """
        name = body.get("model")
        if name is None:
            return self.model.names[0]
        if not isinstance(name, str):
            raise wrong_type("model", "a string", name)
        if name not in self.model.names:
            served = ", ".join(map(repr, self.model.names))
            raise ModelNotFound(f"The model {name[:128]!r} does not exist here; served: {served}.", param="model")
        return name

    def encode(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[list[int]]:
        """Tokenise. Part of a draft: it may be much."""
        return [self.model.tokenizer.encode(text, add_special_tokens) for text in texts]

    def check_countable(self, text: str, param: str) -> None:
        """Refuse a text that has more than COUNTED_CONTEXTS times the context's tokens whatever they are.

        Raises:
            InvalidRequest: with both numbers.
        """
        most, least = COUNTED_CONTEXTS * self.model.max_model_len, self.model.tokenizer.least_tokens(text)
        if least > most:
            raise InvalidRequest(
                f"Texts of up to {most} tokens are counted, {COUNTED_CONTEXTS} times this model's context, but "
                f"'{param}' has at least {least}.",
                param=param,
                code="context_length_exceeded",
            )

    def check_text(self, text: str, param: str) -> None:
        """Refuse a prompt that is too long whatever its tokens are: tokenising it could take many seconds.

        Raises:
            InvalidRequest: with both numbers.
        """
        least = self.model.tokenizer.least_tokens(text)
        if least >= self.model.max_model_len:
            raise self._too_long(f"at least {least}", param)

    def check_prompt(self, ids: list[int], param: str) -> None:
        """Refuse a prompt that is empty or leaves no room for an output token.

        Raises:
            InvalidRequest: with both numbers.
        """
        if not ids:
            raise InvalidRequest(f"'{param}' must hold at least one token.", param=param, code="invalid_value")
        if len(ids) >= self.model.max_model_len:
            raise self._too_long(str(len(ids)), param)

    def _too_long(self, tokens: str, param: str) -> InvalidRequest:
        return InvalidRequest(
            f"This model's context is {self.model.max_model_len} tokens; a prompt may have at most "
            f"{self.model.max_model_len - 1} of them, but '{param}' has {tokens}.",
            param=param,
            code="context_length_exceeded",
        )

    @contextmanager
    def admit(self, sequences: int) -> Iterator[None]:
        """Hold a place for `sequences` while they run.

        An engine that is not healthy still gets requests: if it is dead it says so itself, and if a step of it
        failed, the next one that succeeds is what makes it healthy again.

        Raises:
            Unavailable: as many as allowed are in flight.
        """
        if self.sequences and self.sequences + sequences > self.limits.max_sequences:
            raise Unavailable(
                f"{self.sequences} sequences are in flight and this request adds {sequences}; "
                f"at most {self.limits.max_sequences} are held at once.",
                code="queue_full",
            )
        self.sequences += sequences
        try:
            yield
        finally:
            self.sequences -= sequences


def new_id(prefix: str) -> str:
    """Return a fresh id in OpenAI's style."""
    return f"{prefix}-{uuid.uuid4().hex}"
