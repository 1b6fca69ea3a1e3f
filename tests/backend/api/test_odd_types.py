"""Every field of the three POST endpoints with a value of every JSON type: an error that names it, or an answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.backend.api.conftest import Worker

CHAT = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2})
TEXT = ("/v1/completions", {"prompt": "hello", "max_tokens": 2})
EMBED = ("/v1/embeddings", {"input": "hello"})

VALUES: dict[str, list[Any]] = {
    "null": [None],
    "boolean": [True, False],
    "integer": [0, 1, -1],
    "huge": [2**64, -(2**64), 10**400],
    "float": [0.5, -0.5, 1e308],
    "string": ["", "NaN", "1", "Infinity"],
    "array": [[], [None], [True], [1.5], ["x"], [{}], [[]], [[[["x"]]]], [10**400]],
    "object": [{}, {"x": None}, {"x": {"y": [{"z": 10**400}]}}],
}
"""By the names that the tables below use."""

NUMBER = "integer float"
SAMPLING = {
    "temperature": NUMBER,
    "top_p": NUMBER,
    "min_p": NUMBER,
    "top_k": "integer huge float",
    "repetition_penalty": NUMBER,
    "presence_penalty": NUMBER,
    "frequency_penalty": NUMBER,
    "max_tokens": "integer",
    "min_tokens": "integer",
    "n": "integer",
    "seed": "integer",
    "logit_bias": "object",
    "stop": "string array",
    "stop_token_ids": "array",
    "ignore_eos": "boolean",
    "include_stop_str_in_output": "boolean",
    "skip_special_tokens": "boolean",
    "stream_options": "object",
    "model": "string",
    "user": "string",
    "cache_salt": "string",
    "guided_json": "string object boolean",
    "guided_regex": "string",
    "guided_choice": "array",
    "guided_grammar": "string",
    "structured_outputs": "object",
    "response_format": "object",
}
"""What types a field may have besides null, which is as if it were absent."""
FIELDS = [
    *[(CHAT, name, types) for name, types in SAMPLING.items()],
    *[(TEXT, name, types) for name, types in SAMPLING.items()],
    (CHAT, "messages", "array"),
    (CHAT, "max_completion_tokens", "integer"),
    (CHAT, "logprobs", "boolean"),
    (CHAT, "top_logprobs", "integer"),
    (CHAT, "tools", "array"),
    (CHAT, "tool_choice", "string object"),
    (CHAT, "parallel_tool_calls", "boolean"),
    (CHAT, "chat_template_kwargs", "object"),
    (TEXT, "prompt", "string array"),
    (TEXT, "logprobs", "integer"),
    (TEXT, "echo", "boolean"),
    (EMBED, "input", "string array"),
    (EMBED, "model", "string"),
    (EMBED, "encoding_format", "string"),
    (EMBED, "dimensions", ""),
    (EMBED, "pooling", "string"),
    (EMBED, "user", "string"),
]


@pytest.mark.parametrize(
    ("endpoint", "name", "types"), FIELDS, ids=[f"{path[4:]}-{name}" for (path, _), name, _ in FIELDS]
)
async def test_a_value_of_the_wrong_type_is_refused_by_the_name_of_its_field(
    worker: Worker, endpoint: tuple[str, dict[str, Any]], name: str, types: str
) -> None:
    path, body = endpoint
    for kind, values in VALUES.items():
        for value in values:
            status, answer = await worker.post(path, **{**body, name: value})
            if status == 200:
                assert kind in types.split() or kind == "null", value
                continue
            assert 400 <= status < 500, (value, answer)
            error = answer["error"]
            if error["code"] == "model_not_found":
                assert (name, kind) == ("model", "string")
                continue
            if error["code"] == "invalid_json":
                assert str(10**400) in json.dumps(value), "no float, and so no number of JSON as it is read here"
                continue
            assert error["param"].split("[")[0].split(".")[0] in (name, *_BESIDE.get(name, ())), (value, error)
            assert error["message"]
            assert error["type"] == "invalid_request_error"


_BESIDE = {"stream_options": ("include_usage",), "structured_outputs": ("json",)}
"""Names of members that an error may give instead of their field's."""


@pytest.mark.parametrize("member", ["role", "content", "name", "tool_calls", "tool_call_id"])
async def test_a_member_of_a_message_of_the_wrong_type_is_refused_by_its_place(worker: Worker, member: str) -> None:
    refused = 0
    for values in VALUES.values():
        for value in values:
            message = {"role": "user", "content": "hello", member: value}
            status, answer = await worker.post(CHAT[0], messages=[message], max_tokens=2)
            assert status == 200 or 400 <= status < 500, (value, answer)
            if status != 200:
                refused += 1
                error = answer["error"]
                assert error["code"] == "invalid_json" or error["param"].startswith("messages"), (value, error)
    assert refused or member in ("name", "tool_calls", "tool_call_id"), "those say nothing in a user's message"
