"""Log-probabilities in the two shapes that OpenAI's endpoints use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from backend.api.service import TextTokenizer
from backend.engine.request import TokenLogprob

__all__ = ["chat_logprobs", "completion_logprobs", "token_text"]


def token_text(tokenizer: TextTokenizer, token_id: int) -> str:
    """Return a token as text; a token that is no valid UTF-8 by itself reads `bytes:\\xe2\\x82`, as at OpenAI."""
    raw = tokenizer.token_bytes(token_id)
    if raw is None:
        return tokenizer.id_to_token(token_id) or ""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def _entry(tokenizer: TextTokenizer, token_id: int, logprob: float) -> dict[str, Any]:
    raw = tokenizer.token_bytes(token_id)
    return {
        "token": token_text(tokenizer, token_id),
        "logprob": _finite(logprob),
        "bytes": None if raw is None else list(raw),
    }


def _finite(logprob: float) -> float:
    """Keep the number in JSON: a token of probability 0 is reported as -9999, as at OpenAI."""
    return max(logprob, -9999.0)


def chat_logprobs(tokenizer: TextTokenizer, tokens: Sequence[TokenLogprob]) -> dict[str, Any]:
    """Return the `logprobs` object of a chat choice."""
    return {
        "content": [
            {
                **_entry(tokenizer, token.token_id, token.logprob),
                "top_logprobs": [_entry(tokenizer, token_id, logprob) for token_id, logprob in token.top],
            }
            for token in tokens
        ],
        "refusal": None,
    }


def completion_logprobs(tokenizer: TextTokenizer, tokens: Sequence[TokenLogprob], offset: int = 0) -> dict[str, Any]:
    """Return the `logprobs` object of a completions choice; `offset` is where its text starts, in characters."""
    texts = [token_text(tokenizer, token.token_id) for token in tokens]
    offsets: list[int] = []
    for text in texts:
        offsets.append(offset)
        offset += len(text)
    return {
        "tokens": texts,
        "token_logprobs": [_finite(token.logprob) for token in tokens],
        "top_logprobs": [
            {token_text(tokenizer, token_id): _finite(logprob) for token_id, logprob in token.top} for token in tokens
        ],
        "text_offset": offsets,
    }
