"""Legal answers of every shape, and what an upstream may wrongly say behind one, drawn at random."""

from __future__ import annotations

from random import Random
from typing import NamedTuple

__all__ = ["Planned", "cut", "junk", "planned"]

_REASONS = {200: b"OK", 201: b"Created", 204: b"No Content", 206: b"Partial Content", 304: b"Not Modified",
            404: b"Not Found", 429: b"Too Many Requests", 500: b"Internal Server Error"}  # fmt: skip
_STATUSES = (200, 200, 200, 200, 200, 201, 204, 206, 304, 404, 500)
_INTERIM = (
    b"HTTP/1.1 100 Continue\r\n\r\n",
    b"HTTP/1.1 102 Processing\r\nX-Interim: 1\r\n\r\n",
    b"HTTP/1.1 103 Early Hints\r\nLink: </x>; rel=preload\r\nContent-Length: 7\r\n\r\n",
    b"HTTP/1.1 100\r\nConnection: close\r\n\r\n",
)


class Planned(NamedTuple):
    """What stands on the wire, and what whoever asked is to see of it."""

    head_request: bool
    wire: bytes
    closes: bool
    """Whether only closing ends the body."""
    keeps: bool
    """Whether the connection may carry another exchange."""
    status: int
    reason: bytes
    fields: list[tuple[bytes, bytes]]
    """The end-to-end ones."""
    body: bytes
    trailers: list[tuple[bytes, bytes]]


def planned(rng: Random, tag: int, *, head_request: bool = False, may_close: bool = True) -> Planned:
    """Draw an answer. Heads come back byte for byte, or nearly so, while bodies are always its own."""
    status = rng.choice(_STATUSES)
    reason = _REASONS[status] if rng.random() < 0.9 else rng.choice((b"", b"Fine", b"Really quite fine"))
    fields = [(b"Server", b"planned")]
    if rng.random() < 0.2:
        fields.append((b"X-Tag", b"%d" % tag))
    if rng.random() < 0.3:
        fields.append((rng.choice((b"Date", b"date")), b"Tue, 01 Dec 2026 00:00:%02d GMT" % rng.randrange(60)))
    if rng.random() < 0.2:
        fields.append((b"Set-Cookie", b"a=%d" % rng.randrange(2)))
    kept = rng.random() < 0.9
    hop = [] if kept else [(b"Connection", b"close")]
    body = b"answer %d;" % tag * rng.choice((0, 1, 1, 1, 2, 7, 40)) + bytes(
        rng.choices(b"ab\r\n0;", k=rng.randrange(4))
    )
    kind = rng.random()
    trailers: list[tuple[bytes, bytes]] = []
    closes = False
    if status == 204:
        body = framed = b""
    elif kind < 0.55:
        place = rng.randrange(len(fields) + 1)
        hop_at = (place, (rng.choice((b"Content-Length", b"content-length")), b"%d" % len(body)))
        framed = body
    elif kind < 0.92 or not may_close:
        if rng.random() < 0.3:
            trailers = [(b"X-Sum", b"%d" % tag), (b"X-Empty", b"")][: rng.randrange(1, 3)]
        framed = _chunked(rng, body, trailers)
        hop.append((b"Transfer-Encoding", rng.choice((b"chunked", b"chunked", b"Chunked"))))
    else:
        closes, framed = True, body
    all_fields = [*fields, *hop]
    if status != 204 and kind < 0.55:
        all_fields.insert(*hop_at)
    if head_request or status == 304:
        # Closing ends what has a body, and this has none.
        body = framed = b""
        trailers = []
        kept, closes = kept and (not closes or status == 304), False
    elif closes:
        kept = False
    line = b"HTTP/1.1 %d %b\r\n" % (status, reason) if reason or rng.random() < 0.5 else b"HTTP/1.1 %d\r\n" % status
    head = line + b"".join([b"%b: %b\r\n" % field for field in all_fields]) + b"\r\n"
    front = b"".join(rng.choices(_INTERIM, k=rng.randrange(1, 3))) if rng.random() < 0.12 else b""
    return Planned(head_request, front + head + framed, closes, kept, status, reason, fields, body, trailers)


def _chunked(rng: Random, body: bytes, trailers: list[tuple[bytes, bytes]]) -> bytes:
    plain, out, at = rng.random() < 0.6, [], 0
    while at < len(body):
        size = rng.choice((1, 3, 16, 200, len(body) - at))
        piece = body[at : at + size]
        line = b"%x" % len(piece)
        if not plain:
            line = rng.choice(
                (line, b"00" + line, line.upper(), line + b";name=value", line + b' ; a="0"', line + b" ")
            )
        out.append(b"%b\r\n%b\r\n" % (line, piece))
        at += size
    last = b"0" if plain else rng.choice((b"0", b"000", b"0;last"))
    lines = b"".join([b"%b: %b\r\n" % field for field in trailers])
    return b"%b%b\r\n%b\r\n" % (b"".join(out), last, lines)


def junk(rng: Random, tag: int) -> bytes:
    """Draw what nobody asked for; whole answers among it, that would be taken for somebody's."""
    evil = b"junk behind %d" % tag
    whole = b"HTTP/1.1 200 OK\r\nServer: planned\r\nContent-Length: %d\r\n\r\n%b" % (len(evil), evil)
    kind = rng.randrange(14)
    if kind < 3:
        return whole
    if kind == 3:
        return whole[: rng.randrange(1, len(whole))]
    if kind == 4:
        return b"HTTP/1.1 418 Junk\r\nX-Junk: 1\r\nTransfer-Encoding: chunked\r\n\r\n"
    if kind == 5:
        return b"0\r\n\r\n"
    if kind == 6:
        return rng.choice((b"\r\n", b"\n", b"\r", b"\r\n\r\n", b"\r\n\r\n\r\n", b" ")) + rng.choice((b"", whole))
    if kind == 7:
        return b"\0" * rng.randrange(1, 9)
    if kind == 8:
        return b"X-Junk: trailer\r\n\r\n"
    if kind == 9:
        return rng.choice(_INTERIM) + rng.choice((b"", whole))
    if kind == 10:
        return b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n" + evil
    if kind == 11:
        return b"%x\r\n%b\r\n" % (len(evil), evil)
    if kind == 12:
        return planned(rng, -tag).wire
    return bytes(rng.choices(range(256), k=rng.randrange(1, 40)))


def cut(rng: Random, data: bytes, most: int = 4) -> list[bytes]:
    """Cut `data` at random places into reads, seldom into single bytes."""
    if len(data) < 400 and rng.random() < 0.02:
        return [data[at : at + 1] for at in range(len(data))]
    places = sorted(rng.randrange(len(data) + 1) for _ in range(rng.randrange(most))) if data else []
    return [
        piece for start, end in zip([0, *places], [*places, len(data)], strict=True) if (piece := data[start:end])
    ]
