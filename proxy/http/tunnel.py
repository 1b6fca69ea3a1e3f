"""After `101 Switching Protocols`: bytes in both directions, until one side closes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

__all__ = ["Tunnel", "TunnelClient"]


class TunnelClient(Protocol):
    """The client's side, as aiohttp's server protocol offers it."""

    @property
    def writing_paused(self) -> bool:
        """Whether the client takes no more for now."""
        ...

    def set_parser(self, parser: Any) -> None:
        """Hand every further byte of the client's to `parser.feed_data`, also what came already."""
        ...


class Tunnel(asyncio.Protocol):
    """Takes over an upstream's transport and a client's connection.

    It is the upstream transport's protocol and the client protocol's parser at once, so that a byte is written in
    the very callback that brought it. Whoever takes no more is felt at the other side.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        client: TunnelClient,
        client_transport: asyncio.Transport,
        upstream: asyncio.Transport,
    ) -> None:
        self._loop = loop
        self._client = client
        self._client_transport = client_transport
        self._upstream = upstream
        self._waiter: asyncio.Future[None] | None = None
        self._client_paused = False
        self.closed = False

    def start(self, rest: bytes) -> None:
        """Begin; `rest` is what the upstream has sent already."""
        if rest:
            self.data_received(rest)
        self._upstream.set_protocol(self)
        self._client.set_parser(self)
        if not self._client.writing_paused:
            self._upstream.resume_reading()

    async def run(self, drain: Callable[[], Any]) -> None:
        """Wait until either side closes."""
        while not self.closed:
            if self._client.writing_paused:
                await drain()
                if not self.closed and not self._upstream.is_closing():
                    self._upstream.resume_reading()
                continue
            self._waiter = self._loop.create_future()
            await self._waiter

    def abort(self) -> None:
        """Close the upstream's side at once."""
        self.closed = True
        self._upstream.abort()

    # -- what the upstream sends ---------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Pass bytes down."""
        if self._client_transport.is_closing():
            return
        self._client_transport.write(data)
        if self._client.writing_paused:
            self._upstream.pause_reading()
            self._wake()

    def eof_received(self) -> bool:
        """The upstream has said everything; its last bytes are on their way."""
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the client's side too, after what it is still owed."""
        self.closed = True
        if not self._client_transport.is_closing():
            self._client_transport.close()
        self._wake()

    def pause_writing(self) -> None:
        """The upstream takes no more: neither do we."""
        if not self._client_paused and not self._client_transport.is_closing():
            self._client_paused = True
            self._client_transport.pause_reading()

    def resume_writing(self) -> None:
        """It goes on."""
        if self._client_paused:
            self._client_paused = False
            if not self._client_transport.is_closing():
                self._client_transport.resume_reading()

    # -- what the client sends -----------------------------------------------------------------------------

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Pass bytes up."""
        if not self._upstream.is_closing():
            self._upstream.write(data)
        return self.closed, b""

    def feed_eof(self) -> None:
        """The client left; the handler is being cancelled."""

    def set_exception(self, exc: BaseException) -> None:
        """The client's connection broke; the handler is being cancelled."""

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
