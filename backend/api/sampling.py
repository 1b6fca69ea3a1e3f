"""The sampling parameters of chat and completions: one table of ranges, read into `SamplingParams`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from backend.api.errors import InvalidRequest
from backend.api.fields import (
    Field,
    boolean,
    integer,
    mapping,
    number,
    out_of_range,
    read_fields,
    string_list,
    token_ids,
    wrong_type,
)
from backend.engine.request import SamplingParams

__all__ = ["SAMPLING", "SAMPLING_DEFAULTS", "SEED_BOUND", "read_sampling"]

SEED_BOUND: Final = 2**63
MAX_LOGPROBS: Final = 20
MAX_BIASES: Final = 262_144
"""Entries of `logit_bias`, over all prompts of a request."""

SAMPLING: Final[tuple[Field, ...]] = (
    integer("max_tokens", 1, None),
    integer("max_completion_tokens", 1, None),
    integer("min_tokens", 0, None, 0),
    number("temperature", 0, 2),
    number("top_p", 0, 1, low_open=True),
    integer("top_k", -1, None),
    number("min_p", 0, 1),
    number("repetition_penalty", 0.01, 10),
    number("presence_penalty", -2, 2, 0.0),
    number("frequency_penalty", -2, 2, 0.0),
    integer("seed", -SEED_BOUND, SEED_BOUND - 1),
    mapping("logit_bias"),
    string_list("stop", max_items=16, max_length=1024),
    boolean("include_stop_str_in_output"),
    boolean("ignore_eos"),
    boolean("skip_special_tokens", True),
)

SAMPLING_DEFAULTS: Final[Mapping[str, float]] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
}
"""What holds where neither the request nor the model's own generation_config says anything."""


def _logit_bias(raw: Mapping[str, Any] | None, vocab_size: int) -> dict[int, float]:
    bias: dict[int, float] = {}
    if raw is not None and len(raw) > min(vocab_size, MAX_BIASES):
        raise InvalidRequest(
            f"'logit_bias' may have at most {min(vocab_size, MAX_BIASES)} entries, but it has {len(raw)}.",
            param="logit_bias",
            code="invalid_value",
        )
    for key, value in (raw or {}).items():
        if not (key.isascii() and key.isdigit() and len(key) <= 10 and int(key) < vocab_size):
            raise InvalidRequest(
                f"The keys of 'logit_bias' must be token ids from 0 to {vocab_size - 1}, but one is {key[:32]!r}.",
                param="logit_bias",
                code="invalid_value",
            )
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise wrong_type("logit_bias", "an object of numbers", value)
        if not -100 <= value <= 100:
            raise out_of_range("logit_bias", "an object of numbers between -100 and 100", value)
        bias[int(key)] = float(value)
    return bias


def read_sampling(
    body: Mapping[str, Any],
    *,
    vocab_size: int,
    defaults: Mapping[str, float],
    logprobs: int | None,
    default_max_tokens: int,
    room: int,
    max_model_len: int,
) -> SamplingParams:
    """Read and check the sampling parameters.

    Args:
        body: the request.
        vocab_size: bound on token ids.
        defaults: the model's own defaults (generation_config), which win over SAMPLING_DEFAULTS.
        logprobs: alternatives per token, already read (chat and completions ask for them differently).
        default_max_tokens: output tokens where the request names no bound.
        room: tokens left in the context after the prompt; the output never exceeds it.
        max_model_len: a larger `max_tokens` can fit no prompt and is refused.

    Raises:
        InvalidRequest: a parameter is wrong, named.
    """
    values = read_fields(body, SAMPLING)
    sampled = {name: values[name] for name in SAMPLING_DEFAULTS if values[name] is not None}
    chosen = {**SAMPLING_DEFAULTS, **defaults, **sampled}
    stop_ids = body.get("stop_token_ids")
    limit_name = "max_tokens" if values["max_completion_tokens"] is None else "max_completion_tokens"
    limit = values[limit_name]
    if limit is not None and limit > max_model_len:
        raise out_of_range(limit_name, f"between 1 and the model's context length of {max_model_len} tokens", limit)
    max_tokens = min(room, default_max_tokens if limit is None else limit)
    if values["min_tokens"] > (max_tokens if limit is None else limit):
        raise out_of_range("min_tokens", f"at most the output bound of {max_tokens} tokens", values["min_tokens"])
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=min(values["min_tokens"], max_tokens),
        temperature=chosen["temperature"],
        top_p=chosen["top_p"],
        top_k=max(0, int(chosen["top_k"])),
        min_p=chosen["min_p"],
        repetition_penalty=chosen["repetition_penalty"],
        presence_penalty=values["presence_penalty"],
        frequency_penalty=values["frequency_penalty"],
        logit_bias=_logit_bias(values["logit_bias"], vocab_size),
        seed=values["seed"],
        stop=values["stop"],
        stop_token_ids=()
        if stop_ids is None
        else tuple(token_ids("stop_token_ids", stop_ids, vocab_size, max_items=128)),
        include_stop=values["include_stop_str_in_output"],
        ignore_eos=values["ignore_eos"],
        logprobs=logprobs,
        skip_special_tokens=values["skip_special_tokens"],
    )
