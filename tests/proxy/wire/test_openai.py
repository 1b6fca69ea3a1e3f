"""The OpenAI wire format: what it understands of a request, merges, splits and says."""

from __future__ import annotations

import base64
import random
import struct
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.wire.base import BadRequest, Call, MergeMismatch, Route
from proxy.wire.openai import OpenAI
from proxy.wire.registry import detect
from tests.proxy.wire.support import head, parse

WIRE = OpenAI()
EMBEDDINGS, COMPLETIONS, CHAT = "/v1/embeddings", "/v1/completions", "/v1/chat/completions"


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


class TestPaths:
    @pytest.mark.parametrize(
        ("path", "name"),
        [
            ("/v1/chat/completions", "chat.completions"),
            ("/v1/completions", "completions"),
            ("/v1/embeddings", "embeddings"),
            ("/v1/responses", "responses"),
            ("/chat/completions", "chat.completions"),
            ("/gateway/v1/completions", "completions"),
            ("/v3/embeddings", "embeddings"),
            ("/v1beta/openai/chat/completions", "chat.completions"),
            ("/openai/deployments/gpt/chat/completions", "chat.completions"),
        ],
    )
    def test_operations_are_recognised_under_the_prefixes_in_use(self, path: str, name: str) -> None:
        route = WIRE.match("POST", path)
        assert route is not None
        assert (route.name, route.queued, route.inspect) == (name, True, True)

    @pytest.mark.parametrize("path", ["/v1/models", "/v1/models/meta-llama/Llama-3", "/proxy/v1/models"])
    def test_listings_are_neither_read_nor_queued(self, path: str) -> None:
        assert WIRE.match("GET", path) == Route("models", inspect=False, queued=False, generates=False)

    @pytest.mark.parametrize(
        ("method", "path"),
        [
            ("GET", "/v1/chat/completions"),
            ("OPTIONS", "/v1/completions"),
            ("POST", "/v1/audio/transcriptions"),
            ("POST", "/v1/responses/resp_1/cancel"),
            ("POST", "/my/embeddings"),
            ("DELETE", "/v1/models/x"),
            ("GET", "/metrics"),
        ],
    )
    def test_anything_else_is_left_alone(self, method: str, path: str) -> None:
        assert WIRE.match(method, path) is None
        assert detect(method, path).route.queued is False


