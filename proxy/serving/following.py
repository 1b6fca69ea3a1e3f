"""The way of what follows up on something that an upstream keeps: to that upstream, and to nobody else."""

from __future__ import annotations

import asyncio
from functools import partial
from time import monotonic

from proxy.dispatch.pool import Pool
from proxy.http.incoming import Incoming
from proxy.outcome import KeeperAway, Refused
from proxy.request import Ticket
from proxy.serving.naming import Naming
from proxy.serving.routes import Candidate
from proxy.serving.service import Service
from proxy.upstream.endpoint import Endpoint
from proxy.upstream.exchange import Exchange
from proxy.upstream.keepers import Keepers, digest_of
from proxy.upstream.lease import Lease
from proxy.wire.anyusage import inflating
from proxy.wire.base import Tap
from proxy.wire.kept import READ_BYTES, Answered, DocumentTap, EventsTap, Place, in_chat, keeps, named, proven
from proxy.wire.registry import PASSTHROUGH, likely

__all__ = ["Following"]


class Following(Naming):
    """One request in the terms of what upstreams keep. `proxy.serving.flight.Flight` builds on it.

    Only where the path is of a kind that knows ids (`place`); of chats, only those that name a file or are stored.
    """

    __slots__ = ("_creates", "_document", "_lease", "_proven", "_refs", "_sought", "follow_up")

    def __init__(self, service: Service, incoming: Incoming, transport: asyncio.Transport, ticket: Ticket) -> None:
        super().__init__(service, incoming, transport, ticket)
        self._lease: Lease | None = None
        self._document: DocumentTap | None = None
        """Reads the ids of the answer, if that is one document."""
        self._refs: tuple[str, ...] | None = None
        """The ids that it refers to; None where nobody has looked."""
        self._proven: tuple[str, ...] = ()
        """Those that whoever serves it must know."""
        self._sought = False
        """Whether the other processes have been asked."""
        self._creates = False
        """Whether what it asks for will be kept."""
        self.follow_up = ""
        """What came of looking for the keeper: `kept`, `away`, `unknown`; empty where nobody has looked."""

    # -- whom to ask -----------------------------------------------------------------------------------------

    def _refers(self, pool: Pool, place: Place) -> bool:
        """Whether a request has anything to do with ids. Most chats have not."""
        call = self.call
        if place.casual and call is not None and type(payload := call.payload) is dict:
            return payload.get("store") is True or (
                pool.keepers is not None and not pool.keepers.empty and in_chat(call.body)
            )
        return True

    def _is_to_be_read(self, place: Place) -> bool:
        """Whether ids may stand in a body that has not come yet, and is small enough to be waited for."""
        incoming = self.incoming
        return (
            place.reads
            and self.call is None
            and not incoming.complete
            and incoming.fields.readable
            and incoming.length is not None
            and incoming.length <= READ_BYTES
        )

    def _is_to_be_sought(self, pool: Pool, place: Place) -> bool:
        """Whether another process may know who keeps what is referred to, and has not been asked yet."""
        if self._sought or pool.keepers is None or pool.keepers.seek is None:
            return False
        refs = self._references(place)
        return bool(refs) and self.service.table.keeper(pool, refs) is None

    async def _seek_keeper(self, pool: Pool) -> None:
        """Ask the other processes who keeps what is referred to."""
        self._sought = True
        if pool.keepers is not None and pool.keepers.seek is not None:
            await pool.keepers.seek([digest_of(id).hex() for id in self._refs or ()])

    def _references(self, place: Place) -> tuple[str, ...]:
        """Return the ids that the request refers to."""
        refs = self._refs
        if refs is None:
            call, incoming = self.call, self.incoming
            payload, body = None, b""
            if call is not None:
                payload, body = call.payload, call.body if type(call.payload) is dict else b""
            elif place.reads and incoming.complete and incoming.fields.readable:
                body = incoming.body_now()
                incoming.put_back(body)
            refs = self._refs = named(place, payload, body)
            self._proven = proven(place, payload)
            self._creates = place.creates and keeps(place, payload)
        return refs

    def _at_home(self, pool: Pool, place: Place) -> Pool:
        """Return the pool whose upstream keeps what is referred to: `pool`, or one that takes what it cannot."""
        refs = self._references(place)
        if refs and pool.config.fallback is not None and self.service.table.keeper(pool, refs) is None:
            for other in self.service.table.fallbacks(pool):
                if self.service.table.keeper(other, refs) is not None:
                    return other
        return pool

    def _keeping(self, candidates: tuple[Candidate, ...]) -> Candidate | None:
        """Return the candidate whose upstream keeps what a request refers to that names no model."""
        if self.place is None:
            return None
        refs = self._references(self.place)
        if refs:
            for candidate in candidates:
                if self.service.table.keeper(candidate.pool, refs) is not None:
                    return candidate
        return None

    def _follow(self, pool: Pool, place: Place) -> bool:
        """Find who keeps what the request refers to. Returns whether that one is away."""
        self.keeper = None
        refs = self._references(place)
        if not refs or pool.keepers is None:
            return False
        endpoint = self.service.table.keeper(pool, refs)
        self.follow_up = "unknown" if endpoint is None else "kept"
        self.keeper = endpoint
        return endpoint is not None and not endpoint.reachable

    async def _await_keeper(self, pool: Pool) -> None:
        """Wait for the keeper to come back. Raises Refused when it does not in time."""
        ticket, keeper = self.ticket, self.keeper
        assert keeper is not None
        ticket.give_up = self._until(pool)
        if not await pool.holding.for_one(keeper, ticket.arrival, ticket.give_up):
            raise self._away(keeper)

    def _away(self, keeper: Endpoint) -> Refused:
        """Return what the caller is told of a follow-up whose keeper is away, in the words of its protocol."""
        self.follow_up = "away"
        if self.wire is None or self.wire is PASSTHROUGH:
            incoming = self.incoming
            self.wire = likely(incoming.method, incoming.path, incoming.fields.raw)
        return Refused(KeeperAway(after_s=keeper.retry_after_s(monotonic())))

    # -- what is learned -------------------------------------------------------------------------------------

    def _watch(self, exchange: Exchange) -> Tap | None:
        """Take note of what a good answer shows, and return who reads the ids in it; None where none are expected."""
        place, lease, pool = self.place, self._lease, self.pool
        if place is None or lease is None or pool is None or (keepers := pool.keepers) is None:
            return None
        method, fields, name = self.incoming.method, exchange.fields, lease.endpoint.name
        if not 200 <= exchange.status < 300 or method == "DELETE":
            return None
        self._references(place)
        for id in self._proven:
            keepers.served(id, name)
        # What a file holds is the caller's, and no answer of the protocol's.
        if not self._creates and (not place.id or self.incoming.path.endswith("/content")):
            return None
        found = partial(self._found, keepers, name)
        tap: Tap
        if fields.is_event_stream:
            tap = EventsTap(found)
        elif "json" in fields.content_type.lower():
            tap = self._document = DocumentTap(found)
        else:
            return None
        return inflating(tap, fields.get(b"content-encoding") or b"") if fields.encoded else tap

    def _watched(self) -> None:
        """The answer is over: read what can only be read as a whole."""
        document, self._document = self._document, None
        if document is not None:
            document.close()

    def _found(self, keepers: Keepers, name: str, ids: Answered) -> None:
        """Remember the ids of an answer that the upstream called `name` gave."""
        if self._creates and ids.made:
            keepers.made(ids.made, name)
        for id in ids.beside:
            keepers.served(id, name)
