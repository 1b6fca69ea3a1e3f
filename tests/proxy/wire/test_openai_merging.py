"""The OpenAI wire format: requests merged into one call, and its answer cut into everyone's own."""

from __future__ import annotations

import base64
import random
import struct
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.wire.base import Call, MergeMismatch, Reply
from proxy.wire.openai import OpenAI
from tests.proxy.wire.support import COMPLETIONS, EMBEDDINGS, parse

WIRE = OpenAI()


def vector(item: Any) -> list[float]:
    """A made-up embedding that tells its input apart from every other."""
    rng = random.Random(repr(item))
    return [rng.uniform(-1, 1) for _ in range(5)]


def as_list(value: Any) -> list[Any]:
    """What a server makes of an input: a list of items."""
    if isinstance(value, str) or (value and isinstance(value[0], int)):
        return [value]
    return list(value)


def embed(body: bytes) -> dict[str, Any]:
    """A server's answer to an embeddings body."""
    request = orjson.loads(body)
    data = []
    for index, item in enumerate(as_list(request["input"])):
        embedding: Any = vector(item)
        if request.get("encoding_format") == "base64":
            embedding = base64.b64encode(struct.pack("<5f", *embedding)).decode()
        data.append({"object": "embedding", "index": index, "embedding": embedding})
    tokens = sum(len(item) for item in as_list(request["input"]))
    return {
        "object": "list",
        "data": data,
        "model": request["model"],
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }


def complete(body: bytes) -> dict[str, Any]:
    """A server's answer to a completions body."""
    request = orjson.loads(body)
    choices = [
        {"index": index, "text": f"re: {item}", "logprobs": None, "finish_reason": "stop"}
        for index, item in enumerate(as_list(request["prompt"]))
    ]
    return {
        "id": "cmpl-1",
        "object": "text_completion",
        "choices": choices,
        "usage": {"prompt_tokens": 70, "completion_tokens": 31, "total_tokens": 101},
    }


texts = st.text(min_size=1, max_size=12)
tokens = st.lists(st.integers(0, 10**6), min_size=1, max_size=6)
text_inputs = st.one_of(texts, st.lists(texts, min_size=1, max_size=4))
token_inputs = st.one_of(tokens, st.lists(tokens, min_size=1, max_size=4))
mixes = st.one_of(st.lists(text_inputs, min_size=1, max_size=6), st.lists(token_inputs, min_size=1, max_size=6))


def calls_for(path: str, field: str, inputs: list[Any], **fields: Any) -> list[Call]:
    calls = [parse(path, {"model": "m", **fields, field: value}) for value in inputs]
    assert len({call.compat_key for call in calls}) == 1
    return calls


