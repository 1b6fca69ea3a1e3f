"""What the parts about resources have in common: a probed proxy, a server behind it, and an honest caller beside."""

from __future__ import annotations

import asyncio
import json
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

__all__ = ["Honest", "Probed", "resident", "server"]

_ANSWER = (
    b'{"id":"1","choices":[{"index":0,"message":{"role":"assistant","content":"hi"}}],"usage":{"prompt_tokens":1}}'
)
CHAT = b'{"model":"m","messages":[{"role":"user","content":"hi"}]}'


def resident(pid: int, what: str = "VmRSS") -> float:
    """Return a process's resident bytes, or with VmHWM the most there ever were."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(what):
            return 1024.0 * int(line.split()[1])
    raise OSError(f"the system does not tell {what}")


class Probed:
    """A proxy in a process of its own."""

    def __init__(self, upstream: int, *settings: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.hostile.probed", f"http://127.0.0.1:{upstream}", *settings],
            stdout=subprocess.PIPE,
            text=True,
        )
        ports = self._line()
        self.data, self.admin = ports["data"], ports["admin"]

    def __enter__(self) -> Probed:
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()

    def stall(self) -> tuple[float, float]:
        """Return the longest time without a turn of the loop since the last call, in ms: by the clock, at work."""
        self._process.send_signal(signal.SIGUSR1)
        found = self._line()
        return found["late_ms"], found["busy_ms"]

    def memory(self, what: str = "VmRSS") -> float:
        """Return resident bytes, or with VmHWM the most there ever were."""
        return resident(self._process.pid, what)

    def _line(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the proxy ended with code {self._process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found


class Honest:
    """Asks a chat and the proxy's health in turn, every few milliseconds, from a process of its own."""

    def __init__(self, port: int) -> None:
        command = [sys.executable, "-m", "benchmarks.hostile.around", "honest", str(port)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def stop(self) -> tuple[float, int, int]:
        """Return the 99th percentile of its waits in ms, how many there were, and how many went wrong."""
        out, _ = self._process.communicate("stop\n", timeout=60)
        waits, failures = json.loads(out)
        return statistics.quantiles(waits, n=100)[98], len(waits), failures


@contextmanager
def server() -> Iterator[int]:
    """Run an inference server that reads everything and answers at once; yield its port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.hostile.around", "server"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.wait()


async def _honest(port: int) -> None:
    loop = asyncio.get_running_loop()
    done = loop.run_in_executor(None, sys.stdin.readline)
    waits, failures = [], 0
    chat = b"POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n%b" % (len(CHAT), CHAT)
    health = b"GET /-/trimtab/healthz HTTP/1.1\r\nHost: a\r\n\r\n"
    reader = writer = None
    while not done.done():
        for request in (chat, health):
            began = time.monotonic()
            try:
                if reader is None or writer is None:
                    reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(request)
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
                await reader.readexactly(length)
                failures += not head.startswith(b"HTTP/1.1 200")
            except (OSError, EOFError, asyncio.IncompleteReadError):
                failures += 1
                reader = writer = None
            waits.append(1e3 * (time.monotonic() - began))
        await asyncio.sleep(0.005)
    print(json.dumps([waits, failures]))


async def _serve() -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (
        len(_ANSWER),
        _ANSWER,
    )

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                if b"transfer-encoding" in head:
                    while (size := int((await reader.readuntil(b"\n")).split(b";")[0], 16)) > 0:
                        await reader.readexactly(size + 2)
                    await reader.readuntil(b"\r\n")
                left = int(head.partition(b"\r\ncontent-length: ")[2].partition(b"\r")[0] or 0)
                while left > 0:
                    piece = await reader.read(min(left, 1 << 20))
                    if not piece:
                        return
                    left -= len(piece)
                writer.write(answer)
        except (OSError, EOFError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(one, "127.0.0.1", 0, limit=1 << 20)
    print(listening.sockets[0].getsockname()[1], flush=True)
    await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve() if sys.argv[1] == "server" else _honest(int(sys.argv[2])))
