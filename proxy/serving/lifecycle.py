"""Coming up and going away: who is inside, whether more may come, and when the last one has left."""

from __future__ import annotations

import asyncio

from proxy.outcome import Draining, NoUpstream, Outcome, UpstreamFailed

__all__ = ["Lifecycle"]


class Lifecycle:
    """Four stages: serving; draining (unready, connections close after their answer); refusing; gone.

    A balancer needs a moment to notice that a server is not ready any more, so for a grace period a draining proxy
    still serves what comes.
    """

    __slots__ = ("_empty", "cut", "draining", "inside", "ready", "refusing")

    def __init__(self) -> None:
        self.ready = True
        self.draining = False
        self.refusing = False
        self.cut = False
        """Whether what is still under way is cut off: that upstream calls break now is our doing."""
        self.inside = 0
        """Requests under way."""
        self._empty: asyncio.Event | None = None

    def entered(self) -> None:
        """One more request is under way."""
        self.inside += 1

    def left(self) -> None:
        """One request is over."""
        self.inside -= 1
        if self.inside == 0 and self._empty is not None:
            self._empty.set()

    def blamed(self, outcome: Outcome) -> Outcome:
        """Return `outcome`, unless an upstream seems to have failed because we are going away."""
        return Draining() if self.cut and isinstance(outcome, UpstreamFailed | NoUpstream) else outcome

    async def drain(self, *, grace_s: float, cap_s: float, refuse: bool = True) -> bool:
        """Go through the stages. Returns whether everybody had left within `cap_s` after the grace.

        Without `refuse` nobody is refused: for a server that accepts no connection any more, whose clients do not
        know of it.
        """
        self.ready = False
        self.draining = True
        if grace_s > 0.0:
            await asyncio.sleep(grace_s)
        self.refusing = refuse
        if self.inside == 0:
            return True
        self._empty = asyncio.Event()
        try:
            async with asyncio.timeout(cap_s):
                await self._empty.wait()
        except TimeoutError:
            return False
        return True
