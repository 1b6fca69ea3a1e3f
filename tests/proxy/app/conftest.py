from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from typing import Any

import aiohttp
import pytest

from proxy.app import Proxy
from proxy.cli.sockets import address_of, bind
from proxy.config.model import Config
from tests.proxy.app.upstream import Upstream, running


class Rig:
    """A running proxy with clients for both of its ports, and the configuration its next reload will read."""

    def __init__(self, stack: AsyncExitStack, data: dict[str, Any]) -> None:
        self._stack = stack
        self.next: Callable[[], Config] = lambda: self.proxy.config
        config = Config.model_validate({"drain": {"grace_s": 0, "cap_s": 10}, **data})
        self.proxy = Proxy(config, reread=lambda: self.next())
        self.data = ""
        self.admin = ""
        self.http: aiohttp.ClientSession

    async def start(self) -> Rig:
        sockets = [bind("127.0.0.1", 0, key="listen", flag="--port") for _ in range(2)]
        self._stack.push_async_callback(self.proxy.stop)
        await self.proxy.start(*sockets)
        self.data, self.admin = (f"http://{address_of(sock)}" for sock in sockets)
        self.http = await self._stack.enter_async_context(aiohttp.ClientSession())
        return self

    def reload_to(self, **data: Any) -> None:
        """Let the next reload find `data` in the file."""
        self.next = lambda: Config.model_validate({"drain": {"grace_s": 0, "cap_s": 10}, **data})

    async def chat(self, **body: Any) -> aiohttp.ClientResponse:
        """Send one chat; the answer is unread."""
        full = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **body}
        return await self.http.post(f"{self.data}/v1/chat/completions", json=full)

    async def said(self) -> str:
        """Return what an unstreamed chat is answered."""
        async with await self.chat() as answer:
            assert answer.status == 200, await answer.text()
            content: str = (await answer.json())["choices"][0]["message"]["content"]
            return content

    async def admin_json(self, method: str, path: str, status: int = 200, **kwargs: Any) -> Any:
        async with self.http.request(method, f"{self.admin}{path}", **kwargs) as answer:
            assert answer.status == status, await answer.text()
            return await answer.json(content_type=None)


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    async with running("a") as server:
        yield server
        server.gate.set()


@pytest.fixture
async def other() -> AsyncIterator[Upstream]:
    async with running("b") as server:
        yield server
        server.gate.set()


@pytest.fixture
async def make_rig() -> AsyncIterator[Callable[..., Any]]:
    async with AsyncExitStack() as stack:

        async def make(**data: Any) -> Rig:
            return await Rig(stack, data).start()

        yield make