class TestReading:
    def test_a_chat_is_understood_and_its_body_kept_byte_for_byte(self) -> None:
        body = (
            b'{ "stream":true,"zzz":{"b":1,"a":2}, "model":"m" ,"max_tokens":7,'
            b'"messages":[{"role":"user","content":"Hi"}]}'
        )
        call = parse(CHAT, body)
        assert call.body is body
        assert (call.model, call.stream, call.items, call.max_tokens, call.text) == ("m", True, 1, 7, "Hi")
        assert call.prompt_tokens >= 1
        assert call.compat_key is None

    def test_the_newer_name_of_the_output_limit_wins(self) -> None:
        call = parse(CHAT, {"model": "m", "messages": [], "max_tokens": 5, "max_completion_tokens": 9})
        assert call.max_tokens == 9

    @pytest.mark.parametrize("limit", [None, -1, "12", 1.5, True, 1e300, [], {}])
    def test_a_limit_we_do_not_understand_is_the_upstreams_to_judge(self, limit: Any) -> None:
        assert parse(CHAT, {"model": "m", "messages": [], "max_tokens": limit}).max_tokens is None

    @pytest.mark.parametrize(
        "messages",
        [
            None,
            "text",
            [1, None, "x", []],
            [{"role": "user"}],
            [{"role": "user", "content": None}],
            [{"role": "user", "content": [None, 3, {"type": "text"}, {"type": "text", "text": 4}]}],
            [{"role": "user", "content": {"deep": [[[]]]}}],
        ],
    )
    def test_odd_messages_are_relayed_and_never_a_crash(self, messages: Any) -> None:
        assert parse(CHAT, {"model": "m", "messages": messages}).prompt_tokens >= 1

    def test_pictures_do_not_count_by_the_size_of_their_encoding(self) -> None:
        picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 1_000_000}}
        content = [{"type": "text", "text": "What is this?"}, picture]
        call = parse(CHAT, {"model": "m", "messages": [{"role": "user", "content": content}]})
        assert 100 < call.prompt_tokens < 2000
        assert call.text == "What is this?"

    def test_text_for_the_predictor_is_the_first_2000_and_last_500_characters(self) -> None:
        text = "".join(chr(ord("a") + i % 26) for i in range(10_000))
        call = parse(CHAT, {"model": "m", "messages": [{"role": "user", "content": text}]})
        assert call.text.startswith(text[:2000])
        assert call.text.endswith(text[-500:])
        assert len(call.text) <= 2501
        many = [{"role": "user", "content": "word"} for _ in range(10_000)]
        assert len(parse(CHAT, {"model": "m", "messages": many}).text) <= 5000

    def test_prompts_in_other_scripts_count_their_bytes(self) -> None:
        def tokens(text: str) -> int:
            return parse(CHAT, {"messages": [{"role": "user", "content": text}]}).prompt_tokens

        assert tokens("語" * 400) > 2 * tokens("a" * 400)

    def test_parallel_samples_count_as_sequences(self) -> None:
        assert parse(CHAT, {"messages": [], "n": 4}).items == 4
        assert parse(CHAT, {"messages": [], "n": 10**9}).items == 128
        assert parse(COMPLETIONS, {"prompt": ["a", "b"], "n": 2, "best_of": 3}).items == 6

    def test_a_response_is_understood(self) -> None:
        given = [{"role": "user", "content": [{"type": "input_text", "text": "world"}]}]
        call = parse(
            "/v1/responses", {"model": "m", "instructions": "be nice", "input": given, "max_output_tokens": 3}
        )
        assert (call.route.name, call.text, call.max_tokens) == ("responses", "be nice\nworld", 3)

    @pytest.mark.parametrize(
        ("value", "count"),
        [("text", 1), (["a", "b", "c"], 3), ([1, 2, 3], 1), ([[1, 2], [3]], 2), ([["x"]], 1), ([], 1), (7, 1)],
    )
    def test_inputs_are_counted_whatever_form_they_come_in(self, value: Any, count: int) -> None:
        assert parse(EMBEDDINGS, {"model": "m", "input": value}).items == count


