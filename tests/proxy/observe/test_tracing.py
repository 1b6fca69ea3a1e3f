"""A trace tells what became of a request, and the upstream's spans find their parent in it."""

from __future__ import annotations

import asyncio
import builtins
import random
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from proxy.config.errors import ConfigError
from proxy.config.model import Config, TracingConfig
from proxy.observe.tracing import Tracing, exporter_for
from tests.proxy.app.conftest import Rig, make_rig
from tests.support.mock_upstream import Behaviour, MockUpstream

__all__ = ["make_rig"]

Make = Callable[..., Any]
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def traced(rig: Rig, ratio: float = 1.0) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    tracing = Tracing(TracingConfig(ratio=ratio), exporter, rng=random.Random(1), batch=False)
    rig.proxy.plane.handler.service.tracing = tracing
    for pool in rig.proxy.plane.pools.values():
        pool.runs.tracing = tracing
    return exporter


async def post(rig: Rig, status: int = 200, headers: dict[str, str] | None = None, **body: Any) -> None:
    full = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **body}
    async with rig.http.post(f"{rig.data}/v1/chat/completions", json=full, headers=headers or {}) as answer:
        await answer.read()
        assert answer.status == status


async def embed(rig: Rig, value: str, headers: dict[str, str]) -> int:
    full = {"model": "m", "input": value}
    async with rig.http.post(f"{rig.data}/v1/embeddings", json=full, headers=headers) as answer:
        await answer.read()
        return answer.status


def merging(size: int, **more: Any) -> dict[str, Any]:
    """A batch goes when it is full; no test waits for its window."""
    return {
        "setpoints": {"max_batch_size": size, "window_ms": {"initial": 5000, "max": 60_000}},
        "law": "fixed",
        **more,
    }


def parent(trace: int, flags: str = "01") -> dict[str, str]:
    return {"traceparent": f"00-{trace:032x}-{7:016x}-{flags}"}


def named(exporter: InMemorySpanExporter) -> dict[str, Any]:
    return {span.name: span for span in exporter.get_finished_spans()}


async def test_a_request_is_told_under_the_callers_span(make_rig: Make) -> None:
    async with MockUpstream() as upstream:
        rig = await make_rig(upstreams=[upstream.url])
        exporter = traced(rig)
        await post(rig, headers={"traceparent": PARENT, "tracestate": "vendor=1"}, stream=True, max_tokens=9)
        sent = upstream.seen[-1].header("traceparent")
        assert upstream.seen[-1].header("tracestate") == "vendor=1"
    spans = named(exporter)
    request, queue, call = spans["POST chat.completions"], spans["queue"], spans["chat m"]
    assert f"{request.context.trace_id:032x}" == PARENT.split("-")[1]
    assert f"{request.parent.span_id:016x}" == PARENT.split("-")[2]
    assert queue.parent.span_id == call.parent.span_id == request.context.span_id
    assert sent == f"00-{PARENT.split('-')[1]}-{call.context.span_id:016x}-01"
    assert call.attributes["gen_ai.request.model"] == "m"
    assert call.attributes["gen_ai.operation.name"] == "chat"
    assert call.attributes["gen_ai.request.max_tokens"] == 9
    assert call.attributes["gen_ai.usage.output_tokens"] == 4
    assert call.attributes["server.address"] == "127.0.0.1"
    assert call.attributes["gen_ai.provider.name"] == "openai"
    assert call.attributes["gen_ai.request.stream"] is True
    assert call.attributes["gen_ai.response.finish_reasons"] == ("stop",)
    first = spans["first_token"]
    assert first.parent.span_id == call.context.span_id
    assert first.start_time == call.start_time <= first.end_time <= call.end_time
    measured = (first.end_time - first.start_time) / 1e9
    assert call.attributes["gen_ai.response.time_to_first_chunk"] == pytest.approx(measured, abs=1e-4)
    assert request.start_time == queue.start_time <= queue.end_time == call.start_time <= call.end_time
    assert "window" not in spans, "nobody was waited for"
    assert request.attributes["url.scheme"] == "http"
    assert request.attributes["http.response.status_code"] == 200


async def test_an_answer_that_is_no_stream_has_its_first_byte_as_an_event(make_rig: Make) -> None:
    async with MockUpstream() as upstream:
        rig = await make_rig(upstreams=[upstream.url])
        exporter = traced(rig)
        await post(rig)
    spans = named(exporter)
    assert [event.name for event in spans["chat m"].events] == ["first_byte"]
    assert "first_token" not in spans
    assert "gen_ai.response.time_to_first_chunk" not in spans["chat m"].attributes


async def test_a_method_of_the_callers_own_is_no_new_span_name(make_rig: Make) -> None:
    async with MockUpstream() as upstream:
        rig = await make_rig(upstreams=[upstream.url])
        exporter = traced(rig)
        async with rig.http.request("PROPFIND", f"{rig.data}/v1/models") as answer:
            await answer.read()
    (request,) = [span for span in exporter.get_finished_spans() if span.kind is SpanKind.SERVER]
    assert request.name.startswith("HTTP ")
    assert request.attributes["http.request.method"] == "_OTHER"
    assert request.attributes["http.request.method_original"] == "PROPFIND"


