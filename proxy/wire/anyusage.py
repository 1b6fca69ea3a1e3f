"""Reading usage from answers of which nobody knows whose protocol they speak, and from compressed ones."""

from __future__ import annotations

import zlib
from typing import Any, Final

from proxy.wire.base import LARGEST_COUNT, Tap, Usage
from proxy.wire.sse import SseTap, event_data, holds
from proxy.wire.tail import TailTap, last_object, last_scalar, read_usage

__all__ = ["AnyEventsTap", "InflatingTap", "any_tap", "inflating", "read_any_usage"]

_COUNTS: Final = (
    (b"tokens_evaluated", b"tokens_predicted"),
    (b"prompt_eval_count", b"eval_count"),
    (b"promptTokenCount", b"candidatesTokenCount"),
    (b"input_tokens", b"output_tokens"),
    (b"input_length", b"generated_tokens"),
    (b"prompt_tokens", b"completion_tokens"),
)
"""What a prompt's and an answer's tokens are called: llama.cpp, Ollama, Gemini, Cohere, TGI, SGLang."""

_HINTS: Final = (b'"usage', b"oken", b"eval_count")
"""One of them is in every event that holds counts."""

_AUTOMATIC: Final = 47
"""zlib's word for: gzip or zlib, whichever the header says."""
_SLICE: Final = 16_384
_MOST: Final = 1 << 20
"""No slice may grow beyond this: what is packed more tightly than 64 to 1 is no answer but a bomb."""


def any_tap(content_type: str) -> Tap | None:
    """Return a reader for an answer of this kind; None where there is nothing to read."""
    kind = content_type.partition(";")[0].strip().lower()
    if kind == "text/event-stream":
        return AnyEventsTap()
    return TailTap(read_any_usage) if "json" in kind else None


def read_any_usage(data: bytes) -> Usage:
    """Read token counts by whatever names they go."""
    found = read_usage(data)
    prompt, output = found.prompt_tokens, found.output_tokens
    if prompt is None and output is None:
        for names in _COUNTS:
            prompt, output = (_count(last_scalar(data, name)) for name in names)
            if prompt is not None or output is not None:
                break
    return Usage(prompt, output, found.finish_reason)


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= LARGEST_COUNT else None


class AnyEventsTap(SseTap):
    """Counts events, and remembers the first and the last that may hold counts; some tell the prompt's at once."""

    __slots__ = ("_first", "_last")

    def __init__(self) -> None:
        super().__init__()
        self._first = b""
        self._last = b""

    def event(self, data: bytes) -> None:
        """Look at one event."""
        payload = event_data(data)
        if not payload or payload.strip() == b"[DONE]":
            return
        self.tokens_seen += 1
        if any(holds(payload, hint) for hint in _HINTS):
            self._last = payload
            if not self._first and last_object(payload, b"usage"):
                self._first = payload

    def usage(self) -> Usage:
        """Return the reported counts, else the number of events."""
        start, end = read_any_usage(self._first), read_any_usage(self._last)
        output = end.output_tokens
        if output is None:
            output = self.tokens_seen or None
        prompt = end.prompt_tokens if end.prompt_tokens is not None else start.prompt_tokens
        return Usage(prompt, output, end.finish_reason)


def inflating(tap: Tap, encoding: bytes) -> Tap:
    """Return a reader of a compressed answer for `tap`; `tap` itself where the coding is not one we can undo."""
    return InflatingTap(tap) if encoding.strip().lower() in (b"gzip", b"x-gzip", b"deflate") else tap


class InflatingTap(Tap):
    """Undoes gzip and deflate for another reader. What cannot be undone is not read; memory stays bounded."""

    __slots__ = ("_inner", "_stream")

    def __init__(self, inner: Tap) -> None:
        self._inner = inner
        self._stream: Any = zlib.decompressobj(_AUTOMATIC)

    def feed(self, data: bytes) -> None:
        """Look at the next piece of the compressed body."""
        stream = self._stream
        for start in range(0, len(data), _SLICE):
            if stream is None:
                return
            try:
                plain: bytes = stream.decompress(data[start : start + _SLICE], _MOST)
            except zlib.error:
                stream = self._stream = None
                return
            if stream.unconsumed_tail:
                stream = self._stream = None
            if plain:
                self._inner.feed(plain)
                self.tokens_seen = self._inner.tokens_seen

    def at_boundary(self) -> bool:
        """Nothing can be put into a compressed stream."""
        return False

    def usage(self) -> Usage:
        """Return what the other reader found."""
        return self._inner.usage()
