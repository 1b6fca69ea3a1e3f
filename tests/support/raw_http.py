"""HTTP/1.1 by hand, for tests that must see every byte."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import struct
from dataclasses import dataclass, replace
from typing import Any

from tests.support.http_message import HttpMessage

__all__ = ["CHAT", "Answer", "RawClient", "request_bytes"]

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
"""The body of a chat completion, as short as it can be."""


@dataclass(frozen=True)
class Answer(HttpMessage):
    """One response as it stood on the wire."""

    status: int
    reason: str
    headers: list[tuple[str, str]]
    body: bytes
    complete: bool
    """Whether the body ended the way its framing says."""
    trailers: tuple[tuple[str, str], ...] = ()


def request_bytes(
    method: str = "GET",
    target: str = "/",
    headers: dict[str, str] | list[tuple[str, str]] | None = None,
    body: bytes | str | dict[str, Any] = b"",
    mock: dict[str, Any] | None = None,
) -> bytes:
    """Return a well-formed request. A dictionary becomes a JSON body, `mock` the x-mock header."""
    if isinstance(body, dict):
        body = json.dumps(body)
    if isinstance(body, str):
        body = body.encode()
    fields = list(headers.items() if isinstance(headers, dict) else headers or [])
    names = {name.lower() for name, _ in fields}
    if "host" not in names:
        fields.insert(0, ("Host", "proxy.test"))
    if mock is not None:
        fields.append(("X-Mock", json.dumps(mock)))
    if body or method in ("POST", "PUT"):
        if "content-type" not in names:
            fields.append(("Content-Type", "application/json"))
        if "content-length" not in names and "transfer-encoding" not in names:
            fields.append(("Content-Length", str(len(body))))
    lines = [f"{method} {target} HTTP/1.1", *(f"{name}: {value}" for name, value in fields)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1") + body


class RawClient:
    """One client connection."""

    def __init__(self, port: int, *, tls: ssl.SSLContext | None = None) -> None:
        self._port = port
        self._tls = tls

    async def __aenter__(self) -> RawClient:
        self.reader, self.writer = await asyncio.open_connection(
            "127.0.0.1", self._port, limit=1 << 24, ssl=self._tls
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        self.writer.transport.abort()

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def abort(self) -> None:
        """Go away without a word."""
        self.writer.transport.abort()

    def reset(self) -> None:
        """Go away so that even a peer that does not read is told."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def ask(self, *args: Any, timeout: float = 10.0, **kwargs: Any) -> Answer:
        """Send one request and read its answer."""
        method = args[0] if args else kwargs.get("method", "GET")
        self.send(request_bytes(*args, **kwargs))
        return await self.answer(head_only=method == "HEAD", timeout=timeout)

    async def head(self, timeout: float = 10.0) -> tuple[int, str, list[tuple[str, str]]]:
        """Read a response's head, interim ones included."""
        async with asyncio.timeout(timeout):
            raw = await self.reader.readuntil(b"\r\n\r\n")
        lines = raw[:-4].decode("latin-1").split("\r\n")
        _, status, reason = lines[0].split(" ", 2)
        headers = [(key, value.strip()) for key, _, value in (line.partition(":") for line in lines[1:])]
        return int(status), reason, headers

    async def answer(self, *, head_only: bool = False, timeout: float = 10.0) -> Answer:
        """Read one response, skipping interim ones."""
        async with asyncio.timeout(timeout):
            status, reason, headers = await self.head(timeout)
            while 100 <= status < 200 and status != 101:
                status, reason, headers = await self.head(timeout)
            head = Answer(status, reason, headers, b"", True)
            if head_only or status in (101, 204, 304):
                return head
            coding, length = head.header("transfer-encoding"), head.header("content-length")
            assert coding is None or length is None, "two framings"
            if coding is not None:
                return await self._chunked(head)
            if length is not None:
                return await self._counted(head, int(length))
            try:
                return replace(head, body=await self.reader.read(-1))
            except ConnectionError:
                return replace(head, complete=False)

    async def _counted(self, head: Answer, length: int) -> Answer:
        try:
            return replace(head, body=await self.reader.readexactly(length))
        except asyncio.IncompleteReadError as error:
            return replace(head, body=error.partial, complete=False)
        except ConnectionError:
            return replace(head, complete=False)

    async def _chunked(self, head: Answer) -> Answer:
        body = b""
        while True:
            try:
                line = await self.reader.readuntil(b"\r\n")
                size = int(line, 16)
                if size == 0:
                    trailers = []
                    while (line := await self.reader.readuntil(b"\r\n")) != b"\r\n":
                        key, _, value = line.decode("latin-1").partition(":")
                        trailers.append((key, value.strip()))
                    return replace(head, body=body, trailers=tuple(trailers))
                body += await self.reader.readexactly(size)
                assert await self.reader.readexactly(2) == b"\r\n"
            except asyncio.IncompleteReadError as error:
                return replace(head, body=body + error.partial, complete=False)
            except ConnectionError:
                return replace(head, body=body, complete=False)

    async def piece(self, timeout: float = 10.0) -> bytes:
        """Read one chunk of a chunked body; b"" is the last."""
        async with asyncio.timeout(timeout):
            size = int(await self.reader.readuntil(b"\r\n"), 16)
            data = await self.reader.readexactly(size)
            await self.reader.readexactly(2)
            return data

    async def closed(self, timeout: float = 5.0) -> bytes:
        """Wait for the other side to close; returns what it still said."""
        async with asyncio.timeout(timeout):
            try:
                return await self.reader.read(-1)
            except ConnectionError:
                return b""