async def test_a_merged_call_belongs_to_its_first_traced_member_and_links_to_all(make_rig: Make) -> None:
    async with MockUpstream() as upstream:
        rig = await make_rig(upstreams=[{"url": upstream.url, "profile": "openai"}], **merging(3))
        exporter = traced(rig, 0.0)
        statuses = await asyncio.gather(
            embed(rig, "a1", parent(1)), embed(rig, "b2", parent(2, "00")), embed(rig, "c3", parent(3))
        )
        assert statuses == [200] * 3
        (seen,) = upstream.seen
    spans = exporter.get_finished_spans()
    (call,) = [span for span in spans if span.kind is SpanKind.CLIENT]
    parts = {span.context.trace_id: span for span in spans if span.kind is SpanKind.INTERNAL and "m" in span.name[-1]}
    assert set(parts) == {1, 3}, "who was not sampled tells nothing"
    assert call.name == "embeddings m"
    assert call.context.trace_id in parts
    assert call.parent.span_id == parts[call.context.trace_id].context.span_id
    assert seen.header("traceparent") == f"00-{call.context.trace_id:032x}-{call.context.span_id:016x}-01"
    linked = {(link.context.trace_id, link.context.span_id) for link in call.links}
    assert linked == {(part.context.trace_id, part.context.span_id) for part in parts.values()}
    for part in parts.values():
        (link,) = part.links
        assert (link.context.trace_id, link.context.span_id) == (call.context.trace_id, call.context.span_id)
    assert call.attributes["trimtab.batch.requests"] == call.attributes["trimtab.batch.size"] == 3
    assert call.attributes["trimtab.batch.calls"] == 1
    assert call.attributes["trimtab.batch.closed_by"] == "size"
    assert call.attributes["server.address"] == "127.0.0.1"
    assert call.start_time == pytest.approx(min(part.start_time for part in parts.values()), abs=1e6)


async def test_who_held_a_batch_back_shows_as_the_window_within_the_queue(make_rig: Make) -> None:
    async with MockUpstream() as upstream:
        rig = await make_rig(upstreams=[{"url": upstream.url, "profile": "openai"}], **merging(2))
        exporter = traced(rig)
        assert await asyncio.gather(embed(rig, "a1", parent(1)), embed(rig, "b2", parent(2))) == [200, 200]
    by_trace: dict[int, dict[str, Any]] = {}
    for span in exporter.get_finished_spans():
        by_trace.setdefault(span.context.trace_id, {}).setdefault(span.name, span)
    for spans in by_trace.values():
        window, queue = spans["window"], spans["queue"]
        assert window.parent.span_id == queue.context.span_id
        assert queue.start_time <= window.start_time <= window.end_time == queue.end_time
        assert window.attributes["trimtab.batch.closed_by"] == "size"
        assert window.attributes["trimtab.batch.size"] == 2


async def test_a_gate_that_waits_for_company_shows_as_the_window(make_rig: Make) -> None:
    async with MockUpstream() as upstream:
        rig = await make_rig(upstreams=[{"url": upstream.url, "profile": "openai"}], **merging(2))
        exporter = traced(rig)
        await asyncio.gather(post(rig, headers=parent(1)), post(rig, headers=parent(2)))
        async with rig.http.get(f"{rig.admin}/metrics") as answer:
            text = await answer.text()
    windows = [span for span in exporter.get_finished_spans() if span.name == "window"]
    assert {span.context.trace_id for span in windows} == {1, 2}
    assert 'trimtab_window_wait_seconds_count{pool="default"} 2.0' in text


async def test_a_poisoned_batch_tells_how_many_calls_it_took(make_rig: Make) -> None:
    async with MockUpstream(Behaviour(poison=["bad"])) as upstream:
        rig = await make_rig(upstreams=[{"url": upstream.url, "profile": "openai"}], **merging(2))
        exporter = traced(rig)
        statuses = await asyncio.gather(embed(rig, "a1", parent(1)), embed(rig, "bad", parent(2)))
        assert sorted(statuses) == [200, 400]
        calls = len(upstream.seen)
    (call,) = [span for span in exporter.get_finished_spans() if span.kind is SpanKind.CLIENT]
    assert call.attributes["trimtab.batch.calls"] == calls > 1
    assert call.status.status_code is StatusCode.UNSET, "somebody was answered"


