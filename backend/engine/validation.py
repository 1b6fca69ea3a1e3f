"""Which requests can never be served, said at once and with the parameter's name."""

from __future__ import annotations

from backend.engine.errors import RequestRefused
from backend.engine.request import GenerationRequest

__all__ = ["check_request"]


def check_request(
    request: GenerationRequest, *, vocab_size: int, max_num_seqs: int, max_len: int, capacity: int
) -> None:
    """Raise RequestRefused when `request` could wait for ever.

    `max_len` bounds prompt and output together, one token of which must be output; `capacity` is how many tokens
    the whole KV cache holds.
    """
    prompt, params = request.prompt_token_ids, request.params
    if not prompt:
        raise RequestRefused("the prompt has no tokens", "prompt")
    if min(prompt) < 0 or max(prompt) >= vocab_size:
        raise RequestRefused(f"the prompt has token ids outside of 0 to {vocab_size - 1}", "prompt")
    if len(prompt) > max_len - 1:
        what = "the KV cache holds" if max_len == capacity else "this model serves"
        raise RequestRefused(
            f"the prompt has {len(prompt)} tokens; {what} {max_len}, of which one must be left for the output",
            "prompt",
        )
    if params.max_tokens < 1:
        raise RequestRefused(f"max_tokens must be at least 1, got {params.max_tokens}", "max_tokens")
    if not 1 <= request.n <= max_num_seqs:
        raise RequestRefused(f"n must be between 1 and {max_num_seqs}, got {request.n}", "n")
    if any(not 0 <= token < vocab_size for token in params.logit_bias):
        raise RequestRefused(f"logit_bias has token ids outside of 0 to {vocab_size - 1}", "logit_bias")
