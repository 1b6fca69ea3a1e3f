"""An upstream that says to each path exactly the bytes it was told to, with pauses where it was told to."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from fcntl import ioctl
from termios import FIONREAD

__all__ = ["LiteralUpstream"]


class LiteralUpstream:
    """An upstream that writes, for every request, pieces of bytes with pauses in between; and counts connections."""

    def __init__(self, script: Mapping[str, Sequence[bytes | float]]) -> None:
        self.script = script
        self.connections = 0

    async def __aenter__(self) -> LiteralUpstream:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                paused = False
                for what in self.script[head.split(b" ")[1].decode()]:
                    if isinstance(what, float):
                        paused = True
                        await asyncio.sleep(what)
                    elif what == b"":
                        writer.close()
                    elif paused and _asked_again(reader, writer):
                        # What is said from here on is the answer to that.
                        break
                    else:
                        writer.write(what)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()


def _asked_again(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    waiting = ioctl(writer.get_extra_info("socket").fileno(), FIONREAD, bytes(4))
    return waiting != bytes(4) or bool(reader._buffer)  # type: ignore[attr-defined]
