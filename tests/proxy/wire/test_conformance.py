"""What every wire format promises, whatever protocol it speaks."""

from __future__ import annotations

import gzip
import json
from typing import Any

import orjson
import pytest

from proxy.wire.base import BadRequest, MergeMismatch, Reply, WireFormat
from proxy.wire.passthrough import OPAQUE
from proxy.wire.registry import AUTO, RELAY, UnknownWireFormat, detect, route_names, wire_format, wire_names
from tests.proxy.wire.formats import MERGEABLE, SAMPLES, Mergeable, Sample
from tests.proxy.wire.support import cuts, parse, seen

NAMES = [name for name in wire_names() if name != AUTO]
each_sample = pytest.mark.parametrize("sample", SAMPLES, ids=[sample.id for sample in SAMPLES])
each_mergeable = pytest.mark.parametrize("case", MERGEABLE, ids=[case.id for case in MERGEABLE])


@pytest.fixture(params=NAMES)
def wire(request: pytest.FixtureRequest) -> WireFormat:
    return wire_format(request.param)


class TestDetection:
    @each_sample
    def test_an_operation_is_found_by_configured_name(self, sample: Sample) -> None:
        match = detect("POST", sample.path, sample.wire)
        assert (match.wire.name, match.route.name) == (sample.wire, sample.route)
        assert match.route.queued is sample.queued
        assert match.route in match.wire.routes
        assert match.route.name in route_names()

    @each_sample
    def test_auto_finds_it_unless_the_path_is_contested(self, sample: Sample) -> None:
        match = detect("POST", sample.path)
        if sample.auto:
            assert (match.wire.name, match.route.name) == (sample.wire, sample.route)
        else:
            assert match.wire.name != sample.wire

    @each_sample
    def test_other_methods_are_relayed(self, sample: Sample) -> None:
        for method in ("GET", "PUT", "DELETE", "OPTIONS"):
            match = detect(method, sample.path)
            assert not match.route.queued
            assert not match.route.inspect

    @each_sample
    def test_passthrough_claims_nothing(self, sample: Sample) -> None:
        assert detect("POST", sample.path, "passthrough").route is RELAY

    @pytest.mark.parametrize(
        "path", ["", "/", "*", "/metrics", "/v1", "/v1/batches", "/../v1/chat", "/%00", "/é" * 999]
    )
    def test_strange_paths_are_relayed(self, path: str) -> None:
        assert detect("POST", path).route is OPAQUE
        assert detect("GET", path).route is RELAY

    @pytest.mark.parametrize(
        ("path", "wire"),
        [("/v1/models", "openai"), ("/v1/models/org/name", "openai"), ("/api/tags", "ollama"), ("/api/ps", "ollama")],
    )
    def test_listings_are_relayed_under_a_name_of_their_own(self, path: str, wire: str) -> None:
        match = detect("GET", path)
        assert (match.wire.name, match.route.name) == (wire, "models")
        assert not match.route.queued

    def test_an_unknown_format_is_named_with_its_neighbours(self) -> None:
        with pytest.raises(UnknownWireFormat, match=r"Did you mean 'openai'.*Known: auto, openai, anthropic"):
            detect("GET", "/", "openia")


class TestReading:
    @each_sample
    def test_the_body_is_kept_byte_for_byte_and_what_it_says_is_known(self, sample: Sample) -> None:
        body = json.dumps({"zz_unknown": {"b": 1, "a": [2.50]}, **sample.body}, indent=1).encode()
        call = parse(sample.path, body, wire=sample.wire)
        assert call.body is body
        assert call.model == sample.model
        assert call.stream is sample.streaming
        assert call.items >= 1
        assert call.prompt_tokens >= 1
        assert call.route.name == sample.route
        if "5" in str(sample.body):
            assert call.max_tokens == 5

    @each_sample
    @pytest.mark.parametrize(
        "body",
        [
            b"",
            b"[]",
            b"3",
            b"{",
            b'{"a": NaN',
            b"NaN",
            b'{"a": "\xff NaN"}',
            b'{"a": 1e999}',
            b"\x00",
            b"[" * 100_000,
            b'{"a":' * 100_000,
        ],
    )
    def test_what_is_no_json_object_is_a_bad_request(self, sample: Sample, body: bytes) -> None:
        with pytest.raises(BadRequest) as refused:
            parse(sample.path, body, wire=sample.wire)
        assert refused.value.message

    @each_sample
    @pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity"])
    def test_a_body_that_is_json_but_for_nan_is_relayed_unread(self, sample: Sample, value: str) -> None:
        body = orjson.dumps({**sample.body, "extra": 5}).replace(b'"extra":5', f'"extra":[{value}]'.encode())
        call = parse(sample.path, body, wire=sample.wire)
        assert call.body is body
        assert call.compat_key is None

    @each_sample
    def test_a_compressed_body_is_relayed_unread(self, sample: Sample) -> None:
        body = gzip.compress(orjson.dumps(sample.body))
        call = parse(sample.path, body, ("content-encoding", "gzip"), wire=sample.wire)
        assert call.body is body
        assert call.compat_key is None

    @each_sample
    def test_a_model_that_is_no_text_is_a_bad_request_where_the_body_names_it(self, sample: Sample) -> None:
        if sample.model_in_body:
            with pytest.raises(BadRequest) as refused:
                parse(sample.path, {**sample.body, "model": 7}, wire=sample.wire)
            assert refused.value.param == "model"

    @each_sample
    @pytest.mark.parametrize(
        "odd", [None, 0, 3, -1.5, True, "", "x", [], [[]], [None], {}, {"a": []}, [{"a": 1}], [1, "a"]]
    )
    def test_odd_values_are_relayed_and_never_a_crash(self, sample: Sample, odd: Any) -> None:
        for name in sample.body:
            if name != "model":
                call = parse(sample.path, {**sample.body, name: odd}, wire=sample.wire)
                assert call.items >= 1

    @each_sample
    def test_deep_nesting_that_json_allows_is_never_a_crash(self, sample: Sample) -> None:
        for depth in (100, 300, 1000):
            deep = b"[" * depth + b"]" * depth
            for name in sample.body:
                if name != "model":
                    rest = {key: value for key, value in sample.body.items() if key != name}
                    body = b'{"%s": %s, ' % (name.encode(), deep) + orjson.dumps({"y": 1, **rest})[1:]
                    parse(sample.path, body, wire=sample.wire)

    @each_sample
    def test_text_for_the_predictor_is_bounded(self, sample: Sample) -> None:
        long = orjson.loads(orjson.dumps(sample.body).replace(b'"Hi"', b'"' + b"word " * 20_000 + b'"'))
        assert len(parse(sample.path, long, wire=sample.wire).text) <= 2501


