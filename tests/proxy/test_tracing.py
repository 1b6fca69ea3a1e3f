"""A trace tells what became of a request, and the upstream's spans find their parent in it."""

from __future__ import annotations

import builtins
import random
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from proxy.config.errors import ConfigError
from proxy.config.model import Config, TracingConfig
from proxy.tracing import Tracing, exporter_for
from tests.proxy.app.conftest import Rig, make_rig
from tests.support.mock_upstream import MockUpstream

__all__ = ["make_rig"]

Make = Callable[..., Any]
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


def traced(rig: Rig, ratio: float = 1.0) -> InMemorySpanExporter:
    exporter = InMemorySpanExporter()
    tracing = Tracing(TracingConfig(ratio=ratio), exporter, rng=random.Random(1), batch=False)
    rig.proxy.plane.handler.service.tracing = tracing
    return exporter


async def post(rig: Rig, status: int = 200, headers: dict[str, str] | None = None, **body: Any) -> None:
    full = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **body}
    async with rig.http.post(f"{rig.data}/v1/chat/completions", json=full, headers=headers or {}) as answer:
        await answer.read()
        assert answer.status == status


def named(exporter: InMemorySpanExporter) -> dict[str, Any]:
    return {span.name: span for span in exporter.get_finished_spans()}


async def test_a_request_is_told_in_three_spans_under_the_callers(make_rig: Make) -> None:
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
    assert [event.name for event in call.events] == ["first_token"]
    assert request.start_time == queue.start_time <= queue.end_time == call.start_time <= call.end_time
    assert request.attributes["http.response.status_code"] == 200


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
