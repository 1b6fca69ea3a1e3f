"""Comments in an event stream, so that no idle timer on the way cuts a client that waits."""

from __future__ import annotations

import asyncio
from time import monotonic

from proxy.serving.relay import Relay

__all__ = ["Keepalive"]


class Keepalive:
    """Writes a comment after every `interval_s` of silence, also while the request is queued.

    The first one has to write the answer's head, before anybody knows what the upstream will say: from then on
    errors can only be told inside the stream. That is why it is opt-in. Once the answer flows, comments go only
    between two events.
    """

    __slots__ = ("_comment", "_head", "_interval_s", "_last", "_loop", "_relay", "_timer", "_transport", "committed")

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        transport: asyncio.Transport,
        *,
        head: bytes,
        comment: bytes,
        interval_s: float,
    ) -> None:
        self._loop = loop
        self._transport = transport
        self._head = head
        self._comment = b"%x\r\n%b\r\n" % (len(comment), comment)
        self._interval_s = interval_s
        self._relay: Relay | None = None
        self._last = monotonic()
        self.committed = False
        """Whether the head is out."""
        self._timer = loop.call_later(interval_s, self._tick)

    def follow(self, relay: Relay) -> None:
        """From now on the silence is `relay`'s."""
        self._last = monotonic()
        self._relay = relay

    def stop(self) -> None:
        """Write no more."""
        self._timer.cancel()

    def _tick(self) -> None:
        now, relay = monotonic(), self._relay
        if relay is not None and relay.last_byte is not None and relay.last_byte > self._last:
            self._last = relay.last_byte
        if now < self._last + self._interval_s - 0.001:
            self._timer = self._loop.call_later(self._last + self._interval_s - now, self._tick)
            return
        self._last = now
        self._timer = self._loop.call_later(self._interval_s, self._tick)
        if self._transport.is_closing():
            return
        if not self.committed:
            self.committed = True
            self._transport.write(self._head + self._comment)
        elif relay is None or relay.between_events:
            self._transport.write(self._comment)
