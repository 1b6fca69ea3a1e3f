"""Text Generation Inference's own API, and SGLang's, which shares the path."""

from __future__ import annotations

from typing import Any

import orjson

from proxy.wire.base import Call, Head, Reply, Route, Tap, Usage, WireFormat
from proxy.wire.faults import object_error, typed_error
from proxy.wire.jsonbody import load_object, whole
from proxy.wire.prompt import Prompt
from proxy.wire.sse import SseTap, comment, event_data, holds
from proxy.wire.tail import TailTap, last_object, last_scalar

__all__ = ["TGI", "huggingface_error"]

GENERATE = Route("generate")
STREAM = Route("generate_stream")
ROOT = Route("generate.root")

_MEMBERS = frozenset({"inputs", "text", "input_ids", "input_embeds"})
"""One of them is what is to be continued: TGI's, and SGLang's."""

_POST = {"/generate": GENERATE, "/generate_stream": STREAM, "/": ROOT}


class TGI(WireFormat):
    """The `tgi` wire format: `/generate`, `/generate_stream` and, when configured by name, `/`.

    SGLang's `/generate` (`text`, `sampling_params`) is understood as well. Nothing merges.
    """

    name = "tgi"
    routes = (
        GENERATE,
        STREAM,
        ROOT,
    )

    def match(self, method: str, path: str) -> Route | None:
        """Return the operation for `method path`."""
        return _POST.get(path) if method == "POST" else None

    def parse(self, route: Route, head: Head, body: bytes) -> Call:
        """Read one request; unread is what holds nothing to generate from, which is another server's.

        Raises BadRequest when the body is no JSON object.
        """
        payload = load_object(head, body)
        if payload is None or _MEMBERS.isdisjoint(payload):
            return Call(route, body)
        prompt = Prompt()
        given = payload.get("inputs")
        prompt.add_content(payload.get("text") if given is None else given)
        options = payload.get("parameters")
        if type(options) is not dict:
            options = payload.get("sampling_params")
        limit = options.get("max_new_tokens") if type(options) is dict else None
        return Call(
            route=route,
            body=body,
            stream=route is STREAM or bool(payload.get("stream")),
            prompt_tokens=prompt.tokens,
            max_tokens=whole(limit),
            payload=payload,
            text=prompt.text,
        )

    def error(self, status: int, kind: str, message: str, *, param: str | None = None) -> Reply:
        """Return `{"error": message, "error_type": ...}`."""
        return Reply(status, huggingface_error(status, message, param))

    def error_in(self, call: Call, document: dict[str, Any]) -> bool:
        """Tell whether it is `{"error": message, "error_type": ...}`, or SGLang's `{"error": {...}}`.

        Others serve these paths, too, so a lone `error` proves nothing.
        """
        return typed_error(document) or object_error(document)

    def stream_error(self, kind: str, message: str) -> bytes:
        """Return the event TGI itself sends when a generation breaks."""
        return b"data:" + orjson.dumps({"error": message, "error_type": "incomplete_generation"}) + b"\n\n"

    def keepalive(self) -> bytes:
        """Return a server-sent comment."""
        return comment()

    def tap(self, call: Call, content_type: str) -> Tap:
        """Return a reader of the answer's counts."""
        return GenerateTap() if content_type.startswith("text/event-stream") else TailTap(_read_details)


class GenerateTap(SseTap):
    """Reads a stream of tokens; TGI's last one brings the whole text and the details, SGLang's is `[DONE]`."""

    __slots__ = ("_done", "_last")

    def __init__(self) -> None:
        super().__init__()
        self._last = b""
        self._done = False

    def event(self, data: bytes) -> None:
        """Look at one event."""
        payload = event_data(data) or data
        if payload.strip() == b"[DONE]":
            self._done = True
        elif holds(payload, b'"token":') or holds(payload, b'"meta_info":'):
            self.tokens_seen += 1
            self._last = payload
            if holds(payload, b'"generated_text":"'):
                self._done = True
        elif holds(data, b"error"):
            self.suspect(data)

    def finished(self) -> bool:
        """Whether the generation has come to its end."""
        return self._done

    def marks_end(self) -> bool:
        """Whether the last token tells that it is the last."""
        return True

    def usage(self) -> Usage:
        """Return the reported counts, else the number of tokens that passed."""
        reported = _read_details(self._last)
        output = reported.output_tokens
        if output is None and self.tokens_seen:
            output = self.tokens_seen
        return Usage(reported.prompt_tokens, output, reported.finish_reason)


def huggingface_error(status: int, message: str, param: str | None) -> bytes:
    """Return an error body as the Hugging Face servers shape it."""
    kinds = {422: "validation", 429: "overloaded", 503: "overloaded"}
    kind = kinds.get(status, "validation" if status < 500 else "generation")
    return orjson.dumps({"error": message if param is None else f"{param}: {message}", "error_type": kind})


def _read_details(data: bytes) -> Usage:
    details = last_object(data, b"details") or {}
    output = whole(details.get("generated_tokens"))
    if output is None:
        output = whole(last_scalar(data, b"generated_tokens"))
    if output is None:
        output = whole(last_scalar(data, b"completion_tokens"))
    prompt = whole(details.get("input_length"))
    if prompt is None:
        prompt = whole(last_scalar(data, b"prompt_tokens"))
    reason = last_scalar(data, b"finish_reason")
    if type(reason) is not str:
        reason = (last_object(data, b"finish_reason") or {}).get("type")
    return Usage(prompt, output, reason if type(reason) is str else None)
