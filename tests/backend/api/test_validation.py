"""Every parameter error is an OpenAI error object that names the parameter and what would be right."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from backend.grammar import source
from tests.backend.api.conftest import StartWorker, Worker
from tests.backend.api.fakes import Counting

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
EMBED = "/v1/embeddings"
HELLO = [{"role": "user", "content": "hello"}]

BOTH: list[tuple[dict[str, Any], str, str]] = [
    # (body, parameter named, what the message must say)
    ({"temperature": -1}, "temperature", "between 0 and 2"),
    ({"temperature": 2.5}, "temperature", "between 0 and 2"),
    ({"temperature": "hot"}, "temperature", "a number, not string"),
    ({"temperature": True}, "temperature", "a number, not boolean"),
    ({"max_tokens": 0}, "max_tokens", "at least 1"),
    ({"max_tokens": 1.5}, "max_tokens", "an integer"),
    ({"max_tokens": 100_000}, "max_tokens", "context length of 512"),
    ({"max_completion_tokens": -3}, "max_completion_tokens", "at least 1"),
    ({"min_tokens": -1}, "min_tokens", "at least 0"),
    ({"min_tokens": 9, "max_tokens": 8}, "min_tokens", "at most the output bound of 8"),
    ({"top_p": 2}, "top_p", "above 0 and at most 1"),
    ({"top_p": 0}, "top_p", "above 0 and at most 1"),
    ({"top_k": -2}, "top_k", "at least -1"),
    ({"min_p": 1.1}, "min_p", "between 0 and 1"),
    ({"repetition_penalty": 0}, "repetition_penalty", "between 0.01 and 10"),
    ({"repetition_penalty": 1e-300}, "repetition_penalty", "between 0.01 and 10"),
    ({"presence_penalty": 3}, "presence_penalty", "between -2 and 2"),
    ({"frequency_penalty": -2.1}, "frequency_penalty", "between -2 and 2"),
    ({"seed": 2**63}, "seed", "between -9223372036854775808 and 9223372036854775807"),
    ({"seed": "lucky"}, "seed", "an integer, not string"),
    ({"logit_bias": {"999": 1}}, "logit_bias", "from 0 to 256"),
    ({"logit_bias": {"-1": 1}}, "logit_bias", "from 0 to 256"),
    ({"logit_bias": {"9" * 5000: 1}}, "logit_bias", "from 0 to 256"),
    ({"logit_bias": {"1": 101}}, "logit_bias", "between -100 and 100"),
    ({"logit_bias": {"1": "x"}}, "logit_bias", "an object of numbers"),
    ({"logit_bias": [1]}, "logit_bias", "an object, not array"),
    ({"stop": [""]}, "stop", "between 1 and 1024 characters"),
    ({"stop": ["x"] * 17}, "stop", "at most 16 entries"),
    ({"stop": 3}, "stop", "a string or an array of strings"),
    ({"stop_token_ids": [257]}, "stop_token_ids", "between 0 and 256"),
    ({"stop_token_ids": "x"}, "stop_token_ids", "an array of token ids"),
    ({"ignore_eos": "yes"}, "ignore_eos", "a boolean, not string"),
    ({"n": 0}, "n", "between 1 and 8"),
    ({"n": 9}, "n", "between 1 and 8"),
    ({"stream": "true"}, "stream", "a boolean, not string"),
    ({"stream_options": {"include_usage": True}}, "stream_options", "only allowed when 'stream' is true"),
    ({"stream": True, "stream_options": 1}, "stream_options", "an object, not number"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "include_usage", "a boolean"),
    ({"cache_salt": 5}, "cache_salt", "a string, not number"),
    ({"cache_salt": "s" * 257}, "cache_salt", "at most 256 characters"),
    ({"model": 5}, "model", "a string, not number"),
    ({"use_beam_search": True}, "use_beam_search", "not supported"),
    ({"prompt_logprobs": 3}, "prompt_logprobs", "not supported"),
    ({"guided_json": "x"}, "guided_json", "a JSON schema"),
    ({"guided_json": {"type": "strin"}}, "guided_json", "Invalid type: strin"),
    ({"guided_regex": 5}, "guided_regex", "a string"),
    ({"guided_regex": "(?=x)y"}, "guided_regex", "look-around"),
    ({"guided_json": {"$ref": "#"}}, "guided_json", "the schema at '#' has no end"),
    ({"guided_grammar": 'start: "a" start'}, "guided_grammar", "the rule 'start' has no end"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"anyOf": [{"$ref": "#"}]}}}},
        "response_format",
        "has no end",
    ),
    ({"guided_choice": []}, "guided_choice", "between 1 and 1024"),
    ({"guided_choice": ["a", ""]}, "guided_choice", "non-empty strings"),
    ({"guided_grammar": "nonsense ::="}, "guided_grammar", "cannot be enforced"),
    ({"structured_outputs": {"regex": "("}}, "structured_outputs", "cannot be enforced"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "objekt"}}}},
        "response_format",
        "'response_format' cannot be enforced: Invalid type: objekt",
    ),
    ({"structured_outputs": {}}, "structured_outputs", "exactly one of 'json'"),
    ({"structured_outputs": {"yaml": 1}}, "structured_outputs", "exactly one of 'json'"),
    ({"structured_outputs": {"json": {}}, "guided_choice": ["a"]}, "guided_choice", "cannot be combined"),
    ({"guided_choice": ["a"], "ignore_eos": True}, "ignore_eos", "cannot be combined"),
    ({"guided_choice": ["a"], "min_tokens": 2}, "min_tokens", "cannot be combined"),
    ({"response_format": {"type": "json_schema"}}, "response_format", "schema' must be an object"),
    ({"response_format": {"type": "xml"}}, "response_format", "'json_object'"),
    ({"response_format": "text"}, "response_format", "an object"),
    ({"best_of": 4}, "best_of", "not supported"),
    ({"best_of": True}, "best_of", "not supported"),
    ({"user": 5}, "user", "a string, not number"),
]

CHAT_ONLY: list[tuple[dict[str, Any], str, str]] = [
    ({"messages": None}, "messages", "required"),
    ({"messages": []}, "messages", "between 1 and 4096"),
    ({"messages": "hi"}, "messages", "an array, not string"),
    ({"messages": ["hi"]}, "messages[0]", "an object, not string"),
    ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role", "'assistant'"),
    ({"messages": [{"role": "user"}]}, "messages[0].content", "required"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content", "not number"),
    ({"messages": [{"role": "user", "content": [5]}]}, "messages[0].content[0]", "an object"),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
        "messages[0].content[0].type",
        "text only",
    ),
    ({"messages": [{"role": "user", "content": "refuse me"}]}, "messages", "must not ask to be refused"),
    ({"messages": [{"role": "user", "content": "x" * 600}]}, "messages", "512 tokens"),
    ({"logprobs": 3}, "logprobs", "a boolean"),
    ({"top_logprobs": 3}, "top_logprobs", "only allowed when 'logprobs' is true"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "between 0 and 20"),
    ({"functions": [{"name": "f"}]}, "functions", "use 'tools'"),
    ({"modalities": ["audio"]}, "modalities", "text only"),
    ({"chat_template": "x"}, "chat_template", "not taken from requests"),
    ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", "may not set 'messages'"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools", "knows no tools"),
    ({"tools": 5}, "tools", "an array"),
    ({"tools": [5]}, "tools[0]", "type 'function'"),
    ({"tool_choice": "required"}, "tool_choice", "'tools'"),
    ({"tool_choice": "maybe"}, "tool_choice", "'required' or a function"),
    ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "tool_choice", "must name a function"),
    ({"tool_choice": "auto"}, "tool_choice", "'tools'"),
    ({"parallel_tool_calls": "no"}, "parallel_tool_calls", "a boolean, not string"),
]

TEXT_ONLY: list[tuple[dict[str, Any], str, str]] = [
    ({"prompt": None}, "prompt", "required"),
    ({"prompt": ""}, "prompt", "at least one token"),
    ({"prompt": []}, "prompt", "must not be empty"),
    ({"prompt": 5}, "prompt", "a string or an array, not number"),
    ({"prompt": [1, "x"]}, "prompt", "token ids"),
    ({"prompt": ["x", 1]}, "prompt", "an array of token ids, not number"),
    ({"prompt": [[257]]}, "prompt", "between 0 and 256"),
    ({"prompt": [-1]}, "prompt", "between 0 and 256"),
    ({"prompt": [True]}, "prompt", "token ids"),
    ({"prompt": ["x"] * 9}, "prompt", "at most 8 entries"),
    ({"prompt": "x" * 512}, "prompt", "at most 511 of them, but 'prompt' has 512"),
    ({"suffix": "end"}, "suffix", "does not fill in the middle"),
    ({"logprobs": 21}, "logprobs", "between 0 and 20"),
    ({"logprobs": True}, "logprobs", "an integer, not boolean"),
    ({"echo": True, "logprobs": 1}, "echo", "cannot be combined"),
]

EMBED_ONLY: list[tuple[dict[str, Any], str, str]] = [
    ({"input": None}, "input", "required"),
    ({"input": ""}, "input", "at least one token"),
    ({"input": ["x", ""]}, "input", "at least one token"),
    ({"input": {"a": 1}}, "input", "a string or an array"),
    ({"encoding_format": "hex"}, "encoding_format", "'float', 'base64'"),
    ({"dimensions": 64}, "dimensions", "not supported"),
    ({"pooling": "max"}, "pooling", "'mean', 'last'"),
    ({"user": ["x"]}, "user", "a string, not array"),
]

CASES = [
    *[(CHAT, {"messages": HELLO, **body}, *rest) for body, *rest in [*BOTH, *CHAT_ONLY]],
    *[(TEXT, {"prompt": "hello", **body}, *rest) for body, *rest in [*BOTH, *TEXT_ONLY]],
    *[(EMBED, {"input": "hello", **body}, *rest) for body, *rest in EMBED_ONLY],
]


@pytest.mark.parametrize(("path", "body", "param", "text"), CASES)
async def test_wrong_parameter_is_named_with_what_is_accepted(
    worker: Worker, path: str, body: dict[str, Any], param: str, text: str
) -> None:
    """Ranges too: min_p above 1 zeroed the row (TensorRT-LLM PR#16590)."""
    status, answer = await worker.post(path, **body)
    assert status == 400
    error = answer["error"]
    assert error["param"] == param
    assert text in error["message"]
    assert error["type"] == "invalid_request_error"
    assert error["code"]
    assert worker.engine.requests == []


@pytest.mark.parametrize("path", [CHAT, TEXT, EMBED, "/tokenize", "/detokenize"])
@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b'{"a": NaN}', "not valid JSON"),
        (b'{"a": "\xff"}', "not valid JSON"),
        (b'"\\ud800"', "not valid JSON"),
        (b"[]", "must be a JSON object, not array"),
        (b"null", "must be a JSON object, not null"),
        (b"7", "must be a JSON object, not number"),
        (b'{"a": ' + b"[" * 70 + b"]" * 70 + b"}", "deeper than 64"),
        (b'{"a": ' + b"[" * 5000 + b"]" * 5000 + b"}", "not valid JSON"),
    ],
)
async def test_body_that_is_no_json_object_is_refused(worker: Worker, path: str, raw: bytes, text: str) -> None:
    async with worker.client.post(path, data=raw) as response:
        answer = await response.json()
    assert response.status == 400
    assert answer["error"]["code"] == "invalid_json"
    assert text in answer["error"]["message"]


