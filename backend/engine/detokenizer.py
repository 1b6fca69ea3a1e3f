"""Token ids to text as they come: whole characters only, and nothing that may yet turn out to be a stop string."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from typing import NamedTuple, Protocol, runtime_checkable

__all__ = ["ByteDecoder", "ByteLevelDecoder", "Decoder", "Detokenizer", "Piece", "StopFilter", "TextDecoder"]

REPLACEMENT = "\ufffd"
CONTEXT = 8
"""Tokens that a window keeps as context; more than any character has bytes."""
PATIENCE = 32
"""Tokens that may pass without a complete character before the text is taken to be really broken."""


class Decoder(Protocol):
    """The part of a tokenizer that is needed."""

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        """Return the text of `ids`; what is not valid UTF-8 becomes U+FFFD."""
        ...


@runtime_checkable
class ByteLevelDecoder(Protocol):
    """What a tokenizer can say in addition when each of its tokens is a string of bytes."""

    @property
    def special_ids(self) -> frozenset[int]:
        """Ids that `skip_special_tokens` leaves out."""
        ...

    def token_bytes(self, token_id: int) -> bytes | None:
        """Return the bytes of a token; None, for every token, where the vocabulary is not of bytes."""
        ...


class ByteDecoder:
    """Ids to text for byte-level vocabularies: the text is the tokens' bytes as UTF-8, and nothing else matters.

    The same result as a TextDecoder for a tenth of the time.
    """

    __slots__ = ("_decoder", "_pending", "_skip")

    def __init__(self, decoder: ByteLevelDecoder, *, skip_special_tokens: bool = True) -> None:
        self._decoder = decoder
        self._skip = decoder.special_ids if skip_special_tokens else frozenset()
        self._pending = b""
        """At most three bytes: the beginning of a character."""

    def put(self, token: int) -> str:
        """Add one id and return the text that is now certain."""
        if token in self._skip:
            return ""
        data = self._pending + (self._decoder.token_bytes(token) or b"")
        text, used = codecs.utf_8_decode(data, "replace", False)
        self._pending = data[used:]
        return text

    def flush(self) -> str:
        """Return what was held back; the only place where an incomplete character comes out, as U+FFFD."""
        pending, self._pending = self._pending, b""
        return pending.decode("utf-8", "replace")


class TextDecoder:
    """Ids to text, incrementally: the pieces concatenate to the decoded whole.

    A token's text depends on its neighbours (spaces, characters split over tokens), so a window of recent ids is
    decoded with and without the new one, and the difference is new text. A piece never ends inside a character:
    while the text ends in U+FFFD, which is what an incomplete one decodes to, it is held back. The window moves
    on with every piece, so a token costs the same at any length.
    """

    __slots__ = ("_decoder", "_done", "_ids", "_read", "_skip")

    def __init__(self, decoder: Decoder, *, skip_special_tokens: bool = True, context: Sequence[int] = ()) -> None:
        """Start after `context`, ids whose text is not part of the output but decides about its first space."""
        self._decoder = decoder
        self._skip = skip_special_tokens
        self._ids = list(context[-CONTEXT:])
        self._read = len(self._ids)
        """How many of `_ids` are fully accounted for."""
        self._done = len(self._text()) if context else 0
        """Characters of the window's text that were given out."""

    def put(self, token: int) -> str:
        """Add one id and return the text that is now certain, often ""."""
        self._ids.append(token)
        text = self._text()
        complete = len(text) > self._done and not text.endswith(REPLACEMENT)
        if not complete and len(self._ids) - self._read <= PATIENCE:
            return ""
        held = 0
        while held < 3 and text.endswith(REPLACEMENT, 0, len(text) - held):
            held += 1  # an incomplete character has at most three bytes, and decodes to no more characters
        return self._take(text, held)

    def flush(self) -> str:
        """Return what was held back; the only place where an incomplete character comes out, as U+FFFD."""
        return self._take(self._text(), 0)

    def _take(self, text: str, held: int) -> str:
        piece = text[self._done : len(text) - held]
        # The new context is what was just read; where nothing became complete for long, a few tokens are enough.
        pending = len(self._ids) - self._read
        del self._ids[: self._read if pending <= PATIENCE else len(self._ids) - CONTEXT]
        self._read = len(self._ids)
        self._done = max(0, len(self._text()) - held)
        return piece

    def _text(self) -> str:
        return self._decoder.decode(self._ids, self._skip)


