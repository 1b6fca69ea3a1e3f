"""Taking bodies in: bounded in size, time and memory; what is in large ones is worked on off the event loop."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import Any, Final, TypeVar

from aiohttp import web

from backend.api.body import parse_body
from backend.api.errors import ApiError, BodyTooLarge, InvalidRequest, Unavailable

__all__ = ["INLINE_BYTES", "LARGE_BYTES", "BodyLimits", "Intake"]

R = TypeVar("R")
Draft = Callable[[dict[str, Any]], R]

INLINE_BYTES: Final = 3 << 10
"""Bodies up to this size are worked on on the event loop: that takes a millisecond or two, whatever is in them."""
LARGE_BYTES: Final = 256 << 10
"""Bodies above this size take turns, so that they keep neither each other's memory nor the threads of the smaller."""
_WINDOW_BITS: Final = {"gzip": 16 + zlib.MAX_WBITS, "x-gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
"""How zlib is told what to expect of a content coding (RFC 9110, section 8.4.1)."""


@dataclass(frozen=True, slots=True)
class BodyLimits:
    """Bounds on the bodies of requests."""

    timeout_s: float = 60.0
    """How long a caller may keep us waiting for the next piece, and in all."""
    min_rate: int = 500
    """Bytes that allow a second more, once that is used up."""
    max_held_bytes: int = 256 << 20
    """Bytes of bodies in memory, over all requests; large ones may have three quarters of it."""


class Intake:
    """Reads bodies, and has drafts made of them. The count of the bytes held is its only state."""

    def __init__(self, limits: BodyLimits, small: Executor, large: Executor) -> None:
        """`large` runs one thing at a time: two that keep the interpreter to themselves would double the wait."""
        self._limits = limits
        self._small = small
        self._large = large
        self.held = 0

    async def read(self, request: web.Request, draft: Draft[R]) -> R:
        """Read the body of `request` as a JSON object and return what `draft`, called in any thread, makes of it.

        Raises:
            BodyTooLarge: longer than the application's client_max_size.
            Unavailable: too much is held for other requests.
            InvalidRequest: late, packed wrongly, or not a JSON object.
            ApiError: whatever `draft` raises.
            web.RequestPayloadError: the client is gone.
        """
        most = request.client_max_size
        if request.content_length is not None and request.content_length > most:
            raise BodyTooLarge(f"The body has {request.content_length} bytes; at most {most} are read.")
        coding = _coding(request)
        pieces: list[bytes] = []
        size, waited = 0, 0.0
        try:
            while True:
                began = monotonic()
                piece = await self._piece(request, size, waited)
                if not piece:
                    break
                waited += monotonic() - began
                size += len(piece)
                self.held += len(piece)
                pieces.append(piece)
                if size > most:
                    raise BodyTooLarge(f"The body is longer than the {most} bytes that are read.")
                self._check_room(size)
            raw = pieces[0] if len(pieces) == 1 else b"".join(pieces)
            pieces.clear()
            work = partial(_work, raw, coding, most, draft)
            del raw
            if size <= INLINE_BYTES and coding is None:
                return work()
            large = size > LARGE_BYTES or coding is not None
            return await asyncio.get_running_loop().run_in_executor(self._large if large else self._small, work)
        finally:
            self.held -= size

    async def _piece(self, request: web.Request, size: int, waited: float) -> bytes:
        limits = self._limits
        left = limits.timeout_s + size / limits.min_rate - waited
        try:
            async with asyncio.timeout(min(limits.timeout_s, left)):
                return await request.content.readany()
        except TimeoutError:
            raise InvalidRequest(
                f"The body did not arrive within {limits.timeout_s:g} seconds and one more for every "
                f"{limits.min_rate} bytes.",
                code="body_timeout",
            ) from None
        except web.RequestPayloadError as error:
            if request.transport is None or request.transport.is_closing():
                raise
            raise InvalidRequest(f"The body cannot be read: {error}.", code="invalid_body") from None

    def _check_room(self, size: int) -> None:
        """Raise Unavailable where all bodies together are too much. A small one finds room beside many large ones."""
        most = self._limits.max_held_bytes
        if self.held > (most if size <= LARGE_BYTES else most - most // 4) and self.held > size:
            raise Unavailable(
                "The bodies of other requests take all the memory there is for them.", code="bodies_full"
            )


def _coding(request: web.Request) -> str | None:
    """Return the body's content coding; None for none. Raises InvalidRequest for an unknown one."""
    coding = request.headers.get("Content-Encoding", "").strip().lower()
    if coding in ("", "identity"):
        return None
    if coding not in _WINDOW_BITS:
        raise InvalidRequest("A body may be packed with gzip or deflate only.", code="invalid_body")
    return coding


def _work(raw: bytes, coding: str | None, most: int, draft: Draft[R]) -> R:
    """Make a draft of a body. What fails keeps nothing of it: freeing it all takes time, and belongs here."""
    try:
        return draft(parse_body(raw if coding is None else _unpacked(raw, coding, most)))
    except ApiError as error:
        error.__cause__ = error.__context__ = None
        failure = error.with_traceback(None)
    raise failure


def _unpacked(raw: bytes, coding: str, most: int) -> bytes:
    unpacker = zlib.decompressobj(_WINDOW_BITS[coding])
    try:
        text = unpacker.decompress(raw, most + 1)
    except zlib.error as error:
        raise InvalidRequest(f"The body cannot be read: {error}.", code="invalid_body") from None
    if len(text) > most:
        raise BodyTooLarge(f"The body is longer than the {most} bytes that are read.")
    if not unpacker.eof:
        raise InvalidRequest("The body cannot be read: it has no end.", code="invalid_body")
    return text
