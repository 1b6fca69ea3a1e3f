"""What a connection needs of whoever serves its requests."""

from __future__ import annotations

import asyncio
from typing import Protocol

from proxy.http.incoming import Incoming

__all__ = ["Receiver", "Served"]


class Served(Protocol):
    """One request that is being served."""

    @property
    def incoming(self) -> Incoming:
        """The request as it came."""
        ...

    @property
    def over(self) -> bool:
        """Whether its answer is written."""
        ...

    @property
    def close(self) -> bool:
        """Whether the connection cannot go on behind it."""
        ...

    @property
    def stuck(self) -> bool:
        """Whether it waits for something, and needs the connection's task to go on."""
        ...

    def launch(self) -> None:
        """Serve it as far as that goes without waiting."""
        ...

    async def proceed(self) -> None:
        """Serve it further."""
        ...

    def abandon(self) -> None:
        """Give it up: the client is gone."""
        ...


class Receiver(Protocol):
    """Takes charge of requests."""

    def receive(self, incoming: Incoming, transport: asyncio.Transport) -> Served:
        """Take charge of one request; its connection launches it."""
        ...
