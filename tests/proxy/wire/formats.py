"""One sample of everything each wire format promises, for the conformance suite."""

# ruff: noqa: E501  (tables read best a row to a line)

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from proxy.wire.base import Usage

Headers = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Sample:
    """One operation of one format."""

    wire: str
    path: str
    route: str
    body: dict[str, Any]
    model: str = "m"
    model_in_body: bool = True
    queued: bool = True
    auto: bool = True
    """Whether `auto` finds the format by the path."""
    stream: tuple[str, bytes, Usage, int, bool] | None = None
    """Content type, body, what a tap reads from it: usage, tokens, finished."""
    whole: tuple[bytes, Usage] | None = None
    """A non-streaming answer and what a tap reads from it."""
    streaming: bool = False
    """Whether `body` asks for a stream."""
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        return f"{self.wire}:{self.path}"


def sse(*events: tuple[str, Any] | Any) -> bytes:
    """Write events, each a (name, data) pair or bare data."""
    written = []
    for event in events:
        name, data = event if isinstance(event, tuple) else ("", event)
        text = data if isinstance(data, bytes) else orjson.dumps(data)
        written.append((f"event: {name}\n".encode() if name else b"") + b"data: " + text + b"\n\n")
    return b"".join(written)


CHAT = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}
SSE = "text/event-stream"

ANTHROPIC_STREAM = sse(
    ("message_start", {"type": "message_start", "message": {"usage": {"input_tokens": 4, "cache_read_input_tokens": 6, "output_tokens": 1}}}),
    ("content_block_start", {"type": "content_block_start", "index": 0}),
    ("ping", {"type": "ping"}),
    ("content_block_delta", {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "世"}}),
    ("content_block_delta", {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "界"}}),
    ("content_block_stop", {"type": "content_block_stop", "index": 0}),
    ("message_delta", {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 15}}),
    ("message_stop", {"type": "message_stop"}),
)  # fmt: skip

OLLAMA_STREAM = b"".join(
    orjson.dumps(line) + b"\n"
    for line in (
        {"model": "m", "message": {"role": "assistant", "content": "世"}, "done": False},
        {"model": "m", "message": {"role": "assistant", "content": "\n\n"}, "done": False},
        {"model": "m", "done": True, "done_reason": "stop", "prompt_eval_count": 11, "eval_count": 22},
    )
)

TGI_STREAM = b"".join(
    b"data:" + orjson.dumps(event) + b"\n\n"
    for event in (
        {"index": 1, "token": {"id": 1, "text": "a"}, "generated_text": None, "details": None},
        {"index": 2, "token": {"id": 2, "text": "{"}, "generated_text": "a{", "details": {"finish_reason": "length", "generated_tokens": 2, "input_length": 7}},
    )
)  # fmt: skip

SGLANG_STREAM = sse(
    {"text": "a", "meta_info": {"prompt_tokens": 3, "completion_tokens": 1, "finish_reason": None}},
    {"text": "ab", "meta_info": {"prompt_tokens": 3, "completion_tokens": 2, "finish_reason": {"type": "stop", "matched": 7}}},
    b"[DONE]",
)  # fmt: skip

