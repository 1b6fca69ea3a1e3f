"""Usage, token counts and the end marker of OpenAI's streams."""

from __future__ import annotations

import re
from typing import Any, Final

import orjson

from proxy.wire.base import Usage
from proxy.wire.sse import KEPT_TAIL, MAX_EVENT, SseTap, event_data, event_name, holds
from proxy.wire.tail import read_usage

__all__ = ["ChatTap", "CompletionTap", "ResponsesTap"]


_TERMINAL = (b"response.completed", b"response.incomplete", b"response.failed", b"error")
_FAILED = (b"response.failed", b"error")
_TYPE: Final = re.compile(rb'"type"\s*:\s*"([a-z_.]+)"')
_USAGE: Final = b'"usage"'
_REASON: Final = b'"finish_reason"'
_NO_REASON: Final = b'"finish_reason":null'
_USUAL_END: Final = b'"finish_reason":null}]}'
_D: Final = 100
"""First byte of a `data` line."""


class CompletionTap(SseTap):
    """Reads a stream of completion chunks.

    An event counts as a token when any of its choices brings output. The events that may hold usage and the
    finish reason are only remembered; they are parsed when somebody asks.
    """

    __slots__ = ("_done", "_own", "_reason", "_usage")

    text_member = b'"text":"'
    """What comes before the text of a token, compactly written; other spellings are parsed in full."""

    def __init__(self) -> None:
        super().__init__()
        self._usage: bytes | None = None
        self._reason: bytes | None = None
        self._done = False
        self._own = False

    def block(self, events: bytes) -> None:
        """Look at several chunks; nearly all bring a token and nothing else, which one search and their ends tell."""
        member = self.text_member
        if len(events) > MAX_EVENT or holds(events, _USAGE):
            super().block(events)
            return
        tokens = 0
        for piece in events.split(b"\n\n"):
            if piece.startswith(b"d"):
                _, found, text = piece.partition(member)
                if found and not text.startswith(b'"') and (text.endswith(_USUAL_END) or holds(piece, _NO_REASON)):
                    tokens += 1
                    continue
            if piece:
                self._complete(piece)
        self.tokens_seen += tokens

    def event(self, data: bytes) -> None:
        """Look at one chunk."""
        at = data.find(self.text_member)
        if at > 0 and data[0] == _D and not data.startswith(b'"', at + len(self.text_member)):
            self.tokens_seen += 1
            if not holds(data, _NO_REASON) or holds(data, _USAGE):
                self._remember(data)
            return
        payload = event_data(data) or _headless(data)
        if payload.strip() == b"[DONE]":
            self._done = True
        elif payload:
            if _brings_output(payload):
                self.tokens_seen += 1
            self._own = self._own or holds(payload, b'"choices"')
            self._remember(payload)
            if holds(data, b"error"):
                self.suspect(data)

    def _remember(self, data: bytes) -> None:
        if holds(data, _USAGE) and not _is_null(data, _USAGE):
            self._usage = data
        if holds(data, _REASON) and not _is_null(data, _REASON):
            self._reason = data

    def finished(self) -> bool:
        """Whether `[DONE]` has passed."""
        return self._done

    def marks_end(self) -> bool:
        """Whether there is such a marker."""
        return True

    def ended(self) -> bool:
        """Whether `[DONE]` has passed, or a choice has said why it ended; some servers leave it at that."""
        return self._done or (self._reason is not None and self.at_boundary())

    def own(self) -> bool:
        """Whether any chunk with choices has passed."""
        return self._own or self.tokens_seen > 0 or holds(bytes(self._partial), b'"choices"')

    def usage(self) -> Usage:
        """Return the reported usage, else the number of token-bearing events."""
        reported = read_usage(self._usage) if self._usage else Usage()
        reason = read_usage(self._reason).finish_reason if self._reason else None
        output = reported.output_tokens
        if output is None and self.tokens_seen:
            output = self.tokens_seen
        return Usage(reported.prompt_tokens, output, reason)


class ChatTap(CompletionTap):
    """Reads a stream of chat chunks."""

    __slots__ = ()

    text_member = b'content":"'  # reasoning_content too


class ResponsesTap(SseTap):
    """Reads the typed events of a response; the terminal one repeats the whole response with its usage."""

    __slots__ = ("_own", "_terminal")

    def __init__(self) -> None:
        super().__init__()
        self._terminal: bytes | None = None
        self._own = False

    def event(self, data: bytes) -> None:
        """Look at one typed event."""
        name = event_name(data) or _event_type(data)
        if name.endswith(b".delta"):
            self.tokens_seen += 1
        elif name in _TERMINAL or _ends_a_response(data):
            self._terminal = data
            if name in _FAILED:
                self.suspect(data)
        else:
            self._own = self._own or name.startswith(b"response.")
            if holds(data, b'{"error"'):
                self.suspect(data)

    def finished(self) -> bool:
        """Whether the response was reported completed, incomplete, failed or in error."""
        return self._terminal is not None

    def marks_end(self) -> bool:
        """Whether there are such events."""
        return True

    def own(self) -> bool:
        """Whether any of a response's events has passed."""
        return self._own or self.tokens_seen > 0

    def usage(self) -> Usage:
        """Return the usage of the terminal event, else the number of deltas."""
        reported = read_usage(self._terminal) if self._terminal else Usage()
        output = reported.output_tokens
        if output is None and self.tokens_seen:
            output = self.tokens_seen
        return Usage(reported.prompt_tokens, output, reported.finish_reason)


def _headless(event: bytes) -> bytes:
    """Return an event that was too long to be kept with its field names, b"" when it is none but a comment."""
    return event if len(event) == KEPT_TAIL else b""


def _is_null(data: bytes, member: bytes) -> bool:
    return holds(data, member + b":null") or holds(data, member + b": null")


def _event_type(event: bytes) -> bytes:
    """Return the `type` inside an event that names none outside."""
    found = _TYPE.search(event_data(event))
    return found.group(1) if found else b""


def _ends_a_response(event: bytes) -> bool:
    """Recognise a terminal event that was too long to be kept with its name, by the way it ends."""
    return bool(_headless(event)) and event.rstrip().endswith(b"}}") and b'"usage"' in event


def _brings_output(data: bytes) -> bool:
    """Tell whether any choice of a chunk brings text, reasoning, a refusal or a piece of a tool call."""
    try:
        chunk = orjson.loads(data)
    except orjson.JSONDecodeError:
        return False
    choices = chunk.get("choices") if type(chunk) is dict else None
    if type(choices) is not list:
        return False
    return any(type(choice) is dict and _choice_brings_output(choice) for choice in choices)


def _choice_brings_output(choice: dict[str, Any]) -> bool:
    delta = choice.get("delta")
    source = delta if type(delta) is dict else choice
    return any(
        source.get(name) for name in ("content", "text", "reasoning_content", "reasoning", "refusal", "tool_calls")
    )