@pytest.mark.parametrize("path", [CHAT, TEXT, EMBED, "/tokenize", "/detokenize"])
async def test_other_model_is_404_model_not_found(worker: Worker, path: str) -> None:
    status, answer = await worker.post(path, model="gpt-9", messages=HELLO, prompt="x", input="x", tokens=[1])
    assert status == 404
    assert answer["error"]["code"] == "model_not_found"
    assert "'fake'" in answer["error"]["message"]


@pytest.mark.parametrize("name", ["fake", "alias", None])
async def test_every_name_and_no_name_reach_the_model(worker: Worker, name: str | None) -> None:
    status, answer = await worker.post(CHAT, model=name, messages=HELLO)
    assert status == 200
    assert answer["model"] == (name or "fake")


@pytest.mark.parametrize(
    ("path", "param", "around"),
    [(TEXT, "prompt", 0), (EMBED, "input", 0), (CHAT, "messages", len("user: " + "\nassistant:"))],
)
@pytest.mark.parametrize(("size", "least", "tokenised"), [(200, "at least 100", False), (198, "198", True)])
async def test_prompt_that_cannot_fit_whatever_its_tokens_are_is_refused_before_it_is_tokenised(
    start_worker: StartWorker, path: str, param: str, around: int, size: int, least: str, tokenised: bool
) -> None:
    tokenizer = Counting()
    worker = await start_worker(tokenizer=tokenizer, max_model_len=100)
    text = "x" * (size - around)
    value = [{"role": "user", "content": text}] if param == "messages" else [text, "short"]
    status, answer = await worker.post(path, **{param: value})
    assert status == 400
    assert answer["error"]["code"] == "context_length_exceeded"
    assert answer["error"]["param"] == param
    assert answer["error"]["message"] == (
        f"This model's context is 100 tokens; a prompt may have at most 99 of them, but '{param}' has {least}."
    )
    assert bool(tokenizer.texts) == tokenised
    assert not worker.engine.requests


