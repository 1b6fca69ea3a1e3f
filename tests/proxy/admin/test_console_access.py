"""The console for everybody: whatever the window, the colours, the eyes and the hands."""

from __future__ import annotations

import pytest

from controller.slo import SLO
from proxy.admin.views import show_slo
from tests.proxy.admin.browser import Browser, Window, browser, chromium, in_browser

__all__ = ["browser", "chromium"]

pytestmark = in_browser
WINDOWS = [Window(width, scheme) for width in (360, 1280) for scheme in ("light", "dark")]
every_window = pytest.mark.parametrize(
    "browser", WINDOWS, indirect=True, ids=[f"{window.width}-{window.scheme}" for window in WINDOWS]
)


@every_window
async def test_axe_finds_no_serious_fault(browser: Browser) -> None:
    axe = pytest.importorskip("axe_playwright_python.async_playwright").Axe()
    controller = browser.operator.pools["chat"].controller
    controller.pin({"max_batch_size": 3}, 1000.0, "admin:ann")
    await browser.says("#holder", "pinned at 3")
    await browser.says("#decisions", "ann")
    found = await axe.run(browser.page)
    serious = [
        f"{fault['id']}: {[node['html'] for node in fault['nodes']]}"
        for fault in found.response["violations"]
        if fault["impact"] in ("serious", "critical")
    ]
    assert serious == []


@every_window
async def test_nothing_sticks_out_sideways(browser: Browser) -> None:
    await browser.says("#slo-cards", "500 ms")
    wide = await browser.page.evaluate("document.documentElement.scrollWidth - window.innerWidth")
    assert wide <= 0


async def test_the_verdict_is_a_sentence_of_its_own(browser: Browser) -> None:
    await browser.says("#verdict", "Not proven")
    await browser.says("#verdict-why", "no requests to judge by")
    controller = browser.operator.pools["chat"].controller
    controller.set_slo(SLO(), 1000.0, "admin:ann")
    await browser.says("#verdict", "There is no SLO")
    assert show_slo(controller.slo).ttft_ms is None


async def test_a_lost_connection_greys_the_page_until_it_is_back(browser: Browser) -> None:
    await browser.says("#link", "live")
    await browser.vanish()
    await browser.says("#link", "connection lost")
    assert await browser.page.evaluate("document.body.classList.contains('stale')")
    await browser.serve()
    await browser.says("#link", "live")
    assert not await browser.page.evaluate("document.body.classList.contains('stale')")


async def test_first_paint_takes_less_than_100_kilobytes(browser: Browser) -> None:
    await browser.says("#link", "live")
    sizes = await browser.page.evaluate(
        """() => [...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
            .filter((one) => one.name.includes("/console/")).map((one) => one.transferSize)"""
    )
    assert len(sizes) == 4
    assert sum(sizes) < 100_000


async def test_a_field_that_was_touched_is_marked_until_it_is_sent(browser: Browser) -> None:
    await browser.says("#slo-cards", "500 ms")
    await browser.page.fill("#slo-ttft", "321")
    assert await browser.page.locator(".field.changed").count() == 1
    await browser.page.click("#slo button")
    await browser.says("#slo-cards", "target 321 ms")
    await browser.page.locator(".field.changed").wait_for(state="detached", timeout=15_000)


async def test_what_came_of_a_decision_appears_on_a_page_that_was_open_all_the_time(browser: Browser) -> None:
    controller = browser.operator.pools["chat"].controller
    decision = controller.pin({"max_batch_size": 3}, 1000.0, "admin:ann")
    await browser.says("#decisions", "ann")
    assert await browser.page.locator("#decisions .came").count() == 0
    controller.decisions.resolve(decision.id, "max_batch_size moved from 8 to 3 within 1 s.")
    await browser.says("#decisions .came", "moved from 8 to 3 within 1 s.")
    assert await browser.page.locator("#decisions .came").count() == 1
