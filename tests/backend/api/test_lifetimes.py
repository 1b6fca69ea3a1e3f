"""Every request ends: by completion, by its client leaving or by the engine failing, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from backend.api.service import Limits
from backend.engine.errors import EngineError, EngineOverloaded, RequestRefused
from backend.server import Phase
from tests.backend.api.conftest import StartWorker, Worker
from tests.backend.api.fakes import FakeEngine

CHAT = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]


async def raw_request(worker: Worker, path: str, **body: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a request over a socket of its own and return both ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", worker.client.port)
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    writer.write(head.encode() + data)
    await writer.drain()
    return reader, writer


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"), [(CHAT, {"messages": HELLO, "n": 2}), ("/v1/completions", {"prompt": ["a", "b", "c"]})]
)
async def test_client_going_away_aborts_all_its_engine_requests(
    worker: Worker, path: str, body: dict[str, Any], stream: bool
) -> None:
    worker.engine.hold()
    reader, writer = await raw_request(worker, path, stream=stream, **body)
    await worker.engine.started.wait()
    if stream:
        await reader.readuntil(b"data: ")
    writer.transport.abort()
    await worker.state.wait_idle()
    assert sorted(worker.engine.aborted) == sorted(request.id for request in worker.engine.requests)
    assert worker.engine.finished == []
    assert worker.service.sequences == 0
    text = worker.service.metrics.render(None).decode()
    assert 'finished_reason="abort",model_name="fake"} 0.0' not in text
    assert "trimtab_worker_client_disconnects_total" in text


async def test_client_that_expects_100_continue_gets_it_and_its_answer(worker: Worker) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", worker.client.port)
    data = json.dumps({"messages": HELLO}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: {len(data)}\r\n\r\n"
    writer.write(head.encode())
    assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(data)
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    writer.close()


async def test_client_that_leaves_before_its_body_is_complete_leaves_nothing(worker: Worker) -> None:
    _, writer = await asyncio.open_connection("127.0.0.1", worker.client.port)
    writer.write(f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{{".encode())
    await writer.drain()
    writer.transport.abort()
    assert (await worker.post(CHAT, messages=HELLO))[0] == 200
    await worker.state.wait_idle()
    assert len(worker.engine.requests) == 1


async def test_client_going_away_cancels_its_embeddings(worker: Worker) -> None:
    worker.engine.embed_gate.clear()
    _, writer = await raw_request(worker, "/v1/embeddings", input=["a"])
    await worker.engine.embed_started.wait()
    writer.transport.abort()
    await worker.engine.embed_cancelled.wait()
    await worker.state.wait_idle()
    assert worker.service.sequences == 0


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (RequestRefused("the prompt can never fit", "prompt"), 400, "request_refused"),
        (EngineOverloaded("the engine already has 9 requests"), 503, "queue_full"),
        (EngineError("the step failed"), 500, "engine_error"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_engine_errors_before_the_first_byte_get_their_own_status(
    worker: Worker, error: Exception, status: int, code: str, stream: bool
) -> None:
    worker.engine.refusal = error
    async with worker.client.post(CHAT, json={"messages": HELLO, "stream": stream}) as response:
        answer = await response.json()
    assert (response.status, answer["error"]["code"]) == (status, code)
    assert (response.headers.get("Retry-After") is not None) == (status == 503)
    assert worker.service.sequences == 0


async def test_engine_death_without_streaming_is_503(worker: Worker) -> None:
    worker.engine.fail_at = 3
    status, answer = await worker.post(CHAT, messages=HELLO)
    assert (status, answer["error"]["code"]) == (503, "engine_unavailable")
    assert "signal 9" in answer["error"]["message"]


async def test_stream_that_breaks_says_so_and_is_cut_without_done(worker: Worker) -> None:
    worker.engine.fail_at = 3
    reader, writer = await raw_request(worker, CHAT, messages=HELLO, stream=True)
    text = (await reader.read()).decode()
    writer.close()
    assert '"error":{"message":"the engine process ended' in text
    assert "[DONE]" not in text
    assert not text.endswith("0\r\n\r\n")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("at", [0, 3])
async def test_grammar_that_fails_on_the_way_is_the_callers_error_and_names_its_field(
    worker: Worker, stream: bool, at: int
) -> None:
    """Before the first token with a status, afterwards in the error event of a stream that breaks."""
    worker.engine.error_param = "guided_regex"
    worker.engine.fail_at = at
    reader, writer = await raw_request(worker, CHAT, messages=HELLO, stream=stream, n=2)
    await worker.engine.ended.wait()
    head, body = (await asyncio.wait_for(reader.readuntil(b"}}"), 10)).decode().split("\r\n\r\n", 1)
    writer.close()
    started = stream and at > 0
    assert head.startswith("HTTP/1.1 200" if started else "HTTP/1.1 400")
    error = json.loads(body.rpartition("data: ")[2])["error"]
    assert (error["type"], error["param"], error["code"]) == (
        "invalid_request_error",
        "guided_regex",
        "invalid_grammar",
    )
    assert "[DONE]" not in body
    assert worker.service.sequences == 0


async def test_one_failing_prompt_aborts_its_siblings(worker: Worker) -> None:
    class OneFails(FakeEngine):
        async def _deltas(self, request: Any) -> Any:
            if request.id.endswith("-1"):
                await self.started.wait()
                raise EngineError("the step failed")
            async for delta in super()._deltas(request):
                yield delta

    engine = OneFails()
    engine.hold()
    worker.service.engine = engine
    status, _ = await worker.post("/v1/completions", prompt=["a", "b", "c"])
    assert status == 500
    assert len(engine.aborted) == 3


async def test_engine_that_ends_early_is_an_error_not_a_short_answer(worker: Worker) -> None:
    class Empty(FakeEngine):
        async def _deltas(self, request: Any) -> Any:
            return
            yield

    worker.service.engine = Empty()
    for stream in (False, True):
        status, answer = await worker.post(CHAT, messages=HELLO, stream=stream)
        assert (status, answer["error"]["code"]) == (500, "engine_error")


async def test_a_bug_is_a_500_that_gives_nothing_away(worker: Worker, caplog: pytest.LogCaptureFixture) -> None:
    worker.engine.refusal = RuntimeError("secret detail")
    status, answer = await worker.post(CHAT, messages=HELLO)
    assert (status, answer["error"]["code"]) == (500, "internal")
    assert "secret" not in json.dumps(answer)
    assert "secret detail" in caplog.text


async def test_more_sequences_than_are_held_is_503_with_retry_after(start_worker: StartWorker) -> None:
    worker = await start_worker(limits=Limits(max_n=8, max_prompts=8, max_sequences=4))
    worker.engine.hold()
    first = asyncio.create_task(worker.post(CHAT, messages=HELLO, n=3))
    await worker.engine.started.wait()
    async with worker.client.post(CHAT, json={"messages": HELLO, "n": 2}) as response:
        answer = await response.json()
    assert (response.status, answer["error"]["code"]) == (503, "queue_full")
    assert int(response.headers["Retry-After"]) >= 1
    worker.engine.go.set()
    status, _ = await first
    assert status == 200
    assert worker.service.sequences == 0


async def test_reader_that_stalls_is_given_up(start_worker: StartWorker) -> None:
    worker = await start_worker(
        FakeEngine(lambda request, index: "x" * 400_000),
        limits=Limits(write_stall_s=0.05),
        max_model_len=1_000_000,
    )
    _, writer = await raw_request(worker, CHAT, messages=HELLO, stream=True)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    await worker.engine.ended.wait()
    await worker.state.wait_idle()
    assert worker.engine.aborted
    assert worker.service.sequences == 0
    assert b'client_disconnects_total{engine="0",model_name="fake"} 1.0' in worker.service.metrics.render(None)
    writer.transport.abort()


@pytest.mark.parametrize("code", ["loading", "draining"])
async def test_loading_and_draining_are_503_with_retry_after(worker: Worker, code: str) -> None:
    if code == "loading":
        worker.state.service = None
    else:
        worker.state.phase = Phase.DRAINING
    for method, path in (("GET", "/health"), ("POST", CHAT)):
        async with worker.client.request(method, path, json={"messages": HELLO}) as response:
            answer = await response.json()
        assert (response.status, answer["error"]["code"]) == (503, code)
        assert int(response.headers["Retry-After"]) >= 1


async def test_unhealthy_engine_shows_in_health_and_still_gets_the_request_that_may_heal_it(worker: Worker) -> None:
    worker.engine.healthy = False
    async with worker.client.get("/health") as response:
        answer = await response.json()
    assert (response.status, answer["error"]["code"]) == (503, "engine_unhealthy")
    assert (await worker.post(CHAT, messages=HELLO))[0] == 200


async def test_shutdown_waits_for_open_requests(worker: Worker) -> None:
    worker.engine.hold()
    request = asyncio.create_task(worker.post(CHAT, messages=HELLO))
    await worker.engine.started.wait()
    idle = asyncio.create_task(worker.state.wait_idle())
    worker.state.phase = Phase.DRAINING
    assert (await worker.post(CHAT, messages=HELLO))[0] == 503
    assert not idle.done()
    worker.engine.go.set()
    assert (await request)[0] == 200
    await idle
