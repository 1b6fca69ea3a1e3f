"""Bodies that would stop all streams while they are parsed are refused by what is in them, and large ones are not."""

from __future__ import annotations

import orjson
import pytest

from backend.api.body import MAX_CONTAINERS, MAX_VALUES, parse_body
from backend.api.errors import InvalidRequest
from tests.backend.api.conftest import Worker

MANY = MAX_CONTAINERS + 1


@pytest.mark.parametrize(
    "raw",
    [
        b'{"messages": [' + b"[]," * MANY + b"[]]}",
        b'{"messages": [' + b"{}," * MANY + b"{}]}",
        b'{"messages": [' + b'{"role":"user","content":""},' * MANY + b"1]}",
        b'{"prompt": [' + b"[1]," * MANY + b"[1]]}",
        b'{"prompt": [' + b"1," * (MAX_VALUES + 1) + b"1]}",
        b'{"tools": [{"a": [' + b"{}," * MANY + b"{}]}]}",
        b"{" + b",".join([b'"k%d": 1' % number for number in range(MAX_VALUES + 2)]) + b"}",
        b"{" + b",".join([b'"k%d" : 1' % number for number in range(200_000)]) + b"}",
        b"{" + b",".join([b'"k%d\\\\":1' % number for number in range(200_000)]) + b"}",
        b'{"prompt": [' + b'"a" ,' * 200_000 + b"1]}",
        b'{"prompt": [' + b"0.5," * 600_000 + b"1]}",
        b"[" * 4_000_000,
        b"{" * 4_000_000,
    ],
    ids=[
        "arrays",
        "objects",
        "messages",
        "prompts",
        "tokens",
        "tools",
        "keys",
        "names",
        "names with backslashes",
        "strings",
        "fractions",
        "open arrays",
        "open objects",
    ],
)
def test_too_many_values_are_refused_by_count(raw: bytes) -> None:
    with pytest.raises(InvalidRequest, match="more than") as refused:
        parse_body(raw)
    assert refused.value.code == "too_many_values"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/tokenize"])
async def test_every_endpoint_says_so(worker: Worker, path: str) -> None:
    async with worker.client.post(path, data=b'{"messages": [' + b"[]," * MANY + b"[]]}") as response:
        error = (await response.json())["error"]
        assert (response.status, error["code"]) == (400, "too_many_values")
        assert error["message"] == f"The body has more than {MAX_CONTAINERS} arrays and objects."


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": [list(range(512)) for _ in range(1000)]},
        {"prompt": '{"a": "b", "c": "d\\\\"}, ' * 20_000, "user": '","' * 200_000},
        {"prompt": 'Well, [so] {they} said, and "went"; ' * 20_000},
        {"messages": [{"role": "user", "content": "x" * 1000} for _ in range(2000)]},
    ],
    ids=["tokens", "quotes in a text", "text", "messages"],
)
def test_large_bodies_of_honest_callers_are_read(body: dict[str, object]) -> None:
    assert parse_body(orjson.dumps(body)) == body