class StopFilter:
    """Holds back the longest end of the text that could be the beginning of a stop string, and not more.

    The match that is complete first wins; of two that end together, the longer. That makes the result independent
    of how the text was cut into pieces.
    """

    __slots__ = ("_held", "_include", "_longest", "_stops", "matched")

    def __init__(self, stops: Sequence[str], *, include: bool = False) -> None:
        """Look for `stops`; `include` keeps the matched one in the text."""
        self._stops = tuple(stop for stop in stops if stop)
        self._longest = max(map(len, self._stops), default=0)
        self._include = include
        self._held = ""
        self.matched: str | None = None
        """The stop string that ended the text, once one did."""

    def put(self, text: str) -> str:
        """Add text and return what can be given out; after a match there is never more."""
        if self.matched is not None:
            return ""
        if not self._stops:
            return text
        text = self._held + text
        match = self._find(text)
        if match is not None:
            start, end = match
            self._held = ""
            self.matched = text[start:end]
            return text[: end if self._include else start]
        keep = self._overlap(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def flush(self) -> str:
        """Return what was held back: the text ended without completing a stop string."""
        held, self._held = self._held, ""
        return held

    def _find(self, text: str) -> tuple[int, int] | None:
        found = ((text.find(stop), len(stop)) for stop in self._stops)
        spans = [(start + length, start) for start, length in found if start >= 0]
        if not spans:
            return None
        end, start = min(spans)
        return start, end

    def _overlap(self, text: str) -> int:
        """Length of the longest end of `text` that is a proper beginning of a stop string."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            tail = text[len(text) - length :]
            if any(len(stop) > length and stop.startswith(tail) for stop in self._stops):
                return length
        return 0


class Piece(NamedTuple):
    """Text that became certain, and the stop string that ended it, if one did."""

    text: str
    stop: str | None


class Detokenizer:
    """The text of one choice: ids in, text out, stop strings seen across token boundaries."""

    __slots__ = ("_decoder", "_filter", "_min_tokens", "_seen")

    def __init__(
        self,
        decoder: Decoder,
        *,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
        min_tokens: int = 0,
        context: Sequence[int] = (),
    ) -> None:
        """`stop` is not looked for in the text of the first `min_tokens` ids."""
        self._decoder: ByteDecoder | TextDecoder
        if isinstance(decoder, ByteLevelDecoder) and decoder.token_bytes(0) is not None:
            self._decoder = ByteDecoder(decoder, skip_special_tokens=skip_special_tokens)
        else:
            self._decoder = TextDecoder(decoder, skip_special_tokens=skip_special_tokens, context=context)
        self._filter = StopFilter(stop, include=include_stop)
        self._min_tokens = min_tokens
        self._seen = 0

    def put(self, token: int) -> Piece:
        """Add one sampled id."""
        self._seen += 1
        text = self._decoder.put(token)
        if self._seen <= self._min_tokens:
            return Piece(text, None)
        return Piece(self._filter.put(text), self._filter.matched)

    def finish(self) -> Piece:
        """End the text: incomplete characters and held-back beginnings of stop strings come out."""
        text = self._decoder.flush()
        if self._seen <= self._min_tokens:
            return Piece(text, None)
        passed = self._filter.put(text)
        if self._filter.matched is not None:
            return Piece(passed, self._filter.matched)
        return Piece(passed + self._filter.flush(), None)