class TestMergingAndSplitting:
    @given(inputs=mixes, encoding=st.sampled_from([None, "float", "base64"]), seed=st.integers(0, 9))
    @settings(max_examples=80, deadline=None)
    def test_everyone_gets_exactly_its_own_embeddings_in_order(
        self, inputs: list[Any], encoding: str | None, seed: int
    ) -> None:
        extra = {} if encoding is None else {"encoding_format": encoding}
        calls = calls_for(EMBEDDINGS, "input", inputs, **extra)
        answer = embed(WIRE.merge(calls))
        random.Random(seed).shuffle(answer["data"])
        replies = WIRE.split(calls, 200, orjson.dumps(answer))
        bills = []
        for call, reply in zip(calls, replies, strict=True):
            got, alone = orjson.loads(reply.body), embed(call.body)
            assert reply.status == 200
            if len(calls) > 1:
                assert got["data"] == alone["data"]
            assert (got["object"], got["model"]) == (alone["object"], alone["model"])
            bills.append(got["usage"]["prompt_tokens"])
        if len(calls) > 1:
            assert sum(bills) == answer["usage"]["prompt_tokens"]

    @given(inputs=mixes, seed=st.integers(0, 9))
    @settings(max_examples=50, deadline=None)
    def test_everyone_gets_exactly_its_own_completions_in_order(self, inputs: list[Any], seed: int) -> None:
        calls = calls_for(COMPLETIONS, "prompt", inputs, max_tokens=5)
        answer = complete(WIRE.merge(calls))
        random.Random(seed).shuffle(answer["choices"])
        replies = [orjson.loads(reply.body) for reply in WIRE.split(calls, 200, orjson.dumps(answer))]
        if len(calls) == 1:
            assert replies == [answer]
            return
        for call, got in zip(calls, replies, strict=True):
            assert got["choices"] == complete(call.body)["choices"]
            assert got["usage"]["total_tokens"] == got["usage"]["prompt_tokens"] + got["usage"]["completion_tokens"]
        assert sum(got["usage"]["completion_tokens"] for got in replies) == 31
        assert len({got["id"] for got in replies}) == len(replies)

    def test_one_call_alone_is_forwarded_and_answered_byte_for_byte(self) -> None:
        body = b'{"input" : "a" , "model":"m"}'
        calls = [parse(EMBEDDINGS, body)]
        assert WIRE.merge(calls) is body
        assert WIRE.split(calls, 200, b"whatever")[0].body == b"whatever"

    def test_fields_and_their_order_survive_a_merge(self) -> None:
        calls = [
            parse(EMBEDDINGS, b'{"user":"u","input":"%s","zz":{"b":1,"a":2.50},"model":"m"}' % c)
            for c in (b"x", b"y")
        ]
        assert WIRE.merge(calls) == b'{"user":"u","input":["x","y"],"zz":{"b":1,"a":2.5},"model":"m"}'

    def test_vectors_keep_the_digits_the_upstream_wrote(self) -> None:
        calls = calls_for(EMBEDDINGS, "input", ["a", "b"])
        answer = (
            b'{"object": "list", "data": [{"index": 1, "object": "embedding", "embedding": [1e-05, 0.10, -0.0]},'
            b' {"index": 0, "embedding" : [ 2.50, 3, 1 ]}], "extra": [1.0]}'
        )
        replies = WIRE.split(calls, 200, answer)
        assert b'"embedding":[ 2.50, 3, 1 ]' in replies[0].body
        assert b'"embedding":[1e-05, 0.10, -0.0]' in replies[1].body
        assert orjson.loads(replies[0].body)["extra"] == [1.0]

    def test_vectors_of_vectors_are_mapped_too(self) -> None:
        calls = calls_for(EMBEDDINGS, "input", ["a", "b"])
        data = [{"index": i, "embedding": [[i, 1.5], [2.5, i]]} for i in range(2)]
        replies = WIRE.split(calls, 200, orjson.dumps({"data": data}))
        assert [orjson.loads(reply.body)["data"][0]["embedding"] for reply in replies] == [
            d["embedding"] for d in data
        ]

    @pytest.mark.parametrize("usage", [{}, {"usage": None}, {"usage": {"prompt_tokens": 8, "total_tokens": 8}}])
    @pytest.mark.parametrize(
        "row",
        [
            lambda i: {"object": "embedding", "index": i, "embedding": [i, 0.5]},
            lambda i: {"embedding": [i, 0.5], "index": i, "object": "embedding"},
            lambda i: {"index": i, "embedding": [i, 0.5]},
            lambda i: {"count": i, "index": i, "embedding": [i, 0.5]},
            lambda i: {"index": i, "embedding": [i, 0.5], "norm": 1 if i else True},
            lambda i: {"index": i, "embedding": [i, 0.5], "odd" if i % 2 else "even": i},
            lambda i: {"index": i, "embedding": "AAA" + str(i)},
            lambda i: {"index": i, "embedding": [i, 0.5], "embeddings": [[i], []]},
        ],
    )
    def test_results_of_any_form_reach_whom_they_are_for(self, row: Any, usage: dict[str, Any]) -> None:
        calls = calls_for(EMBEDDINGS, "input", ["a", ["b", "c"], "d"])
        answer = {"id": 1, **usage, "data": [row(i) for i in range(4)], "model": "m[]"}
        parts = [orjson.loads(reply.body) for reply in WIRE.split(calls, 200, orjson.dumps(answer))]
        expected = [[0], [1, 2], [3]]
        for part, mine in zip(parts, expected, strict=True):
            assert repr(part["data"]) == repr([{**row(i), "index": place} for place, i in enumerate(mine)])
            assert (part["id"], part["model"]) == (1, "m[]")
            assert part.keys() == answer.keys()
        if usage.get("usage"):
            assert sum(part["usage"]["total_tokens"] for part in parts) == 8

    @pytest.mark.parametrize("status", [400, 429, 500, 503])
    def test_an_error_concerns_everybody(self, status: int) -> None:
        calls = calls_for(EMBEDDINGS, "input", ["a", "b"])
        replies = WIRE.split(calls, status, b"oh no", [(b"Content-Type", b"text/plain")])
        assert replies == [Reply(status, b"oh no", "text/plain")] * 2

    @pytest.mark.parametrize(
        ("name", "spoil"),
        [
            ("missing", lambda data: data.pop()),
            ("extra", lambda data: data.append({"index": 3, "embedding": [1.0]})),
            ("duplicate", lambda data: data[1].update(index=0)),
            ("out of range", lambda data: data[1].update(index=3)),
            ("negative", lambda data: data[1].update(index=-1)),
            ("no index", lambda data: data[0].pop("index")),
            ("boolean index", lambda data: data[1].update(index=True)),
            ("text index", lambda data: data[1].update(index="1")),
            ("no object", lambda data: data.__setitem__(1, None)),
        ],
    )
    @pytest.mark.parametrize(
        ("path", "field", "answers"), [(EMBEDDINGS, "input", embed), (COMPLETIONS, "prompt", complete)]
    )
    def test_an_answer_that_does_not_map_one_to_one_is_never_guessed_at(
        self, path: str, field: str, answers: Any, name: str, spoil: Any
    ) -> None:
        calls = calls_for(path, field, ["a", ["b", "c"]])
        answer = answers(WIRE.merge(calls))
        spoil(answer["data" if field == "input" else "choices"])
        with pytest.raises(MergeMismatch):
            WIRE.split(calls, 200, orjson.dumps(answer))

    @pytest.mark.parametrize(
        "body", [b"", b"not json", b"[]", b"{}", b'{"data": 3}', b'{"data": null}', b'{"data":[{"embedding":[1,2']
    )
    def test_garbage_is_a_mismatch_and_not_a_crash(self, body: bytes) -> None:
        with pytest.raises(MergeMismatch):
            WIRE.split(calls_for(EMBEDDINGS, "input", ["a", "b"]), 200, body)
        with pytest.raises(MergeMismatch):
            WIRE.split(calls_for(COMPLETIONS, "prompt", ["a", "b"]), 200, body)


