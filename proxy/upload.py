"""A request's body read as it comes, and handed on without ever being held."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from time import monotonic
from typing import TYPE_CHECKING

from aiohttp import web

from proxy.outcome import BadInput, Refused, SlowClient

if TYPE_CHECKING:
    from proxy.incoming import Incoming

__all__ = ["Upload", "pieces"]

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


async def pieces(incoming: Incoming, patience: float, rate: int) -> AsyncIterator[bytes]:
    """Read the body piece by piece, no faster than it is consumed. Raises Refused when it comes too slowly.

    The client may be waited for `patience` seconds, for each piece and in all, and a second more for every `rate`
    bytes that have come. While nobody takes what has come, it is not the client that is slow.
    """
    if incoming.expects_continue and incoming.transport is not None:
        incoming.transport.write(_CONTINUE)
    content = incoming.content
    if type(content) is bytes:
        if content:
            yield incoming.body_now()
        return
    waited, size = 0.0, 0
    while True:
        began = monotonic()
        try:
            async with asyncio.timeout(min(patience, patience + size / rate - waited)):
                piece = await content.readany()
        except TimeoutError:
            raise Refused(SlowClient()) from None
        except web.RequestPayloadError as error:
            raise Refused(BadInput(f"The request body is malformed: {error}")) from None
        if not piece:
            return
        waited += monotonic() - began
        size += len(piece)
        yield piece


class Upload:
    """A request's body on its way to an upstream, without ever being held."""

    __slots__ = ("_incoming", "_patience", "_rate")

    def __init__(self, incoming: Incoming, patience: float, rate: int) -> None:
        self._incoming = incoming
        self._patience = patience
        self._rate = rate

    def pieces(self) -> AsyncIterator[bytes]:
        """Read it, no faster than it is consumed."""
        return pieces(self._incoming, self._patience, self._rate)

    def gone(self) -> bool:
        """Whether the client left."""
        return self._incoming.gone()

    @property
    def trailers(self) -> list[tuple[bytes, bytes]]:
        """Fields to send behind it, once it has been read."""
        return self._incoming.trailers