class TestRefusals:
    @pytest.mark.parametrize(
        ("body", "says", "param"),
        [
            (b"", "empty", None),
            (b"   ", "empty", None),
            (b"[1,2]", "object", None),
            (b'"text"', "object", None),
            (b'{"model": "m", "temperature": nan}', "temperature", "temperature"),
            (b'{"model": "m", "max_tokens": 1' + b"0" * 400 + b"}", "max_tokens", "max_tokens"),
            (b'{"model": "m", "top_p": +1}', "top_p", "top_p"),
            (b'{"model": "m", "prompt": "caf\xe9"}', "UTF-8", None),
            (b'{"model": "\xed\xa0\x80"}', "UTF-8", None),
            (b'{"model": "m", "prompt": "x"', "not valid JSON", "prompt"),
            (b'{"messages": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "depth", "messages"),
            (b'{"model": ["m"]}', "must be a string, not an array", "model"),
            (b'{"model": 7}', "must be a string, not a number", "model"),
        ],
    )
    @pytest.mark.parametrize("path", [CHAT, COMPLETIONS, EMBEDDINGS, "/v1/responses"])
    def test_a_body_nobody_could_understand_is_refused_by_name(
        self, path: str, body: bytes, says: str, param: str | None
    ) -> None:
        with pytest.raises(BadRequest, match=says) as refused:
            parse(path, body)
        if param is not None:
            assert refused.value.param == param

    def test_nesting_the_parser_allows_never_crashes(self) -> None:
        for depth in (200, 300, 990, 1000):
            body = b'{"input": "x", "extra": ' + b"[" * depth + b"]" * depth + b"}"
            parse(EMBEDDINGS, body)
            parse(CHAT, b'{"messages": [], "tools": ' + b"[" * depth + b"1" + b"]" * depth + b"}")

    def test_a_compressed_body_is_relayed_unread(self) -> None:
        body = b"\x1f\x8b\x08 compressed"
        call = parse(EMBEDDINGS, body, ("Content-Encoding", "gzip"))
        assert (call.body, call.model, call.compat_key) == (body, "", None)

    def test_unknown_parameters_are_none_of_our_business(self) -> None:
        call = parse(CHAT, {"messages": [], "guided_json": {"x": [1]}, "temperature": "warm", "logit_bias": 3})
        assert call.payload["temperature"] == "warm"


def key(path: str, body: Any) -> Any:
    return parse(path, body).compat_key


class TestSharing:
    def test_what_differs_in_input_alone_may_share_a_call(self) -> None:
        forms: list[Any] = ["a", "b", ["c", "d"]]
        keys = {key(EMBEDDINGS, {"model": "m", "input": form}) for form in forms}
        assert len(keys) == 1
        assert None not in keys

    def test_the_order_of_fields_does_not_matter_for_sharing(self) -> None:
        assert key(EMBEDDINGS, b'{"model":"m","user":"u","dimensions":3,"input":"a"}') == key(
            EMBEDDINGS, b'{"dimensions":3,"input":"b","user":"u","model":"m"}'
        )

    def test_texts_and_tokens_never_share_a_call(self) -> None:
        texts, tokens = key(EMBEDDINGS, {"input": "a"}), key(EMBEDDINGS, {"input": [1, 2]})
        assert texts is not None
        assert tokens is not None
        assert texts != tokens

    @pytest.mark.parametrize(
        "value", ["", [], [""], ["a", ""], ["a", 1], [1, "a"], [[1], []], [[]], [[["x"]]], [1.5], [True], None, {}, 3]
    )
    @pytest.mark.parametrize(("path", "field"), [(EMBEDDINGS, "input"), (COMPLETIONS, "prompt")])
    def test_inputs_we_do_not_understand_travel_alone(self, path: str, field: str, value: Any) -> None:
        assert key(path, {"model": "m", field: value}) is None

    @pytest.mark.parametrize(
        "extra",
        [
            {"stream": True},
            {"n": 2},
            {"best_of": 3},
            {"seed": 1},
            {"suffix": "x"},
            {"prompt_embeds": "x"},
            {"use_beam_search": True},
            {"stream": True, "stream_options": {"include_usage": True}},
        ],
    )
    def test_completions_that_a_list_would_change_travel_alone(self, extra: dict[str, Any]) -> None:
        assert key(COMPLETIONS, {"model": "m", "prompt": "a", **extra}) is None

    @pytest.mark.parametrize("extra", [{}, {"n": 1}, {"best_of": 1}, {"n": None}, {"seed": None}, {"echo": True}])
    def test_completions_that_a_list_leaves_as_they_are_may_share(self, extra: dict[str, Any]) -> None:
        assert key(COMPLETIONS, {"model": "m", "prompt": "a", **extra}) is not None

    def test_integers_that_may_have_been_rounded_are_never_taken_for_equal(self) -> None:
        assert key(EMBEDDINGS, b'{"input":"a","x":[{"y":36893488147419103232}]}') is None

    def test_the_query_string_keeps_calls_apart(self) -> None:
        assert key(EMBEDDINGS, {"input": "a"}) != key(EMBEDDINGS + "?api-version=2", {"input": "a"})

    json_values = st.recursive(
        st.one_of(
            st.none(),
            st.booleans(),
            st.integers(-(2**63), 2**64 - 1),
            st.floats(allow_nan=False, allow_infinity=False),
            st.text(max_size=5),
        ),
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
        max_leaves=5,
    )
    fields = st.dictionaries(
        st.sampled_from(["user", "dimensions", "encoding_format", "x", "é"]), json_values, max_size=4
    )

    @given(one=fields, other=fields, models=st.tuples(st.sampled_from("ab"), st.sampled_from("ab")))
    @settings(max_examples=150, deadline=None)
    def test_calls_share_a_key_only_if_all_but_their_input_is_equal(
        self, one: dict[str, Any], other: dict[str, Any], models: tuple[str, str]
    ) -> None:
        first = key(EMBEDDINGS, {"model": models[0], **one, "input": "a"})
        second = key(EMBEDDINGS, {"model": models[1], **other, "input": "b"})
        same = orjson.dumps([models[0], one], option=orjson.OPT_SORT_KEYS) == orjson.dumps(
            [models[1], other], option=orjson.OPT_SORT_KEYS
        )
        if first is not None and second is not None:
            assert (first == second) == same
        elif same:
            assert first is None
            assert second is None


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
            b' {"index": 0, "embedding" : [ 2.50, 3 ]}], "extra": [1.0]}'
        )
        replies = WIRE.split(calls, 200, answer)
        assert b'"embedding":[ 2.50, 3 ]' in replies[0].body
        assert b'"embedding":[1e-05, 0.10, -0.0]' in replies[1].body
        assert orjson.loads(replies[0].body)["extra"] == [1.0]

    def test_vectors_of_vectors_are_mapped_too(self) -> None:
        calls = calls_for(EMBEDDINGS, "input", ["a", "b"])
        data = [{"index": i, "embedding": [[i, 1.5], [2.5, i]]} for i in range(2)]
        replies = WIRE.split(calls, 200, orjson.dumps({"data": data}))
        assert [orjson.loads(reply.body)["data"][0]["embedding"] for reply in replies] == [
            d["embedding"] for d in data
        ]

    @pytest.mark.parametrize("status", [400, 429, 500, 503])
    def test_an_error_concerns_everybody(self, status: int) -> None:
        calls = calls_for(EMBEDDINGS, "input", ["a", "b"])
        replies = WIRE.split(calls, status, b"oh no", [(b"Content-Type", b"text/plain")])
        assert replies == [(status, b"oh no", "text/plain", ())] * 2

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


