"""A fault-injecting inference server of our own: OpenAI's API, and every way to fail that tests need.

    python -m tests.support.mock_upstream --port 9000

How a request is treated is said by its own `x-mock` header, a JSON object (`Behaviour` lists the keys), or for
all requests that bring none by `MockUpstream.default`. What was seen is in `MockUpstream.seen`.

It speaks HTTP by hand over asyncio streams, because a server library would not let itself be made to break rules.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import ssl
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.support.mock_answers import chat_stream, content
from tests.support.mock_behaviour import Behaviour, Seen, known

__all__ = ["Behaviour", "MockUpstream", "Seen", "chat_stream"]


class MockUpstream:
    """Start it, point a proxy at `url`, look at `seen`."""

    def __init__(self, default: Behaviour | None = None, *, tls: ssl.SSLContext | None = None) -> None:
        self._tls = tls
        self.default = default or Behaviour()
        self.metrics = ""
        """What its /metrics says."""
        self.seen: list[Seen] = []
        self.connections = 0
        self.open_connections = 0
        self.inflight = 0
        self.max_inflight = 0
        self.port = 0
        self._server: asyncio.Server | None = None
        self._gates: dict[str, asyncio.Event] = {}
        self._changed = asyncio.Event()
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def url(self) -> str:
        return f"{'http' if self._tls is None else 'https'}://127.0.0.1:{self.port}"

    async def start(self, port: int = 0, host: str = "127.0.0.1") -> MockUpstream:
        self._server = await asyncio.start_server(self._serve, host, port, limit=1 << 20, backlog=4096, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        for writer in tuple(self._writers):
            writer.transport.abort()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def __aenter__(self) -> MockUpstream:
        return await self.start()

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def open(self, gate: str) -> None:
        """Let those through that wait at `gate`, now and from now on."""
        self._gates.setdefault(gate, asyncio.Event()).set()

    def close_idle(self) -> None:
        """Close every connection, as a server does whose keep-alive ran out."""
        for writer in tuple(self._writers):
            writer.transport.close()

    async def until(self, condition: Callable[[], bool], timeout: float = 5.0) -> None:
        """Wait for `condition`, looking whenever something has happened here."""
        async with asyncio.timeout(timeout):
            while not condition():
                self._changed.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), 0.02)

    # -- one connection ------------------------------------------------------------------------------------

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        self.connections += 1
        self.open_connections += 1
        number = self.connections
        try:
            while await self._one(reader, writer, number):
                pass
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        except RuntimeError:
            # uvloop's word for writing to a transport that was just closed.
            if not writer.is_closing():
                raise
        finally:
            writer.close()
            self.open_connections -= 1
            self._writers.discard(writer)
            self._tasks.discard(task)
            self._changed.set()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> bool:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return False
        lines = head[:-4].decode("latin-1").split("\r\n")
        method, target, _ = lines[0].split(" ", 2)
        headers = [(k, v.strip()) for k, _, v in (line.partition(":") for line in lines[1:])]
        seen = Seen(method, target, headers, connection=number, at=time.monotonic())
        mock = seen.header("x-mock")
        behaviour = replace(self.default, **known(json.loads(mock))) if mock else self.default
        seen.how = behaviour
        self.seen.append(seen)
        self._changed.set()
        if (seen.header("upgrade") or "").lower() == "websocket":
            await self._tunnel(reader, writer)
            return False
        if seen.header("expect") == "100-continue" and not behaviour.answer_early:
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            seen.continued = True
        if not behaviour.answer_early:
            seen.body = await _read_body(reader, seen)
            self._changed.set()
        self.inflight += 1
        self.max_inflight = max(self.max_inflight, self.inflight)
        watch = asyncio.create_task(self._watch(reader, behaviour.answer_early))
        answer = asyncio.create_task(self._answer(writer, seen, behaviour))
        try:
            await asyncio.wait((watch, answer), return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                answer.cancel()
                seen.aborted_at = time.monotonic()
                return False
            return answer.result() and not behaviour.answer_early
        finally:
            self.inflight -= 1
            watch.cancel()
            answer.cancel()
            await asyncio.gather(watch, answer, return_exceptions=True)
            self._changed.set()

    async def _watch(self, reader: asyncio.StreamReader, early: bool) -> None:
        """Return when the other side goes away while it is owed an answer."""
        if early:
            await asyncio.Event().wait()
        with contextlib.suppress(ConnectionError):
            data = await reader.read(1)
            assert not data, "a proxy must not pipeline"

    async def _tunnel(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Switch protocols and echo whatever comes."""
        writer.write(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            b"Sec-WebSocket-Accept: mock\r\n\r\nhello"
        )
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()

    # -- one answer ----------------------------------------------------------------------------------------

    async def _answer(self, writer: asyncio.StreamWriter, seen: Seen, how: Behaviour) -> bool:
        if how.gate is not None:
            await self._gates.setdefault(how.gate, asyncio.Event()).wait()
        if how.delay:
            await asyncio.sleep(how.delay)
        if how.hang:
            await asyncio.Event().wait()
        if how.reset_before_head:
            writer.transport.abort()
            return False
        if how.close_before_head:
            return False
        if how.garbage:
            writer.write(b"\x00\x01 this is no HTTP\r\n\r\n")
            return False
        if how.interim is not None:
            writer.write(b"HTTP/1.1 %d Interim\r\nLink: </x>\r\n\r\n" % how.interim)
        status, kind, pieces = content(seen, how, self.metrics)
        seen.status = status
        framing = how.framing
        if framing == "auto":
            framing = "chunked" if len(pieces) > 1 else "length"
        phrase = how.reason if how.reason is not None else "OK" if status == 200 else "Mock"
        head = [f"HTTP/1.1 {status} {phrase}", f"Content-Type: {kind}"]
        head += [f"{name}: {value}" for name, value in how.headers]
        if how.retry_after is not None:
            head.append(f"Retry-After: {how.retry_after}")
        if how.encoding is not None:
            head.append(f"Content-Encoding: {how.encoding}")
        if framing == "length":
            head.append(f"Content-Length: {sum(map(len, pieces))}")
        elif framing == "chunked":
            head.append("Transfer-Encoding: chunked")
        if how.close or framing == "close":
            head.append("Connection: close")
        writer.write(("\r\n".join(head) + "\r\n\r\n").encode("latin-1"))
        if seen.method == "HEAD" or status in (204, 304):
            pieces = []
            framing = "length"
        done = await self._write(writer, pieces, framing, how)
        await writer.drain()
        seen.finished, seen.ended_at = done, time.monotonic() if done else 0.0
        return done and framing != "close" and not how.close and not how.drop_idle

    async def _write(self, writer: asyncio.StreamWriter, pieces: list[bytes], framing: str, how: Behaviour) -> bool:
        written = 0
        if framing == "chunked":
            trailers = b"".join(f"{k}: {v}\r\n".encode() for k, v in how.trailers)
            encoded = [b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces]
            encoded.append(b"0\r\n%b\r\n" % trailers)
        else:
            encoded = list(pieces)
        if how.junk is not None:
            encoded = [*encoded[:-1], (encoded[-1] if encoded else b"") + how.junk.encode("latin-1")]
        for position, data in enumerate(encoded):
            if position and how.gap and position < len(pieces):
                await asyncio.sleep(how.gap)
            if how.cut_at is not None and written + len(data) > how.cut_at:
                writer.write(data[: how.cut_at - written])
                await writer.drain()
                if how.reset:
                    writer.transport.abort()
                return False
            if how.stall_at is not None and written + len(data) > how.stall_at:
                writer.write(data[: how.stall_at - written])
                await asyncio.Event().wait()
            if how.drip:
                # Its last piece is written below, with what there is behind it.
                while len(data) > 16:
                    writer.write(data[:16])
                    written, data = written + 16, data[16:]
                    await asyncio.sleep(how.drip)
            writer.write(data)
            written += len(data)
            await writer.drain()
        return True


async def _read_body(reader: asyncio.StreamReader, seen: Seen) -> bytes:
    if (seen.header("transfer-encoding") or "").lower() == "chunked":
        pieces = []
        while True:
            size = int((await reader.readline()).split(b";")[0], 16)
            if size == 0:
                while (line := await reader.readline()) not in (b"\r\n", b""):
                    name, _, value = line.decode("latin-1").partition(":")
                    seen.trailers.append((name, value.strip()))
                return b"".join(pieces)
            pieces.append(await reader.readexactly(size))
            await reader.readexactly(2)
    length = seen.header("content-length")
    return await reader.readexactly(int(length)) if length else b""


async def _main(port: int) -> None:
    mock = await MockUpstream().start(port)
    print(f"mock upstream on {mock.url}; Ctrl-C stops it", flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=9000)
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_main(parser.parse_args().port))
