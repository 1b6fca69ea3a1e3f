"""Anthropic's Messages API."""

from __future__ import annotations

from typing import Any, Final

import orjson

from proxy.wire.base import Call, Head, Reply, Route, Tap, Usage, WireFormat
from proxy.wire.faults import object_error
from proxy.wire.jsonbody import load_object, model_name, whole
from proxy.wire.prompt import Prompt, read_messages
from proxy.wire.sse import SseTap, comment, event_name
from proxy.wire.tail import TailTap, count, last_object, last_scalar

__all__ = ["Anthropic"]

MESSAGES: Final = Route("messages")
COUNT_TOKENS: Final = Route("messages.count_tokens", queued=False, generates=False, pure=True)

_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_DELTA: Final = b"event: content_block_delta\n"


class Anthropic(WireFormat):
    """The `anthropic` wire format. Messages go one by one; nothing merges."""

    name = "anthropic"
    routes = (
        MESSAGES,
        COUNT_TOKENS,
    )

    def match(self, method: str, path: str) -> Route | None:
        """Return the operation for `method path`, under any prefix."""
        if method == "POST":
            if path.endswith("/v1/messages"):
                return MESSAGES
            if path.endswith("/v1/messages/count_tokens"):
                return COUNT_TOKENS
        return None

    def parse(self, route: Route, head: Head, body: bytes) -> Call:
        """Read one request. Raises BadRequest when the body is no JSON object or the model no string."""
        payload = load_object(head, body)
        if payload is None:
            return Call(route, body)
        prompt = Prompt()
        prompt.add_content(payload.get("system"))
        read_messages(payload.get("messages"), prompt)
        tools = payload.get("tools")
        if tools:
            prompt.add_json(tools)
        return Call(
            route=route,
            body=body,
            model=model_name(payload),
            stream=route is MESSAGES and bool(payload.get("stream")),
            prompt_tokens=prompt.tokens,
            max_tokens=whole(payload.get("max_tokens")),
            payload=payload,
            text=prompt.text,
        )

    def error(self, status: int, kind: str, message: str, *, param: str | None = None) -> Reply:
        """Return `{"type": "error", "error": {type, message}}`."""
        text = message if param is None else f"{param}: {message}"
        return Reply(status, orjson.dumps(_error(status, text)))

    def error_in(self, call: Call, document: dict[str, Any]) -> bool:
        """Tell whether it is `{"type": "error", "error": {...}}`, or the same without the type."""
        return object_error(document)

    def stream_error(self, kind: str, message: str) -> bytes:
        """Return an `error` event."""
        return b"event: error\ndata: " + orjson.dumps(_error(502, message)) + b"\n\n"

    def keepalive(self) -> bytes:
        """Return a server-sent comment."""
        return comment()

    def tap(self, call: Call, content_type: str) -> Tap:
        """Return a reader of the answer's usage."""
        return MessagesTap() if content_type.startswith("text/event-stream") else TailTap(_read_message)


class MessagesTap(SseTap):
    """Reads a message's events: prompt tokens from the first, output tokens and the reason from the last."""

    __slots__ = ("_delta", "_done", "_start")

    def __init__(self) -> None:
        super().__init__()
        self._start = b""
        self._delta = b""
        self._done = False

    def event(self, data: bytes) -> None:
        """Look at one event."""
        if data.startswith(_DELTA):
            self.tokens_seen += 1
            return
        name = event_name(data)
        if name == b"message_start":
            self._start = data
        elif name == b"message_delta":
            self._delta = data
        elif name == b"message_stop":
            self._done = True
        elif name == b"content_block_delta":
            self.tokens_seen += 1
        elif name == b"error" or (not name and b"error" in data):
            self.suspect(data)

    def finished(self) -> bool:
        """Whether `message_stop` has passed."""
        return self._done

    def marks_end(self) -> bool:
        """Whether there is such a marker."""
        return True

    def own(self) -> bool:
        """Whether any of a message's events has passed."""
        return bool(self._start) or self.tokens_seen > 0

    def usage(self) -> Usage:
        """Return the reported counts; before the end, the number of deltas."""
        start, end = _read_message(self._start), _read_message(self._delta)
        output = end.output_tokens
        if output is None:
            output = self.tokens_seen or start.output_tokens
        prompt = start.prompt_tokens if start.prompt_tokens is not None else end.prompt_tokens
        return Usage(prompt, output, end.finish_reason)


def _read_message(data: bytes) -> Usage:
    usage = last_object(data, b"usage") or {}
    prompt = count(usage, "input_tokens")
    if prompt is not None:
        # What came from or went to the cache is reported beside, not within.
        prompt += count(usage, "cache_creation_input_tokens") or 0
        prompt += count(usage, "cache_read_input_tokens") or 0
    reason = last_scalar(data, b"stop_reason")
    return Usage(prompt, count(usage, "output_tokens"), reason if type(reason) is str else None)


def _error(status: int, message: str) -> dict[str, Any]:
    kind = _ERROR_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": message}}