async def test_too_large_body_is_413_with_and_without_a_length(start_worker: StartWorker) -> None:
    worker = await start_worker(max_body_bytes=2048)

    async def chunks() -> Any:
        for _ in range(5):
            yield b" " * 1000

    for data in (b" " * 3000, chunks()):
        async with worker.client.post(CHAT, data=data) as response:
            answer = await response.json()
        assert response.status == 413
        assert answer["error"]["code"] == "body_too_large"
        assert "2048" in answer["error"]["message"]


async def test_small_body_that_unpacks_too_large_is_413(start_worker: StartWorker) -> None:
    worker = await start_worker(max_body_bytes=4096)
    packed = gzip.compress(b" " * 1_000_000)
    assert len(packed) < 4096
    async with worker.client.post(CHAT, data=packed, headers={"Content-Encoding": "gzip"}) as response:
        answer = await response.json()
    assert (response.status, answer["error"]["code"]) == (413, "body_too_large")


@pytest.mark.parametrize("path", [CHAT, TEXT, EMBED, "/tokenize", "/detokenize"])
async def test_body_that_is_not_packed_as_it_says_is_refused(worker: Worker, path: str) -> None:
    async with worker.client.post(path, data=b"{}", headers={"Content-Encoding": "gzip"}) as response:
        answer = await response.json()
    assert (response.status, answer["error"]["code"]) == (400, "invalid_body")


