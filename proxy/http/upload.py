"""A request's body read as it comes, and handed on without ever being held."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from time import monotonic
from typing import Any, Protocol

from aiohttp import web

from proxy.outcome import BadInput, Refused, SlowClient
from proxy.wire.naming import Repeats, Unclear

__all__ = ["Begun", "Upload", "pieces"]


class Source(Protocol):
    """Where a body comes from: a request, as it came in."""

    content: Any
    """The body where it has come, else aiohttp's stream of it."""

    @property
    def expects_continue(self) -> bool:
        """Whether the client waits for 100 before it sends the body."""
        ...

    @property
    def transport(self) -> asyncio.Transport | None:
        """The client's connection; None once that is gone."""
        ...

    @property
    def trailers(self) -> list[tuple[bytes, bytes]]:
        """The trailer fields that may go on, once the body has been read."""
        ...

    def body_now(self) -> bytes:
        """Return the body, which must have come."""
        ...

    def gone(self) -> bool:
        """Whether the client closed its connection."""
        ...


_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


async def pieces(incoming: Source, patience: float, rate: int) -> AsyncIterator[bytes]:
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


class Begun:
    """The beginning of a form that was read to find its model, and how to read on."""

    __slots__ = ("first", "repeats", "rest")

    def __init__(self, first: bytes, rest: AsyncIterator[bytes], repeats: Repeats) -> None:
        self.first = first
        self.rest = rest
        self.repeats = repeats


class Upload:
    """A request's body on its way to an upstream, without ever being held."""

    __slots__ = ("_incoming", "_patience", "_rate", "begun", "first")

    def __init__(self, incoming: Source, patience: float, rate: int) -> None:
        self._incoming = incoming
        self._patience = patience
        self._rate = rate
        self.begun: Begun | None = None
        """What of it has been read already."""
        self.first = b""
        """What goes on in the place of that."""

    def pieces(self) -> AsyncIterator[bytes]:
        """Read it, no faster than it is consumed."""
        if self.begun is not None:
            return self._read_on(self.begun)
        return pieces(self._incoming, self._patience, self._rate)

    async def _read_on(self, begun: Begun) -> AsyncIterator[bytes]:
        """Send what was read first, and then the rest. Raises Refused where that names another model."""
        yield self.first
        async for piece in begun.rest:
            try:
                begun.repeats.check(piece)
            except Unclear as error:
                raise Refused(BadInput(f"{error}", "model", "model_unclear")) from None
            yield piece

    def gone(self) -> bool:
        """Whether the client left."""
        return self._incoming.gone()

    @property
    def trailers(self) -> list[tuple[bytes, bytes]]:
        """Fields to send behind it, once it has been read."""
        return self._incoming.trailers
