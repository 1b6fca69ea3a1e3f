"""The server's side of a client connection: aiohttp's protocol, with a short cut for heads that repeat.

aiohttp parses and checks the first request of a connection, and every one that is not byte for byte like the one
before but for the length of its body. Those that are need no second reading: clients repeat themselves, and that
reading costs more than everything else the server does.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import LineTooLong
from aiohttp.http_parser import RawRequestMessage
from aiohttp.web_protocol import PayloadAccessError, RequestHandler

from proxy.headers import RequestFields, lines_of
from proxy.incoming import Incoming, Opening
from proxy.outcome import BadInput, HeadersTooLarge, InternalFault, Outcome, to_reply
from proxy.repeat import RepeatedHead
from proxy.reply import SENT_CLOSE, head_bytes
from proxy.wire.registry import wire_format

__all__ = ["ClientProtocol"]

log = logging.getLogger("trimtab.proxy")

_LOST = -1


class ClientProtocol(RequestHandler):
    """Reads requests, has them served one after the other in the connection's one task, and answers what is refused.

    aiohttp would make a task, a writer and a stream for every request. Here the handler runs in the task that the
    connection has anyway.
    """

    __slots__ = ("_opening", "_owed", "_repeat", "seen")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.seen: RequestFields | None = None
        """The fields of the connection's latest request."""
        self._owed = 0
        """Bytes still to come of the message that the parser is in: 0 between two messages, `_LOST` for unknown."""
        self._repeat: RepeatedHead | None = None
        self._opening: Opening | None = None

    # -- what comes in -------------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        """Take a whole request whose head is known, else have aiohttp parse."""
        repeat, waiter = self._repeat, self._waiter
        if repeat is not None and self._owed == 0 and waiter is not None and not waiter.done():
            start = repeat.match(data)
            if start:
                self._messages.append((self._opening, data[start:]))  # type: ignore[arg-type]
                waiter.set_result(None)
                return
        known = len(self._messages)
        super().data_received(data)
        if self._owed > 0:
            self._owed = max(_LOST, self._owed - len(data))
        elif self._owed == 0 and data:
            self._learn(data, known)

    def _learn(self, data: bytes, known: int) -> None:
        """Find out where in its message the parser is, and what the head looked like.

        `data` began where a message begins; messages from index `known` on are from it.
        """
        self._owed, self._repeat = _LOST, None
        message = self._messages[known][0] if len(self._messages) == known + 1 else None
        if not isinstance(message, RawRequestMessage) or message.chunked or message.upgrade or self._upgraded:
            return
        end = data.find(b"\r\n\r\n") + 4
        head = data[:end]
        if end < 5 or head.count(b"\n") != head.count(b"\r\n"):
            return
        owed = end + int(message.headers.get("Content-Length", "0")) - len(data)
        if owed >= 0:
            self._owed = owed
            self._opening = None
            self._repeat = RepeatedHead.of(head)

    # -- serving -------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Serve the connection's requests, one after the other, until it closes."""
        loop, manager, handler = self._loop, self._manager, self._request_handler
        messages: deque[Any] = self._messages
        assert manager is not None
        assert handler is not None
        while not self._force_close:
            if not messages:
                try:
                    self._waiter = loop.create_future()
                    await self._waiter
                finally:
                    self._waiter = None
            opening, payload = messages.popleft()
            manager.requests_count += 1
            if type(opening) is not Opening:
                self._consumed()
                if not isinstance(opening, RawRequestMessage):
                    # The parser's own complaint, in the place of a message.
                    self._refuse(opening.exc, opening.message)
                    break
                opening = self._opening = Opening(opening, self)
            incoming = Incoming(opening, payload, self)
            self._request_in_progress = True
            self._current_request = incoming  # type: ignore[assignment]
            try:
                response: web.StreamResponse = await handler(incoming)  # type: ignore[arg-type]
            except ConnectionError:
                break
            except asyncio.CancelledError:
                self.force_close()
                raise
            except Exception as error:
                self._broken(error)
                break
            finally:
                self._current_request = None
                self._request_in_progress = False
                if self._handler_waiter is not None:
                    self._handler_waiter.set_result(None)
            self._keepalive = bool(response.keep_alive)
            if type(payload) is not bytes:
                await self._leave(incoming, payload, response)
            if not self._keepalive or self._close or self._force_close:
                break
            closes_at = self._next_keepalive_close_time = loop.time() + self._keepalive_timeout
            if self._keepalive_handle is None:
                self._keepalive_handle = loop.call_at(closes_at, self._process_keepalive)
        if not self._force_close:
            self._task_handler = None
            if self.transport is not None:
                self.transport.close()

    def _consumed(self) -> None:
        """Tell the parser that one of the messages it counts is being served."""
        if self._parser is not None:
            self._parser.message_consumed()
        if self._buffer_paused and len(self._messages) <= self._msg_queue_resume_size:
            self._resume_reading_if_drained()

    async def _leave(self, incoming: Incoming, payload: Any, response: web.StreamResponse) -> None:
        """Bring a request that aiohttp parsed to its end: take the rest of its body, for a while."""
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
        too_long = isinstance(error, LineTooLong) or "Too many" in (message or "")
        self._answer(HeadersTooLarge() if too_long else BadInput("The request is malformed."))

    def _broken(self, error: BaseException | None) -> None:
        """Answer a request whose handler failed, and close."""
        log.error("unhandled error in the server", exc_info=error)
        self._answer(InternalFault())

    def _answer(self, outcome: Outcome) -> None:
        transport = self.transport
        if transport is not None and not transport.is_closing():
            code, fields, body = to_reply(outcome, wire_format("openai"), "-")
            transport.write(head_bytes(code, b"", lines_of(fields), length=len(body), close=True) + body)

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
