"""What happens to one request, from its head to its last byte.

Everything that is taken is given back in a `finally`, and everything that goes wrong ends in `_refuse`. Once a byte
of an answer has been written nothing may be raised any more: aiohttp would write its own error into the body.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import count
from os import urandom
from time import monotonic

from aiohttp import web

from proxy.flight import Flight
from proxy.headers import RequestFields
from proxy.incoming import Incoming, Limits
from proxy.lifecycle import Lifecycle
from proxy.matching import RouteTable
from proxy.merging import outcome_of
from proxy.outcome import InternalFault, Refused
from proxy.reply import SENT_CLOSE, SENT_KEEP
from proxy.service import Service
from proxy.ticket import Ticket
from proxy.upstream.errors import UpstreamError

__all__ = ["Handler"]

log = logging.getLogger("trimtab.proxy")

_ID_CHARACTERS = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:/+=")


class Handler:
    """Serves requests; what it is called with is aiohttp's, and the answer has been written when it returns."""

    __slots__ = ("_prefix", "_serial", "service")

    def __init__(
        self, table: RouteTable, *, limits: Limits, lifecycle: Lifecycle, trust_headers: bool = True
    ) -> None:
        self.service = Service(table, limits=limits, lifecycle=lifecycle, trust_headers=trust_headers)
        self._serial = count()
        self._prefix = urandom(4).hex()

    @property
    def table(self) -> RouteTable:
        """The routes by which requests that arrive from now on are served."""
        return self.service.table

    @table.setter
    def table(self, table: RouteTable) -> None:
        self.service.table = table

    async def __call__(self, incoming: Incoming) -> web.StreamResponse:
        """Serve one request; the answer has been written when this returns."""
        service = self.service
        transport = incoming.transport
        if transport is None:
            raise ConnectionResetError("the client left before its request was looked at")
        ticket = Ticket(self._request_id(incoming.fields), monotonic())
        lifecycle = service.lifecycle
        lifecycle.entered()
        flight = Flight(service, incoming, transport, ticket)
        try:
            flight.check()
            await flight.serve()
        except Refused as refused:
            flight.refuse(refused.outcome)
        except asyncio.CancelledError:
            ticket.left()
            raise
        except UpstreamError as error:
            flight.refuse(outcome_of(error))
        except ConnectionError:
            ticket.left()
            flight.close = True
        except Exception:
            log.exception("request %s failed inside the proxy", ticket.id)
            flight.refuse(InternalFault())
        finally:
            lifecycle.left()
            flight.observe()
        if incoming.protocol.writing_paused:
            await incoming.drain()
        return SENT_CLOSE if flight.close else SENT_KEEP

    def _request_id(self, fields: RequestFields) -> str:
        given = fields.get(b"x-request-id")
        if given is not None and len(given) <= 128 and given and _ID_CHARACTERS.issuperset(given):
            return given.decode("ascii")
        return f"{self._prefix}-{next(self._serial):x}"
