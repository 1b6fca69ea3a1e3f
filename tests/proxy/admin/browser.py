"""A real browser on the console, where Playwright and Chromium are installed."""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

import pytest
import pytest_asyncio
from aiohttp.test_utils import TestServer
from pydantic import SecretStr

from proxy.admin.server import make_app
from proxy.config.model import AdminConfig
from tests.proxy.admin.operator import FakeOperator

__all__ = ["Browser", "Window", "browser", "chromium", "in_browser"]

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync")  # fmt: skip
in_browser = [
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.skipif(
        CHROMIUM is None or importlib.util.find_spec("playwright") is None, reason="no Playwright or no Chromium"
    ),
]


class Window(NamedTuple):
    """How the page is opened."""

    width: int = 360
    scheme: str = "light"
    token: str | None = None


class Browser:
    """A page on the console of an operator; the server can be taken away and brought back on the same port."""

    def __init__(self, operator: FakeOperator, page: Any, token: str | None) -> None:
        self.operator = operator
        self.page = page
        self.faults: list[str] = []
        self._config = AdminConfig(port=0, token=SecretStr(token) if token else None)
        self._server: TestServer | None = None
        self._port = 0
        page.on("pageerror", lambda error: self.faults.append(str(error)))

    async def serve(self) -> str:
        self._server = TestServer(make_app(self.operator, self._config), port=self._port or None)
        await self._server.start_server(shutdown_timeout=0.1)
        self._port = self._server.port or 0
        return f"http://127.0.0.1:{self._port}/console/"

    async def vanish(self) -> None:
        if self._server is not None:
            await self._server.close()
            self._server = None

    async def says(self, selector: str, text: str) -> None:
        """Wait until an element has `text` in it."""
        await self.page.locator(selector).filter(has_text=text).first.wait_for(timeout=15_000)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def chromium() -> AsyncIterator[Any]:
    """One browser for all tests of a file; each gets a profile of its own in it."""
    from playwright.async_api import async_playwright

    async with async_playwright() as driver:
        started = await driver.chromium.launch(executable_path=CHROMIUM, args=list(FLAGS))
        yield started
        await started.close()


@pytest_asyncio.fixture(loop_scope="module")
async def browser(chromium: Any, operator: FakeOperator, request: pytest.FixtureRequest) -> AsyncIterator[Browser]:
    async with AsyncExitStack() as stack:
        window: Window = getattr(request, "param", Window())
        profile = await chromium.new_context(
            viewport={"width": window.width, "height": 800}, color_scheme=window.scheme
        )
        stack.push_async_callback(profile.close)
        opened = Browser(operator, await profile.new_page(), window.token)
        stack.push_async_callback(opened.vanish)
        await opened.page.goto(await opened.serve())
        yield opened
        assert opened.faults == []
