"""What a prompt weighs and says: cheap token estimates and a bounded excerpt for the length predictor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import orjson

__all__ = ["BYTES_PER_TOKEN", "Prompt", "estimate", "excerpt", "read_messages", "read_plain", "text_tokens"]

HEAD_CHARS, TAIL_CHARS = 2000, 500
"""How much of the beginning and the end of a prompt the predictor gets to see."""

BYTES_PER_TOKEN: Final = 4
TOKENS_PER_MESSAGE: Final = 4
"""Role and separators of one chat message, in most templates."""
TOKENS_PER_MEDIUM: Final = 600
"""An image or a clip: its encoded size says nothing about its tokens, so it counts as a typical picture."""
_MOST_MEDIA: Final = 256
"""So many count: an empty pair of braces that claims to be a picture is three bytes long."""


class Prompt:
    """Collects the pieces of a prompt: how many bytes of text, and which text."""

    __slots__ = ("chars", "media", "overhead", "pieces", "size")

    def __init__(self) -> None:
        self.size = 0
        self.chars = 0
        self.media = 0
        self.overhead = 0
        self.pieces: list[str] = []

    def add(self, text: str) -> None:
        """Take in a piece of text."""
        self.size += len(text) if text.isascii() else len(text.encode())
        self.chars += len(text)
        self.pieces.append(text)

    def add_content(self, content: Any) -> None:
        """Take in a message's content: a string, or a list of parts of which only text counts as text."""
        if type(content) is str:
            self.add(content)
        elif type(content) is list:
            for part in content:
                if type(part) is str:
                    self.add(part)
                elif type(part) is dict:
                    text = part.get("text")
                    if type(text) is str:
                        self.add(text)
                    elif type(part.get("content")) in (str, list):
                        self._add_inner(part["content"])
                    else:
                        self.media += 1

    def _add_inner(self, content: Any) -> None:
        """Take in what a tool returned: one level further, never deeper."""
        if type(content) is str:
            self.add(content)
            return
        for part in content:
            text = part.get("text") if type(part) is dict else None
            if type(text) is str:
                self.add(text)

    def add_json(self, value: Any) -> None:
        """Count a structure, such as tool definitions, that reaches the model as text."""
        try:
            self.size += len(orjson.dumps(value))
        except TypeError:
            self.size += 1024  # nested beyond what can be written out; the upstream will have its say

    @property
    def tokens(self) -> int:
        """The estimated number of tokens, at least 1."""
        media = TOKENS_PER_MEDIUM * min(self.media, _MOST_MEDIA)
        return self.size // BYTES_PER_TOKEN + self.overhead + media + 1

    @property
    def text(self) -> str:
        """The bounded excerpt."""
        return excerpt(self.pieces, self.chars)


def excerpt(pieces: Sequence[str], chars: int) -> str:
    """Return the first 2000 and the last 500 characters of the pieces, `chars` long in all; all when shorter."""
    if chars <= HEAD_CHARS + TAIL_CHARS:
        return pieces[0] if len(pieces) == 1 else "\n".join(pieces[: HEAD_CHARS + TAIL_CHARS])
    head: list[str] = []
    left = HEAD_CHARS
    for piece in pieces:
        head.append(piece[:left])
        left -= len(piece) + 1
        if left <= 0:
            break
    tail: list[str] = []
    left = TAIL_CHARS
    for piece in reversed(pieces):
        tail.append(piece[-left:])
        left -= len(piece) + 1
        if left <= 0:
            break
    return "\n".join(head)[:HEAD_CHARS] + "\n" + "\n".join(reversed(tail))[-TAIL_CHARS:]


def read_messages(messages: Any, prompt: Prompt) -> None:
    """Take in a list of chat messages; anything else says nothing."""
    if type(messages) is not list:
        return
    size = chars = 0
    pieces = prompt.pieces
    for message in messages:
        if type(message) is dict:
            content = message.get("content")
            if type(content) is str:
                # What `add` does; most messages are a string, and some prompts are a thousand messages.
                length = len(content)
                chars += length
                size += length if content.isascii() else len(content.encode())
                pieces.append(content)
            else:
                prompt.add_content(content)
    prompt.size += size
    prompt.chars += chars
    prompt.overhead += TOKENS_PER_MESSAGE * len(messages)


def read_plain(messages: Any) -> tuple[int, str] | None:
    """Return the tokens and the excerpt of chat messages that are nothing but text; None for any others.

    What `read_messages` finds, in fewer steps: most chats are plain, and this is done once a request.
    """
    if type(messages) is not list or not messages:
        return None
    try:
        pieces = [message["content"] for message in messages]
        text = "\n".join(pieces)
    except (KeyError, TypeError):
        return None
    breaks = len(pieces) - 1
    size = (len(text) if text.isascii() else len(text.encode())) - breaks
    tokens = size // BYTES_PER_TOKEN + TOKENS_PER_MESSAGE * len(pieces) + 1
    return tokens, text if len(text) < HEAD_CHARS + TAIL_CHARS else excerpt(pieces, len(text) - breaks)


def text_tokens(text: str) -> int:
    """Estimate the tokens of one text, at least 1."""
    return (len(text) if text.isascii() else len(text.encode())) // BYTES_PER_TOKEN + 1


def estimate(item: Any) -> int:
    """Estimate the tokens of one input: a text, an array of token ids, or any other JSON value."""
    if type(item) is str:
        return text_tokens(item)
    if type(item) is list and item and type(item[0]) is int:
        return len(item)
    try:
        return len(orjson.dumps(item)) // BYTES_PER_TOKEN + 1
    except TypeError:
        return 256