async def test_a_merged_call_that_answers_nobody_is_an_error(make_rig: Make) -> None:
    async with MockUpstream() as upstream:
        rig = await make_rig(upstreams=[{"url": upstream.url, "profile": "openai"}], retries={"max": 0}, **merging(2))
        exporter = traced(rig)
        mock = {"x-mock": '{"reset_before_head": true}'}
        statuses = await asyncio.gather(embed(rig, "a1", parent(1) | mock), embed(rig, "b2", parent(2) | mock))
        assert statuses == [502, 502]
    (call,) = [span for span in exporter.get_finished_spans() if span.kind is SpanKind.CLIENT]
    assert call.status.status_code is StatusCode.ERROR
    assert call.attributes["error.type"] == "no_answer"


async def test_a_request_that_fell_back_tells_of_the_pool_that_took_it(make_rig: Make) -> None:
    async with MockUpstream() as upstream:
        rig = await make_rig(
            pools=[
                {"name": "first", "upstreams": ["http://127.0.0.1:9"], "fallback": "second", **merging(64)},
                {"name": "second", "match": {"paths": []}, "upstreams": [upstream.url]},
            ]
        )
        exporter = traced(rig)
        await post(rig, headers=parent(1))
        sent = upstream.seen[-1].header("traceparent")
    call = named(exporter)["chat m"]
    assert call.attributes["trimtab.pool"] == "second"
    assert sent.split("-")[2] == f"{call.context.span_id:016x}"


async def test_a_failure_is_an_error_with_its_reason(make_rig: Make) -> None:
    async with MockUpstream() as upstream:
        rig = await make_rig(upstreams=[upstream.url], retries={"max": 0})
        exporter = traced(rig)
        await post(rig, 502, {"x-mock": '{"reset_before_head": true}'})
    request = named(exporter)["POST chat.completions"]
    assert request.status.status_code.name == "ERROR"
    assert request.attributes["error.type"] == "upstream_error"
    assert request.parent is None, "a trace begins here where the caller brought none"


@pytest.mark.parametrize(("flags", "ratio"), [("00", 1.0), (None, 0.0)])
async def test_what_is_not_sampled_is_passed_on_untouched(make_rig: Make, flags: str | None, ratio: float) -> None:
    async with MockUpstream() as upstream:
        rig = await make_rig(upstreams=[upstream.url])
        exporter = traced(rig, ratio)
        given = None if flags is None else f"{PARENT[:-2]}{flags}"
        await post(rig, headers={} if given is None else {"traceparent": given})
        assert (upstream.seen[-1].header("traceparent") or None) == given
    assert exporter.get_finished_spans() == ()


async def test_latencies_carry_the_trace_as_an_exemplar(make_rig: Make) -> None:
    async with MockUpstream() as upstream:
        rig = await make_rig(upstreams=[upstream.url])
        traced(rig)
        await post(rig, headers={"traceparent": PARENT})
        accept = {"Accept": "application/openmetrics-text; version=1.0.0"}
        async with rig.http.get(f"{rig.admin}/metrics", headers=accept) as answer:
            text = await answer.text()
    rows = [line for line in text.splitlines() if line.startswith("trimtab_request_duration_seconds_bucket")]
    assert sum(f'# {{trace_id="{PARENT.split("-")[1]}"}}' in row for row in rows) == 1


async def test_what_was_traced_reaches_a_collector_over_otlp_when_the_proxy_stops(make_rig: Make) -> None:
    proto = pytest.importorskip("opentelemetry.proto.collector.trace.v1.trace_service_pb2")
    names: list[str] = []

    async def collect(request: web.Request) -> web.Response:
        export = proto.ExportTraceServiceRequest()
        export.ParseFromString(await request.read())
        for resource in export.resource_spans:
            attributes = {entry.key: entry.value.string_value for entry in resource.resource.attributes}
            assert attributes["service.name"] == "front"
            names.extend(span.name for scope in resource.scope_spans for span in scope.spans)
        return web.Response(content_type="application/x-protobuf")

    app = web.Application()
    app.router.add_post("/v1/traces", collect)
    async with MockUpstream() as upstream, TestServer(app) as collector:
        endpoint = str(collector.make_url("/v1/traces"))
        rig = await make_rig(
            upstreams=[{"url": upstream.url, "profile": "openai"}],
            tracing={"enabled": True, "endpoint": endpoint, "ratio": 1.0, "service_name": "front"},
            **merging(2),
        )
        assert await asyncio.gather(embed(rig, "a1", {}), embed(rig, "b2", {})) == [200, 200]
        await rig.proxy.stop()
    assert sorted(names) == ["POST embeddings"] * 2 + ["embeddings m"] * 3 + ["queue"] * 2 + ["window"] * 2


def test_tracing_without_the_extra_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("opentelemetry"):
            raise ImportError(name)
        return whole(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r"tracing\.enabled.*trimtab\[otel\]"):
        exporter_for(TracingConfig(enabled=True))


def test_an_endpoint_that_is_no_url_is_refused() -> None:
    with pytest.raises(ValueError, match="http or https URL"):
        Config.model_validate({"upstreams": ["http://a:1"], "tracing": {"endpoint": "collector:4318"}})
