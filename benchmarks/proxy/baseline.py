"""The reference: the plainest reverse proxy one would write with aiohttp, on uvloop.

A web.Application in front, a ClientSession behind, bodies passed through unread. It has no queue, no limits, no
retries and no metrics; every ratio to it is the price of those, or what a leaner relay saves.
"""

from __future__ import annotations

import sys

import uvloop
from aiohttp import ClientSession, ClientTimeout, TCPConnector, web

HOP_BY_HOP = ("Connection", "Keep-Alive", "Transfer-Encoding", "TE", "Trailer", "Upgrade", "Content-Length", "Host")


def application(upstream: str) -> web.Application:
    """Build the proxy in front of `upstream`."""

    async def session(app: web.Application):  # type: ignore[no-untyped-def]
        connector = TCPConnector(limit=0)
        app["session"] = ClientSession(connector=connector, timeout=ClientTimeout(total=None), auto_decompress=False)
        yield
        await app["session"].close()

    async def relay(request: web.Request) -> web.StreamResponse:
        headers = request.headers.copy()
        for name in HOP_BY_HOP:
            headers.popall(name, None)
        body = await request.read()
        target = upstream + request.path_qs
        async with request.app["session"].request(request.method, target, data=body, headers=headers) as answer:
            kept = answer.headers.copy()
            for name in HOP_BY_HOP:
                kept.popall(name, None)
            if "Content-Length" in answer.headers:
                return web.Response(body=await answer.read(), status=answer.status, headers=kept)
            response = web.StreamResponse(status=answer.status, headers=kept)
            await response.prepare(request)
            async for piece in answer.content.iter_any():
                await response.write(piece)
            await response.write_eof()
            return response

    app = web.Application(client_max_size=1 << 26)
    app.cleanup_ctx.append(session)
    app.router.add_route("*", "/{path:.*}", relay)
    return app


if __name__ == "__main__":
    uvloop.install()
    web.run_app(application(sys.argv[2]), host="127.0.0.1", port=int(sys.argv[1]), access_log=None, print=None)
