"""The requests of each protocol: what its clients send every day, and what they send by mistake."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

from benchmarks.compat.exchange import VOLATILE, Ask, post

__all__ = [
    "ONLY_EMBEDDINGS", "anthropic", "chat", "completions", "embeddings", "infer", "listing", "ollama", "plain",
    "rerank", "several_embeddings", "several_inferences", "tgi",
]  # fmt: skip

_QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
_WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Tell the weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
_STREAM = {"stream": True, "stream_options": {"include_usage": True}}
_NOTHING: frozenset[str] = frozenset()
_BEARER = ("Authorization", "Bearer sk-any")


def listing(*paths: str) -> tuple[Ask, ...]:
    """Plain reads, with GET and with HEAD."""
    gets = tuple(Ask(f"GET {path}", "GET", path, volatile=frozenset({"created"})) for path in paths)
    return (*gets, Ask(f"HEAD {paths[0]}", "HEAD", paths[0]))


def plain(path: str) -> tuple[Ask, ...]:
    """What goes wrong on any server: no such path, no such method, a body that is not what it says."""
    return (
        Ask("no such path", "GET", "/no/such/path"),
        Ask("wrong method", "DELETE", path),
        post("empty object", path, {}),
        post("list in place of an object", path, b"[1, 2]"),
        post("broken JSON", path, b'{"model": "demo", '),
        post("body that is no UTF-8", path, b'{"model": "\xff\xfe"}'),
    )


def chat(model: str, path: str = "/v1/chat/completions", **extra: Any) -> tuple[Ask, ...]:
    """OpenAI chat, plain and streamed."""

    def one(name: str, *headers: tuple[str, str], **fields: Any) -> Ask:
        body = {"model": model, "messages": _QUESTION, "max_tokens": 12, "temperature": 0, **extra, **fields}
        return post(f"chat: {name}", path, body, _BEARER, *headers)

    return (
        one("plain"),
        one("streamed", **_STREAM),
        one("streamed, no usage asked", stream=True),
        one("unknown field", some_field_nobody_knows={"a": [1, 2.50, "\u00e9"]}),
        one("stop", stop=["Paris", "capital"]),
        one("two choices", n=2, temperature=0.5, seed=7),
        one("log probabilities", logprobs=True, top_logprobs=2),
        one("penalties and bias", presence_penalty=0.5, logit_bias={"100": -100}),
        one("JSON mode", response_format={"type": "json_object"}),
        one("tools", tools=[_WEATHER], tool_choice="auto"),
        one("temperature out of range", temperature=-1),
        one("no tokens wanted", max_tokens=0),
        one("more tokens than there are", max_tokens=1_000_000),
        one("no messages", messages=[]),
        one("no such model", model="no-such-model"),
        one("model that is no text", model=7),
        one("accepts gzip", ("Accept-Encoding", "gzip")),
    )


def completions(model: str) -> tuple[Ask, ...]:
    """OpenAI completions: one prompt, several, token ids, streamed."""

    def one(name: str, **fields: Any) -> Ask:
        body = {"model": model, "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0, **fields}
        return post(f"completions: {name}", "/v1/completions", body, _BEARER)

    return (
        one("plain"),
        one("two prompts", prompt=["One, two,", "The sky is"]),
        one("token ids", prompt=[1, 2, 3, 4]),
        one("streamed", **_STREAM),
        one("echo", echo=True),
        one("log probabilities", logprobs=2),
        one("no prompt", prompt=None),
    )


def anthropic(model: str) -> tuple[Ask, ...]:
    """Anthropic's messages."""
    version = ("anthropic-version", "2023-06-01")

    def one(name: str, **fields: Any) -> Ask:
        body = {"model": model, "messages": _QUESTION, "max_tokens": 12, "temperature": 0, **fields}
        return post(f"messages: {name}", "/v1/messages", body, version, ("x-api-key", "sk-any"))

    return (
        one("plain"),
        one("streamed", stream=True),
        one("system", system="Answer in one word."),
        one("no such model", model="no-such-model"),
        one("no messages", messages=[]),
    )


def embeddings(model: str, path: str = "/v1/embeddings") -> tuple[Ask, ...]:
    """OpenAI embeddings: a text, a list, base64, and what is wrong with some."""

    def one(name: str, **fields: Any) -> Ask:
        return post(f"embeddings: {name}", path, {"model": model, "input": "a small boat", **fields}, _BEARER)

    return (
        one("one text"),
        one("list", input=["one", "two words", "and here are three"]),
        one("base64", encoding_format="base64"),
        one("base64 list", input=["one", "two"], encoding_format="base64"),
        one("unknown format", encoding_format="morse"),
        one("empty list", input=[]),
        one("no input", input=None),
        one("no such model", model="no-such-model"),
    )


