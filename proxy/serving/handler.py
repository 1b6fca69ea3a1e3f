"""Where requests come in: each gets its id, its record and its arrival."""

from __future__ import annotations

import asyncio
from os import urandom
from typing import Final

from proxy.http.incoming import Incoming, Limits
from proxy.http.request_fields import RequestFields
from proxy.now import monotonic
from proxy.request import Ticket
from proxy.serving.flight import Flight
from proxy.serving.lifecycle import Lifecycle
from proxy.serving.routes import RouteTable
from proxy.serving.service import Service

__all__ = ["Handler"]

_ID_CHARACTERS: Final = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.:/+=")


class Handler:
    """Takes requests from the connections that they come in on."""

    __slots__ = ("_prefix", "_serial", "service")

    def __init__(
        self, table: RouteTable, *, limits: Limits, lifecycle: Lifecycle, trust_headers: bool = True
    ) -> None:
        self.service = Service(table, limits=limits, lifecycle=lifecycle, trust_headers=trust_headers)
        self._serial = 0
        self._prefix = urandom(4).hex() + "-"

    def receive(self, incoming: Incoming, transport: asyncio.Transport) -> Flight:
        """Take charge of one request; its connection launches it."""
        return Flight(self.service, incoming, transport, Ticket(self._request_id(incoming.fields), monotonic()))

    def _request_id(self, fields: RequestFields) -> str:
        given = fields.get(b"x-request-id")
        if given is not None and len(given) <= 128 and given and _ID_CHARACTERS.issuperset(given):
            return given.decode("ascii")
        serial = self._serial
        self._serial = serial + 1
        return self._prefix + hex(serial)[2:]
