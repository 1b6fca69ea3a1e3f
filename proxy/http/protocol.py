"""The server's side of a client connection: aiohttp's protocol, with a short cut for heads that repeat.

aiohttp parses and checks the first request of a connection, and every one that is not byte for byte like the one
before but for the length of its body. Those that are need no second reading: clients repeat themselves, and that
reading costs more than everything else the server does.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

from aiohttp import web
from aiohttp.http_parser import RawRequestMessage
from aiohttp.web_protocol import PayloadAccessError, RequestHandler

from proxy.http.fields import length_in
from proxy.http.heads import RepeatedHead, end_of_head
from proxy.http.incoming import Incoming, Opening
from proxy.http.malformed import last_words, refusal_of
from proxy.http.portions import Portions, is_costly
from proxy.http.reply import SENT_CLOSE, SENT_KEEP
from proxy.http.request_fields import RequestFields
from proxy.http.served import Receiver, Served
from proxy.http.trailers import AnnouncedTrailers
from proxy.outcome import InternalFault, Outcome

__all__ = ["ClientProtocol"]

log = logging.getLogger("trimtab.proxy")

_LOST = -1
_HELD_BYTES = 65_536
"""A longer message is not waited for: aiohttp takes it as it comes."""
_HELD_S = 0.02
"""So long the rest of a message may take that is waited for."""


class ClientProtocol(RequestHandler):
    """Reads requests, has them served one after the other, and answers what is refused.

    aiohttp would make a task, a writer and a stream for every request. Here a request is launched from the callback
    that read it, and its answer written from the callback that brought it. The connection's one task sleeps, but for
    requests that are stuck (`proxy.serving.flight`), that a slow client holds up, or that only aiohttp can read.
    """

    __slots__ = (
        "_flight", "_head_s", "_held", "_keyed", "_opening", "_owed", "_patience", "_portions", "_repeat",
        "_trailers", "seen", "slow",
    )  # fmt: skip

    def __init__(self, *args: Any, head_timeout_s: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_s = head_timeout_s
        self.seen: RequestFields | None = None
        """The fields of the connection's latest request."""
        self.slow = False
        """Whether the client takes no more for now: aiohttp's `writing_paused`, without the call, once an event."""
        self._owed = 0
        """Bytes still to come of the message that the parser is in: 0 between two messages, `_LOST` for unknown."""
        self._repeat: RepeatedHead | None = None
        self._held = b""
        """A head that is known and the beginning of its body: many clients write the two one after the other."""
        self._patience: asyncio.TimerHandle | None = None
        """Gives up waiting for the rest of it."""
        self._portions: Portions | None = None
        """What a read brought and is not parsed yet."""
        self._opening: Opening | None = None
        self._flight: Served | None = None
        """The request that is served; there is one at a time."""
        self._keyed: Any = None
        """The message whose head `_repeat` is."""
        self._trailers = AnnouncedTrailers()

    # -- coming and going ----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take over a connection that has begun to speak: its first head has its own time."""
        super().connection_made(transport)
        self._close_at(self._loop.time() + self._head_s)

    def idle_since(self) -> float | None:
        """Return when the latest request was over, or the connection taken over; None while there is a request."""
        waiter = self._waiter
        if self._flight is not None or self._messages or self._upgraded or waiter is None or waiter.done():
            return None
        if self._portions is not None:
            return None
        return self._next_keepalive_close_time - self._keepalive_timeout

    def step_out(self) -> bool:
        """Give the transport up without closing it, if nothing of a message has come. Returns whether it did."""
        if (
            self._repeat is None
            or self._owed
            or self._held
            or self._portions is not None
            or self._close
            or self._force_close
        ):
            return False
        if self.slow or self._reading_paused or self._buffer_paused:
            return False
        if self._keepalive_handle is not None:
            self._keepalive_handle.cancel()
        manager, task = self._manager, self._task_handler
        if manager is not None:
            manager._connections.pop(self, None)
        self.transport = self._manager = self._request_handler = self._request_factory = self._parser = None
        self._task_handler = self._keepalive_handle = None
        if task is not None:
            task.cancel()
        return True

    def _close_at(self, when: float) -> None:
        """Close the connection at `when`, unless a request has come by then."""
        if self._keepalive_handle is not None:
            self._keepalive_handle.cancel()
        self._next_keepalive_close_time = when
        self._keepalive_handle = self._loop.call_at(when, self._process_keepalive)

    # -- what comes in -------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Launch a whole request whose head is known, else have aiohttp parse."""
        if self._portions is not None and data:
            self._portions.add(data)
            return
        if self._held:
            data, self._held = self._held + data, b""
        repeat, waiter = self._repeat, self._waiter
        if (
            repeat is not None
            and self._owed == 0
            and self._flight is None
            and waiter is not None
            and not waiter.done()
            and (end := repeat.end(data)) >= len(data)
        ):
            opening, manager = self._opening, self._manager
            if opening is not None and manager is not None:
                if end == len(data):
                    if self._patience is not None:
                        self._lose_patience()
                    manager.requests_count += 1
                    self._launch(Incoming(opening, data[repeat.start :], self))
                    return
                if end <= _HELD_BYTES and opening.fields.get(b"expect") is None:
                    self._held = data
                    if self._patience is None:
                        self._patience = self._loop.call_later(_HELD_S, self._let_go)
                    return
        self._parse(data)

    def _lose_patience(self) -> None:
        """Wait no longer for the rest of what is held."""
        patience, self._patience = self._patience, None
        if patience is not None:
            patience.cancel()

    def _let_go(self) -> None:
        """Give what is held to aiohttp: the rest has not come in time, or the connection is to close."""
        self._lose_patience()
        held, self._held = self._held, b""
        if held and self.transport is not None:
            self._parse(held)

    def _parse(self, data: bytes) -> None:
        """Have aiohttp parse what came, in portions where that may take long."""
        if self._patience is not None:
            self._lose_patience()
        transport, owed = self.transport, self._owed
        if (owed <= 0 or len(data) > owed) and not self._upgraded and transport is not None and is_costly(data):
            self._portions = Portions(
                self._loop, transport, data, parse=self._take_in, done=self._all_in, cheap=lambda: self._owed
            )
        else:
            self._take_in(data)

    def _all_in(self) -> None:
        """Read on: the last portion is being parsed."""
        self._portions = None
        transport = self.transport
        if transport is not None and not self._reading_paused and not transport.is_closing():
            transport.resume_reading()

    def _take_in(self, data: bytes) -> None:
        """Have aiohttp parse `data`, and follow it."""
        known, owed = len(self._messages), self._owed
        clear = owed == 0 or (self._flight is None and known == 0)
        super().data_received(data)
        trailers = self._trailers
        if trailers.running:
            trailers.see(data)
        elif clear and len(self._messages) == known + 1:
            trailers.begin(self._messages[known][0], data)
        if owed > 0:
            self._owed = max(_LOST, owed - len(data))
        elif owed == 0 and data:
            self._learn(data, known)

    def connection_lost(self, exc: BaseException | None) -> None:
        """The client is gone, and with it what it began to say."""
        self._lose_patience()
        self._held = b""
        if self._portions is not None:
            self._portions.drop()
            self._portions = None
        super().connection_lost(exc)

    def _learn(self, data: bytes, known: int) -> None:
        """Find out where in its message the parser is, and what the head looked like.

        `data` began where a message begins; messages from index `known` on are from it.
        """
        self._owed, self._repeat, self._keyed = _LOST, None, None
        message = self._messages[known][0] if len(self._messages) == known + 1 else None
        if not isinstance(message, RawRequestMessage) or message.chunked or message.upgrade or self._upgraded:
            return
        end = end_of_head(data)
        if end == 0:
            return
        owed = end + length_in(message.headers.get("Content-Length", "0").encode("latin-1")) - len(data)
        if owed >= 0:
            self._owed, self._opening, self._keyed = owed, None, message
            self._repeat = RepeatedHead.of(data[:end])

    def pause_writing(self) -> None:
        """The client takes no more for now."""
        self.slow = True
        super().pause_writing()

    def resume_writing(self) -> None:
        """The client takes more."""
        self.slow = False
        super().resume_writing()

    # -- serving -------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Serve the connection's requests, one after the other, until it closes."""
        try:
            while self._flight is not None or not self._force_close:
                flight = self._flight
                if flight is None:
                    if not self._messages:
                        await self._sleep()
                    elif not self._take():
                        break
                elif flight.stuck:
                    await flight.proceed()
                elif not flight.over:
                    await self._sleep()
                elif not await self._land(flight):
                    break
        except asyncio.CancelledError:
            if self._flight is not None:
                self._flight.abandon()
                self.force_close()
            raise
        except Exception as error:
            self._broken(error)
        finally:
            self._clear()
        if not self._force_close:
            self._task_handler = None
            if self.transport is not None:
                self.transport.close()

    async def _sleep(self) -> None:
        """Wait until a message comes, or a flight that was under way needs its connection's task."""
        try:
            self._waiter = self._loop.create_future()
            await self._waiter
        finally:
            self._waiter = None

    def _take(self) -> bool:
        """Launch the request that aiohttp parsed next. Returns whether the connection goes on."""
        opening, payload = self._messages.popleft()
        assert self._manager is not None
        self._manager.requests_count += 1
        self._consumed()
        if not isinstance(opening, RawRequestMessage):
            # The parser's own complaint, in the place of a message.
            self._refuse(opening.exc, opening.message)
            return False
        head = Opening(opening, self)
        if opening is self._keyed:
            self._opening = head
        incoming = Incoming(head, payload, self)
        incoming.scanner = self._trailers.of(opening)
        return self._launch(incoming)

    def _launch(self, incoming: Incoming) -> bool:
        """Have one request served. Returns False when its client has left already."""
        handler = cast("Receiver | None", self._request_handler)
        transport = self.transport
        if transport is None or handler is None:
            return False
        self._request_in_progress = True
        self._current_request = incoming  # type: ignore[assignment]
        flight = self._flight = handler.receive(incoming, transport)
        flight.launch()
        if flight.stuck:
            self.moved()
        return True

    def moved(self) -> None:
        """The request that is served is over, or is stuck and needs this connection's task to go on."""
        waiter, flight = self._waiter, self._flight
        if waiter is None or waiter.done() or flight is None:
            # The task is awake, and will see for itself.
            return
        if (
            flight.over
            and not flight.close
            and not self.slow
            and not self._messages
            and not (self._close or self._force_close or self._upgraded)
            and flight.incoming.close()
        ):
            self._rest()
        else:
            waiter.set_result(None)

    def _clear(self) -> None:
        """No request is served any more."""
        self._flight = None
        self._current_request = None
        self._request_in_progress = False
        if self._handler_waiter is not None and not self._handler_waiter.done():
            self._handler_waiter.set_result(None)

    def _rest(self) -> None:
        """The connection may carry the next request, and closes when none comes."""
        self._clear()
        self._keepalive = True
        closes_at = self._next_keepalive_close_time = self._loop.time() + self._keepalive_timeout
        if self._keepalive_handle is None:
            self._keepalive_handle = self._loop.call_at(closes_at, self._process_keepalive)

    async def _land(self, flight: Served) -> bool:
        """Bring a request to its end for the connection. Returns whether the connection goes on."""
        incoming = flight.incoming
        try:
            if self.slow:
                await incoming.drain()
        except ConnectionError:
            return False
        if not incoming.whole:
            await self._leave(incoming, SENT_CLOSE if flight.close else SENT_KEEP)
        if flight.close or self._close or self._force_close:
            return False
        self._rest()
        return True

    def close(self) -> None:
        """Take no more requests; the one that is served may end, and so may one that has begun to come."""
        if self._held:
            self._let_go()
            self._close = True
        elif self._flight is None:
            super().close()
        else:
            self._close = True

    def _process_keepalive(self) -> None:
        """Close an idle connection. One that serves is not idle, though its task may sleep."""
        if self._held:
            self._let_go()
            self._keepalive_handle = None
        elif self._flight is None:
            super()._process_keepalive()
        else:
            self._keepalive_handle = None

    def _consumed(self) -> None:
        """Tell the parser that one of the messages it counts is being served."""
        if self._parser is not None:
            self._parser.message_consumed()
        if self._buffer_paused and len(self._messages) <= self._msg_queue_resume_size:
            self._resume_reading_if_drained()

    async def _leave(self, incoming: Incoming, response: web.StreamResponse) -> None:
        """Bring a request that aiohttp parsed to its end: take the rest of its body, for a while."""
        payload = incoming.payload
        if self._upgraded:
            # An upgrade that was declined: what came behind it are requests again.
            await self.finish_response(incoming, response, None)  # type: ignore[arg-type]
        if not payload.is_eof():
            if not self._force_close and self._lingering_time:
                await self._linger(payload)
            if not payload.is_eof() and not self._force_close:
                self.close()
        payload.set_exception(PayloadAccessError())

    async def _linger(self, payload: Any) -> None:
        try:
            async with asyncio.timeout(self._lingering_time):
                while not payload.is_eof():
                    await payload.readany()
        except TimeoutError:
            pass

    # -- what goes wrong -----------------------------------------------------------------------------------

    def _refuse(self, error: BaseException | None, message: str) -> None:
        """Answer a request that could not be parsed, and close."""
        self._answer(refusal_of(error, message))

    def _broken(self, error: BaseException | None) -> None:
        """Answer a request whose handler failed, and close."""
        log.error("unhandled error in the server", exc_info=error)
        self._answer(InternalFault())

    def _answer(self, outcome: Outcome) -> None:
        transport = self.transport
        if transport is not None and not transport.is_closing():
            transport.write(last_words(outcome))

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Write the answer to a request that could not be parsed, or whose handler failed, and close."""
        if status == 400:
            self._refuse(exc, message or "")
        else:
            self._broken(exc)
        return SENT_CLOSE
