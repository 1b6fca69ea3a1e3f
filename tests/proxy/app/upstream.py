"""An inference server that does what the test says, when the test says it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web
from aiohttp.test_utils import TestServer

__all__ = ["Upstream", "running"]


class Upstream:
    """Answers chats with its own name. While `gate` is closed, answers wait."""

    def __init__(self, name: str = "a") -> None:
        self.name = name
        self.gate = asyncio.Event()
        self.gate.set()
        self.entered = asyncio.Event()
        self.served = 0
        self.url = ""

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """Answer one chat, streamed in two pieces when asked for."""
        body = await request.json()
        self.entered.set()
        if not body.get("stream"):
            await self.gate.wait()
            self.served += 1
            return web.json_response(
                {
                    "id": self.name,
                    "object": "chat.completion",
                    "choices": [{"index": 0, "message": {"role": "assistant", "content": self.name}}],
                    "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
                }
            )
        answer = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await answer.prepare(request)
        await answer.write(b'data: {"choices":[{"index":0,"delta":{"content":"one"}}]}\n\n')
        await self.gate.wait()
        await answer.write(b'data: {"choices":[{"index":0,"delta":{"content":"two"}}]}\n\n')
        await answer.write(b"data: [DONE]\n\n")
        self.served += 1
        return answer


@asynccontextmanager
async def running(name: str = "a") -> AsyncIterator[Upstream]:
    """Run an upstream on a port of its own."""
    upstream = Upstream(name)
    app = web.Application()
    app.router.add_post("/v1/chat/completions", upstream.chat)
    async with TestServer(app) as server:
        upstream.url = str(server.make_url("")).rstrip("/")
        yield upstream