class TestTaps:
    @each_sample
    def test_a_stream_reads_the_same_however_it_is_cut(self, sample: Sample) -> None:
        if sample.stream is None:
            return
        content_type, stream, *expected = sample.stream
        call = parse(sample.path, sample.body, wire=sample.wire)
        wire = wire_format(sample.wire)
        for pieces in cuts(stream, samples=10):
            assert list(seen(wire.tap(call, content_type), pieces)) == [*expected, True]

    @each_sample
    def test_a_whole_answer_reads_the_same_however_it_is_cut(self, sample: Sample) -> None:
        if sample.whole is None:
            return
        body, expected = sample.whole
        call = parse(sample.path, sample.body, wire=sample.wire)
        for pieces in cuts(body, samples=10):
            assert seen(wire_format(sample.wire).tap(call, "application/json"), pieces)[0] == expected

    @each_sample
    @pytest.mark.parametrize(
        "content_type", ["text/event-stream", "application/x-ndjson", "application/json", "", "image/png"]
    )
    def test_garbage_counts_nothing_and_memory_stays_bounded(self, sample: Sample, content_type: str) -> None:
        call = parse(sample.path, sample.body, wire=sample.wire)
        tap = wire_format(sample.wire).tap(call, content_type)
        for piece in (
            b"\x00\xff",
            gzip.compress(b"data: {}\n\n" * 50),
            b"{" * 3000,
            b'"usage":{' * 300,
            b"x" * 400_000,
            b"\r",
        ):
            for _ in range(3):
                tap.feed(piece)
        usage = tap.usage()
        assert usage.prompt_tokens is None
        assert usage.output_tokens in (None, 0)
        kept = sum(
            len(value) for slot in _slots(tap) if isinstance(value := getattr(tap, slot, None), bytes | bytearray)
        )
        assert kept <= 200_000
        assert isinstance(tap.at_boundary(), bool)


def _slots(tap: object) -> list[str]:
    return [slot for kind in type(tap).__mro__ for slot in getattr(kind, "__slots__", ())]


class TestErrors:
    @pytest.mark.parametrize("status", [400, 401, 404, 413, 422, 429, 431, 500, 502, 503, 504])
    def test_an_error_is_json_that_says_what_was_wrong(self, wire: WireFormat, status: int) -> None:
        reply = wire.error(status, "some_reason", 'quote " and ümlaut', param="temperature")
        assert reply.status == status
        assert reply.content_type == "application/json"
        assert 'quote " and ümlaut' in str(orjson.loads(reply.body))
        assert "temperature" in reply.body.decode()

    def test_a_broken_stream_is_told_in_one_whole_frame(self, wire: WireFormat) -> None:
        frame = wire.stream_error("upstream_broke", "it broke")
        if frame:
            assert frame.endswith(b"\n")
            assert b"it broke" in frame
            assert b"[DONE]" not in frame

    def test_a_keepalive_is_a_whole_comment_or_nothing(self, wire: WireFormat) -> None:
        frame = wire.keepalive()
        assert frame == b"" or (frame.startswith(b":") and frame.endswith(b"\n\n"))

    @each_sample
    def test_frames_of_our_own_do_not_disturb_what_a_tap_reads(self, sample: Sample) -> None:
        """Comments go between events only, so that wherever they are put in, nothing changes."""
        if sample.stream is None:
            return
        content_type, stream, *expected = sample.stream
        wire = wire_format(sample.wire)
        tap = wire.tap(parse(sample.path, sample.body, wire=sample.wire), content_type)
        for at in range(len(stream)):
            tap.feed(stream[at : at + 1])
            if tap.at_boundary():
                tap.feed(wire.keepalive())
        assert list(seen(tap, [])) == [*expected, True]


