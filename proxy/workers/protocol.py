"""Messages between the leader and its workers: JSON objects, each after its length in four bytes, big-endian.

They travel over a socket pair that nobody else can open, so there is nothing to authenticate.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import orjson

__all__ = ["MAX_MESSAGE_BYTES", "Channel", "ProtocolError", "frame"]

MAX_MESSAGE_BYTES = 256 * 1024 * 1024
_CONGESTED_BYTES = 4 * 1024 * 1024


class ProtocolError(Exception):
    """The other side sent something that is no message."""


def frame(message: dict[str, Any]) -> bytes:
    """Return `message` as it travels. Raises ProtocolError when it is too large."""
    body = orjson.dumps(message)
    if len(body) > MAX_MESSAGE_BYTES:
        raise ProtocolError(f"a message of {len(body)} bytes is larger than {MAX_MESSAGE_BYTES}")
    return len(body).to_bytes(4, "big") + body


class Channel:
    """One end of the line. Messages arrive whole, in order, or not at all."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def on(cls, sock: socket.socket) -> Channel:
        """Speak over a connected stream socket."""
        return cls(*await asyncio.open_unix_connection(sock=sock))

    @property
    def congested(self) -> bool:
        """Whether the other side does not keep up; what can be left out should be."""
        return self._writer.transport.get_write_buffer_size() > _CONGESTED_BYTES

    def send(self, message: dict[str, Any]) -> None:
        """Send without waiting. After the line was cut nothing happens."""
        if not self._writer.is_closing():
            self._writer.write(frame(message))

    async def receive(self) -> dict[str, Any] | None:
        """Return the next message; None once the line is cut. Raises ProtocolError for what is no message."""
        try:
            length = int.from_bytes(await self._reader.readexactly(4), "big")
            if length > MAX_MESSAGE_BYTES:
                raise ProtocolError(f"a message of {length} bytes is larger than {MAX_MESSAGE_BYTES}")
            body = await self._reader.readexactly(length)
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        try:
            message = orjson.loads(body)
        except orjson.JSONDecodeError as error:
            raise ProtocolError(f"no JSON: {error}") from None
        if not isinstance(message, dict) or not isinstance(message.get("type"), str):
            raise ProtocolError("a message is an object with a type")
        return message

    async def flush(self) -> None:
        """Wait until what was sent is on its way. A cut line is no error: there is nobody left to tell."""
        try:
            await self._writer.drain()
        except ConnectionError:
            return

    def close(self) -> None:
        """Cut the line."""
        self._writer.close()
