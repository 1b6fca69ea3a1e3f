"""Requests and pieces of answers, made short for tests."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import orjson

from proxy.wire.base import Call, Head, Tap
from proxy.wire.registry import AUTO, detect

EMBEDDINGS, COMPLETIONS, CHAT = "/v1/embeddings", "/v1/completions", "/v1/chat/completions"


def head(path: str, *headers: tuple[str, str], method: str = "POST") -> Head:
    return Head(
        method,
        path.partition("?")[0],
        path,
        [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers],
    )


def parse(path: str, body: Any, *headers: tuple[str, str], wire: str = AUTO) -> Call:
    """Parse a request as the proxy would; `body` is JSON unless it is bytes already."""
    raw = body if isinstance(body, bytes) else orjson.dumps(body)
    request = head(path, *headers)
    match = detect("POST", request.path, wire)
    return match.wire.parse(match.route, request, raw)


def cuts(data: bytes, *, samples: int = 40, seed: int = 7) -> Iterator[list[bytes]]:
    """Yield every cut of `data` in two, every byte alone, and random cuts into many pieces."""
    yield [data]
    yield [data[i : i + 1] for i in range(len(data))]
    for at in range(1, len(data)):
        yield [data[:at], data[at:]]
    rng = random.Random(seed)
    for _ in range(samples):
        places = sorted(rng.sample(range(1, len(data)), min(len(data) - 1, rng.randint(2, 12))))
        yield [data[a:b] for a, b in zip([0, *places], [*places, len(data)], strict=True)]


def seen(tap: Tap, pieces: Sequence[bytes]) -> tuple[Any, ...]:
    """Feed `pieces` and return everything a tap can tell."""
    for piece in pieces:
        tap.feed(piece)
    return (tap.usage(), tap.tokens_seen, tap.finished(), tap.at_boundary())
