"""A server that answers whatever a function says: for servers that are odd in ways of their own."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Asked", "Said", "Scripted"]


@dataclass(frozen=True)
class Asked:
    """One request as it came."""

    method: str
    target: str
    headers: tuple[tuple[str, str], ...]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name), None)


@dataclass(frozen=True)
class Said:
    """What is answered; a body that is not bytes becomes JSON."""

    body: Any
    status: int = 200
    headers: Sequence[tuple[str, str]] = ()

    def encode(self) -> bytes:
        body = self.body if isinstance(self.body, bytes) else json.dumps(self.body).encode()
        fields = [("Content-Type", "application/json"), *self.headers, ("Content-Length", str(len(body)))]
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields)
        return f"HTTP/1.1 {self.status} Said\r\n{lines}\r\n".encode() + body


class Scripted:
    """`async with Scripted(answer) as server:` listens on `server.url`; `server.asked` is what came."""

    def __init__(self, answer: Callable[[Asked], Said], *, delay: float = 0.0) -> None:
        self._answer = answer
        self._delay = delay
        self.asked: list[Asked] = []
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Scripted:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=1 << 20)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in tuple(self._writers):
            writer.transport.abort()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                lines = (await reader.readuntil(b"\r\n\r\n"))[:-4].decode("latin-1").split("\r\n")
                method, target, _ = lines[0].split(" ", 2)
                headers = tuple(
                    (name, value.strip()) for name, _, value in (line.partition(":") for line in lines[1:])
                )
                length = next((int(value) for name, value in headers if name.lower() == "content-length"), 0)
                asked = Asked(method, target, headers, await reader.readexactly(length))
                self.asked.append(asked)
                if self._delay:
                    await asyncio.sleep(self._delay)
                writer.write(self._answer(asked).encode())
                await writer.drain()
        self._writers.discard(writer)
        writer.close()
