"""The console: a few static files, served with headers that allow nothing from anywhere else."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from importlib.resources import files

from aiohttp import web

__all__ = ["CONSOLE", "add_console", "is_page"]

Handler = Callable[[web.Request], Awaitable[web.Response]]

CONSOLE = "/console/"
_TYPES = {
    "index.html": "text/html",
    "console.css": "text/css",
    "console.js": "text/javascript",
    "chart.js": "text/javascript",
}
_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def is_page(path: str) -> bool:
    """Return whether `path` belongs to the console's own files, which hold no secrets."""
    return path == "/" or path.startswith(CONSOLE)


def add_console(app: web.Application) -> None:
    """Serve the console at /console/, and lead there from /."""
    folder = files("proxy.admin") / "console"
    for name, content_type in _TYPES.items():
        body = (folder / name).read_bytes()
        path = CONSOLE if name == "index.html" else CONSOLE + name
        app.router.add_get(path, _file(body, content_type))

    async def root(request: web.Request) -> web.Response:
        return web.Response(status=302, headers={"Location": CONSOLE, **_HEADERS})

    app.router.add_get("/", root)


def _file(body: bytes, content_type: str) -> Handler:
    async def serve(request: web.Request) -> web.Response:
        return web.Response(body=body, content_type=content_type, charset="utf-8", headers=_HEADERS)

    return serve
