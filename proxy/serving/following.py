"""The way of what follows up on something that an upstream keeps: to that upstream, and to nobody else."""

from __future__ import annotations

from functools import partial

from proxy.dispatch.pool import Pool
from proxy.http.incoming import Incoming
from proxy.now import monotonic
from proxy.outcome import KeeperAway, Refused
from proxy.request import Ticket
from proxy.serving.routes import Candidate
from proxy.serving.service import Service
from proxy.upstream.endpoint import Endpoint
from proxy.upstream.exchange import Exchange
from proxy.upstream.keepers import Keepers, digest_of
from proxy.wire.anyusage import inflating
from proxy.wire.base import Call, Tap
from proxy.wire.kept import READ_BYTES, Answered, DocumentTap, EventsTap, Place, in_chat, keeps, named, proven
from proxy.wire.registry import PASSTHROUGH, likely

__all__ = ["FollowUp", "keeping", "refers"]


def refers(place: Place, pool: Pool, call: Call | None) -> bool:
    """Whether a request to `place` has anything to do with ids. Most chats have not."""
    if place.casual and call is not None and type(payload := call.payload) is dict:
        return payload.get("store") is True or (
            pool.keepers is not None and not pool.keepers.empty and in_chat(call.body)
        )
    return True


def keeping(
    service: Service, ticket: Ticket, incoming: Incoming, candidates: tuple[Candidate, ...]
) -> Candidate | None:
    """Return the candidate whose upstream keeps what a request refers to that names no model."""
    place = candidates[0].place
    if place is None:
        return None
    refs = _referred(place, ticket.call, incoming)
    if refs:
        for candidate in candidates:
            if service.table.keeper(candidate.pool, refs) is not None:
                return candidate
    return None


def _referred(place: Place, call: Call | None, incoming: Incoming) -> tuple[str, ...]:
    """Return the ids that a request refers to, as far as it has come."""
    payload, body = None, b""
    if call is not None:
        payload, body = call.payload, call.body if type(call.payload) is dict else b""
    elif place.reads and incoming.complete and incoming.fields.readable:
        body = incoming.body_now()
        incoming.put_back(body)
    return named(place, payload, body)


class FollowUp:
    """One request in the terms of what upstreams keep, where its path is of a kind that knows ids.

    Of chats, only those that name a file or are stored.
    """

    __slots__ = (
        "_creates",
        "_document",
        "_incoming",
        "_place",
        "_proven",
        "_refs",
        "_service",
        "_sought",
        "_ticket",
        "keeper",
        "result",
    )

    def __init__(self, place: Place, service: Service, ticket: Ticket, incoming: Incoming) -> None:
        self._place = place
        self._service = service
        self._ticket = ticket
        self._incoming = incoming
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
        self.keeper: Endpoint | None = None
        """The only upstream that knows what it refers to, where it refers to anything of that kind."""
        self.result = ""
        """What came of looking for the keeper: `kept`, `away`, `unknown`; empty where nobody has looked."""

    # -- whom to ask -----------------------------------------------------------------------------------------

    def is_unknown(self, pool: Pool) -> bool:
        """Whether it takes something to `find_out` before it is known who keeps what is referred to."""
        return self._is_to_be_read() or self._is_to_be_sought(pool)

    async def find_out(self, pool: Pool) -> None:
        """Wait for the body, or else for what the other processes know. Raises Refused."""
        service = self._service
        if self._is_to_be_read():
            await self._incoming.await_body(service.limits, service.held, service.joining)
        elif pool.keepers is not None and pool.keepers.seek is not None:
            self._sought = True
            await pool.keepers.seek([digest_of(id).hex() for id in self._refs or ()])

    def _is_to_be_read(self) -> bool:
        """Whether ids may stand in a body that has not come yet, and is small enough to be waited for."""
        incoming = self._incoming
        return (
            self._place.reads
            and self._ticket.call is None
            and not incoming.complete
            and incoming.fields.readable
            and incoming.length is not None
            and incoming.length <= READ_BYTES
        )

    def _is_to_be_sought(self, pool: Pool) -> bool:
        """Whether another process may know who keeps what is referred to, and has not been asked yet."""
        if self._sought or pool.keepers is None or pool.keepers.seek is None:
            return False
        refs = self._references()
        return bool(refs) and self._service.table.keeper(pool, refs) is None

    def home(self, pool: Pool) -> Pool:
        """Return the pool whose upstream keeps what is referred to: `pool`, or one that takes what it cannot."""
        refs, table = self._references(), self._service.table
        if refs and pool.config.fallback is not None and table.keeper(pool, refs) is None:
            for other in table.fallbacks(pool):
                if table.keeper(other, refs) is not None:
                    return other
        return pool

    def look(self, pool: Pool) -> bool:
        """Find who keeps what the request refers to. Returns whether that one is away."""
        self.keeper = None
        refs = self._references()
        if not refs or pool.keepers is None:
            return False
        endpoint = self._service.table.keeper(pool, refs)
        self.result = "unknown" if endpoint is None else "kept"
        self.keeper = endpoint
        return endpoint is not None and not endpoint.reachable

    async def await_keeper(self, pool: Pool) -> None:
        """Wait for the keeper to come back, until the request gives up. Raises Refused when it does not in time."""
        ticket, keeper = self._ticket, self.keeper
        assert keeper is not None
        if not await pool.holding.for_one(keeper, ticket.arrival, ticket.give_up):
            raise self.away(keeper)

    def away(self, keeper: Endpoint) -> Refused:
        """Return what the caller is told of a follow-up whose keeper is away, in the words of its protocol."""
        self.result = "away"
        ticket, incoming = self._ticket, self._incoming
        if ticket.wire is None or ticket.wire is PASSTHROUGH:
            ticket.wire = likely(incoming.method, incoming.path, incoming.fields.raw)
        return Refused(KeeperAway(after_s=keeper.retry_after_s(monotonic())))

    def _references(self) -> tuple[str, ...]:
        """Return the ids that the request refers to."""
        refs = self._refs
        if refs is None:
            place, call = self._place, self._ticket.call
            payload = None if call is None else call.payload
            refs = self._refs = _referred(place, call, self._incoming)
            self._proven = proven(place, payload)
            self._creates = place.creates and keeps(place, payload)
        return refs

    # -- what is learned -------------------------------------------------------------------------------------

    def watch(self, pool: Pool, name: str, exchange: Exchange) -> Tap | None:
        """Take note of what a good answer of the upstream called `name` shows.

        Returns who reads the ids in it; None where none are expected.
        """
        place, keepers = self._place, pool.keepers
        if keepers is None:
            return None
        method, fields = self._incoming.method, exchange.fields
        if not 200 <= exchange.status < 300 or method == "DELETE":
            return None
        self._references()
        for id in self._proven:
            keepers.served(id, name)
        # What a file holds is the caller's, and no answer of the protocol's.
        if not self._creates and (not place.id or self._incoming.path.endswith("/content")):
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

    def watched(self) -> None:
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
