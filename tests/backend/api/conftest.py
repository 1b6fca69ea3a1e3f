from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from backend.api.metrics import Metrics
from backend.api.service import Limits, ServedModel, Service
from backend.browsers import Browsers
from backend.grammar import source
from backend.listener import Patience, WorkerRunner
from backend.server import Phase, WorkerState, build_app
from tests.backend.api.fakes import VOCAB, ByteTokenizer, FakeEngine


@dataclass
class Worker:
    """A worker on a loopback port, with the fake engine behind it."""

    client: TestClient[Any, Any]
    engine: FakeEngine
    service: Service
    state: WorkerState

    @property
    def url(self) -> str:
        return str(self.client.make_url("/"))

    async def post(self, path: str, **body: Any) -> tuple[int, Any]:
        async with self.client.post(path, json=body) as response:
            return response.status, await response.json()


async def check_grammar(grammar: str) -> None:
    """What GrammarChecker does, without its process."""
    source.check(grammar)


class _Server(TestServer):
    """A server on the worker's own connections."""

    def __init__(self, app: web.Application, patience: Patience) -> None:
        super().__init__(app)
        self._patience = patience

    async def _make_runner(self, **kwargs: Any) -> web.BaseRunner[Any]:
        return WorkerRunner(self.app, self._patience, shutdown_timeout=2.0)


StartWorker = Callable[..., Awaitable[Worker]]


@pytest.fixture
async def start_worker() -> AsyncIterator[StartWorker]:
    clients: list[TestClient[Any, Any]] = []
    executor = ThreadPoolExecutor(1)

    async def start(
        engine: FakeEngine | None = None,
        *,
        limits: Limits | None = None,
        api_key: str | None = None,
        max_body_bytes: int = 1 << 20,
        max_model_len: int = 512,
        tool_format: str | None = None,
        tokenizer: ByteTokenizer | None = None,
        patience: Patience | None = None,
        browsers: Browsers | None = None,
        **model: Any,
    ) -> Worker:
        ticks = itertools.count()
        engine = engine or FakeEngine()
        service = Service(
            engine,
            ServedModel(
                ("fake", "alias"),
                tokenizer or ByteTokenizer(),
                VOCAB,
                max_model_len,
                1_700_000_000,
                tool_format=tool_format,
                **model,
            ),
            limits=limits or Limits(max_n=8, max_prompts=8, max_sequences=16),
            metrics=Metrics("fake", block_size=16, num_blocks=10),
            executor=executor,
            large=executor,
            check_grammar=check_grammar,
            clock=lambda: next(ticks) / 100,
            wall=lambda: 1_700_000_001.5,
        )
        state = WorkerState()
        state.service = service
        state.phase = Phase.READY
        app = build_app(state, max_body_bytes=max_body_bytes, api_key=api_key, browsers=browsers)
        client = TestClient(_Server(app, patience or Patience()))
        await client.start_server()
        clients.append(client)
        return Worker(client, engine, service, state)

    yield start
    for client in clients:
        await client.close()
    executor.shutdown()


@pytest.fixture
async def worker(start_worker: StartWorker) -> Worker:
    return await start_worker()
