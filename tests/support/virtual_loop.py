"""An event loop whose time passes only when it is told to, and that dials nobody."""

from __future__ import annotations

import asyncio
import heapq
import sys
import time
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any

__all__ = ["VirtualLoop"]

_TURNS = 24
"""More turns of the loop than any chain of callbacks needs that one event sets off."""

Dial = Callable[[Callable[[], Any]], Awaitable[tuple[asyncio.Transport, Any]]]


class VirtualLoop(asyncio.SelectorEventLoop):
    """Time stands still while callbacks run; `pass_s` moves it on, and rings every timer at its own time.

    While it is open, `monotonic` of the modules that run from source is its clock.
    """

    def __init__(self, dial: Dial, start: float = 1000.0) -> None:
        self._at = start
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []
        self._numbers = count()
        self._dial = dial
        super().__init__()
        self._patched = [
            module
            for name, module in sys.modules.items()
            if name.startswith("proxy.") and vars(module).get("monotonic") is time.monotonic
        ]
        for module in self._patched:
            vars(module)["monotonic"] = self.time

    def time(self) -> float:
        return self._at

    def call_at(self, when: float, callback: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
        timer = super().call_at(when, callback, *args, context=context)
        heapq.heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    async def create_connection(self, factory: Any, *_: Any, **__: Any) -> Any:
        return await self._dial(factory)

    def settle(self) -> None:
        """Run whatever can run now."""
        for _ in range(_TURNS):
            self.call_soon(self.stop)
            self.run_forever()

    def pass_s(self, seconds: float) -> None:
        """Let time pass."""
        end = self._at + seconds
        while self._timers and self._timers[0][0] <= end:
            when, _, timer = heapq.heappop(self._timers)
            if not timer.cancelled():
                self._at = max(self._at, when)
                self.settle()
        self._at = end
        self.settle()

    def close(self) -> None:
        for module in self._patched:
            vars(module)["monotonic"] = time.monotonic
        self._patched = []
        super().close()
