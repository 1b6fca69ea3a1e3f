"""One HTTP exchange, kept as it came: what is asked, and the status, fields and body that were the answer."""

from __future__ import annotations

import http.client
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

__all__ = ["VOLATILE", "Answer", "Ask", "Callers", "ask", "ask_together", "post"]

VOLATILE = frozenset(
    {
        "completed_at", "created", "created_at", "eval_duration", "id", "item_id", "load_duration",
        "prompt_eval_duration", "request_id", "response_id", "total_duration", "started_at", "timestamp",
    }
)  # fmt: skip
"""Names of JSON members that are new in every answer: identifiers, times and durations."""


@dataclass(frozen=True)
class Ask:
    """A request, and what its answer is allowed to change by itself."""

    name: str
    method: str
    path: str
    body: bytes | None = None
    headers: tuple[tuple[str, str], ...] = ()
    volatile: frozenset[str] = VOLATILE
    """Members of the answer that are not compared."""
    tolerance: float = 0.0
    """How far numbers may be apart, of their size: only where requests are merged into another batch."""
    chunked: bool = False
    """Whether the body is sent in chunks, without a length."""


@dataclass(frozen=True)
class Answer:
    """What came back. `whole` is false when the connection ended before the body did."""

    status: int
    reason: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    whole: bool = True

    def header(self, name: str) -> str | None:
        """The first value of a field, None when it is absent."""
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)


def post(name: str, path: str, document: Any, *headers: tuple[str, str], **more: Any) -> Ask:
    """A POST of a JSON document, or of bytes that claim to be one."""
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    return Ask(name, "POST", path, body, (("Content-Type", "application/json"), *headers), **more)


def ask(url: str, question: Ask, *, timeout_s: float = 120) -> Answer:
    """Send one request over a connection of its own and read the answer to its end. Raises OSError."""
    connection = _connection(url, timeout_s)
    try:
        return _exchange(connection, question)
    finally:
        connection.close()


def ask_together(url: str, questions: Sequence[Ask], *, timeout_s: float = 120) -> list[Answer]:
    """Send all of them at once, each over a connection of its own."""
    with ThreadPoolExecutor(len(questions)) as pool:
        return list(pool.map(lambda question: ask(url, question, timeout_s=timeout_s), questions))


class Callers:
    """So many clients that keep their connections, for as long as the server says it keeps them."""

    def __init__(self, url: str, count: int, *, timeout_s: float = 120) -> None:
        self._connections = [_connection(url, timeout_s) for _ in range(count)]

    def __enter__(self) -> Callers:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._connections:
            connection.close()

    def ask(self, questions: Sequence[Ask]) -> list[Answer]:
        """Send all of them at once, each by a caller of its own. Raises OSError."""
        with ThreadPoolExecutor(len(questions)) as pool:
            return list(pool.map(_exchange, self._connections, questions))


def _connection(url: str, timeout_s: float) -> http.client.HTTPConnection:
    parts = urlsplit(url)
    return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=timeout_s)


def _exchange(connection: http.client.HTTPConnection, question: Ask) -> Answer:
    body = question.body
    pieces = (
        None if body is None or not question.chunked else [body[at : at + 7000] for at in range(0, len(body), 7000)]
    )
    fields = {**dict(question.headers), **({} if pieces is None else {"Transfer-Encoding": "chunked"})}
    sent = body if pieces is None else pieces
    connection.request(question.method, question.path, sent, fields, encode_chunked=pieces is not None)
    response = connection.getresponse()
    try:
        body, whole = response.read(), True
    except http.client.IncompleteRead as cut:
        body, whole = cut.partial, False
    return Answer(response.status, response.reason, tuple(response.getheaders()), body, whole)
