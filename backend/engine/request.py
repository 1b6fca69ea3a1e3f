"""What crosses the boundary between the API server and the engine process."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

__all__ = ["Delta", "FinishReason", "GenerationRequest", "SamplingParams", "TokenLogprob", "Usage"]


class FinishReason(StrEnum):
    """Why a choice ended; the values are OpenAI's, `abort` and `error` are ours."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to turn logits into tokens. Ranges are checked by the API, which can name the parameter."""

    max_tokens: int = 16
    min_tokens: int = 0
    temperature: float = 1.0
    """0 is greedy: argmax, whatever the other values say."""
    top_p: float = 1.0
    top_k: int = 0
    """0 keeps all; 1 is greedy."""
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    """Over prompt and output, once per distinct token."""
    presence_penalty: float = 0.0
    """Over the output only."""
    frequency_penalty: float = 0.0
    """Over the output only, by count."""
    logit_bias: dict[int, float] = field(default_factory=dict)
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False
    """Keep the stop string in the text."""
    ignore_eos: bool = False
    logprobs: int | None = None
    """How many alternatives to report beside each sampled token; None for no logprobs at all."""
    skip_special_tokens: bool = True


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt to complete `n` times."""

    id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    n: int = 1
    class_slack: float = 0.0
    """Seconds by which this request defers to the most urgent ones (see policies.Job)."""
    tenant: str = ""
    predicted_tokens: float | None = None
    cache_salt: str = ""
    """Requests share prefix-cache blocks only under equal salts."""
    grammar: str | None = None
    """What the text must be, in the grammar library's notation (backend.grammar); None for anything."""
    grammar_param: str | None = None
    """The field of the caller's request that demands it, to be named where it cannot be enforced."""


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability of one sampled token (natural log, before penalties and temperature)."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    """(token id, logprob), most probable first."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts of one request, over all its choices."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    """Prompt tokens whose KV came from the prefix cache."""


@dataclass(frozen=True, slots=True)
class Delta:
    """What one step added to one choice of one request. The last one of a choice carries finish_reason."""

    request_id: str
    index: int
    text: str
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    """The stop string or token id that ended the choice."""
    usage: Usage | None = None
    """Set on the last delta of the request, when all its choices are done."""
    error: str | None = None
    error_param: str | None = None
    """The field of the caller's request that is to blame for the error; None where the engine is."""
