"""The way up where the model matters: which it is, wherever the request names it, and which pool serves it."""

from __future__ import annotations

import asyncio
from typing import Final

from proxy.dispatch.pool import Pool
from proxy.http.incoming import Incoming
from proxy.http.upload import Begun, pieces
from proxy.now import monotonic
from proxy.outcome import BadInput, BodyTooLarge, NoRoute, NoUpstream, Refused
from proxy.serving.model_list import Listing, merged_listing
from proxy.serving.plan import Asking
from proxy.serving.routes import Candidate
from proxy.upstream.errors import UpstreamError
from proxy.wire.base import BadRequest, Call, Head
from proxy.wire.naming import (
    JSON,
    LOOK_BACK,
    Named,
    Repeats,
    Unclear,
    in_form,
    in_json,
    in_part,
    in_target,
    inflated,
)  # fmt: skip
from proxy.wire.outline import STEP, Outline, is_light
from proxy.wire.passthrough import UNREAD

__all__ = ["Naming"]

_LIST_S: Final = 5.0
"""An upstream that has not listed its models by then is left out."""
_LIST_BYTES: Final = 4_194_304
_CONDITIONS = (b"accept-encoding:", b"if-none-match:", b"if-modified-since:", b"range:")
"""Fields that are about one server's answer."""
_COMPRESSED: Final = 1_048_576
"""Bytes of the largest compressed body that is looked into."""
_FORM: Final = 1_048_576
"""Bytes of a form that are looked through between two turns of the loop."""
_COPIED_APART: Final = 4_194_304
"""So many bytes are copied outside of the loop."""