class TestErrors:
    @pytest.mark.parametrize(
        ("status", "kind"),
        [
            (400, "invalid_request_error"),
            (413, "invalid_request_error"),
            (418, "invalid_request_error"),
            (429, "rate_limit_error"),
            (502, "server_error"),
            (503, "server_error"),
            (504, "server_error"),
        ],
    )
    def test_errors_have_openais_shape(self, status: int, kind: str) -> None:
        reply = WIRE.error(status, "queue_full", "try later", param="model")
        assert (reply.status, reply.content_type) == (status, "application/json")
        assert orjson.loads(reply.body) == {
            "error": {"message": "try later", "type": kind, "param": "model", "code": "queue_full"}
        }

    def test_a_broken_stream_is_told_in_an_event_and_never_called_done(self) -> None:
        frame = WIRE.stream_error("upstream_broke", "gone")
        assert frame.startswith(b"data: {")
        assert frame.endswith(b"}\n\n")
        assert b"[DONE]" not in frame
        assert orjson.loads(frame[6:])["error"]["code"] == "upstream_broke"

    def test_a_keepalive_is_a_comment(self) -> None:
        assert WIRE.keepalive().startswith(b":")
        assert WIRE.keepalive().endswith(b"\n\n")


def test_headers_are_found_whatever_their_case() -> None:
    assert head("/", ("X-A", "1"), ("x-a", "2")).get(b"x-a") == "1"
