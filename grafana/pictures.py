"""Draw dashboards with Grafana's own libraries and photograph them; used by `grafana/check.py --pictures FOLDER`.

There is no Grafana server in this: `grafana/render/` is a page that hands a dashboard's JSON to @grafana/scenes and
@grafana/ui, a small server here passes its queries on to Prometheus, and headless Chromium takes the picture. Needs
node and npm (for one `npm install` of about 500 MB, kept in the cache folder), Chromium and Playwright.
"""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
from aiohttp import web

__all__ = ["Picture", "Span", "built", "cache_folder", "photograph"]

HERE = Path(__file__).resolve().parent
SOURCES = ("package.json", "vite.config.js", "index.html", "src")
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync")  # fmt: skip
WIDTH, SCALE = 1400, 0.75
"""Pixels of the page, and how much smaller the picture is."""
SETTLED = "window.started && report.asked > 0 && report.pending === 0"
PATIENCE_MS = 180_000
ROW_PX, HEAD_PX = 38, 120
"""Pixels of one row of Grafana's grid, gap included, and of what stands above it."""


class Span(NamedTuple):
    """A stretch of time, Unix seconds."""

    start: float
    end: float


class Picture(NamedTuple):
    """One photographed dashboard and what did not go well in it."""

    board: str
    file: Path
    faults: tuple[str, ...]


def cache_folder() -> Path:
    """Return where the installed libraries are kept between runs."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home) / "trimtab" / "render"


def _laid_out(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in SOURCES:
        source = HERE / "render" / name
        if source.is_dir():
            shutil.copytree(source, folder / name, dirs_exist_ok=True)
        else:
            shutil.copy(source, folder / name)


async def built(folder: Path) -> Path:
    """Install and build the page in `folder`, what is there already being used again; return its files."""
    await asyncio.to_thread(_laid_out, folder)
    wanted = (HERE / "render" / "package.json").read_text()
    installed = folder / "installed.json"
    if not installed.exists() or installed.read_text() != wanted:
        flags = ("--legacy-peer-deps", "--ignore-scripts", "--no-audit", "--no-fund", "--no-package-lock")
        await _run(folder, "npm", "install", *flags)
        installed.write_text(wanted)
    await _run(folder, str(folder / "node_modules" / ".bin" / "vite"), "build", "--logLevel", "error")
    return folder / "dist"


async def _run(folder: Path, *command: str) -> None:
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    output, _ = await process.communicate()
    if process.returncode:
        raise SystemExit(f"{' '.join(command[:2])} failed:\n{output.decode()[-2000:]}")


@asynccontextmanager
async def _served(page: Path, prometheus: str, boards: Mapping[str, dict[str, Any]]) -> AsyncIterator[str]:
    """Serve the page, the dashboards and Prometheus' API on one port."""
    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession())

        async def ask(request: web.Request) -> web.Response:
            url = f"{prometheus}/{request.match_info['rest']}"
            async with http.get(url, params=request.query) as answer:
                return web.Response(body=await answer.read(), status=answer.status, content_type="application/json")

        async def board(request: web.Request) -> web.Response:
            return web.json_response(boards[request.match_info["name"]])

        async def index(_: web.Request) -> web.FileResponse:
            return web.FileResponse(page / "index.html")

        app = web.Application()
        app.router.add_get("/prom/{rest:.*}", ask)
        app.router.add_get("/", index)
        app.router.add_get("/boards/{name}.json", board)
        app.router.add_static("/", page)
        runner = web.AppRunner(app)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"


async def photograph(
    page: Path, prometheus: str, boards: Sequence[tuple[str, dict[str, Any]]], to: Path, span: Span
) -> list[Picture]:
    """Take a picture of every dashboard, as it showed `span`, into `to`."""
    from playwright.async_api import async_playwright

    program = next((found for name in CHROMIUM if (found := shutil.which(name))), None)
    if program is None:
        raise SystemExit("no Chromium was found; on Debian: apt-get install chromium")
    pictures = []
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(_served(page, prometheus, dict(boards)))
        driver = await stack.enter_async_context(async_playwright())
        browser = await driver.chromium.launch(executable_path=program, args=list(FLAGS))
        stack.push_async_callback(browser.close)
        for name, board in boards:
            rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in board["panels"])
            size = {"width": WIDTH, "height": rows * ROW_PX + HEAD_PX}
            tab = await browser.new_page(viewport=size, device_scale_factor=SCALE)
            broken: list[str] = []
            tab.on("pageerror", lambda error, into=broken: into.append(str(error)[:300]))
            window = f"from={1000 * span.start:.0f}&to={1000 * span.end:.0f}"
            await tab.goto(f"{url}/?board={name}&{window}", timeout=PATIENCE_MS)
            await tab.wait_for_function(SETTLED, timeout=PATIENCE_MS)
            await tab.wait_for_timeout(1500)
            faults = [*broken, *await tab.evaluate("report.faults")]
            file = to / f"dashboard-{name}.png"
            await tab.screenshot(path=file)
            await tab.close()
            pictures.append(Picture(name, file, tuple(faults)))
    return pictures
