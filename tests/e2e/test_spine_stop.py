"""How `trimtab up` goes away: open streams finish, the exit code is 0, and nothing is left behind."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import aiohttp
import pytest

from tests.e2e.load import PROMPTS, stream
from tests.e2e.spine_process import Up, children, gone, listens
from tests.e2e.worker_process import eventually


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_lets_the_stream_finish_and_leaves_nothing_behind(tmp_path: Path, how: signal.Signals) -> None:
    up = Up(tmp_path, "--set", "slo.ttft_ms=null", "--set", "slo.e2e_ms=null")
    try:
        await asyncio.to_thread(up.wait_ready)
        urls = (up.proxy, up.admin, up.worker)
        below = children(up.process.pid)
        assert len(below) >= 2, "the worker and its engine"
        async with aiohttp.ClientSession() as http:
            running = asyncio.create_task(stream(http, up.proxy, 24, PROMPTS[0]))
            await asyncio.to_thread(eventually, lambda: up.pool()["inflight"] == 1)
            up.process.send_signal(how)
            assert await running is None
        assert await asyncio.to_thread(up.process.wait, 60) == 0
        await asyncio.to_thread(eventually, lambda: all(map(gone, below)))
        assert not any(map(listens, urls))
        assert "Traceback" not in up.err
    finally:
        up.kill()
