"""Ollama's own API: generate, chat, embed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import orjson

from proxy.wire.base import Call, Head, MergeMismatch, Reply, Route, Tap, Usage, WireFormat
from proxy.wire.envelope import check_shared
from proxy.wire.faults import bare_error, object_error
from proxy.wire.items import merged_body, pass_on, read_items, weights
from proxy.wire.jsonbody import canonical, load_object, model_name, whole
from proxy.wire.lines import LineTap
from proxy.wire.prompt import Prompt, estimate, excerpt, read_messages
from proxy.wire.sse import holds
from proxy.wire.tail import TailTap, last_scalar
from proxy.wire.usage import apportion
from proxy.wire.vectors import load_rows

__all__ = ["Ollama"]

GENERATE: Final = Route("ollama.generate")
CHAT: Final = Route("ollama.chat")
EMBED: Final = Route("ollama.embed", generates=False, auto_merge=True, pure=True)
EMBEDDINGS: Final = Route("ollama.embeddings", generates=False, pure=True)
MODELS: Final = Route("models", inspect=False, queued=False, generates=False)

_POST = {"/api/generate": GENERATE, "/api/chat": CHAT, "/api/embed": EMBED, "/api/embeddings": EMBEDDINGS}
_TIMES = ("total_duration", "load_duration")
_GET = ("/api/tags", "/api/ps", "/api/version")


class Ollama(WireFormat):
    """The `ollama` wire format. Streams are lines of JSON and are the default; `/api/embed` merges."""

    name = "ollama"
    varying = frozenset({"created_at", "load_duration", "prompt_eval_count", "total_duration"})
    routes = (
        GENERATE,
        CHAT,
        EMBED,
        EMBEDDINGS,
        MODELS,
    )

    def match(self, method: str, path: str) -> Route | None:
        """Return the operation for `method path`."""
        if method == "POST":
            return _POST.get(path)
        return MODELS if method in ("GET", "HEAD") and path in _GET else None

    def parse(self, route: Route, head: Head, body: bytes) -> Call:
        """Read one request. Raises BadRequest when the body is no JSON object or the model no string."""
        if not route.inspect:
            return Call(route, body)
        payload = load_object(head, body)
        if payload is None:
            return Call(route, body)
        call = Call(route=route, body=body, model=model_name(payload), payload=payload)
        if route is EMBED:
            _read_inputs(call, head)
            return call
        prompt = Prompt()
        for field in ("system", "prompt"):
            if type(payload.get(field)) is str:
                prompt.add(payload[field])
        read_messages(payload.get("messages"), prompt)
        call.prompt_tokens, call.text = prompt.tokens, prompt.text
        if route is not EMBEDDINGS:
            options = payload.get("options")
            call.stream = payload.get("stream") is not False
            # Negative values mean "no end" and "until the context is full".
            call.max_tokens = whole(options.get("num_predict")) if type(options) is dict else None
        return call

    def error(self, status: int, kind: str, message: str, *, param: str | None = None) -> Reply:
        """Return `{"error": message}`."""
        return Reply(status, orjson.dumps({"error": message if param is None else f"{param}: {message}"}))

    def error_in(self, call: Call, document: dict[str, Any]) -> bool:
        """Tell whether it is `{"error": message}`."""
        return object_error(document) or (call.certain and bare_error(document))

    def stream_error(self, kind: str, message: str) -> bytes:
        """Return a line with an `error` member, which is how Ollama reports one inside a stream."""
        return orjson.dumps({"error": message}) + b"\n"

    def tap(self, call: Call, content_type: str) -> Tap:
        """Return a reader of the answer's counts."""
        return OllamaTap() if content_type.startswith("application/x-ndjson") else TailTap(_read_counts)

    def recognises(self, call: Call, body: bytes, headers: Sequence[tuple[bytes, bytes]]) -> bool:
        """Whether it holds one embedding for each input, and the times that Ollama tells."""
        if call.route is not EMBED:
            return False
        try:
            envelope, rows = load_rows(body, "embeddings", alike=True)
        except MergeMismatch:
            return False
        return len(rows) == call.items and all(type(envelope.get(name)) is int for name in _TIMES)

    def merge(self, calls: Sequence[Call]) -> bytes:
        """Return one body whose `input` lists everybody's items."""
        return merged_body(calls, "input", [call.extra["items"] for call in calls])

    def split(
        self, calls: Sequence[Call], status: int, body: bytes, headers: Sequence[tuple[bytes, bytes]] = ()
    ) -> list[Reply]:
        """Deal out the embeddings, which come in the order of the items."""
        if len(calls) == 1 or not 200 <= status < 300:
            return pass_on(calls, status, body, headers)
        items = [call.extra["items"] for call in calls]
        envelope, rows = load_rows(body, "embeddings", alike=True)
        total = sum(map(len, items))
        if len(rows) != total:
            raise MergeMismatch(f"{total} items were sent, {len(rows)} embeddings came back")
        check_shared(envelope, ("model", "embeddings", "created_at"))
        evaluated = envelope.get("prompt_eval_count")
        counts = apportion(evaluated, weights(items)) if type(evaluated) is int and evaluated >= 0 else None
        replies, start = [], 0
        for position, values in enumerate(items):
            answer = {**envelope, "embeddings": rows[start : start + len(values)]}
            start += len(values)
            if counts is not None:
                answer["prompt_eval_count"] = counts[position]
            replies.append(Reply(status, orjson.dumps(answer)))
        return replies


class OllamaTap(LineTap):
    """Reads a stream of partial answers; the last line says `done` and holds the counts."""

    __slots__ = ("_last",)

    def __init__(self) -> None:
        super().__init__()
        self._last = b""

    def line(self, data: bytes) -> None:
        """Look at one line."""
        if _is_last(data):
            self._last = data
        elif holds(data, b'"done":false') or holds(data, b'"done": false'):
            self.tokens_seen += 1
        elif holds(data, b'"error"'):
            self.suspect(data)

    def finished(self) -> bool:
        """Whether the line that says `done` has passed."""
        return bool(self._final())

    def marks_end(self) -> bool:
        """Whether there is such a line."""
        return True

    def usage(self) -> Usage:
        """Return the reported counts, else the number of partial answers."""
        reported = _read_counts(self._final())
        output = reported.output_tokens
        if output is None and self.tokens_seen:
            output = self.tokens_seen
        return Usage(reported.prompt_tokens, output, reported.finish_reason)

    def _final(self) -> bytes:
        """Return the last line, which may lack its newline."""
        if self._last:
            return self._last
        line = self.unfinished().strip()
        return line if _is_last(line) and line.endswith(b"}") else b""


def _is_last(line: bytes) -> bool:
    return holds(line, b'"done":true') or holds(line, b'"done": true')


def _read_counts(data: bytes) -> Usage:
    prompt, output, reason = (
        last_scalar(data, name) for name in (b"prompt_eval_count", b"eval_count", b"done_reason")
    )
    return Usage(whole(prompt), whole(output), reason if type(reason) is str else None)


def _read_inputs(call: Call, head: Head) -> None:
    value: Any = call.payload.get("input")
    items = read_items(value)
    if items is None or items.kind != "text":
        call.items = max(1, len(value)) if type(value) is list else 1
        call.prompt_tokens = estimate(value)
        return
    call.items = len(items.values)
    call.prompt_tokens = sum(map(estimate, items.values))
    call.text = excerpt(items.values, sum(map(len, items.values)))
    call.extra["items"] = items.values
    rest = canonical(call.payload, ("model", "input"))
    if rest is not None:
        call.compat_key = (call.route.name, head.target, call.model, rest)
