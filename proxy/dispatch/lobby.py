"""Where requests wait that take no place in the queue, while no upstream is there to be asked."""

from __future__ import annotations

import asyncio
from collections import deque

__all__ = ["Lobby"]


class Lobby:
    """Wakes them in the order in which they came, as many as may go; `limit` may wait at once."""

    __slots__ = ("_limit", "_loop", "_waiters")

    def __init__(self, loop: asyncio.AbstractEventLoop, limit: int) -> None:
        self._loop = loop
        self._limit = limit
        self._waiters: deque[asyncio.Future[bool]] = deque()

    def __len__(self) -> int:
        return len(self._waiters)

    @property
    def full(self) -> bool:
        """Whether nobody more may wait."""
        return len(self._waiters) >= self._limit

    async def wait(self, patience_s: float) -> bool:
        """Wait to be let go. Returns False when that did not happen within `patience_s`, or will not."""
        waiter: asyncio.Future[bool] = self._loop.create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(patience_s):
                return await waiter
        except TimeoutError:
            return False
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def let_go(self, count: int) -> None:
        """Wake up to `count` of them."""
        self._wake(count, True)

    def send_away(self) -> None:
        """Tell all of them that they wait in vain."""
        self._wake(len(self._waiters), False)

    def _wake(self, count: int, go: bool) -> None:
        waiters = self._waiters
        while waiters and count > 0:
            waiter = waiters.popleft()
            if not waiter.done():
                waiter.set_result(go)
                count -= 1