def rerank(model: str, path: str) -> tuple[Ask, ...]:
    """Rankings as Cohere and Jina spell them."""
    body = {"model": model, "query": "boat", "documents": ["a ship at sea", "a mountain", "tax law"]}
    return (
        post("rerank: plain", path, body),
        post("rerank: the first, with documents", path, {**body, "top_n": 1, "return_documents": True}),
    )


def ollama(model: str) -> tuple[Ask, ...]:
    """Ollama's chat: streams are what it does unless told not to."""
    body = {"model": model, "messages": _QUESTION, "options": {"num_predict": 8, "temperature": 0}}
    return (
        post("ollama chat: streamed", "/api/chat", body),
        post("ollama chat: plain", "/api/chat", {**body, "stream": False}),
        post("ollama chat: no messages", "/api/chat", {"model": model}),
        *listing("/api/tags", "/api/version", "/api/ps"),
        post("ollama show", "/api/show", {"model": model}),
    )


def tgi(path: str = "/generate") -> tuple[Ask, ...]:
    """Text Generation Inference's own API."""
    body = {"inputs": "The capital of France is", "parameters": {"max_new_tokens": 6}}
    return (
        post("generate", path, body),
        post("generate, with details", path, {**body, "parameters": {"max_new_tokens": 6, "details": True}}),
        post("generate, streamed", f"{path}_stream", body),
        post("generate, wrong", path, {"inputs": "x", "parameters": {"max_new_tokens": -1}}),
    )


def infer(model: str, *, rows: int = 2) -> tuple[Ask, ...]:
    """KServe v2 on a model that takes INT32 `x` of shape [n, 1] and gives `y` of the same."""
    path = f"/v2/models/{model}/infer"
    numbers = list(range(3, 3 + rows))
    tensor = {"name": "x", "shape": [rows, 1], "datatype": "INT32"}
    raw = struct.pack(f"<{rows}i", *numbers)
    head = (
        f'{{"id":"seven","inputs":[{{"name":"x","shape":[{rows},1],"datatype":"INT32","parameters":'
        f'{{"binary_data_size":{len(raw)}}}}}],"outputs":[{{"name":"y","parameters":{{"binary_data":true}}}}]}}'
    ).encode()
    binary = (
        ("Content-Type", "application/octet-stream"),
        ("Inference-Header-Content-Length", str(len(head))),
    )
    wrong = (*binary[:1], ("Inference-Header-Content-Length", "9999"))
    json_body = {"id": "seven", "inputs": [{**tensor, "data": numbers}]}
    return (
        *listing("/v2/health/live", "/v2/health/ready", "/v2", f"/v2/models/{model}", f"/v2/models/{model}/ready"),
        Ask("model metadata of none", "GET", "/v2/models/none"),
        post("infer: JSON", path, json_body, volatile=_NOTHING),
        Ask("infer: binary", "POST", path, head + raw, binary, _NOTHING),
        post("infer: JSON in, binary out", path, {**json_body, "outputs": [_binary("y")]}, volatile=_NOTHING),
        post("infer: wrong type", path, {"inputs": [{**tensor, "datatype": "FP32", "data": numbers}]}),
        post("infer: shape and data differ", path, {"inputs": [{**tensor, "data": [1]}]}),
        post("infer: no such input", path, {"inputs": [{**tensor, "name": "z", "data": numbers}]}),
        post("infer: no such model", "/v2/models/none/infer", json_body),
        Ask("infer: wrong header length", "POST", path, head + raw, wrong),
    )


def _binary(name: str) -> dict[str, Any]:
    return {"name": name, "parameters": {"binary_data": True}}


ONLY_EMBEDDINGS = frozenset(
    {
        "chat", "chat, streamed", "chat, eight at once", "completions", "completions, two prompts",
        "responses, streamed", "bad request",
    }
)  # fmt: skip
"""The openai client's calls that an embeddings server has no use for."""


def several_embeddings(model: str, count: int) -> tuple[Ask, ...]:
    """Texts of their own, some in lists, some in base64: what may share an upstream call, and what may not.

    A batch pads its members to one length, which moves the last digits of a float. An answer tells the tokens of the
    whole batch only, so that a part's are an estimate.
    """
    texts = [f"sentence number {n} " + "and more " * (n % 5) for n in range(count)]
    return tuple(
        post(
            f"embeddings: {n} of {count} at once",
            "/v1/embeddings",
            {"model": model, "input": [text, str(n)] if n % 4 == 0 else text},
            _BEARER,
            volatile=VOLATILE | {"prompt_tokens", "total_tokens"},
            tolerance=1e-4,
        )
        for n, text in enumerate(texts)
    )


def several_inferences(model: str, count: int) -> tuple[Ask, ...]:
    """Inferences of one to three rows at once, in JSON and in binary."""
    one = [infer(model, rows=1 + n % 3) for n in range(count)]
    named = [
        next(ask for ask in asks if ask.name == f"infer: {('JSON', 'binary')[n % 2]}") for n, asks in enumerate(one)
    ]
    return tuple(replace(ask, name=f"{ask.name}, {n} of {count} at once") for n, ask in enumerate(named))
