"""A request's body read as it comes, and handed on without ever being held."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from aiohttp import web

from proxy.outcome import BadInput, Refused, SlowClient

if TYPE_CHECKING:
    from proxy.incoming import Incoming

__all__ = ["Upload", "pieces"]

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


async def pieces(incoming: Incoming, patience: float) -> AsyncIterator[bytes]:
    """Read the body piece by piece, no faster than it is consumed, each within `patience` seconds. Raises Refused."""
    if incoming.expects_continue and incoming.transport is not None:
        incoming.transport.write(_CONTINUE)
    content = incoming.content
    if type(content) is bytes:
        if content:
            yield incoming.body_now()
        return
    while True:
        try:
            async with asyncio.timeout(patience):
                piece = await content.readany()
        except TimeoutError:
            raise Refused(SlowClient()) from None
        except web.RequestPayloadError as error:
            raise Refused(BadInput(f"The request body is malformed: {error}")) from None
        if not piece:
            return
        yield piece


class Upload:
    """A request's body on its way to an upstream, without ever being held."""

    __slots__ = ("_incoming", "_patience")

    def __init__(self, incoming: Incoming, patience: float) -> None:
        self._incoming = incoming
        self._patience = patience

    def pieces(self) -> AsyncIterator[bytes]:
        """Read it, no faster than it is consumed."""
        return pieces(self._incoming, self._patience)

    def gone(self) -> bool:
        """Whether the client left."""
        return self._incoming.gone()

    @property
    def trailers(self) -> list[tuple[bytes, bytes]]:
        """Fields to send behind it, once it has been read."""
        return self._incoming.trailers
