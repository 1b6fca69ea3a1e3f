"""The OpenAI wire format: what it understands of a request, refuses and says."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from proxy.wire.base import BadRequest
from proxy.wire.openai import MODELS, OpenAI
from proxy.wire.registry import detect
from tests.proxy.wire.support import CHAT, COMPLETIONS, EMBEDDINGS, head, parse

WIRE = OpenAI()


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
        assert WIRE.match("GET", path) is MODELS

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
        assert detect(method, path).wire.name == "passthrough"


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