async def test_packed_body_is_read(worker: Worker) -> None:
    packed = gzip.compress(json.dumps({"messages": HELLO}).encode())
    async with worker.client.post(CHAT, data=packed, headers={"Content-Encoding": "gzip"}) as response:
        assert response.status == 200


async def test_unknown_fields_and_neutral_values_are_accepted(worker: Worker) -> None:
    status, _ = await worker.post(
        CHAT,
        messages=HELLO,
        metadata={"a": "b"},
        store=False,
        service_tier="auto",
        reasoning_effort="low",
        made_up={"x": 1},
        use_beam_search=False,
        response_format={"type": "text"},
        modalities=["text"],
        tools=[],
        tool_choice="none",
        temperature=None,
        stop=None,
        max_tokens=16.0,
    )
    assert status == 200
    assert worker.engine.requests[0].params.max_tokens == 16


@pytest.mark.parametrize(
    "body",
    [
        {"response_format": {"type": "json_object"}},
        {"structured_outputs": {"json": {}}},
        {"guided_choice": ["a"]},
        {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required"},
    ],
)
async def test_without_the_grammar_extra_the_answer_names_it(
    start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch, body: dict[str, Any]
) -> None:
    monkeypatch.setattr(source, "available", lambda: False)
    worker = await start_worker(tool_format="hermes")
    status, answer = await worker.post(CHAT, messages=HELLO, **body)
    assert (status, answer["error"]["code"]) == (400, "unsupported_parameter")
    assert "trimtab[grammar]" in answer["error"]["message"]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("x-trimtab-class-slack-ms", "-1"),
        ("x-trimtab-class-slack-ms", "nan"),
        ("x-trimtab-class-slack-ms", "1e300"),
        ("x-trimtab-predicted-tokens", "many"),
        ("x-trimtab-predicted-tokens", "inf"),
        ("x-trimtab-predicted-tokens", "1_0"),
        ("x-trimtab-predicted-tokens", "1e1"),
    ],
)
async def test_malformed_hint_header_is_named(worker: Worker, name: str, value: str) -> None:
    async with worker.client.post(CHAT, json={"messages": HELLO}, headers={name: value}) as response:
        answer = await response.json()
    assert response.status == 400
    assert answer["error"]["param"] == name


@pytest.mark.parametrize(
    ("method", "path", "status", "code"),
    [
        ("GET", "/v1/chat/completions", 405, "method_not_allowed"),
        ("POST", "/v1/models", 405, "method_not_allowed"),
        ("POST", "/v1/responses", 404, "unknown_url"),
        ("GET", "/", 404, "unknown_url"),
        ("GET", "/v1/models/other/model", 404, "model_not_found"),
    ],
)
async def test_wrong_address_is_an_openai_error(
    worker: Worker, method: str, path: str, status: int, code: str
) -> None:
    async with worker.client.request(method, path) as response:
        answer = await response.json()
    assert response.status == status
    assert answer["error"]["code"] == code
    assert (response.headers.get("Allow") is not None) == (status == 405)


async def test_api_key_guards_all_but_probes(start_worker: StartWorker) -> None:
    worker = await start_worker(api_key="sesame")
    for headers, status in (
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": "Basic sesame"}, 401),
        ({"Authorization": "Bearer sesame"}, 200),
    ):
        async with worker.client.get("/v1/models", headers=headers) as response:
            assert response.status == status
    for path in ("/health", "/metrics", "/version"):
        async with worker.client.get(path) as response:
            assert response.status == 200
