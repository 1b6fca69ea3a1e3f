"""Log-probabilities in the two shapes that OpenAI's endpoints use."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import Any

from backend.api.service import TextTokenizer
from backend.engine.request import TokenLogprob

__all__ = ["TextOffsets", "chat_logprobs", "completion_logprobs", "token_text"]


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


class TextOffsets:
    """Where each token of one choice begins in its text, in whole characters.

    A function of the tokens alone, so that a stream, which may hold text back, says the same as an answer.
    """

    def __init__(self, tokenizer: TextTokenizer, *, skip_special_tokens: bool) -> None:
        self._tokenizer = tokenizer
        self._hidden = tokenizer.special_ids if skip_special_tokens else frozenset()
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._length = 0

    def put(self, token_id: int) -> int:
        """Add the next token and return where it begins."""
        start = self._length
        if token_id not in self._hidden:
            raw = self._tokenizer.token_bytes(token_id)
            text = token_text(self._tokenizer, token_id) if raw is None else self._decoder.decode(raw)
            self._length += len(text)
        return start


def completion_logprobs(
    tokenizer: TextTokenizer, tokens: Sequence[TokenLogprob], offsets: TextOffsets
) -> dict[str, Any]:
    """Return the `logprobs` object of a completions choice, or of the next part of one; `offsets` moves on."""
    return {
        "tokens": [token_text(tokenizer, token.token_id) for token in tokens],
        "token_logprobs": [_finite(token.logprob) for token in tokens],
        "top_logprobs": [
            {token_text(tokenizer, token_id): _finite(logprob) for token_id, logprob in token.top} for token in tokens
        ],
        "text_offset": [offsets.put(token.token_id) for token in tokens],
    }