class TestMerging:
    @each_mergeable
    def test_everyone_gets_what_it_would_have_got_alone(self, case: Mergeable) -> None:
        wire = wire_format(case.wire)
        calls = [parse(case.path, body, wire=case.wire) for body in case.bodies]
        assert None not in {call.compat_key for call in calls}
        assert len({call.compat_key for call in calls}) == 1
        merged = wire.merge(calls)
        replies = wire.split(calls, 200, case.server(merged))
        for call, reply in zip(calls, replies, strict=True):
            assert (reply.status, reply.content_type) == (200, "application/json")
            assert orjson.loads(reply.body) == orjson.loads(case.server(call.body))

    @each_mergeable
    def test_any_order_and_number_of_callers_maps_back(self, case: Mergeable) -> None:
        wire = wire_format(case.wire)
        calls = [parse(case.path, body, wire=case.wire) for body in (*reversed(case.bodies), *case.bodies)]
        for size in range(1, len(calls) + 1):
            some = calls[:size]
            for call, reply in zip(some, wire.split(some, 200, case.server(wire.merge(some))), strict=True):
                assert orjson.loads(reply.body) == orjson.loads(case.server(call.body))

    @each_mergeable
    def test_one_call_alone_is_never_rewritten(self, case: Mergeable) -> None:
        wire = wire_format(case.wire)
        call = parse(case.path, case.bodies[0], wire=case.wire)
        assert wire.merge([call]) is call.body
        assert wire.merge_headers([call], call.body) == ()
        assert wire.split([call], 200, b"\x00any")[0].body == b"\x00any"

    @each_mergeable
    def test_calls_that_differ_in_anything_else_share_no_key(self, case: Mergeable) -> None:
        bodies = [case.bodies[0], *case.others]
        keys = [parse(case.path, body, wire=case.wire).compat_key for body in bodies]
        assert None not in keys
        assert len(set(keys)) == len(keys)
        other_query = parse(case.path + "?x=1", case.bodies[0], wire=case.wire)
        assert other_query.compat_key not in {None, *keys}

    @each_mergeable
    def test_any_unknown_field_keeps_calls_apart(self, case: Mergeable) -> None:
        values: list[Any] = [1, 1.0, "1", None, True, [1], {"a": 1}, {"a": [1, 2]}, {"a": [2, 1]}]
        keys = {parse(case.path, {**case.bodies[0], "zz": value}, wire=case.wire).compat_key for value in values}
        assert len(keys) == len(values)
        assert None not in keys
        huge = {
            parse(case.path, b'{"zz":%d,' % (2**70 + i) + orjson.dumps(case.bodies[0])[1:], wire=case.wire).compat_key
            for i in (0, 1)
        }
        assert huge == {None}, "numbers that were rounded cannot be told apart"

    @each_mergeable
    def test_what_cannot_safely_share_a_call_says_so(self, case: Mergeable) -> None:
        for body in case.alone:
            assert parse(case.path, body, wire=case.wire).compat_key is None, body

    @each_mergeable
    def test_answers_that_do_not_map_one_to_one_are_mismatches(self, case: Mergeable) -> None:
        wire = wire_format(case.wire)
        calls = [parse(case.path, body, wire=case.wire) for body in case.bodies]
        short = case.server(wire.merge(calls[:-1]))
        long = case.server(wire.merge([*calls, calls[0]]))
        for body in (
            short,
            long,
            b"",
            b"garbage",
            b"{}",
            b"[]",
            b"null",
            b'{"embeddings":{},"results":3,"predictions":{},"outputs":{}}',
        ):
            with pytest.raises(MergeMismatch):
                wire.split(calls, 200, body)

    @each_mergeable
    def test_an_error_concerns_every_caller_of_the_batch(self, case: Mergeable) -> None:
        wire = wire_format(case.wire)
        calls = [parse(case.path, body, wire=case.wire) for body in case.bodies]
        replies = wire.split(calls, 500, b"<h1>no", ((b"content-type", b"text/html"),))
        assert replies == [Reply(500, b"<h1>no", "text/html")] * len(calls)

    @each_sample
    def test_only_operations_with_a_merge_have_keys(self, sample: Sample) -> None:
        call = parse(sample.path, sample.body, wire=sample.wire)
        if call.compat_key is not None:
            assert wire_format(sample.wire).merge([call, call])


def test_merging_unasked_is_for_operations_that_are_safe_to_merge_anywhere() -> None:
    merged = {route.name for name in NAMES for route in wire_format(name).routes if route.auto_merge}
    assert merged == {"embeddings", "ollama.embed", "tei.embed", "tei.rerank", "tei.predict"}
    columns = parse("/v1/models/m:predict", {"inputs": {"x": [[1]]}})
    assert columns.compat_key is not None
    assert not columns.route.auto_merge