def result(index: int, **members: Any) -> dict[str, Any]:
    return {"object": "embedding", "index": index, "embedding": [0.5, 0.25], **members}


@pytest.mark.parametrize(
    "odd",
    [
        {"object": "error", "message": "cannot embed one of ['mine', 'yours']"},
        {"object": "error"},
        {"warning": "inputs were cut: mine, yours"},
        {"error": {"message": "yours is too long"}},
        {"embedding": None},
        {"embedding": []},
        {"embedding": [0.5]},
        {"embedding": [0.5, 0.25, 0.125]},
        {"embedding": "AAAAPwAAgD4="},
        {"embedding": {"values": [0.5, 0.25]}},
        {"embedding": 7},
        {"embedding": True},
        {"embedding": [[0.5, 0.25]]},
    ],
    ids=repr,
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_result_that_is_no_embedding_like_the_others_is_given_to_nobody(place: int, odd: dict[str, Any]) -> None:
    calls = calls_for(EMBEDDINGS, "input", ["mine", ["yours", "theirs"]])
    data = [result(index, **(odd if index == place else {})) for index in range(3)]
    with pytest.raises(MergeMismatch):
        WIRE.split(calls, 200, orjson.dumps({"object": "list", "data": data, "model": "m"}))
    data[place] = {name: value for name, value in result(place).items() if name != "embedding"}
    with pytest.raises(MergeMismatch):
        WIRE.split(calls, 200, orjson.dumps({"object": "list", "data": data, "model": "m"}))


@pytest.mark.parametrize(
    "odd", [{"text": None}, {"error": "p0, p1"}, {"warnings": ["p1 was cut"]}, {"text": {"a": 1}}]
)
@pytest.mark.parametrize("place", [0, 1])
def test_a_choice_that_is_none_or_speaks_of_others_is_given_to_nobody(place: int, odd: dict[str, Any]) -> None:
    calls = calls_for(COMPLETIONS, "prompt", ["p0", "p1"], max_tokens=5)
    answer = complete(WIRE.merge(calls))
    assert len(WIRE.split(calls, 200, orjson.dumps(answer))) == 2
    answer["choices"][place].update(odd)
    with pytest.raises(MergeMismatch):
        WIRE.split(calls, 200, orjson.dumps(answer))
