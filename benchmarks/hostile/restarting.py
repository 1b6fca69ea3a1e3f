"""An inference server that is made to die: kill it, stop it, or tell it by a signal how to fail.

    python -m benchmarks.hostile.restarting --port 9000 [--load-s 20] [--silent]

SIGUSR1: answer everything from now on with half a head, and end. SIGUSR2: accept no connection for `--closed-s`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import time

_TOKENS = 10
_GAP_S = 0.02
_HALF_S = 0.3
"""For so long halves of heads are sent before the end."""


class Server:
    """Answers chats, streams of chats, embeddings and upgrades, unless it loads or fails."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._ready_at = time.monotonic() + options.load_s
        self._halves = False
        self._listener: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Serve until killed."""
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, self._fail)
        loop.add_signal_handler(signal.SIGUSR2, lambda: self._tasks.add(loop.create_task(self._close_for_a_while())))
        await self._listen()
        await asyncio.Event().wait()

    async def _listen(self) -> None:
        self._listener = await asyncio.start_server(self._serve, "127.0.0.1", self._options.port, backlog=1024)

    def _fail(self) -> None:
        self._halves = True
        asyncio.get_running_loop().call_later(_HALF_S, os._exit, 1)

    async def _close_for_a_while(self) -> None:
        assert self._listener is not None
        self._listener.close()
        await asyncio.sleep(self._options.closed_s)
        await self._listen()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                await self._one(reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
        body = await reader.readexactly(length)
        left_s = self._ready_at - time.monotonic()
        if left_s > 0 and self._options.silent:
            await asyncio.sleep(left_s)
        elif left_s > 0:
            writer.write(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 7\r\n\r\nloading")
            return
        if self._halves:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Ty")
            await asyncio.sleep(60)
        if b"\r\nupgrade:" in head:
            writer.write(
                b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
                # What RFC 6455 section 1.3 makes of the key in its example, which all callers send.
                b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n"
            )
            while data := await reader.read(65536):
                writer.write(data)
            raise ConnectionResetError
        if b"/embeddings" in head.partition(b"\r\n")[0]:
            given = json.loads(body)["input"]
            data = [{"index": index, "embedding": [1.0]} for index in range(len(given) if type(given) is list else 1)]
            await asyncio.sleep(_GAP_S)
            _whole(writer, {"object": "list", "data": data, "usage": {"prompt_tokens": 1, "total_tokens": 1}})
        elif b'"stream": true' in body:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
            for _ in range(_TOKENS):
                _event(writer, json.dumps({"choices": [{"index": 0, "delta": {"content": "x "}}]}))
                await asyncio.sleep(_GAP_S)
            _event(writer, "[DONE]")
            writer.write(b"0\r\n\r\n")
        else:
            await asyncio.sleep(_GAP_S)
            choice = {"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}
            _whole(writer, {"object": "chat.completion", "choices": [choice]})


def _whole(writer: asyncio.StreamWriter, document: object) -> None:
    body = json.dumps(document).encode()
    writer.write(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    )


def _event(writer: asyncio.StreamWriter, text: str) -> None:
    event = f"data: {text}\n\n".encode()
    writer.write(b"%x\r\n%b\r\n" % (len(event), event))


def main() -> None:
    """Parse the options and serve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--load-s", type=float, default=0.0, help="answer 503 for so long")
    parser.add_argument("--silent", action="store_true", help="say nothing meanwhile, instead of 503")
    parser.add_argument("--closed-s", type=float, default=5.0)
    asyncio.run(Server(parser.parse_args()).run())


if __name__ == "__main__":
    main()
