"""Connections, heads and bodies are bounded in number and time, so that nobody holds the worker up by being slow."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from backend.api.intake import BodyLimits
from backend.api.service import Limits
from backend.listener import Patience
from tests.backend.api.conftest import StartWorker, Worker
from tests.backend.api.fakes import FakeEngine
from tests.support.raw_http import RawClient, request_bytes

MOST = 6
QUICK = Patience(max_connections=MOST, head_s=0.2, idle_s=30.0, answer_s=0.2)
ASK = {"prompt": "a"}
HOST = {"Host": "127.0.0.1"}
LONG = b'{"prompt":"' + b"a" * 100_000


def client_of(worker: Worker) -> RawClient:
    assert worker.client.port is not None
    return RawClient(worker.client.port)


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not true():  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0.001)


@asynccontextmanager
async def dribbling(client: RawClient, data: bytes) -> AsyncIterator[None]:
    """Send `data` a byte at a time."""

    async def dribble() -> None:
        for at in range(len(data)):
            client.send(data[at : at + 1])
            await asyncio.sleep(0.005)

    task = asyncio.ensure_future(dribble())
    try:
        yield
    finally:
        task.cancel()


@pytest.mark.parametrize("words", [b"", b"GET /health HTTP/1.1\r\nHos"])
async def test_idle_connections_make_room(start_worker: StartWorker, words: bytes) -> None:
    worker = await start_worker(patience=Patience(max_connections=MOST))
    async with AsyncExitStack() as clients:
        idle = [await clients.enter_async_context(client_of(worker)) for _ in range(3 * MOST)]
        for client in idle:
            client.send(words)
        async with client_of(worker) as client:
            assert (await client.ask("GET", "/v1/models", HOST)).status == 200
        for client in idle[:MOST]:
            assert await client.closed() == b""


async def test_kept_connections_make_room(start_worker: StartWorker) -> None:
    worker = await start_worker(patience=Patience(max_connections=MOST))
    async with AsyncExitStack() as clients:
        for _ in range(3 * MOST):
            client = await clients.enter_async_context(client_of(worker))
            assert (await client.ask("GET", "/v1/models", HOST)).status == 200


async def test_where_all_are_busy_a_newcomer_is_told_and_nobody_is_cut(start_worker: StartWorker) -> None:
    engine = FakeEngine()
    engine.hold()
    worker = await start_worker(engine, patience=Patience(max_connections=MOST))
    async with AsyncExitStack() as clients:
        busy = [await clients.enter_async_context(client_of(worker)) for _ in range(MOST)]
        for client in busy:
            client.send(request_bytes("POST", "/v1/completions", HOST, ASK))
        await until(lambda: len(engine.requests) == MOST)
        async with client_of(worker) as client:
            answer = await client.answer()
            assert (answer.status, answer.header("retry-after")) == (503, "1")
            assert json.loads(answer.body)["error"]["code"] == "too_many_connections"
        engine.go.set()
        for client in busy:
            assert (await client.answer()).status == 200


@pytest.mark.parametrize("first", [False, True], ids=["first", "kept"])
async def test_a_dribbled_head_is_given_up(start_worker: StartWorker, first: bool) -> None:
    worker = await start_worker(patience=QUICK)
    async with client_of(worker) as client:
        if first:
            assert (await client.ask("GET", "/v1/models", HOST)).status == 200
        async with dribbling(client, b"GET /health HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 100):
            assert await client.closed() == b""


async def test_a_head_in_pieces_is_taken(start_worker: StartWorker) -> None:
    worker = await start_worker(patience=Patience(head_s=30.0))
    async with client_of(worker) as client:
        for piece in (b"GET /v1/models HT", b"TP/1.1\r\nHost: 127.0.0.1\r\n", b"\r\n"):
            client.send(piece)
            await asyncio.sleep(0.01)
        assert (await client.answer()).status == 200


async def test_an_idle_connection_is_closed(start_worker: StartWorker) -> None:
    worker = await start_worker(patience=Patience(idle_s=0.05))
    async with client_of(worker) as client:
        assert (await client.ask("GET", "/v1/models", HOST)).status == 200
        assert await client.closed() == b""


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/tokenize"])
async def test_a_dribbled_body_is_given_up(start_worker: StartWorker, path: str) -> None:
    bodies = BodyLimits(timeout_s=0.2, min_rate=1_000_000)
    worker = await start_worker(limits=Limits(bodies=bodies))
    async with client_of(worker) as client:
        client.send(request_bytes("POST", path, {**HOST, "Content-Length": "5000"}))
        async with dribbling(client, b" " * 5_000):
            answer = await client.answer()
        assert (answer.status, json.loads(answer.body)["error"]["code"]) == (400, "body_timeout")
    assert worker.service.intake.held == 0


async def test_a_body_that_keeps_the_least_rate_has_more_than_the_timeout(start_worker: StartWorker) -> None:
    worker = await start_worker(limits=Limits(bodies=BodyLimits(timeout_s=0.2, min_rate=1)), max_model_len=512)
    body = b'{"prompt":"a"' + b" " * 60 + b"}"
    async with client_of(worker) as client:
        client.send(request_bytes("POST", "/v1/completions", {**HOST, "Content-Length": str(len(body))}))
        async with dribbling(client, body):
            assert (await client.answer()).status == 200


async def test_bodies_are_bounded_over_all_requests(start_worker: StartWorker) -> None:
    limits = Limits(bodies=BodyLimits(max_held_bytes=400_000))
    worker = await start_worker(limits=limits)
    async with AsyncExitStack() as clients:
        for _ in range(3):
            client = await clients.enter_async_context(client_of(worker))
            client.send(request_bytes("POST", "/v1/completions", {**HOST, "Content-Length": "900000"}, LONG))
        await until(lambda: worker.service.intake.held == 3 * len(LONG))
        large = LONG * 4
        async with client_of(worker) as client:
            client.send(request_bytes("POST", "/v1/completions", HOST, large))
            answer = await client.answer()
            assert (answer.status, json.loads(answer.body)["error"]["code"]) == (503, "bodies_full")
            assert answer.header("retry-after") == "1"
        async with client_of(worker) as client:
            client.send(request_bytes("POST", "/v1/completions", HOST, ASK))
            assert (await client.answer()).status == 200
    await until(lambda: worker.service.intake.held == 0)


async def test_a_client_that_takes_no_answer_is_given_up(start_worker: StartWorker) -> None:
    patience = Patience(answer_s=0.1, min_rate=1 << 30)
    worker = await start_worker(patience=patience, max_body_bytes=32 << 20, max_model_len=1 << 24)
    text = b'{"prompt":"' + b"a" * (8 << 20) + b'"}'
    async with client_of(worker) as client:
        client.reader._transport.pause_reading()  # type: ignore[attr-defined]
        client.send(request_bytes("POST", "/tokenize", HOST, text))
        server = worker.client.server.runner.server
        assert server is not None
        await until(lambda: server.connections)
        await until(lambda: not server.connections)


@pytest.mark.parametrize("coding", ["gzip", "x-gzip", "identity"])
async def test_a_packed_body_is_read(worker: Worker, coding: str) -> None:
    raw = json.dumps(ASK).encode()
    body = raw if coding == "identity" else gzip.compress(raw)
    async with client_of(worker) as client:
        client.send(request_bytes("POST", "/v1/completions", {**HOST, "Content-Encoding": coding}, body))
        assert (await client.answer()).status == 200


@pytest.mark.parametrize(
    ("coding", "body", "status"),
    [
        ("gzip", gzip.compress(b"[" * 20_000_000), 413),
        ("gzip", gzip.compress(b"{}")[:-9], 400),
        ("gzip", b"{}", 400),
        ("br", b"{}", 400),
    ],
    ids=["bomb", "cut", "not packed", "unknown"],
)
async def test_what_cannot_be_unpacked_is_refused(worker: Worker, coding: str, body: bytes, status: int) -> None:
    async with client_of(worker) as client:
        client.send(request_bytes("POST", "/v1/completions", {**HOST, "Content-Encoding": coding}, body))
        answer = await client.answer()
        assert answer.status == status
        assert json.loads(answer.body)["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"GET /health HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 20_000 + b"\r\n\r\n", 431),
        (b"GET /health HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 200 + b"\r\n", 400),
        (b"GET / / HTTP/1.1\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
    ],
    ids=["a long line", "many fields", "no request line", "TLS"],
)
async def test_a_head_that_cannot_be_read_gets_an_error_object(worker: Worker, head: bytes, status: int) -> None:
    async with client_of(worker) as client:
        client.send(head)
        answer = await client.answer()
        assert answer.status == status
        assert json.loads(answer.body)["error"]["type"] == "invalid_request_error"
        assert await client.closed() == b""
