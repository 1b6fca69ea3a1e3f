"""Readiness of `trimtab serve` follows what is behind it."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from tests.e2e.spine_process import Trimtab, mock_upstream
from tests.e2e.worker_process import eventually
from tests.support.late import late

openai = late("openai")


async def test_it_serves_before_its_upstream_is_there_and_becomes_ready_with_it(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with Trimtab.serve(tmp_path, "--upstream", f"http://127.0.0.1:{port}") as running:
        status, document = running.request("GET", "/readyz")
        assert (status, document["ready"]) == (503, False)
        assert "no upstream is available" in document["reasons"][0]
        assert running.request("GET", "/healthz")[0] == 200
        async with openai.AsyncOpenAI(base_url=f"{running.proxy}/v1", api_key="x", max_retries=0) as client:
            with pytest.raises(openai.InternalServerError):
                await client.models.list()
            with mock_upstream(port):
                eventually(lambda: running.request("GET", "/readyz")[0] == 200)
                assert [model.id async for model in await client.models.list()] == ["mock"]