TENSOR = {"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [1.0, 2.0, 3.0, 4.0]}

SAMPLES = [
    Sample(
        "openai", "/v1/chat/completions", "chat.completions", {**CHAT, "stream": True}, streaming=True,
        stream=(
            SSE,
            sse({"choices": [{"delta": {"content": "é"}}]}, {"choices": [], "usage": {"prompt_tokens": 2, "completion_tokens": 3}}, b"[DONE]"),
            Usage(2, 3, None), 1, True,
        ),
        whole=(orjson.dumps({"choices": [{"finish_reason": "stop"}], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}), Usage(1, 2, "stop")),
    ),
    Sample("openai", "/v1/completions", "completions", {"model": "m", "prompt": "Hi"}),
    Sample("openai", "/v1/embeddings", "embeddings", {"model": "m", "input": "Hi"}),
    Sample("openai", "/v1/responses", "responses", {"model": "m", "input": "Hi"}),
    Sample("openai", "/v1/score", "scores", {"model": "m", "text_1": "a", "text_2": "b"}),
    Sample(
        "anthropic", "/v1/messages", "messages", {**CHAT, "system": [{"type": "text", "text": "Be nice"}], "stream": True},
        streaming=True,
        stream=(SSE, ANTHROPIC_STREAM, Usage(10, 15, "end_turn"), 2, True),
        whole=(
            orjson.dumps({"content": [{"type": "text", "text": "x"}], "stop_reason": "max_tokens", "usage": {"input_tokens": 1, "output_tokens": 2}}),
            Usage(1, 2, "max_tokens"),
        ),
    ),
    Sample("anthropic", "/v1/messages/count_tokens", "messages.count_tokens", CHAT, queued=False),
    Sample(
        "ollama", "/api/chat", "ollama.chat", {"model": "m", "messages": [{"role": "user", "content": "Hi", "images": ["AAAA"]}], "options": {"num_predict": 5}},
        streaming=True,
        stream=("application/x-ndjson", OLLAMA_STREAM, Usage(11, 22, "stop"), 2, True),
        whole=(orjson.dumps({"done": True, "done_reason": "stop", "prompt_eval_count": 1, "eval_count": 2}), Usage(1, 2, "stop")),
    ),
    Sample("ollama", "/api/generate", "ollama.generate", {"model": "m", "prompt": "Hi"}, streaming=True),
    Sample("ollama", "/api/embed", "ollama.embed", {"model": "m", "input": ["a", "b"]}),
    Sample("ollama", "/api/embeddings", "ollama.embeddings", {"model": "m", "prompt": "Hi"}),
    Sample(
        "tgi", "/generate_stream", "generate_stream", {"inputs": "Hi", "parameters": {"max_new_tokens": 5}},
        model="", model_in_body=False, streaming=True,
        stream=(SSE, TGI_STREAM, Usage(7, 2, "length"), 2, True),
    ),
    Sample(
        "tgi", "/generate", "generate", {"text": "Hi", "sampling_params": {"max_new_tokens": 5}, "stream": True},
        model="", model_in_body=False, streaming=True,
        stream=(SSE, SGLANG_STREAM, Usage(3, 2, "stop"), 2, True),
        whole=(orjson.dumps({"generated_text": "x", "details": {"finish_reason": "eos_token", "generated_tokens": 9}}), Usage(None, 9, "eos_token")),
    ),
    Sample("tgi", "/", "generate.root", {"inputs": "Hi"}, model="", model_in_body=False, auto=False),
    Sample("tei", "/embed", "tei.embed", {"inputs": "Hi"}, model="", model_in_body=False),
    Sample("tei", "/embed_sparse", "tei.embed", {"inputs": ["Hi"]}, model="", model_in_body=False),
    Sample("tei", "/rerank", "tei.rerank", {"query": "q", "texts": ["a", "b"]}, model="", model_in_body=False, auto=False),
    Sample("tei", "/predict", "tei.predict", {"inputs": "Hi"}, model="", model_in_body=False, auto=False),
    Sample(
        "kserve", "/v2/models/m/versions/3/infer", "kserve.infer", {"id": "7", "inputs": [TENSOR]}, model_in_body=False
    ),
    Sample(
        "kserve", "/v2/models/m/generate_stream", "kserve.generate", {"text_input": "Hi", "max_tokens": 5},
        model_in_body=False, streaming=True,
        stream=(SSE, sse({"text_output": "a"}, {"text_output": "b"}), Usage(None, 2, None), 2, False),
    ),
    Sample("tfserving", "/v1/models/m:predict", "tfserving.predict", {"instances": [[1, 2]]}, model_in_body=False),
    Sample("tfserving", "/v1/models/m/versions/1:classify", "tfserving.other", {"examples": []}, model_in_body=False),
    Sample("rerank", "/v1/rerank", "rerank", {"model": "m", "query": "q", "documents": ["a", {"text": "b"}]}),
    Sample("rerank", "/rerank", "rerank", {"query": "q", "texts": ["a"]}, model=""),
]  # fmt: skip

# --- servers to merge against: what a body with several items is answered with -----------------------------------


def _texts(value: Any) -> list[Any]:
    return [value] if isinstance(value, str) or (value and isinstance(value[0], int)) else list(value)


def _vector(item: Any) -> list[float]:
    return [len(repr(item)) / 8, *[byte / 256 for byte in repr(item).encode()[:4]]]


def ollama_embed(body: bytes) -> bytes:
    request = orjson.loads(body)
    return orjson.dumps(
        {"model": "m", "embeddings": [_vector(t) for t in _texts(request["input"])], "total_duration": 5}
    )


def tei_embed(body: bytes) -> bytes:
    return orjson.dumps([_vector(text) for text in _texts(orjson.loads(body)["inputs"])])


def tei_predict(body: bytes) -> bytes:
    given = orjson.loads(body)["inputs"]
    bare = isinstance(given, str) or isinstance(given[0], str)
    items = [[given] if isinstance(given, str) else given] if bare else given
    results = [[{"label": "-".join(item), "score": 0.5}] for item in items]
    return orjson.dumps(results[0] if bare else results)


def _ranked(query: str, documents: list[Any]) -> list[dict[str, Any]]:
    scored = [
        {"index": i, "relevance_score": _vector([query, document])[0], "document": document}
        for i, document in enumerate(documents)
    ]
    return sorted(scored, key=lambda result: (-result["relevance_score"], result["index"]))


def tei_rerank(body: bytes) -> bytes:
    request = orjson.loads(body)
    return orjson.dumps(_ranked(request["query"], request["texts"]))


def rerank(body: bytes) -> bytes:
    request = orjson.loads(body)
    return orjson.dumps(
        {"results": _ranked(request["query"], request["documents"]), "meta": {"api_version": {"version": "2"}}}
    )


def tf_instances(body: bytes) -> bytes:
    return orjson.dumps({"predictions": [{"sum": repr(row)} for row in orjson.loads(body)["instances"]]})


def tf_columns(body: bytes) -> bytes:
    columns = orjson.loads(body)["inputs"]
    rows = [repr(row) for row in zip(*(columns[name] for name in sorted(columns)), strict=True)]
    return orjson.dumps({"outputs": {"first": rows, "second": [[row] for row in rows]}})


@dataclass(frozen=True)
class Mergeable:
    """An operation whose requests merge by list, and a server for it."""

    wire: str
    path: str
    server: Callable[[bytes], bytes]
    bodies: tuple[dict[str, Any], ...]
    """Requests that may share a call."""
    others: tuple[dict[str, Any], ...] = ()
    """Requests that may not share a call with the first of `bodies`, nor with one another."""
    alone: tuple[dict[str, Any], ...] = ()
    """Requests that may share a call with nobody."""

    @property
    def id(self) -> str:
        return f"{self.wire}:{self.path}:{self.server.__name__}"


MERGEABLE = [
    Mergeable(
        "ollama", "/api/embed", ollama_embed,
        bodies=({"model": "m", "input": "one"}, {"model": "m", "input": ["two", "three"]}, {"model": "m", "input": ["é"]}),
        others=({"model": "n", "input": "one"}, {"model": "m", "input": "one", "truncate": True}, {"model": "m", "input": "one", "options": {"num_ctx": 9}}),
        alone=({"model": "m", "input": []}, {"model": "m", "input": ""}, {"model": "m"}, {"model": "m", "input": [[1]]}),
    ),
    Mergeable(
        "tei", "/embed", tei_embed,
        bodies=({"inputs": "one"}, {"inputs": ["two", "three"]}, {"inputs": ["four"]}),
        others=({"inputs": "one", "truncate": True}, {"inputs": [1, 2]}, {"inputs": "one", "normalize": False}),
        alone=({"inputs": []}, {"inputs": [""]}, {}),
    ),
    Mergeable(
        "tei", "/predict", tei_predict,
        bodies=({"inputs": "one"}, {"inputs": ["a", "pair"]}, {"inputs": [["x"], ["y", "z"]]}),
        others=({"inputs": "one", "raw_scores": True},),
        alone=({"inputs": []}, {"inputs": ["a", "b", "c"]}, {"inputs": [[]]}, {"inputs": [["a", "b", "c"]]}, {"inputs": [["a"], "b"]}),
    ),
    Mergeable(
        "tei", "/rerank", tei_rerank,
        bodies=({"query": "q", "texts": ["one", "three"]}, {"query": "q", "texts": ["two"]}),
        others=({"query": "other", "texts": ["one"]}, {"query": "q", "texts": ["one"], "return_text": True}),
        alone=({"query": "q", "texts": []}, {"query": "q", "texts": [1]}, {"query": "", "texts": ["a"]}),
    ),
    Mergeable(
        "rerank", "/v1/rerank", rerank,
        bodies=({"model": "m", "query": "q", "documents": ["one", "three"]}, {"model": "m", "query": "q", "documents": ["two"]}),
        others=({"model": "m", "query": "q", "documents": [{"text": "one"}]}, {"model": "n", "query": "q", "documents": ["a"]}, {"model": "m", "query": "p", "documents": ["a"]}, {"model": "m", "query": "q", "texts": ["a"]}),
        alone=({"model": "m", "query": "q", "documents": ["a"], "top_n": 1}, {"model": "m", "query": "q"}, {"model": "m", "query": ["q"], "documents": ["a"]}, {"model": "m", "query": "q", "documents": ["a", {"text": "b"}]}),
    ),
    Mergeable(
        "tfserving", "/v1/models/m:predict", tf_instances,
        bodies=({"instances": [[1, 2], [3.5, 4]]}, {"instances": [[5, 6]]}),
        others=(
            {"instances": [[1, 2, 3]]}, {"instances": [["a", "b"]]}, {"instances": [1]}, {"instances": [{"x": [1, 2]}]},
            {"instances": [{"b64": "AA=="}]}, {"instances": [[1, 2]], "signature_name": "s"}, {"inputs": [[1, 2]]},
        ),
        alone=({"instances": []}, {"instances": [[1, 2], [3]]}, {"instances": [[[1, 2], [3]]]}, {"instances": [[]]}, {"instances": [[1, None]]}, {"instances": [[1, "a"]]}, {"instances": [[1, True]]}, {"instances": [{"x": [1, [2]]}]}, {"instances": [{}]}, {"instances": [None]}, {"instances": [{"b64": 3}]}, {"instances": [[1, 2]], "inputs": [[1, 2]]}, {"instances": 3}, {}),
    ),
    Mergeable(
        "tfserving", "/v1/models/m:predict", tf_columns,
        bodies=({"inputs": {"x": [[1], [2]], "y": ["a", "b"]}}, {"inputs": {"y": ["c"], "x": [[3]]}}),
        others=({"inputs": {"x": [[1, 2]], "y": ["a"]}}, {"inputs": {"x": [[1]]}}, {"inputs": {"x": [[1]], "z": ["a"]}}),
        alone=({"inputs": {"x": [1, 2], "y": [3]}}, {"inputs": {}}, {"inputs": {"x": 3}}, {"inputs": 3}),
    ),
]  # fmt: skip
