"""Server-sent events: the one loop that streams chunks to a client, whatever their shape."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from typing import Any, Final, Protocol

import orjson
from aiohttp import web

from backend.api.errors import ApiError, EngineFailed
from backend.engine.request import Delta

__all__ = ["ChunkShape", "stream_chunks"]

logger = logging.getLogger("trimtab.worker")

HEADERS: Final = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}


class ChunkShape(Protocol):
    """Turns deltas into one endpoint's chunks."""

    def start(self) -> Iterable[dict[str, Any]]:
        """Chunks before the first delta."""
        ...

    def delta(self, position: int, delta: Delta) -> Iterable[dict[str, Any]]:
        """Chunks for one delta of the request at `position`."""
        ...

    def end(self) -> Iterable[dict[str, Any]]:
        """Chunks after the last delta."""
        ...


def _encode(chunks: Iterable[dict[str, Any]]) -> bytes:
    return b"".join(b"data: " + orjson.dumps(chunk) + b"\n\n" for chunk in chunks)


async def stream_chunks(
    request: web.Request,
    events: AsyncGenerator[tuple[int, Delta], None],
    shape: ChunkShape,
    *,
    write_stall_s: float,
) -> web.StreamResponse:
    """Stream `events` as server-sent events, ended by `data: [DONE]`.

    The headers wait for the first delta, so that a request the engine refuses still gets its proper status. After
    that an error is sent as an error event and the connection is cut without `[DONE]` and without the final
    chunk: a broken stream must not look like a finished one. A client that takes no bytes for `write_stall_s`
    seconds is given up; the engine meanwhile runs ahead by at most the request's own max_tokens.

    Raises:
        ApiError: before the first delta.
        ConnectionError: the client is gone.
    """
    response = web.StreamResponse(headers=HEADERS)

    async def send(data: bytes) -> None:
        if not data:
            return
        try:
            async with asyncio.timeout(write_stall_s):
                await response.write(data)
        except TimeoutError:
            if request.transport is not None:
                request.transport.abort()
            raise ConnectionResetError("the client stopped reading") from None

    async with aclosing(events) as deltas:
        try:
            async for position, delta in deltas:
                if not response.prepared:
                    await response.prepare(request)
                    await send(_encode(shape.start()))
                await send(_encode(shape.delta(position, delta)))
            if not response.prepared:
                raise EngineFailed("The engine produced nothing.")
            await send(_encode(shape.end()) + b"data: [DONE]\n\n")
        except ConnectionError:
            raise
        except Exception as error:
            if not response.prepared:
                raise
            if not isinstance(error, ApiError):
                logger.exception("%s failed while streaming", request.path)
                error = EngineFailed("The server failed on this request; its log says why.", code="internal")
            await send(_encode([error.body()]))
            if request.transport is not None:
                request.transport.close()
    return response
