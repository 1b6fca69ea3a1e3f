"""Callers that go on asking while a server restarts, and what became of each request."""

from __future__ import annotations

import asyncio
import json
import time
from typing import NamedTuple

__all__ = ["WAYS", "Asked", "Caller"]

WAYS = ("chat", "stream", "merged", "websocket")
_PAUSE_S = 0.03
_AFTER_FAILURE_S = 0.1
_PATIENCE_S = 45.0


class Asked(NamedTuple):
    """One request: when it was sent, when it was over (monotonic seconds), and whether it was answered well."""

    sent: float
    over: float
    well: bool


class Caller:
    """Asks one address in one way, over one connection as long as that holds, one request after the other."""

    def __init__(self, port: int, way: str) -> None:
        self.asked: list[Asked] = []
        self._port = port
        self.way = way
        self._stream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def run(self) -> None:
        """Ask until cancelled."""
        try:
            while True:
                sent = time.monotonic()
                try:
                    async with asyncio.timeout(_PATIENCE_S):
                        well = await self._ask()
                except (OSError, asyncio.IncompleteReadError, ValueError):  # TimeoutError is an OSError
                    well = False
                if not well:
                    self._close()
                self.asked.append(Asked(sent, time.monotonic(), well))
                await asyncio.sleep(_PAUSE_S if well else _AFTER_FAILURE_S)
        finally:
            self._close()

    def _close(self) -> None:
        if self._stream is not None:
            self._stream[1].transport.abort()
            self._stream = None

    async def _ask(self) -> bool:
        if self._stream is not None and self._stream[0].at_eof():
            self._close()
        if self._stream is None:
            self._stream = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._stream
        if self.way == "websocket":
            writer.write(
                b"GET /ws HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
            )
            head = await reader.readuntil(b"\r\n\r\n")
            if not head.startswith(b"HTTP/1.1 101"):
                return False
            for _ in range(5):
                writer.write(b"ping")
                await reader.readexactly(4)
                await asyncio.sleep(_PAUSE_S)
            self._close()
            return True
        path = "embeddings" if self.way == "merged" else "chat/completions"
        question = {"input": "x"} if self.way == "merged" else {"messages": [{"role": "user", "content": "x"}]}
        body = json.dumps({"model": "m", **question, "stream": self.way == "stream"}).encode()
        writer.write(
            b"POST /v1/%b HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
            % (path.encode(), len(body), body)
        )
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if b"transfer-encoding: chunked" in head:
            answer = b""
            while size := int(await reader.readuntil(b"\r\n"), 16):
                answer += await reader.readexactly(size + 2)
            await reader.readexactly(2)
        else:
            answer = await reader.readexactly(int(head.partition(b"content-length:")[2].partition(b"\r\n")[0]))
        if b"\r\nconnection: close" in head:
            self._close()
        return head.startswith(b"http/1.1 200") and (self.way != "stream" or b"[DONE]" in answer)