class Naming(Asking):
    """One request whose model decides where it goes, or is to be another's. `Flight` builds on it.

    Only where pools tell models apart or an upstream has a `model` of its own: elsewhere nobody asks for the model.
    """

    __slots__ = ()

    def _chosen(self, candidates: tuple[Candidate, ...], call: Call, path: str) -> Candidate:
        """Return the candidate for a body that was read. Raises Refused."""
        candidate = candidates[0]
        if not candidate.by_model:
            # Whatever it names: all go the same way.
            return candidate
        try:
            names = in_target(self.incoming.target)
            named = call.named
            if named is None and is_light(call.body):
                named = in_json(call.body[: self._json_size(candidate, call, path)])
            elif named is None and call.route is UNREAD:
                raise Unclear("the request body cannot be read, so the model it names cannot be found")
            if named is not None:
                names.append(named)
            return self._pinned(candidates, names, path, call.model)
        except Unclear as error:
            raise self._unclear(candidate, error) from None

    def _outlined(self, candidate: Candidate, outline: Outline) -> Named | None:
        """Return where a large body names its model. Raises Refused."""
        try:
            return outline.named
        except Unclear as error:
            raise self._unclear(candidate, error) from None

    async def _listed(self, candidates: tuple[Candidate, ...], path: str) -> bytes:
        """Return the models of all pools in one list, without those that are down. Raises Refused when all are."""
        bodies = await asyncio.gather(*[self._ask_for_list(candidate.pool) for candidate in candidates])
        if all(body is None for body in bodies):
            self.pool = candidates[0].pool
            raise Refused(NoUpstream(after_s=candidates[0].pool.group.retry_after_s()))
        listings = [
            Listing(body, candidate.pool.config.match.models)
            for body, candidate in zip(bodies, candidates, strict=True)
        ]
        return merged_listing(path, listings)

    async def _ask_for_list(self, pool: Pool) -> bytes | None:
        """Ask one pool for its models; None where it does not say within `_LIST_S`."""
        outgoing = self._make_outgoing(self._classify(pool))
        lines = outgoing.lines.splitlines(True)
        outgoing.lines = b"".join([line for line in lines if not line.lower().startswith(_CONDITIONS)])
        try:
            lease = pool.unqueued()
        except Refused:
            return None
        exchange = None
        try:
            until = monotonic() + _LIST_S
            exchange = await pool.group.call(lease, outgoing, total_deadline=until, gather=True, limit=_LIST_BYTES)
            return exchange.take() if exchange.status == 200 else None
        except UpstreamError:
            return None
        finally:
            if exchange is not None:
                exchange.abort()
            lease.release()

    def _json_size(self, candidate: Candidate, call: Call, path: str) -> int:
        if call.route is UNREAD:
            return len(call.body)
        return candidate.wire.json_size(self._head(path), call.body)

    def _head(self, path: str) -> Head:
        incoming = self.incoming
        return Head(incoming.method, path, incoming.target, incoming.fields.forwarded)

    async def _seek(self, candidates: tuple[Candidate, ...], path: str) -> Candidate:
        """Return the candidate for a request that nobody reads, looking for its model. Raises Refused."""
        incoming = self.incoming
        names = in_target(incoming.target)
        try:
            names += await self._in_body(incoming)
            return self._pinned(candidates, names, path, "")
        except (Unclear, BadRequest) as error:
            raise self._unclear(candidates[0], error) from None

    async def _in_body(self, incoming: Incoming) -> list[Named]:
        fields, limits = incoming.fields, self.service.limits
        kind = (fields.text(b"content-type") or "").lower()
        coding = fields.get(b"content-encoding")
        if incoming.method in ("GET", "HEAD", "OPTIONS") or incoming.wants_websocket:
            return []
        if coding is not None and coding.strip().lower() != b"identity":
            if incoming.length is None or incoming.length > _COMPRESSED:
                raise Unclear("the compressed request body is too large to find its model in")
            body = await self._whole_body(incoming)
            plain = await asyncio.to_thread(inflated, body, coding)
            named = await self._in_document(plain)
            return [] if named is None else [Named(named.name, JSON, -1, -1)]
        if kind.startswith("multipart/"):
            return await self._in_parts(incoming, fields.text(b"content-type") or "")
        if not fields.readable and "json" not in kind:
            return []
        if incoming.length is not None and incoming.length > limits.max_body_bytes:
            raise Refused(BodyTooLarge(limits.max_body_bytes))
        body = await self._whole_body(incoming)
        if "urlencoded" in kind and body[:_FORM].lstrip()[:1] != b"{":
            return await self._in_form(body)
        named = await self._in_document(body)
        return [] if named is None else [named]

    async def _in_document(self, body: bytes) -> Named | None:
        """Return where a JSON body names its model. Raises Unclear and BadRequest."""
        if is_light(body):
            async with self.service.skimming:
                named = in_json(body)
                await asyncio.sleep(0)
            return named
        outline = Outline(body, self.service.limits.max_json_values)
        await self._skim(outline)
        return outline.named

    async def _skim(self, outline: Outline) -> None:
        """Read a large body, one step of one body between two turns of the loop. Raises BadRequest."""
        whole = False
        while not whole:
            async with self.service.skimming:
                whole = outline.step(STEP)
                await asyncio.sleep(0)

    async def _in_form(self, body: bytes) -> list[Named]:
        """Return the names in a form as browsers encode it, looking through it in steps. Raises Unclear."""
        names: list[Named] = []
        for start in range(0, len(body), _FORM):
            async with self.service.skimming:
                names += in_form(body, start, min(len(body), start + _FORM))
                await asyncio.sleep(0)
        return names

    async def _whole_body(self, incoming: Incoming) -> bytes:
        body = await incoming.body(self.service.limits, self._hold, self.service.joining)
        incoming.put_back(body)
        return body

    async def _in_parts(self, incoming: Incoming, kind: str) -> list[Named]:
        """Read a form until its model has come, and keep what was read for the upstream."""
        limits = self.service.limits
        if incoming.complete:
            body = await self._whole_body(incoming)
            named = in_part(kind, body, whole=True)
            return [] if named is None else [named]
        parts: list[bytes] = []
        size = 0
        window = b""
        named = None
        rest = pieces(incoming, limits.body_timeout_s, limits.min_rate_bytes)
        async for piece in rest:
            self._hold(len(piece))
            parts.append(piece)
            size += len(piece)
            if size > limits.max_body_bytes:
                raise Refused(BodyTooLarge(limits.max_body_bytes))
            window = window[-LOOK_BACK:] + piece
            named = in_part(kind, window)
            if named is not None:
                break
        else:
            named = in_part(kind, window, whole=True)
        async with self.service.joining:
            first = b"".join(parts) if size < _COPIED_APART else await asyncio.to_thread(b"".join, parts)
        self.begun = Begun(first, rest, Repeats())
        if named is None:
            return []
        before = size - len(window)
        return [Named(named.name, named.place, named.start + before, named.end + before)]

    def _pinned(self, candidates: tuple[Candidate, ...], names: list[Named], path: str, model: str) -> Candidate:
        """Return the candidate that serves the one model that is named. Raises Unclear and Refused."""
        distinct = {named.name for named in names}
        if model:
            distinct.add(model)
        if len(distinct) > 1:
            first, second, *_ = sorted(distinct)
            raise Unclear(f"the request names two models, {first[:100]!r} and {second[:100]!r}")
        model = distinct.pop() if distinct else ""
        table = self.service.table
        kept = None if model else self._keeping(candidates)
        if kept is not None:
            return kept
        chosen = table.choose(candidates, model)
        if chosen is None:
            if not model and self.incoming.method in ("GET", "HEAD", "OPTIONS"):
                # Pages and listings: no model is asked for.
                return candidates[0]
            raise Refused(
                NoRoute(model, "" if not model else path, table.known_models(candidates), unnamed=not model)
            )
        if chosen.pool.terms.renames and any(named.start < 0 for named in names):
            raise Unclear("the request body is compressed, so its model cannot be replaced")
        self.named = tuple(names)
        return chosen

    def _keeping(self, candidates: tuple[Candidate, ...]) -> Candidate | None:
        """Return the candidate whose upstream keeps what a request refers to; None where that is not known."""
        return None

    def _unclear(self, candidate: Candidate, error: Exception) -> Refused:
        self.pool = candidate.pool
        text = str(error)
        return Refused(BadInput(f"{text[:1].upper()}{text[1:]}.", "model", "model_unclear"))
