"""The console: small, self-contained, and usable in a real browser (where Playwright and Chromium are installed)."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from aiohttp.test_utils import TestClient, TestServer
from pydantic import SecretStr

from controller.slo import SLO
from proxy.admin.server import make_app
from proxy.config.model import AdminConfig
from tests.proxy.admin.browser import Browser, Window, browser, chromium, in_browser
from tests.proxy.admin.operator import FakeOperator

__all__ = ["browser", "chromium"]

FILES = Path(__file__).resolve().parents[3] / "proxy" / "admin" / "console"


def test_all_assets_together_are_small() -> None:
    assert sum(file.stat().st_size for file in FILES.iterdir()) < 100_000


def test_nothing_is_asked_of_other_hosts() -> None:
    for file in FILES.iterdir():
        addresses = set(re.findall(r"https?://[^\s\"'`)]+", file.read_text()))
        assert addresses <= {"http://www.w3.org/2000/svg"}, file.name


async def test_pages_are_served_with_headers_that_allow_nothing_else(api: TestClient) -> None:
    async with api.get("/", allow_redirects=False) as answer:
        assert (answer.status, answer.headers["Location"]) == (302, "/console/")
    for path, kind in (("", "text/html"), ("console.css", "text/css"), ("console.js", "text/javascript"),
                       ("chart.js", "text/javascript")):  # fmt: skip
        async with api.get(f"/console/{path}") as answer:
            assert (answer.status, answer.content_type) == (200, kind)
            assert answer.headers["Content-Security-Policy"].startswith("default-src 'none'; script-src 'self'")
    async with api.get("/console/../auth.py") as answer:
        assert answer.status == 404


async def test_pages_need_no_token_but_what_they_ask_for_does(operator: FakeOperator) -> None:
    config = AdminConfig(port=0, token=SecretStr("t" * 16))
    async with TestClient(TestServer(make_app(operator, config))) as client:
        async with client.get("/console/") as answer:
            assert answer.status == 200
        async with client.get("/admin/v1/events") as answer:
            assert answer.status == 401


class TestInBrowser:
    pytestmark = in_browser

    async def test_reads_the_slo_and_the_setpoints(self, browser: Browser) -> None:
        await browser.says("#slo-cards", "target 500 ms at P99")
        await browser.says("#setpoints-text", "Batch size 8")
        await browser.says("#link", "live")
        assert await browser.page.evaluate("document.documentElement.scrollWidth") <= 360

    async def test_changes_the_slo(self, browser: Browser) -> None:
        await browser.says("#slo-cards", "500 ms")
        await browser.page.fill("#slo-ttft", "250")
        await browser.page.fill("#slo-e2e", "")
        await browser.page.click("#slo button")
        await browser.says("#slo-cards", "target 250 ms")
        assert browser.operator.pools["chat"].controller.slo == SLO(ttft_s=0.25)
        await browser.says("#decisions", "admin.slo")

    async def test_pins_and_gives_back(self, browser: Browser) -> None:
        await browser.says("#setpoints-text", "Batch size 8")
        await browser.page.fill("#setpoint-max_batch_size", "5")
        await browser.page.click("#pins button[type=submit], #pins button:not([type])")
        await browser.says("#setpoints-text", "Batch size 5")
        assert dict(browser.operator.pools["chat"].controller.pins)["max_batch_size"] == 5
        await browser.page.click("#unpin")
        await browser.says("#decisions", "admin.unpin")
        assert browser.operator.pools["chat"].controller.pins == {}

    async def test_a_refusal_says_why(self, browser: Browser) -> None:
        await browser.says("#setpoints-text", "Batch size 8")
        await browser.page.fill("#setpoint-max_batch_size", "999")
        await browser.page.click("#pins button:not([type])")
        await browser.says("#error", "max_batch_size: got 999; accepted: 1 to 64")

    async def test_rolls_back(self, browser: Browser) -> None:
        await browser.says("#slo-cards", "500 ms")
        await browser.page.fill("#slo-ttft", "250")
        await browser.page.click("#slo button")
        await browser.says("#slo-cards", "target 250 ms")
        await browser.page.get_by_label("Undo decision 1").click()
        await browser.says("#slo-cards", "target 500 ms")

    async def test_loses_the_connection_and_recovers(self, browser: Browser) -> None:
        await browser.says("#link", "live")
        await browser.vanish()
        await browser.says("#link", "connection lost")
        controller = browser.operator.pools["chat"].controller
        controller.pin({"max_batch_size": 3}, 1000.0, "admin:meanwhile")
        await browser.serve()
        await browser.says("#link", "live")
        await browser.says("#decisions", "admin:meanwhile")

    async def test_the_chart_shows_what_was_before_the_page_was_opened(self, browser: Browser) -> None:
        await browser.says("#link", "live")
        operator = browser.operator
        operator.history.start()
        operator.clock.advance(200.0)
        operator.pools["chat"].controller.pin({"max_batch_size": 3}, operator.clock.now(), "admin:ann")
        operator.clock.advance(200.0)
        await browser.page.reload()
        await browser.says("#link", "live")
        await browser.page.wait_for_function(
            "document.querySelector('#setpoints .batch').getAttribute('d').length > 2000"
        )
        await browser.page.focus("#setpoints")
        said = [await browser.page.get_attribute("#setpoints", "aria-valuetext")]
        await browser.page.keyboard.press("Home")
        said.append(await browser.page.get_attribute("#setpoints", "aria-valuetext"))
        assert ["batch size 3" in said[0], "batch size 8" in said[1]] == [True, True], said

    async def test_works_by_keyboard_alone(self, browser: Browser) -> None:
        await browser.says("#slo-cards", "500 ms")
        await browser.page.focus("#slo-ttft")
        await browser.page.keyboard.press("Control+A")
        await browser.page.keyboard.type("321")
        await browser.page.keyboard.press("Enter")
        await browser.says("#slo-cards", "target 321 ms")

    async def test_every_control_has_a_name(self, browser: Browser) -> None:
        await browser.says("#slo-cards", "500 ms")
        unnamed = await browser.page.evaluate(
            """() => [...document.querySelectorAll("input, select, button")]
                .filter((node) => node.getAttribute("aria-hidden") !== "true")
                .filter((node) => !(node.labels && node.labels.length) && !node.getAttribute("aria-label")
                                  && !node.textContent.trim())
                .map((node) => node.outerHTML)"""
        )
        assert unnamed == []

    @pytest.mark.parametrize("browser", [Window(token="t" * 16)], indirect=True)
    async def test_asks_for_the_token_and_keeps_it_for_the_tab(self, browser: Browser) -> None:
        await browser.page.locator("#login").wait_for(state="visible", timeout=15_000)
        await browser.page.fill("#token", "t" * 16)
        await browser.page.keyboard.press("Enter")
        await browser.says("#slo-cards", "500 ms")
        await asyncio.sleep(0)
        assert await browser.page.evaluate("localStorage.length") == 0
