"""Clients that keep a proxy busy while something is done to it, and tell what went wrong for them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

__all__ = ["Load", "stream", "streaming_load"]

PROMPTS = (
    "Tell me a short story about a lighthouse keeper.",
    "List three uses for a brick.",
    "What is the capital of France?",
    "Name four planets of the solar system.",
)


class Load:
    """What has become of the requests so far."""

    def __init__(self) -> None:
        self.finished = 0
        self.failures: list[str] = []
        self._changed = asyncio.Event()

    def over(self, failure: str | None) -> None:
        """One more is over."""
        self.finished += 1
        if failure is not None:
            self.failures.append(failure)
        self._changed.set()

    async def more(self, count: int) -> None:
        """Wait until `count` more requests are over."""
        wanted = self.finished + count
        while self.finished < wanted:
            self._changed.clear()
            await self._changed.wait()


async def stream(
    http: aiohttp.ClientSession, url: str, max_tokens: int, prompt: str, headers: Mapping[str, str] | None = None
) -> str | None:
    """Run one streamed chat to its end; return what was wrong with it."""
    body: dict[str, Any] = {
        "model": "demo",
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }
    tail = b""
    try:
        async with http.post(f"{url}/v1/chat/completions", json=body, headers=headers) as response:
            async for piece in response.content.iter_any():
                tail = (tail + piece)[-400:]
            whole = response.status == 200 and tail.rstrip().endswith(b"data: [DONE]")
            return None if whole else f"status {response.status}, ends {tail!r}"
    except aiohttp.ClientError as error:
        return repr(error)


@asynccontextmanager
async def streaming_load(
    url: str, *, clients: int, tokens: tuple[int, int], headers: Mapping[str, str] | None = None
) -> AsyncIterator[Load]:
    """Keep so many clients asking one request after the other; let the last ones finish at the end."""
    load, stop = Load(), asyncio.Event()
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as http:

        async def client(number: int) -> None:
            chance = random.Random(number)
            while not stop.is_set():
                load.over(await stream(http, url, chance.randint(*tokens), chance.choice(PROMPTS), headers))

        tasks = [asyncio.create_task(client(number)) for number in range(clients)]
        try:
            yield load
        finally:
            stop.set()
            await asyncio.gather(*tasks)
