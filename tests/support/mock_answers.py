"""The bodies that the mock upstream answers with: OpenAI's API, and whatever else a test asked for."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from tests.support.mock_behaviour import Behaviour, Seen

__all__ = ["chat_stream", "content"]


def content(seen: Seen, how: Behaviour, metrics: str) -> tuple[int, str, list[bytes]]:
    """Return status, content type and the pieces of the body; `metrics` is what /metrics says."""
    if how.echo:
        return how.status, seen.header("content-type") or "application/octet-stream", [seen.body]
    if how.body is not None:
        return how.status, "application/json", [how.body.encode()]
    if how.body_size is not None:
        return how.status, "application/octet-stream", [b"x" * how.body_size]
    path = seen.target.partition("?")[0]
    if how.status != 200:
        return how.status, "application/json", [_error(f"mock says {how.status}")]
    if path.endswith("/models"):
        return 200, "application/json", [b'{"object":"list","data":[{"id":"mock","object":"model"}]}']
    if path.endswith("/metrics"):
        return 200, "text/plain; version=0.0.4", [metrics.encode()]
    if path.endswith(("/health", "/v1/health")):
        return 200, "text/plain", [b"ok"]
    if seen.method != "POST":
        return 200, "text/plain", [f"{seen.method} {seen.target}".encode()]
    try:
        payload = json.loads(seen.body or b"{}")
    except ValueError:
        return 200, "application/octet-stream", [seen.body]
    if path.endswith("/chat/completions"):
        if payload.get("stream"):
            usage = bool((payload.get("stream_options") or {}).get("include_usage"))
            return 200, "text/event-stream; charset=utf-8", chat_stream(how.tokens, usage=usage, width=how.width)
        return 200, "application/json", [_chat(how.tokens)]
    if path.endswith("/embeddings"):
        return _list(payload.get("input"), how, _embedding, "data")
    if path.endswith("/completions"):
        return _list(payload.get("prompt"), how, _choice, "choices")
    return 200, "application/json", [json.dumps({"path": path, "got": len(seen.body)}).encode()]


def _list(
    given: Any, how: Behaviour, make: Callable[[int, Any], dict[str, Any]], name: str
) -> tuple[int, str, list[bytes]]:
    values = given if isinstance(given, list) and not all(isinstance(v, int) for v in given) else [given]
    if any(value in how.poison for value in values if isinstance(value, str)):
        return how.poison_status, "application/json", [_error("poisoned input")]
    results = [make(index, value) for index, value in enumerate(values)]
    wanted = how.results if how.merged_results is None or len(values) == 1 else how.merged_results
    if wanted is not None:
        results = (results * (wanted + 1))[:wanted]
    if how.shuffle:
        results = results[1::2] + results[::2]
    tokens = sum(len(str(value)) for value in values)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return 200, "application/json", [json.dumps({"object": "list", name: results, "usage": usage}).encode()]


def chat_stream(tokens: int, *, usage: bool = False, width: int = 0) -> list[bytes]:
    """Return the events of a chat stream, `[DONE]` included."""
    events = []
    for index in range(tokens):
        finish = "stop" if index == tokens - 1 else None
        choice = {"index": 0, "delta": {"content": f" täg-{index} 漢字 🙂" + "x" * width}, "finish_reason": finish}
        chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "mock", "choices": [choice]}
        events.append(b"data: " + json.dumps(chunk, ensure_ascii=False).encode() + b"\n\n")
    if usage:
        counts = {"prompt_tokens": 7, "completion_tokens": tokens, "total_tokens": 7 + tokens}
        chunk = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [], "usage": counts}
        events.append(b"data: " + json.dumps(chunk).encode() + b"\n\n")
    events.append(b"data: [DONE]\n\n")
    return events


def _chat(tokens: int) -> bytes:
    message = {"role": "assistant", "content": "x " * tokens}
    usage = {"prompt_tokens": 7, "completion_tokens": tokens, "total_tokens": 7 + tokens}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    return json.dumps(
        {"id": "chatcmpl-1", "object": "chat.completion", "model": "mock", "choices": [choice], "usage": usage}
    ).encode()


def _embedding(index: int, value: Any) -> dict[str, Any]:
    """The vector tells which input it belongs to."""
    return {"object": "embedding", "index": index, "embedding": [float(len(str(value))), float(_number(value))]}


def _choice(index: int, value: Any) -> dict[str, Any]:
    return {"index": index, "text": f"answer to {value}", "finish_reason": "length"}


def _number(value: Any) -> int:
    digits = "".join(c for c in str(value) if c.isdigit())
    return int(digits or 0) % 1_000_003


def _error(message: str) -> bytes:
    return json.dumps({"error": {"message": message, "type": "mock_error"}}).encode()
